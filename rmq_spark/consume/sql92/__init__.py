"""SQL92 filter expressions evaluated over columns of properties: true, false, unknown or an error for each
message.

The rules are those of RocketMQ's filter module (ComparisonExpression, LogicExpression, UnaryExpression): only
true delivers a message, and an error, such as a text where a number is compared, does not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.consume.sql92.logic import ERROR, TRUE, Outcomes
from rmq_spark.consume.sql92.machine import Machine
from rmq_spark.consume.sql92.parser import Parsed, parse

__all__ = ["CountingFilter", "Sql92Filter", "parse_sql92"]

_log = logging.getLogger(__name__)

_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Sql92Filter:
    """A compiled expression. Plain values: it is pickled to every task.

    >>> parse_sql92("price > 3 AND region = 'north'").names
    ('price', 'region')
    """

    expression: str
    parsed: Parsed

    @property
    def names(self) -> tuple[str, ...]:
        """The properties that the expression names."""
        return self.parsed.names

    def outcomes(self, count: int, values: Callable[[str], pa.StringArray]) -> Outcomes:
        """What the expression is for each of `count` messages: FALSE, TRUE, UNKNOWN or ERROR.

        `values(name)` is a property of all of them, null where it is absent.
        """
        return Machine(count, values).run(self.parsed.steps)

    def mask(self, count: int, values: Callable[[str], pa.StringArray]) -> pa.BooleanArray:
        """Which messages match, never null."""
        return pa.array(self.outcomes(count, values) == TRUE)

    def mask_of_maps(self, properties: pa.MapArray) -> pa.BooleanArray:
        """Which of the messages with these properties match; a message without a map has no property."""
        keys = properties.type.key_type  # maps from elsewhere may have large strings
        return self.mask(
            len(properties),
            lambda name: pc.map_lookup(properties, pa.scalar(name, keys), "last").cast(pa.string()),
        )


@dataclass(slots=True)
class CountingFilter:
    """An expression at work in one task, and how many evaluations ended in an error."""

    expression: Sql92Filter
    errors: int = 0

    def mask(self, count: int, values: Callable[[str], pa.StringArray]) -> pa.BooleanArray:
        outcomes = self.expression.outcomes(count, values)
        self.errors += int(np.count_nonzero(outcomes == ERROR))
        return pa.array(outcomes == TRUE)


@lru_cache(maxsize=64)
def parse_sql92(expression: str) -> Sql92Filter:
    """Compile an expression. Raises OptionError, with the place, for what RocketMQ refuses at compile time.

    RocketMQ ignores what stands behind a complete expression: `s LIKE 'a%'` is the bare property `s`, which
    is never true. So does this, with a warning.
    """
    parsed = parse(expression)
    if parsed.ignored:
        read = expression[: len(expression) - len(parsed.ignored)].rstrip()
        _log.warning(
            "subExpression: RocketMQ evaluates %s and ignores what follows it, %s",
            _quoted(read),
            _quoted(parsed.ignored),
        )
    return Sql92Filter(expression, parsed)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")

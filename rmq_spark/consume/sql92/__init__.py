"""RocketMQ's SQL92 filter language: an expression is true, false, unknown or an error for each message.

The rules are those of RocketMQ's filter module (ComparisonExpression, LogicExpression, UnaryExpression). Only
TRUE delivers a message; an error, such as a text compared with a number, does not. `parser` makes steps of
the text, `machine` evaluates them over columns of message properties.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from rmq_spark.consume.sql92.machine import ERROR, TRUE, Machine, Outcomes
from rmq_spark.consume.sql92.parser import Parsed, parse
from store_format.errors import OptionError

_log = logging.getLogger(__name__)

_SHOWN_MAX = 200


@dataclass(frozen=True, slots=True)
class Sql92Filter:
    """A compiled expression: plain values, because it is pickled to every task.

    >>> parse_sql92("price > 3 AND region = 'north'").names
    ('price', 'region')
    """

    expression: str
    parsed: Parsed

    @property
    def names(self) -> tuple[str, ...]:
        """The message properties that the expression names."""
        return self.parsed.names

    def outcomes(self, count: int, values: Callable[[str], pa.StringArray]) -> Outcomes:
        """FALSE, TRUE, UNKNOWN or ERROR for each of `count` messages.

        `values(name)` is the column of a property, null for messages without it.
        """
        return Machine(count, values).run(self.parsed.steps)

    def mask(self, count: int, values: Callable[[str], pa.StringArray]) -> pa.BooleanArray:
        """Whether each message matches, without nulls."""
        return pa.array(self.outcomes(count, values) == TRUE)


@dataclass(slots=True)
class CountingFilter:
    """An expression in one task, and the number of evaluations that ended in an error."""

    expression: Sql92Filter
    errors: int = 0

    def mask(self, count: int, values: Callable[[str], pa.StringArray]) -> pa.BooleanArray:
        outcomes = self.expression.outcomes(count, values)
        self.errors += int(np.count_nonzero(outcomes == ERROR))
        return pa.array(outcomes == TRUE)


@lru_cache(maxsize=64)
def parse_sql92(expression: str, option: str = "subExpression") -> Sql92Filter:
    """Compiles an expression. Raises OptionError, with the place, if RocketMQ refuses to compile it.

    Errors and warnings name the `option`.

    RocketMQ ignores text after a complete expression: `s LIKE 'a%'` is the bare property `s`, which is never
    true. This function ignores it too, with a warning. A second warning is for `region = north`, which
    compares two properties where a text in quotes was probably meant.
    """
    parsed = parse(expression, option)
    _warn_of_ignored(parsed, expression, option)
    if parsed.pairs:
        _log.warning("%s: %s", option, _about_pair(*parsed.pairs[0]))
    return Sql92Filter(expression, parsed)


def parse_condition(expression: str, option: str) -> Sql92Filter:
    """The filter of a condition that a person types. `region = north` is an error, unlike in `parse_sql92`.

    That condition would match every message that has neither property, since RocketMQ's null equals null. In
    `region = (north)` the second property is meant.
    """
    parsed = parse(expression, option)
    _warn_of_ignored(parsed, expression, option)
    if parsed.pairs:
        before, name = parsed.pairs[0]
        raise OptionError(f"{option}: {_about_pair(before, name)}, or {before} ({name}) for the property")
    return Sql92Filter(expression, parsed)


def _about_pair(before: str, name: str) -> str:
    return f"{before} {name} compares two message properties; for a text write {before} '{name}'"


def _warn_of_ignored(parsed: Parsed, expression: str, option: str) -> None:
    if not parsed.ignored:
        return
    read = expression[: len(expression) - len(parsed.ignored)].rstrip()
    _log.warning(
        "%s: RocketMQ evaluates %s and ignores the text after it, %s",
        option,
        _quoted(read),
        _quoted(parsed.ignored),
    )


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}…")

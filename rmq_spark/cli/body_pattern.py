"""Filters of one search: bodies by --body with --ignore-case and --regex, and several --body or --where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from store_format.errors import OptionError
from store_format.read.choice import BodyFilter

if TYPE_CHECKING:
    from rmq_spark.consume.sql92 import Sql92Filter


@dataclass(frozen=True, slots=True)
class BodyText:
    """Bodies that contain a text, compared as UTF-8 bytes."""

    text: str

    def mask(self, bodies: pa.LargeBinaryArray) -> pa.BooleanArray:
        """Which bodies match."""
        return pc.match_substring(bodies, self.text.encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class AllBodies:
    """Bodies that all the filters select."""

    filters: tuple[BodyFilter, ...]

    def mask(self, bodies: pa.LargeBinaryArray) -> pa.BooleanArray:
        """Which bodies match."""
        return reduce(pc.and_, (each.mask(bodies) for each in self.filters))


@dataclass(frozen=True, slots=True)
class AllConditions:
    """Messages whose properties meet all conditions."""

    conditions: tuple[Sql92Filter, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The message properties that the conditions name."""
        return tuple(name for each in self.conditions for name in each.names)

    def mask(self, count: int, values: Callable[[str], pa.StringArray]) -> pa.BooleanArray:
        """Which of `count` messages match."""
        return reduce(pc.and_, (each.mask(count, values) for each in self.conditions))


@dataclass(frozen=True, slots=True)
class BodyPattern:
    """Bodies that contain a text, or a match of a regular expression of RE2.

    Bodies are compared as UTF-8. Raises OptionError for a text that is no regular expression.
    """

    text: str
    ignore_case: bool
    is_regex: bool

    def __post_init__(self) -> None:
        try:
            self.mask(pa.array([b""], pa.large_binary()))
        except pa.ArrowInvalid as error:
            reason = str(error).removeprefix("Invalid regular expression: ")
            hint = ""
            if "(?" in reason:
                hint = "; RE2 has no lookahead: give --body twice for two texts, or write 'a.*b|b.*a'"
            raise OptionError(f"--body: expected a regular expression (RE2), found {reason}{hint}") from error

    def mask(self, bodies: pa.LargeBinaryArray) -> pa.BooleanArray:
        """Which bodies match."""
        texts = bodies.cast(pa.large_string(), safe=False)  # bytes that are not UTF-8 match nothing
        match = pc.match_substring_regex if self.is_regex else pc.match_substring
        return match(texts, self.text, ignore_case=self.ignore_case)

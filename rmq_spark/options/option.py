"""One row of the option tables, and how parsed values become the fields of an options class."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from rmq_spark.options.parse import Given
from store_format.message.hosts import format_host

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

BATCH = "batch"
STREAM = "stream"
WRITE = "write"


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its name, how its text is parsed, its default, and the queries that it applies to.

    `default` is text, and is parsed like the caller's text. Without a default the value is None, and
    `otherwise` describes the effect for the reference. `stream` has the parser and the default of a
    streaming query, if they differ.
    """

    name: str
    kind: str
    parse: Callable[[Given], Any]  # Any: the field of the options class has the type
    about: str
    default: str | None = None
    otherwise: str = ""
    heading: str = ""
    applies: frozenset[str] = frozenset({BATCH, STREAM})
    stream: tuple[Callable[[Given], Any], str | None] | None = None

    def read(self, given: Mapping[str, Given], now_ms: int, where: str = BATCH) -> Any:
        """The value: parsed from the caller's text, else from the default, else None."""
        parse, default = (
            self.stream if self.stream is not None and where == STREAM else (self.parse, self.default)
        )
        if self.name in given:
            return parse(given[self.name])
        return None if default is None else parse(Given(self.name, default, now_ms))


def plain_fields(options_class: type[DataclassInstance], read: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `options_class` that are an option's value as parsed: those with the option's name.

    `read` has the values by the documented names. A new option needs its row in a table and its field in the
    class; only a value that is combined with others needs code.
    """
    names = {field.name for field in fields(options_class)}
    by_field = {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in read.items()}
    return {name: value for name, value in by_field.items() if name in names}


def value_text(value: Any) -> str:
    """A parsed value as the log shows it. Any: each parser has its own type."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return format_host(*value) if isinstance(value[0], bytes) else ",".join(map(str, value))
    return str(value)

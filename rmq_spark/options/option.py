"""One row of the option tables: a name, how its text is read, its default, where it applies and what it is
for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rmq_spark.options.parse import Given

__all__ = ["BATCH", "STREAM", "Option"]

BATCH = "batch"
STREAM = "stream"


@dataclass(frozen=True, slots=True)
class Option:
    """One row. `default` is text, and is read like a caller's; where there is none, `otherwise` says what
    happens instead.

    `stream` is how a stream reads it and its default there, where that is different.
    """

    name: str
    kind: str
    parse: Callable[[Given], Any]  # Any: the field of ReadOptions that takes the value has its type
    about: str
    default: str | None = None
    otherwise: str = ""
    heading: str = ""
    applies: frozenset[str] = frozenset({BATCH, STREAM})
    stream: tuple[Callable[[Given], Any], str | None] | None = None

    def read(self, given: Mapping[str, Given], now_ms: int, where: str = BATCH) -> Any:
        parse, default = (
            self.stream if self.stream is not None and where == STREAM else (self.parse, self.default)
        )
        if self.name in given:
            return parse(given[self.name])
        return None if default is None else parse(Given(self.name, default, now_ms))

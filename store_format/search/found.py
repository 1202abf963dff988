"""The result of a search: the messages, and what was searched."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap

import pyarrow as pa

from store_format.display.units import size_text


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search has read.

    `topics` are the topics that were looked up in `index_files`. `unused` has (index file, reason) pairs.
    `candidates` is the number of messages that the index named. `scanned` are physical offsets [start, stop)
    of the commitlog, `bytes_scanned` in all; a scan skipped `damaged_bytes` of them. `lost` messages are gone
    with missing parts of the commitlog.
    """

    topics: tuple[str, ...]
    index_files: tuple[str, ...]
    unused: tuple[tuple[str, str], ...]
    candidates: int
    scanned: tuple[tuple[int, int], ...]
    bytes_scanned: int
    damaged_bytes: int
    lost: int = 0

    def __str__(self) -> str:
        return self._text(f"{self.bytes_scanned} bytes")

    def for_people(self) -> str:
        """The sentence with sizes in units, for cards."""
        return self._text(size_text(self.bytes_scanned))

    def _text(self, scanned: str) -> str:
        files = f"{len(self.index_files)} index file{'s' * (len(self.index_files) != 1)}"
        candidates = f"{self.candidates} candidate{'s' * (self.candidates != 1)}"
        parts = [f"{files} ({candidates})", f"{scanned} of the commitlog scanned"]
        if self.unused:
            parts.append(f"{len(self.unused)} index files not used, the first because {self.unused[0][1]}")
        if self.damaged_bytes:
            parts.append(f"{self.damaged_bytes} bytes are damaged and may have held more")
        if self.lost:
            parts.append(f"{self.lost} messages are lost with missing parts of the commitlog")
        return "; ".join(parts)


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """The messages that a search found, and what it read.

    `table` has the messages in commitlog order, with `physicalOffset` among the columns. `how` is "index"
    (only index files and the messages at their edges were read), "scan", "index and scan", "offset" for an
    offset message id, or "consume queue" for a search without key and id. `searched` has the numbers.
    """

    table: pa.Table
    how: str
    searched: Searched

    def _repr_html_(self) -> str:
        from store_format.display.page import PageSpace, card, fact, facts, text
        from store_format.display.table import table, wide_last

        lines = [("found by", text(self.how)), ("searched", text(self.searched.for_people(), 500))]
        found = self.table.select(wide_last(self.table.schema.names))
        rows = table(found.to_batches(), found.schema, PageSpace(), total=found.num_rows)
        title = f"{self.table.num_rows:,} message{'s' * (self.table.num_rows != 1)}"
        return card(title, "found", [facts(starmap(fact, lines)), rows]).source

"""The answer of a search: the messages, and where they were looked for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import starmap

import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Searched:
    """What was looked at. `scanned` are physical ranges [start, stop) of the commitlog, `topics` those asked
    of the index.

    `unused` has (index file, reason) pairs, `candidates` counts messages the index led to, `damaged_bytes`
    what a scan stepped over.
    """

    topics: tuple[str, ...]
    index_files: tuple[str, ...]
    unused: tuple[tuple[str, str], ...]
    candidates: int
    scanned: tuple[tuple[int, int], ...]
    bytes_scanned: int
    damaged_bytes: int

    def __str__(self) -> str:
        parts = [
            f"{len(self.index_files)} index files ({self.candidates} candidates)",
            f"{self.bytes_scanned} bytes of the commitlog scanned",
        ]
        if self.unused:
            parts.append(f"{len(self.unused)} index files not used, the first because {self.unused[0][1]}")
        if self.damaged_bytes:
            parts.append(f"{self.damaged_bytes} bytes are damaged and may have held more")
        return "; ".join(parts)


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """The messages in the order of the log, with `physicalOffset` among the columns, and where they were
    looked for.

    `how` is "index" (nothing else was read than the messages at the edges of its files), "scan", or "index
    and scan"; "offset" for an offset message id, "consume queue" where neither key nor id was given.
    """

    table: pa.Table
    how: str
    searched: Searched

    def _repr_html_(self) -> str:
        from store_format.display.page import PageSpace, card, fact, facts, text
        from store_format.display.table import table

        lines = [("found by", text(self.how)), ("searched", text(str(self.searched), 500))]
        rows = table(self.table.to_batches(), self.table.schema, PageSpace(), total=self.table.num_rows)
        title = f"{self.table.num_rows:,} message{'s' * (self.table.num_rows != 1)}"
        return card(title, "found", [facts(starmap(fact, lines)), rows]).source

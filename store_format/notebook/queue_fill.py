"""How full the files of each consume queue and each index file are, the ones with the most entries first."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store_format.files.read import list_store_files
from store_format.index.file import open_index_files
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT
from store_format.read.snapshot import list_queues

if TYPE_CHECKING:
    from store_format.read.store import Store

__all__ = ["Fill", "index_fills", "queue_fills"]


@dataclass(frozen=True, slots=True)
class Fill:
    """Entries in a number of files, and how much of these they take, 0 to 1."""

    name: str
    entries: int
    files: int
    size_bytes: int
    ratio: float


def queue_fills(store: Store) -> list[Fill]:
    """Queues that have files. Without any (RocksDB) none, and nothing is read."""
    if not store.has_consume_queues:
        return []
    ranges = store.snapshot().queues
    fills = []
    for topic, queue_id, directory, kind in list_queues(store.path, lambda topic: True):
        queue, files = ranges.get((topic, queue_id)), list_store_files(directory)
        if queue is None or queue.bounds is None or not files:
            continue
        size = sum(file.size for file in files)
        unit = (CQ_UNIT if kind == "simple" else BATCH_CQ_UNIT).itemsize
        entries = max(queue.bounds.unit_stop - files[0].start // unit, 0)
        fills.append(
            Fill(
                f"{topic}-{queue_id}",
                entries,
                len(files),
                size,
                min(entries * unit / size, 1.0) if size else 0.0,
            )
        )
    return sorted(fills, key=lambda fill: (-fill.entries, fill.name))


def index_fills(store: Store) -> list[Fill]:
    """Index files; where entries do not prove how many a file can take, it counts as full of what it has."""
    fills = []
    for index in open_index_files(f"{store.path}/index"):
        with index:
            entries = max(index.header().index_count - 1, 0)
            room = index.geometry.index_num - 1 if index.geometry is not None else entries
            fills.append(
                Fill(
                    os.path.basename(index.path),
                    entries,
                    1,
                    index.size,
                    min(entries / room, 1.0) if room > 0 else 0.0,
                )
            )
    return sorted(fills, key=lambda fill: (-fill.entries, fill.name))

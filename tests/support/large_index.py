"""An index file with a broker's default sizes, 420 MB that are mostly holes, for the store basic-5.5.0."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from store_format.index.file import DEFAULT_GEOMETRY, key_hash_many
from tests.support import goldens
from tests.support.oracle import index_keys_of

_FIRST = 4200  # entries at the begin of a file, one behind the other; the others lie all over it
CHAIN = 4  # other keys in the slot: 20,000,000 entries in 5,000,000 slots


class IndexEntry(NamedTuple):
    key_hash: int
    physical_offset: int
    store_timestamp: int


@cache
def _messages() -> list[dict[str, Any]]:
    """The messages of the store basic-5.5.0, in the order of the log."""
    rows = {
        row["physicalOffset"]: row
        for row in goldens.expected_rows("basic-5.5.0")
        if not row["topic"].startswith("%LMQ%")
    }
    return [rows[offset] for offset in sorted(rows)]


def middle_key() -> str:
    """A key of a message in the middle."""
    orders = [row for row in _messages() if row["topic"] == "Orders" and "KEYS" in row["properties"]]
    return str(orders[len(orders) // 2]["properties"]["KEYS"].split(" ")[0])


@cache
def basic_entries() -> tuple[IndexEntry, ...]:
    """The entries of all messages."""
    found = [
        (key, row["physicalOffset"], row["storeTimestamp"])
        for row in _messages()
        for key in index_keys_of(row["topic"], row["properties"])
    ]
    hashes = key_hash_many(pa.array([key for key, *_ in found])).tolist()
    return tuple(IndexEntry(each, *rest) for each, (_, *rest) in zip(hashes, found, strict=True))


def write_large_index(path: Path, entries: Sequence[IndexEntry], *, older_ms: int = 0) -> None:
    """A file of 420 MB, mostly holes, whose times are `older_ms` older. If the entries are more than the
    first ones, the file is full.
    """
    count = len(entries)
    behind = np.linspace(_FIRST + 1, DEFAULT_GEOMETRY.index_num - 1, max(count - _FIRST, 0)).astype(int)
    numbers = [*range(1, min(count, _FIRST) + 1), *behind.tolist()]
    start, end = (entries[i].store_timestamp - older_ms for i in (0, -1))
    slots: dict[int, int] = {}
    with path.open("wb") as file:
        for number, entry in zip(numbers, entries, strict=True):
            slot = entry.key_hash % DEFAULT_GEOMETRY.hash_slot_num
            seconds = max(entry.store_timestamp - older_ms - start, 0) // 1000
            file.seek(DEFAULT_GEOMETRY.units_start + 20 * number)
            file.write(struct.pack(">iqii", *entry[:2], seconds, slots.get(slot, 0)))
            slots[slot] = number
        for slot, number in slots.items():
            file.seek(40 + 4 * slot)
            file.write(struct.pack(">i", number))
        offsets = entries[0].physical_offset, entries[-1].physical_offset
        file.seek(0)
        file.write(struct.pack(">qqqqii", start, end, *offsets, len(slots), numbers[-1] + 1))
        file.truncate(DEFAULT_GEOMETRY.file_size)


def entries_in_one_slot(key_hash: int) -> list[IndexEntry]:
    """The entries, with others of the slot of a key all over the file: 20,000,000 entries are in 5,000,000
    slots.
    """
    entries = list(basic_entries())
    step = len(entries) // (CHAIN + 1)
    for i in range(1, CHAIN + 1):
        other = (key_hash + DEFAULT_GEOMETRY.hash_slot_num * i) % 2_000_000_000  # a multiple of the slots
        entries.insert(i * step, entries[i * step]._replace(key_hash=other))
    return entries

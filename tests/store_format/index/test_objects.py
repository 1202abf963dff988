"""Index files on object storage: a search reads ranges of a file with a broker's default sizes, never all."""

from __future__ import annotations

import shutil
import struct
import threading
import time
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest

from store_format import MessageStore
from store_format.files import blocks
from store_format.index.file import DEFAULT_GEOMETRY, key_hash, key_hash_many
from store_format.read.store import Store
from store_format.views.registry import view_batches
from tests.support import goldens
from tests.support.index_writer import message_index_keys
from tests.support.object_server import ObjectServer, Request

_FIRST = 4200  # entries at the begin of a file, one behind the other; the others lie all over it
_CHAIN = 4  # other keys in the slot: 20,000,000 entries in 5,000,000 slots
_DAY_MS = 86_400_000


class _Entry(NamedTuple):
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


def _key() -> str:
    """A key of a message in the middle."""
    orders = [row for row in _messages() if row["topic"] == "Orders" and "KEYS" in row["properties"]]
    return str(orders[len(orders) // 2]["properties"]["KEYS"].split(" ")[0])


@cache
def _entries() -> tuple[_Entry, ...]:
    """The entries of all messages."""
    found = [
        (key, row["physicalOffset"], row["storeTimestamp"])
        for row in _messages()
        for key in message_index_keys(row["topic"], row["properties"], tags=True)
    ]
    hashes = key_hash_many(pa.array([key for key, *_ in found])).tolist()
    return tuple(_Entry(each, *rest) for each, (_, *rest) in zip(hashes, found, strict=True))


def _write_large(path: Path, entries: Sequence[_Entry], *, older_ms: int = 0) -> None:
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


def _in_one_slot(key_hash: int) -> list[_Entry]:
    """The entries, with others of the slot of a key all over the file: 20,000,000 entries are in 5,000,000
    slots.
    """
    entries = list(_entries())
    step = len(entries) // (_CHAIN + 1)
    for i in range(1, _CHAIN + 1):
        other = (key_hash + DEFAULT_GEOMETRY.hash_slot_num * i) % 2_000_000_000  # a multiple of the slots
        entries.insert(i * step, entries[i * step]._replace(key_hash=other))
    return entries


class _Found(NamedTuple):
    offsets: list[int]
    how: str


def _find(path: str, *, since: int | None = None, use_index: bool = True) -> _Found:
    found = MessageStore.open(path).find(key=_key(), topic="Orders", since=since, use_index=use_index)
    return _Found(found.table["physicalOffset"].to_pylist(), found.how)


def _of_index(server: ObjectServer) -> list[Request]:
    return [request for request in server.requests if "/index/" in request.key]


@pytest.fixture
def large(basic: Path) -> Path:
    """The directory `index` of the store, without a file."""
    shutil.rmtree(basic / "index")
    (basic / "index").mkdir()
    return basic / "index"


def test_a_search_of_a_full_file_reads_one_slot_and_its_chain(
    server: ObjectServer, basic: Path, large: Path
) -> None:
    path = large / "20261121065231934"
    _write_large(path, _in_one_slot(key_hash(f"Orders#{_key()}")))
    right = _find(str(basic), use_index=False).offsets
    assert right
    server.requests.clear()
    assert _find(server.url_of(basic)) == (right, "index")
    of_index = _of_index(server)
    assert len(server.requests) <= 22
    assert len(of_index) <= 6 + 2 * (_CHAIN + 1)  # the proof, the slot, and each unit of the chain
    assert sum(request.stop - request.start for request in of_index) < 1 << 20


def test_a_file_of_another_time_is_not_searched(server: ObjectServer, basic: Path, large: Path) -> None:
    entries = _entries()
    half = len(entries) // 2
    while entries[half].physical_offset == entries[half - 1].physical_offset:
        half += 1
    _write_large(large / "20261121065231934", entries[:half], older_ms=_DAY_MS)
    _write_large(large / "20261121065232934", entries[half:])
    every = _find(str(basic), use_index=False).offsets
    right = [offset for offset in every if offset >= entries[half].physical_offset]
    assert every != right
    since = min(entry.store_timestamp for entry in entries)
    assert _find(server.url_of(basic), since=since).offsets == right
    counts = Counter(request.key.rpartition("/")[2] for request in _of_index(server))
    assert counts["20261121065231934"] == 1


def test_many_files_are_searched_at_once(server: ObjectServer, basic: Path, large: Path) -> None:
    entries = _entries()
    for i in range(6):
        _write_large(large / f"{20261121065231934 + i}", entries)
    running, most, lock = 0, 0, threading.Lock()

    def fault(request: Request) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1

    server.fault = fault
    _find(server.url_of(basic))
    assert most >= 5


def test_the_view_reads_pieces_of_8_mib(server: ObjectServer, basic: Path, large: Path) -> None:
    _write_large(large / "20261121065231934", _entries())
    rows = view_batches(Store.open(server.url_of(basic)), "index")
    assert sum(batch.num_rows for batch in islice(rows, 8)) > 400_000
    of_index = _of_index(server)
    assert max(request.stop - request.start for request in of_index) <= blocks.RANGE_MAX
    assert len(of_index) < 14

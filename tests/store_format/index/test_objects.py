"""Index files on object storage: a search reads ranges of a file with a broker's default sizes, never all."""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from store_format import MessageStore
from store_format.files import blocks
from store_format.index.file import key_hash
from store_format.read.store import Store
from store_format.views.registry import view_batches
from tests.support.large_index import CHAIN, basic_entries, entries_in_one_slot, middle_key, write_large_index
from tests.support.object_server import ObjectServer, Request

_DAY_MS = 86_400_000


class _Found(NamedTuple):
    offsets: list[int]
    how: str


def _find(path: str, *, since: int | None = None, use_index: bool = True) -> _Found:
    found = MessageStore.open(path).find(key=middle_key(), topic="Orders", since=since, use_index=use_index)
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
    write_large_index(path, entries_in_one_slot(key_hash(f"Orders#{middle_key()}")))
    right = _find(str(basic), use_index=False).offsets
    assert right
    server.requests.clear()
    assert _find(server.url_of(basic)) == (right, "index")
    of_index = _of_index(server)
    assert len(server.requests) <= 22
    assert len(of_index) <= 6 + 2 * (CHAIN + 1)  # the proof, the slot, and each unit of the chain
    assert sum(request.stop - request.start for request in of_index) < 1 << 20


def test_a_file_of_another_time_is_not_searched(server: ObjectServer, basic: Path, large: Path) -> None:
    entries = basic_entries()
    half = len(entries) // 2
    while entries[half].physical_offset == entries[half - 1].physical_offset:
        half += 1
    write_large_index(large / "20261121065231934", entries[:half], older_ms=_DAY_MS)
    write_large_index(large / "20261121065232934", entries[half:])
    every = _find(str(basic), use_index=False).offsets
    right = [offset for offset in every if offset >= entries[half].physical_offset]
    assert every != right
    since = min(entry.store_timestamp for entry in entries)
    assert _find(server.url_of(basic), since=since).offsets == right
    counts = Counter(request.key.rpartition("/")[2] for request in _of_index(server))
    assert counts["20261121065231934"] == 1


def test_many_files_are_searched_at_once(server: ObjectServer, basic: Path, large: Path) -> None:
    entries = basic_entries()
    for i in range(6):
        write_large_index(large / f"{20261121065231934 + i}", entries)
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
    write_large_index(large / "20261121065231934", basic_entries())
    rows = view_batches(Store.open(server.url_of(basic)), "index")
    assert sum(batch.num_rows for batch in islice(rows, 8)) > 400_000
    of_index = _of_index(server)
    assert max(request.stop - request.start for request in of_index) <= blocks.RANGE_MAX
    assert len(of_index) < 14

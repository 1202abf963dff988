"""Entries of queues that are read together come in the order of the log; each queue keeps its own order."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.slices import QueueRange, QueueSlice
from store_format.consumequeue.units import FiledQueue
from store_format.files.read import FileCache
from store_format.read import queue_reader
from store_format.read.queue_reader import EntryReader
from store_format.read.tolerance import Tolerance
from tests.support import oracle
from tests.support.store_files import write_files

SIZE = 100


def write_queues(root: Path, places: dict[int, list[int]]) -> list[QueueSlice]:
    """Queues of the topic T whose messages lie at these physical offsets."""
    slices = []
    for queue_id, physical in places.items():
        units = b"".join(oracle.cq_unit(place, SIZE, queue_id) for place in physical)
        directory = write_files(root / "T" / str(queue_id), units, 20 * 128)
        bounds = FiledQueue("T", queue_id, str(directory), "simple").bounds(0)
        slices.append(QueueRange("T", queue_id, 0, len(physical), bounds).piece(0, len(physical)))
    return slices


def chunks_of(slices: list[QueueSlice], chunk: int) -> list[list[tuple[int, int, int]]]:
    """(queue id, queue offset, physical offset) of each entry, chunk by chunk."""
    reader = EntryReader(CommitLog.open((), FileCache()), Tolerance(), chunk_entries=chunk)
    found = []
    for pieces, entries in reader.chunks(slices):
        ids = [pieces[i].queue_id for i in entries.piece.tolist()]
        assert entries.tags_code is not None
        assert entries.tags_code.tolist() == ids
        assert set(entries.size.tolist()) <= {SIZE}
        found.append(
            list(zip(ids, entries.queue_offset.tolist(), entries.physical_offset.tolist(), strict=True))
        )
    return found


@given(
    queue_of=st.lists(st.integers(0, 4), min_size=1, max_size=80),
    chunk=st.integers(2, 40),
)
def test_queues_are_read_in_the_same_stretches(
    tmp_path_factory: pytest.TempPathFactory, queue_of: list[int], chunk: int
) -> None:
    places: dict[int, list[int]] = {}
    for i, queue_id in enumerate(queue_of):
        places.setdefault(queue_id, []).append(i * SIZE)
    slices = write_queues(tmp_path_factory.mktemp("queues"), places)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_reader, "_BLOCK_ENTRIES_MIN", 1)
        found = chunks_of(slices, chunk)
    assert [row for part in found for row in part] == [
        (queue_id, places[queue_id].index(i * SIZE), i * SIZE) for i, queue_id in enumerate(queue_of)
    ]
    # what is held: a chunk, and what the last block of each slice has beyond it
    assert all(len(part) <= chunk + max(chunk // 2, len(places)) for part in found)


@pytest.mark.timeout(20)
def test_slices_that_hold_a_chunk_do_not_stop_the_others(tmp_path: Path) -> None:
    """The first slice has nothing left to hold, and the last ones hold a whole chunk of later entries."""
    places = {0: [0, SIZE], **{i: [(10 * i + j) * SIZE for j in range(4)] for i in range(1, 9)}}
    found = chunks_of(write_queues(tmp_path, places), 8)
    assert [place for part in found for _, _, place in part] == sorted(
        place for each in places.values() for place in each
    )


def test_short_queues_one_behind_the_other_leave_in_whole_chunks(tmp_path: Path) -> None:
    """As topics that were written one after the other. A chunk for each queue would cost its decoding."""
    places = {i: [(4 * i + j) * SIZE for j in range(4)] for i in range(100)}
    sizes = list(map(len, chunks_of(write_queues(tmp_path, places), 64)))
    assert sum(sizes) == 400
    assert len(sizes) <= 2 * (400 // 64 + 1)


@given(physical=st.lists(st.lists(st.integers(-5, 2**62), max_size=20), min_size=1, max_size=4))
def test_entries_in_no_order_keep_that_of_their_queue(
    tmp_path_factory: pytest.TempPathFactory, physical: list[list[int]]
) -> None:
    """Damaged entries may point anywhere."""
    places = {i: [max(place, 0) for place in each] for i, each in enumerate(physical) if each}
    slices = write_queues(tmp_path_factory.mktemp("queues"), places)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queue_reader, "_BLOCK_ENTRIES_MIN", 1)
        rows = [row for part in chunks_of(slices, 6) for row in part]
    for queue_id, expected in places.items():
        assert [row[1:] for row in rows if row[0] == queue_id] == list(enumerate(expected))


def test_a_queue_that_begins_late_is_not_read_ahead(tmp_path: Path) -> None:
    """Its entries are held until the others have come as far."""
    early, late = list(range(0, 100 * SIZE, SIZE)), list(range(200 * SIZE, 300 * SIZE, SIZE))
    found = chunks_of(write_queues(tmp_path, {0: late, 1: early}), 512)
    assert [place for part in found for _, _, place in part] == early + late
    assert all(a[2] < b[2] for a, b in pairwise(row for part in found for row in part))

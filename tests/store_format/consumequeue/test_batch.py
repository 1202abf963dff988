"""The consume queue of BatchCQ topics against a naive reading of whole files, and against the broker's
vectors.
"""

from __future__ import annotations

import json
import pickle
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from store_format.consumequeue.dispatch import CLAIM, Claims, Filing, counted
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.offset_by_time import offset_at
from store_format.consumequeue.own_files import Boundary
from store_format.consumequeue.units import FiledQueue, read_batch_units
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError
from store_format.layouts import BATCH_CQ_UNIT, unpack
from store_format.names import QueueKey
from tests.support.store_files import write_files

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes()
)["batch_cq_entry"]

UNIT = struct.Struct(">qiqqqhii")
Fields = tuple[int, int, int, int, int, int, int, int]


@dataclass
class Queue:
    per_file: int
    first: int  # number of the first file
    units: list[Fields]
    files_ahead: int = 0

    def write(self, directory: Path) -> str:
        data, size = b"".join(UNIT.pack(*unit) for unit in self.units), self.per_file * UNIT.size
        data = data.ljust(max(1, -(-len(data) // size)) * size, b"\0") + bytes(self.files_ahead * size)
        return str(write_files(directory, data, size, self.first * size))


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    per_file = draw(st.sampled_from([1, 2, 3, 5, 89, 90, 300]))
    count = draw(st.integers(0, 4 * per_file + 2) if per_file < 89 else st.integers(0, 900))
    steps = draw(
        st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1), st.integers(0, 3)), min_size=1, max_size=12)
    )
    base, time, units = draw(st.integers(0, 50)), 1000, []
    for index in range(count):
        batch, gap, later = steps[index % len(steps)]
        base, time = base + gap, time + later
        units.append((100 * index, 90, index, time, base, batch, -1, 0))
        base += batch
    return Queue(per_file, draw(st.integers(0, 2)), units, draw(st.integers(0, 1)))


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _bounds(directory: str | Path, commit_log_min: int = 0, **more: Any) -> QueueBounds:
    bounds = FiledQueue("Inner", 1, str(directory), "batch").bounds(commit_log_min, **more)
    assert bounds is not None
    return bounds


def _end(unit: Fields) -> int:
    return unit[4] + unit[5]


@given(queue=queues(), commit_log_min=st.integers(0, 100_000), scan=st.booleans())
def test_bounds_are_those_of_a_naive_reading(queue: Queue, commit_log_min: int, scan: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        bounds = _bounds(queue.write(Path(name)), commit_log_min, scan=scan)
    expired = [unit for unit in queue.units if unit[0] < commit_log_min]
    alive = queue.units[len(expired) :]
    assert bounds.kind == "batch"
    assert bounds.min_offset == (_end(expired[-1]) if expired else queue.units[0][4] if queue.units else 0)
    assert bounds.max_offset == (_end(queue.units[-1]) if queue.units else 0)
    start = queue.first * queue.per_file
    assert (bounds.unit_start, bounds.unit_stop) == (start + len(expired), start + len(queue.units))
    physical_offsets = (alive[0][0], alive[-1][0], 90) if alive else (-1, -1, 0)
    assert (bounds.first_physical_offset, bounds.last_physical_offset, bounds.last_size) == physical_offsets


@given(queue=queues(), data=st.data())
def test_units_are_those_that_overlap_the_range(queue: Queue, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        bounds = _bounds(queue.write(Path(name)))
        start = data.draw(st.integers(bounds.min_offset, bounds.max_offset))
        stop = data.draw(st.integers(start, bounds.max_offset))
        units = read_batch_units(bounds, start, stop)
        assert units.tolist() == [
            unit for unit in queue.units if unit[4] < stop and _end(unit) > start and start < stop
        ]
        for outside in ((bounds.min_offset - 1, stop), (start, bounds.max_offset + 1)):
            with pytest.raises(OffsetOutOfRangeError) as raised:
                read_batch_units(bounds, *outside)
            assert str(raised.value).startswith(
                f"Inner-1: offsets {outside[0]} to {outside[1]} (exclusive) are not all in {name}"
            )


@given(queue=queues(), timestamp=st.integers(900, 3000))
def test_lower_is_the_first_unit_at_or_after_the_time_in_the_file_that_holds_it(
    queue: Queue, timestamp: int
) -> None:
    with tempfile.TemporaryDirectory() as name:
        bounds = _bounds(queue.write(Path(name)))
        found = offset_at(bounds, timestamp, "LOWER", lambda *_: -1)  # the units have the times
    files = [queue.units[i : i + queue.per_file] for i in range(0, len(queue.units), queue.per_file)]
    if not files:
        assert found == 0
        return
    begun = [file for file in files if file[0][3] <= timestamp] or files[:1]
    # Of files that begin at the same time the broker's cache keeps the newest, and begun[-1] is that one.
    later = [unit for unit in begun[-1] if unit[3] >= timestamp]
    assert found == (later[0] if later and timestamp < begun[-1][-1][3] else begun[-1][-1])[4]


@given(noise=st.lists(st.tuples(st.integers(0, 9999), st.integers(0, 255)), max_size=40), queue=queues())
def test_damaged_units_end_in_bounds(noise: list[tuple[int, int]], queue: Queue) -> None:
    with tempfile.TemporaryDirectory() as name:
        queue.write(Path(name))
        for path in Path(name).iterdir():
            content = bytearray(path.read_bytes())
            for position, value in noise:
                content[position % len(content)] = value
            path.write_bytes(content)
        for scan in (False, True):
            try:
                bounds = _bounds(name, 50, scan=scan)
            except CorruptStoreError:
                continue
            assert bounds.max_offset < 2**63
            for boundary in get_args(Boundary):
                found = offset_at(bounds, 1010, boundary, lambda *_: -1)
                assert found == bounds.max_offset or bounds.min_offset <= found <= bounds.max_offset
            if bounds.min_offset < bounds.max_offset:
                try:
                    units = read_batch_units(bounds, bounds.min_offset, bounds.max_offset)
                except CorruptStoreError:
                    continue
                assert len(units) <= bounds.unit_stop - bounds.unit_start
                assert (
                    units["base_offset"][1:] >= units["base_offset"][:-1] + units["batch_size"][:-1]
                ).all()


@pytest.mark.parametrize("count", [4, 8])
@pytest.mark.parametrize(("at", "base"), [(1, 2**60), (1, 0), (1, 1), (0, 4), (0, 2**60), (4, 2**60)])
def test_a_base_out_of_order_hides_nothing_in_silence(
    directory: Path, count: int, at: int, base: int
) -> None:
    """Bisecting would take a base that is too large for the end of the range, and the first one is the
    queue's minimum.
    """
    at = min(at, count - 2)
    Queue(5, 0, [(i * 100, 90, 0, 10, base if i == at else 2 * i, 2, -1, 0) for i in range(count)]).write(
        directory
    )
    with pytest.raises(CorruptStoreError) as caught:
        read_batch_units(_bounds(directory), 0, 2 * count)
    assert int(caught.value.file[-20:]) + caught.value.position == (at + 1 if base > 2 else at) * 46
    assert "where the one before it ends" in str(caught.value)


def test_upper_of_a_time_that_no_unit_has_may_be_the_minimum(directory: Path) -> None:
    """BatchConsumeQueue.binarySearchRight gives up on some times between two units, and answers with the
    later unit for others.
    """
    times = [10, 20, 30, 40, 50]
    Queue(5, 0, [(i * 100, 90, 0, time, i, 1, -1, 0) for i, time in enumerate(times)]).write(directory)
    bounds = _bounds(directory)
    probes = {5: 0, 10: 0, 20: 1, 30: 2, 35: 0, 40: 3, 45: 4, 50: 4, 60: 4}
    assert {time: offset_at(bounds, time, "UPPER", lambda *_: -1) for time in probes} == probes


def test_units_at_or_behind_the_end_of_the_commitlog_do_not_count(directory: Path) -> None:
    Queue(2, 0, [(i * 100, 90, 0, 5, i * 3, 3, -1, 0) for i in range(7)]).write(directory)
    assert [_bounds(directory, commit_log_stop=stop).max_offset for stop in (601, 600, 101, 100, 0)] == [
        21,
        18,
        6,
        3,
        0,
    ]


@pytest.mark.parametrize("field", [(0, -1), (1, 0), (4, -1), (4, 2**63 - 1), (5, 0), (5, -1)])
def test_a_unit_that_is_not_valid_ends_the_queue(directory: Path, field: tuple[int, int]) -> None:
    bad = [200, 90, 0, 5, 6, 3, -1, 0]
    bad[field[0]] = field[1]
    Queue(4, 0, [(0, 90, 0, 5, 0, 3, -1, 0), (100, 90, 0, 5, 3, 3, -1, 0), tuple(bad)]).write(directory)  # type: ignore[list-item]  # eight
    assert _bounds(directory).max_offset == 6


def test_a_length_that_is_no_multiple_of_the_unit_is_refused(directory: Path) -> None:
    (directory / f"{0:020d}").write_bytes(bytes(60))
    with pytest.raises(CorruptStoreError) as raised:
        FiledQueue("t", 0, str(directory), "batch").bounds(0)
    assert (raised.value.file, raised.value.position) == (f"{directory}/{0:020d}", 60)


def test_no_files_are_no_queue(directory: Path) -> None:
    assert FiledQueue("t", 0, str(directory), "batch").bounds(0) is None


def test_vectors(directory: Path) -> None:
    content = b"".join(bytes.fromhex(vector["hex"]) for vector in VECTORS)
    fields = "physical_offset size tags_code store_time msg_base_offset batch_size compacted_offset reserved"
    names = fields.split()
    expected = [tuple(vector[name] for name in names) for vector in VECTORS]
    assert unpack(content, BATCH_CQ_UNIT).tolist() == expected
    (directory / f"{0:020d}").write_bytes(content.ljust(460, b"\0"))
    bounds = _bounds(directory)
    places = bounds.first_physical_offset, bounds.last_physical_offset
    assert (bounds.min_offset, bounds.max_offset, *places) == (0, 4, 1831, 2160)
    assert read_batch_units(bounds, 2, 4).tolist() == expected
    assert read_batch_units(bounds, 3, 4).tolist() == expected[1:]


# ---- which of two messages with one queue offset counts ----------------------------------------------------


def rows(offsets: list[int], first: int = 0) -> NDArray[np.void]:
    """Messages with these queue offsets, one behind the other; the physical offset is their number."""
    made = np.ones(len(offsets), CLAIM)
    made["offset"], made["physical"] = offsets, np.arange(first, first + len(offsets))
    return made


def filed(offsets: list[int]) -> dict[int, int]:
    """Queue offset -> number of the message that a broker with an empty queue serves there.

    ConsumeQueue.putMessagePositionInfo: an offset before the end is left out, apart from 0; any other message
    gets the next entry, and only a message with the offset of its entry is served as what it is.
    """
    entries: list[int] = []
    for number, offset in enumerate(offsets):
        if offset == 0 or offset >= offsets[0] + len(entries):
            entries.append(number)
    at = [(offsets[0] + place, number) for place, number in enumerate(entries)]
    return {place: number for place, number in at if offsets[number] == place}


# messages A0 A1 B1 ... by their queue offsets, and the numbers of those that count
CASES = {
    "a second message": ([0, 1, 1, 2, 2, 3], [0, 1, 3, 5]),
    "at the end": ([0, 1, 2, 2], [0, 1, 2]),
    "both offset 0": ([0, 0, 1, 2], [0, 2, 3]),
    "a 0 that no 1 follows": ([0, 1, 2, 0, 3], [0, 1, 2, 4]),
    "a 0 at the end": ([0, 1, 2, 0], [0, 1, 2]),
    "the topic was created again": ([0, 1, 2, 0, 1], [3, 4]),
    "the same, and of its messages the log has only the last": ([12, 0, 1], [1, 2]),
    "41 became 40": ([39, 40, 40, 42], [0, 1, 3]),
    "39 became 40": ([38, 40, 40, 41], [0, 2, 3]),
    "38 became 42": ([37, 42, 39, 40, 41, 42, 43], [0, 2, 3, 4, 5, 6]),
    "a gap is filled late": ([5, 7, 6, 8], [0, 2, 1, 3]),
}


@pytest.mark.parametrize("ends", [{}, {("T", 0): (0, -1)}])
def test_no_file_shows_that_a_topic_was_created_again(ends: dict[QueueKey, tuple[int, int]]) -> None:
    """There is none, or it is blank."""
    claims = Filing(start=0, ends=ends).claims(("T", 0))
    assert [is_new for is_new, _ in claims.add(rows([0, 1, 2, 0, 1, 2, 3]))] == [False, False]
    assert claims.runs == [(0, 4)]


def test_an_end_of_all_queues_between_0_and_1_hides_no_beginning() -> None:
    claims = Filing(start=4, ends={("U", 0): (1, 3)}).claims(("T", 0))
    assert [is_new for is_new, _ in claims.add(rows([0, 1, 2, 0, 1, 2]))] == [False, True, False]


def test_claims_travel_without_what_looks_at_files() -> None:
    """A second message with offset 0 asks for the beginning of the queue once, and no other message does."""
    asked = list[QueueKey]()

    def first_of(queue: QueueKey) -> int:
        asked.append(queue)
        return 3

    claims = Filing(first_of=first_of).claims(("T", 0))
    assert [is_new for is_new, _ in claims.add(rows([0, 1, 2]))] == [False]
    assert not asked
    assert [is_new for is_new, _ in claims.copy().add(rows([0], first=3))] == [True]
    assert set(asked) == {("T", 0)}
    travelled = pickle.loads(pickle.dumps(claims))
    assert (travelled, travelled.first()) == (claims, -1)


@pytest.mark.parametrize("name", CASES)
def test_which_messages_count(name: str) -> None:
    offsets, count = CASES[name]
    assert counted(rows(offsets))["physical"].tolist() == count


def test_a_broker_that_starts_files_only_the_second() -> None:
    """CommitLog.recoverNormally leaves out the message that begins where the last one with an entry ends."""
    claims = Filing(start=5, ends={("T", 0): (4, 4)}).claims(("T", 0))
    assert counted(rows([0, 1, 2, 3, 4, 4, 5]), claims)["physical"].tolist() == [0, 1, 2, 3, 5, 6]
    claims = Filing(start=3, ends={("T", 0): (4, 4)}).claims(("U", 0))  # a queue without files
    assert counted(rows([6, 7, 7, 7, 8], first=1), claims)["physical"].tolist() == [1, 3, 5]
    claims = Filing(start=1, ends={("T", 0): (0, -1)}).claims(("T", 0))  # a queue with a blank file
    assert counted(rows([0, 1, 2, 3, 1, 2, 3]), claims)["physical"].tolist() == [0, 1, 2, 6]
    claims = Filing(start=4, ends={("T", 0): (0, -1)}).claims(("T", 0))
    assert counted(rows([0, 1, 2, 3, 0]), claims)["physical"].tolist() == [4, 1, 2, 3]


@given(
    st.lists(st.integers(0, 8), min_size=1, max_size=30)
    | st.lists(st.sampled_from([0, 0, 0, 0, 1, -1, 3]), min_size=1, max_size=30).map(
        lambda steps: [max(5 + number + step, 1) for number, step in enumerate(steps)]
    ),
    st.integers(1, 5),
)
def test_what_a_broker_serves_counts(offsets: list[int], step: int) -> None:
    claims, count = Claims(), dict[int, int]()
    for start in range(0, len(offsets), step):
        for begins, part in claims.add(rows(offsets[start : start + step], start)):
            count = {} if begins else count
            count |= zip(part["offset"].tolist(), part["physical"].tolist(), strict=True)
    whole = counted(rows(offsets))
    assert dict(sorted(count.items())) == dict(
        zip(*(whole[name].tolist() for name in ("offset", "physical")), strict=False)
    )
    assert [offset for run in claims.runs for offset in range(*run)] == sorted(count)
    assert all(one[1] < other[0] for one, other in pairwise(claims.runs))
    left = {
        number
        for number, offset in enumerate(offsets)
        for low, high, start, stop in claims.left
        if low <= number < high and start <= offset < stop
    }
    assert set(range(len(offsets))) - left == set(count.values())
    if claims.begin == 0:
        assert filed(offsets).items() <= count.items()
        assert (set(count), claims.repeated) == (set(offsets), len(offsets) - len(count))

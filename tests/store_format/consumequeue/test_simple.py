"""The standard consume queue against a naive reading of whole files, and against bytes of the broker's
vectors.

Queues are made of small files and of files of several blocks, with pre-blank units, expired heads and files
written ahead.
"""

from __future__ import annotations

import json
import os
import pickle
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.offset_by_time import offset_at
from store_format.consumequeue.own_files import Boundary
from store_format.consumequeue.slices import QueueRanges
from store_format.consumequeue.units import FiledQueue, message_mask, read_units, short_queues
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError, TruncatedRecordError
from store_format.layouts import CQ_UNIT, unpack
from tests.support.file_edits import overwrite
from tests.support.store_files import write_files

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())

PRE_BLANK = bytes.fromhex("00000000000000007fffffff0000000000000000")
UNIT = struct.Struct(">qiq")


@dataclass
class Queue:
    """What a queue is made of: units from the first file on, how many fit a file, and files behind that
    nobody wrote to.
    """

    per_file: int
    first: int  # number of the first file
    units: list[bytes]
    files_ahead: int = 0

    @property
    def start(self) -> int:
        return self.first * self.per_file

    def write(self, directory: Path) -> str:
        data, size = b"".join(self.units), self.per_file * UNIT.size
        data = data.ljust(max(1, -(-len(data) // size)) * size, b"\0") + bytes(self.files_ahead * size)
        return str(write_files(directory, data, size, self.first * size))


def _message(number: int, physical_offset: int) -> bytes:
    return UNIT.pack(physical_offset, 100 + number % 7, number)


def _physical_offsets(start: int, count: int) -> list[int]:
    return [start + 200 * index for index in range(count)]


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    per_file = draw(st.sampled_from([1, 2, 3, 5, 100, 204, 205, 700]))
    count = draw(st.integers(0, 4 * per_file + 2) if per_file < 100 else st.integers(0, 2100))
    pre_blanks = draw(st.one_of(st.just(0), st.integers(0, min(count, per_file - 1))))
    messages = [
        _message(i, o) for i, o in enumerate(_physical_offsets(draw(st.integers(0, 500)), count - pre_blanks))
    ]
    return Queue(
        per_file, draw(st.integers(0, 3)), [PRE_BLANK] * pre_blanks + messages, draw(st.integers(0, 1))
    )


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _bounds(directory: str | Path, commit_log_min: int = 0, **more: Any) -> QueueBounds:
    bounds = FiledQueue("TopicTest", 3, str(directory), "simple").bounds(commit_log_min, **more)
    assert bounds is not None
    return bounds


def _naive(queue: Queue, commit_log_min: int) -> tuple[int, int, int, int, int]:
    """min, max, first and last physical offset and last size by looking at every unit."""
    stop, fields = queue.start + len(queue.units), [UNIT.unpack(unit) for unit in queue.units]
    alive = [number for number, unit in enumerate(fields) if unit[0] >= commit_log_min]
    if not alive or fields[-1][0] < commit_log_min:
        return stop, stop, -1, -1, 0
    messages = [unit for unit in fields[alive[0] :] if unit[1] != 0x7FFFFFFF]
    if not messages:
        return queue.start + alive[0], stop, -1, -1, 0
    return queue.start + alive[0], stop, messages[0][0], messages[-1][0], messages[-1][1]


@given(queue=queues(), commit_log_min=st.one_of(st.just(0), st.integers(0, 420_000)), scan=st.booleans())
def test_bounds_are_those_of_a_naive_reading(queue: Queue, commit_log_min: int, scan: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        bounds = _bounds(queue.write(Path(name)), commit_log_min, scan=scan)
    found = (
        bounds.min_offset,
        bounds.max_offset,
        bounds.first_physical_offset,
        bounds.last_physical_offset,
        bounds.last_size,
    )
    assert found == _naive(queue, commit_log_min)
    assert (bounds.unit_start, bounds.unit_stop) == (bounds.min_offset, bounds.max_offset)

    assert (bounds.file_size, bounds.first_file) == (queue.per_file * 20, queue.start * 20)
    assert bounds.last_file in bounds.file_starts
    assert (
        bounds.last_file
        <= max(bounds.first_file, bounds.max_offset * 20 - 1)
        < bounds.last_file + bounds.file_size
    )


@given(
    made=st.lists(
        queues() | queues().map(lambda each: replace(each, units=each.units[:15])), min_size=1, max_size=3
    ),
    damage=st.lists(
        st.tuples(
            st.integers(0, 100) | st.integers(0, 15).map(lambda unit: unit * 20) | st.integers(0, 5000),
            st.sampled_from([b"\0" * 20, b"\0" * 100, b"\xff" * 9, b"\1"]),
        ),
        max_size=2,
    ),
    limits=st.tuples(st.sampled_from([0, 300, 9000]), st.sampled_from([None, 5000, 40_000])),
)  # fmt: skip
@example(
    made=[Queue(100, 0, [_message(i, 200 * i) for i in range(10)])],
    damage=[(100, b"\0" * 20)],
    limits=(0, None),
)
@example(
    made=[Queue(100, 0, [UNIT.pack(200 * i, 200, 0) for i in range(count)]) for count in (24, 25, 26, 99)],
    damage=[],
    limits=(0, None),
)
def test_short_queues_have_the_bounds_that_each_has_alone(
    made: list[Queue], damage: list[tuple[int, bytes]], limits: tuple[int, int | None]
) -> None:
    commit_log_min, stop = limits
    with tempfile.TemporaryDirectory() as name:
        found = []
        for number, queue in enumerate(made):
            (path := Path(name, str(number))).mkdir()
            queue.write(path)
            first = min(path.iterdir())
            for position, data in damage:
                if position + len(data) <= first.stat().st_size:
                    overwrite(first, position, data)
            found.append(FiledQueue("TopicTest", 3, str(path), "simple"))
        for clean in (False, stop is None):
            short = {}
            for place, *row in short_queues(
                found, commit_log_min, commit_log_stop=stop, clean=clean
            ).tolist():
                table = QueueRanges.of_look([found[place]], np.array([[0, *row]]), commit_log_min, {})
                short[found[place].directory] = table.queue(0).bounds
            how: dict[str, Any] = {"commit_log_stop": stop, "clean": clean}
            for directory, bounds in short.items():
                for scan in {True, stop is not None}:
                    assert bounds == _bounds(directory, commit_log_min, scan=scan, **how)
            for queue, (*_, directory, _) in zip(made, found, strict=True):
                if not damage and not commit_log_min and stop is None and queue.units[:1] != [PRE_BLANK]:
                    is_short = 0 < len(queue.units) < min(queue.per_file, 204) and not queue.files_ahead
                    assert (directory in short) >= (is_short and queue.per_file < 205)
                    assert (directory in short) <= is_short


@given(queue=queues(), data=st.data())
def test_units_are_those_of_a_naive_reading(queue: Queue, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        bounds = _bounds(queue.write(Path(name)))
        start = data.draw(st.integers(0, len(queue.units)))
        stop = data.draw(st.integers(start, len(queue.units)))
        units = read_units(bounds, queue.start + start, queue.start + stop)
        assert units.tobytes() == b"".join(queue.units[start:stop])
        assert units.dtype == CQ_UNIT
        assert not units.flags.writeable
        assert message_mask(units).tolist() == [unit != PRE_BLANK for unit in queue.units[start:stop]]
        for outside in ((queue.start - 1, queue.start), (queue.start, bounds.max_offset + 1)):
            with pytest.raises(OffsetOutOfRangeError) as raised:
                read_units(bounds, *outside)
            assert str(raised.value).startswith(
                f"TopicTest-3: offsets {outside[0]} to {outside[1]} (exclusive) are not all in {name}"
            )


@given(
    queue=queues(),
    gaps=st.lists(st.integers(0, 3), min_size=1, max_size=20),
    commit_log_min=st.integers(1, 200_000),
    timestamp=st.integers(0, 4000),
    boundary=st.sampled_from(["LOWER", "UPPER"]),
)
def test_offsets_by_time_are_the_definition_where_times_do_not_fall(
    queue: Queue, gaps: list[int], commit_log_min: int, timestamp: int, boundary: Boundary
) -> None:
    physical_offsets = [UNIT.unpack(unit)[0] for unit in queue.units if unit != PRE_BLANK]
    times = dict(
        zip(physical_offsets, (1 + np.cumsum(np.resize(gaps, len(physical_offsets)))).tolist(), strict=True)
    )
    with tempfile.TemporaryDirectory() as name:
        bounds = _bounds(queue.write(Path(name)), commit_log_min)
        found = offset_at(bounds, timestamp, boundary, lambda o, _: times[o] if o >= commit_log_min else -1)
    alive = [
        times[UNIT.unpack(queue.units[n - queue.start])[0]]
        for n in range(bounds.min_offset, bounds.max_offset)
    ]
    if boundary == "LOWER":
        assert found == bounds.min_offset + sum(time < timestamp for time in alive)
    else:
        assert found == bounds.min_offset + max(sum(time <= timestamp for time in alive) - 1, 0)


@given(
    noise=st.lists(st.tuples(st.integers(0, 2999), st.integers(0, 255)), max_size=40),
    queue=queues(),
    commit_log_min=st.integers(0, 9000),
)
def test_damaged_units_end_in_bounds_or_a_store_error(
    queue: Queue, noise: list[tuple[int, int]], commit_log_min: int
) -> None:
    data = bytearray(b"".join(queue.units))
    for position, value in noise:
        if data:
            data[position % len(data)] = value
    queue.units = [bytes(data[i : i + 20]) for i in range(0, len(data), 20)]
    with tempfile.TemporaryDirectory() as name:
        queue.write(Path(name))
        for scan in (False, True):
            bounds = _bounds(name, commit_log_min, scan=scan)
            assert (
                queue.start
                <= bounds.min_offset
                <= bounds.max_offset
                <= queue.start + len(queue.units) + 2 * queue.per_file
            )
            units = read_units(bounds, bounds.min_offset, bounds.max_offset)
            assert len(units) == len(message_mask(units)) == bounds.max_offset - bounds.min_offset
            for boundary in get_args(Boundary):
                assert (
                    bounds.min_offset
                    <= offset_at(bounds, 77, boundary, lambda o, _: o % 100)
                    <= bounds.max_offset
                )


def test_no_files_are_no_queue(directory: Path) -> None:
    assert FiledQueue("t", 0, str(directory / "missing"), "simple").bounds(0) is None
    assert FiledQueue("t", 0, str(directory), "simple").bounds(0) is None
    (directory / f"{0:020d}").touch()
    assert FiledQueue("t", 0, str(directory), "simple").bounds(0) is None


def test_an_empty_last_file_does_not_count(directory: Path) -> None:
    Queue(2, 0, [_message(i, o) for i, o in enumerate(_physical_offsets(0, 2))]).write(directory)
    (directory / f"{40:020d}").touch()
    bounds = _bounds(directory)
    assert (bounds.max_offset, bounds.last_file) == (2, 0)


def test_a_pre_blank_size_elsewhere_is_a_message_that_no_log_can_hold(directory: Path) -> None:
    hostile = UNIT.pack(400, 0x7FFFFFFF, 0)
    queue = Queue(4, 0, [_message(0, 0), _message(1, 200), hostile])
    bounds = _bounds(queue.write(directory))
    assert (bounds.max_offset, bounds.last_physical_offset, bounds.last_size) == (3, 400, 0x7FFFFFFF)
    assert message_mask(read_units(bounds, 0, 3)).tolist() == [True, True, True]
    assert offset_at(bounds, 5, "LOWER", lambda o, _: 1 + o) == 3  # its time is unknown, not asked for


def test_a_hole_that_a_crash_left(directory: Path) -> None:
    units = [_message(i, o) for i, o in enumerate(_physical_offsets(0, 650))]
    units[300] = bytes(20)
    Queue(650, 0, units).write(directory)
    # the broker has no such queue without a crash, and nobody else looks at every unit
    assert _bounds(directory).max_offset == 650
    assert _bounds(directory, scan=True).max_offset == 300


def test_units_at_or_behind_the_end_of_the_commitlog_do_not_count(directory: Path) -> None:
    Queue(2, 1, [_message(i, o) for i, o in enumerate(_physical_offsets(0, 11))]).write(directory)
    for stop, expected in (
        (10_000, 13),
        (2000, 12),
        (1800, 11),
        (1799, 11),
        (401, 5),
        (400, 4),
        (1, 3),
        (0, 2),
    ):
        for scan in (False, True):
            assert _bounds(directory, commit_log_stop=stop, scan=scan).max_offset == expected
    assert _bounds(directory, commit_log_stop=0).last_file == 40


# ---- files that do not fit together ------------------------------------------------------------------------


def _refused(directory: Path) -> CorruptStoreError:
    with pytest.raises(CorruptStoreError) as raised:
        FiledQueue("t", 0, str(directory), "simple").bounds(0)
    return raised.value


@pytest.mark.parametrize(
    ("sizes", "bad", "expected", "found"),
    [
        ({0: 30}, 0, "a length that is a multiple of 20 and at most 2147483647", "30 bytes"),
        ({0: 40, 40: 20}, 40, f"40 bytes as in %s/{0:020d}", "20 bytes"),
        ({0: 0, 40: 40}, 0, "", "0 bytes"),
        ({0: 40, 40: 40, 120: 40}, 120, f"a file that begins at 80, where %s/{40:020d} ends", ""),
        ({30: 40}, 30, "", ""),
        ({int("9" * 20): 40}, int("9" * 20), "", ""),
        ({2**63 - 8: 40}, 2**63 - 8, "", ""),
    ],
    ids=[
        "no multiple",
        "another length",
        "empty",
        "a gap",
        "no multiple as name",
        "no long",
        "ends too late",
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    directory: Path, sizes: dict[int, int], bad: int, expected: str, found: str
) -> None:
    for start, size in sizes.items():
        (directory / f"{start:020d}").write_bytes(bytes(size))
    error = _refused(directory)
    assert error.file == f"{directory}/{bad:020d}"
    assert expected.replace("%s", str(directory)) in error.expected
    assert found in error.found
    assert pickle.loads(pickle.dumps(error)).args == error.args


def test_a_link_is_refused(directory: Path) -> None:
    os.symlink("/etc/hostname", directory / f"{0:020d}")
    assert "symbolic link" in _refused(directory).found


def test_a_file_deleted_after_planning_is_named_with_the_queue(directory: Path) -> None:
    Queue(2, 0, [_message(i, o) for i, o in enumerate(_physical_offsets(0, 6))]).write(directory)
    bounds = _bounds(directory)
    (directory / f"{40:020d}").unlink()
    with pytest.raises(OffsetOutOfRangeError) as raised:
        read_units(bounds, 1, 5)
    assert str(raised.value).startswith(
        f"TopicTest-3: {directory}/{40:020d} with unit 2 and later ones no longer exists"
    )
    assert read_units(bounds, 4, 6)["tags_code"].tolist() == [4, 5]


def test_a_file_cut_after_planning_is_named_with_the_byte(directory: Path) -> None:
    Queue(3, 0, [_message(i, o) for i, o in enumerate(_physical_offsets(0, 3))]).write(directory)
    bounds = _bounds(directory)
    os.truncate(directory / f"{0:020d}", 45)
    with pytest.raises(TruncatedRecordError) as raised:
        read_units(bounds, 1, 3)
    assert (raised.value.file, raised.value.position) == (f"{directory}/{0:020d}", 45)


def test_any_truncation_ends_in_fewer_units_or_a_store_error(directory: Path) -> None:
    units = [_message(i, o) for i, o in enumerate(_physical_offsets(0, 6))]
    Queue(6, 0, units).write(directory)
    for length in range(119, 0, -1):
        os.truncate(directory / f"{0:020d}", length)
        if length % 20 == 0:  # to be told from a smaller configured file only by what the commitlog holds
            assert _bounds(directory).max_offset == length // 20
            continue
        assert _refused(directory).position == length


def test_a_large_range_over_many_files_is_read_in_order(directory: Path) -> None:
    numbers = np.arange(450_000)
    units = np.zeros(len(numbers), CQ_UNIT)
    units["physical_offset"], units["size"], units["tags_code"] = numbers * 300, 300, numbers
    for start in (0, 300_000):
        (directory / f"{start * 20:020d}").write_bytes(
            units[start : start + 300_000].tobytes().ljust(6_000_000, b"\0")
        )
    bounds = _bounds(directory, 300 * 123_456)
    assert (bounds.min_offset, bounds.max_offset) == (123_456, 450_000)
    assert np.array_equal(read_units(bounds, 17, 449_999), units[17:449_999])


# ---- the broker's vectors ----------------------------------------------------------------------------------


def test_vector_units(directory: Path) -> None:
    vectors = [*VECTORS["cq_entry"], VECTORS["cq_pre_blank_entry"]]
    units = unpack(b"".join(bytes.fromhex(vector["hex"]) for vector in vectors), CQ_UNIT)
    expected = [(vector["physical_offset"], vector["size"], vector["tags_code"]) for vector in vectors]
    assert units.tolist() == expected
    assert message_mask(units).tolist() == [True] * len(VECTORS["cq_entry"]) + [False]
    assert bytes.fromhex(VECTORS["cq_pre_blank_entry"]["hex"]) == PRE_BLANK


def test_vector_mini_store(directory: Path) -> None:
    store = VECTORS["mini_store"]
    for name, files in store["consumequeue"].items():
        topic, queue_id = name.split("/")
        path = directory / name
        path.mkdir(parents=True)
        for file, content in files.items():
            (path / file).write_bytes(bytes.fromhex(content))
        bounds = _bounds(path)
        assert bounds.file_size == store["config"]["mappedFileSizeConsumeQueue"]
        messages = [message for message in store["messages"] if message["queue_id"] == int(queue_id)]
        units = read_units(bounds, bounds.min_offset, bounds.max_offset)
        assert topic == "TopicTest"
        assert [message["queue_offset"] for message in messages] == list(
            range(bounds.min_offset, bounds.max_offset)
        )
        assert units[["physical_offset", "size"]].tolist() == [
            (message["physical_offset"], message["size"]) for message in messages
        ]

"""The commitlog as a sequence of files: gathered, checked, and addressed by physical offset."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.commit.staged_units import QueueCounter
from store_format.commit.staging import NO_QUEUE, NOT_DISPATCHED
from store_format.commitlog.log import STRAY_ADVICE, CommitLog
from store_format.commitlog.walk import Damage
from store_format.commitlog.write import Extent, LogLayout, blank_head
from store_format.errors import (
    CorruptStoreError,
    FileReplacedError,
    OffsetOutOfRangeError,
    TruncatedRecordError,
    UnsupportedFormatError,
)
from store_format.files.paths import StoreFile
from store_format.files.read import FileCache
from store_format.message.locate import locate
from tests.support import goldens, oracle
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.rows import placed

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]


def _write(directory: Path, *files: tuple[int, int]) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    for start, size in files:
        (directory / StoreFile.name_at(start)).write_bytes(bytes([start % 251 + 1]) * size)
    return str(directory)


def _open(*directories: str) -> CommitLog:
    return CommitLog.open(directories, FileCache())


# ---- gathering ---------------------------------------------------------------------------------------------


def test_files_of_all_directories_are_one_log(tmp_path: Path) -> None:
    left = _write(tmp_path / "a", (2000, 1000), (4000, 1000))
    right = _write(tmp_path / "b", (3000, 1000))
    (tmp_path / "b" / "README").write_text("no file of the log")
    log = _open(left, right, str(tmp_path / "missing"))
    assert [file.start for file in log.files] == [2000, 3000, 4000]
    assert [os.path.basename(os.path.dirname(file.path)) for file in log.files] == ["a", "b", "a"]
    assert (log.file_size, log.min_offset, log.findings) == (1000, 2000, ())
    assert log.read(2999, 1) + log.read(3000, 1) == bytes([2000 % 251 + 1, 3000 % 251 + 1])


def test_no_files_are_an_empty_log(tmp_path: Path) -> None:
    log = _open(str(tmp_path / "missing"))
    assert (log.files, log.file_size, log.min_offset) == ((), 0, 0)
    assert log.file_index(np.array([0, 5])).tolist() == [-1, -1]
    assert log.file_at(0) is None
    assert log.store_timestamp_at(0) == -1
    with pytest.raises(OffsetOutOfRangeError, match="it has no files"):
        log.read(0, 1)


def test_references_to_long_units_are_few_at_a_time(tmp_path: Path) -> None:
    """Their sizes are known only when their heads are read."""
    data, stored = placed([Message(b"T", bytes(1 << 20))] * 20, 0)
    directory = tmp_path / "log"
    directory.mkdir()
    (directory / oracle.file_name(0)).write_bytes(data)
    log, offsets = _open(str(directory)), np.array([message.physical_offset for message in stored])
    rows: list[int] = []
    sizes = []
    for part, refs in log.refs_at(log.files[0], offsets):
        units, bad = locate(refs, verify_crc=True)
        assert (len(units), bad) == (part.stop - part.start, [])
        rows += range(part.start, part.stop)
        sizes.append(len(refs.buffer))
    assert rows == list(range(20))
    assert max(sizes) <= 8 << 20


def test_an_empty_last_file_is_as_good_as_none(tmp_path: Path) -> None:
    assert [file.start for file in _open(_write(tmp_path / "a", (0, 100), (100, 0))).files] == [0]
    assert _open(_write(tmp_path / "b", (0, 0))).files == ()


@pytest.mark.parametrize(
    ("files", "where", "expected", "found"),
    [
        ([(0, 100), (100, 101), (200, 100)], 100, "a file of 100 bytes, like the others", "101 bytes"),
        ([(10**20 - 1, 100)], 10**20 - 1, "a name below 2^63 - 1, less the file's size", "9" * 20),
        ([(2**63 - 50, 100)], 2**63 - 50, "a name below 2^63 - 1, less the file's size", f"{2**63 - 50}"),
    ],
)
def test_files_that_do_not_fit_together_are_refused(
    tmp_path: Path, files: list[tuple[int, int]], where: int, expected: str, found: str
) -> None:
    directory = _write(tmp_path / "commitlog", *files)
    with pytest.raises(CorruptStoreError) as caught:
        _open(directory)
    position = 100 if found == "101 bytes" else 0
    found += "" if position else f". {STRAY_ADVICE}"
    assert caught.value.args == (f"{directory}/{StoreFile.name_at(where)}", position, expected, found)


@pytest.mark.parametrize("start", [1, 60, 2**63 - 1, 2**64 - 1, 10**20 - 1])
@pytest.mark.parametrize("size", [40, 100])
def test_a_file_of_a_name_that_no_file_of_the_log_has_is_left_out(
    tmp_path: Path, start: int, size: int
) -> None:
    log = _open(_write(tmp_path / "log", (300, 100), (400, 100), (start, size)))
    (error,) = log.unusable
    assert (error.file, error.position) == (f"{tmp_path}/log/{StoreFile.name_at(start)}", 0)
    assert error.found.endswith(STRAY_ADVICE)
    assert ([file.start for file in log.files], log.min_offset, log.stop) == ([300, 400], 300, 500)
    assert log.findings == log.unusable


def test_a_file_that_begins_with_its_own_message_is_of_the_log(tmp_path: Path) -> None:
    """All files were cut, to lengths of which their names are no multiples."""
    _write(tmp_path / "log", (0, 90))
    (tmp_path / "log" / StoreFile.name_at(128)).write_bytes(placed([Message(b"T", b"x")], 128)[0][:90])
    assert [file.start for file in _open(str(tmp_path / "log")).files] == [0, 128]


@pytest.mark.parametrize("blank", [0, 1])
@pytest.mark.parametrize("size", [0, 100])
def test_a_blank_file_beside_one_of_the_same_name_is_left_out(tmp_path: Path, blank: int, size: int) -> None:
    """storePathCommitLog names several directories. The order of the directories says nothing."""
    directories = [_write(tmp_path / name, (100, 100)) for name in "ab"]
    path = f"{directories[blank]}/{StoreFile.name_at(100)}"
    Path(path).write_bytes(bytes(size))
    log = _open(*directories)
    (error,) = log.unusable
    assert (error.file, error.expected) == (path, "one file that starts at 100")
    assert [file.path for file in log.files] == [f"{directories[1 - blank]}/{StoreFile.name_at(100)}"]
    assert [each.args for each in _open(*directories[::-1]).unusable] == [error.args]


@pytest.mark.parametrize(
    ("sizes", "short"), [((100, 1, 100), 1), ((100, 100, 99), 2), ((70, 100, 100), 0), ((100, 40), 1)]
)
def test_a_file_cut_short_is_a_finding_and_read_to_its_end(
    tmp_path: Path, sizes: tuple[int, ...], short: int
) -> None:
    log = _open(_write(tmp_path / "commitlog", *((100 * i, size) for i, size in enumerate(sizes))))
    (finding,) = log.findings
    start, size = 100 * short, sizes[short]
    path, expected = log.files[short].path, "a file of 100 bytes, like the others"
    assert finding.args == (path, size, expected, f"{size} bytes")
    assert [file.start for file in log.files] == [100 * i for i in range(len(sizes))]
    assert (log.file_size, log.size_bytes) == (100, sum(sizes))
    assert log.file_at(start + size) is None
    assert log.read(start, size) == bytes([start + 1]) * size


@pytest.mark.parametrize("kind", ["empty", "directory"])
@pytest.mark.parametrize("at", [0, 100])
def test_what_holds_no_byte_of_the_log_counts_as_missing(tmp_path: Path, at: int, kind: str) -> None:
    directory = _write(tmp_path / "log", *((start, 100) for start in (0, 100, 200) if start != at))
    path = tmp_path / "log" / StoreFile.name_at(at)
    path.touch() if kind == "empty" else path.mkdir()
    log = _open(directory)
    assert [error.file for error in log.unusable] == [str(path)]
    assert set(log.unusable) <= set(log.findings)
    assert (log.min_offset, log.stop, log.has_gaps, log.file_at(at)) == (0, 300, True, None)
    (gap, *_) = log.walk(0, resync=True) if not at else list(log.walk(0, resync=True))[1:]
    assert isinstance(gap, Damage)
    assert (gap.file.start, gap.file.stop) == (at, at + 100)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    one, two = _write(tmp_path / "a", (100, 100)), _write(tmp_path / "b", (100, 100))
    with pytest.raises(CorruptStoreError) as caught:
        _open(one, two)
    other = caught.value.found.removeprefix("another one, ").removesuffix(". Move one of the two away")
    assert {caught.value.file, other} == {f"{directory}/{StoreFile.name_at(100)}" for directory in (one, two)}
    assert caught.value.expected == "one file that starts at 100"


def test_a_gap_is_a_finding_and_the_rest_stays_readable(tmp_path: Path) -> None:
    log = _open(_write(tmp_path / "a", (0, 100), (300, 100)))
    (finding,) = log.findings
    assert finding.file == log.files[1].path
    assert (finding.expected, finding.found) == (
        "00000000000000000100 as the file after 00000000000000000000",
        "300",
    )
    assert log.read(300, 100) == bytes([300 % 251 + 1]) * 100
    assert log.file_at(200) is None


def test_a_link_in_the_directory_is_refused(tmp_path: Path) -> None:
    directory = _write(tmp_path / "a", (0, 100))
    (tmp_path / "a" / StoreFile.name_at(100)).symlink_to(tmp_path / "a" / StoreFile.name_at(0))
    with pytest.raises(CorruptStoreError, match="symbolic link"):
        _open(directory)


# ---- addressing --------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 6000), max_size=30))
def test_many_offsets_find_the_files_that_one_finds(
    tmp_path_factory: pytest.TempPathFactory, offsets: list[int]
) -> None:
    log = _open(
        _write(tmp_path_factory.getbasetemp() / "addressing", (1000, 1000), (2000, 1000), (4000, 1000))
    )
    found = log.file_index(np.array(offsets, np.int64)).tolist()
    starts = [1000, 2000, 4000]
    assert found == [
        next((i for i, start in enumerate(starts) if start <= offset < start + 1000), -1)
        for offset in offsets
    ]
    assert [log.file_at(offset) for offset in offsets] == [log.files[i] if i >= 0 else None for i in found]


@pytest.mark.parametrize(("offset", "length"), [(50, 51), (99, 2), (0, 1 << 62), (50, -1)])
def test_a_read_stays_in_its_file(tmp_path: Path, offset: int, length: int) -> None:
    log = _open(_write(tmp_path / "a", (0, 100), (100, 100)))
    with pytest.raises(TruncatedRecordError) as caught:
        log.read(offset, length)
    assert caught.value.args[1:] == (offset, f"{length} bytes", f"{100 - offset} bytes up to the file's end")


def test_a_read_outside_says_what_there_is(tmp_path: Path) -> None:
    log = _open(_write(tmp_path / "a", (100, 100)))
    for offset in (-1, 99, 200, 2**70):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(offset, 1)
        assert (
            str(caught.value)
            == f"physical offset {offset} is in no commitlog file; its files hold 100 to 200"
        )


def test_a_file_that_became_shorter_or_went_away(tmp_path: Path) -> None:
    log = _open(_write(tmp_path / "a", (0, 100), (100, 100)))
    os.truncate(log.files[0].path, 40)
    with pytest.raises(FileReplacedError, match="the file became shorter"):
        log.read(30, 20)
    assert log.store_timestamp_at(0) == -1
    os.remove(log.files[1].path)
    with pytest.raises(LookupError, match="the file is gone"):
        log.read(150, 1)
    assert log.store_timestamp_at(150) == -1


# ---- store times -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_store_timestamps_are_those_of_the_messages(golden: Golden, name: str, broker: str) -> None:
    root, _ = goldens.brokers(name, golden(name))[broker]
    log = _open(*map(str, goldens.log_directories(root)))
    rows = [row for row in goldens.expected_rows(name) if not broker or row["brokerName"] == broker]
    assert [log.store_timestamp_at(row["physicalOffset"]) for row in rows] == [
        row["storeTimestamp"] for row in rows
    ]
    assert log.store_timestamp_at(rows[0]["physicalOffset"] + 1) == -1  # no unit begins there


def test_a_unit_of_another_place_has_no_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    message = oracle.Message(b"T", store_timestamp=1700000000456, physical_offset=1000)
    (path / StoreFile.name_at(1000)).write_bytes(oracle.encode_message(message) * 2)
    log = _open(str(path))
    assert log.store_timestamp_at(1000) == 1700000000456
    assert log.store_timestamp_at(1000 + message.total_size) == -1


# ---- places of units and BLANKs, against CommitLog.doAppend in a loop --------------------------------------


def _one_by_one(position: int, file_size: int, sizes: list[int]) -> tuple[list[int], list[int]]:
    offsets, blanks = [], []
    for size in sizes:
        if size + 8 > file_size - position % file_size:
            blanks.append(position)
            position += file_size - position % file_size
        offsets.append(position)
        position += size
    return offsets, blanks


@given(st.integers(0, 3), st.integers(0, 900), st.lists(st.integers(91, 900), max_size=40), st.integers(1, 7))
def test_units_stand_where_a_broker_puts_them(file: int, within: int, sizes: list[int], chunk: int) -> None:
    start = 1000 * file + within
    layout = LogLayout(start, 1000)
    offsets: list[int] = []
    extents: list[Extent] = []
    for first in range(0, len(sizes), chunk):  # the same, however it is cut
        placed, stretches = layout.place(np.array(sizes[first : first + chunk]))
        offsets += placed.tolist()
        extents += stretches
    expected, blanks = _one_by_one(start, 1000, sizes)
    assert offsets == expected
    assert [extent.offset for extent in extents if extent.first == extent.stop] == blanks
    assert layout.position == (offsets[-1] + sizes[-1] if sizes else start)
    for extent in extents:
        assert extent.offset // 1000 == (extent.offset + max(extent.stop - extent.first, 1) - 1) // 1000


@pytest.mark.parametrize(("size", "fits"), [(992, True), (993, False)])
def test_the_largest_unit_of_a_file(size: int, fits: bool) -> None:
    layout = LogLayout(10, 1000)
    if fits:
        assert layout.place(np.array([size]))[0].tolist() == [1000]
    else:
        with pytest.raises(UnsupportedFormatError) as caught:
            layout.place(np.array([size]))
        assert "expected at most 992 bytes" in str(caught.value)


def test_a_log_that_leaves_no_room_for_a_blank_is_damaged() -> None:
    with pytest.raises(CorruptStoreError) as caught:
        LogLayout(1995, 1000).place(np.array([100]))
    assert caught.value.position == 995
    assert "00000000000000001000" in caught.value.file


def test_a_blank_by_its_bytes() -> None:
    assert blank_head(1800, 1000).hex() == "000000c8" + "cbd43194"


@given(
    st.lists(st.integers(-2, 299), max_size=200),
    st.integers(1, 50),
    st.sampled_from([3, 300, 70_000]),
    st.booleans(),
)
def test_queue_offsets_count_on(queues: list[int], chunk: int, count: int, kernel: bool) -> None:
    queues = [min(queue, count - 1) for queue in queues]
    counter = QueueCounter(tuple(range(count)))
    found: list[int] = []
    with patch.object(kernels, "ready", lambda rows=0: kernel):
        for first in range(0, len(queues), chunk):
            found += counter.take(np.array(queues[first : first + chunk], np.int32)).tolist()
    following = dict(enumerate(range(count)))
    expected = []
    for queue in queues:
        if queue in (NO_QUEUE, NOT_DISPATCHED):
            expected.append(0)
        else:
            expected.append(following[queue])
            following[queue] += 1
    assert found == expected
    assert counter.next.tolist() == [following[queue] for queue in range(count)]

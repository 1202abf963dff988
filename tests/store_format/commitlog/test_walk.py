"""Walks over whole and damaged logs: the right units, the right end, and every byte accounted for."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage, EndKind, UnitRun, Walk
from store_format.errors import StoreError
from store_format.files.read import FileCache
from store_format.files.view import FileView
from tests.support import goldens, oracle, strategies
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.strategies import StoredLog

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]


def _log(directory: Path, files: dict[int, bytes]) -> CommitLog:
    directory.mkdir(exist_ok=True)
    for old in directory.iterdir():
        old.unlink()
    for start, data in files.items():
        (directory / oracle.file_name(start)).write_bytes(data)
    return CommitLog.open([str(directory)], FileCache())


def _units(found: Iterable[UnitRun | Damage]) -> list[tuple[int, int]]:
    """(physical offset, size) of every unit."""
    runs = [run for run in found if isinstance(run, UnitRun)]
    return [
        pair for run in runs for pair in zip(run.physical_offsets.tolist(), run.sizes.tolist(), strict=True)
    ]


def _damage(found: Iterable[UnitRun | Damage]) -> list[tuple[int, int]]:
    return [
        (damage.file.start + damage.start, damage.file.start + damage.stop)
        for damage in found
        if isinstance(damage, Damage)
    ]


def _end(walk: Walk) -> tuple[EndKind, int]:
    assert walk.end is not None
    assert walk.end.kind is EndKind.MISSING or walk.end.path.endswith(
        oracle.file_name(walk.end.offset - walk.end.position)
    )
    return walk.end.kind, walk.end.offset


def _unit(position: int, body: bytes = b"hello", body_crc: int = -1) -> bytes:
    return oracle.encode_message(
        Message(b"TopicTest", body, b"TAGS\x01TagA\x02", physical_offset=position, body_crc=body_crc)
    )


def _file(
    start: int, bodies: Iterable[bytes], size: int, *, blank: bool = False
) -> tuple[bytes, list[tuple[int, int]]]:
    """A file of these bodies, zeros or a BLANK behind them; and its units."""
    data, units = b"", []
    for body in bodies:
        unit = _unit(start + len(data), body)
        units.append((start + len(data), len(unit)))
        data += unit
    if blank:
        data += oracle.blank(size - len(data))
    return data.ljust(size, b"\0"), units


# ---- what brokers wrote ------------------------------------------------------------------------------------


@pytest.mark.parametrize("resync", [False, True])
@pytest.mark.parametrize(("name", "broker"), STORES)
def test_a_walk_finds_what_the_broker_finds(golden: Golden, name: str, broker: str, resync: bool) -> None:
    root, expected = goldens.brokers(name, golden(name))[broker]
    log = CommitLog.open(list(map(str, goldens.log_directories(root))), FileCache())
    walk = log.walk(log.min_offset, verify_crc=True, resync=resync)
    found = list(walk)
    units = _units(found)
    assert len(units) == walk.sums.units == expected["allCommitLogMessages"]
    kind, offset = _end(walk)
    is_dledger = name.startswith("dledger")  # there RocketMQ's walk counts no heads
    assert offset == (expected["commitLog"]["maxOffset"] if is_dledger else expected["commitLogWalkEnd"])
    assert kind is (EndKind.TORN if name == "crash-torn-5.5.0" else EndKind.UNWRITTEN)
    rows = [row for row in goldens.expected_rows(name) if not broker or row["brokerName"] == broker]
    assert {(row["physicalOffset"], row["storeSize"]) for row in rows} <= set(units)
    assert walk.sums.total_bytes == (offset // log.file_size + 1) * log.file_size - log.min_offset
    heads = {file.start: file.head_size for file in log.files}
    assert walk.sums.unit_bytes == sum(
        size + heads[physical // log.file_size * log.file_size] for physical, size in units
    )
    assert walk.sums.damage_bytes == sum(stop - start for start, stop in _damage(found))
    assert bool(walk.sums.damage_bytes) == (resync and name == "crash-torn-5.5.0")


def test_the_torn_golden_says_what_is_wrong(golden: Golden) -> None:
    log = CommitLog.open([str(golden("crash-torn-5.5.0") / "commitlog")], FileCache())
    (damage,) = [found for found in log.walk(0, resync=True) if isinstance(found, Damage)]
    assert (damage.start, damage.stop, damage.at_tail) == (120777, 120936, True)
    assert (damage.expected, damage.found) == ("properties of 152 bytes", "properties length 0")


def test_stopping_at_any_unit_cuts_a_walk_in_two(golden: Golden) -> None:
    log = CommitLog.open([str(golden("basic-5.5.0") / "commitlog")], FileCache())
    units = _units(log.walk(0))
    for cut, _ in units[:: len(units) // 40]:
        first, second = log.walk(0, cut), log.walk(cut)
        assert _units(first) + _units(second) == units
        assert first.sums.total_bytes == cut if cut else first.sums.units == 0
        kind, offset = _end(first)
        assert kind is EndKind.STOP
        assert offset <= cut  # a BLANK may lie between, which the second part does not see
    inside = log.walk(0, units[5][0] + 1)  # begins before: belongs to the walk
    assert _units(inside) == units[:6]
    assert _end(inside) == (EndKind.STOP, sum(units[5]))


# ---- ends --------------------------------------------------------------------------------------------------


def test_a_full_last_file_ends_at_its_blank(tmp_path: Path) -> None:
    data, units = _file(4096, [b"a", b"b"], 1024, blank=True)
    walk = _log(tmp_path, {4096: data}).walk(4096)
    assert _units(walk) == units
    assert _end(walk) == (EndKind.BLANK, sum(units[-1]))
    assert walk.sums.blank_bytes == 4096 + 1024 - sum(units[-1])
    assert walk.sums.total_bytes == 1024


def test_an_empty_next_file_is_where_a_full_one_goes_on(tmp_path: Path) -> None:
    data, units = _file(0, [b"a"], 1024, blank=True)
    walk = _log(tmp_path, {0: data, 1024: bytes(1024), 2048: bytes(1024)}).walk(0, resync=True)
    assert _units(walk) == units
    assert _end(walk) == (EndKind.UNWRITTEN, 1024)
    assert walk.sums.unwritten_bytes == 1024


def test_a_file_made_in_advance_leaves_zeros_unwritten(tmp_path: Path) -> None:
    data, units = _file(0, [b"a"], 1024)
    walk = _log(tmp_path, {0: data, 1024: bytes(1024)}).walk(0, resync=True)
    assert list(map(type, walk)) == [UnitRun]
    assert _end(walk) == (EndKind.UNWRITTEN, units[0][1])


def test_a_missing_file_ends_a_walk_and_is_damage_to_one_that_goes_on(tmp_path: Path) -> None:
    first, one = _file(0, [b"a"], 1024, blank=True)
    third, three = _file(2048, [b"c"], 1024)
    log = _log(tmp_path, {0: first, 2048: third})
    walk = log.walk(0)
    assert _units(walk) == one
    assert _end(walk) == (EndKind.MISSING, 1024)
    going_on = log.walk(0, resync=True)
    found = list(going_on)
    assert _units(found) == one + three
    assert _damage(found) == [(1024, 2048)]
    assert _end(going_on)[0] is EndKind.UNWRITTEN
    assert (going_on.sums.missing_bytes, going_on.sums.total_bytes) == (1024, 2048)


def test_a_file_filled_to_its_last_byte_ends_the_log_as_in_the_broker(tmp_path: Path) -> None:
    data, one = _file(0, [b"a"], 111)
    assert len(data) == 111 == one[0][1]
    following, two = _file(111, [b"b"], 111)
    log = _log(tmp_path, {0: data, 111: following})
    walk = log.walk(0)
    assert _units(walk) == one
    assert _end(walk) == (EndKind.TORN, 111)
    assert _units(log.walk(0, resync=True)) == one + two
    exact = log.walk(0, 111)
    assert _units(exact) == one
    assert _end(exact) == (EndKind.STOP, 111)


def test_no_files_and_starts_outside(tmp_path: Path) -> None:
    walk = _log(tmp_path / "none", {}).walk(0)
    assert list(walk) == []
    assert _end(walk) == (EndKind.MISSING, 0)
    assert walk.end is not None
    assert walk.end.path == oracle.file_name(0)
    data, _ = _file(4096, [b"a"], 1024, blank=True)
    log = _log(tmp_path / "one", {4096: data})
    behind = log.walk(5120)
    assert list(behind) == []
    assert _end(behind) == (EndKind.MISSING, 5120)
    with pytest.raises(LookupError) as caught:
        log.walk(0)
    assert str(caught.value) == "physical offset 0 is no longer in the commitlog; its files hold 4096 to 5120"


# ---- damage ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verify_crc", [False, True])
def test_a_walk_goes_on_behind_a_zeroed_page(tmp_path: Path, verify_crc: bool) -> None:
    data, units = _file(0, [b"body %d" % i * 9 for i in range(300)], 1 << 16)
    holed = data[:8192] + bytes(4096) + data[12288:]
    walk = _log(tmp_path, {0: holed}).walk(0, verify_crc=verify_crc, resync=True)
    found = list(walk)
    whole = [unit for unit in units if sum(unit) <= 8192 or unit[0] >= 12288]
    (span,) = _damage(found)
    assert set(whole) <= set(_units(found)) < set(units)
    assert _end(walk) == (EndKind.UNWRITTEN, sum(units[-1]))
    assert walk.sums.total_bytes == 1 << 16
    if verify_crc:
        assert span == (
            sum(whole[whole.index(max(u for u in whole if u[0] < 8192))]),
            min(u[0] for u in whole if u[0] >= 12288),
        )


def test_zeros_before_a_later_file_are_damage(tmp_path: Path) -> None:
    first, one = _file(0, [b"a"], 1024)
    second, two = _file(1024, [b"b"], 1024)
    log = _log(tmp_path, {0: first, 1024: second})
    walk = log.walk(0, resync=True)
    found = list(walk)
    assert _units(found) == one + two
    assert _damage(found) == [(sum(one[0]), 1024)]
    stopped = log.walk(0)
    assert _units(stopped) == one
    assert _end(stopped) == (EndKind.UNWRITTEN, sum(one[0]))


@pytest.mark.parametrize("verify_crc", [False, True])
def test_zeros_across_the_boundary_of_two_files_are_damage(tmp_path: Path, verify_crc: bool) -> None:
    """Pages that a power loss kept from the disk: the second file begins with zeros, but it was not only made
    in advance.
    """
    first, one = _file(0, [b"a", b"b"], 1024, blank=True)
    second, two = _file(1024, [b"%d" % i for i in range(5)], 1024)
    files = {
        0: first[: one[1][0]] + bytes(1024 - one[1][0]),
        1024: bytes(300) + second[300:],
        2048: bytes(1024),
    }
    walk = _log(tmp_path, files).walk(0, verify_crc=verify_crc, resync=True)
    found = list(walk)
    assert _units(found) == one[:1] + two[3:]
    assert _damage(found) == [(one[1][0], 1024), (1024, two[3][0])]
    assert _end(walk) == (EndKind.UNWRITTEN, sum(two[-1]))
    assert walk.sums.damage_bytes == two[3][0] - one[1][0]


def test_a_file_made_in_advance_is_not_read_where_it_has_no_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, units = _file(0, [b"a"], 1 << 16)
    for start, head in {0: data, 1 << 30: b""}.items():
        with (tmp_path / oracle.file_name(start)).open("wb") as file:
            file.write(head)
            file.truncate(1 << 30)
    read, size = FileView.read, 0

    def counted(view: FileView, position: int, length: int) -> bytes:
        nonlocal size
        found = read(view, position, length)
        size += len(found)
        return found

    monkeypatch.setattr(FileView, "read", counted)
    walk = CommitLog.open([str(tmp_path)], FileCache()).walk(0, resync=True)
    assert _units(walk) == units
    assert size < 8 << 20


def test_a_unit_in_a_body_is_no_unit(tmp_path: Path) -> None:
    """Someone's message may contain commitlog bytes, damaged or not; they say another position."""
    inner = _unit(5) * 3
    data, units = _file(0, [b"x" * 200, inner + b"y" * 50, b"z"], 2048)
    broken = bytearray(data)
    broken[units[1][0] + 4] ^= 1  # the outer unit's magic
    found = list(_log(tmp_path, {0: bytes(broken)}).walk(0, resync=True))
    assert _units(found) == [units[0], units[2]]
    assert _damage(found) == [(units[1][0], units[2][0])]


def test_units_longer_than_a_window_are_found_whole(tmp_path: Path) -> None:
    bodies = [b"a", b"B" * (1 << 20), b"c" * 5, b"D" * (3 << 20), b"e"]
    data, units = _file(0, bodies, 5 << 20)
    log = _log(tmp_path, {0: data})
    for resync in (False, True):
        walk = log.walk(0, verify_crc=True, resync=resync)
        found = list(walk)
        assert _units(found) == units
        assert [run.buffer is None for run in found if isinstance(run, UnitRun)].count(True) == 2
        assert walk.sums.total_bytes == 5 << 20
    flipped = bytearray(data)
    flipped[units[3][0] + 2_000_000] ^= 1
    found = list(_log(tmp_path, {0: bytes(flipped)}).walk(0, verify_crc=True, resync=True))
    assert _units(found) == units[:3] + units[4:]
    assert _damage(found) == [(units[3][0], units[4][0])]


def test_the_buffer_of_a_run_holds_its_units(tmp_path: Path) -> None:
    data, _ = _file(4096, [b"b" * n for n in range(3000)], 6 << 20)
    runs = [run for run in _log(tmp_path, {4096: data}).walk(4096) if isinstance(run, UnitRun)]
    assert len(runs) > 3
    assert all(before.stop == run.positions[0] for before, run in pairwise(runs))
    for run in runs:
        assert run.buffer is not None
        start, stop = int(run.positions[0]), run.stop
        assert run.buffer[start - run.buffer_start : stop - run.buffer_start].tobytes() == data[start:stop]


# ---- hostile bytes -----------------------------------------------------------------------------------------


def _seconds(log: CommitLog) -> float:
    started = time.process_time()
    walk = log.walk(0, verify_crc=True, resync=True)
    for _ in walk:
        pass
    assert walk.sums.total_bytes == log.file_size
    return time.process_time() - started


def test_many_magic_codes_cost_linear_time(tmp_path: Path) -> None:
    data = struct.pack(">iI", 91, 0xDAA320A7) * (1 << 18)
    assert _seconds(_log(tmp_path, {0: data})) < 5


@pytest.mark.process
def test_nested_units_with_wrong_sums_cost_linear_time(tmp_path: Path) -> None:
    """Each claims nearly the whole file as its body, and all that precedes the sum is right: 20,000 sums over
    4 MB if all were made.
    """
    size = 4 << 20
    data = bytearray(size)
    for at in range(0, 1 << 21, 104):
        total = size - 8 - at
        unit = _unit(at, b"", body_crc=1)
        data[at : at + 88] = struct.pack(">i", total) + unit[4:84] + struct.pack(">i", total - 91)
    assert _seconds(_log(tmp_path, {0: bytes(data)})) < 10


@pytest.mark.process
def test_a_good_unit_before_each_bad_one_costs_linear_time(tmp_path: Path) -> None:
    size = 1 << 20
    data = bytearray(b"\xff" * size)
    good = list(range(0, size - 400, 250))
    for at in good:
        data[at : at + 111] = _unit(at, b"a")
        data[at + 111 : at + 115] = struct.pack(">i", 250)  # leads on to a place where no unit is
    log = _log(tmp_path, {0: bytes(data)})
    assert [start for start, _ in _units(log.walk(0, resync=True))] == good
    assert _seconds(log) < 10


# ---- anything at all ---------------------------------------------------------------------------------------


def _accounted(walk: Walk, found: list[UnitRun | Damage], log: CommitLog, start: int) -> None:
    sums = walk.sums
    pieces = sorted([(at, at + size) for at, size in _units(found)] + _damage(found))
    assert all(before[1] <= after[0] for before, after in pairwise(pieces))
    assert sums.unit_bytes + sums.damage_bytes + sums.missing_bytes == sum(stop - at for at, stop in pieces)
    assert walk.end is not None
    last = max([walk.end.offset, *(stop - 1 for _, stop in pieces)])
    files = [file for file in log.files if file.start <= last and file.stop > start]
    # the first file of a log may be empty: then the walk begins before the files
    before = max(start - files[0].start, 0) if files else 0
    assert sums.total_bytes == sum(file.size for file in files) - before


@pytest.mark.process
@settings(max_examples=150)
@given(strategies.commit_logs(messages_max=8), st.data())
def test_any_damage_ends_in_right_units_and_exact_sums(
    tmp_path_factory: pytest.TempPathFactory, stored: StoredLog, draws: st.DataObject
) -> None:
    directory = tmp_path_factory.getbasetemp() / "damaged"
    files = dict(stored.files)
    index = draws.draw(st.sampled_from(sorted(files)))
    torn = draws.draw(strategies.torn(files[index]))
    files[index] = torn.data
    try:
        log = _log(directory, files)
    except StoreError:
        assert len(torn.data) != stored.file_size
        return
    if not log.files:
        assert not torn.data
        return
    real = {message.physical_offset: message for message in stored.messages}
    oracle_walk = oracle.walk_files(files, stored.file_size) if len(torn.data) == stored.file_size else None
    for resync in (False, True):
        walk = log.walk(log.min_offset, verify_crc=True, resync=resync)
        found = list(walk)
        _accounted(walk, found, log, log.min_offset)
        for at, size in _units(found):
            # A flip in a field that nothing protects leaves the unit where it was and as long as it was.
            assert real[at].total_size == size
        if resync:
            assert {at for at in real if not _touched(real[at], index + torn.at, torn.kind)} <= {
                at for at, _ in _units(found)
            } | _cut(real, index, torn, stored.file_size)
        elif oracle_walk is not None and not _negative_body(oracle_walk, files, stored.file_size):
            assert [at for at, _ in _units(found)] == [
                message.physical_offset for message in oracle_walk.messages
            ]
            assert walk.end is not None
            assert walk.end.offset == oracle_walk.stop


def _touched(message: Message, at: int, kind: str) -> bool:
    width = {"flipped": 1, "replaced": 4}.get(kind, 1)
    return message.physical_offset < at + width and at < message.physical_offset + message.total_size


def _cut(real: dict[int, Message], index: int, torn: strategies.Torn, file_size: int) -> set[int]:
    """Units behind a cut or a zeroing are gone, and so are those in a file whose first length now makes a
    BLANK of it.
    """
    if torn.kind in ("cut", "zeroed"):
        return {
            at
            for at in real
            if index <= at < index + file_size and at + real[at].total_size > index + torn.at
        }
    return set()


def _negative_body(walk: oracle.Walk, files: dict[int, bytes], file_size: int) -> bool:
    """Whether the oracle ended at a unit with a negative body length: it refuses these, the broker takes them
    for no body.
    """
    start = walk.stop // file_size * file_size
    position = walk.stop - start
    head = files.get(start, b"")[position : position + 112]
    if len(head) < 112:
        return False
    born_v6, store_v6 = head[39] >> 4 & 1, head[39] >> 5 & 1
    at = 84 + 12 * born_v6 + 12 * store_v6
    return int.from_bytes(head[at : at + 4], "big", signed=True) < 0


@pytest.mark.process
def test_truncation_at_every_byte(tmp_path: Path) -> None:
    data, units = _file(0, [b"a", b"bb" * 20, b"", b"d"], 600)
    for length in range(1, 601):
        log = _log(tmp_path, {0: data[:length]})
        for resync in (False, True):
            walk = log.walk(0, verify_crc=True, resync=resync)
            found = list(walk)
            assert _units(found) == [unit for unit in units if sum(unit) <= length]
            assert walk.sums.total_bytes == length


@pytest.mark.process
def test_every_bit_of_a_small_log(tmp_path: Path) -> None:
    data, units = _file(0, [b"a", b"bb" * 20, b"d"], 400)
    stop = sum(units[-1])
    for bit in range(8 * stop):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        hit = next(unit for unit in units if sum(unit) > bit // 8)
        walk = _log(tmp_path, {0: bytes(flipped)}).walk(0, verify_crc=True, resync=True)
        found = _units(walk)
        assert set(found) <= set(units)
        assert {unit for unit in units if unit != hit} <= set(found)
        assert walk.sums.total_bytes == 400


# ---- a log that grows --------------------------------------------------------------------------------------

_WRITER = """
import mmap, sys
paths, units = sys.argv[1].split(","), sys.argv[2]
maps = []
for path in paths:
    with open(path, "r+b") as file:
        maps.append(mmap.mmap(file.fileno(), 0))
print("ready", flush=True)
count = 0
with open(units, "rb") as log:
    for which, target in enumerate(maps):
        at = 0
        while at < len(target):
            head = log.read(4)
            size = int.from_bytes(head, "big")
            unit = head + log.read(size - 4)
            half = size // 2
            target[at : at + half] = unit[:half]
            if count % 100 == 0:
                sys.stdin.readline()  # half a unit is seen, until the reader lets the writer run again
            count += 1
            target[at + half : at + size] = unit[half:]
            at += size
"""


@pytest.mark.process
def test_a_log_that_another_process_appends_to_reads_as_a_prefix(tmp_path: Path) -> None:
    size = 1 << 20
    contents = {}
    units: list[tuple[int, int]] = []
    for start in (0, size):
        data, more = _file(start, [b"%d" % n * (1 + n % 90) for n in range(3300)], size, blank=True)
        contents[start] = data
        units += more
    log = _log(tmp_path / "commitlog", {0: bytes(size), size: bytes(size)})
    (tmp_path / "units").write_bytes(contents[0] + contents[size])
    arguments = [
        sys.executable,
        "-c",
        _WRITER,
        ",".join(file.path for file in log.files),
        str(tmp_path / "units"),
    ]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        seen, growing, done = 0, 0, False
        while not done:
            done = writer.poll() is not None  # asked before the walk: the last one sees everything
            with contextlib.suppress(BrokenPipeError):
                writer.stdin.write(b"\n")
            for resync in (False, True):
                walk = log.walk(0, verify_crc=True, resync=resync)
                found = list(walk)
                count = walk.sums.units
                assert _units(found) == units[:count]
                assert count >= seen
                assert all(damage.at_tail for damage in found if isinstance(damage, Damage))
                growing += seen < count < len(units)
                seen = count
        assert writer.returncode == 0
    assert seen == len(units)
    assert growing > 10

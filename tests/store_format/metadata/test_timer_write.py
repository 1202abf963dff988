"""Timer files as a broker writes them: the vectors, linked units, full files, the checkpoint."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_format.files.write import FileWrites
from store_format.metadata.timer import WHEEL_SLOTS, TimerCheck, TimerLog, TimerState, TimerWheel
from store_format.opened.store import Opened

VECTOR = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())["timer"]
FILE_SIZE = 1024  # as in the vector: 19 units and a blank of 36 bytes
BEGIN = 1_795_224_757  # s, of the vector


def _writes() -> FileWrites:
    return FileWrites(sync=False)


def _added(state: TimerState, times: list[int], *, first: int = 0) -> None:
    """Units for slots `times` seconds after the vector's."""
    count = np.arange(first, first + len(times), dtype=np.int64)
    state.add(
        (BEGIN + 4 + np.array(times, np.int64)) * 1000,
        np.full(len(times), BEGIN * 1000),
        np.ones(len(times), np.int64),
        count * 196,
        np.full(len(times), 196),
        np.full(len(times), -1784167125),
    )


def _written(root: Path, times: list[int], *, first: int = 0) -> TimerState:
    state = TimerState.recover(Opened(str(root)), 1000, FILE_SIZE)
    _added(state, times, first=first)
    state.write(_writes())
    check = state.check.after_turn(read_time=0, queue_offset=1, log_end=state.end, now_ms=5)
    check.write(Opened(str(root)), _writes())
    return state


def test_unit_and_slot_of_the_vectors(tmp_path: Path) -> None:
    """Three units of one slot, as in the vector of the slot; the first is the vector of the unit."""
    _written(tmp_path, [0, 0, 0])
    data = (tmp_path / "timerlog" / f"{0:020}").read_bytes()
    assert data[:52].hex() == VECTOR["timerlog_unit"][0]["hex"]
    assert [struct.unpack_from(">q", data, 52 * i + 4)[0] for i in range(3)] == [-1, 0, 52]
    assert (len(data), set(data[156:])) == (FILE_SIZE, {0})
    slot = VECTOR["wheel_slot"]
    with (tmp_path / "timerwheel").open("rb") as file:
        file.seek(32 * slot["slot_index"])
        assert file.read(32).hex() == slot["hex"]
        assert os.fstat(file.fileno()).st_size == VECTOR["wheel_file_size"] == 32 * WHEEL_SLOTS
        assert os.fstat(file.fileno()).st_blocks < 64, "all other slots are a hole"


def test_a_full_file_ends_in_the_blank_of_the_vector(tmp_path: Path) -> None:
    """The blank is written when the next unit comes, as by TimerLog.append."""
    _written(tmp_path, [0] * 19)
    first = tmp_path / "timerlog" / f"{0:020}"
    assert first.read_bytes()[988:] == bytes(36)
    _written(tmp_path, [1], first=19)
    assert first.read_bytes()[988:] == bytes.fromhex(VECTOR["timerlog_blank"]["hex"]).ljust(36, b"\0")
    assert (tmp_path / "timerlog" / f"{FILE_SIZE:020}").stat().st_size == FILE_SIZE


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=30), min_size=1, max_size=4))
def test_every_unit_is_in_the_chain_of_its_slot(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[int]]
) -> None:
    root = tmp_path_factory.mktemp("timer")
    done: list[int] = []
    for times in turns:
        state = _written(root, times, first=len(done))
        for time in range(6):
            slot = state.slot(BEGIN + 4 + time)
            positions, units = state.chain(slot.last)
            numbers = [i for i, each in enumerate(done + times) if each == time]
            assert (units["physical_offset"] // 196).tolist() == numbers
            assert slot.num == len(positions)
            assert slot.first == (positions[0] if numbers else -1)
        done += times
    log, wheel = TimerLog.open(str(root / "timerlog")), TimerWheel.open(str(root / "timerwheel"))
    found = [number for _, units in log.scan() for number in (units["physical_offset"] // 196).tolist()]
    assert found == list(range(len(done)))
    assert done == [] or (wheel is not None and sum(wheel.slots()["num"]) == len(done))
    again = TimerState.recover(Opened(str(root)), 1000, FILE_SIZE)
    assert (again.slots, len(again.unflushed), again.is_damaged) == ({}, 0, False)


def test_the_checkpoint(tmp_path: Path) -> None:
    check = TimerCheck(1, 2, 3, 3, 0, 7, 24)
    check.write(Opened(str(tmp_path)), _writes())
    path = tmp_path / "config" / "timercheck"
    assert path.read_bytes() == struct.pack(">7q", 1, 2, 3, 3, 0, 7, 24).ljust(4096, b"\0")
    assert path.read_bytes() == check.to_bytes()
    assert TimerCheck.read(Opened(str(tmp_path))) == check
    later = check.after_turn(read_time=1, queue_offset=3, log_end=54, now_ms=9)
    assert later == replace(check, last_timer_log_flush_pos=54), "no new data version"
    later = check.after_turn(read_time=2, queue_offset=4, log_end=54, now_ms=9)
    assert later == TimerCheck(2, 54, 4, 4, 0, 9, 25)


def test_slots_around_the_end_of_the_wheel(tmp_path: Path) -> None:
    """The wheel goes on at its beginning: times on both sides of a multiple of its slots."""
    turn = BEGIN // WHEEL_SLOTS * WHEEL_SLOTS + WHEEL_SLOTS  # the time of slot 0 in the next round
    _written(tmp_path, [turn - BEGIN - 4 + each for each in (-3, -1, 0, 2)])
    state = TimerState.recover(Opened(str(tmp_path)), 1000, FILE_SIZE)
    for low, high in ((-9, 9), (-3, 3), (-1, 1), (0, 2), (-2, WHEEL_SLOTS), (-WHEEL_SLOTS, 3)):
        found = state.slots_between((turn + low) * 1000, (turn + high) * 1000)
        assert [each.time - turn for each in found] == [t for t in (-3, -1, 0, 2) if low <= t < high]
    nexts = [state.next_slot_ms((turn + each) * 1000) for each in (-9, -2, 0, 1, 3)]
    assert nexts == [(turn + each) * 1000 for each in (-3, -1, 0, 2)] + [None]
    _added(state, [turn - BEGIN - 4 - 8])
    assert state.next_slot_ms((turn - 9) * 1000) == (turn - 8) * 1000
    assert state.slots_between((turn - 9) * 1000, turn * 1000)[0].time == turn - 8

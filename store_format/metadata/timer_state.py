"""The timer's files together, recovered as a broker recovers them when it starts (TimerMessageStore.recover).

New units are linked into the slots in memory first; `timer_write` writes what has changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, StoreError
from store_format.files.read import StoreFile
from store_format.files.view import FileView
from store_format.layouts import TIMER_LOG_UNIT, TIMER_WHEEL_SLOT, pack, unpack
from store_format.metadata.read import config_path
from store_format.metadata.timer import (
    MAGIC_DELETE,
    WHEEL_SLOTS,
    TimerCheck,
    TimerLog,
    TimerWheel,
    read_timer_check,
    snapshot_of_wheel,
    units_per_file,
)

_Ints = NDArray[np.int64]
_Units = NDArray[np.void]

_UNIT = TIMER_LOG_UNIT.itemsize
_MAGIC_MASK = 0xF


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot of the wheel: `time` is in units of the precision, the positions are of the timerlog."""

    time: int
    first: int = -1
    last: int = -1
    num: int = 0
    magic: int = 0


@dataclass(slots=True)
class TimerState:
    """What the timer's files say, and the units and slots that are not written yet.

    `end` is the timerlog position after the last unit. `new_units` at `new_positions` are to be appended,
    `slots` (by index) differ from the wheel's file. `unflushed` are the physical offsets of the messages
    whose units are behind the position in timercheck: a crash came before the next timercheck. `is_damaged`:
    the log has other bytes than zeros behind its last unit. `rewrites_wheel`: the slots come from a snapshot,
    or from the log.
    `has_lost_units`: units before the position in timercheck are gone; `last_unit` is the last that is left.
    """

    root: str
    precision_ms: int
    file_size: int
    check: TimerCheck
    log: TimerLog
    wheel: TimerWheel | None
    end: int = 0
    is_damaged: bool = False
    rewrites_wheel: bool = False
    has_lost_units: bool = False
    last_unit: np.void | None = None
    unflushed: _Ints = field(default_factory=lambda: np.empty(0, np.int64))
    new_units: _Units = field(default_factory=lambda: np.empty(0, TIMER_LOG_UNIT))
    new_positions: _Ints = field(default_factory=lambda: np.empty(0, np.int64))
    slots: dict[int, Slot] = field(default_factory=dict)
    _files: dict[int, tuple[StoreFile, FileView]] = field(default_factory=dict)

    # ---- slots -----------------------------------------------------------------------------------------

    def slot(self, time: int) -> Slot:
        """The slot of a time in units of the precision; without positions if it is empty."""
        index = time % WHEEL_SLOTS
        found = self.slots.get(index)
        if found is None and self.wheel is not None:
            found = Slot(*self.wheel.raw_slot(index).tolist())
        return found if found is not None and found.time == time else Slot(time)

    def slots_between(self, start_ms: int, stop_ms: int) -> list[Slot]:
        """The slots with messages whose times are in [start_ms, stop_ms), in the order of their times."""
        low, high = start_ms // self.precision_ms, stop_ms // self.precision_ms
        found = {}
        if self.wheel is not None:
            found = {slot["slot_time"]: slot for slot in self.wheel.between(low, high)}
        slots = {int(time): Slot(*slot.tolist()) for time, slot in found.items()}
        slots = {time: slot for time, slot in slots.items() if time % WHEEL_SLOTS not in self.slots}
        slots |= {each.time: each for each in self.slots.values() if low <= each.time < high}
        return [slots[time] for time in sorted(slots)]

    def next_slot_ms(self, start_ms: int) -> int | None:
        """The time in ms of the first slot with messages from `start_ms` on; None if there is none."""
        low = start_ms // self.precision_ms
        times = [each.time for each in self.slots.values() if each.time >= low]
        if self.wheel is not None:
            times += [time for time in (self.wheel.first_from(low, min(times, default=None)),) if time]
        return min(times) * self.precision_ms if times else None

    # ---- new units -------------------------------------------------------------------------------------

    def add(
        self,
        slot_ms: _Ints,
        write_ms: _Ints,
        magic: _Ints,
        physical_offsets: _Ints,
        sizes: _Ints,
        hashes: _Ints,
    ) -> None:
        """Appends units and links them into their slots (TimerMessageStore.doEnqueue)."""
        if not len(slot_ms):
            return
        positions = self._next_positions(len(slot_ms))
        times = slot_ms // self.precision_ms
        units = pack(
            TIMER_LOG_UNIT,
            {
                "size": _UNIT,
                "prev_pos": np.full(len(slot_ms), -1),
                "magic": magic,
                "write_timestamp": write_ms,
                "delayed_time": slot_ms - write_ms,
                "physical_offset": physical_offsets,
                "message_size": sizes,
                "topic_hash": hashes,
                "reserved": 0,
            },
        )
        for time, rows in _rows_by_time(times):
            units["prev_pos"][rows[1:]] = positions[rows[:-1]]
            units["prev_pos"][rows[0]] = self.slot(time).last
            self._link(time, positions[rows], units["magic"][rows])
        # Without `dtype` numpy changes the byte order of the fields.
        self.new_units = np.concatenate([self.new_units, units], dtype=TIMER_LOG_UNIT)
        self.new_positions = np.concatenate([self.new_positions, positions])
        self.end = int(positions[-1]) + _UNIT

    def _next_positions(self, count: int) -> _Ints:
        """The positions of the next units: a file has room for a blank after its last unit."""
        room = units_per_file(self.file_size)
        file, inside = divmod(self.end, self.file_size)
        numbers = file * room + min(inside // _UNIT, room) + np.arange(count, dtype=np.int64)
        positions: _Ints = numbers // room * self.file_size + numbers % room * _UNIT
        return positions

    def revise(self, positions: _Ints, units: _Units) -> None:
        """Puts units that are in the log into their slots, where the slots lack them.

        TimerWheel.reviseSlot does not count them; here `num` is right as well.
        """
        times = (units["write_timestamp"].astype(np.int64) + units["delayed_time"]) // self.precision_ms
        for time, rows in _rows_by_time(times):
            self._link(time, positions[rows], units["magic"][rows])

    def _link(self, time: int, positions: _Ints, magic: NDArray[np.integer]) -> None:
        index = time % WHEEL_SLOTS
        held = self.slots.get(index)
        if held is None and self.wheel is not None:
            held = Slot(*self.wheel.raw_slot(index).tolist())
        if held is not None and held.time > time:
            return  # a later round of the wheel has taken the slot
        slot = self.slot(time)
        fresh = positions > slot.last
        if not fresh.any():
            return
        num = int(np.where(magic[fresh] & MAGIC_DELETE, -1, 1).sum())
        first = int(positions[0]) if slot.first == -1 else slot.first
        self.slots[index] = Slot(time, first, int(positions[-1]), slot.num + num, slot.magic)

    # ---- chains ----------------------------------------------------------------------------------------

    def chain(self, last_position: int) -> tuple[_Ints, _Units]:
        """The positions and units of a slot's chain, oldest first.

        The chain ends at -1 or before the first file that is still there. Raises CorruptStoreError for a link
        that does not go back to a unit.
        """
        positions, position = [], last_position
        begin = self.log.files[0].start if self.log.files else 0
        rows: dict[int, int] = {}
        while position >= begin:
            positions.append(position)
            if len(self.new_positions) and position >= self.new_positions[0]:
                row = int(np.searchsorted(self.new_positions, position))
                previous = int(self.new_units["prev_pos"][row])
                rows[position] = row
            else:
                previous = self._previous(position)
            if previous >= position:
                raise CorruptStoreError(
                    f"{self.root}/timerlog",
                    position + 4,
                    f"a position before {position}, or -1",
                    str(previous),
                )
            position = previous
        positions.reverse()
        units = np.empty(len(positions), TIMER_LOG_UNIT)
        for i, position in enumerate(positions):
            units[i] = self.new_units[rows[position]] if position in rows else self._unit(position)[1]
        return np.array(positions, np.int64), units

    def _previous(self, position: int) -> int:
        file, unit = self._unit(position)
        size, previous, magic = int(unit["size"]), int(unit["prev_pos"]), int(unit["magic"])
        if size != _UNIT or magic & ~_MAGIC_MASK:
            raise CorruptStoreError(
                file.path,
                position - file.start,
                f"a unit of {_UNIT} bytes and magic 0 to {_MAGIC_MASK}",
                f"size {size} and magic 0x{magic & 0xFFFFFFFF:08X}",
            )
        return previous

    def _unit(self, position: int) -> tuple[StoreFile, np.void]:
        """The timerlog's file at a position, and the unit there, unchecked."""
        number = position // self.file_size
        found = self._files.get(number)
        if found is None:
            for file in self.log.files:
                if file.start <= position < file.stop:
                    found = self._files[number] = file, FileView(file.path)
                    break
            else:
                raise CorruptStoreError(
                    f"{self.root}/timerlog",
                    position,
                    "a position in the timerlog",
                    "a position outside of all files",
                )
        file, view = found
        data = view.read(position - file.start, _UNIT)
        if len(data) < _UNIT:
            raise CorruptStoreError(file.path, position - file.start, "a whole unit", "the end of the file")
        unit: np.void = unpack(data, TIMER_LOG_UNIT)[0]
        return file, unit


def _rows_by_time(times: _Ints) -> Iterator[tuple[int, _Ints]]:
    """(time, rows) for each time; the times in the order of their last rows, so that the last one wins."""
    order = np.argsort(times, kind="stable")
    edges = np.flatnonzero(np.diff(times[order])) + 1
    groups = [rows for rows in np.split(order, edges) if len(rows)]
    for rows in sorted(groups, key=lambda rows: int(rows[-1])):
        yield int(times[rows[0]]), rows


def recover_timer(root: str, precision_ms: int, file_size: int) -> TimerState:
    """The state of the timer, with the units that the wheel's file lacks put into their slots.

    `file_size` (mappedFileSizeTimerLog) counts if the log has no file. If the wheel has the last flushed
    unit, only the units behind are read; else those from the file before on, as a broker does; without a
    wheel all. If units are lost, or the wheel is newer than the log (the copy of a running store, a power
    loss), the wheel is made from the units that are left: its slots point to bytes that other units will
    take. Raises CorruptStoreError for a wheel of another size.
    """
    check = read_timer_check(config_path(root, "timercheck")) or TimerCheck()
    log = TimerLog.open(f"{root}/timerlog")
    size = next((file.size for file in reversed(log.files) if file.size), file_size)  # 0 after a crash
    wheel = TimerWheel.open(f"{root}/timerwheel", precision_ms)
    state = TimerState(root, precision_ms, size, check, log, wheel)
    start = flushed = check.last_timer_log_flush_pos
    if wheel is None or not _has_last_unit(state, flushed):
        snapshot = snapshot_of_wheel(root)
        if snapshot is not None:
            state.wheel = TimerWheel.open(snapshot.path, precision_ms)
            state.rewrites_wheel = True
            flushed = snapshot.start
        start = 0 if state.wheel is None else max(flushed - size, 0)
        start -= start % size
    _read_units(state, start)
    state.has_lost_units = state.end < check.last_timer_log_flush_pos
    if state.has_lost_units or (state.wheel is not None and state.wheel.reaches(state.end)):
        state.wheel, state.slots = None, {}
        state.rewrites_wheel = True
        _read_units(state, 0)
    return state


def _has_last_unit(state: TimerState, flushed: int) -> bool:
    """Whether the wheel has the unit before position `flushed`: then it has all of them."""
    if flushed <= 0:
        return flushed == 0
    inside = flushed % state.file_size
    position = flushed - _UNIT
    if inside == 0:
        position = flushed - state.file_size + (units_per_file(state.file_size) - 1) * _UNIT
    try:
        unit = state.log.unit_at(position)
    except StoreError:
        return False
    time = (int(unit["write_timestamp"]) + int(unit["delayed_time"])) // state.precision_ms
    assert state.wheel is not None
    slot = Slot(*state.wheel.raw_slot(time % WHEEL_SLOTS).tolist())
    return slot.time > time or (slot.time == time and slot.last >= position)


def _read_units(state: TimerState, start: int) -> None:
    """Revises the slots by the units from `start` on, and finds the end of the log."""
    state.end = max(start, state.log.files[0].start) if state.log.files else 0
    unflushed = []
    flushed = state.check.last_timer_log_flush_pos
    try:
        for first, found in state.log.scan(state.end):
            units = _whole_units(found)
            positions = first + _UNIT * np.arange(len(units), dtype=np.int64)
            state.revise(positions, units)
            unflushed.append(units["physical_offset"][positions >= flushed].astype(np.int64))
            if len(units):
                state.end, state.last_unit = int(positions[-1]) + _UNIT, units[-1]
            if len(units) < len(found):
                state.is_damaged = True
                break
    except CorruptStoreError:
        state.is_damaged = True  # A broker cuts the log there (recoverAndRevise).
    state.unflushed = np.concatenate([state.unflushed, *unflushed])


def _whole_units(units: _Units) -> _Units:
    """The units before one that a crash left half written: a message has more than 0 bytes."""
    torn = np.flatnonzero(units["message_size"] <= 0)
    return units[: int(torn[0])] if len(torn) else units


def slot_records(slots: list[Slot]) -> NDArray[np.void]:
    """The slots as the wheel has them."""
    return unpack(
        pack(
            TIMER_WHEEL_SLOT,
            {
                "slot_time": [each.time for each in slots],
                "first_pos": [each.first for each in slots],
                "last_pos": [each.last for each in slots],
                "num": [each.num for each in slots],
                "magic": [each.magic for each in slots],
            },
        ).tobytes(),
        TIMER_WHEEL_SLOT,
    )

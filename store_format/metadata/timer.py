"""The index of timer messages: the timer log, the timer wheel and the timer checkpoint (spec 8.3).

The log is append-only. A slot of the wheel points to the newest unit of one second; each unit points to the
unit before it (TimerLog, TimerWheel, Slot, TimerCheckpoint). `TimerState` has the files together, recovered
as a broker recovers them when it starts (TimerMessageStore.recover). New units are linked into its slots in
memory first; then `TimerState.write` writes what has changed, and `TimerCheck.write` how far it is read: a
broker begins to read where timercheck says.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, StoreError, StoreNotFoundError, TruncatedRecordError
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.files.view import FileView
from store_format.files.write import FileWrites
from store_format.layouts import (
    MAGIC_BLANK,
    TIMER_CHECK,
    TIMER_LOG_BLANK,
    TIMER_LOG_UNIT,
    TIMER_WHEEL_SLOT,
    pack,
    unpack,
)
from store_format.metadata.read import BrokerConf, config_path
from store_format.opened.store import Opened

MAGIC_NORMAL = 1  # TimerMessageStore.MAGIC_DEFAULT; every unit has it
MAGIC_ROLL = 2  # fires before the message is due; the message is then stored again
MAGIC_DELETE = 4  # recalls another timer message
_MAGIC_MASK = 0xF  # TimerMessageStore.isMagicOK

WHEEL_SLOTS = 7 * 86_400 * 2  # TimerMessageStore.TIMER_WHEEL_TTL_DAY in slots of a second, twice

_UNIT = TIMER_LOG_UNIT.itemsize
_SLOT = TIMER_WHEEL_SLOT.itemsize
_UNITS_PER_READ = 1 << 15
_SLOTS_PER_STEP = 1 << 16
_SLOTS_PER_LOOK = 1 << 13
_CHECK_NAME, _CHECK_SIZE = "timercheck", 4096  # DefaultMappedFile.OS_PAGE_SIZE
_SNAPSHOT_NAME = re.compile(r"timerwheel\.([0-9]{1,20})\Z", re.ASCII)

_SLOTS_MAX = 64  # that are tried, the latest first: their units are the last to be deleted

_Ints = NDArray[np.int64]
_Units = NDArray[np.void]


def units_per_file(file_size: int) -> int:
    """How many units fit into a timerlog file; each must leave room for a blank after it (TimerLog.append).

    >>> units_per_file(1024)
    19
    """
    return max((file_size - TIMER_LOG_BLANK.itemsize) // _UNIT, 0)


def slot_index(time_ms: int, precision_ms: int = 1000, slots: int = WHEEL_SLOTS) -> int:
    """The index of the slot of a time (TimerWheel.getSlotIndex)."""
    return time_ms // precision_ms % slots


class TimerLog:
    """The files of `timerlog/`, listed once; positions are offsets in the whole log."""

    def __init__(self, files: list[StoreFile]) -> None:
        self.files = files
        self._starts = [file.start for file in files]

    @classmethod
    def open(cls, directory: str) -> TimerLog:
        """Lists the files. A missing directory is an empty log: no timer message was ever stored."""
        return cls(files_at(directory).store_files(directory))

    def scan(self, start: int = 0) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yields (position of the first unit, TIMER_LOG_UNIT array), from the first unit at or after `start`.

        A file ends at its blank or after its last possible unit; the log ends at zeros, which were never
        written. Anything else is damage: CorruptStoreError, after the units before the damage.
        TimerMessageStore.recoverAndRevise cuts the log at the same place.
        """
        for file in self.files[max(bisect.bisect_right(self._starts, start) - 1, 0) :]:
            whole = yield from _scan_file(file, -(-max(start - file.start, 0) // _UNIT))
            if not whole:
                return

    def unit_at(self, position: int) -> np.void:
        """The unit that begins at `position`. Raises CorruptStoreError if no unit begins there."""
        i = bisect.bisect_right(self._starts, position) - 1
        if i < 0 or position >= self.files[i].stop:
            where = self.files[-1].path if self.files else "timerlog"
            raise CorruptStoreError(
                where,
                max(position, 0),
                "a position in the timerlog",
                f"position {position}, outside of all files",
            )
        file, offset = self.files[i], position - self.files[i].start
        if offset % _UNIT or offset // _UNIT >= units_per_file(file.size):
            raise CorruptStoreError(
                file.path,
                offset,
                f"the beginning of a unit of {_UNIT} bytes",
                "a position inside a unit or a blank",
            )
        with _open_timer_file(file) as view:
            data = view.read(offset, _UNIT)
        if len(data) < _UNIT:
            raise TruncatedRecordError(file.path, offset, f"a unit of {_UNIT} bytes", f"{len(data)} bytes")
        unit: np.void = unpack(data, TIMER_LOG_UNIT)[0]
        if unit["size"] != _UNIT or unit["magic"] & ~_MAGIC_MASK:
            raise CorruptStoreError(file.path, offset, *_unlike_unit(unit))
        return unit

    def chain(self, last_position: int) -> Iterator[tuple[int, np.void]]:
        """Yields (position, unit) of a slot's chain, newest first, until -1 or the oldest remaining file.

        A unit is stored after the unit it points to, so positions must fall; otherwise CorruptStoreError. So
        no chain is longer than the log.
        """
        position = last_position
        while position >= 0 and self._starts and position >= self._starts[0]:
            unit = self.unit_at(position)
            yield position, unit
            previous = int(unit["prev_pos"])
            if previous >= position:
                file = self.files[bisect.bisect_right(self._starts, position) - 1]
                raise CorruptStoreError(
                    file.path,
                    position - file.start + 4,
                    f"a position before {position}, or -1",
                    str(previous),
                )
            position = previous


def _open_timer_file(file: StoreFile) -> FileView:
    try:
        return files_at(file.path).view(file.path)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{file.path}: the file is gone; the broker deletes timerlog files whose messages are delivered"
        ) from error


def _scan_file(file: StoreFile, first: int) -> Generator[tuple[int, NDArray[np.void]], None, bool]:
    """Yields the file's units from number `first`; returns whether the log continues in the next file."""
    stop = units_per_file(file.size)
    with _open_timer_file(file) as view:
        for number in range(first, stop, _UNITS_PER_READ):
            data = view.read(number * _UNIT, min(_UNITS_PER_READ, stop - number) * _UNIT)
            units = unpack(data[: len(data) // _UNIT * _UNIT], TIMER_LOG_UNIT)
            unlike = np.flatnonzero((units["size"] != _UNIT) | (units["magic"] & ~_MAGIC_MASK != 0))
            good = int(unlike[0]) if len(unlike) else len(units)
            if good:
                yield file.start + number * _UNIT, units[:good]
            if number + good < min(number + _UNITS_PER_READ, stop):
                return _continues_after(file, view, number + good)
        return _continues_after(file, view, stop)


def _continues_after(file: StoreFile, view: FileView, number: int) -> bool:
    """True if there is a blank at unit number `number`, False if nothing is written there.

    Raises CorruptStoreError for anything else.
    """
    offset = number * _UNIT
    data = view.read(offset, _UNIT)
    if len(data) >= TIMER_LOG_BLANK.itemsize:
        blank = unpack(data[: TIMER_LOG_BLANK.itemsize], TIMER_LOG_BLANK)[0]
        if blank["magic"] == MAGIC_BLANK and blank["size"] == file.size - offset:
            return True
    if not any(data):
        return False  # never written, or the end of a truncated copy
    if len(data) < _UNIT:
        raise TruncatedRecordError(
            file.path, offset, f"a unit of {_UNIT} bytes or a blank", f"{len(data)} bytes"
        )
    raise CorruptStoreError(file.path, offset, *_unlike_unit(unpack(data, TIMER_LOG_UNIT)[0]))


def _unlike_unit(unit: np.void) -> tuple[str, str]:
    return (
        f"size {_UNIT} and magic 0 to {_MAGIC_MASK}",
        f"size {int(unit['size'])} and magic 0x{int(unit['magic']) & 0xFFFFFFFF:08X}",
    )


def snapshot_of_wheel(opened: Opened) -> StoreFile | None:
    """The newest snapshot of the wheel (timerWheelSnapshotFlush); `start` is its position in the timerlog."""
    snapshots = opened.files.store_files(opened.path, _SNAPSHOT_NAME)
    return snapshots[-1] if snapshots else None


class TimerWheel:
    """The slots of the wheel. The file lags behind the timerlog; slots in the past keep their content."""

    def __init__(self, view: FileView, precision_ms: int = 1000) -> None:
        self.path = view.path
        self.precision_ms = precision_ms
        self._view = view  # its destructor closes the file

    @classmethod
    def open(cls, path: str, precision_ms: int = 1000) -> TimerWheel | None:
        """Opens the wheel; None for a missing or empty file.

        `precision_ms` is the broker's timerPrecisionMs, which no file has. Raises CorruptStoreError for
        another size, as the broker does.
        """
        try:
            view = files_at(path).view(path)
        except FileNotFoundError:
            return None
        if view.size == 0:
            return None
        if view.size != WHEEL_SLOTS * _SLOT:
            raise CorruptStoreError(path, 0, f"{WHEEL_SLOTS * _SLOT} bytes", f"{view.size} bytes")
        return cls(view, precision_ms)

    @classmethod
    def newest(cls, opened: Opened, precision_ms: int = 1000) -> TimerWheel | None:
        """Opens the newest snapshot (timerWheelSnapshotFlush), or `timerwheel`; None as `open`."""
        snapshot = snapshot_of_wheel(opened)
        return cls.open(f"{opened.path}/timerwheel" if snapshot is None else snapshot.path, precision_ms)

    def _slots(self, start: int, stop: int) -> NDArray[np.void]:
        """Reads the slots with these indices, at most up to the last one."""
        return unpack(self._view.window(start * _SLOT, min(stop, WHEEL_SLOTS) * _SLOT), TIMER_WHEEL_SLOT)

    def slot(self, time_ms: int) -> np.void | None:
        """The slot of a time; None if it is empty or of another time (TimerWheel.getSlot)."""
        slot = self.raw_slot(slot_index(time_ms, self.precision_ms))
        return slot if slot["slot_time"] == time_ms // self.precision_ms else None

    def raw_slot(self, index: int) -> np.void:
        """The slot at an index, whatever its time is (TimerWheel.getRawSlot)."""
        slot: np.void = self._slots(index, index + 1)[0]
        return slot

    def between(self, low: int, high: int) -> NDArray[np.void]:
        """The slots with messages whose times, in units of the precision, are in [low, high)."""
        if high - low >= WHEEL_SLOTS:
            found = self.slots()
            return found[(found["slot_time"] >= low) & (found["slot_time"] < high)]
        parts = []
        while low < high:
            index = low % WHEEL_SLOTS
            part = self._slots(index, index + min(high - low, _SLOTS_PER_STEP))
            expected = np.arange(low, low + len(part))
            parts.append(part[(part["slot_time"] == expected) & (part["last_pos"] >= 0)])
            low += len(part)
        return np.concatenate([np.empty(0, TIMER_WHEEL_SLOT), *parts])

    def first_from(self, low: int, high: int | None = None) -> int | None:
        """The first time in [low, high) whose slot has messages; None if there is none.

        The default for `high` is half a wheel later: a broker fills no slots beyond (timerRollWindowSlot).
        """
        high = low + WHEEL_SLOTS // 2 if high is None else high
        for start in range(low, high, _SLOTS_PER_LOOK):
            found = self.between(start, min(start + _SLOTS_PER_LOOK, high))
            if len(found):
                return int(found["slot_time"][0])
        return None

    def reaches(self, position: int) -> bool:
        """Whether a slot names a unit at this position of the timerlog, or behind."""
        for start in range(0, WHEEL_SLOTS, _SLOTS_PER_STEP):
            part = self._slots(start, start + _SLOTS_PER_STEP)
            named = (part["last_pos"] >= position) | (part["first_pos"] >= position)
            if (named & (part["slot_time"] > 0)).any():
                return True
        return False

    def copy(self) -> NDArray[np.void]:
        """All slots, to be changed and written as a whole."""
        return self._slots(0, WHEEL_SLOTS)

    def slots(self) -> NDArray[np.void]:
        """All slots with messages, sorted by time, without slots at a wrong index, which no lookup finds."""
        kept = []
        for start in range(0, WHEEL_SLOTS, _SLOTS_PER_STEP):
            part = self._slots(start, start + _SLOTS_PER_STEP)
            times = part["slot_time"]
            used = (
                (times > 0)
                & (part["last_pos"] >= 0)
                & (times % WHEEL_SLOTS == np.arange(start, start + len(part)))
            )
            kept.append(part[used])
        found = np.concatenate(kept)
        return found[np.argsort(found["slot_time"], kind="stable")]


@dataclass(frozen=True, slots=True)
class TimerCheck:
    """config/timercheck (TimerCheckpoint): how far the timer has delivered and read the timer topic."""

    last_read_time: int = 0  # ms: slots before it have fired
    last_timer_log_flush_pos: int = 0
    last_timer_queue_offset: int = 0  # next offset of rmq_sys_wheel_timer-0 to put in the log
    master_timer_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    @staticmethod
    def read(opened: Opened) -> TimerCheck | None:
        """The checkpoint of a store; None without a file. Missing bytes of a short file count as 0."""
        try:
            with opened.files.view(config_path(opened, _CHECK_NAME)) as view:
                data = view.read(0, TIMER_CHECK.itemsize)
        except FileNotFoundError:
            return None
        return TimerCheck(*unpack(data.ljust(TIMER_CHECK.itemsize, b"\0"), TIMER_CHECK)[0].tolist())

    def after_turn(self, *, read_time: int, queue_offset: int, log_end: int, now_ms: int) -> TimerCheck:
        """The checkpoint after a turn (TimerMessageStore.prepareTimerCheckPoint).

        The data version advances if the read time or the queue offset has changed.
        """
        changed = replace(
            self,
            last_read_time=read_time,
            last_timer_log_flush_pos=log_end,
            last_timer_queue_offset=queue_offset,
            master_timer_queue_offset=queue_offset,
        )
        if (read_time, queue_offset) == (self.last_read_time, self.master_timer_queue_offset):
            return changed
        return replace(changed, timestamp=now_ms, counter=self.counter + 1)

    def to_bytes(self) -> bytes:
        """The 4096 bytes of config/timercheck."""
        values = {name: getattr(self, name) for name in TIMER_CHECK.names or ()}
        return pack(TIMER_CHECK, values).tobytes().ljust(_CHECK_SIZE, b"\0")

    def write(self, opened: Opened, files: FileWrites, aside: str | None = None) -> None:
        """Replaces config/timercheck at once: a broker that found half of it would deliver a week again.

        `aside` is the path of the new file before it takes its place.
        """
        files.make_directories(opened.path, "config")
        files.replace(config_path(opened, _CHECK_NAME), self.to_bytes(), aside)


# ---- the precision of a wheel ------------------------------------------------------------------------------


def with_wheel_precision(opened: Opened, conf: BrokerConf) -> BrokerConf:
    """The settings with the precision of the store's timer wheel, if they do not name one.

    Slots of another precision would be written over those of the wheel.
    """
    found = None if "timerPrecisionMs" in conf.given else wheel_precision_ms(opened)
    return conf if found is None else replace(conf, timer_precision_ms=found)


def wheel_precision_ms(opened: Opened) -> int | None:
    """The precision in ms; None without a wheel, or if no slot has a unit in the timerlog.

    A slot has its time in units of the precision, the units of its chain have theirs in ms.
    """
    try:
        wheel, log = TimerWheel.open(f"{opened.path}/timerwheel"), TimerLog.open(f"{opened.path}/timerlog")
    except StoreError:
        return None
    for slot in (() if wheel is None else wheel.slots())[: -_SLOTS_MAX - 1 : -1]:
        try:
            unit = log.unit_at(int(slot["last_pos"]))
        except StoreError:
            continue
        time_ms = int(unit["write_timestamp"]) + int(unit["delayed_time"])
        precision, rest = divmod(time_ms, max(int(slot["slot_time"]), 1))
        if 0 < precision <= 3_600_000 and rest < precision:
            return precision
    return None


# ---- all files together, recovered -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slot:
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

    opened: Opened
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
    slots: dict[int, _Slot] = field(default_factory=dict)
    _files: dict[int, tuple[StoreFile, FileView]] = field(default_factory=dict)

    @staticmethod
    def recover(opened: Opened, precision_ms: int, file_size: int) -> TimerState:
        """The state of the timer, with the units that the wheel's file lacks put into their slots.

        `file_size` (mappedFileSizeTimerLog) counts if the log has no file. If the wheel has the last flushed
        unit, only the units behind are read; else those from the file before on, as a broker does; without a
        wheel all. If units are lost, or the wheel is newer than the log (the copy of a running store, a power
        loss), the wheel is made from the units that are left: its slots point to bytes that other units will
        take. Raises CorruptStoreError for a wheel of another size.
        """
        check = TimerCheck.read(opened) or TimerCheck()
        log = TimerLog.open(f"{opened.path}/timerlog")
        size = next((file.size for file in reversed(log.files) if file.size), file_size)  # 0 after a crash
        wheel = TimerWheel.open(f"{opened.path}/timerwheel", precision_ms)
        state = TimerState(opened, precision_ms, size, check, log, wheel)
        start = flushed = check.last_timer_log_flush_pos
        if wheel is None or not _has_last_unit(state, flushed):
            snapshot = snapshot_of_wheel(opened)
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

    # ---- slots -----------------------------------------------------------------------------------------

    def slot(self, time: int) -> _Slot:
        """The slot of a time in units of the precision; without positions if it is empty."""
        index = time % WHEEL_SLOTS
        found = self.slots.get(index)
        if found is None and self.wheel is not None:
            found = _Slot(*self.wheel.raw_slot(index).tolist())
        return found if found is not None and found.time == time else _Slot(time)

    def slots_between(self, start_ms: int, stop_ms: int) -> list[_Slot]:
        """The slots with messages whose times are in [start_ms, stop_ms), in the order of their times."""
        low, high = start_ms // self.precision_ms, stop_ms // self.precision_ms
        found = (
            [] if self.wheel is None else [_Slot(*each.tolist()) for each in self.wheel.between(low, high)]
        )
        slots = {each.time: each for each in found if each.time % WHEEL_SLOTS not in self.slots}
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
            held = _Slot(*self.wheel.raw_slot(index).tolist())
        if held is not None and held.time > time:
            return  # a later round of the wheel has taken the slot
        slot = self.slot(time)
        fresh = positions > slot.last
        if not fresh.any():
            return
        num = int(np.where(magic[fresh] & MAGIC_DELETE, -1, 1).sum())
        first = int(positions[0]) if slot.first == -1 else slot.first
        self.slots[index] = _Slot(time, first, int(positions[-1]), slot.num + num, slot.magic)

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
                    f"{self.opened.path}/timerlog",
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
            file = next((file for file in self.log.files if file.start <= position < file.stop), None)
            if file is None:
                raise CorruptStoreError(
                    f"{self.opened.path}/timerlog",
                    position,
                    "a position in the timerlog",
                    "a position outside of all files",
                )
            found = self._files[number] = file, files_at(file.path).view(file.path)
        file, view = found
        data = view.read(position - file.start, _UNIT)
        if len(data) < _UNIT:
            raise CorruptStoreError(file.path, position - file.start, "a whole unit", "the end of the file")
        unit: np.void = unpack(data, TIMER_LOG_UNIT)[0]
        return file, unit

    # ---- to the files --------------------------------------------------------------------------------------

    def write(self, files: FileWrites) -> None:
        """Writes the new units into the timerlog, then the changed slots into the wheel: a broker rebuilds
        slots from the log.
        """
        self._write_log(files)
        self._write_wheel(files)

    def _write_log(self, files: FileWrites) -> None:
        """Appends the new units (TimerLog.append), and cuts what is damaged behind the last whole unit."""
        if self.is_damaged:
            self._cut_log(files)
        if not len(self.new_units):
            return
        directory = files.make_directories(self.opened.path, "timerlog")
        size, room = self.file_size, units_per_file(self.file_size)
        numbers = self.new_positions // size
        is_new_name = False
        for number in range(int(numbers[0]), int(numbers[-1]) + 1):
            here = numbers == number
            first = int(self.new_positions[here][0]) % size
            if first == 0 and number * size >= size:
                self._end_file(number - 1, files)
            file, is_created = files.open_full(f"{directory}/{StoreFile.name_at(number * size)}", size)
            is_new_name |= is_created
            with file:
                file.write(first, self.new_units[here].tobytes())
                files.sync(file)
            assert first + int(here.sum()) * _UNIT <= room * _UNIT
        if is_new_name:
            files.sync_directory(directory)

    def _end_file(self, number: int, files: FileWrites) -> None:
        """Writes the blank after the last unit of a full file, if the file is still there."""
        size = self.file_size
        position = units_per_file(size) * _UNIT
        if number * size < (self.log.files[0].start if self.log.files else 0):
            return
        blank = pack(TIMER_LOG_BLANK, {"size": size - position, "reserved": 0, "magic": MAGIC_BLANK})
        file, _ = files.open_full(f"{self.opened.path}/timerlog/{StoreFile.name_at(number * size)}", size)
        with file:
            file.write(position, blank.tobytes())
            files.sync(file)

    def _cut_log(self, files: FileWrites) -> None:
        """Removes what is behind the end of the log (MappedFileQueue.truncateDirtyFiles)."""
        end = int(self.new_positions[0]) if len(self.new_positions) else self.end
        for each in self.log.files:
            if each.start >= end and each.start > 0:
                files.remove(each.path)
            elif each.stop > end:
                with files.open(each.path) as file:
                    file.zero(max(end - each.start, 0), each.size)
                    files.sync(file)

    def _write_wheel(self, files: FileWrites) -> None:
        """Writes the changed slots; a wheel that is missing is created with empty slots, as by a broker.

        If the slots come from a snapshot (timerWheelSnapshotFlush) or from the log, the whole wheel is
        written. The snapshots stay: a broker that uses them reads the timerlog again from their position on.
        """
        if not self.slots and not self.rewrites_wheel:
            return
        indices = sorted(self.slots)
        records = slot_records([self.slots[index] for index in indices])
        file, is_new = files.open_full(f"{self.opened.path}/timerwheel", WHEEL_SLOTS * _SLOT)
        with file:
            if self.rewrites_wheel:
                empty = np.zeros(WHEEL_SLOTS, TIMER_WHEEL_SLOT)
                whole = empty if self.wheel is None else self.wheel.copy()
                whole[indices] = records
                file.write(0, whole.tobytes())
            else:
                for rows in np.split(np.arange(len(indices)), np.flatnonzero(np.diff(indices) != 1) + 1):
                    file.write(indices[rows[0]] * _SLOT, records[rows[0] : rows[-1] + 1].tobytes())
            files.sync(file)
        if is_new:
            files.sync_directory(self.opened.path)


def _rows_by_time(times: _Ints) -> Iterator[tuple[int, _Ints]]:
    """(time, rows) for each time; the times in the order of their last rows, so that the last one wins."""
    order = np.argsort(times, kind="stable")
    edges = np.flatnonzero(np.diff(times[order])) + 1
    groups = [rows for rows in np.split(order, edges) if len(rows)]
    for rows in sorted(groups, key=lambda rows: int(rows[-1])):
        yield int(times[rows[0]]), rows


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
    slot = _Slot(*state.wheel.raw_slot(time % WHEEL_SLOTS).tolist())
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


def slot_records(slots: list[_Slot]) -> NDArray[np.void]:
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

"""Reads the index of timer messages: the timer log, the timer wheel and the timer checkpoint (spec 8.3).

The log is append-only. A slot of the wheel points to the newest unit of one second; each unit points to the
unit before it (TimerLog, TimerWheel, Slot, TimerCheckpoint).
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, StoreNotFoundError, TruncatedRecordError
from store_format.files.read import StoreFile, list_store_files
from store_format.files.view import FileView
from store_format.layouts import (
    MAGIC_BLANK,
    TIMER_CHECK,
    TIMER_LOG_BLANK,
    TIMER_LOG_UNIT,
    TIMER_WHEEL_SLOT,
    unpack,
)

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
_SNAPSHOT_NAME = re.compile(r"timerwheel\.([0-9]{1,20})\Z", re.ASCII)


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
        return cls(list_store_files(directory))

    def scan(self, start: int = 0) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yields (position of the first unit, TIMER_LOG_UNIT array), from the first unit at or after `start`.

        A file ends at its blank or after its last possible unit; the log ends at zeros, which were never
        written. Anything else is damage: CorruptStoreError, after the units before the damage.
        TimerMessageStore.recoverAndRevise cuts the log at the same place.
        """
        for file in self.files[max(bisect.bisect_right(self._starts, start) - 1, 0) :]:
            first = -(-max(start - file.start, 0) // _UNIT)
            whole = yield from _scan_file(file, first)
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
        return FileView(file.path)
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


def snapshot_of_wheel(root: str) -> StoreFile | None:
    """The newest snapshot of the wheel (timerWheelSnapshotFlush); `start` is its position in the timerlog."""
    snapshots = list_store_files(root, _SNAPSHOT_NAME)
    return snapshots[-1] if snapshots else None


def wheel_path(root: str) -> str:
    """The wheel's file: the newest snapshot (timerWheelSnapshotFlush), or `timerwheel`."""
    snapshot = snapshot_of_wheel(root)
    return f"{root}/timerwheel" if snapshot is None else snapshot.path


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
            view = FileView(path)
        except FileNotFoundError:
            return None
        if view.size == 0:
            return None
        if view.size != WHEEL_SLOTS * _SLOT:
            raise CorruptStoreError(path, 0, f"{WHEEL_SLOTS * _SLOT} bytes", f"{view.size} bytes")
        return cls(view, precision_ms)

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


def read_timer_check(path: str) -> TimerCheck | None:
    """The timer checkpoint at `path`; None without a file. Missing bytes of a short file count as 0."""
    try:
        with FileView(path) as view:
            data = view.read(0, TIMER_CHECK.itemsize)
    except FileNotFoundError:
        return None
    return TimerCheck(*unpack(data.ljust(TIMER_CHECK.itemsize, b"\0"), TIMER_CHECK)[0].tolist())

"""The index of timer messages: an append-only log of units, a wheel of slots that lead into it, and how far
both got.

Chains run backwards through the log (TimerLog, TimerWheel, Slot, TimerCheckpoint; spec 8.3). Read only.
"""

from __future__ import annotations

import bisect
import os
import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, StoreNotFoundError, TruncatedRecordError
from store_format.files.read import FileView, StoreFile, list_store_files
from store_format.layouts import (
    MAGIC_BLANK,
    TIMER_CHECK,
    TIMER_LOG_BLANK,
    TIMER_LOG_UNIT,
    TIMER_WHEEL_SLOT,
    unpack,
)

__all__ = [
    "MAGIC_DELETE",
    "MAGIC_NORMAL",
    "MAGIC_ROLL",
    "WHEEL_SLOTS",
    "TimerCheck",
    "TimerLog",
    "TimerWheel",
    "read_timer_check",
    "slot_index",
    "units_per_file",
    "wheel_path",
]

MAGIC_NORMAL = 1  # TimerMessageStore.MAGIC_DEFAULT; every unit has it
MAGIC_ROLL = 2  # fires before its message is due, and is then put again
MAGIC_DELETE = 4  # recalls another timer message
_MAGIC_MASK = 0xF  # TimerMessageStore.isMagicOK

WHEEL_SLOTS = 7 * 86_400 * 2  # TimerMessageStore.TIMER_WHEEL_TTL_DAY in slots of a second, twice

_UNIT = TIMER_LOG_UNIT.itemsize
_SLOT = TIMER_WHEEL_SLOT.itemsize
_UNITS_PER_READ = 1 << 15
_SLOTS_PER_STEP = 1 << 16
_SNAPSHOT_NAME = re.compile(r"timerwheel\.([0-9]{1,20})\Z", re.ASCII)


def units_per_file(file_size: int) -> int:
    """How many units a timerlog file takes: each must leave room for the blank behind it (TimerLog.append).

    >>> units_per_file(1024)  # unit 20 would begin at 988: 36 bytes are no room for 52 + 16, they become the blank
    19
    """
    return max((file_size - TIMER_LOG_BLANK.itemsize) // _UNIT, 0)


def slot_index(time_ms: int, precision_ms: int = 1000, slots: int = WHEEL_SLOTS) -> int:
    """The place of a time's slot in the wheel (TimerWheel.getSlotIndex)."""
    return time_ms // precision_ms % slots


class TimerLog:
    """The files of `timerlog/` as listed when made; positions are offsets in the whole log."""

    def __init__(self, files: list[StoreFile]) -> None:
        self.files = files
        self._starts = [file.start for file in files]

    @classmethod
    def open(cls, directory: str) -> TimerLog:
        """Lists the files; a missing directory is an empty log (no timer message was ever put)."""
        return cls(list_store_files(directory))

    def scan(self, start: int = 0) -> Iterator[tuple[int, NDArray[np.void]]]:
        """(position of the first, units as TIMER_LOG_UNIT), in order from the first unit at or after `start`.

        A file ends at its blank or behind its last place; the log ends at the first place that was never
        written (zeros). Anything else there is damage: CorruptStoreError, after the units before it. So does
        TimerMessageStore.recoverAndRevise, which then cuts the log at this place.
        """
        for file in self.files[max(bisect.bisect_right(self._starts, start) - 1, 0) :]:
            first = -(-max(start - file.start, 0) // _UNIT)
            whole = yield from _scan_file(file, first)
            if not whole:
                return

    def unit_at(self, position: int) -> np.void:
        """The unit that begins at `position`. Raises CorruptStoreError when none does."""
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
                file.path, offset, f"the beginning of a unit of {_UNIT} bytes", "the inside of one or a blank"
            )
        with _open(file) as view:
            data = view.read(offset, _UNIT)
        if len(data) < _UNIT:
            raise TruncatedRecordError(file.path, offset, f"a unit of {_UNIT} bytes", f"{len(data)} bytes")
        unit: np.void = unpack(data, TIMER_LOG_UNIT)[0]
        if unit["size"] != _UNIT or unit["magic"] & ~_MAGIC_MASK:
            raise CorruptStoreError(file.path, offset, *_unlike_unit(unit))
        return unit

    def chain(self, last_position: int) -> Iterator[tuple[int, np.void]]:
        """(position, unit) from a slot's last position backwards, newest first, until -1 or the oldest file
        left.

        A unit is put after the one it names, so positions fall; a link that does not is a CorruptStoreError,
        and no chain is longer than its log.
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


def _open(file: StoreFile) -> FileView:
    try:
        return FileView(file.path)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{file.path}: the file is gone; the broker deletes timerlog files whose messages are delivered"
        ) from error


def _scan_file(file: StoreFile, first: int) -> Generator[tuple[int, NDArray[np.void]], None, bool]:
    """Yields the file's units from number `first` on; returns whether the log goes on in the next file."""
    stop = units_per_file(file.size)
    with _open(file) as view:
        for number in range(first, stop, _UNITS_PER_READ):
            data = view.read(number * _UNIT, min(_UNITS_PER_READ, stop - number) * _UNIT)
            units = unpack(data[: len(data) // _UNIT * _UNIT], TIMER_LOG_UNIT)
            unlike = np.flatnonzero((units["size"] != _UNIT) | (units["magic"] & ~_MAGIC_MASK != 0))
            good = int(unlike[0]) if len(unlike) else len(units)
            if good:
                yield file.start + number * _UNIT, units[:good]
            if number + good < min(number + _UNITS_PER_READ, stop):
                return _goes_on(file, view, number + good)
        return _goes_on(file, view, stop)


def _goes_on(file: StoreFile, view: FileView, number: int) -> bool:
    """What stands at place `number`, where no unit is: a blank (the next file goes on), nothing yet, or
    damage.
    """
    offset = number * _UNIT
    data = view.read(offset, _UNIT)
    if len(data) >= TIMER_LOG_BLANK.itemsize:
        blank = unpack(data[: TIMER_LOG_BLANK.itemsize], TIMER_LOG_BLANK)[0]
        if blank["magic"] == MAGIC_BLANK and blank["size"] == file.size - offset:
            return True
    if not any(data):
        return False  # never written; a file that a copy cut short ends the log too
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


def wheel_path(root: str) -> str:
    """The wheel of the store at `root`: the snapshot with the largest number (timerWheelSnapshotFlush), else
    `timerwheel`.
    """
    snapshots = list_store_files(root, _SNAPSHOT_NAME)
    return snapshots[-1].path if snapshots else os.path.join(root, "timerwheel")


class TimerWheel:
    """The slots. The file lags behind the timerlog, and slots whose time has passed keep what they had."""

    def __init__(self, path: str, slots: NDArray[np.void], precision_ms: int = 1000) -> None:
        self.path = path
        self.precision_ms = precision_ms
        self._slots = slots

    @classmethod
    def open(cls, path: str, precision_ms: int = 1000) -> TimerWheel | None:
        """Maps the wheel; None when it is missing or empty. `precision_ms` is the broker's timerPrecisionMs,
        not stored.

        Raises CorruptStoreError for another size, as the broker does.
        """
        try:
            with FileView(path) as view:
                if view.size == 0:
                    return None
                if view.size != WHEEL_SLOTS * _SLOT:
                    raise CorruptStoreError(path, 0, f"{WHEEL_SLOTS * _SLOT} bytes", f"{view.size} bytes")
                return cls(path, unpack(view.map(), TIMER_WHEEL_SLOT), precision_ms)
        except FileNotFoundError:
            return None

    def slot(self, time_ms: int) -> np.void | None:
        """The slot of a time; None when its place is empty or holds another time's (TimerWheel.getSlot)."""
        slot: np.void = self._slots[slot_index(time_ms, self.precision_ms)].copy()
        return slot if slot["slot_time"] == time_ms // self.precision_ms else None

    def slots(self) -> NDArray[np.void]:
        """All slots that lead somewhere, by time. One whose time belongs to another place is left out:
        nothing finds it.
        """
        kept = []
        for start in range(0, WHEEL_SLOTS, _SLOTS_PER_STEP):
            part = self._slots[start : start + _SLOTS_PER_STEP]
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
    """config/timercheck (TimerCheckpoint): what is delivered up to, and which part of the timer topic is in
    the log.
    """

    last_read_time: int = 0  # ms: slots before it have fired
    last_timer_log_flush_pos: int = 0
    last_timer_queue_offset: int = 0  # next offset of rmq_sys_wheel_timer-0 to put in the log
    master_timer_queue_offset: int = 0
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0


def read_timer_check(path: str) -> TimerCheck | None:
    """None when there is no file. As with the checkpoint, any bytes are one, and what a short file lacks is
    0.
    """
    try:
        with FileView(path) as view:
            data = view.read(0, TIMER_CHECK.itemsize)
    except FileNotFoundError:
        return None
    return TimerCheck(*unpack(data.ljust(TIMER_CHECK.itemsize, b"\0"), TIMER_CHECK)[0].tolist())

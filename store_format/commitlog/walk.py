"""Walks the commitlog from unit to unit: every byte is counted as unit, BLANK, damage or unwritten.

A unit's length gives the place of the next unit. `kernels/walk.py` follows the lengths through a window of a
file and checks each unit. The first bad place is then checked alone, for the words of its error. Behind
damage the next unit is found by magic code, size and the unit's own physicalOffset; candidates come from one
pass of vector comparisons.

A window stays in the core's cache. After damage the windows begin small and double after each good window, so
that a failure wastes at most twice the bytes that were good before. With the allowance for checksums below
this keeps the search for the next unit linear in the bytes, whatever they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import gather_units
from store_format.files import paths
from store_format.files.paths import StoreFile
from store_format.files.read import FileCache
from store_format.files.view import FileView
from store_format.layouts import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, MESSAGE_SIZE_MIN
from store_format.message.single import Sliceable, UnitCheck, UnitKind, check_unit

_WINDOW_SIZE = 1 << 20  # half a core's level 2 cache; at most 11,523 units
_WINDOW_SIZE_MIN = 4096
_LAST_UNIT_SIZE = 1 << 16  # behind the end of a walk: the last unit begins before, a longer one is read apart
# The longest BLANK in a search. It is shorter than the message that did not fit: maxMessageSize is 4 MiB, and
# the heads of a batch add to that.
_BLANK_SIZE_MAX = 8 << 20
# Bytes whose CRC may be taken in vain in the search for the next unit: a start, and a multiple of the bytes
# walked. Otherwise the CRC of units nested in one another could be taken thousands of times for every byte.
_CRC_ALLOWANCE = 64 << 20
_CRC_ALLOWANCE_RATE = 4

# Bytes that one step of the search looks at: more with each step.
_BLOCK_SIZE_MIN = 4096
_BLOCK_SIZE_MAX = 1 << 18
_BEGIN_SIZE = 60 << 10  # of an object, that is searched for a first unit: less than a block that is fetched
_OK = UnitCheck(UnitKind.OK)


@dataclass(frozen=True, eq=False, slots=True)
class UnitRun:
    """Consecutive units that passed every check: positions in the file, and sizes, both in bytes.

    `buffer` has the checked bytes, from `buffer_start` of the file on, where the first unit's record begins:
    the unit itself, or the head in front of it. None for one unit longer than a window.
    """

    file: StoreFile
    positions: NDArray[np.int64]
    sizes: NDArray[np.int64]
    buffer: NDArray[np.uint8] | None
    buffer_start: int

    @property
    def physical_offsets(self) -> NDArray[np.int64]:
        return self.positions + self.file.start

    @property
    def stop(self) -> int:
        """Position in the file behind the last unit."""
        return int(self.positions[-1] + self.sizes[-1])


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes `start` to `stop` of a file that are no unit, and what is wrong at their start.

    `at_tail`: no good unit follows in the log. In a live store a unit may be being written there. A missing
    file between two others is one Damage too; `file` then has the path and range of the missing file.
    """

    file: StoreFile
    start: int
    stop: int
    expected: str
    found: str
    at_tail: bool = False

    @property
    def range(self) -> tuple[int, int]:
        """The physical offsets [start, stop) of the bytes."""
        return self.file.start + self.start, self.file.start + self.stop


class EndKind(StrEnum):
    """Why a walk ended."""

    STOP = "stop"  # the next unit would begin at or behind the walk's `stop`
    BLANK = "blank"  # the last file is full, and no other file follows
    UNWRITTEN = "unwritten"  # zeros
    TORN = "torn"  # bytes that are no unit
    MISSING = "missing file"  # the next file does not exist


@dataclass(frozen=True, slots=True)
class WalkEnd:
    """Where and why a walk ended: the physical offset, the same place as file and position, and the damage.

    Without damage `expected` and `found` are empty.
    """

    kind: EndKind
    offset: int
    path: str
    position: int
    expected: str = ""
    found: str = ""


@dataclass(slots=True)
class WalkSums:
    """The bytes of a walk by kind.

    `unread` bytes follow the torn end of a walk without `resync`. `unwritten` bytes follow an unwritten end;
    a walk with `resync` has checked that they are zero. `missing` bytes are those of missing files, which
    `total_bytes` does not count.
    """

    units: int = 0  # the number of units
    unit_bytes: int = 0
    blank_bytes: int = 0
    damage_bytes: int = 0
    unwritten_bytes: int = 0
    unread_bytes: int = 0
    missing_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """Bytes from the start of the walk to the end of the last file that it read, or to its stop."""
        return (
            self.unit_bytes + self.blank_bytes + self.damage_bytes + self.unwritten_bytes + self.unread_bytes
        )


class Walk:
    """Iterates over the runs of units and, with `resync`, over the damage between. Sets `sums` and `end`.

    Without `resync` the first bytes that are neither unit nor BLANK end the walk (CommitLog.recoverNormally).
    With `resync` the walk searches the next whole unit that has its own physical offset and a good CRC, and
    continues there, over missing files too, until no unit follows. `end` is then the end of the last good
    unit.

    A live broker may be writing at the end: a torn or unwritten end, and damage `at_tail`, then mean "not
    yet", and a new walk may get further. The units found are always a prefix of the log.

    Example: file 0 holds units at 0 and 126, then zeros up to its end at 65536: one run with positions [0,
    126] and sizes [126, 146]; `end` is (unwritten, 272); sums are 272 bytes in units and 65264 unwritten.
    """

    def __init__(
        self,
        files: tuple[StoreFile, ...],
        cache: FileCache,
        start: int,
        stop: int | None,
        *,
        verify_crc: bool,
        resync: bool,
        frame_of: Callable[[StoreFile], UnitFrame],
    ) -> None:
        self.sums = WalkSums()
        self.end: WalkEnd | None = None  # None until the iterator is exhausted
        self._files = files
        self._cache = cache
        self._start = start
        self._stop = stop
        self._verify_crc = verify_crc
        self._resync = resync
        self._frame_of = frame_of
        self._crc_wasted = 0
        self._failure: WalkEnd | None = None  # the first failure since the last good unit
        self._blank: WalkEnd | None = None  # set behind a BLANK, until the next unit
        self._begun: int | None = None
        self._previous = np.full(2, -1, np.int64)  # see `UnitFrame`
        self._steps = self._walk()

    def __iter__(self) -> Iterator[UnitRun | Damage]:
        return self

    def __next__(self) -> UnitRun | Damage:
        return next(self._steps)

    # ---- from file to file ---------------------------------------------------------------------------------

    def _walk(self) -> Iterator[UnitRun | Damage]:
        index = next((i for i, file in enumerate(self._files) if self._start < file.stop), None)
        if index is None or (self._start < self._files[index].start and not self._resync):
            self.end = self._missing(self._start)
            return
        position = max(self._start - self._files[index].start, 0)
        if self._start < self._files[index].start:
            yield self._gap(self._start, self._files[index])
        while True:
            file = self._files[index]
            yield from self._walk_file(index, position)
            if self.end is not None:
                return
            index, position = index + 1, 0
            following = self._files[index] if index < len(self._files) else None
            if self._stop is not None and self._stop <= file.stop:  # `stop` lies in the BLANK.
                self.end = WalkEnd(EndKind.STOP, file.stop, file.path, file.size)
                return
            if following is None or (following.start != file.stop and not self._resync):
                self.end = (
                    self._failure or (self._blank if following is None else None) or self._missing(file.stop)
                )
                return
            if following.start != file.stop:
                yield self._gap(file.stop, following)

    def _missing(self, offset: int) -> WalkEnd:
        directory = paths.parent(self._files[-1].path) if self._files else ""
        path = paths.join(directory, StoreFile.name_at(offset))
        expected = f"a file that holds physical offset {offset}"
        return WalkEnd(EndKind.MISSING, offset, path, 0, expected, "none")

    def _gap(self, start: int, following: StoreFile) -> Damage:
        self._previous[:] = -1
        missing = StoreFile(
            paths.join(paths.parent(following.path), StoreFile.name_at(start)), start, following.start - start
        )
        self.sums.missing_bytes += missing.size
        expected, found = f"a file that starts at {start}", f"the next file starts at {following.start}"
        return Damage(missing, 0, missing.size, expected, found)

    # ---- in one file ---------------------------------------------------------------------------------------

    def _walk_file(self, index: int, position: int) -> Iterator[UnitRun | Damage]:
        """Walks to the file's end, or until `end` is set."""
        file = self._files[index]
        view = self._cache.view(file)
        stop = file.size if self._stop is None else min(file.size, self._stop - file.start)
        window_size = _WINDOW_SIZE
        while position < stop:
            run, whole = self._read_run(view, file, position, stop, window_size)
            check = _OK if run else self._check_next(view, file, position)
            if check.kind is UnitKind.BLANK:
                self.sums.blank_bytes += file.size - position
                self._blank = WalkEnd(EndKind.BLANK, file.start + position, file.path, position)
                return
            if check.kind is not UnitKind.OK:
                self._note_failure(file, position, check)
                if not self._resync:
                    self._end_at_failure(check.kind, stop - position)
                    return
                damage, following = self._skip(view, index, position, stop, check)
                if damage is not None:
                    yield damage
                if following is None:
                    self.end = self._failure
                    return
                position, window_size = following, _WINDOW_SIZE_MIN
                continue
            if run is None:  # The unit is longer than the window, or a broker has completed it meanwhile.
                place = self._frame_of(file).message_at(view, position)
                if place >= stop:
                    break  # Only its head is before.
                self._frame_of(file).note(view, position, self._previous)
                run, whole = UnitRun(file, np.array([place]), np.array([check.size]), None, position), True
            self._count(run)
            yield run
            position = run.stop
            if whole:
                window_size = min(2 * window_size, _WINDOW_SIZE)
        # The last unit may reach behind `stop`: it begins before.
        if self._stop is not None and self._stop <= file.stop:
            self.end = self._failure or WalkEnd(EndKind.STOP, file.start + position, file.path, position)
            return
        # No broker fills a file without a BLANK. A broker takes the end of such a file for the log's end.
        self._note_failure(
            file, position, UnitCheck(UnitKind.TORN, 0, 0, "a blank record before the file's end", "none")
        )
        if not self._resync:
            self.end = self._failure

    def _read_run(
        self, view: FileView, file: StoreFile, position: int, stop: int, window_size: int
    ) -> tuple[UnitRun | None, bool]:
        """(The units that lie wholly in the next window, up to the first bad one; whether none is bad)."""
        buffer = view.window(position, min(position + window_size, stop + _LAST_UNIT_SIZE, file.size))
        numbers = np.empty((2, len(buffer) // MESSAGE_SIZE_MIN + 1), np.int64)
        place = position, file.start + position
        count, wrong = self._frame_of(file).follow(
            buffer, stop - position, *place, self._verify_crc, self._previous, *numbers
        )
        kernels.ready(count)
        if not count:
            return None, False
        return UnitRun(file, numbers[0, :count], numbers[1, :count], buffer, position), not wrong

    def _count(self, run: UnitRun) -> None:
        self.sums.units += len(run.positions)
        self.sums.unit_bytes += run.stop - run.buffer_start
        self._failure = self._blank = None

    # ---- when something is wrong ---------------------------------------------------------------------------

    def _check_next(self, view: FileView, file: StoreFile, position: int) -> UnitCheck:
        """Checks the unit at the position, which follows the last one of the walk."""
        return self._check(view, file, position, verify_crc=self._verify_crc, previous=self._previous)

    def _check(
        self,
        view: FileView,
        file: StoreFile,
        position: int,
        *,
        verify_crc: bool,
        previous: NDArray[np.int64] | None = None,
    ) -> UnitCheck:
        """Checks the unit at the position. With `resync` takes CRCs only within `_CRC_ALLOWANCE`."""
        look = partial(
            self._frame_of(file).check,
            view,
            position,
            file.size - position,
            physical_offset=file.start + position,
            previous=previous,
        )
        check = look(verify_crc=verify_crc and not self._resync)
        if check.kind is not UnitKind.OK or not verify_crc or not self._resync:
            return check
        allowed = _CRC_ALLOWANCE + _CRC_ALLOWANCE_RATE * self.sums.total_bytes - self._crc_wasted
        if check.size > allowed:
            return UnitCheck(
                UnitKind.TORN,
                0,
                0,
                "a message",
                f"more than {_CRC_ALLOWANCE >> 20} MiB of failed CRC checks before it; not verified",
            )
        summed = look(verify_crc=True)
        if summed.kind is not UnitKind.OK:
            self._crc_wasted += check.size
        return summed

    def _note_failure(self, file: StoreFile, position: int, check: UnitCheck) -> None:
        if self._failure is None:
            kind = EndKind.UNWRITTEN if check.kind is UnitKind.UNWRITTEN else EndKind.TORN
            self._failure = WalkEnd(
                kind, file.start + position, file.path, position, check.expected, check.found
            )

    def _end_at_failure(self, kind: UnitKind, rest: int) -> None:
        self.end = self._failure
        if kind is UnitKind.UNWRITTEN:
            self.sums.unwritten_bytes += rest
        else:
            self.sums.unread_bytes += rest

    def _skip(
        self, view: FileView, index: int, position: int, stop: int, check: UnitCheck
    ) -> tuple[Damage | None, int | None]:
        """(The damage at `position`; where the walk continues, None if no unit follows in the log)."""
        file = self._files[index]
        following, zeros_from = _search_unit(
            view, file, position, stop, partial(self._goes_on_at, view, index), self._frame_of(file)
        )
        at_tail = following is None and index >= self._last_begun(index)
        # A live broker writes in order: the bytes here may be complete since the search behind them.
        if self._check_next(view, file, position).kind in (UnitKind.OK, UnitKind.BLANK):
            return None, position
        self._previous[:] = -1
        damage_stop = following if following is not None else zeros_from if at_tail else stop
        self.sums.damage_bytes += damage_stop - position
        if at_tail:
            self.sums.unwritten_bytes += stop - zeros_from
        damage = (
            Damage(file, position, damage_stop, check.expected, check.found, at_tail)
            if damage_stop > position
            else None
        )
        return damage, None if at_tail else damage_stop

    def _goes_on_at(self, view: FileView, index: int, position: int) -> bool:
        """Whether a unit begins there, or the BLANK of a file that other files follow.

        Bytes behind such a BLANK are older than it: remains that a recovery has cut off.
        """
        file = self._files[index]
        if self._is_unit(view, file, position):
            return True
        is_blank = self._check(view, file, position, verify_crc=False).kind is UnitKind.BLANK
        return is_blank and file.size - position <= _BLANK_SIZE_MAX and index < self._last_begun(index)

    def _last_begun(self, index: int) -> int:
        """The index of the last file with a unit or a head, at least that of the file that the walk is in.
        Later files were only allocated in advance.
        """
        if self._begun is None:
            later = range(len(self._files) - 1, index, -1)
            self._begun = next((i for i in later if self._is_begun(self._files[i])), index)
        return self._begun

    def _is_begun(self, file: StoreFile) -> bool:
        """Whether anything was written to the file: its head may be zeros after a power loss. Skips holes.

        An object has no holes. Only its begin is searched, else each walk would fetch 1 GiB of zeros.
        """
        view = self._cache.view(file)
        stop = min(file.size, _BEGIN_SIZE) if file.is_remote else file.size
        return (
            any(view.read(0, 8))
            or _search_unit(view, file, 0, stop, partial(self._is_unit, view, file), self._frame_of(file))[0]
            is not None
        )

    def _is_unit(self, view: FileView, file: StoreFile, position: int) -> bool:
        return self._check(view, file, position, verify_crc=True).kind is UnitKind.OK


# ---- the next unit behind damage ---------------------------------------------------------------------------


def _search_unit(
    view: FileView,
    file: StoreFile,
    position: int,
    stop: int,
    is_unit: Callable[[int], bool],
    frame: UnitFrame,
) -> tuple[int | None, int]:
    """The first place behind `position` and before `stop` for which `is_unit` is true; None without.

    The second result is the place from which on all bytes that were read are zero.
    """
    at, zeros_from, size = position, position, _BLOCK_SIZE_MIN
    while at < stop:
        at = max(at, view.data_from(at) - HEAD_SIZE)  # A unit that begins with zeros may begin in a hole.
        data = np.frombuffer(view.read(at, min(size + HEAD_SIZE, file.size - at)), np.uint8)
        if not len(data):
            return None, stop  # The file became shorter.
        block = data[: min(size, stop - at)]
        is_zero = not data.any()  # Most bytes behind the end of a log are zero.
        for candidate in () if is_zero else frame.candidates(data, len(block), file, at):
            if candidate > position and is_unit(candidate):
                return candidate, zeros_from
        if not is_zero and block.any():
            zeros_from = at + len(block) - int((block[::-1] != 0).argmax())
        at, size = at + len(block), min(2 * size, _BLOCK_SIZE_MAX)
    return None, zeros_from


# ---- how messages lie in a file: one behind the other, or each behind a head (`dledger.EntryFrame`) --------

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int64]

_LENGTH = Struct(">i")
HEAD_SIZE = MESSAGE_HEADS[0].itemsize  # of a message
MAGIC_AT = 4
_BLANK_BYTES = MAGIC_BLANK.to_bytes(4, "big")
_MAGIC_BYTES = MAGIC_V1.to_bytes(4, "big")  # V2 differs in the last byte only


class UnitFrame:
    """Messages lie one behind the other, and a BLANK has its size before its magic code (CommitLog).

    `previous` is what the record before says about the next one; here nothing.
    """

    def check(
        self,
        buffer: Sliceable,
        position: int,
        remaining: int,
        *,
        physical_offset: int,
        verify_crc: bool,
        previous: _Ints | None = None,
    ) -> UnitCheck:
        """Checks the record at `position` of `buffer` as `check_unit` does; `size` is the message's."""
        return check_unit(buffer, position, remaining, physical_offset=physical_offset, verify_crc=verify_crc)

    def message_at(self, buffer: Sliceable, position: int) -> int:
        """The position of the message of the record at `position`."""
        return position

    def note(self, buffer: Sliceable, position: int, previous: _Ints) -> None:
        """Notes in `previous` that the record at `position` is right."""

    def is_blank(self, buffer: Sliceable, position: int) -> bool:
        """Whether the bytes at `position` have the magic code of a BLANK; their size may be wrong."""
        return bytes(buffer[position + MAGIC_AT : position + MAGIC_AT + 4]) == _BLANK_BYTES

    def follow(
        self,
        buffer: _Bytes,
        stop: int,
        position: int,
        physical: int,
        verify_crc: bool,
        previous: _Ints,
        positions: _Ints,
        sizes: _Ints,
    ) -> tuple[int, bool]:
        """Returns (how many messages from byte 0 on are whole and right, whether the next one is wrong).

        Messages begin before `stop`. `positions` gets the place of each in the file, in which the buffer
        begins at `position`, and `sizes` its bytes. `physical` is the physical offset of byte 0.
        """
        follow = kernels.walk.follow if kernels.ready() else follow_units
        count, wrong = follow(buffer, stop, position, physical, verify_crc, positions, sizes)
        return count, bool(wrong)

    def candidates(self, data: _Bytes, count: int, file: StoreFile, at: int) -> list[int]:
        """Positions in the file, in ascending order, at which a record or a BLANK may begin.

        Searches the first `count` bytes of `data`, which begins at position `at` of the file.
        """
        blanks = [at + place for place in _blanks(data, count, file.size - at)]
        return sorted([*message_places(data, count, file, at), *blanks])


def follow_units(
    buffer: _Bytes,
    stop: int,
    position: int,
    physical: int,
    verify_crc: bool,
    positions: _Ints,
    sizes: _Ints,
) -> tuple[int, bool]:
    """The kernel `follow` for a few units: without numba."""
    data, at, count = buffer.tobytes(), 0, 0
    while at < min(stop, len(data) - MESSAGE_SIZE_MIN + 1):
        (size,) = _LENGTH.unpack_from(data, at)
        if not MESSAGE_SIZE_MIN <= size <= len(data) - at:
            break
        check = check_unit(data, at, size, physical_offset=physical + at, verify_crc=verify_crc)
        if check.kind is not UnitKind.OK:
            return count, True
        positions[count], sizes[count] = position + at, size
        count, at = count + 1, at + size
    return count, False


def message_places(data: _Bytes, count: int, file: StoreFile, at: int) -> list[int]:
    """Positions at which a message may begin, by magic code, size and physicalOffset; as `candidates`."""
    count = min(count, len(data) - HEAD_SIZE + 1)
    if count <= 0:
        return []
    places = np.flatnonzero(data[MAGIC_AT : MAGIC_AT + count] == _MAGIC_BYTES[0])
    for i, byte in enumerate(_MAGIC_BYTES[1:3], 1):
        places = places[data[places + MAGIC_AT + i] == byte]
    heads = gather_units(data, places, MESSAGE_HEADS[0])
    fits = (heads["magic"] == MAGIC_V1) | (heads["magic"] == MAGIC_V2)
    fits &= heads["physical_offset"] == places + (file.start + at)
    fits &= (heads["total_size"] >= MESSAGE_SIZE_MIN) & (heads["total_size"] <= file.size - at - places)
    return [at + place for place in places[fits].tolist()]


def _blanks(data: _Bytes, count: int, remaining: int) -> list[int]:
    """Places among the first `count` bytes where a BLANK may begin.

    A BLANK has its magic code, and before it the number of bytes up to the file's end.
    """
    found, raw = [], data.tobytes()
    place = raw.find(_BLANK_BYTES, MAGIC_AT) - MAGIC_AT
    while 0 <= place < count:
        if int.from_bytes(raw[place : place + MAGIC_AT], "big") == remaining - place:
            found.append(place)
        place = raw.find(_BLANK_BYTES, place + MAGIC_AT + 1) - MAGIC_AT
    return found


UNITS = UnitFrame()

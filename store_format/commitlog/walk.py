"""Following the commitlog from unit to unit: every byte ends up as unit, padding, damage or unwritten, and
the sums say so.

A unit's length leads to the next unit, so one loop over windows of a file does nothing but follow lengths;
what it found is then checked many at once, and the first place that fails is looked at alone.

Windows are read, not mapped: as fast (2 GB/s of 350-byte units either way), right for a file that a broker is
appending to, and harmless where a file becomes shorter. After damage the windows begin small and double with
success, so that what a failure wastes is at most twice what went well before it: that, and the allowance for
checksums below, keep the search for the next unit linear in the bytes, whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from os.path import dirname, join
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.resync import search_unit
from store_format.files.read import FileCache, FileView, StoreFile, offset_file_name
from store_format.layouts import MESSAGE_SIZE_MIN
from store_format.message.check import UnitCheck, UnitKind, check_unit, count_valid

_WINDOW_SIZE = 1 << 20  # half a core's level 2 cache; at most 11,523 units
_WINDOW_SIZE_MIN = 4096
_LENGTH = Struct(">i")
# Of a BLANK that is searched for: it is shorter than the message that did not fit. maxMessageSize is 4 MiB,
# and a batch has its heads.
_BLANK_SIZE_MAX = 8 << 20
# Bytes of bodies that may be summed in vain while looking for the next unit: a start, and some for each byte
# walked. Units nested in one another could otherwise make every byte be summed thousands of times.
_CRC_ALLOWANCE = 64 << 20
_CRC_ALLOWANCE_RATE = 4


@dataclass(frozen=True, eq=False, slots=True)
class UnitRun:
    """Units that stand one behind the other and passed every check: positions in the file and sizes, both in
    bytes.

    `buffer` are the bytes that were checked, from `buffer_start` of the file on; None for a unit longer than
    a window.
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
    """Bytes `start` to `stop` of the file that are no unit, and what is wrong at their start.

    `at_tail` says that nothing good follows in the whole log: in a live store a unit that is being written,
    "not yet". A file that is missing between two others is one Damage too; `file` then says where it should
    be.
    """

    file: StoreFile
    start: int
    stop: int
    expected: str
    found: str
    at_tail: bool = False


class EndKind(StrEnum):
    """Why a walk went no further."""

    STOP = "stop"  # the next unit would begin at or behind `stop`
    BLANK = "blank"  # the last file is full, and no other file follows
    UNWRITTEN = "unwritten"  # zeros: the log's end, so far
    TORN = "torn"  # bytes that are no unit
    MISSING = "missing file"  # the file in which the log goes on is not there


@dataclass(frozen=True, slots=True)
class WalkEnd:
    """Where and why a walk ended: the physical offset, the same as file and position, and what was wrong
    there, if anything.
    """

    kind: EndKind
    offset: int
    path: str
    position: int
    expected: str = ""
    found: str = ""


@dataclass(slots=True)
class WalkSums:
    """Bytes by what they were. `unread` are those behind a torn end of a walk that does not look for the next
    unit.

    `unwritten` are those behind an unwritten end; a walk with `resync` has seen that they are zero. `missing`
    are the bytes of missing files, which no file has and `total` does not count.
    """

    units: int = 0  # how many
    unit_bytes: int = 0
    blank_bytes: int = 0
    damage_bytes: int = 0
    unwritten_bytes: int = 0
    unread_bytes: int = 0
    missing_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        """From the start of the walk to the end of the last file it looked at, or to where it stopped."""
        return (
            self.unit_bytes + self.blank_bytes + self.damage_bytes + self.unwritten_bytes + self.unread_bytes
        )


class Walk:
    """An iterator of the runs of units and, with `resync`, of the damage between them. `sums` and `end` tell
    the rest.

    Without `resync` the first thing that is neither unit nor BLANK ends the walk (CommitLog.recoverNormally).
    With it the walk looks for the next place where a whole unit stands that says it stands there and whose
    CRC is right, and goes on over missing files, up to where nothing follows any more; `end` then is where
    the last good unit ends.

    A live broker may be writing at the end: a torn or unwritten end, and damage `at_tail`, mean "not yet"
    there, and a new walk may get further. What was found is always a prefix of the log.

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
    ) -> None:
        self.sums = WalkSums()
        self.end: WalkEnd | None = None  # None until the iterator is exhausted
        self._files = files
        self._cache = cache
        self._start = start
        self._stop = stop
        self._verify_crc = verify_crc
        self._resync = resync
        self._crc_wasted = 0
        self._failure: WalkEnd | None = None  # the first failure with no good unit behind it
        self._blank: WalkEnd | None = None  # set while the last thing seen is a BLANK
        self._begun: int | None = None
        self._steps = self._walk()

    def __iter__(self) -> Iterator[UnitRun | Damage]:
        return self

    def __next__(self) -> UnitRun | Damage:
        return next(self._steps)

    # ---- from file to file ---------------------------------------------------------------------------------

    def _walk(self) -> Iterator[UnitRun | Damage]:
        index = next((i for i, file in enumerate(self._files) if file.start <= self._start < file.stop), None)
        if index is None:
            self.end = self._missing(self._start)
            return
        position = self._start - self._files[index].start
        while True:
            file = self._files[index]
            yield from self._walk_file(index, position)
            if self.end is not None:
                return
            index, position = index + 1, 0
            following = self._files[index] if index < len(self._files) else None
            if self._stop is not None and self._stop <= file.stop:  # in the BLANK
                self.end = WalkEnd(EndKind.STOP, file.stop, file.path, file.size)
                return
            if following is None or (following.start != file.stop and not self._resync):
                self.end = (
                    self._failure or (self._blank if following is None else None) or self._missing(file.stop)
                )
                return
            if following.start != file.stop:
                yield self._gap(file, following)

    def _missing(self, offset: int) -> WalkEnd:
        directory = dirname(self._files[-1].path) if self._files else ""
        path = join(directory, offset_file_name(offset))
        return WalkEnd(
            EndKind.MISSING, offset, path, 0, f"a file that holds physical offset {offset}", "none"
        )

    def _gap(self, file: StoreFile, following: StoreFile) -> Damage:
        missing = StoreFile(
            join(dirname(file.path), offset_file_name(file.stop)), file.stop, following.start - file.stop
        )
        self.sums.missing_bytes += missing.size
        return Damage(
            missing,
            0,
            missing.size,
            f"a file that starts at {file.stop}",
            f"the next file starts at {following.start}",
        )

    # ---- in one file ---------------------------------------------------------------------------------------

    def _walk_file(self, index: int, position: int) -> Iterator[UnitRun | Damage]:
        """Up to the file's end, or until `end` is set."""
        file = self._files[index]
        view = self._cache.open(file.path)
        stop = file.size if self._stop is None else min(file.size, self._stop - file.start)
        window_size = _WINDOW_SIZE
        while position < stop:
            run, whole = self._read_run(view, file, position, stop, window_size)
            check = _OK if run else self._check(view, file, position, verify_crc=self._verify_crc)
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
            if run is None:  # longer than the window, or it became whole just now
                run, whole = UnitRun(file, np.array([position]), np.array([check.size]), None, position), True
            self._count(run)
            yield run
            position = run.stop
            if whole:
                window_size = min(2 * window_size, _WINDOW_SIZE)
        # the last unit may reach behind it: it began before
        if self._stop is not None and self._stop <= file.stop:
            self.end = self._failure or WalkEnd(EndKind.STOP, file.start + position, file.path, position)
            return
        # No broker fills a file without a BLANK, and one that meets such a file takes its end for the log's.
        self._note_failure(
            file, position, UnitCheck(UnitKind.TORN, 0, 0, "a blank record before the file's end", "none")
        )
        if not self._resync:
            self.end = self._failure

    def _read_run(
        self, view: FileView, file: StoreFile, position: int, stop: int, window_size: int
    ) -> tuple[UnitRun | None, bool]:
        """The units that lie wholly in the next window, up to the first bad one, and whether there was no bad
        one.
        """
        data = view.read(position, min(window_size, file.size - position))
        positions, follower = _follow(data, min(stop - position, len(data)))
        if positions and follower > len(data):
            follower = positions.pop()  # reaches into the next window, or nowhere
        if not positions:
            return None, False
        starts = np.array(positions, np.int64)
        sizes = np.diff(starts, append=follower)
        buffer = np.frombuffer(data, np.uint8)
        count = count_valid(buffer, starts, sizes, file.start + position, verify_crc=self._verify_crc)
        if not count:
            return None, False
        return UnitRun(file, starts[:count] + position, sizes[:count], buffer, position), count == len(starts)

    def _count(self, run: UnitRun) -> None:
        self.sums.units += len(run.positions)
        self.sums.unit_bytes += run.stop - int(run.positions[0])
        self._failure = self._blank = None

    # ---- when something is wrong ---------------------------------------------------------------------------

    def _check(self, view: FileView, file: StoreFile, position: int, *, verify_crc: bool) -> UnitCheck:
        """What stands at the position. With `resync`, sums are taken only as long as the allowance for vain
        ones lasts.
        """
        remaining, offset = file.size - position, file.start + position
        check = check_unit(
            view, position, remaining, physical_offset=offset, verify_crc=verify_crc and not self._resync
        )
        if check.kind is not UnitKind.OK or not verify_crc or not self._resync:
            return check
        allowed = _CRC_ALLOWANCE + _CRC_ALLOWANCE_RATE * self.sums.total_bytes - self._crc_wasted
        if check.size > allowed:
            return UnitCheck(
                UnitKind.TORN,
                0,
                0,
                "a unit that can be checked",
                "too many with a wrong CRC before it to look at its own",
            )
        summed = check_unit(view, position, remaining, physical_offset=offset, verify_crc=True)
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
        """The damage that begins at `position`, and where to go on; None when there is nothing behind it in
        the whole log.
        """
        file = self._files[index]
        following, zeros_from = search_unit(
            view, file, position, stop, partial(self._goes_on_at, view, index)
        )
        at_tail = following is None and index >= self._last_begun()
        # A broker that writes now wrote here before it wrote where we have just looked.
        if self._check(view, file, position, verify_crc=self._verify_crc).kind in (
            UnitKind.OK,
            UnitKind.BLANK,
        ):
            return None, position
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
        """Whether a unit stands there, or the BLANK of a file that others follow.

        What is behind that BLANK was written before the file was full: remains that a recovery has cut off.
        """
        file = self._files[index]
        if self._is_unit(view, file, position):
            return True
        is_blank = self._check(view, file, position, verify_crc=False).kind is UnitKind.BLANK
        return is_blank and file.size - position <= _BLANK_SIZE_MAX and index < self._last_begun()

    def _last_begun(self) -> int:
        """The index of the last file that something was written to. Files behind it were only made in
        advance.
        """
        if self._begun is None:
            indices = range(len(self._files) - 1, -1, -1)
            self._begun = next((i for i in indices if self._is_begun(self._files[i])), 0)
        return self._begun

    def _is_begun(self, file: StoreFile) -> bool:
        """Zeros at a file's head say little: so are pages that a power loss kept from the disk. Holes are not
        read.
        """
        view = self._cache.open(file.path)
        return (
            any(view.read(0, 8))
            or search_unit(view, file, 0, file.size, partial(self._is_unit, view, file))[0] is not None
        )

    def _is_unit(self, view: FileView, file: StoreFile, position: int) -> bool:
        return self._check(view, file, position, verify_crc=True).kind is UnitKind.OK


_OK = UnitCheck(UnitKind.OK)


def _follow(data: bytes, stop: int) -> tuple[list[int], int]:
    """Starts of units from byte 0 on, as the lengths say, while they lie before `stop`; and where the next
    one would be.
    """
    positions: list[int] = []
    append, unpack, size_min = positions.append, _LENGTH.unpack_from, MESSAGE_SIZE_MIN
    position, stop = 0, min(stop, len(data) - _LENGTH.size + 1)
    while position < stop:
        (size,) = unpack(data, position)
        if size < size_min:
            break
        append(position)
        position += size
    return positions, position

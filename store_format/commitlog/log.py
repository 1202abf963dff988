"""The commitlog: its files, from all its directories, as one sequence of bytes with physical offsets.

`CommitLog` finds the file of an offset and reads there; `walk.py` walks from unit to unit.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.dledger import ENTRIES, with_heads
from store_format.commitlog.walk import UNITS, Damage, UnitFrame, UnitRun, Walk
from store_format.errors import (
    CorruptStoreError,
    OffsetOutOfRangeError,
    StoreError,
    StorePermissionError,
    StoreUnreachableError,
    TruncatedRecordError,
)
from store_format.files import paths
from store_format.files.client import StoredObject
from store_format.files.paths import StoreFile
from store_format.files.read import FileCache, files_at
from store_format.files.view import Buffers, FileView, FileWindow
from store_format.layouts import (
    CRC_PROPERTY_NAME,
    CRC_PROPERTY_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE_SEPARATOR,
    OFFSET_MAX,
)
from store_format.message.locate import Identity, UnitRefs, locate, stored_offsets, stored_sizes
from store_format.message.single import HEAD_SIZE_MAX, UnitKind, check_unit, read_head

_PART_SIZE = 8 << 20
_LIKELY_SIZE_MAX = 32 << 10
_LONG_SIZE = 4 << 20
STRAY_ADVICE = (
    "Move this file out of the store before a broker starts: a broker refuses to start, or ends its log there"
)
BLOCK_SIZE = 1 << 16  # in which the log's last bytes are searched
_LOOK_SIZE = 1 << 12  # so many zeros: nothing was written there
_NEAR_BLOCKS = 16  # that are looked at together
_CRC_PREFIX = CRC_PROPERTY_NAME + bytes([NAME_VALUE_SEPARATOR])
_WORD_SIZE = 8  # total size and magic code of a message, never zero

_TAIL_SIZE = 3  # of a message without properties: the last byte of its topic, and their length, two zeros
_FOLLOWING_SIZE = 8  # total size and magic code of what follows a unit
_Ints = NDArray[np.int64]


def frame_of(file: StoreFile) -> UnitFrame:
    """How messages lie in a commitlog file: one behind the other, or each behind a head."""
    return ENTRIES if file.head_size else UNITS


@dataclass(frozen=True, eq=False, slots=True)
class CommitLog:
    """The files of a commitlog by start offset, as they were when `open` listed them.

    `findings` are problems of the files that leave the others readable: gaps between files, which a broker
    only logs (MappedFileQueue.checkSelf), and files that are too short, as in an incomplete copy. `unusable`
    are those of the findings that have the name of a file and no byte of the log, so that the log is read as
    if they were missing. A writer refuses them, as a broker does. Some are no files of the log (`strays`).
    """

    files: tuple[StoreFile, ...]
    findings: tuple[CorruptStoreError, ...]
    _cache: FileCache
    _starts: NDArray[np.int64]
    _stops: NDArray[np.int64]
    _directories: tuple[str, ...]
    whole_size: int = 0  # the length of a whole file, if no file of the log has it
    unusable: tuple[CorruptStoreError, ...] = ()
    begin: int = OFFSET_MAX  # where the log begins with a file that cannot be used, if it does
    growing_files: tuple[StoreFile, ...] | None = None  # the last files, if they are left out; see `open`

    @staticmethod
    def open(directories: Sequence[str], cache: FileCache, *, holds_last: bool = False) -> CommitLog:
        """Lists the directories; their union is the log (MultiPathMappedFileQueue.load, spec 1.3).

        The file size is the size that most files have. An empty last file is left out. Another file that is
        too short is a finding and is read up to its end, though a broker would not start with it; of an empty
        one, of what is not a file, and of `strays`, nothing is read. Raises CorruptStoreError for two files
        with one name that both have bytes, for files that are too long or overlap, where a broker would read
        wrong bytes, and if no file can be used.

        With `holds_last`, the log ends before the file that a broker writes: the last one with a message. It
        and the empty files that a broker has allocated behind it are `growing_files`.
        """
        irregular: dict[str, CorruptStoreError] = {}
        found: list[StoreFile] = []
        for each in directories:
            listed = files_at(each).store_files(
                each, irregular=lambda error: irregular.update({error.file: error})
            )
            found += listed if paths.base_name(each) == "commitlog" else with_heads(each, listed, cache)
        found += [StoreFile(path, int(paths.base_name(path)), 0) for path in irregular]
        found.sort(key=lambda file: file.start)
        stray = strays(found, cache)
        found = [file for file in found if file.path not in stray]
        for file, following in pairwise(found):
            if file.start == following.start:
                raise CorruptStoreError(
                    following.path,
                    0,
                    f"one file that starts at {file.start}",
                    f"another one, {file.path}. Move one of the two away",
                )
        if found and found[-1].size == 0 and found[-1].path not in irregular:
            found.pop()
        files = [file for file in found if file.size]
        whole = f"a file of {_usual_size(files)} bytes, like the others"
        unusable = [
            *(
                CorruptStoreError(each.file, 0, each.expected, f"{each.found}. {STRAY_ADVICE}")
                for each in stray.values()
            ),
            *(
                irregular.get(file.path) or CorruptStoreError(file.path, 0, whole, "0 bytes")
                for file in found
                if not file.size
            ),
        ]
        if unusable and not files:
            raise unusable[0]
        growing = tuple(files[_last_begun(files, cache) :]) if holds_last else None
        files = files[: len(files) - len(growing or ())]
        return CommitLog(
            tuple(files),
            tuple(unusable + _size_findings(files) + _gaps(files, _usual_size(files))),
            cache,
            np.array([file.start for file in files], np.int64),
            np.array([file.stop for file in files], np.int64),
            tuple(directories),
            unusable=tuple(unusable),
            begin=found[0].start if found else OFFSET_MAX,
            growing_files=growing,
        )

    @staticmethod
    def of_files(files: Sequence[StoreFile], cache: FileCache) -> CommitLog:
        """The log of files that were listed before, which ascend: nothing is looked at."""
        edges = np.array([(file.start, file.stop) for file in files], np.int64).reshape(-1, 2)
        return CommitLog(tuple(files), (), cache, edges[:, 0], edges[:, 1], ())

    def relisted(self, cache: FileCache | None = None) -> CommitLog:
        """The log with the files that exist now: lists the directories again.

        Open files stay open, unless `cache` is another one.
        """
        for directory in self._directories:
            files_at(directory).look_again(directory)
        log = CommitLog.open(
            self._directories,
            self._cache if cache is None else cache,
            holds_last=self.growing_files is not None,
        )
        return replace(log, whole_size=self.whole_size)

    def apart(self) -> CommitLog:
        """A copy of the log that opens its own files, for another thread."""
        return replace(self, _cache=FileCache())

    @property
    def cache(self) -> FileCache:
        """The open files that every listing of this log shares."""
        return self._cache

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of the files."""
        return self._directories

    @property
    def held_bytes(self) -> int:
        """Bytes of the files that `holds_last` leaves out, or would leave out: about, as files have their
        full length from the start.
        """
        growing = (
            self.files[_last_begun(self.files, self._cache) :]
            if self.growing_files is None
            else self.growing_files
        )
        return sum(file.size for file in growing)

    @property
    def file_size(self) -> int:
        """Bytes of each whole file; 0 without files."""
        return max(self.whole_size, *(file.size for file in self.files)) if self.files else 0

    @property
    def stop(self) -> int:
        """The physical offset behind the last file; 0 without files."""
        return self.files[-1].stop if self.files else 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    @property
    def min_offset(self) -> int:
        """The physical offset where the first file begins, also one that cannot be used; 0 without files."""
        return min(self.begin, self.files[0].start) if self.files else 0

    @property
    def has_heads(self) -> bool:
        """Whether files are of a DLedger commitlog, whose messages have heads."""
        return any(file.head_size for file in self.files)

    @property
    def has_gaps(self) -> bool:
        """Whether files are missing or cannot be used before the last one."""
        return bool(self.files) and self.min_offset + self.size_bytes != self.stop

    def file_index(self, physical_offset: NDArray[np.int64]) -> NDArray[np.int64]:
        """The index in `files` of the file that holds each offset; -1 outside of all files."""
        index = np.searchsorted(self._starts, physical_offset, side="right") - 1
        if not len(self.files):
            return index
        return np.where((index >= 0) & (physical_offset < self._stops[index]), index, -1)

    def file_at(self, physical_offset: int) -> StoreFile | None:
        """The file that holds the offset; None outside of all files."""
        index = bisect_right(self.files, physical_offset, key=attrgetter("start")) - 1
        file = self.files[index] if index >= 0 else None
        return file if file is not None and physical_offset < file.stop else None

    def view(self, file: StoreFile) -> FileView:
        """The file, open. Raises StoreNotFoundError when it is gone, FileReplacedError for another file."""
        return self._cache.view(file)

    def newest_object(self) -> StoredObject | None:
        """The object of the last file with its mark, by which a later version is known; None on a disk."""
        last = self.files[-1].stored if self.files else None
        return None if last is None else replace(last, mark=self.view(self.files[-1]).mark)

    def read(self, physical_offset: int, length: int) -> bytes:
        """Exactly `length` bytes of one file.

        Raises OffsetOutOfRangeError outside of the log and TruncatedRecordError where the file ends before
        the length does.
        """
        file = self.file_at(physical_offset)
        if file is None:
            raise OffsetOutOfRangeError(
                f"physical offset {physical_offset} is in no commitlog file; {self._range()}"
            )
        position = physical_offset - file.start
        left = file.size - position
        if not 0 <= length <= left:
            raise TruncatedRecordError(
                file.path, position, f"{length} bytes", f"{left} bytes up to the file's end"
            )
        data = self.view(file).read(position, length)
        if len(data) < length:
            raise TruncatedRecordError(
                file.path, position, f"{length} bytes", f"{len(data)} bytes: the file became shorter"
            )
        return data

    def store_timestamp_at(self, physical_offset: int, claim: tuple[int, int] | None = None) -> int:
        """The store timestamp (ms) of the unit at the offset, by one read of its head; -1 without a unit, and
        where its queue id and queue offset are not those of the `claim`.

        CommitLog.pickupStoreTimestamp; we also check magic and physicalOffset, which are in the same read. A
        file that was deleted or cannot be read gives -1 too. Raises StorePermissionError, and the errors of
        object storage.
        """
        file = self.file_at(physical_offset)
        if file is None:
            return -1
        try:
            head = read_head(self.view(file).read(physical_offset - file.start, HEAD_SIZE_MAX))
        except (StorePermissionError, StoreUnreachableError):
            raise  # A search that took -1 for the time of this message would end at another place.
        except (StoreError, OSError):
            if file.is_remote:
                raise
            return -1
        if (
            head is None
            or head.magic not in (MAGIC_V1, MAGIC_V2)
            or claim not in (None, (head.queue_id, head.queue_offset))
        ):
            return -1
        return head.store_timestamp if head.physical_offset == physical_offset else -1

    def message_offset(self, physical_offset: int) -> int:
        """The physical offset of the message whose record begins, or will begin, at `physical_offset`: behind
        the head of its entry, if the file's messages have heads.
        """
        file = self.file_at(physical_offset)
        if file is None or not file.head_size:
            return physical_offset
        return file.start + frame_of(file).message_at(self.view(file), physical_offset - file.start)

    def queue_offset_at(self, physical_offset: int) -> int:
        """The queue offset of the unit at the offset, by one read of its head; -1 without a unit."""
        file = self.file_at(physical_offset)
        if file is None:
            return -1
        head = read_head(self.view(file).read(physical_offset - file.start, HEAD_SIZE_MAX))
        return head.queue_offset if head is not None and head.physical_offset == physical_offset else -1

    def has_message_at(self, physical_offset: int) -> bool:
        """Whether a message begins at the physical offset; its CRC is not checked."""
        file = self.file_at(physical_offset)
        if file is None:
            return False
        position = physical_offset - file.start
        check = check_unit(
            self.view(file),
            position,
            file.size - position,
            physical_offset=physical_offset,
            verify_crc=False,
        )
        return check.kind is UnitKind.OK

    def has_crc_property_before(self, offset: int) -> bool:
        """Whether the unit that ends at the physical offset ends in the CRC property.

        False behind the BLANK of a full file, which hides the property.
        """
        try:
            return self.read(offset - CRC_PROPERTY_SIZE, len(_CRC_PREFIX)) == _CRC_PREFIX
        except StoreError:  # The file was deleted, or the offset is the first of a file.
            return False

    def walk(
        self, start: int, stop: int | None = None, *, verify_crc: bool = False, resync: bool = False
    ) -> Walk:
        """The units from the physical offset `start`, where a unit must begin, that begin before `stop`.

        See `Walk`. Raises OffsetOutOfRangeError when `start` lies before the first file.
        """
        if self.files and start < self.min_offset:
            raise OffsetOutOfRangeError(
                f"physical offset {start} is no longer in the commitlog; {self._range()}"
            )
        return Walk(
            self.files, self._cache, start, stop, verify_crc=verify_crc, resync=resync, frame_of=frame_of
        )

    def runs(self, start: int, stop: int | None = None, *, verify_crc: bool = False) -> Iterator[UnitRun]:
        """Yields the messages that begin in [start, stop), without the damage between them.

        Nothing for an empty range, and behind the last file.
        """
        if start < min(self.stop, self.stop if stop is None else stop):
            for step in self.walk(start, stop, verify_crc=verify_crc, resync=True):
                if not isinstance(step, Damage):
                    yield step

    def damage(self, start: int, stop: int) -> list[Damage]:
        """The damage in [start, stop), where a message begins at `start`; bodies are checked, too."""
        steps = self.walk(start, stop, verify_crc=True, resync=True)
        return [step for step in steps if isinstance(step, Damage)]

    def refs_of(self, run: UnitRun) -> UnitRefs:
        """Returns references to the units of a run, over the bytes that the walk checked."""
        buffer, start = run.buffer, run.buffer_start
        if buffer is None:  # one unit longer than a window
            start = int(run.positions[0])
            buffer = self.view(run.file).window(start, run.stop)
        return UnitRefs(run.file, buffer, run.positions - start, run.physical_offsets, run.sizes, None)

    def unit_windows(
        self, file: StoreFile, parts: Iterable[tuple[_Ints, _Ints]], buffers: Buffers | None = None
    ) -> Iterator[FileWindow]:
        """Yields a window of `FileView.windows` for each (physical offsets, sizes) of units of one file.

        All offsets must be in the file. Sizes may be wrong: of a long unit that stores another size only the
        head is read, and no unit is read behind the file's end. Raises FileReplacedError when the file became
        shorter, and StoreNotFoundError when it is gone.
        """
        view = self.view(file)
        return view.windows((_ranges(view, file, *part) for part in parts), buffers)

    def refs_at(
        self, file: StoreFile, physical_offsets: _Ints, identity: Identity | None = None
    ) -> Iterator[tuple[slice, UnitRefs]]:
        """Yields (rows of `physical_offsets`, references to these units), about 8 MiB of units at a time.

        All offsets must be in the file. Each unit has the size that it stores. Raises as `unit_windows`.
        """
        likely = _likely_sizes(physical_offsets)
        for start, stop in cuts(likely):
            offsets, sizes = physical_offsets[start:stop], likely[start:stop]
            window = next(self.unit_windows(file, [(offsets, sizes)]))
            stored = stored_sizes(window.data, window.positions)
            longer = (stored > sizes) & (stored_offsets(window.data, window.positions) == offsets)
            sizes = np.where(longer, stored, sizes)
            for low, high in cuts(sizes) if longer.any() else ((0, stop - start),):
                if longer.any():
                    window = next(self.unit_windows(file, [(offsets[low:high], sizes[low:high])]))
                rows = slice(start + low, start + high)
                who = None if identity is None else identity.select(rows)
                places = offsets[low:high], stored[low:high]
                yield rows, UnitRefs(file, window.data, window.positions, *places, None, who)

    def is_unwritten(self, offset: int) -> bool:
        """Whether nothing is written at the physical offset and behind it, as far as a few reads show.

        The first bytes of a unit or of a BLANK are never all zero. But a power loss may have left whole pages
        of zeros, with messages behind them.
        """
        file = self.file_at(offset)
        if file is None:
            return False
        try:
            head = self.read(offset, min(BLOCK_SIZE, file.stop - offset))
        except StoreError:
            return False
        return not head.strip(b"\0") and written_stop(self) <= offset + BLOCK_SIZE

    def written_refs(self, run: UnitRun) -> UnitRefs:
        """The units of a run of a live store, read again, without a last one that is being appended.

        No checksum covers properties, so that a message that is being appended can look valid. Bytes after
        the message, or a last byte that is not zero, show that it is complete, and so are the bytes read
        after that: a broker writes in order.
        """
        view, start = self.view(run.file), int(run.positions[0])
        tail = view.read(run.stop - _TAIL_SIZE, _TAIL_SIZE + _FOLLOWING_SIZE)
        buffer = view.window(start, run.stop)
        refs = UnitRefs(run.file, buffer, run.positions - start, run.physical_offsets, run.sizes, None)
        if any(tail[_TAIL_SIZE:]):
            return refs
        units, _ = locate(refs.select(slice(len(refs) - 1, None)), verify_crc=True)
        # Without properties their length, two zeros, is behind the topic.
        last = _TAIL_SIZE - 1 if len(units) and units.parts.properties_length[0] else 0
        return refs if len(units) and any(tail[last : last + 1]) else refs.select(slice(0, len(refs) - 1))

    def _range(self) -> str:
        return (
            f"its files hold {self.min_offset} to {self.files[-1].stop}" if self.files else "it has no files"
        )


# ---- where the last bytes are ------------------------------------------------------------------------------


def written_stop(log: CommitLog, queued: int = -1) -> int:
    """About where the log's last bytes are: files have their full length, with zeros after the last bytes.

    The search begins at `queued`, if a message is there: the physical offset to which a consume queue points.
    """
    for file in reversed(log.files):
        view, high = log.view(file), -(-file.size // BLOCK_SIZE)

        def is_written(block: int, view: FileView = view) -> bool:
            return any(view.read(block * BLOCK_SIZE, _LOOK_SIZE))

        low, step = 0, high
        if file.start <= queued < file.stop and any(view.read(queued - file.start, _WORD_SIZE)):
            low, step = _near(view, queued - file.start)
        elif not is_written(0):
            continue
        while low + step < high and is_written(low + step):
            low, step = low + step, 2 * step
        high = min(low + step, high)
        while low + 1 < high:
            middle = (low + high) // 2
            if is_written(middle):
                low = middle
            else:
                high = middle
        return min(file.start + high * BLOCK_SIZE, file.stop)
    return log.min_offset


def _near(view: FileView, position: int) -> tuple[int, int]:
    """(the last block with a byte of a few, from that of a position on; how many blocks behind it may have a
    byte: one that has none).
    """
    first = position // BLOCK_SIZE
    stop = min(first + _NEAR_BLOCKS, -(-view.size // BLOCK_SIZE))
    last = max(
        block
        for block in range(first, stop)
        if block == first or any(view.read(block * BLOCK_SIZE, _LOOK_SIZE))
    )
    return last, 1 if last + 1 < stop else _NEAR_BLOCKS


def expect_end(log: CommitLog, queued: int) -> None:
    """Says that the log's end is looked for from a physical offset on: one request of object storage has the
    bytes of `written_stop`, and those before them, where a message may begin.
    """
    file = log.file_at(queued)
    if file is not None:
        first = (queued - file.start) // BLOCK_SIZE - 1
        log.view(file).expect(first * BLOCK_SIZE, (first + _NEAR_BLOCKS + 3) * BLOCK_SIZE)


# ---- files of the directories that are not of the log ------------------------------------------------------


def open_log(directories: tuple[str, ...]) -> CommitLog:
    """The commitlog of a store that is to be changed. Raises for a file that a broker refuses as well."""
    log = CommitLog.open(directories, FileCache())
    if log.unusable:
        raise log.unusable[0]
    return log


def strays(files: Sequence[StoreFile], cache: FileCache) -> dict[str, CorruptStoreError]:
    """Returns what is wrong with the files, sorted by start, that are no files of the log, by their paths.

    The names of a log's files are multiples of their length (MappedFileQueue.getLastMappedFile). A file of
    another name is none of them, unless it begins with a message of that physical offset. Of two files with
    one name, in two directories, the one without a byte other than zero is none. A broker refuses the first
    if its length is another one, too (doLoad), and takes the second for the end of the log.
    """
    found: dict[str, CorruptStoreError] = {}
    size = _usual_size([file for file in files if file.size])
    for file in files:
        if file.start > OFFSET_MAX - file.size:
            expected, name = "a name below 2^63 - 1, less the file's size", str(file.start)
        elif size and file.start % size and not _begins_with_own(file, cache):
            expected = f"a name that is a multiple of {size}, the length of the files"
            name = f"{file.start}, and no message of that physical offset"
        else:
            continue
        found[file.path] = CorruptStoreError(file.path, 0, expected, name)
    left = [file for file in files if file.path not in found]
    for start in {file.start for file, following in pairwise(left) if file.start == following.start}:
        same = [file for file in left if file.start == start]
        blank = [file for file in same if first_byte(file, cache) is None]
        used = next((file for file in same if file not in blank), same[0])
        for file in blank:
            if file is not used:
                expected = f"one file that starts at {start}"
                twin = f"another one, {used.path}; this one is blank"
                found[file.path] = CorruptStoreError(file.path, 0, expected, twin)
    return found


def _begins_with_own(file: StoreFile, cache: FileCache) -> bool:
    view = cache.view(file)
    at = frame_of(file).message_at(view, 0) if file.size else 0
    head = read_head(view.read(at, HEAD_SIZE_MAX)) if file.size else None
    return head is not None and head.magic in (MAGIC_V1, MAGIC_V2) and head.physical_offset == file.start + at


def first_byte(file: StoreFile, cache: FileCache) -> int | None:
    """The position of the first byte that is not zero; None in a file of zeros."""
    for start in range(0, file.size, _LONG_SIZE):
        block = np.frombuffer(cache.view(file).read(start, min(_LONG_SIZE, file.size - start)), np.uint8)
        if block.any():
            return start + int((block != 0).argmax())
    return None


# ---- parts of a file ---------------------------------------------------------------------------------------


def cuts(sizes: _Ints) -> Iterator[tuple[int, int]]:
    """Yields ranges of units of about 8 MiB together, of at least one unit."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + _PART_SIZE, side="right"))
        yield start, max(stop, start + 1)
        start = max(stop, start + 1)


def _likely_sizes(physical_offsets: _Ints) -> _Ints:
    """How many bytes to read of units of unknown size: up to the next unit, at most 32 KiB."""
    distance = np.append(physical_offsets[1:], physical_offsets[-1:]) - physical_offsets
    return np.clip(np.where(distance > 0, distance, _LIKELY_SIZE_MAX), HEAD_SIZE_MAX, _LIKELY_SIZE_MAX)


def _ranges(view: FileView, file: StoreFile, physical_offsets: _Ints, sizes: _Ints) -> tuple[_Ints, _Ints]:
    """(starts, stops) of the bytes to read of units of these sizes, which may be wrong."""
    starts = physical_offsets - file.start
    if not len(sizes) or sizes.max() > _LONG_SIZE or sizes.min() < 1:
        sizes = np.maximum(sizes, 1)
        for i in np.flatnonzero(sizes > _LONG_SIZE).tolist():
            if int.from_bytes(view.read(int(starts[i]), 4), "big") != sizes[i]:
                sizes[i] = HEAD_SIZE_MAX
    stops = starts + sizes
    return starts, stops if len(stops) and stops.max() <= file.size else np.minimum(stops, file.size)


def _last_begun(files: Sequence[StoreFile], cache: FileCache) -> int:
    """The index of the last file in which anything is written; 0 without one."""
    for index in range(len(files) - 1, 0, -1):
        if any(cache.view(files[index]).read(0, HEAD_SIZE_MAX)[:_WORD_SIZE]):
            return index
    return 0


def _usual_size(files: Sequence[StoreFile]) -> int:
    """The size of a whole file: the most frequent one, of equally frequent ones the largest."""
    counts = Counter(file.size for file in files)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _size_findings(files: Sequence[StoreFile]) -> list[CorruptStoreError]:
    """A finding for each file that is too short. Raises for one that is too long."""
    size = _usual_size(files)
    findings: list[CorruptStoreError] = []
    for file in files:
        expected, found = f"a file of {size} bytes, like the others", f"{file.size} bytes"
        if file.size > size:
            raise CorruptStoreError(file.path, size, expected, found)
        if file.size < size:
            findings.append(TruncatedRecordError(file.path, file.size, expected, found))
    return findings


def _gaps(files: Sequence[StoreFile], size: int) -> list[CorruptStoreError]:
    """A finding for each gap between two files. Raises CorruptStoreError for an overlap."""
    findings = []
    for file, following in pairwise(files):
        stop = file.start + size
        finding = CorruptStoreError(
            following.path,
            0,
            f"{StoreFile.name_at(stop)} as the file after {StoreFile.name_at(file.start)}",
            f"{following.start}",
        )
        if following.start < stop:
            raise finding
        if following.start > stop:
            findings.append(finding)
    return findings

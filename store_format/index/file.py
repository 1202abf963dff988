"""One index file: a hash table from `topic#key` to commitlog offsets, chained newest first (IndexFile,
IndexHeader, spec 4).

The file has only a 31-bit hash of the key. So every result is a candidate; the topic and the keys of its
message decide.

The file does not store how many hash slots and units it has: its units must prove both numbers. In a file of
S bytes every number H of slots is possible for which (S - 40 - 4H) is divisible by 20. With the right H the
first unit has the header's begin offset, the last unit has its end offset, and the chains of the first units
are complete. With a wrong H the units are shifted by a multiple of 20 bytes, and their slots do not point to
them.

A file with a broker's default sizes has 420 MB and is never read whole. Its header, the first slots, the
first and the last units, and the units of a few slots prove its numbers. A search reads one slot, and the
units of its chain.

`wrong_links` compares all links in one pass, without following a chain: a link to a later unit would lead a
broker in a circle, and a link that skips units hides their messages.
"""

from __future__ import annotations

import datetime
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.errors import OptionError
from store_format.files.paths import StoreFile
from store_format.files.read import files_at
from store_format.files.view import FileView
from store_format.files.write import WritableFile
from store_format.java.text import java_hash, java_hash_many
from store_format.layouts import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, as_struct, unpack

_NAME = re.compile(r"[0-9]{17}\Z", re.ASCII)
_HEADER = as_struct(INDEX_HEADER)
_CHUNK_UNITS = 1 << 16
_UNITS_PER_LOOK = 204  # about 4 KiB

_PAGE = 4096
_GAP_PAGES_MAX = 16  # unchanged pages between two changed ones that are written with them

_HEADER_WORDS = INDEX_HEADER.itemsize // 4
_UNIT_WORDS = INDEX_UNIT.itemsize // 4
_CANDIDATES_PER_STEP = 1 << 18  # a file of 400 MB has 20 million; each step reads about 10 MB
_SURVIVORS_MAX = 64  # a broker's file leaves one; more is a file made to waste time
_PROOF_UNITS = 4096  # the first units, which are checked against each other
_PROOF_SLOTS = 4  # slots that must lead to units of theirs
_MANY_SLOTS = 1 << 16  # of at least so many, a wrong number of slots is not right for even one slot by chance
_FIRST_SLOTS = (1 << 14) - _HEADER_WORDS  # with the header 64 KiB

_CHUNK = 1 << 16  # units or slots
_PREV_AT, _SLOT_COUNT_AT = 16, 32  # in a unit, and in the header

_Item = TypeVar("_Item")
_Look = TypeVar("_Look")


# ---- keys, and the names of files --------------------------------------------------------------------------


def index_key(topic: str, key: str, index_type: str | None = None) -> str:
    """The text whose hash is stored (IndexService.buildKey). Type "T" is for tags, indexed from 5.4 on.

    >>> index_key("Orders", "1001"), index_key("Orders", "TagA", "T")
    ('Orders#1001', 'Orders#T#TagA')
    """
    return f"{topic}#T#{key}" if index_type == "T" else f"{topic}#{key}"


def key_hash(text: str) -> int:
    """|Java hash|, and 0 for -2^31, which has no absolute value in 32 bits (IndexFile.indexKeyHashMethod)."""
    value = abs(java_hash(text))
    return 0 if value == 1 << 31 else value


def key_hash_many(texts: pa.Array) -> NDArray[np.int32]:
    """`key_hash` of every element."""
    return np.maximum(np.abs(java_hash_many(texts)), np.int32(0))  # numpy too leaves -2^31 as it is


def index_file_name(timestamp: int, zone: datetime.tzinfo) -> str:
    """The name that a broker in `zone` gives at `timestamp` (ms) (UtilAll.timeMillisToHumanString).

    >>> index_file_name(1700000000123, datetime.timezone.utc)
    '20231114221320123'
    """
    moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=timestamp)
    local = moment.astimezone(zone)
    return f"{local:%Y%m%d%H%M%S}{local.microsecond // 1000:03d}"


def list_index_files(directory: str) -> list[StoreFile]:
    """The index files by name, in the broker's order (IndexService.load); [] without the directory.

    Names are 17 digits of local time, so after a change of the clock a later file can have a lower name.
    Entries with other names are skipped. Raises CorruptStoreError for a link.
    """
    return files_at(directory).store_files(directory, _NAME)


# ---- a file ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The header (IndexHeader.load). `index_count` is the number of the next unit, 1 in an empty file."""

    begin_timestamp: int
    end_timestamp: int
    begin_physical_offset: int
    end_physical_offset: int
    hash_slot_count: int
    index_count: int

    def to_bytes(self) -> bytes:
        return _HEADER.pack(*astuple(self))


@dataclass(frozen=True, slots=True)
class IndexGeometry:
    """MessageStoreConfig.maxHashSlotNum and maxIndexNum. Unit 0 is unused: a file has index_num - 1 keys."""

    hash_slot_num: int
    index_num: int

    @property
    def units_start(self) -> int:
        """The byte at which unit 0 begins."""
        return INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * self.hash_slot_num

    @property
    def file_size(self) -> int:
        return self.units_start + INDEX_UNIT.itemsize * self.index_num


DEFAULT_GEOMETRY = IndexGeometry(5_000_000, 20_000_000)


@dataclass(frozen=True, eq=False, slots=True)
class IndexSlots:
    """The slots in memory: changed there by a batch after the other, and written once.

    `head` is the file up to its units, the header included; `pages` is 1 for a page of it that changed. The
    pages of a file that lies on disk are mapped as copies on write, so that a small commit reads and writes
    only the pages of its own slots. A write through a shared memory map would kill the process when the disk
    is full.
    """

    head: NDArray[np.uint8]
    pages: NDArray[np.uint8]

    @classmethod
    def empty(cls, geometry: IndexGeometry) -> IndexSlots:
        return cls._of(np.zeros(geometry.units_start, np.uint8))

    @classmethod
    def read(cls, view: FileView, geometry: IndexGeometry) -> IndexSlots:
        """The slots of a file; those that a short file lacks are empty."""
        size = geometry.units_start
        if view.size >= size:
            return cls._of(view.copy_on_write(size))
        slots = cls.empty(geometry)
        view.read_into(0, slots.head[: view.size - view.size % INDEX_SLOT.itemsize])
        return slots

    @classmethod
    def _of(cls, head: NDArray[np.uint8]) -> IndexSlots:
        return cls(head, np.zeros(-(-len(head) // _PAGE), np.uint8))

    @property
    def values(self) -> NDArray[np.int32]:
        """The slots as INDEX_SLOT, to be changed together with `mark`."""
        return self.head[INDEX_HEADER.itemsize :].view(INDEX_SLOT)

    def mark(self, numbers: NDArray[np.int64] | Sequence[int]) -> None:
        """Notes that the slots of these numbers have changed."""
        self.pages[(np.asarray(numbers, np.int64) * INDEX_SLOT.itemsize + INDEX_HEADER.itemsize) // _PAGE] = 1

    def write(self, file: WritableFile) -> None:
        """Writes the changed pages, without the header."""
        changed = np.flatnonzero(self.pages)
        cuts = np.flatnonzero(np.diff(changed) > _GAP_PAGES_MAX) + 1
        for run in np.split(changed, cuts) if len(changed) else ():
            start = max(int(run[0]) * _PAGE, INDEX_HEADER.itemsize)
            file.write(start, self.head[start : (int(run[-1]) + 1) * _PAGE])
        self.pages[:] = 0


class IndexFile:
    """An index file open for reading. `geometry` is None if no option sets it and the units do not prove it.

    Use it as a context manager; otherwise garbage collection closes it.
    """

    def __init__(self, view: FileView, geometry: IndexGeometry | None) -> None:
        self.path = view.path
        self.size = view.size
        self.geometry = geometry
        self._view = view

    @classmethod
    def open(
        cls,
        path: str,
        *,
        hash_slot_num: int | None = None,
        index_num: int | None = None,
        likely: IndexGeometry = DEFAULT_GEOMETRY,
        is_wanted: Callable[[IndexHeader], bool] | None = None,
    ) -> IndexFile:
        """Opens the file and finds its geometry.

        One given number gives the other by the file's size. Without numbers the units must prove the
        geometry; `likely` is tried first. A file whose header is not wanted gets no geometry. Raises
        OptionError when given numbers do not fit the size, or when the units prove others, and
        FileNotFoundError.
        """
        view = files_at(path).view(path)
        file = cls(view, None)
        if is_wanted is None or is_wanted(file.header()):
            try:
                file.geometry = _find_geometry(view, hash_slot_num, index_num, likely)
            except OptionError:
                view.close()
                raise
        return file

    def header(self) -> IndexHeader:
        """Reads the header again at each call: a broker may be writing. A short one is filled with zeros."""
        header = IndexHeader(*_HEADER.unpack(self._view.read(0, _HEADER.size).ljust(_HEADER.size, b"\0")))
        return header if header.index_count > 0 else replace(header, index_count=1)

    def units(self, start: int = 1, stop: int | None = None) -> NDArray[np.void]:
        """Reads units number `start` to `stop` (default: all in use) that the file has, as INDEX_UNIT.

        All units of a broker's full file are 400 MB: `chunks` yields them in parts.
        """
        start, stop = max(start, 1), self.stop if stop is None else min(stop, self._room())
        if stop <= start:
            return np.empty(0, INDEX_UNIT)
        origin, size = self._geometry().units_start, INDEX_UNIT.itemsize
        return unpack(self._view.window(origin + start * size, origin + stop * size), INDEX_UNIT)

    @property
    def stop(self) -> int:
        """The number behind the last unit in use that the file has; at least 1."""
        count = self.header().index_count
        return 1 if count <= 1 else max(min(count, self._room()), 1)

    def is_over(self, log_start: int) -> bool:
        """Whether the file is full and all its messages are expired: nobody writes or searches it."""
        header, last = self.header(), self.units(self.stop - 1)["physical_offset"].tolist()
        is_full = header.index_count >= self._geometry().index_num
        return is_full and max(header.end_physical_offset, *last) < log_start

    def _room(self) -> int:
        """How many units the file has space for, unit 0 included."""
        return (self.size - self._geometry().units_start) // INDEX_UNIT.itemsize

    def chunks(self) -> Iterator[tuple[int, NDArray[np.void]]]:
        """Yields (number of the first unit, units), 65,536 at a time."""
        for start in range(1, stop := self.stop, _CHUNK_UNITS):
            yield start, self.units(start, min(start + _CHUNK_UNITS, stop))

    def find(self, physical_offset: int) -> int:
        """The number of the first unit at or behind a physical offset, `stop` without one.

        By a few reads: the units of a sound file are in the order of the commitlog.
        """
        return bisect_left(
            range(self.stop),
            physical_offset,
            1,
            key=lambda n: int(self.units(n, n + 1)["physical_offset"][0]),
        )

    def slots(self, start: int = 0, stop: int | None = None) -> NDArray[np.int32]:
        """Reads slots `start` to `stop` (default: all) as INDEX_SLOT.

        A file that ends before its units has fewer.
        """
        geometry, size = self._geometry(), INDEX_SLOT.itemsize
        count = (min(geometry.units_start, self.size) - INDEX_HEADER.itemsize) // size
        stop = count if stop is None else min(stop, count)
        return self._view.window(
            INDEX_HEADER.itemsize + start * size, INDEX_HEADER.itemsize + max(start, stop) * size
        ).view(INDEX_SLOT)

    def slots_to_change(self) -> IndexSlots:
        """The slots as a copy in memory."""
        return IndexSlots.read(self._view, self._geometry())

    def chain(self, hash_value: int, header: IndexHeader) -> Iterator[tuple[int, int, int, int]]:
        """(unit number, key hash, physical offset, time diff) along a slot's chain, newest first.

        The chain ends where it ends for the broker: at 0, behind index_count, and at a unit that links to
        itself. It also ends at the file's end, and at a link to a later unit, which no broker writes and
        every broker would follow in a circle.
        """
        if header.index_count <= 1:
            return
        geometry = self._geometry()
        slot = self.slots(hash_value % geometry.hash_slot_num, hash_value % geometry.hash_slot_num + 1)
        number, limit = int(slot[0]) if len(slot) else 0, min(header.index_count, self._room() - 1)
        first, units = 0, np.empty(0, INDEX_UNIT)
        while 0 < number <= limit:
            if not first <= number < first + len(units):  # links lead to earlier units, often to near ones
                first = max(number - _UNITS_PER_LOOK + 1, 1)
                units = self.units(first, number + 1)
            unit_hash, physical_offset, time_diff, prev = units[number - first].item()
            yield number, unit_hash, physical_offset, time_diff
            if prev >= number:
                return
            number = prev

    def _geometry(self) -> IndexGeometry:
        if self.geometry is None:
            raise OptionError(
                f"{self.path}: an index file does not store its numbers of hash slots and units, and this "
                "file's units do not prove them; set maxHashSlotNum and maxIndexNum as in the broker's "
                "configuration"
            )
        return self.geometry

    def close(self) -> None:
        self._view.close()

    def __enter__(self) -> IndexFile:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def open_index_files(
    directory: str,
    *,
    hash_slot_num: int | None = None,
    index_num: int | None = None,
    is_wanted: Callable[[IndexHeader], bool] | None = None,
) -> list[IndexFile]:
    """All index files of a store in the broker's order, without those deleted since the listing.

    The geometry of one file is tried first on the next. Of object storage, all but the first are opened at
    once. `is_wanted` and errors as for `IndexFile.open`.
    """
    likely = DEFAULT_GEOMETRY

    def opened(listed: StoreFile) -> IndexFile | None:
        nonlocal likely
        try:
            file = IndexFile.open(
                listed.path,
                hash_slot_num=hash_slot_num,
                index_num=index_num,
                likely=likely,
                is_wanted=is_wanted,
            )
        except FileNotFoundError:
            return None
        likely = file.geometry or likely
        return file

    listed = list_index_files(directory)
    files = [*map(opened, listed[:1]), *each_at_once(directory, listed[1:], opened)]
    return [file for file in files if file is not None]


def each_at_once(directory: str, items: Sequence[_Item], look: Callable[[_Item], _Look]) -> Iterable[_Look]:
    """What `look` says of each item of a directory, in order; on object storage of many at once."""
    return (said for _, said in files_at(directory).look_at_each(items, look))


def has_entries(path: str) -> bool:
    """Whether the header of an index file counts a unit. A power loss leaves files of zeros."""
    with IndexFile(files_at(path).view(path), None) as file:
        return file.header().index_count > 1


# ---- geometry ----------------------------------------------------------------------------------------------


def _find_geometry(
    view: FileView, hash_slot_num: int | None, index_num: int | None, likely: IndexGeometry
) -> IndexGeometry | None:
    """The geometry by the given numbers, or the one that the units prove; None if they prove none."""
    if hash_slot_num is None and index_num is None:
        return infer_geometry(view, likely)
    given = _complete(view, hash_slot_num, index_num)
    # Wrong numbers would hide entries silently. A damaged file proves nothing, and the given numbers are
    # used.
    if view.size >= INDEX_HEADER.itemsize and not confirms(view, given):
        proved = infer_geometry(view)
        if proved is not None and proved != given:
            raise OptionError(
                f"{view.path}: this file does not have maxHashSlotNum={given.hash_slot_num}, "
                f"maxIndexNum={given.index_num}; its units prove {proved.hash_slot_num} and "
                f"{proved.index_num}"
            )
    return given


def _complete(view: FileView, hash_slot_num: int | None, index_num: int | None) -> IndexGeometry:
    """The geometry with the given numbers; a missing one follows from the file's size."""
    if hash_slot_num is None:
        assert index_num is not None
        hash_slot_num, rest = divmod(
            view.size - INDEX_HEADER.itemsize - INDEX_UNIT.itemsize * index_num, INDEX_SLOT.itemsize
        )
    elif index_num is None:
        index_num, rest = divmod(
            view.size - INDEX_HEADER.itemsize - INDEX_SLOT.itemsize * hash_slot_num, INDEX_UNIT.itemsize
        )
    else:
        rest = 0
    if rest or hash_slot_num < 1 or index_num < 1:
        raise OptionError(
            f"{view.path}: {view.size} bytes are not 40 + 4 * maxHashSlotNum + 20 * maxIndexNum with "
            f"maxHashSlotNum={hash_slot_num}, maxIndexNum={index_num}"
        )
    return IndexGeometry(hash_slot_num, index_num)


def infer_geometry(view: FileView, likely: IndexGeometry = DEFAULT_GEOMETRY) -> IndexGeometry | None:
    """The only geometry that the file's units prove; None if they prove none, or more than one.

    `likely` is tried first and may save the search. A file without units proves nothing, whatever its size.
    """
    if view.size < INDEX_HEADER.itemsize or view.size % 4:
        return None
    if view.size == likely.file_size and confirms(view, likely):
        return likely
    proved: list[IndexGeometry] = []
    survivors = 0
    for candidates in _screen(view):
        survivors += len(candidates)
        if survivors > _SURVIVORS_MAX:
            return None
        for hash_slot_num in candidates.tolist():
            geometry = IndexGeometry(
                hash_slot_num, (view.size - 40 - 4 * hash_slot_num) // INDEX_UNIT.itemsize
            )
            if confirms(view, geometry):
                proved.append(geometry)
    return proved[0] if len(proved) == 1 else None


def _screen(view: FileView) -> Iterator[NDArray[np.int64]]:
    """Numbers of slots that agree with the header's offsets and the first unit's slot, a step at a time."""
    header = _header(view)
    count = int(header["index_count"])
    # the header's units must fit behind the slots
    slots_max = view.size // 4 - _HEADER_WORDS - _UNIT_WORDS * count
    if count <= 1 or slots_max < 1:
        return
    begin, end = int(header["begin_physical_offset"]), int(header["end_physical_offset"])
    first = (view.size // 4 - _HEADER_WORDS) % _UNIT_WORDS or _UNIT_WORDS
    for start in range(first, slots_max + 1, _UNIT_WORDS * _CANDIDATES_PER_STEP):
        stop = min(start + _UNIT_WORDS * _CANDIDATES_PER_STEP, slots_max + 1)
        slot_nums = np.arange(start, stop, _UNIT_WORDS, dtype=np.int64)
        # The first units of successive candidates lie in a row, and so do their last ones.
        unit_1 = 4 * (start + _HEADER_WORDS + _UNIT_WORDS)
        firsts = _units_at(view, unit_1, len(slot_nums))
        # The unit before the last one of each candidate; the last one of a candidate is the next in the row.
        lasts = _units_at(view, unit_1 + INDEX_UNIT.itemsize * (count - 3), len(slot_nums) + 1)
        good = (
            (firsts["key_hash"] >= 0)
            & (firsts["time_diff"] >= 0)
            & (firsts["prev_index"] == 0)
            & (firsts["physical_offset"] == begin)
        )
        # A broker counts a unit before it stores its offset: during a write the end offset may still be that
        # of the unit before.
        is_end = lasts["physical_offset"] == end
        good &= is_end[1:] | (is_end[:-1] & (count > 2))
        slot_nums, hashes = slot_nums[good], firsts["key_hash"][good].astype(np.int64)
        heads = _slots_at(view, hashes % slot_nums)
        yield slot_nums[(heads >= 1) & (heads <= count)]


def _header(view: FileView) -> np.void:
    header: np.void = unpack(view.window(0, INDEX_HEADER.itemsize), INDEX_HEADER)[0]
    return header


def _units_at(view: FileView, position: int, count: int) -> NDArray[np.void]:
    return unpack(view.window(position, position + INDEX_UNIT.itemsize * count), INDEX_UNIT)


def _slots_at(view: FileView, slots: NDArray[np.int64]) -> NDArray[np.int32]:
    """The heads of these slots."""
    found = np.empty(len(slots), INDEX_SLOT)
    starts = INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * slots
    places = [slice(at, at + _PROOF_UNITS) for at in range(0, len(slots), _PROOF_UNITS)]
    windows = view.windows((starts[place], starts[place] + INDEX_SLOT.itemsize) for place in places)
    for place, window in zip(places, windows, strict=True):
        found[place] = gather_units(window.data, window.positions, INDEX_SLOT)
    return found


def confirms(view: FileView, geometry: IndexGeometry) -> bool:
    """Whether the first units are what a broker writes with this geometry (IndexFile.putKey).

    Each unit's prev_index must be the earlier unit of the same slot, each slot must point to the newest of
    these units or to a later one, and the first and the last unit must have the header's offsets.
    """
    header = _header(view)
    count = int(header["index_count"])
    if not 1 < count <= geometry.index_num or geometry.hash_slot_num < 1 or geometry.file_size > view.size:
        return False
    proof = _units_at(view, geometry.units_start + INDEX_UNIT.itemsize, min(count - 1, _PROOF_UNITS))
    if proof["physical_offset"][0] != header["begin_physical_offset"]:
        return False
    newest = max(1, count - 2)
    last = _units_at(view, geometry.units_start + INDEX_UNIT.itemsize * newest, count - newest)
    is_last = header["end_physical_offset"] in last["physical_offset"]
    if not is_last or (proof["key_hash"] < 0).any() or (proof["time_diff"] < 0).any():
        return False
    slots = proof["key_hash"].astype(np.int64) % geometry.hash_slot_num
    order = np.argsort(slots, kind="stable")
    same_slot = slots[order][1:] == slots[order][:-1]
    expected_prev = np.zeros(len(proof), np.int64)
    expected_prev[order[1:][same_slot]] = order[:-1][same_slot] + 1  # units count from 1
    if not np.array_equal(proof["prev_index"], expected_prev):
        return False
    if _lead_to_units(view, geometry, count):
        return True
    heads = _slots_at(view, slots)
    return bool(((heads >= np.arange(1, len(proof) + 1)) & (heads <= count)).all())


def _lead_to_units(view: FileView, geometry: IndexGeometry, count: int) -> bool:
    """Whether the first slots in use lead to units of theirs: much less to read than the slots of the first
    units, which lie all over the file. Nothing is said of few slots, and of a file with few units.
    """
    if geometry.hash_slot_num < _MANY_SLOTS:
        return False
    heads = view.window(_HEADER.size, _HEADER.size + INDEX_SLOT.itemsize * _FIRST_SLOTS).view(INDEX_SLOT)
    slots = np.flatnonzero(heads)[:_PROOF_SLOTS]
    numbers = heads[slots].astype(np.int64)
    if len(slots) < _PROOF_SLOTS or numbers.min() < 1 or numbers.max() >= count:
        return False
    starts = geometry.units_start + INDEX_UNIT.itemsize * numbers
    window = next(view.windows([(starts, starts + INDEX_UNIT.itemsize)]))
    hashes = gather_units(window.data, window.positions, INDEX_UNIT)["key_hash"]
    return np.array_equal(hashes.astype(np.int64) % geometry.hash_slot_num, slots)


# ---- the chains of slots -----------------------------------------------------------------------------------


class _WrongLink(NamedTuple):
    """The link at byte `position` of the file leads to unit `found`, not to unit `right` (0: to none).

    `what` has it: unit `number`, or a slot. An empty `what`: the header counts `found` slots in use, not
    `right`.
    """

    position: int
    what: str
    number: int
    right: int
    found: int


def wrong_links(file: IndexFile, stop: int, *, is_live: bool = False) -> Iterator[_WrongLink]:
    """The wrong links among the units up to `stop`, those of units first.

    While a broker or a commit writes (`is_live`), slots may lead to older units, or to units that the header
    does not count yet. Takes memory for all slots.
    """
    geometry = file.geometry
    assert geometry is not None
    newest = np.zeros(geometry.hash_slot_num, np.int32)
    for start in range(1, stop, _CHUNK):
        units = file.units(start, min(start + _CHUNK, stop))
        previous = _take(newest, units["key_hash"].astype(np.int64) % len(newest), start)
        for i in np.flatnonzero(units["prev_index"] != previous).tolist():
            number, found = start + i, int(units["prev_index"][i])
            position = geometry.units_start + INDEX_UNIT.itemsize * number + _PREV_AT
            yield _WrongLink(position, f"unit {number}", number, int(previous[i]), found)
    for start in range(0, len(newest), _CHUNK):
        stored = file.slots(start, start + _CHUNK)
        wanted = newest[start : start + len(stored)]
        wrong = stored != wanted
        if is_live:
            wrong &= (stored > wanted) & (stored < stop)
        for i in np.flatnonzero(wrong).tolist():
            position = INDEX_HEADER.itemsize + INDEX_SLOT.itemsize * (start + i)
            yield _WrongLink(position, f"slot {start + i}", 0, int(wanted[i]), int(stored[i]))
    used, counted = int(np.count_nonzero(newest)), file.header().hash_slot_count
    if used != counted and not is_live:
        yield _WrongLink(_SLOT_COUNT_AT, "", 0, used, counted)


def _take(newest: NDArray[np.int32], slots: NDArray[np.int64], start: int) -> NDArray[np.int32]:
    """The unit before each of the units from number `start` on in its slot; puts them into `newest`."""
    numbers = np.arange(start, start + len(slots), dtype=np.int32)
    order = np.argsort(slots, kind="stable")
    previous = newest[slots]
    again = np.flatnonzero(np.diff(slots[order]) == 0)
    previous[order[again + 1]] = numbers[order[again]]
    newest[slots[order]] = numbers[order]  # of a slot's units the last one stays
    return previous

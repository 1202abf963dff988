"""The two kinds of consume queue: how their units are read, and where a queue begins and ends on disk.

A simple queue has one unit of 20 bytes for each message; the unit's number is the queue offset
(ConsumeQueue). In a batch queue a unit of 46 bytes covers a run of queue offsets (BatchConsumeQueue). Its
units have no gaps between them, so the place of a unit says nothing about its queue offsets, and units are
found by bisecting on the base offset.

A broker with `enableConsumeQueueExt` writes an extension (ConsumeQueueExt). A unit of a simple queue may then
have an address in the extension in place of its tags code; other units of the queue may have plain ones.

Planning needs the first and the last offset of a queue, a task needs a range of units; each reads a few
blocks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.consumequeue.database import database_entries
from store_format.consumequeue.files import (
    DISORDER,
    FILE_SIZE_MAX,
    FOLDERS,
    LAYOUTS,
    QUEUE_OFFSET_MAX,
    Edges,
    FileRun,
    QueueBounds,
    QueueKind,
    UnitFiles,
    Validity,
    file_run,
    is_queue_id,
    place_in_files,
)
from store_format.display.text import shown
from store_format.errors import (
    CorruptStoreError,
    OffsetOutOfRangeError,
    StoreError,
    StoreNotFoundError,
    StorePermissionError,
)
from store_format.files.paths import Refused, StoreFile, refuse
from store_format.files.read import files_at
from store_format.files.view import FileView, begins_of_only_files
from store_format.layouts import (
    BATCH_CQ_UNIT,
    CQ_EXT_ADDRESS_MAX,
    CQ_EXT_HEAD,
    CQ_LOST_TAGS_CODE,
    CQ_PRE_BLANK_SIZE,
    CQ_UNIT,
    OFFSET_MAX,
)
from store_format.names import QueueKey
from store_format.opened.store import Opened

_log = logging.getLogger(__name__)

_NAMES = BATCH_CQ_UNIT.names or ()
_PHYSICAL_OFFSET = _NAMES.index("physical_offset")
_SIZE = _NAMES.index("size")
_BASE_OFFSET = _NAMES.index("base_offset")
_BATCH_SIZE = _NAMES.index("batch_size")
_CHUNK_UNITS = 1 << 16
_NEIGHBOURS = 8  # units on either side of a queue's first one that confirm it

_LISTINGS = 3  # the broker may delete the oldest file between the listing and the opening

_EXT_ADDRESS_MIN = -(2**63)
_EXT_READ_MAX = 1 << 20  # bytes of one read

_Integers = NDArray[np.signedinteger[Any]]  # Any: big-endian from a unit or native


# ---- simple queues -----------------------------------------------------------------------------------------


def valid_units(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """ConsumeQueue.recover's test. Pre-blank units pass it: they take a place, but are no messages."""
    valid: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    return valid


def message_mask(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """True for units that point to a message: valid, and not pre-blank (ConsumeQueue.fillPreBlank).

    A unit of the pre-blank size with another physical offset counts, too: whoever reads its message finds
    that the size is damaged.
    """
    return valid_units(units) & ~pre_blank_mask(units)


def pre_blank_mask(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """True for the units of no message: before a queue's first message (ConsumeQueue.fillPreBlank), and ours.

    Ours are in the places of lost messages (`lost_units`).
    """
    mask: NDArray[np.bool_] = (units["size"] == CQ_PRE_BLANK_SIZE) & (units["physical_offset"] == 0)
    return mask | lost_mask(units)


def lost_mask(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """True for the units in the places of lost messages."""
    mask: NDArray[np.bool_] = units["tags_code"] == CQ_LOST_TAGS_CODE
    return mask


def simple_edges(files: UnitFiles, run: FileRun, stop: int, commit_log_min: int) -> Edges:
    """The edges of a simple queue whose last valid unit is `stop` - 1.

    `first_physical_offset` is -1 where no message is left: the queue keeps its offset.
    """
    begin = run.first_file // CQ_UNIT.itemsize
    start, first, blank_stop = _find_start(files, run, stop, commit_log_min)
    is_split, in_order = _compared(files, begin, start, stop, message_mask, commit_log_min)
    if not is_split:
        start = first = _best_split(files, begin, stop, message_mask, commit_log_min)
    front = files.unit(start - 1)[0] if commit_log_min and start > begin else -1
    if commit_log_min and not (is_split and in_order and (start == stop or _is_valid(files, start))):
        front = DISORDER
    first = max(first, blank_stop)
    if first >= stop:
        return Edges(start, stop, start, stop, front=front)
    first_physical_offset = files.unit(first)[0]
    last_physical_offset, last_size, _ = files.unit(stop - 1)
    found = (start, stop, start, stop, first_physical_offset, last_physical_offset, last_size)
    return Edges(*found, blank_stop, front)


def _find_start(files: UnitFiles, run: FileRun, stop: int, commit_log_min: int) -> tuple[int, int, int]:
    """The minimum offset (ConsumeQueue.correctMinOffset), the number of the first valid unit there, and the
    number behind the pre-blank units with which the file begins, or 0.

    The broker's rule looks at the first file only. This function first skips leading files whose last unit is
    expired, because a running broker deletes them before it applies the rule
    (MappedFileQueue.deleteExpiredFileByOffset). A broker that has just started still reports 0 for such
    files.
    """
    per_file = run.file_size // CQ_UNIT.itemsize
    start = run.first_file // CQ_UNIT.itemsize
    if stop == start or files.unit(stop - 1)[0] < commit_log_min:
        return stop, stop, 0
    while start + per_file < stop and _is_expired(files, start + per_file - 1, stop, commit_log_min):
        start += per_file
    file_stop = min(start + per_file, stop)
    first = start
    physical_offset, size, _ = files.unit(start)
    if physical_offset < 0 or size <= 0:
        first = _first_valid(files, start, stop)
        physical_offset = files.unit(first)[0]
    blank_stop = _blank_stop(files, first, file_stop)
    if physical_offset < commit_log_min:
        start = first = _bisect_expired(files, first, file_stop - 1, commit_log_min)
    return start, first, blank_stop


def _compared(
    files: UnitFiles, begin: int, start: int, stop: int, is_known: Validity, commit_log_min: int
) -> tuple[bool, bool]:
    """Whether the units beside `start` confirm that it is the first one of [begin, stop) that leads into the
    log, and whether they are in the order of the log. A wrong unit at a probe takes a bisection elsewhere.
    """
    if not commit_log_min:
        return True, True  # nothing has expired
    low, high = max(begin, start - _NEIGHBOURS), min(stop, start + _NEIGHBOURS)
    units = files.around(low, high)
    known = is_known(units)
    physical = units["physical_offset"][known]
    is_split = (physical >= commit_log_min) == (np.arange(low, high)[known] >= start)
    return bool(is_split.all()), bool((physical[1:] >= physical[:-1]).all())


def _best_split(files: UnitFiles, begin: int, stop: int, is_known: Validity, commit_log_min: int) -> int:
    """The number in [begin, stop] that parts units before the log from those that lead into it, with as few
    exceptions as possible: by a look at each.
    """
    units = files.read(begin, stop)
    steps = np.where(units["physical_offset"] < commit_log_min, 1, -1) * is_known(units)
    return begin + int(np.concatenate(([0], np.cumsum(steps))).argmax())


def _is_valid(files: UnitFiles, number: int) -> bool:
    physical_offset, size, _ = files.unit(number)
    return bool(physical_offset >= 0 and size > 0)


def _first_valid(files: UnitFiles, number: int, stop: int) -> int:
    """The first valid unit from `number` on: zeros before it are damage, and have not expired. The last unit
    before `stop` is valid.
    """
    while number < stop - 1 and not _is_valid(files, number):
        number += 1
    return number


def _is_expired(files: UnitFiles, last: int, stop: int, commit_log_min: int) -> bool:
    """Whether the file with the `last` unit is expired: that unit, or the next valid one behind zeros, points
    before `commit_log_min`.
    """
    return bool(files.unit(_first_valid(files, last, stop))[0] < commit_log_min)


def _bisect_expired(files: UnitFiles, low: int, high: int, commit_log_min: int) -> int:
    """The first unit of [low, high] that points to `commit_log_min` or behind, by the broker's probes."""
    while high - low > 1:
        middle = (low + high) // 2
        valid = _first_valid(files, middle, high + 1)
        physical_offset = files.unit(valid)[0]
        if physical_offset == commit_log_min and valid == middle:
            return middle
        if physical_offset >= commit_log_min or not _is_valid(files, valid):
            high = middle
        else:
            low = middle
    return low if files.unit(low)[0] >= commit_log_min else high


def _blank_stop(files: UnitFiles, low: int, high: int) -> int:
    """The number behind the pre-blank units from `low` on, by bisection up to `high`; 0 without one."""

    def is_blank(number: int) -> bool:
        physical_offset, size, _ = files.unit(number)
        return bool(size == CQ_PRE_BLANK_SIZE and physical_offset == 0)

    if not is_blank(low):
        return 0
    while low < high:
        middle = (low + high) // 2
        if is_blank(middle):
            low = middle + 1
        else:
            high = middle
    return low


def read_units(bounds: QueueBounds, start: int, stop: int) -> NDArray[np.void]:
    """The units of queue offsets [start, stop), as stored and read-only.

    Units below `min_offset` are expired, but can be read. Raises OffsetOutOfRangeError for offsets outside
    the files, and when a file was deleted after planning.
    """
    bounds.check_range(start, stop, bounds.first_file // CQ_UNIT.itemsize)
    with bounds.open() as files:
        return files.read(start, stop)


def _simple_entries(bounds: QueueBounds, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    units = read_units(bounds, start, stop)
    offsets = np.arange(start, start + len(units), dtype=np.int64)
    # Invalid units stay, and reading them is an error: the queue does not end there.
    messages = ~pre_blank_mask(units)
    return (offsets, units) if messages.all() else (offsets[messages], units[messages])


# ---- batch queues ------------------------------------------------------------------------------------------


def valid_batch_units(units: NDArray[np.void]) -> NDArray[np.bool_]:
    """BatchConsumeQueue.recover's test, and a base offset that leaves room for the batch."""
    valid: NDArray[np.bool_] = (units["physical_offset"] >= 0) & (units["size"] > 0)
    valid &= (
        (units["base_offset"] >= 0) & (units["base_offset"] <= QUEUE_OFFSET_MAX) & (units["batch_size"] > 0)
    )
    return valid


def _end_offset(unit: tuple[Any, ...]) -> int:  # Any: as UnitFiles.unit
    """The queue offset behind the last one that the unit covers."""
    return int(unit[_BASE_OFFSET] + unit[_BATCH_SIZE])


def _batch_edges(files: UnitFiles, run: FileRun, stop: int, commit_log_min: int) -> Edges:
    """The edges of a batch queue whose last valid unit is `stop` - 1.

    The maximum is the end of the last unit. The minimum is the base of the first unit, or the end of the last
    expired unit (BatchConsumeQueue.correctMinOffset), also behind leading files whose units are all expired
    and which the broker's cleaner deletes.
    """
    first = run.first_file // BATCH_CQ_UNIT.itemsize
    if stop == first:
        return Edges(stop, stop, 0, 0)
    start = _first_unit(files, first, stop, _PHYSICAL_OFFSET, commit_log_min)
    if not _compared(files, first, start, stop, valid_batch_units, commit_log_min)[0]:
        start = _best_split(files, first, stop, valid_batch_units, commit_log_min)
    _check_edges(files, run, first, start, stop)
    min_offset = _end_offset(files.unit(start - 1)) if start > first else files.unit(first)[_BASE_OFFSET]
    last = files.unit(stop - 1)
    max_offset = _end_offset(last)
    if start == stop:
        return Edges(start, stop, min_offset, max_offset)
    first_physical_offset = files.unit(start)[_PHYSICAL_OFFSET]
    return Edges(
        start, stop, min_offset, max_offset, first_physical_offset, last[_PHYSICAL_OFFSET], last[_SIZE]
    )


def _check_edges(files: UnitFiles, run: FileRun, first: int, start: int, stop: int) -> None:
    """Raises CorruptStoreError if the units at the queue's begin or end overlap their neighbours.

    These units give the first and the last queue offset; one that is out of order would hide others.
    """
    for number in sorted({max(start - 1, first), min(start, stop - 1), max(stop - 2, first)}):
        if number + 1 < stop:
            base, end = files.unit(number + 1)[_BASE_OFFSET], _end_offset(files.unit(number))
            if base < end:
                raise _wrong_unit(files.directory, run.file_size, number + 1, end, base)


def _first_unit(files: UnitFiles, low: int, high: int, field: int, at_least: int) -> int:
    """The first unit of [low, high) whose field is at least `at_least`; `high` without one."""
    while low < high:
        middle = (low + high) // 2
        if files.unit(middle)[field] >= at_least:
            high = middle
        else:
            low = middle + 1
    return low


def read_batch_units(bounds: QueueBounds, start: int, stop: int) -> NDArray[np.void]:
    """The units that cover any of the queue offsets [start, stop), as stored and read-only.

    The first and the last unit may reach beyond the range: the messages in the range are picked when the
    batch is split.

    Raises OffsetOutOfRangeError for offsets outside the bounds, and when a file was deleted after planning;
    CorruptStoreError when units are not in the order of their offsets, because bisection may then miss some.
    """
    bounds.check_range(start, stop, bounds.min_offset)
    if start >= stop:
        return np.empty(0, BATCH_CQ_UNIT)
    with bounds.open() as files:
        first = _first_unit(files, bounds.unit_start, bounds.unit_stop, _BASE_OFFSET, start + 1)
        if first > bounds.unit_start and _end_offset(files.unit(first - 1)) > start:
            first -= 1
        last = max(first, _first_unit(files, first, bounds.unit_stop, _BASE_OFFSET, stop))
        units = files.read(first, last)
        if not _without_gaps(units, start, stop):
            _refuse_disorder(bounds, files)
    return units


def _batch_entries(bounds: QueueBounds, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    units = read_batch_units(bounds, start, stop)
    return units["base_offset"].astype(np.int64), units


def _without_gaps(units: NDArray[np.void], start: int, stop: int) -> bool:
    """Whether the units cover all queue offsets of [start, stop), each once."""
    bases = units["base_offset"].astype(np.int64)
    ends = bases + units["batch_size"].astype(np.int64)
    return len(units) > 0 and bool(bases[0] <= start and ends[-1] >= stop and (bases[1:] == ends[:-1]).all())


def _refuse_disorder(bounds: QueueBounds, files: UnitFiles) -> None:
    """Raises CorruptStoreError unless each unit begins at or behind the end of the unit before it.

    Only then does bisection find all units. Gaps are unusual, but no reason to refuse.
    """
    end = 0
    for first in range(bounds.unit_start, bounds.unit_stop, _CHUNK_UNITS):
        units = files.read(first, min(first + _CHUNK_UNITS, bounds.unit_stop))
        bases = units["base_offset"].astype(np.int64)
        ends = np.append(end, bases + units["batch_size"].astype(np.int64))
        wrong = np.flatnonzero((bases < ends[:-1]) | (units["batch_size"] <= 0))
        if len(wrong):
            at = int(wrong[0])
            raise _wrong_unit(bounds.directory, bounds.file_size, first + at, int(ends[at]), int(bases[at]))
        end = int(ends[-1])


def _wrong_unit(directory: str, file_size: int, number: int, end: int, base: int) -> CorruptStoreError:
    """Unit `number` begins at queue offset `base`, before the end of the unit before it."""
    path, within = place_in_files(directory, file_size, number * BATCH_CQ_UNIT.itemsize)
    expected = f"a batch that begins at or behind queue offset {end}, where the one before it ends"
    return CorruptStoreError(path, within, expected, str(base))


# ---- where a queue begins and ends -------------------------------------------------------------------------


class UnitRules(NamedTuple):
    """How the files of one kind of consume queue are read.

    - `is_valid`: which units take a place in the queue, as the broker's recovery tests them.
    - `edges`: where the units begin and end, of files, their run, the number behind the last valid unit, and
      the start of the commitlog.
    - `read`: the queue offsets [start, stop) as (queue offsets, units), without units of no message.
    """

    is_valid: Validity
    edges: Callable[[UnitFiles, FileRun, int, int], Edges]
    read: Callable[[QueueBounds, int, int], tuple[NDArray[np.int64], NDArray[np.void]]]


RULES: dict[QueueKind, UnitRules] = {
    "simple": UnitRules(valid_units, simple_edges, _simple_entries),
    "batch": UnitRules(valid_batch_units, _batch_edges, _batch_entries),
    "database": UnitRules(valid_units, simple_edges, database_entries),  # which has no files
}


class FiledQueue(NamedTuple):
    """The directory of a queue's files. It need not exist."""

    topic: str
    queue_id: int
    directory: str
    kind: QueueKind

    @staticmethod
    def of(opened: Opened, topic: str, queue_id: int, kind: QueueKind = "simple") -> FiledQueue:
        """The queue of a name. A name from a message may be no directory's (`can_be_queue`)."""
        return FiledQueue(topic, queue_id, f"{opened.path}/{FOLDERS[kind]}/{topic}/{queue_id}", kind)

    @property
    def key(self) -> QueueKey:
        """(topic, queue id)."""
        return self.topic, self.queue_id

    def bounds(
        self,
        commit_log_min: int,
        *,
        commit_log_stop: int | None = None,
        scan: bool = False,
        clean: bool = False,
        likely: int | None = None,
    ) -> QueueBounds | None:
        """Where the queue begins and ends; None when it has no files.

        `commit_log_min` is the start of the first commitlog file: units that point before it are expired.
        After a crash, units that point to `commit_log_stop` or behind it do not count
        (ConsumeQueue.truncateDirtyLogicFiles), and `scan` finds the first invalid unit even if valid ones
        follow (UnitFiles.find_stop). `clean` says that the store was shut down cleanly. `likely` is the
        number behind the last unit, if it is not wrong.

        Raises CorruptStoreError when the files do not fit together, or have damage that a clean shutdown does
        not leave.
        """
        rules, layout = RULES[self.kind], LAYOUTS[self.kind]
        size, is_valid = layout.itemsize, _valid_below(rules.is_valid, commit_log_stop)
        for _ in range(_LISTINGS):
            run = file_run(self.directory, size, clean=clean)
            if run is None:
                return None
            with UnitFiles(self.directory, layout, run, self.key) as files:
                try:
                    stop = files.find_stop(is_valid, scan=scan, clean=clean, likely=likely)
                    edges = rules.edges(files, run, stop, commit_log_min)
                except OffsetOutOfRangeError:
                    continue
            last_file = max(run.first_file, (stop * size - 1) // run.file_size * run.file_size)
            place = (run.file_size, run.first_file, last_file)
            return QueueBounds(*self, *place, commit_log_min, *edges)
        raise StoreNotFoundError(
            f"{self.directory}: its files are deleted while they are listed, {_LISTINGS} times; is the store "
            "being deleted?"
        )


def list_queues(
    opened: Opened, select: Callable[[str], bool], refused: Refused = refuse
) -> Iterator[FiledQueue]:
    """Every queue directory whose topic is selected, sorted.

    A directory below a topic whose name is no queue id is skipped, as the broker does
    (ConsumeQueueStore.loadConsumeQueues). `refused` is called for a selected topic or queue that is a link or
    may not be listed; if it does not raise, the topic or queue is left out.
    """
    for kind, folder in FOLDERS.items():
        for topic, topic_path in opened.files.directories(f"{opened.path}/{folder}", select, refused):
            try:
                found = files_at(topic_path).directories(topic_path, is_queue_id, refused)
            except StorePermissionError as error:
                refused(error)
                continue
            for queue_id, path in sorted([(int(name), path) for name, path in found]):
                yield FiledQueue(topic, queue_id, path, kind)


def _every_topic(topic: str) -> bool:
    return True


def stored_bounds(
    opened: Opened,
    commit_log_min: int,
    select: Callable[[str], bool] = _every_topic,
    refused: Callable[[StoreError], object] = refuse,
    *,
    scan: bool = False,
) -> Iterator[QueueBounds]:
    """The `FiledQueue.bounds` of the selected queues that have files. `refused` is called as by
    `list_queues`, and for queues whose files do not fit together.
    """

    def look() -> tuple[list[FiledQueue], NDArray[np.int64], list[StoreError]]:
        errors = list[StoreError]()
        every = list(list_queues(opened, select, errors.append))
        return every, short_queues(every if not opened.is_remote else (), commit_log_min), errors

    is_of_all = select is _every_topic
    key = (stored_bounds, opened, commit_log_min)
    every, rows, errors = opened.files.kept(key, look) if is_of_all else look()
    short = {place: row for place, *row in rows.tolist()}
    for each in errors:
        refused(each)
    for place, filed in enumerate(every):
        if place in short:
            yield short_bounds(filed, short[place], commit_log_min)
            continue
        try:
            bounds = filed.bounds(commit_log_min, scan=scan)
        except StoreError as error:
            refused(error)
            continue
        if bounds is not None:
            yield bounds


def few_units(
    queues: Sequence[QueueBounds], *, is_remote: bool = False
) -> Iterator[tuple[QueueBounds, NDArray[np.void] | None]]:
    """The units [`unit_start`, `unit_stop`) of local queues, until the next queue; None for a queue that has
    many, or whose file cannot be read. As whole blocks, because a broker with 10,000 queues has mostly such
    ones.
    """
    if is_remote:
        yield from ((queue, None) for queue in queues)
        return
    into = np.empty((min(len(queues), _QUEUES_AT_ONCE), _FEW_UNITS * CQ_UNIT.itemsize), np.uint8)
    blocks = into.view(CQ_UNIT)
    for low in range(0, len(queues), _QUEUES_AT_ONCE):
        mine = queues[low : low + _QUEUES_AT_ONCE]
        is_read = FileView.begins([place_in_files(*each)[0] for each in map(_first_place, mine)], into)
        for row, queue in enumerate(mine):
            first = queue.first_file // CQ_UNIT.itemsize
            begin, end = queue.unit_start - first, queue.unit_stop - first
            is_few = queue.kind == "simple" and queue.first_file == queue.last_file and end <= _FEW_UNITS
            yield queue, blocks[row, begin:end] if is_few and is_read[row] else None


def units_between(
    queue: QueueBounds, few: NDArray[np.void] | None, start: int, stop: int
) -> NDArray[np.void]:
    """The units of a queue, of which `few_units` has these, that point into [start, stop) of the log, as
    `first_unit_from` finds them.
    """
    physical = None if few is None else few["physical_offset"].astype(np.int64)
    if few is not None and physical is not None and (physical[1:] >= physical[:-1]).all():
        low, high = physical.searchsorted((start, stop)).tolist()
        return few[low:high]
    with queue.open() as files:
        first = first_unit_from(files, queue, start, queue.unit_start)
        return files.read(first, first_unit_from(files, queue, stop, first))


def _first_place(queue: QueueBounds) -> tuple[str, int, int]:
    return queue.directory, queue.file_size, queue.first_file


_BLOCK_SIZE = 4096
_FEW_UNITS = 24  # of a block: of most queues, the rest is empty
_QUEUES_AT_ONCE = 512  # whose blocks stay in a processor's cache

# of a queue of `short_queues`, with the names of QueueBounds: the first file is the last one, and the offsets
# are the units
SHORT_QUEUE = np.dtype(
    [
        (name, np.int64)
        for name in (
            *("file_size", "first_file", "min_offset", "max_offset"),
            *("first_physical_offset", "last_physical_offset", "last_size"),
        )
    ]
)


def short_queues(
    found: Sequence[FiledQueue],
    commit_log_min: int,
    *,
    commit_log_stop: int | None = None,
    clean: bool = False,
) -> NDArray[np.int64]:
    """The bounds, as `FiledQueue.bounds` says, of simple queues that end in the first block of their only
    file: a row has the place of the queue among `found`, and the fields of SHORT_QUEUE. As whole arrays,
    because a broker with 10,000 queues has mostly such ones.

    `found` are local directories. Every other queue is left out, and one that shows something else than
    entries of messages in the log, and zeros behind them.
    """
    is_valid, rows = _valid_below(valid_units, commit_log_stop), [np.empty((0, 8), np.int64)]
    places = [
        place for place, each in enumerate(found) if each.kind == "simple" and each.topic.isascii()
    ]  # other names may be no text
    begins = np.empty((min(len(places), _QUEUES_AT_ONCE), _BLOCK_SIZE), np.uint8)
    for files in begins_of_only_files([found[place].directory for place in places], begins):
        blocks = begins[: len(files)]
        is_long = blocks[:, _FEW_UNITS * CQ_UNIT.itemsize :].view(np.uint64).max(axis=1) > 0
        short, long = np.flatnonzero(~is_long), np.flatnonzero(is_long)
        few = blocks[short, : (_FEW_UNITS + 1) * CQ_UNIT.itemsize]  # an empty unit ends them
        ends = _block_ends(few, short, is_valid, commit_log_min, clean)
        if len(long):
            ends = np.concatenate((ends, _block_ends(blocks[long], long, is_valid, commit_log_min, clean)))
        place, file, size, allocated = files[ends[:, 0]].T
        start, used = file // CQ_UNIT.itemsize, ends[:, 1] * CQ_UNIT.itemsize
        fits = (used < size) & (size <= FILE_SIZE_MAX) & (size % CQ_UNIT.itemsize == 0)
        fits &= (file % np.maximum(size, 1) == 0) & (file <= OFFSET_MAX - size)
        if clean:
            fits &= (allocated <= _BLOCK_SIZE) | (size <= _BLOCK_SIZE)
        columns = (place, size, file, start, start + ends[:, 1], *ends.T[2:])
        rows.append(np.stack(columns, axis=1)[fits])
    found_rows = np.concatenate(rows)
    found_rows[:, 0] = np.array(places, np.int64)[found_rows[:, 0]]
    return found_rows


def short_bounds(filed: FiledQueue, row: Sequence[int], commit_log_min: int) -> QueueBounds:
    """The bounds of a queue of `short_queues`, from the fields of SHORT_QUEUE."""
    size, file, low, high, *places = row
    return QueueBounds(*filed, size, file, file, commit_log_min, low, high, low, high, *places)


def _block_ends(
    blocks: NDArray[np.uint8], numbers: NDArray[np.intp], is_valid: Validity, commit_log_min: int, clean: bool
) -> NDArray[np.int64]:
    """[number of the block, entries, physical offset of the first and the last message, size of the last one]
    of the blocks that begin with entries of messages in the log, and, after a clean shutdown, have nothing
    behind them.
    """
    size = CQ_UNIT.itemsize
    units = blocks[:, : blocks.shape[1] // size * size].view(CQ_UNIT)
    valid = is_valid(units)
    stops = valid.argmin(axis=1)
    first, last = units[:, 0], units[np.arange(len(blocks)), stops - 1]
    plain = (stops > 0) & ~pre_blank_mask(first) & (first["physical_offset"] >= commit_log_min)
    plain &= (last["physical_offset"] >= commit_log_min) & (np.count_nonzero(valid, axis=1) == stops)
    if commit_log_min:  # else nothing has expired
        physical, behind = units["physical_offset"], np.arange(units.shape[1]) >= stops[:, np.newaxis]
        plain &= ((physical >= commit_log_min) | behind).all(axis=1)
        plain &= ((physical[:, 1:] >= physical[:, :-1]) | behind[:, 1:]).all(axis=1)
    if clean:
        is_used = blocks.view(np.uint32) != 0
        used_stops = np.where(is_used.any(axis=1), is_used.shape[1] - is_used[:, ::-1].argmax(axis=1), 0)
        plain &= used_stops * np.uint32().itemsize <= stops * size
    columns = (numbers, stops, first["physical_offset"], last["physical_offset"], last["size"])
    found: NDArray[np.int64] = np.stack(columns, axis=1)[plain].astype(np.int64)
    return found


def first_unit_from(files: UnitFiles, queue: QueueBounds, physical: int, low: int) -> int:
    """The number of the queue's first unit, from `low` on, that points to the physical offset or behind it.

    By bisection: units of zeros, which are damage, lie before it.
    """
    high = queue.unit_stop
    while low < high:
        middle = (low + high) // 2
        if int(files.read(middle, middle + 1)["physical_offset"][0]) < physical:
            low = middle + 1
        else:
            high = middle
    return low


def _valid_below(is_valid: Validity, commit_log_stop: int | None) -> Validity:
    """`is_valid`, and a physical offset before the commitlog's end, if that is known."""
    if commit_log_stop is None:
        return is_valid
    return lambda units: is_valid(units) & (units["physical_offset"] < commit_log_stop)


# ---- the extension of a queue ------------------------------------------------------------------------------


def is_ext_address(tags_codes: _Integers) -> NDArray[np.bool_]:
    """True where the tags code of a unit is an address in the extension (ConsumeQueueExt.isExtAddr)."""
    return np.asarray(tags_codes <= CQ_EXT_ADDRESS_MAX)


def ext_offset(addresses: _Integers) -> NDArray[np.int64]:
    """The byte offsets in the extension that the addresses mean (ConsumeQueueExt.unDecorate)."""
    return np.bitwise_xor(addresses.astype(np.int64), np.int64(_EXT_ADDRESS_MIN))  # + 2^63, without overflow


def resolve_tags_codes(directory: str, tags_codes: _Integers) -> NDArray[np.int64]:
    """`tags_codes` in native byte order, with the real tags code in place of each address.

    `directory` is the queue's directory below `consumequeue_ext`; it is read only if there is an address. An
    address that leads to no whole unit stays, with a warning: the tags code is unknown (ConsumeQueue.getExt),
    and no filter by tags code leaves out its message (ExpressionMessageFilter.isMatchedByConsumeQueue).
    """
    resolved = tags_codes.astype(np.int64)
    unknown = resolve_known(directory, resolved)
    if unknown:
        _log.warning(
            "%s: the tags codes of %d messages are lost: filters by tag look at the messages",
            shown(directory), unknown,
        )  # fmt: skip
    return resolved


def resolve_known(directory: str, tags_codes: NDArray[np.int64]) -> int:
    """Puts the tags code in place of each address in `tags_codes`, as far as it is known. Returns how many
    are unknown.
    """
    places = np.flatnonzero(is_ext_address(tags_codes))
    for index, codes in _read_codes(directory, tags_codes[places]):
        tags_codes[places[index]] = codes
    return int(np.count_nonzero(is_ext_address(tags_codes[places])))


def _read_codes(directory: str, addresses: _Integers) -> Iterator[tuple[NDArray[np.intp], NDArray[np.void]]]:
    """(indices of addresses, the tags codes there), in reads of about 1 MiB; without those that are lost."""
    offsets = ext_offset(addresses)
    order = np.argsort(offsets, kind="stable")
    for file in files_at(directory).store_files(directory) if len(addresses) else ():
        mine = order[(offsets[order] >= file.start) & (offsets[order] < file.stop)]
        while len(mine):
            first = int(offsets[mine[0]])
            count = int(np.searchsorted(offsets[mine], first + _EXT_READ_MAX, side="right"))
            yield _codes_in_file(file, mine[:count], offsets[mine[:count]] - file.start)
            mine = mine[count:]


def _codes_in_file(
    file: StoreFile, index: NDArray[np.intp], positions: NDArray[np.int64]
) -> tuple[NDArray[np.intp], NDArray[np.void]]:
    """Those of `index` whose units, at ascending `positions`, are whole, and their tags codes. One read."""
    first = int(positions[0])
    try:
        with files_at(file.path).view(file.path) as view:
            data = view.read(first, int(positions[-1]) - first + CQ_EXT_HEAD.itemsize)
    except FileNotFoundError:  # retention has deleted it since it was listed
        data = b""
    there = positions <= first + len(data) - CQ_EXT_HEAD.itemsize
    heads = gather_units(np.frombuffer(data, np.uint8), positions[there] - first, CQ_EXT_HEAD)
    bit_maps, sizes = (heads[name].astype(np.int64) for name in ("filter_bit_map_size", "size"))
    whole = (bit_maps >= 0) & (sizes == CQ_EXT_HEAD.itemsize + bit_maps)
    whole &= positions[there] + sizes <= file.size
    return index[there][whole], heads["tags_code"][whole]

"""Missing consume queue entries, made from the commitlog: after a crash, and for queues that were lost.

The log is read first and the queues are written afterwards, so that a store that cannot be repaired is
refused before anything is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.consumequeue.bounds import queue_bounds
from store_format.consumequeue.dispatch import Dispatch, MissingEntries
from store_format.consumequeue.files import QueueKind
from store_format.consumequeue.listing import can_be_queue, list_queues, queue_directory
from store_format.consumequeue.updates import lost_units, pre_blank_bytes
from store_format.errors import CorruptStoreError, OptionError, UnsupportedFormatError
from store_format.files.read import list_store_files, offset_file_name
from store_format.files.write import FileWrites
from store_format.layouts import BATCH_CQ_UNIT, CQ_PRE_BLANK_SIZE, CQ_UNIT
from store_format.metadata.read import read_topics
from store_format.names import QueueKey
from store_format.survey.fates import deleted_until

_log = logging.getLogger(__name__)

NEVER = 2**63 - 1  # as a floor: no message counts
_LOST_MAX = 1 << 22  # queue offsets without a message in one queue: more are damage, not a crash
_ADVICE = "Nothing was changed. Make the entries with rmqlog recover STORE --apply, then write again"
_PART = 1 << 21  # entries held in memory at once, about 150 bytes each


class QueueState(NamedTuple):
    """A queue on disk, less its entries at or behind the log's end. None: the queue has no entry left."""

    directory: str
    is_batch: bool
    max_offset: int | None
    last_offset: int | None  # physical, of the last message
    unit_stop: int
    first_file: int


@dataclass(frozen=True, slots=True)
class Lacking:
    """The entries that queues lack, of the messages from `start` to `stop` of the log.

    `entries` are the first part of them, all if `is_all`. `firsts` has the first offset that each queue
    lacks. `met` are the queues of all messages in the range. `make` starts the search for the entries
    again.
    """

    start: int
    stop: int
    entries: dict[QueueKey, MissingEntries]
    is_all: bool
    firsts: Mapping[QueueKey, int]
    met: frozenset[QueueKey]
    file_size: int | None
    make: Callable[[], Dispatch]

    def has_gap(self, states: Mapping[QueueKey, QueueState]) -> bool:
        """Whether a queue lacks older entries too: its end is below the first offset that it lacks here."""
        return any(
            first > (states[key].max_offset or 0 if key in states else 0)
            for key, first in self.firsts.items()
        )


def queue_states(root: str, log: CommitLog, end: int) -> dict[QueueKey, QueueState]:
    return {
        (topic, queue_id): queue_state(log, end, topic, queue_id, directory, kind)
        for topic, queue_id, directory, kind in list_queues(root, lambda _: True)
    }


def queue_state(
    log: CommitLog, end: int, topic: str, queue_id: int, directory: str, kind: QueueKind
) -> QueueState:
    bounds = queue_bounds(kind, directory, topic, queue_id, log.min_offset, commit_log_stop=end, scan=True)
    if bounds is None:
        return QueueState(directory, kind == "batch", None, None, 0, 0)
    last = bounds.last_physical_offset
    return QueueState(
        directory, kind == "batch", bounds.max_offset, last, bounds.unit_stop, bounds.first_file
    )


def find_lacking(
    root: str,
    log: CommitLog,
    start: int,
    stop: int,
    states: Mapping[QueueKey, QueueState],
    *,
    file_size: int | None,
    is_crashed: bool,
    delay_levels_ms: tuple[int, ...],
    floors: Mapping[QueueKey, int] | None = None,
) -> Lacking:
    """Scans the log from `start`, where a unit begins, to `stop`. Nothing is changed.

    Messages of deleted topics do not count (`deleted_until`). Messages of a queue in `floors` count only
    behind that physical offset. `delay_levels_ms` is messageDelayLevel: an entry of a delayed message has the
    delivery time.

    Raises UnsupportedFormatError if a batch consume queue lacks entries, and OptionError if a queue has to be
    created and its file size is not known (`file_size` None): a broker loads files of one size only.
    """
    make = _dispatches(root, states, floors or {}, delay_levels_ms)
    dispatch = make()
    first: dict[QueueKey, MissingEntries] | None = None
    firsts: dict[QueueKey, int] = {}
    is_all = True
    for part in _parts(log, start, stop, dispatch):
        is_all = first is None
        first = part if first is None else first
        for (topic, queue_id), each in part.items():
            firsts.setdefault((topic, queue_id), int(each.queue_offsets[0]))
            if each.units.dtype != CQ_UNIT:
                raise UnsupportedFormatError(
                    f"{root}: {'a broker crashed, and ' if is_crashed else ''}the batch consume queue "
                    f"{topic}-{queue_id} (queue.type=BatchCQ) lacks {len(each.units)} entries. "
                    f"{_ADVICE}"
                )
    new = sorted(key for key in firsts if key not in states or states[key].max_offset is None)
    if new and file_size is None:
        raise OptionError(
            f"{root}: {len(new)} consume queues have to be rebuilt from the commitlog, the first is "
            f"{new[0][0]}-{new[0][1]}, and the store does not show the size of their files. Nothing was "
            "changed. Give mappedFileSizeConsumeQueue from the configuration of this store's broker (the "
            "default is 6000000): the broker loads files of that size only"
        )
    return Lacking(start, stop, first or {}, is_all, firsts, frozenset(dispatch.met), file_size, make)


def _dispatches(
    root: str,
    states: Mapping[QueueKey, QueueState],
    floors: Mapping[QueueKey, int],
    delay_levels_ms: tuple[int, ...],
) -> Callable[[], Dispatch]:
    topics = read_topics(root)
    # A batch topic need not have queues yet.
    batch_topics = {name for name, config in (topics or {}).items() if config.queue_type == "BatchCQ"}
    batch_topics |= {topic for (topic, _), state in states.items() if state.is_batch}
    deleted = deleted_until(root)

    def floor(queue: QueueKey) -> int:
        if not can_be_queue(*queue):
            return NEVER
        return max(floors.get(queue, -1), deleted(queue[0]) - 1)

    def make() -> Dispatch:
        return Dispatch(
            {key: state.max_offset for key, state in states.items() if state.max_offset is not None},
            {key: state.last_offset for key, state in states.items() if state.last_offset is not None},
            frozenset(batch_topics),
            delay_levels_ms,
            floor,
        )

    return make


def _parts(
    log: CommitLog, start: int, stop: int, dispatch: Dispatch
) -> Iterator[dict[QueueKey, MissingEntries]]:
    """The missing entries, in parts of bounded size; at least one part."""
    if start < stop:
        walk = log.walk(start, stop, resync=True)
        for run in walk:
            if isinstance(run, Damage):
                continue
            dispatch.add(run, log)
            if dispatch.count >= _PART:
                yield dispatch.take()
        if walk.sums.damage_bytes or walk.sums.missing_bytes:
            _log.warning(
                "commitlog %d to %d: %d bytes are damaged and %d missing; messages there have no consume "
                "queue entry",
                start,
                stop,
                walk.sums.damage_bytes,
                walk.sums.missing_bytes,
            )
    yield dispatch.take()


def write_lacking(
    root: str,
    log: CommitLog,
    lacking: Lacking,
    states: Mapping[QueueKey, QueueState],
    files: FileWrites,
    *,
    aside: tuple[str, Collection[QueueKey]] = ("", ()),
    only: Collection[QueueKey] | None = None,
) -> None:
    """Writes the missing entries of all queues, or `only` of these queues. Can be repeated after a crash.

    `aside` is (another directory, the queues that are written below it).
    """
    ends = {key: state.max_offset for key, state in states.items() if state.max_offset is not None}
    elsewhere = set(aside[1])
    for part in (
        [lacking.entries] if lacking.is_all else _parts(log, lacking.start, lacking.stop, lacking.make())
    ):
        for key, entries in part.items():
            if only is None or key in only:
                place = aside[0] if key in elsewhere else root
                _write_missing(place, key, ends.get(key, 0), entries, lacking.file_size or 0, files)
                ends[key] = entries.max_offset


def truncate(queue: QueueState, files: FileWrites) -> None:
    """Zeroes the entries that point at or behind the log's end, and removes later files."""
    if queue.max_offset is None:
        return
    stop = queue.unit_stop * (BATCH_CQ_UNIT if queue.is_batch else CQ_UNIT).itemsize
    for file in reversed(list_store_files(queue.directory)):
        if file.start >= stop and file.start > queue.first_file:
            files.remove(file.path)
            files.sync_directory(queue.directory)
        elif file.stop > stop:
            with files.open(file.path) as writable:
                writable.zero(max(stop - file.start, 0), file.size)
                files.sync(writable)


def _write_missing(
    root: str, queue: QueueKey, max_offset: int, entries: MissingEntries, file_size: int, files: FileWrites
) -> None:
    """Writes the entries. Offsets of lost messages get `lost_units`."""
    directory = queue_directory(root, *queue)
    existing = list_store_files(directory)
    if existing and existing[0].size:
        file_size = existing[0].size
    first = int(entries.queue_offsets[0])
    start = max_offset if existing else first - first % (file_size // CQ_UNIT.itemsize)
    files.make_directories(root, "consumequeue", queue[0], str(queue[1]))
    lost = int(entries.queue_offsets[-1]) + 1 - start - len(entries.units)
    if not 0 <= lost <= _LOST_MAX:
        raise CorruptStoreError(
            directory,
            start * CQ_UNIT.itemsize,
            f"messages with consecutive queue offsets (at most {_LOST_MAX} missing)",
            f"{lost} queue offsets without a message in the commitlog. Restore the queue's files from a "
            "backup, or write to another store",
        )
    units = np.frombuffer(bytearray(pre_blank_bytes(int(entries.queue_offsets[-1]) + 1 - start)), CQ_UNIT)
    assert int(units["size"][0]) == CQ_PRE_BLANK_SIZE
    before = (start - 1 if existing else first, *entries.queue_offsets[:-1].tolist())
    for gap in np.flatnonzero(entries.queue_offsets - before > 1).tolist():
        low, stop = before[gap] + 1, int(entries.queue_offsets[gap])
        units[low - start : stop - start] = lost_units(queue[0], stop - low, entries.units[gap : gap + 1])
    units[entries.queue_offsets - start] = entries.units
    position, stop, data = (
        start * CQ_UNIT.itemsize,
        (start + len(units)) * CQ_UNIT.itemsize,
        memoryview(units.tobytes()),
    )
    while position < stop:
        within = position % file_size
        length = min(stop - position, file_size - within)
        done = position - start * CQ_UNIT.itemsize
        file, made = files.open_full(f"{directory}/{offset_file_name(position - within)}", file_size)
        with file:
            file.write(within, data[done : done + length])
            files.sync(file)
        if made:
            files.sync_directory(directory)
        position += length

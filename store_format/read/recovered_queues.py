"""After a crash: the queues of a snapshot as the broker's recovery would leave them, without changing a byte.

Entries of overwritten messages are hidden, entries that are missing are made from the log's tail
(CommitLog.recoverAbnormally, ConsumeQueueStore.recover).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.consumequeue.dispatch import Dispatch, MissingEntries
from store_format.consumequeue.slices import QueueRange, place_of_entry
from store_format.errors import CorruptStoreError, StoreError
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, MESSAGE_SIZE_MIN
from store_format.message.tags_code import DELAY_LEVELS_MS
from store_format.names import QueueKey
from store_format.read.stale_entries import without_cut, without_overwritten
from store_format.survey.broker_end import LogEnd
from store_format.survey.readable_end import ReadableEnd

_log = logging.getLogger(__name__)

_SIZE_MAX = 2**31 - 1

_Queues = dict[QueueKey, QueueRange]


def recovered_queues(
    log: CommitLog,
    queues: _Queues,
    damaged: dict[QueueKey, StoreError],
    end: LogEnd,
    readable: ReadableEnd,
    select: Callable[[str], bool],
    delay_levels_ms: tuple[int, ...],
) -> tuple[_Queues, dict[QueueKey, StoreError]]:
    """The queues after recovery, and those that cannot be used.

    `queues` and `damaged` are what the consume queue files say up to the end of the log. `delay_levels_ms` is
    the broker's messageDelayLevel, for missing entries of delayed messages.
    """
    queues, doubtful = without_overwritten(log, queues, end.scan_start, readable.offset)
    filled = {
        key for key, queue in queues.items() if queue.max_offset > queue.min_offset and not queue.is_batch
    }
    damaged = dict(damaged)
    for key, found in _missing_on_disk(log, queues, filled, doubtful, end, readable, delay_levels_ms).items():
        if not select(key[0]) or key in damaged:
            continue
        queue = queues.get(key) or QueueRange(*key, 0, 0, None, is_batch=found.units.dtype == BATCH_CQ_UNIT)
        queue, entries = without_cut(queue, found) if key in filled else (queue, found)
        if len(entries.units):
            queue = _with_extra(queue, _with_lost(queue, entries, readable.damaged))
        gap = _gap(queue) if end.scan_start > log.min_offset else None
        if gap is not None:
            damaged[key] = gap
        queues[key] = queue
    return {key: queue for key, queue in queues.items() if key not in damaged}, damaged


def _missing_on_disk(
    log: CommitLog,
    queues: _Queues,
    filled: set[QueueKey],
    doubtful: set[QueueKey],
    end: LogEnd,
    readable: ReadableEnd,
    delay_levels_ms: tuple[int, ...],
) -> dict[QueueKey, MissingEntries]:
    """Entries of all messages that recovery scans, also of those that have an entry on disk: that one may be
    of a message that an earlier recovery has cut.
    """
    return missing_entries(
        log,
        end.scan_start,
        readable.offset,
        {key: queue.min_offset if key in filled else queue.max_offset for key, queue in queues.items()},
        last_physical_offsets={
            key: -1 if key in doubtful else queue.bounds.last_physical_offset
            for key, queue in queues.items()
            if queue.bounds is not None
        },
        batch_topics={topic for (topic, _), queue in queues.items() if queue.is_batch},
        delay_levels_ms=delay_levels_ms,
        known_damage_bytes=readable.damage_bytes,
        hidden=readable.hidden,
    )


def _with_lost(
    queue: QueueRange, entries: MissingEntries, damaged: Sequence[tuple[int, int]]
) -> MissingEntries:
    """Also an entry for each queue offset between them that no message has: it points to the damaged bytes
    that may have held it.

    So a read in mode FAILFAST fails, and the other modes count the message, as where the entry is on disk.
    """
    if not damaged or entries.units.dtype != CQ_UNIT:
        return entries
    offsets, physical = entries.queue_offsets, entries.units["physical_offset"].astype(np.int64)
    if queue.bounds is not None and queue.max_offset > queue.min_offset:
        offsets = np.append(queue.max_offset - 1, offsets)
        physical = np.append(queue.bounds.last_physical_offset, physical)
    lost_offsets, lost_units = [], []
    for i in np.flatnonzero(np.diff(offsets) > 1).tolist():
        between = [(start, stop) for start, stop in damaged if physical[i] < start < physical[i + 1]]
        count = int(offsets[i + 1] - offsets[i]) - 1
        if count <= sum((stop - start) // MESSAGE_SIZE_MIN for start, stop in between):
            unit = np.zeros(1, CQ_UNIT)
            unit["physical_offset"], unit["size"] = (
                between[0][0],
                min(between[0][1] - between[0][0], _SIZE_MAX),
            )
            lost_offsets.append(np.arange(offsets[i] + 1, offsets[i + 1]))
            lost_units.append(np.repeat(unit, count))
    if not lost_offsets:
        return entries
    offsets, units = (
        np.concatenate([entries.queue_offsets, *lost_offsets]),
        np.concatenate([entries.units, *lost_units], dtype=CQ_UNIT),
    )
    order = np.argsort(offsets)
    return MissingEntries(offsets[order], units[order])


def _with_extra(queue: QueueRange, entries: MissingEntries) -> QueueRange:
    first = int(entries.queue_offsets[0])
    minimum = queue.min_offset if queue.max_offset > queue.min_offset else first
    return replace(
        queue,
        min_offset=minimum,
        max_offset=entries.max_offset,
        extra_start=queue.max_offset,
        extra=entries.units.tobytes(),
        extra_offsets=entries.queue_offsets.astype(np.int64).tobytes(),
    )


def _gap(queue: QueueRange) -> CorruptStoreError | None:
    """Between the entries on disk and those made from the log: the messages lie before what was scanned of
    it, or are gone.
    """
    first = int(np.frombuffer(queue.extra_offsets, np.int64, 1)[0]) if queue.extra else queue.extra_start
    if queue.bounds is None or first <= queue.extra_start:
        return None
    file, position = place_of_entry(
        replace(queue, extra_start=first).piece(queue.extra_start, first), queue.extra_start
    )
    found = f"none, and in the commitlog a message with offset {first}"
    return CorruptStoreError(
        file, position, f"an entry for offset {queue.extra_start} of {queue.topic}-{queue.queue_id}", found
    )


def missing_entries(
    commit_log: CommitLog,
    scan_start: int,
    end: int,
    max_offsets: Mapping[QueueKey, int],
    *,
    last_physical_offsets: Mapping[QueueKey, int] | None = None,
    batch_topics: Collection[str] = (),
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    known_damage_bytes: int = 0,
    hidden: Sequence[tuple[int, int]] = (),
) -> dict[QueueKey, MissingEntries]:
    """The queue entries of messages in `scan_start` to `end` that are missing on disk, by (topic, queue id).

    `max_offsets`: of each queue as it is on disk, without the units at or after `end`; a queue that is not
    named has no entries. An entry is missing if its queue offset is at or after that. `last_physical_offsets`
    excludes messages that are not newer than the queue's last one: remains of a topic that was deleted and
    created again (ConsumeQueue.putMessagePositionInfo). `batch_topics` have queue.type=BatchCQ. Damage in the
    range is skipped, with a warning unless the caller has warned of `known_damage_bytes`. Messages in the
    `hidden` ranges do not count.
    """
    dispatch = Dispatch(
        max_offsets, last_physical_offsets or {}, frozenset(batch_topics), tuple(delay_levels_ms)
    )
    if scan_start >= end:
        return dispatch.entries()
    walk = commit_log.walk(scan_start, end, resync=True)
    for found in walk:
        if not isinstance(found, Damage):
            outside = np.ones(len(found.positions), bool)
            for first, behind in hidden:
                outside &= (found.physical_offsets < first) | (found.physical_offsets >= behind)
            if outside.any():
                dispatch.add(
                    replace(found, positions=found.positions[outside], sizes=found.sizes[outside]), commit_log
                )
    if walk.sums.damage_bytes + walk.sums.missing_bytes > known_damage_bytes:
        _log.warning(
            "commitlog %d to %d: %d bytes are damaged and %d missing; messages there have no consume queue "
            "entry",
            scan_start,
            end,
            walk.sums.damage_bytes,
            walk.sums.missing_bytes,
        )
    return dispatch.entries()

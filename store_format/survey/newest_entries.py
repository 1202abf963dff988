"""The newest entries of queues as the log's messages give them, in memory: without changing a byte.

A broker's recovery sets the end of its queues back in memory and clears no entry. Entries at the end of a
queue whose messages it cut are old: those that point after the log's end are found by that end, those that
point into messages written since by these messages.

After a crash: the queues as the broker's recovery would leave them. Entries that are missing are made from
the log's tail (CommitLog.recoverAbnormally, ConsumeQueueStore.recover).

Without a crash a queue may have lost its newest entries. Three things show it: its newest entry leads to no
message of the queue; our last commit ended the queue at a later offset; the last message of the log has no
entry. What nothing shows stays as it is: a broker does the same.

`survey/queues.py` compares every entry of a queue with the log. That is no way for a reader: it looks at the
newest entry of each queue, and reads no more of the log than may have messages without an entry. What the
log's messages give, which of two messages counts, and which entry leads to a message is asked of the same
functions: `LogScan.entries_between`, `Claims`, `LogEntries`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import consecutive, merged_ranges, within_ranges
from store_format.bookkeeping.journal import StoreState
from store_format.bookkeeping.ledger import GivenUp
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.dispatch import Filing, MadeEntries, lost_max
from store_format.consumequeue.files import QueueKind, file_run
from store_format.consumequeue.slices import QueueRange, QueueRanges
from store_format.consumequeue.units import FiledQueue, message_mask
from store_format.display.text import first_names, shown
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.paths import StoreFile
from store_format.java.text import java_hash
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX, CQ_UNIT, MESSAGE_SIZE_MIN, OFFSET_MAX
from store_format.message.locate import Identity, UnitRefs, locate
from store_format.message.properties import PropertyTable
from store_format.names import DELAY_LEVELS_MS, SCHEDULE_TOPIC, TAGS, QueueKey, is_light_queue
from store_format.opened.store import Opened
from store_format.survey.entry_proofs import LogEntries
from store_format.survey.fates import Fates, StoredTopics
from store_format.survey.gone import QueueProofs
from store_format.survey.log_end import LogEnd, ReadableEnd, WrittenEnd, goes_on_to, has_own_entry
from store_format.survey.scan import LogScan, warn_of_far

_log = logging.getLogger(__name__)

_UNSETTLED_MAX = 64  # newest entries of a queue in use that may be half written
_SEARCH_SIZE = 4 << 30  # of the log, for the message of an entry that leads elsewhere
_NEAR_SIZE = 1 << 20  # of the log's end: it was fetched to find that end
_SIZE_MAX = 2**31 - 1

_LACK = (
    "%s: %d consume queues lack the entries of their newest messages: %s. The entries are made from the "
    "commitlog, in memory"
)
_OTHERS = (
    "%s: %d consume queues have entries of other messages, which a broker that starts keeps: %s. These "
    "entries are left out, and those of the queues' messages are made from the commitlog, in memory"
)
_MISFILED = (
    "%s: a broker that starts does not file all messages of %d consume queues at their queue offsets: %s. "
    "Their entries are made from the commitlog, in memory"
)

_Queues = Mapping[QueueKey, QueueRange]
_Damaged = dict[QueueKey, StoreError]


# ---- after a crash, and without one ------------------------------------------------------------------------


def recovered_queues(
    opened: Opened,
    log: CommitLog,
    queues: _Queues,
    damaged: _Damaged,
    end: LogEnd,
    readable: ReadableEnd,
    select: Callable[[str], bool],
    delay_levels_ms: tuple[int, ...],
) -> tuple[_Queues, _Damaged]:
    """The queues after recovery, and those that cannot be used.

    `queues` and `damaged` are what the consume queue files say up to the end of the log. `delay_levels_ms` is
    the broker's messageDelayLevel, for missing entries of delayed messages.
    """
    before = queues
    queues, doubtful = _without_overwritten(opened, log, queues, end.scan_start, readable.offset)
    tail = _LogTail(
        end.scan_start, readable.offset, readable.old, readable.damaged, readable.damage_bytes, end.start
    )
    starts = dict.fromkeys(doubtful, 0)
    filing = cache(lambda: QueueProofs(opened, log).filing(StoreState.CRASHED, end.start))
    made, _ = _made_from_tail(log, queues, tail, starts, delay_levels_ms, filing)
    queues, gaps = _with_tail(
        log, queues, tail, starts, made, lambda key: select(key[0]) and key not in damaged
    )
    damaged = damaged | gaps
    kept = {key: queue for key, queue in queues.items() if key not in damaged}
    others = [
        key for key, queue in kept.items() if _has_other_entries(queue, before.get(key), readable.offset)
    ]
    _warn_once(opened, log, _OTHERS, others)
    going_on = {key for key in made if _goes_on(before.get(key), readable.offset)}
    behind = end.start
    if going_on:  # a broker that starts files the messages of the other queues first
        others_made = (made[key].units for key in made.keys() - going_on)
        stops = [int((units["physical_offset"] + units["size"]).max(initial=-1)) for units in others_made]
        stops += [stop for _, stop in filing().ends.values()]
        if not all(_has_entries(before[key]) for key in going_on):  # truncateDirtyLogicFiles
            stops.append(readable.offset)
        behind = max([behind, *(stop for stop in stops if stop <= readable.offset)])
    misfiled = [
        key
        for key, found in made.items()
        if key in kept
        and _is_misfiled(kept[key], before.get(key), found, behind if key in going_on else end.start)
    ]
    _warn_once(opened, log, _MISFILED, misfiled)
    return kept, damaged


def completed_queues(
    opened: Opened,
    log: CommitLog,
    queues: _Queues,
    wrong: set[QueueKey],
    log_stop: Callable[[], int],
    end: WrittenEnd | None,
    delay_levels_ms: Callable[[], tuple[int, ...]],
    astray: Collection[QueueKey] = (),
) -> tuple[_Queues, _Damaged]:
    """The queues of a store without a crash, with newest entries that their files lack, and those with a gap
    before these entries. Costs one read of the log if nothing is missing.

    The newest entry of the queues `wrong` leads to no message of theirs; that of the queues `astray` led far
    behind the log, and is left out. No message behind `log_stop` counts; `end` is the end of the log. Only if
    it is certain do earlier commits show where queues end.
    """
    starts = {key: LogEntries(log).last_own(queues[key]) for key in wrong.union(astray) & queues.keys()}
    starts |= {
        key: log.min_offset
        for key, start in starts.items()
        if start is None
        and (key in astray or _is_exchanged(queues[key], log) or _is_built(opened, queues[key], log))
    }
    places = [start for start in starts.values() if start is not None]
    doubtful = {key: start for key, start in starts.items() if start is not None}
    ends: Mapping[QueueKey, int] = {}
    if end is not None and not end.remains:
        ends = Fates(opened, log).last_commit_ends(end.offset)
        # of queues that may have been created again since the commit
        begins = GivenUp.known(opened).queue_begins
        short = {
            key: max(queue.bounds.last_physical_offset, log.min_offset, begins.get(key, 0))
            for key, queue in (queues.items() if ends else ())
            if queue.max_offset < ends.get(key, 0) and _has_entries(queue) and queue.bounds is not None
        }
        lacks_last = _lacks_last(opened, log, queues, wrong, end)
        # a broker that has cut messages leaves the bytes of the last one
        if (short or lacks_last) and goes_on_to(opened, log, end.offset):
            short = short if end.is_certain else {}
            doubtful |= short  # the last entry may be that of a lost message, which leads to the next
            places += short.values()
            places += [max(end.offset - QueueProofs.TAIL_SIZE, log.min_offset)] if lacks_last else []
    if not places or min(places) >= (stop := log_stop()):
        return queues, {}
    if end is None or not end.is_certain:
        ends = {}
    deleted = StoredTopics(opened).deleted_until()
    tail, filing = (
        _LogTail(min(places), stop),
        cache(lambda: QueueProofs(opened, log).filing(StoreState.CLEAN)),
    )
    made, damaged = _made_from_tail(log, queues, tail, doubtful, delay_levels_ms(), filing)
    tail = replace(tail, damaged=damaged)
    done, gaps = _with_tail(
        log, queues, tail, doubtful, made,
        lambda key: key in queues and _has_entries(queues[key]) and not deleted(key[0]), ends,
        GivenUp.known(opened).ranges,
    )  # fmt: skip
    changed = [key for key, queue in done.items() if queue.extra and key not in gaps]
    _warn_once(opened, log, _LACK, changed)
    return {key: queue for key, queue in done.items() if key not in gaps}, gaps


def _warn_once(opened: Opened, log: CommitLog, text: str, keys: Sequence[QueueKey]) -> None:
    told = {(_warn_once, key) for key in keys}
    if not log.cache.said.issuperset(told):
        log.cache.said.update(told)
        names = first_names(f"{topic}-{queue_id}" for topic, queue_id in sorted(keys))
        _log.warning(text, opened.path, len(keys), names)


def _has_other_entries(queue: QueueRange, before: QueueRange | None, end: int) -> bool:
    """Whether a broker that starts may keep entries that the queue had `before`, also behind one of zeros
    (ConsumeQueue.truncateDirtyLogicFiles). The log ends at `end`.
    """
    there, start = None if before is None else before.bounds, min(queue.max_offset, queue.extra_start)
    if there is None or queue.is_batch or not queue.extra:
        return there is not None and there.max_offset > start
    made, count = queue.extra_units["physical_offset"], there.file_size // CQ_UNIT.itemsize
    run = file_run(there.directory, CQ_UNIT.itemsize)
    last_file = there.last_file if run is None else run.last_file
    stop = min(start + len(made) + _UNSETTLED_MAX, last_file // CQ_UNIT.itemsize + count)
    with there.open() as files:
        units = files.read(start, stop)
    is_other, is_in_log = message_mask(units), units["physical_offset"] < end
    begins = np.flatnonzero(is_other & is_in_log & (np.arange(start, stop) % count == 0))
    is_in_log[: begins.max(initial=0)] = True  # the broker looks at the last file alone
    is_other &= is_in_log
    is_other[: len(made)] &= units["physical_offset"][: len(made)] != made[: len(units)]
    return bool(is_other.any())


def _goes_on(queue: QueueRange | None, log_end: int) -> bool:
    """Whether entries of the queue lead behind the log's end. Then a broker that starts files only what is
    behind the messages of all other queues (ConsumeQueue.putMessagePositionInfo, truncateDirtyLogicFiles).
    """
    there = None if queue is None or queue.is_batch else queue.bounds
    run = None if there is None else file_run(there.directory, CQ_UNIT.itemsize)
    if there is None or run is None or there.unit_stop * CQ_UNIT.itemsize >= run.last_file + run.file_size:
        return False
    with there.open() as files:
        unit = files.read(there.unit_stop, there.unit_stop + 1)
    return bool(message_mask(unit)[0] and unit["physical_offset"][0] >= log_end)


def _is_misfiled(queue: QueueRange, before: QueueRange | None, found: MadeEntries, start: int) -> bool:
    """Whether a broker that starts files a message of the entries `found` at another queue offset, or does
    not file it. A broker files those from the physical offset `start` on, one entry behind the other.

    The files ended as `before`: then each message with offset 0 gets the next entry.
    """
    if queue.is_batch:
        return False
    there, physical = None if before is None else before.bounds, found.units["physical_offset"]
    last = int(physical.min(initial=OFFSET_MAX))
    if there is not None and there.has_entries:
        last = there.last_physical_offset
    is_again = ((found.queue_offsets == 0) & (physical > last) & (physical >= start)).any()
    offsets = np.frombuffer(queue.extra_offsets, np.int64)
    is_filed = queue.extra_units["physical_offset"] >= start
    is_filed &= offsets == (offsets[:1] if there is None else there.max_offset) + np.arange(len(offsets))
    return bool(is_again or not is_filed.all() or (found.has_two_first and len(offsets)))


def _lacks_last(
    opened: Opened, log: CommitLog, queues: _Queues, wrong: set[QueueKey], end: WrittenEnd
) -> bool:
    """Whether the log's last message `lacks_entry`, if that matters to these queues: without a look at its
    queue, on object storage a request, where they and the last bytes of the log show that they lack none.
    """
    table = QueueRanges.of(queues)
    for number in np.flatnonzero(table.columns["last_physical_offset"] == end.last_offset).tolist():
        key, queue = table.keys_in_order[number], table.queue(number)
        if _has_entries(queue) and key not in wrong and not is_light_queue(key[0]):
            return False
    filed = {
        key: queue.bounds.last_physical_offset
        for key, queue in queues.items()
        if queue.bounds is not None and _has_entries(queue)
    }
    if not filed:
        return False
    start = max(min(filed.values()), log.min_offset)
    if opened.is_remote and not wrong and end.offset - _NEAR_SIZE < start < end.offset:
        made, _ = _made_from_tail(log, queues, _LogTail(start, end.offset), {}, DELAY_LEVELS_MS)
        if not filed.keys() & made.keys():
            return False
    return QueueProofs(opened, log).lacks_entry(end.last_offset, max(filed.values()))


def _has_entries(queue: QueueRange) -> bool:
    return queue.bounds is not None and queue.bounds.has_entries


def _is_filled(queue: QueueRange) -> bool:
    return queue.max_offset > queue.min_offset and not queue.is_batch


# ---- entries that the files lack ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LogTail:
    """The messages of [start, stop) of the log, without those in the stretches `old`.

    `damaged` are stretches of bytes that are no message. Of `damage_bytes` a warning was logged. A broker
    that starts dispatches the messages from `broker_start` on: it makes a queue without files of these alone.
    """

    start: int
    stop: int
    old: Sequence[tuple[int, int]] = ()
    damaged: Sequence[tuple[int, int]] = ()
    damage_bytes: int = 0
    broker_start: int = 0


def _with_tail(
    log: CommitLog,
    queues: _Queues,
    tail: _LogTail,
    doubtful: Mapping[QueueKey, int],
    made: Mapping[QueueKey, MadeEntries],
    chooses: Callable[[QueueKey], bool],
    known: Mapping[QueueKey, int] | None = None,
    given_up: Mapping[QueueKey, Sequence[tuple[int, int]]] = MappingProxyType({}),
) -> tuple[_Queues, _Damaged]:
    """The queues with the entries of the chosen ones that are `made` of the log's tail, and those with a
    gap before these entries.

    All messages of the tail are looked at, also those that have an entry on disk: that one may be of a
    message that an earlier recovery has cut. Of a `doubtful` queue those from its physical offset on count,
    of another queue only those behind its last.
    With `known`, the ends of queues as far as they are known, later entries count only if their offsets
    continue the queue without a gap, apart from those of messages that a recovery has `given_up`.
    """
    queues, gaps = dict(queues), dict[QueueKey, StoreError]()
    for key in [key for key, start in doubtful.items() if max(start, tail.start) <= log.min_offset]:
        # The whole log is looked at: no message of the queue is before the first one that it has.
        queue, first = queues[key], int(made[key].queue_offsets[0]) if key in made else OFFSET_MAX
        first = min(first, queue.max_offset)
        if first > queue.min_offset and _other_queue(queue, log, first - 1):
            queues[key] = queue._replace(min_offset=first)
            text = "%s-%d: entries up to offset %d lead to messages of other queues, and are left out"
            _log.warning(text, shown(key[0]), key[1], queues[key].min_offset - 1)
    for key, found in made.items():
        if not chooses(key):
            continue
        kind: QueueKind = "batch" if found.units.dtype == BATCH_CQ_UNIT else "simple"
        queue = queues.get(key) or QueueRange(*key, 0, 0, None, kind=kind)
        end, is_filled = queue.max_offset, _is_filled(queue)
        queue, entries = _without_cut(log, tail, queue, found) if is_filled else (queue, found)
        entries = _without_far(queue, entries, log.cache.said)
        # else messages before the first entry may have expired
        if known is not None and not queue.is_batch and (is_filled or not log.min_offset):
            entries = _continuing(queue, entries, max(known.get(key, 0), end), given_up.get(key, ()))
        if len(entries.units):
            entries = _with_lost(queue, entries, tail.damaged)
            first = int(entries.queue_offsets[0])
            if queue.bounds is not None and first > queue.max_offset and tail.start > log.min_offset:
                gaps[key] = _gap(queue, first)
            queue = _with_extra(queue, entries)
        queues[key] = queue
    return queues, gaps


def _made_from_tail(
    log: CommitLog,
    queues: _Queues,
    tail: _LogTail,
    doubtful: Mapping[QueueKey, int],
    delay_levels_ms: tuple[int, ...],
    filing: Callable[[], Filing] = Filing,
) -> tuple[dict[QueueKey, MadeEntries], list[tuple[int, int]]]:
    """The entries of the tail's messages whose queue offset is at or behind the end of their queue, or that
    may be there: of a queue with entries all newer than the last one count, of a `doubtful` one all from its
    physical offset on. Older ones are remains of a topic that was deleted and created again
    (ConsumeQueue.putMessagePositionInfo). And the damaged stretches of the tail, of which it warns unless
    that was done.
    """

    def floor(key: QueueKey) -> tuple[int, int]:
        queue, start = queues.get(key), doubtful.get(key)
        if queue is None or queue.bounds is None:
            return 0, tail.broker_start - 1
        last, is_empty = queue.bounds.last_physical_offset, queue.max_offset == queue.min_offset
        if start is not None or is_empty:  # the first entry may lead behind the log's end
            last = max(last if start is None else start - 1, max(filing().first_of(key), 0) - 1)
        if is_empty:
            return queue.max_offset, last
        is_whole = start is not None and start <= log.min_offset
        return queue.max_offset if queue.is_batch else 0 if is_whole else queue.min_offset, last

    batch_topics = frozenset(topic for (topic, _), queue in queues.items() if queue.is_batch)
    scan = LogScan(batch_topics, delay_levels_ms, index=False, floor=floor)
    found, damage = scan.entries_between(log, [(tail.start, tail.stop)], old=tail.old, filing=filing)
    damaged = merged_ranges(each.range for each in damage)
    if (size := sum(stop - start for start, stop in damaged)) > tail.damage_bytes:
        text = (
            "commitlog %d to %d: %d bytes are damaged or missing; messages there have no consume queue entry"
        )
        _log.warning(text, tail.start, tail.stop, size)
    return found, damaged


def _continuing(
    queue: QueueRange, entries: MadeEntries, known: int, given_up: Sequence[tuple[int, int]]
) -> MadeEntries:
    """The entries before the queue offset `known`, and those that continue the queue without a gap."""
    end = queue.max_offset
    for start, stop in merged_ranges([*consecutive(entries.queue_offsets), *given_up]):
        end = max(end, stop) if start <= end else end
    kept = entries.queue_offsets < max(known, end)
    return MadeEntries(entries.queue_offsets[kept], entries.units[kept])


def _with_lost(queue: QueueRange, entries: MadeEntries, damaged: Sequence[tuple[int, int]]) -> MadeEntries:
    """Adds an entry for each queue offset between the entries that no message has.

    An added entry points to the damaged bytes that may have held the message. So a read in mode FAILFAST
    fails, and the other modes count the message, as where the entry is on disk.
    """
    if not damaged or entries.units.dtype != CQ_UNIT:
        return entries
    offsets, physical = entries.queue_offsets, entries.units["physical_offset"].astype(np.int64)
    if queue.bounds is not None and queue.max_offset > queue.min_offset:
        offsets = np.append(queue.max_offset - 1, offsets)
        physical = np.append(queue.bounds.last_physical_offset, physical)
    every = [entries]
    for i in np.flatnonzero(np.diff(offsets) > 1).tolist():
        between = [(start, stop) for start, stop in damaged if physical[i] < start < physical[i + 1]]
        count = int(offsets[i + 1] - offsets[i]) - 1
        if count <= sum((stop - start) // MESSAGE_SIZE_MIN for start, stop in between):
            unit = np.array([(between[0][0], min(between[0][1] - between[0][0], _SIZE_MAX), 0)], CQ_UNIT)
            lost = np.arange(offsets[i] + 1, offsets[i + 1])
            every.append(MadeEntries(lost, np.repeat(unit, count)))
    offsets = np.concatenate([each.queue_offsets for each in every])
    order = np.argsort(offsets)
    units = np.concatenate([each.units for each in every], dtype=CQ_UNIT)
    return MadeEntries(offsets[order], units[order])


def _with_extra(queue: QueueRange, entries: MadeEntries) -> QueueRange:
    first = int(entries.queue_offsets[0])
    minimum = queue.min_offset if queue.max_offset > queue.min_offset else first
    return queue._replace(
        min_offset=minimum,
        max_offset=entries.max_offset,
        extra_start=queue.max_offset,
        extra=entries.units.tobytes(),
        extra_offsets=entries.queue_offsets.astype(np.int64).tobytes(),
    )


def _gap(queue: QueueRange, first: int) -> CorruptStoreError:
    """Between the entries on disk and those made from the log, which begin at the queue offset `first`: the
    messages lie before what was scanned of it, or are gone.
    """
    stop = queue.max_offset
    file, position = queue.piece(stop, first).place_of(stop)
    expected = f"an entry for offset {stop} of {queue.topic}-{queue.queue_id}"
    found = f"none, and in the commitlog a message with offset {first}"
    return CorruptStoreError(file, position, expected, found)


# ---- entries that do not count -----------------------------------------------------------------------------


def settled(queue: QueueRange, log: CommitLog) -> QueueRange:
    """The queue without newest entries that are half written or ahead of the log.

    These are not written yet; they are not damage.
    """
    stop = queue.max_offset
    floor = max(queue.min_offset, stop - _UNSETTLED_MAX)
    while stop > floor and not _agrees(queue, stop - 1, log):
        stop -= 1
    return queue if stop == queue.max_offset else queue._replace(max_offset=stop)


def judged_queues(
    opened: Opened, log: CommitLog, queues: _Queues, log_stop: Callable[[], int], *, is_live: bool = False
) -> tuple[_Queues, set[QueueKey]]:
    """Of a store without a crash, whose log ends at `log_stop`: the queues without old entries, and those
    whose newest entry is wrong and not old.

    Costs one read a queue, and more only if its newest entry is wrong. If the entry's message is elsewhere in
    the log, the entry is wrong, and stays. The message to which it points is damaged if no entry of
    the queue that the message names points there; in a store that a broker writes (`is_live`) that entry may
    not be written yet.
    """
    whole = _Whole(log)

    def is_foreign(_: int, physical: int) -> bool:
        start = whole.at(physical)
        return start >= 0 and (is_live or has_own_entry(opened, log, start))

    changed, wrong = {}, set()
    for key, queue in _with_wrong_newest(opened, log, queues, or_light=False):
        cut = _cut_overwritten(queue, log, is_foreign)
        if cut.max_offset < queue.max_offset and not _is_elsewhere(queue, cut, log, log_stop()):
            changed[key] = cut
        else:
            wrong.add(key)
    return QueueRanges.of(queues).changed(changed) if changed else queues, wrong


def _with_wrong_newest(
    opened: Opened, log: CommitLog, queues: _Queues, *, or_light: bool = True
) -> list[tuple[QueueKey, QueueRange]]:
    """The queues whose newest entry leads to no message of its place, as far as no body is read for that.
    With `or_light` also light ones, whose messages belong to other queues.
    """
    view_of = lru_cache(maxsize=64)(log.view)  # which looks at the file's status for each queue otherwise

    def is_right(found: tuple[QueueKey, QueueRange]) -> bool:
        key, queue = found
        bounds, newest = queue.bounds, queue.max_offset - 1
        if bounds is None or not _is_filled(queue):
            return True
        place = bounds.last_physical_offset, bounds.last_size
        return LogEntries(log).is_own(key, newest, place, view_of) or _agrees(queue, newest, log)

    table = QueueRanges.of(queues)
    unknown = np.flatnonzero(~LogEntries(log).own_newest(table)).tolist()
    keys = ((table.keys_in_order[number], number) for number in unknown)
    asked = [(key, table.queue(at)) for key, at in keys if or_light or not is_light_queue(key[0])]
    looked = opened.files.look_at_each(asked, is_right)
    return [found for found, right in looked if not right]


def _without_overwritten(
    opened: Opened, log: CommitLog, queues: _Queues, start: int, stop: int
) -> tuple[_Queues, set[QueueKey]]:
    """After a crash: the queues without newest entries whose messages are overwritten.

    The log was recovered from `start` to `stop`. An entry that points into damage stays, and is an error or
    counted when it is read. The second result are the queues whose newest entry on disk was wrong.
    """
    scanned = {
        key: queue
        for key, queue in queues.items()
        if queue.bounds is not None and queue.bounds.last_physical_offset >= start
    }
    cut = dict(_with_wrong_newest(opened, log, scanned))
    whole = _Whole(log, start, stop)

    def is_overwritten(key: QueueKey, offset: int, physical: int) -> bool:
        message = LogEntries(log).message_at(physical) if whole.at(physical) == physical else None
        if message is None or message.key[0] != key[0]:
            return whole.at(physical) >= 0
        # Without an entry of its own, its queue id or queue offset may be wrong: then it is damaged.
        other = queues.get(message.key)
        if other is None or not other.readable_offset <= message.offset < other.max_offset:
            return not message.offset
        if other.place(message.offset)[0] == physical:
            return message.key != key or message.offset != offset
        return (message.key != key or message.offset < offset) and not _agrees(other, message.offset, log)

    return {**queues} | {
        key: _cut_overwritten(queue, log, partial(is_overwritten, key)) for key, queue in cut.items()
    }, set(cut)


def _without_cut(
    log: CommitLog, tail: _LogTail, queue: QueueRange, found: MadeEntries
) -> tuple[QueueRange, MadeEntries]:
    """The queue up to the first entry that does not point to a message of its place, and what is missing
    after it.

    `found` has entries of all messages in the log's tail that were stored after the queue's last one, or of
    all in the tail. An entry that points elsewhere was written for a message that an earlier recovery has
    cut, and so were all entries after it, if none of them leads to a message of its place. Of two messages of
    one place that has an entry, the entry's counts.
    """
    offsets, stop = found.queue_offsets, queue.max_offset
    if offsets[0] < stop:
        on_disk, units = queue.piece(max(int(offsets[0]), queue.readable_offset), stop).read()
        physical = units["physical_offset"].astype(np.int64)
        _, at, of = np.intersect1d(on_disk, offsets, return_indices=True)
        same = physical[at] == found.units["physical_offset"][of]
        same &= units["size"][at] == found.units["size"][of]
        last = int(on_disk[at[same]].max(initial=queue.readable_offset - 1))
        own = (on_disk > last) & (physical < tail.stop) & ~within_ranges(physical, tail.old)
        own[own] = LogEntries(log).leads_to_own((queue.topic, queue.queue_id), on_disk[own], units[own])
        wrong = offsets[(offsets > on_disk[own].max(initial=last)) & (offsets < stop)]
        if len(wrong):
            stop = int(wrong[0])
            queue = _cut_at(queue, stop)
    # A message before that of the last entry has an entry (ConsumeQueue.putMessagePositionInfo), and so has
    # that of the last entry, unless the entry is of a lost message and leads to the next one.
    last = -1 if queue.bounds is None else queue.bounds.last_physical_offset
    is_asked = not queue.is_batch and (found.units["physical_offset"][offsets >= stop] == last).any()
    if is_asked and queue.place(stop - 1)[0] < 0:
        last -= 1
    kept = (offsets >= stop) & (found.units["physical_offset"] > last)
    return queue, MadeEntries(offsets[kept], found.units[kept])


def _cut_overwritten(
    queue: QueueRange, log: CommitLog, is_overwritten: Callable[[int, int], bool]
) -> QueueRange:
    """The queue without its last entries of which `is_overwritten`, asked with queue offset and physical
    offset, says that their message is another one now.
    """
    last = queue.max_offset - 1
    while last >= queue.min_offset and is_overwritten(last, queue.place(last)[0]):
        if _agrees(queue, last, log):
            break
        last -= 1
    return _cut_at(queue, last + 1)


def _cut_at(queue: QueueRange, stop: int) -> QueueRange:
    """The queue without its entries from offset `stop` on."""
    assert queue.bounds is not None
    physical, size = queue.place(stop - 1) if stop > queue.min_offset else (-1, 0)
    last = queue.bounds._replace(
        unit_stop=stop, max_offset=stop, last_physical_offset=physical, last_size=size
    )
    return queue._replace(
        max_offset=stop,
        bounds=last if stop > queue.min_offset else last._replace(first_physical_offset=-1),
    )


def _is_elsewhere(queue: QueueRange, cut: QueueRange, log: CommitLog, stop: int) -> bool:
    """Whether the log has a message of the queue at an offset that was cut.

    True if the search would be too long.
    """
    assert cut.bounds is not None
    if stop - max(cut.bounds.last_physical_offset, log.min_offset) > _SEARCH_SIZE:
        return True
    found = LogEntries(log).entries_of([(queue, np.arange(cut.max_offset, queue.max_offset))], stop)
    return any(len(entries.units) for entries in found.values())


@dataclass(slots=True)
class _Whole:
    """Whole messages of [start, stop) of the log, CRC included, of each file that `at` asks for."""

    log: CommitLog
    start: int = 0
    stop: int = OFFSET_MAX
    # where they begin and end, by file
    known: dict[StoreFile, tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=dict)

    def at(self, physical: int) -> int:
        """Where the whole message with the byte at this physical offset begins; -1 without one."""
        file = self.log.file_at(physical)
        if file is None or not self.start <= physical < self.stop:
            return -1
        if file not in self.known:
            low, high = max(file.start, self.start), min(file.stop, self.stop)
            runs = [(run.physical_offsets, run.sizes) for run in self.log.runs(low, high, verify_crc=True)]
            empty = [(np.empty(0, np.int64), np.empty(0, np.int64))]
            starts, sizes = map(np.concatenate, zip(*empty, *runs, strict=True))
            self.known[file] = starts, starts + sizes
        starts, stops = self.known[file]
        i = int(np.searchsorted(starts, physical, side="right")) - 1
        return int(starts[i]) if i >= 0 and physical < int(stops[i]) else -1


# ---- the newest entry, and its message ---------------------------------------------------------------------


def _agrees(queue: QueueRange, offset: int, log: CommitLog) -> bool:
    """Whether the entry of one offset, tags code included, is what the log's message says."""
    _, units = queue.piece(offset, offset + 1).read()
    if not len(units):
        return False
    unit = units[-1]
    physical, size, tags_code = int(unit["physical_offset"]), int(unit["size"]), int(unit["tags_code"])
    file = log.file_at(physical)
    if file is None or size > file.stop - physical:
        return False
    try:
        data = np.frombuffer(log.read(physical, size), np.uint8)
    except StoreError:
        return False
    queue_offset = int(unit["base_offset"]) if units.dtype == BATCH_CQ_UNIT else offset
    light = (is_light_queue(queue.topic),)
    identity = Identity(
        (queue.topic,), None, np.array([queue.queue_id], np.int32), np.array([queue_offset]), light
    )
    refs = UnitRefs(
        file,
        data,
        np.zeros(1, np.int64),
        np.array([physical]),
        np.array([size]),
        np.array([tags_code]),
        identity,
    )
    good, bad = locate(refs, verify_crc=True)
    if bad:
        return False
    if tags_code <= CQ_EXT_ADDRESS_MAX or queue.topic == SCHEDULE_TOPIC:
        return True  # an address or a delivery time, both written in one go with the rest
    tags = PropertyTable(good.raw_properties()).values(TAGS)[0].as_py()
    return tags_code == (java_hash(tags) if tags else 0)


def _is_exchanged(queue: QueueRange, log: CommitLog) -> bool:
    """Whether the oldest and the newest entry lead to messages of one other queue: the files are another
    queue's. The message of one entry alone may be damaged.
    """
    ends = [_other_queue(queue, log, offset) for offset in (queue.min_offset, queue.max_offset - 1)]
    return ends[0] is not None and ends[0] == ends[1] and queue.max_offset - queue.min_offset > 1


def _is_built(opened: Opened, queue: QueueRange, log: CommitLog) -> bool:
    """Whether a broker that starts files all messages of the queue: it finds an invalid first entry
    (ConsumeQueue.recover).
    """
    found = FiledQueue.of(opened, queue.topic, queue.queue_id).bounds(log.min_offset, scan=True)
    return found is not None and found.max_offset <= queue.min_offset


def _other_queue(queue: QueueRange, log: CommitLog, offset: int) -> QueueKey | None:
    """The queue of the message to which the entry of a queue offset leads; None for the entry's own queue."""
    place = LogEntries(log).message_at(queue.place(offset)[0])
    return None if place is None or place.key == (queue.topic, queue.queue_id) else place.key


def _without_far(queue: QueueRange, entries: MadeEntries, said: set[object]) -> MadeEntries:
    """The entries without those that are too far behind the queue, if they are not more than it has: their
    queue offsets are damaged, and no recovery files them. Warns once for each queue, as `said` shows.
    """
    if queue.bounds is None or queue.is_batch or queue.max_offset <= queue.min_offset:
        return entries
    lost = np.diff(entries.queue_offsets, prepend=queue.max_offset)
    far = np.logical_or.accumulate(lost > lost_max(queue.bounds.file_size // CQ_UNIT.itemsize))
    count = int(np.count_nonzero(far))
    if not 0 < count <= queue.max_offset - queue.min_offset:
        return entries
    warn_of_far((queue.topic, queue.queue_id), count, int(entries.queue_offsets[far][0]), said)
    return MadeEntries(entries.queue_offsets[~far], entries.units[~far])

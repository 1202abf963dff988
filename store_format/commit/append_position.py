"""Where a commit appends: the end of a log without a crash, and the next offset of each queue.

The ledger has the end of our last commit and of its queues, so that the next commit need not scan the log. A
store that a broker shut down cleanly is scanned as the broker would scan it (CommitLog.recoverNormally).

A writer looks at what it builds on. A lost queue would begin at 0 again, and a queue without its last
entries would repeat offsets; the older messages would be in no queue, for us and for brokers. So each queue
needs a proof that it has all its entries: the ledger, or a look at its entries and at the end of the log. A
note keeps the result of a scan of the log, so that the next commit need not scan again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.journal import StoreState, note_path
from store_format.bookkeeping.ledger import GivenUp
from store_format.commit.log_comparison import LockedStore, LogComparison, of_known_topics
from store_format.commit.queue_changes import truncate
from store_format.commit.repair import (
    compare_aside,
    cut_behind_end,
    end_rebuild,
    find_end,
    is_rebuild_begun,
    last_commit,
)
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import QUEUE_OFFSET_MAX, QueueBounds
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import FiledQueue, pre_blank_mask, valid_units
from store_format.display.text import shown
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.index.file import list_index_files
from store_format.layouts import CQ_UNIT, OFFSET_MAX
from store_format.names import QueueKey
from store_format.survey.fates import Fates, StoredTopics
from store_format.survey.gone import QueueProofs
from store_format.survey.snapshot import Snapshot

_log = logging.getLogger(__name__)

_TAIL_SIZE = 32 << 20  # of the log: read where only a broker knows whether a queue has its last entries
_MANY = 64  # queues without files
_CHUNK = 1 << 16  # units
_NEWEST = 1 << 12  # units that are looked at before each commit
_BLOCK_SIZE = 4080  # bytes of whole units
_OFFSET_MAX = QUEUE_OFFSET_MAX >> 8  # that a group can have reached


class WriterEnd(NamedTuple):
    """The physical offset of the next unit, and of the last unit the offset and the store time (ms).

    Both are -1 in a log without a unit. `is_ours`: a commit wrote the last unit, with its queue entry.
    `doubtful`: queues may lack entries of messages behind this physical offset. `filed` is the physical
    offset of the last message with an entry in any simple queue, -1 if that is not known.
    """

    offset: int
    last_timestamp: int
    last_offset: int = -1
    is_ours: bool = False
    doubtful: int = OFFSET_MAX
    filed: int = -1


def ends_with_commit(held: LockedStore) -> bool:
    """Whether the last message of the log is that of our last commit."""
    ours = last_commit(held.log, held.ledger)
    return ours is not None and held.log.is_unwritten(ours.stop)


def find_writer_end(held: LockedStore) -> WriterEnd:
    """The end of a log without a crash. Zeroes remains of an older recovery behind the end.

    Removes queue and index entries that point behind the end (`cut_behind_end`). Raises the `refused`
    of `find_end`, which is None if `cut_after_damage` gives up the messages behind damage.
    """
    log = held.log
    for file in log.files:
        if file.start % log.file_size:
            raise CorruptStoreError(
                file.path, 0, f"a name that is a multiple of the file size {log.file_size}", str(file.start)
            )
    ours = held.ledger.last
    if ours is not None and ends_with_commit(held):
        timestamp = log.store_timestamp_at(ours.last_offset)
        return WriterEnd(ours.stop, timestamp, ours.last_offset, is_ours=True)
    return _cut(held)


def _cut(held: LockedStore) -> WriterEnd:
    """The end of the log, by a walk, without what points behind it.

    An entry that points behind the end may be wrong, and its message be in the log: the messages behind the
    entries before it are compared.
    """
    opened, log = held.opened, held.log
    recovery = find_end(opened, log, held.compared(index=True))
    if recovery.refused is not None:
        raise recovery.refused
    end, doubtful = recovery.end, OFFSET_MAX
    for queue, _ in recovery.ahead:
        filed = FiledQueue(queue.topic, queue.queue_id, queue.directory, queue.kind)
        bounds = filed.bounds(log.min_offset, commit_log_stop=end.offset)
        last = -1 if bounds is None else bounds.last_physical_offset
        doubtful = min(doubtful, max(last, log.min_offset))
    gone = {each.key for each in QueueProofs(opened, log).gone_by_ledger(recovery.queues)}
    for queue in recovery.queues if gone else ():  # the log may have messages without an entry
        if (queue.topic, queue.queue_id) in gone:
            doubtful = min(doubtful, max(queue.last_physical_offset, log.min_offset))
    # Once the log's last message has an entry, a broker that starts cuts a queue at an entry that leads
    # behind the log (ConsumeQueue.truncateDirtyLogicFiles).
    if recovery.queued_stop < end.offset and any(_leads_behind(each, end.offset) for each in recovery.queues):
        doubtful = log.min_offset
    if doubtful < end.offset:
        found = LogComparison(
            opened=opened, source=opened, log=log, start=doubtful, stop=end.offset, settings=held.settings,
            options=held.compared(index=False), begins=recovery.begins,
            filing=recovery.filing,
        )  # fmt: skip
        found.run()
        recovery.compared = found.compared
    cut_behind_end(recovery, held.files)
    last = end.last_unit_offset
    simple = (each.last_physical_offset for each in recovery.queues if each.kind == "simple")
    last_filed = max(simple, default=-1)
    return WriterEnd(end.offset, log.store_timestamp_at(last), last, doubtful=doubtful, filed=last_filed)


def _leads_behind(queue: QueueBounds, log_stop: int) -> bool:
    """Whether an entry in the queue's last file leads behind the log's end."""
    if queue.kind != "simple":
        return False
    with queue.open() as files:
        units = files.read(max(queue.last_file // CQ_UNIT.itemsize, queue.unit_start), queue.unit_stop)
    return bool((units["physical_offset"] >= log_stop).any())


class QueueAppendPosition(NamedTuple):
    """The offset of a queue's next message, and the end of its entries. No message is between them."""

    base: int
    end: int


def queue_append_positions(
    held: LockedStore, end: WriterEnd, queues: Sequence[QueueKey]
) -> list[QueueAppendPosition]:
    """Where each queue goes on. Completes queues that lack messages of the log first.

    Zeroes old units behind a queue's end: they would count again when the log has grown past them. An
    offset is not given a second time if a recovery has given up its message, or if only the ledger or a group
    shows that there was one.
    """
    looked = {queue: _look(held, end, *queue) for queue in queues}
    if end.is_ours and any(each.has_more and queue in held.ledger.ends for queue, each in looked.items()):
        # Our commit left nothing behind its entries: others followed, and their messages are lost.
        end = end._replace(doubtful=_cut(held).doubtful)
        looked = {queue: _look(held, end, *queue) for queue in queues}
    start, note = _doubtful_from(held, end, looked)
    met: Collection[QueueKey] = note.queues if note is not None else ()
    if start < end.offset:
        wrong = [queue for queue, each in looked.items() if each.has_wrong]
        met = complete_queues(held, end, start, {topic for topic, _ in queues}, note, wrong)
        looked = {queue: _look(held, end, *queue) for queue in queues}
    for each in looked.values():
        if each.error is not None:
            raise each.error
    without_files = [queue for queue, each in looked.items() if each.bounds is None]
    unfiled = {*of_known_topics(held.opened, without_files)}
    GivenUp.forget_topics(held.opened, {topic for topic, _ in {*without_files} - unfiled}, held.files)
    given_up = {(topic, queue_id): stop for topic, queue_id, _, stop in GivenUp.read(held.opened).messages}
    known = Fates(held.opened, held.log).known_ends() if unfiled - set(met) else {}
    is_known = end.is_ours and all(
        held.ledger.ends.get(queue) for queue in looked
    )  # then by an earlier commit
    committed = {} if is_known else Fates(held.opened, held.log).committed_ends()
    positions = []
    for queue, (bounds, has_more, *_) in looked.items():
        least = given_up.get(queue, 0)
        if bounds is None:
            if queue in unfiled and queue not in met and queue in known:
                least = max(least, known[queue].offset if known[queue].offset < _OFFSET_MAX else 0)
            positions.append(QueueAppendPosition(least, least))
            continue
        if has_more:
            truncate(bounds.directory, bounds.unit_stop * CQ_UNIT.itemsize, held.files)
        if end.is_ours:
            least = max(least, held.ledger.ends.get(queue, 0))
        base = max(bounds.max_offset, least)
        if queue in committed and committed[queue].offset > base:
            _log.warning(
                "%s-%d goes on at offset %d, and %s: this group does not get the messages before its offset",
                shown(queue[0]), queue[1], base, committed[queue].evidence,
            )  # fmt: skip
        positions.append(QueueAppendPosition(base, bounds.max_offset))
    return positions


def gaps_before(positions: Sequence[QueueAppendPosition]) -> tuple[tuple[int, int], ...]:
    """`Journal.gaps`."""
    return tuple(
        (number, position.end) for number, position in enumerate(positions) if position.end < position.base
    )


def complete_known_queues(held: LockedStore) -> None:
    """Completes the queues of our last commits that lack entries; all queues if none has a file."""
    end, first = find_writer_end(held), held.log.min_offset
    if not StoredTopics(held.opened).has_queue_files:
        start = first
    elif end.is_ours:
        looked = {queue: _look(held, end, *queue) for queue in held.ledger.ends}
        looked = {queue: each for queue, each in looked.items() if each.bounds is not None}
        start = _doubtful_from(held, end, looked)[0] if looked else end.offset
    else:
        start = end.offset
    if start < end.offset:
        complete_queues(held, end, start)


# ---- what a queue's files show -----------------------------------------------------------------------------


class _Looked(NamedTuple):
    """A queue's `bounds`, None without files. `has_more`: bytes follow its end. `is_end_wrong`: it has
    entries behind its end, or the last one leads to another message. `has_wrong`: entries do not lead from
    message to message. `error` is that of files that do not fit.
    """

    bounds: QueueBounds | None
    has_more: bool = False
    is_end_wrong: bool = False
    has_wrong: bool = False
    error: StoreError | None = None


def _look(held: LockedStore, end: WriterEnd, topic: str, queue_id: int) -> _Looked:
    log = held.log
    filed = FiledQueue.of(held.opened, topic, queue_id)
    # Of many topics, most queues have no message yet.
    if held.opened.files.stat_identity(filed.directory) is None:
        return _Looked(None)
    ours = held.ledger.ends.get((topic, queue_id)) if end.is_ours else None
    try:
        bounds = filed.bounds(log.min_offset, commit_log_stop=end.offset, likely=ours)
    except CorruptStoreError as error:
        return _Looked(None, error=error)
    if bounds is None:
        return _Looked(None)
    key = (topic, queue_id)
    queue = QueueRange(*key, bounds.min_offset, bounds.max_offset, bounds)
    queue, is_wrong = Snapshot.judged(held.opened, log, queue, end.offset)
    bounds = queue.bounds or bounds
    has_more, has_entries = _behind(bounds, end.offset)
    first = max(bounds.unit_start, bounds.unit_stop - _NEWEST if ours == bounds.max_offset else 0)
    return _Looked(bounds, has_more, is_wrong or has_entries, _has_wrong_entries(bounds, first))


def _behind(bounds: QueueBounds, log_stop: int) -> tuple[bool, bool]:
    """Whether bytes follow the queue's last entry, and whether one of them is an entry of the log."""
    has_more, stop = False, bounds.unit_stop * CQ_UNIT.itemsize
    for file in files_at(bounds.directory).store_files(bounds.directory):
        at, length = max(stop - file.start, 0), _BLOCK_SIZE
        if at >= file.size:
            continue
        with files_at(file.path).view(file.path) as view:
            while at < file.size:
                data = view.read(at, length)
                if data.strip(b"\0"):
                    has_more = True
                    units = np.frombuffer(data[: len(data) // CQ_UNIT.itemsize * CQ_UNIT.itemsize], CQ_UNIT)
                    if (valid_units(units) & (units["physical_offset"] < log_stop)).any():
                        return True, True
                following = view.data_from(at + length)
                at = max(at + length, following - following % CQ_UNIT.itemsize)
                length = min(8 * length, _CHUNK * CQ_UNIT.itemsize)
    return has_more, False


def _has_wrong_entries(bounds: QueueBounds, first: int) -> bool:
    """Whether the entries from unit `first` on do not lead from message to message, in the log's order."""
    last = 0
    with bounds.open() as files:
        for low in range(first, bounds.unit_stop, _CHUNK):
            units = files.read(low, min(low + _CHUNK, bounds.unit_stop))
            if not _ascend(units, last):
                units = units[~pre_blank_mask(units)]  # places without a message, which are rare
                if not _ascend(units, last):
                    return True
            last = int(units["physical_offset"][-1]) + int(units["size"][-1]) if len(units) else last
    return False


def _ascend(units: NDArray[np.void], last: int) -> bool:
    physical, sizes = units["physical_offset"].astype(np.int64), units["size"].astype(np.int64)
    if not len(units) or int(physical[0]) < last or int(sizes.min()) <= 0:
        return not len(units)
    return bool((np.diff(physical) >= sizes[:-1]).all())


# ---- which part of the log proves it -----------------------------------------------------------------------


def _doubtful_from(
    held: LockedStore, end: WriterEnd, looked: Mapping[QueueKey, _Looked]
) -> tuple[int, _Note | None]:
    """The physical offset from which the log has to be compared with the queues, and the note, if it was
    read.

    The log's end where all queues are proved to have all their entries.
    """
    first = held.log.min_offset
    if end.offset <= first:
        return end.offset, None
    if is_rebuild_begun(held.opened):
        return first, None
    starts, note = [min(end.offset, end.doubtful)], None
    without = [queue for queue, each in looked.items() if each.bounds is None and each.error is None]
    if len(without) == len(looked) and not StoredTopics(held.opened).has_queue_files:
        starts.append(first)
    elif len(without) > _MANY and end.is_ours and held.ledger.ends_from <= first:
        # All messages of the log are of commits. With few queues a scan costs little, and finds lost ones.
        starts += [first] * any(queue in held.ledger.ends for queue in without)
    elif without := of_known_topics(held.opened, without):
        note = _read_note(held)
        starts.append(first if note is None or note.queues & set(without) else max(note.stop, first))
    if not end.is_ours and end.last_offset >= first:
        starts.append(end.last_offset)  # also of a queue that is not written to
        starts += _short_of_ledger(held, end)
    written = (each.bounds.last_physical_offset for each in looked.values() if each.bounds)
    filed = max(end.filed, *written, -1)
    # all that shows lost entries
    if filed != end.last_offset and QueueProofs(held.opened, held.log).lacks_entry(end.last_offset, filed):
        starts.append(_message_from(held.log, max(end.offset - QueueProofs.TAIL_SIZE, first), end.offset))
    for queue, each in looked.items():
        if each.has_wrong:
            note = note or _read_note(held)
        if (
            each.error is not None
            or each.is_end_wrong
            or (each.has_wrong and not (note and queue in note.odd))
        ):
            starts.append(first)
        elif each.bounds is not None:
            if each.bounds.may_lack_first_entries:
                note = note or _read_note(held)
                is_known = note is not None and note.first_entries.get(queue) == each.bounds.first_entry
                starts.append(end.offset if is_known else first)
            starts.append(_unproved_from(held, end, queue, each.bounds))
    return min(starts), note


def _message_from(log: CommitLog, start: int, stop: int) -> int:
    """The physical offset of the first message that begins in [start, stop); `stop` without one."""
    run = next(log.runs(start, stop), None)
    return stop if run is None else int(run.physical_offsets[0])


def _short_of_ledger(held: LockedStore, end: WriterEnd) -> list[int]:
    """The physical offsets from which the log has messages of queues that end before the ledger says so.

    Also of queues that are not written to: the commit that comes now is not the one after them, so that the
    ledger forgets their ends (`Ledger.with_entry`).
    """
    starts = []
    for queue, known in Fates(held.opened, held.log).last_commit_ends(end.offset).items():
        filed, bounds = FiledQueue.of(held.opened, *queue), None
        with suppress(CorruptStoreError):  # a write to the queue raises the error
            bounds = filed.bounds(held.log.min_offset, commit_log_stop=end.offset)
        if bounds is not None and bounds.max_offset < known:
            starts.append(max(bounds.last_physical_offset, held.log.min_offset))
    return starts


def _unproved_from(held: LockedStore, end: WriterEnd, queue: QueueKey, bounds: QueueBounds) -> int:
    """The physical offset from which the log may have messages that the queue lacks."""
    first, ours = held.log.min_offset, held.ledger.ends.get(queue, 0)
    if not bounds.max_offset:
        return first  # Files without an entry: a broker creates a file with its first entry.
    if end.is_ours and ours:
        return end.offset if ours == bounds.max_offset else first
    last = max(bounds.last_physical_offset, first)
    ends_full = bounds.max_offset * CQ_UNIT.itemsize == bounds.last_file + bounds.file_size
    return last if ends_full or end.offset - last <= _TAIL_SIZE else end.offset


# ---- completing queues -------------------------------------------------------------------------------------


def complete_queues(
    held: LockedStore,
    end: WriterEnd,
    start: int,
    written: Collection[str] = (),
    note: _Note | None = None,
    wrong: Collection[QueueKey] = (),
    *,
    index: bool = False,
    mended: int | None = None,
) -> frozenset[QueueKey]:
    """Compares all queues with the log from `start` on, and writes what they lack. Returns the queues that
    have messages in the log, as far as it was read now or for the `note`.

    Where all queues and the index are gone, the log is indexed too, as by a broker; and with `index`, where
    index files that reach to the physical offset `mended` are rebuilt. Raises `question` if the
    store does not show whether a topic that is `written` to was deleted, or has lost its queues. Always
    synced: checkpoint and `abort` stay as they are, and may say that the queues are on the disk. Of the
    `wrong` queues, which have entries that contradict each other, the note has those that still do.
    """
    opened, files = held.opened, FileWrites(sync=True)
    is_all_gone = not StoredTopics(opened).has_queue_files and not any(
        file.size for file in list_index_files(f"{opened.path}/index")
    )
    found = LogComparison(
        opened=opened, source=opened, log=held.log, start=start, stop=end.offset, settings=held.settings,
        options=held.compared(index=index or is_all_gone), written=written, mended=mended,
        unfiled=held.options.unfiled_queues,
        filing=QueueProofs(opened, held.log).filing(StoreState.CLEAN),
    )  # fmt: skip
    built = compare_aside(found)
    found = built.found
    if found.unknown:
        _log.warning(
            "%s These messages stay in no consume queue", Fates(opened, held.log).question(found.unknown)
        )
    if found.changes:
        _log.warning(
            "%s: %d consume queues (the first is %s-%d) lack entries of messages in the commitlog; "
            "completing them now",
            opened.path,
            len(found.changes),
            shown(found.changes[0].queue[0]),
            found.changes[0].queue[1],
        )
    if found.changes or (found.index is not None and found.index.missing_from is not None):
        built.apply(files)
    met = frozenset(found.compared) | (note.queues if found.is_part and note is not None else frozenset())
    if not found.is_part or (note is not None and found.start <= note.stop):
        odd = {queue for queue in wrong if _look(held, end, *queue).has_wrong}
        firsts = {} if note is None else dict(note.first_entries)
        for queue, each in found.compared.items():
            bounds = None
            if each.is_comparable:
                with suppress(StoreError):  # who reads the queue raises the error
                    bounds = FiledQueue.of(opened, *queue).bounds(held.log.min_offset)
            if bounds is not None and bounds.first_entry:
                firsts[queue] = bounds.first_entry
        _write_note(held, end, met, odd | (note.odd if note is not None else frozenset()), firsts, files)
    end_rebuild(opened)
    return met


# ---- what was proved ---------------------------------------------------------------------------------------


class _Note(NamedTuple):
    """`queues` had a message in the log before the physical offset `stop`, and all their entries. `odd` are
    those of which the log does not show what is right in place of entries that contradict each other.
    `first_entries` have the queue's byte of its first entry that is not pre-blank, where that is not 0.

    The CRC32 of the last message before `stop` shows that it is still the same log.
    """

    stop: int
    last_offset: int
    last_crc: int
    queues: frozenset[QueueKey]
    odd: frozenset[QueueKey]
    first_entries: Mapping[QueueKey, int]


def _read_note(held: LockedStore) -> _Note | None:
    """The note about this log; None without it, or if it cannot be read: the note only saves time."""
    try:
        value = json.loads(held.opened.files.read(note_path(held.opened)) or b"{}")
        queues = frozenset(
            (str(topic), int(queue_id))
            for topic, queue_ids in value["queues"].items()
            for queue_id in queue_ids
        )
        odd = frozenset((str(topic), int(queue_id)) for topic, queue_id in value["odd"])
        firsts = {(str(topic), int(queue_id)): int(at) for topic, queue_id, at in value["first_entries"]}
        ends = (int(value["stop"]), int(value["last_offset"]), int(value["last_crc"]))
        note = _Note(*ends, queues, odd, firsts)
        data = held.log.read(note.last_offset, note.stop - note.last_offset)
        return note if crc32(data) == note.last_crc else None
    except (StoreError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _write_note(
    held: LockedStore,
    end: WriterEnd,
    queues: Collection[QueueKey],
    odd: Collection[QueueKey],
    first_entries: Mapping[QueueKey, int],
    files: FileWrites,
) -> None:
    if end.last_offset < held.log.min_offset:
        return
    try:
        crc = crc32(held.log.read(end.last_offset, end.offset - end.last_offset))
    except StoreError:
        return  # A file is missing between the last message and the end.
    by_topic: dict[str, list[int]] = {}
    for topic, queue_id in sorted(queues):
        by_topic.setdefault(topic, []).append(queue_id)
    value = {
        "version": 1, "stop": end.offset, "last_offset": end.last_offset, "last_crc": crc, "queues": by_topic,
        "odd": sorted(odd), "first_entries": [[*queue, at] for queue, at in sorted(first_entries.items())],
    }  # fmt: skip
    files.replace(note_path(held.opened), json.dumps(value).encode())

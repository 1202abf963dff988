"""Lost consume queues of a store without a crash: found before a commit, and rebuilt from the commitlog.

A commit appends where its queues end. A lost queue would begin at 0 again, and a queue without its last file
would repeat offsets; the older messages would be in no queue, for us and for brokers. A note keeps the result
of a scan of the log, so that the next commit need not scan again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple
from zlib import crc32

from store_format.bookkeeping.journal import note_path
from store_format.bookkeeping.state import StoreState
from store_format.commit.queue_moves import complete_queues, end_rebuild, is_rebuild_begun
from store_format.commit.queue_repair import NEVER, Lacking, QueueState, find_lacking, queue_states
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import Damage
from store_format.consumequeue.dispatch import Dispatch
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.listing import can_be_queue
from store_format.errors import StoreError
from store_format.files.read import entry_names, read_bytes
from store_format.files.write import FileWrites
from store_format.index.file import list_index_files
from store_format.layouts import CQ_UNIT
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.read import read_topics
from store_format.names import QueueKey
from store_format.read.log_reader import survey
from store_format.read.snapshot import take_queue
from store_format.survey.fates import Fate, Unfiled, decide, has_queue_files, question

_log = logging.getLogger(__name__)


class LastUnit(NamedTuple):
    """Where the log ends, and where its last unit begins, -1 without a unit.

    `is_ours`: a commit wrote the last unit, with its queue entry.
    """

    stop: int
    offset: int
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Rebuilding:
    """How queues are rebuilt.

    `file_size` gives the size of new queue files, None if the store does not show it. `index` indexes the log
    too, as a broker would, if all queues and the index are gone. `unfiled` answers for topics without queue
    files of which the store does not show what happened: "read", they lost their queues; "skip", they were
    deleted and created again; None asks. `conf` has the settings of the store's broker.
    """

    file_size: Callable[[], int | None]
    index: Callable[[CommitLog, int, str], None] | None = None  # of the log, its end, and the directory
    unfiled: Unfiled | None = None
    conf: BrokerConf = field(default_factory=BrokerConf)


# ---- what is rebuilt ---------------------------------------------------------------------------------------


def rebuild_lost_queues(
    root: str,
    log: CommitLog,
    end: LastUnit,
    bounds: Mapping[QueueKey, QueueBounds | None],
    rebuilding: Rebuilding,
    files: FileWrites,
) -> bool:
    """Rebuilds missing queues before a commit to the queues of `bounds`. Whether any queue was rebuilt.

    `bounds` has the ends of the queues, None for a queue without files. Only these cases scan the log. From
    its beginning: no queue has a file; a queue of a known topic has no file and the note does not cover it;
    the files of a queue have no entry; the last message, of a broker, has no entry. From a later place: a
    queue of a known topic has no file, but had no message up to the noted place; a queue ends with a full
    file, and its next file may be lost.
    """
    first = log.min_offset
    if end.stop <= first:
        return False
    note: _Note | None = None
    starts = []
    without = [queue for queue, found in bounds.items() if found is None]
    if len(without) == len(bounds) and not has_queue_files(root):
        starts.append(first)
    elif without := _of_known_topics(root, without):
        note = _read_note(root, log)
        starts.append(first if note is None or note.queues & set(without) else max(note.stop, first))
    for found in bounds.values():
        if found is not None and not found.max_offset:
            starts.append(first)  # Files without an entry: a broker creates a file with its first entry.
        elif found is not None and found.max_offset * CQ_UNIT.itemsize == found.last_file + found.file_size:
            starts.append(max(found.last_physical_offset, first))
    if not end.is_ours and not _is_queued(root, log, end, bounds):
        starts.append(first)
    is_begun = is_rebuild_begun(root)
    if is_begun:
        starts.append(first)
    start = min(starts, default=end.stop)
    if start >= end.stop:
        return False
    lacking = _rebuilt(root, log, start, end.stop, rebuilding, {topic for topic, _ in bounds})
    if lacking.start == first:
        _write_note(root, log, end, lacking.met, files)
    elif note is not None:
        _write_note(root, log, end, lacking.met | note.queues, files)
    if lacking.firsts or is_begun:
        end_rebuild(root)
    return bool(lacking.firsts)


def rebuild_queues(
    root: str, log: CommitLog, end: LastUnit, rebuilding: Rebuilding, files: FileWrites
) -> None:
    """Rebuilds all queues if no queue has a file, though the log has messages."""
    if end.stop > log.min_offset and not has_queue_files(root):
        lacking = _rebuilt(root, log, log.min_offset, end.stop, rebuilding)
        _write_note(root, log, end, lacking.met, files)
        end_rebuild(root)


def _rebuilt(
    root: str, log: CommitLog, start: int, end: int, rebuilding: Rebuilding, written: Collection[str] = ()
) -> Lacking:
    """Finds and writes the missing entries.

    A queue that lacks an entry behind `start` may lack older entries: the whole log is scanned then.
    """
    states = queue_states(root, log, end)
    file_size = rebuilding.file_size()

    def find(start: int, floors: Mapping[QueueKey, int] | None = None) -> Lacking:
        return find_lacking(
            root,
            log,
            start,
            end,
            states,
            file_size=file_size,
            is_crashed=False,
            delay_levels_ms=rebuilding.conf.message_delay_levels_ms,
            floors=floors,
        )

    lacking = find(start)
    if not lacking.firsts:
        return lacking
    if start > log.min_offset:
        lacking = find(log.min_offset)
    floors = _floors(root, log, end, lacking, states, written, rebuilding.unfiled)
    if floors:
        lacking = find(log.min_offset, floors)
    if not lacking.firsts:
        return lacking
    names = sorted(lacking.firsts)
    _log.warning(
        "%s: %d consume queues (the first is %s-%d) lack entries of messages in the commitlog; completing "
        "them now",
        root,
        len(names),
        *names[0],
    )
    is_all_gone = all(state.max_offset is None for state in states.values())
    index = (
        rebuilding.index
        if is_all_gone and not any(file.size for file in list_index_files(f"{root}/index"))
        else None
    )
    complete_queues(root, log, lacking, states, None if index is None else partial(index, log, end))
    return lacking


def _floors(
    root: str,
    log: CommitLog,
    end: int,
    lacking: Lacking,
    states: Mapping[QueueKey, QueueState],
    written: Collection[str],
    unfiled: Unfiled | None,
) -> dict[QueueKey, int]:
    """The physical offset up to which messages do not count, of queues without files whose topic was deleted.

    Of a topic that was deleted and created again only the newest messages count. Raises OptionError if the
    store does not show whether a topic that is `written` to was deleted, or has lost its queues.
    """
    new = [key for key in lacking.firsts if key not in states or states[key].max_offset is None]
    if not new or not has_queue_files(root):
        return {}
    seen = survey(log, {topic for topic, _ in new}.__contains__, stop=end).queues
    fates = decide(root, log, [key for key in new if key in seen], seen)
    floors = dict.fromkeys(new, NEVER)
    floors |= {key: max(seen[key].last_old, -1) for key, fate in fates.items() if fate.fate is Fate.LOST}
    unknown = {key: seen[key] for key, fate in fates.items() if fate.fate is Fate.UNKNOWN}
    asked = {key: queue for key, queue in unknown.items() if key[0] in written}
    if asked and unfiled is None:
        raise question(root, asked)
    if unfiled == "read":
        floors |= {key: queue.last_old for key, queue in asked.items()}
        unknown = {key: queue for key, queue in unknown.items() if key not in asked}
    if unknown:
        _log.warning("%s These messages stay in no consume queue", question(root, unknown))
    return floors


# ---- what may be missing -----------------------------------------------------------------------------------


def _of_known_topics(root: str, queues: Sequence[QueueKey]) -> list[QueueKey]:
    """The queues whose topic is in topics.json or has a queue directory: they may have had messages.

    Without topics.json all queues.
    """
    if not queues:
        return []
    topics = read_topics(root)
    return [
        queue for queue in queues if topics is None or queue[0] in topics or _has_directory(root, queue[0])
    ]


def _has_directory(root: str, topic: str) -> bool:
    return bool(entry_names(f"{root}/consumequeue/{topic}", missing_ok=True))


def _is_queued(
    root: str, log: CommitLog, end: LastUnit, bounds: Mapping[QueueKey, QueueBounds | None]
) -> bool:
    """Whether the last message of the log has its queue entry, or needs none."""
    dispatch = Dispatch({}, {}, frozenset(), ())  # only the offsets count here
    if end.offset >= log.min_offset:
        for run in log.walk(end.offset, end.offset + 1):
            if not isinstance(run, Damage):
                dispatch.add(run, log)
    for queue, entries in dispatch.entries().items():
        found = (
            bounds[queue]
            if queue in bounds
            else take_queue(root, log, StoreState.CLEAN, *queue, log_end=end.stop)
        )
        if found is None and (not can_be_queue(*queue) or not _of_known_topics(root, [queue])):
            continue  # No queue can have this name, or the topic was deleted.
        if found is None or found.max_offset <= int(entries.queue_offsets[0]):
            return False
    return True


# ---- what was proved ---------------------------------------------------------------------------------------


class _Note(NamedTuple):
    """`queues` had a message in the log before the physical offset `stop`, and all their entries.

    The CRC32 of the last message before `stop` shows that it is still the same log.
    """

    stop: int
    last_offset: int
    last_crc: int
    queues: frozenset[QueueKey]


def _read_note(root: str, log: CommitLog) -> _Note | None:
    """The note about this log; None without it, or if it cannot be read: the note only saves time."""
    try:
        value = json.loads(read_bytes(note_path(root)) or b"{}")
        queues = frozenset(
            (str(topic), int(queue_id))
            for topic, queue_ids in value["queues"].items()
            for queue_id in queue_ids
        )
        note = _Note(int(value["stop"]), int(value["last_offset"]), int(value["last_crc"]), queues)
        return (
            note if crc32(log.read(note.last_offset, note.stop - note.last_offset)) == note.last_crc else None
        )
    except (StoreError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _write_note(
    root: str, log: CommitLog, end: LastUnit, queues: frozenset[QueueKey], files: FileWrites
) -> None:
    if end.offset < log.min_offset:
        return
    try:
        crc = crc32(log.read(end.offset, end.stop - end.offset))
    except StoreError:
        return  # A file is missing between the last message and the end.
    by_topic: dict[str, list[int]] = {}
    for topic, queue_id in sorted(queues):
        by_topic.setdefault(topic, []).append(queue_id)
    value = {"version": 1, "stop": end.stop, "last_offset": end.offset, "last_crc": crc, "queues": by_topic}
    files.replace(note_path(root), json.dumps(value).encode())

"""What a store lacks: where its log ends, and which queue and index entries differ from its messages.

A survey reads the log once, compares queues and index with its messages, and changes nothing.
`recovery_run.py` carries out what a survey found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from store_format.bookkeeping.journal import abort_mark
from store_format.bookkeeping.ledger import read_ledger
from store_format.bookkeeping.settings import (
    StoreSettings,
    read_settings,
)
from store_format.commit.append_position import end_of_clean_log
from store_format.commit.delay_repair import LoweredLevel, lowered_levels
from store_format.commit.log_shortage import refuse_loss
from store_format.commit.queue_changes import QueueChange, change_of
from store_format.commit.queue_repair import queue_state
from store_format.commit.rebuilt_index import IndexCheck, indexes_tags
from store_format.commit.recover_options import (
    RecoverOptions,
    batch_file_size,
    known_queue_file_size,
    settings_of_files,
)
from store_format.commit.salvage import Hole
from store_format.commit.store_copy import CopiedPart
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.bounds import queue_bounds
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.listing import list_queues
from store_format.errors import OptionError, StoreError
from store_format.files.read import StoreFile
from store_format.metadata.checkpoint import Checkpoint, read_checkpoint
from store_format.metadata.read import read_topics
from store_format.names import QueueKey
from store_format.survey.broker_end import LogEnd, end_after_crash
from store_format.survey.entries import LogPart, LogScan, scan_log
from store_format.survey.fates import Fate, decide, filed_queues, lost_topics, past_queues
from store_format.survey.gone import queues_in_log
from store_format.survey.queue_evidence import KnownEnd
from store_format.survey.queues import ComparedQueue, OnPlace, QueueComparison, StoredQueue


@dataclass(frozen=True, slots=True)
class LeftQueue:
    """A queue of the log that is not built, and why."""

    queue: QueueKey
    entries: int
    reason: str


@dataclass(slots=True)
class Survey:
    """What was found. `refused` says why the store cannot be recovered as it is.

    The queues and the index of `root` are compared. `source` shows sizes and deleted topics: another store if
    `root` is its copy. `ahead` are the queues whose entries point behind the log's end, each with the
    number of the first unit that is cut. `left` are queues that stay as they are.
    """

    root: str
    source: str
    log: CommitLog
    end: LogEnd
    is_crashed: bool
    settings: StoreSettings
    broker_start: int
    known: int  # the end of the messages in queues, -1 without any
    queues: list[QueueBounds]  # of `source`
    ahead: list[tuple[QueueBounds, int]]
    refused: StoreError | None = None
    units: int = 0
    damage: list[tuple[str, int, int, str, str]] = field(default_factory=list)
    compared: Mapping[QueueKey, ComparedQueue] = field(default_factory=dict)
    changes: list[QueueChange] = field(default_factory=list)
    left: list[LeftQueue] = field(default_factory=list)
    index: IndexCheck | None = None
    index_problem: str = ""
    misplaced: int = 0
    past: dict[QueueKey, KnownEnd] = field(default_factory=dict)  # queues that get an empty file
    levels: list[LoweredLevel] = field(default_factory=list)
    topics: dict[str, int] = field(default_factory=dict)  # that topics.json has lost, with numbers of queues
    holes: list[Hole] = field(default_factory=list)
    copied: list[CopiedPart] = field(default_factory=list)

    @property
    def short(self) -> list[StoreFile]:
        """The short files of a store that is recovered in place: only zeros follow the log in them.

        The recovery after a crash removes files that begin behind the log's end.
        """
        size, end = self.log.file_size, self.end.offset
        return [
            file
            for file in (self.log.files if self.root == self.source else ())
            if file.size < size and end < file.start + size and (file.start <= end or not self.is_crashed)
        ]

    @property
    def range(self) -> tuple[int, int]:
        return self.log.min_offset, self.end.offset


def find_end(root: str, log: CommitLog, options: RecoverOptions, source: str | None = None) -> Survey:
    """The end of the log by the broker's rules, and what a recovery would cut off. Changes nothing.

    `source` is the store of which `root` is a copy without queues; the copy need not exist yet.
    """
    target, root = root, source or root
    settings = settings_of_files(root, log, options)
    size = known_queue_file_size(root, log, options)
    settings = settings if size is None else replace(settings, mapped_file_size_consume_queue=size)
    is_crashed = abort_mark(root) == ""
    queues = queues_in_log(root, log, _ignore)
    known = max(
        (queue.last_physical_offset + queue.last_size for queue in queues if queue.kind == "simple"),
        default=-1,
    )
    refused: StoreError | None = None
    if is_crashed:
        end = end_after_crash(log, read_checkpoint(f"{root}/checkpoint") or Checkpoint())
    else:
        end = end_of_clean_log(log, read_ledger(root), queues)
    try:
        if not options.cut_after_damage:
            refuse_loss(root, log, end, queues, is_crashed=is_crashed)
    except StoreError as error:
        refused = error
    return Survey(
        target,
        root,
        log,
        end,
        is_crashed,
        settings,
        end.start if is_crashed else max(known + 1, end.start),
        known,
        queues,
        _ahead(log, end.offset, queues),
        refused,
        topics=lost_topics(root) if options.topics is None else {},
    )


def _ahead(log: CommitLog, end: int, queues: list[QueueBounds]) -> list[tuple[QueueBounds, int]]:
    """The queues with entries at or behind the log's end, and the number of the first unit that is cut."""
    return [
        (queue, queue_state(log, end, queue.topic, queue.queue_id, queue.directory, queue.kind).unit_stop)
        for queue in queues
        if queue.last_physical_offset >= end
    ]


def _ignore(error: StoreError) -> None:
    """The comparison reports the queue."""


# ---- the messages of the log -------------------------------------------------------------------------------


def look(
    survey: Survey,
    options: RecoverOptions,
    *,
    on_part: Callable[[LogPart], None] = lambda _: None,
    on_place: OnPlace = lambda queue, place: None,
) -> None:
    """Reads all messages of the log once, and compares queues and index with them."""
    if not (options.queues or options.index):
        survey.levels = lowered_levels(survey.source, survey.root, survey.log, {}, survey.ahead)
        return
    scan = _scan_log(survey, options)
    comparison = QueueComparison(
        _find(survey, options, scan.batch_topics),
        log_stop=survey.end.offset,
        broker_start=survey.broker_start,
        on_place=on_place,
    )
    if options.index:
        _begin_index(survey, options)
    for part in _parts(scan, survey, options):
        survey.units += part.units
        survey.damage += part.damage
        comparison.add(part.queues, part.rows)
        if survey.index is not None and part.index is not None:
            survey.index.add(part.index)
        on_part(part)
    survey.compared, survey.misplaced = comparison.queues, comparison.misplaced
    _plan_changes(survey, options)
    survey.levels = lowered_levels(survey.source, survey.root, survey.log, survey.compared, survey.ahead)


def _parts(scan: LogScan, survey: Survey, options: RecoverOptions) -> Iterator[LogPart]:
    for start, stop in _between_holes(survey, survey.log.min_offset):
        yield from scan_log(scan, survey.log, start, stop, threads=options.threads)


def index_parts(survey: Survey, options: RecoverOptions, start: int) -> Iterator[LogPart]:
    """The messages of the log from `start`, where a message begins, for the index alone."""
    scan = _scan_log(survey, options)
    for low, high in _between_holes(survey, start):
        yield from scan_log(scan, survey.log, low, high, threads=options.threads)


def _between_holes(survey: Survey, start: int) -> Iterator[tuple[int, int]]:
    """[start, the log's end) without its holes: damage in the store, fillers in the copy."""
    for hole in survey.holes:
        if start < hole.start:
            yield start, hole.start
        start = max(start, hole.stop)
    if start < survey.end.offset:
        yield start, survey.end.offset


def _scan_log(survey: Survey, options: RecoverOptions) -> LogScan:
    root = survey.source
    batch = {name for name, each in (read_topics(root) or {}).items() if each.queue_type == "BatchCQ"}
    batch |= {topic for topic, _, _, kind in list_queues(root, lambda _: True, _ignore) if kind == "batch"}
    tag_keys = options.tag_keys
    if tag_keys is None:
        tag_keys = indexes_tags(root, survey.log, survey.settings)
    return LogScan(
        frozenset(batch),
        options.delay_levels_ms,
        options.index,
        tag_keys,
    )


def _find(
    survey: Survey, options: RecoverOptions, batch_topics: frozenset[str]
) -> Callable[[QueueKey], StoredQueue | None]:
    """A function that finds the files of a queue, None if the queue is not chosen."""
    batch = batch_file_size(survey.source, options.batch_queue_file_size)
    simple = known_queue_file_size(survey.source, survey.log, options)

    def find(queue: QueueKey) -> StoredQueue | None:
        if not (options.queues and options.chooses(queue[0])):
            return None
        if queue[0] in batch_topics:
            return StoredQueue.list_in(survey.root, queue, batch, is_batch=True)
        if simple is None:
            raise _unknown_size(survey, queue)
        return StoredQueue.list_in(survey.root, queue, simple, is_batch=False)

    return find


def _unknown_size(survey: Survey, queue: QueueKey) -> OptionError:
    return OptionError(
        f"{survey.source}: the consume queue {queue[0]}-{queue[1]} has to be built, and the store "
        "does not show the size of the files. Nothing was changed. Give the configuration of this "
        "store's broker (--broker-conf FILE): the broker loads files of its "
        "mappedFileSizeConsumeQueue only. For a broker with the default size, FILE has one line: "
        "mappedFileSizeConsumeQueue=6000000"
    )


def _begin_index(survey: Survey, options: RecoverOptions) -> None:
    geometry = survey.settings.geometry
    mark = None
    if survey.is_crashed and survey.root == survey.source:
        mark = (read_checkpoint(f"{survey.source}/checkpoint") or Checkpoint()).index_msg_timestamp
    check = IndexCheck.open(survey.root, geometry, survey.log.min_offset, survey.end.offset, mark=mark)
    is_known = (
        not check.is_empty
        or not IndexCheck.open(survey.source, geometry, 0, survey.log.stop).is_empty
        or options.settings is not None
        or read_settings(survey.source) is not None
        or survey.log.file_size == StoreSettings("").mapped_file_size_commit_log
    )
    if is_known:
        survey.index = check
    else:
        survey.index_problem = (
            "no index file shows maxHashSlotNum and maxIndexNum: give both with the broker's configuration "
            "(--broker-conf)"
        )


# ---- changes -----------------------------------------------------------------------------------------------


def _plan_changes(survey: Survey, options: RecoverOptions) -> None:
    found: dict[QueueKey, QueueChange] = {}
    for key, queue in sorted(survey.compared.items()):
        places = queue.places
        if not places.entries:
            continue  # Its messages have impossible offsets: `misplaced`.
        if places.problem is not None:
            expected, instead = places.problem
            reason = f"expected {expected}, found {instead}"
            survey.left.append(LeftQueue(key, places.entries, reason))
            continue
        try:
            change = change_of(queue, *survey.range)
        except StoreError as error:
            survey.left.append(LeftQueue(key, places.entries, str(error)))
            continue
        if change is not None:
            found[key] = change
    if options.queues:
        survey.left += _unusable(survey, options)
    new = [key for key, change in found.items() if change.action == "create"]
    for key, reason in _not_created(survey, new, options).items():
        survey.left.append(LeftQueue(key, found.pop(key).entries, reason))
    survey.changes = list(found.values())
    if options.queues:
        ends = past_queues(survey.source, survey.log, survey.compared)
        survey.past = {key: end for key, end in ends.items() if options.chooses(key[0])}
        if survey.past and known_queue_file_size(survey.source, survey.log, options) is None:
            raise _unknown_size(survey, min(survey.past))


def _unusable(survey: Survey, options: RecoverOptions) -> Iterator[LeftQueue]:
    """The queues whose files cannot be used and that have no message in the log to build them from."""
    for topic, queue_id, directory, kind in list_queues(survey.root, options.chooses, _ignore):
        if (topic, queue_id) not in survey.compared:
            try:
                queue_bounds(kind, directory, topic, queue_id, survey.log.min_offset)
            except StoreError as error:
                yield LeftQueue((topic, queue_id), 0, f"the log has no message of the queue; {error}")


def _not_created(survey: Survey, new: list[QueueKey], options: RecoverOptions) -> Mapping[QueueKey, str]:
    """The queues without files whose messages belong, or may belong, to a deleted topic."""
    if options.topics is not None:
        return {}
    filed = {each[:2] for each in filed_queues(survey.source, lambda _: True)}
    new = [key for key in new if key not in filed]
    seen = {key: queue.seen for key, queue in survey.compared.items()}
    fates = decide(survey.source, survey.log, new, seen)
    return {
        key: f"{evidence} (name the topic with --topic to rebuild it)"
        for key, (fate, evidence) in fates.items()
        if fate is not Fate.LOST
    }

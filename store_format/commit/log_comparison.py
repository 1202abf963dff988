"""The queues and the index of a store, compared with the messages of its commitlog, or of a part of it.

Nothing is changed. A writer compares what it needs to know, `recover` the whole store (`RecoverOptions`);
`repair.py` carries out what was found. The files that are written get the sizes of the store's other files.
`LockedStore` is what a writer compares.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from store_format.arrays.ranges import within_ranges
from store_format.bookkeeping.ledger import GivenUp, Ledger
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.commit.queue_changes import QueueChange, change_of
from store_format.commit.rebuilt_index import IndexCheck, indexes_tags
from store_format.commitlog.log import CommitLog, open_log
from store_format.commitlog.walk import Damage, UnitRun
from store_format.commitlog.write import LogFiles
from store_format.consumequeue.dispatch import NO_FILING, Filing
from store_format.consumequeue.files import LAYOUTS, QueueKind
from store_format.consumequeue.units import list_queues, message_mask, valid_units
from store_format.errors import CorruptStoreError, OptionError, StoreError
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.index.file import IndexFile, IndexGeometry, has_entries, list_index_files
from store_format.index.updates import IndexBatch
from store_format.layouts import BATCH_CQ_UNIT, OFFSET_MAX
from store_format.metadata.read import BrokerConf, Checkpoint, known_topics, read_checkpoint
from store_format.names import DELAY_LEVELS_MS, SCHEDULE_TOPIC, QueueKey, is_light_queue
from store_format.opened.store import Opened
from store_format.survey.entry_proofs import Contradictions, LogEntries
from store_format.survey.fates import Fate, Fates, StoredTopics, Unfiled
from store_format.survey.gone import QueueProofs
from store_format.survey.queues import ComparedQueue, QueueComparison, StoredQueue
from store_format.survey.scan import LogQueue, LogScan

if TYPE_CHECKING:  # not sent to workers, see `by_value`
    from store_format.commit.salvage import Hole

_log = logging.getLogger(__name__)

_BATCH_FILE_SIZE = 300_000 * 46  # MessageStoreConfig.mapperFileSizeBatchConsumeQueue
_FILES_LOOKED_AT = 10_000
_UNINDEXED_MAX = 64 << 20  # bytes of the log
_NO_LIGHT = "no broker with enableLmq has used the store: the properties are a producer's own"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverOptions:
    """How to recover a store.

    - `topics`: only the queues of these topics; they are rebuilt even where the store does not show whether
      the topic was deleted. None: all queues.
    - `queues`, `index`: whether consume queues and index files are compared with the log and rebuilt.
    - `cut_after_damage`: gives up the messages behind damage in the log, as a broker that starts does.
    - `ignore_missing_stores`: says that stores of the cluster that are missing now do not come back. Without
      it, a recovery that needs to ask one of them is refused.
    - `into`: the directory of a copy that is recovered in place of the store. `salvage`: the copy keeps the
      messages behind damage (`salvage.py`).
    - `settings`: for a store whose files do not show its sizes; `is_queue_size_given` is False if nobody gave
      mappedFileSizeConsumeQueue. `batch_queue_file_size` is mapperFileSizeBatchConsumeQueue.
    - `delay_levels_ms`: messageDelayLevel; None takes the levels that the store's entries show.
    - `tag_keys`: whether the broker indexes tags (5.4 and later); None asks the store.
    - `threads` scan the log; None: one for each core. `clock` (ms) names index files.
    """

    topics: frozenset[str] | None = None
    queues: bool = True
    index: bool = True
    cut_after_damage: bool = False
    ignore_missing_stores: bool = False
    into: str | None = None
    salvage: bool = False
    settings: StoreSettings | None = None
    is_queue_size_given: bool = True
    batch_queue_file_size: int = _BATCH_FILE_SIZE
    delay_levels_ms: tuple[int, ...] | None = tuple(DELAY_LEVELS_MS)
    tag_keys: bool | None = None
    log_directories: tuple[str, ...] = ()
    lock_timeout: float = 0.0
    threads: int | None = None
    clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def chooses(self, topic: str) -> bool:
        return self.topics is None or topic in self.topics

    def settings_of(self, opened: Opened, log: CommitLog) -> StoreSettings:
        """The sizes of the store's files; of a damaged index file those of the other index files, and of
        files that are all blank the default ones (see `is_index_size_known`).
        """
        name = opened.path.rstrip("/").rpartition("/")[2]
        try:
            return StoreSettings.of(opened, log, name, self.settings)
        except OptionError:
            listed = [file.path for file in list_index_files(f"{opened.path}/index")]
            for path in listed:
                with IndexFile.open(path) as file:
                    if file.geometry is not None:
                        return StoreSettings.of(opened, log, name, self.settings, geometry=file.geometry)
            if self.settings is None and any(map(has_entries, listed)):
                raise
            given = self.settings or StoreSettings(name)
            return StoreSettings.of(opened, log, name, self.settings, geometry=given.geometry)

    def queue_file_size(self, opened: Opened, log: CommitLog) -> int | None:
        """The bytes of a consume queue file; None if the store does not show them."""
        known = self.settings if self.is_queue_size_given else None
        known = known or StoreSettings.read(opened)
        if known is None and log.file_size == StoreSettings("").mapped_file_size_commit_log:
            known = StoreSettings("")  # a broker with the default size for the log
        return _usual_file_size(opened, "simple", None if known is None else known.queue_file_size)

    def is_index_size_known(self, opened: Opened, log: CommitLog) -> bool:
        """Whether maxHashSlotNum and maxIndexNum are known without an index file."""
        is_default = log.file_size == StoreSettings("").mapped_file_size_commit_log
        return self.settings is not None or is_default or StoreSettings.read(opened) is not None

    def sizes_of_files(self, opened: Opened, log: CommitLog) -> dict[str, int]:
        """The sizes that the files of the store show, under the names of RocketMQ's settings."""
        sizes = {"mappedFileSizeCommitLog": log.file_size} if log.files else {}
        try:
            settings, queue_size = self.settings_of(opened, log), self.queue_file_size(opened, log)
        except (CorruptStoreError, OptionError):  # damaged files show no sizes
            return sizes
        if sizes and queue_size is not None:
            sizes["mappedFileSizeConsumeQueue"] = queue_size
        if sizes and any(has_entries(file.path) for file in list_index_files(f"{opened.path}/index")):
            sizes |= {"maxHashSlotNum": settings.max_hash_slot_num, "maxIndexNum": settings.max_index_num}
        return sizes

    def needed_settings(self, opened: Opened, log: CommitLog) -> dict[str, int]:
        """Those of `sizes_of_files` that differ from a broker's defaults: its broker.conf must have them."""
        defaults = sizes_in(BrokerConf())
        return {
            name: size for name, size in self.sizes_of_files(opened, log).items() if size != defaults[name]
        }

    def batch_file_size(self, opened: Opened) -> int:
        """The bytes of a batch queue file: those of the store's files, else those of the options."""
        unit = BATCH_CQ_UNIT.itemsize
        size = _usual_file_size(opened, "batch", self.batch_queue_file_size // unit * unit)
        assert size is not None
        return size


def sizes_in(conf: BrokerConf) -> dict[str, int]:
    """The sizes of files with which a broker with these settings starts."""
    queue = replace(StoreSettings(""), mapped_file_size_consume_queue=conf.queue_file_size)
    return {
        "mappedFileSizeCommitLog": conf.commit_log_file_size,
        "mappedFileSizeConsumeQueue": queue.queue_file_size,
        "maxHashSlotNum": conf.max_hash_slot_num,
        "maxIndexNum": conf.max_index_num,
    }


# ---- the comparison ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeftQueue:
    """A queue of the log that is not built, and why."""

    queue: QueueKey
    entries: int
    reason: str


@dataclass(slots=True, kw_only=True)
class LogComparison:
    """What the store `opened` lacks of the messages in [start, stop) of the log.

    `source` shows sizes and deleted topics: another store if `opened` is its copy. A broker that starts
    dispatches the messages from `broker_start` on. Index files that reach to the physical offset `mended` are
    rebuilt: the message there is not the one that was indexed, or a file with it is gone. `written` are the
    topics that a writer is about to write to, None for a recovery, which reports what it cannot build;
    `unfiled` answers for them (`CommitOptions.unfiled_queues`). `begins`, `filing`: as for `QueueComparison`.

    Then `compared` are the queues with messages there, and `left` those that stay as they are.
    """

    opened: Opened
    source: Opened
    log: CommitLog
    start: int
    stop: int
    settings: StoreSettings
    options: RecoverOptions
    is_crashed: bool = False
    broker_start: int = OFFSET_MAX
    filing: Filing = NO_FILING
    mended: int | None = None
    written: Collection[str] | None = None
    unfiled: Unfiled | None = None
    holes: list[Hole] = field(default_factory=list)
    begins: dict[QueueKey, int] = field(default_factory=dict)
    scan: LogScan = field(default_factory=LogScan, init=False)
    delays: dict[int, int] | None = field(default=None, init=False)  # of shown delay levels; None: all known
    named: set[tuple[QueueKey, int]] = field(default_factory=set, init=False)  # `levels` of the parts
    units: int = field(default=0, init=False)
    unopened: int = field(default=0, init=False)
    damage: list[Damage] = field(default_factory=list, init=False)
    damaged_messages: int = field(default=0, init=False)  # with a place in their queue that the head shows
    compared: Mapping[QueueKey, ComparedQueue] = field(default_factory=dict, init=False)
    changes: list[QueueChange] = field(default_factory=list, init=False)
    left: list[LeftQueue] = field(default_factory=list, init=False)
    unknown: dict[QueueKey, LogQueue] = field(default_factory=dict, init=False)
    index: IndexCheck | None = field(default=None, init=False)
    index_problem: str = field(default="", init=False)
    misplaced: int = field(default=0, init=False)
    past: Mapping[QueueKey, tuple[int, str]] = field(
        default_factory=dict, init=False
    )  # queues that get an empty file

    @property
    def lacks_bytes(self) -> bool:
        """Whether messages may be lost. Else nobody was given queue offsets that no message has."""
        return bool(self.damage or self.filled or self.log.has_gaps)

    @property
    def filled(self) -> list[Hole]:
        """The holes that are damage in the store, and fillers in the copy; others become messages."""
        return [hole for hole in self.holes if not hole.record]

    @property
    def fillings(self) -> list[tuple[int, int, UnitRun | None]]:
        """The holes, each with the message that it becomes."""
        return [(hole.start, hole.stop, hole.record) for hole in self.holes]

    @property
    def is_part(self) -> bool:
        return self.start > self.log.min_offset

    def run(
        self,
        *,
        on_index: Callable[[IndexBatch], None] = lambda _: None,
        on_placed: QueueComparison.OnPlaced = lambda queue, placed: None,
    ) -> None:
        """Reads the log once. Raises OptionError if a queue has to be built and nobody knows the size of its
        files, or what became of its topic (`question`), and for a writer the error of each queue that cannot
        be built.
        """
        if not (self.options.queues or self.options.index):
            return
        scan = self.scan = self._scan()
        comparison = QueueComparison(
            self._find(scan.batch_topics or frozenset()),
            log=self.log,
            contradictions=Contradictions(self.source, self.log),
            log_stop=self.stop,
            broker_start=self.broker_start,
            filing=self.filing,
            on_placed=on_placed,
            is_part=self.is_part,
            begins=GivenUp.known(self.source).queue_begins | self.begins,
        )
        if self.options.index:
            self._begin_index()
        for batch in self._unindexed():
            self._add_index(batch, on_index)
        for part in self.scan.parts(
            self.log, self.start, self.stop, self.fillings, threads=self.options.threads
        ):
            self.units += part.units
            self.unopened += part.unopened
            self.damage += part.damage
            self.named.update(part.levels)
            if part.damage:
                is_damaged = within_ranges(part.rows["physical"], [each.range for each in part.damage])
                self.damaged_messages += int(part.rows["batch_size"][is_damaged].sum())
            comparison.add(part.queues, part.rows)
            if part.index is not None:
                self._add_index(part.index, on_index)
        if self.damage:
            comparison.end(partial(within_ranges, ranges=[each.range for each in self.damage]))
        self.compared, self.misplaced = comparison.queues, comparison.misplaced
        self.damaged_messages += comparison.damaged_messages
        if not self.needs_all():
            self._plan_changes()

    def needs_all(self) -> bool:
        """Whether a queue lacks earlier messages too, or the whole log has to show what became of it."""
        deleted = StoredTopics(self.source).deleted_until()
        known = of_known_topics(self.source, self.compared) if self.is_part else ()
        return any(
            self._needs_all(queue)
            for queue in map(self.compared.__getitem__, known)
            if queue.seen.last >= deleted(queue.key[0])
        )

    def _needs_all(self, queue: ComparedQueue) -> bool:
        first = queue.seen.epochs[-1][1]
        if not self.is_crashed and (queue.differences or not queue.is_comparable):
            return True
        if queue.error is not None or queue.places.problem is not None or queue.stored.misfit:
            return True
        if not queue.is_comparable:
            return first > 0
        if queue.stored.is_batch:
            return bool(queue.differences)
        if not first:
            return False
        before = queue.stored.read(first - 1, first)
        is_known = not message_mask(before)[0] or before["physical_offset"][0] < self.log.min_offset
        is_known = is_known or LogEntries(self.log).leads_to_own(queue.key, np.array([first - 1]), before)[0]
        end, _ = self.filing.ends.get(queue.key, (first, -1))  # a broker ends it at an entry of zeros
        return end < first or not (valid_units(before)[0] and is_known)

    def index_batches(
        self, start: int, stop: int, holes: Sequence[tuple[int, int, UnitRun | None]] = ()
    ) -> Iterator[IndexBatch]:
        """The index entries of the messages in [start, stop) of the log around the holes. A message begins at
        `start`.
        """
        parts = self.scan.parts(self.log, start, stop, holes, threads=self.options.threads)
        return (part.index for part in parts if part.index is not None)

    def _add_index(self, batch: IndexBatch, on_index: Callable[[IndexBatch], None]) -> None:
        if self.index is not None:
            self.index.add(batch)
        on_index(batch)

    def _unindexed(self) -> Iterator[IndexBatch]:
        """Those between the end of the index and `start`, unless these are too many to look at."""
        end = self.start if self.index is None else max(self.index.end, self.log.min_offset)
        return self.index_batches(end, self.start if self.start - end <= _UNINDEXED_MAX else end)

    def _scan(self) -> LogScan:
        source, options = self.source, self.options
        tag_keys = options.tag_keys
        if tag_keys is None:
            index = IndexCheck.open(source, self.settings.geometry, self.log.min_offset, self.log.stop)
            tag_keys = indexes_tags(source, self.log, index)
        levels = options.delay_levels_ms
        if levels is None:
            self.delays = QueueProofs(source, self.log).shown_delays()
            default, count = DELAY_LEVELS_MS, max(len(DELAY_LEVELS_MS), *self.delays, 0)
            levels = tuple(self.delays.get(n + 1, default[min(n, len(default) - 1)]) for n in range(count))
        return LogScan(StoredTopics(source).batch, levels, options.index, tag_keys, self.written is None)

    def _find(self, batch_topics: frozenset[str]) -> Callable[[QueueKey], StoredQueue | None]:
        """A function that finds the files of a queue, None if the queue is not chosen."""
        batch = self.options.batch_file_size(self.source)
        simple = self.options.queue_file_size(self.source, self.log)
        deleted = StoredTopics(self.source).deleted_until()

        def find(queue: QueueKey) -> StoredQueue | None:
            if not (self.options.queues and self.options.chooses(queue[0])):
                return None
            is_batch = queue[0] in batch_topics
            if not is_batch and simple is None and deleted(queue[0]) < OFFSET_MAX:
                raise self._unknown_size(queue)
            size = batch if is_batch else simple or 6_000_000
            found, original = (
                StoredQueue.list_in(each, queue, size, is_batch=is_batch)
                for each in (self.opened, self.source)
            )
            return found if self.opened == self.source else replace(found, original=original)

        return find

    def _unknown_size(self, queue: QueueKey) -> OptionError:
        return OptionError(
            f"{self.source}: the consume queue {queue[0]}-{queue[1]} has to be rebuilt from the commitlog, "
            "and the store does not show the size of the files. Nothing was changed. Give "
            "mappedFileSizeConsumeQueue of this store's broker, which loads files of that size only: as an "
            "option of a write, or with --broker-conf FILE in rmqlog recover. For a broker with the default "
            "size, FILE has one line: mappedFileSizeConsumeQueue=6000000"
        )

    def _begin_index(self) -> None:
        geometry, source = self.settings.geometry, self.source
        mark = None
        if self.is_crashed and self.opened == source:
            mark = (read_checkpoint(f"{source.path}/checkpoint") or Checkpoint()).index_msg_timestamp
        check = IndexCheck.open(
            self.opened,
            geometry,
            self.log.min_offset,
            self.stop,
            mark=mark,
            start=self.start,
            mended=self.mended,
        )
        is_known = (
            not check.is_empty
            or not IndexCheck.open(source, geometry, 0, self.log.stop).is_empty
            or self.options.is_index_size_known(source, self.log)
        )
        if is_known:
            self.index = check
        else:
            self.index_problem = (
                "no index file shows maxHashSlotNum and maxIndexNum: give both with the broker's "
                "configuration (--broker-conf)"
            )

    # ---- changes -------------------------------------------------------------------------------------------

    def _plan_changes(self) -> None:
        found: dict[QueueKey, QueueChange] = {}
        if self.is_part and not self.is_crashed:
            return  # nothing differs
        for key, queue in sorted(self.compared.items()):
            places = queue.places
            if not places.entries or (self.is_part and queue.is_comparable and not queue.differences):
                continue  # its messages have impossible offsets (`misplaced`), or nothing differs
            try:
                if places.problem is not None and self.written is not None:
                    raise CorruptStoreError(queue.stored.directory, 0, *places.problem)
                change = change_of(queue, self.log, self.stop, self.compared)
            except StoreError as error:
                if self.written is not None:
                    raise
                self.left.append(LeftQueue(key, places.entries, str(error)))
                continue
            if change is not None:
                found[key] = change
        if self.options.queues and self.written is None:
            self.left += self._unusable()
            begin = min([self.log.min_offset, *(hole.start for hole in self.holes)])
            ends = Fates(self.source, self.log).past_queues(
                begin, self.compared, is_copied=self.opened != self.source
            )
            self.past = {key: end for key, end in ends.items() if self.options.chooses(key[0])}
            if self.past and self.options.queue_file_size(self.source, self.log) is None:
                raise self._unknown_size(min(self.past))
        for key, reason in self._not_created([key for key in found if found[key].action == "create"]).items():
            self.left.append(LeftQueue(key, found.pop(key).entries, reason))
        self._ask_for_levels(found.values())
        self.changes = list(found.values())

    def _ask_for_levels(self, changes: Iterable[QueueChange]) -> None:
        """Raises if a recovery would make entries of a delay level whose delay nothing shows; a writer, which
        was not asked to, warns.
        """
        made = {each.queue for each in changes if each.entries}
        named = {level for queue, level in self.named if queue in made and level > 0}
        unknown = sorted(named - self.delays.keys()) if self.delays is not None else []
        if not unknown:
            return
        what = (
            f"{self.source}: entries of {SCHEDULE_TOPIC} have to be made from the commitlog, with the time "
            "of delivery, and neither broker.conf nor an entry shows the delay of level "
            f"{', '.join(map(str, unknown))}"
        )
        if self.written is not None:
            _log.warning("%s: RocketMQ's default counts. Give brokerConf if the broker has another", what)
            return
        raise OptionError(
            f"{what}. Nothing was changed. Give messageDelayLevel of this store's broker with --broker-conf "
            "FILE. For a broker with the default levels, FILE has one line: "
            "messageDelayLevel=1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
        )

    def _unusable(self) -> Iterator[LeftQueue]:
        """The queues whose files cannot be used and that have no message in the log to build them from."""
        for queue in list_queues(self.opened, self.options.chooses, lambda _: None):
            if queue.key not in self.compared:
                try:
                    queue.bounds(self.log.min_offset)
                except StoreError as error:
                    yield LeftQueue(queue.key, 0, f"the log has no message of the queue; {error}")

    def _not_created(self, new: list[QueueKey]) -> Mapping[QueueKey, str]:
        """The queues without files whose messages belong, or may belong, to a deleted topic.

        Raises `question` if a writer writes to one of which the store does not show it, or to any topic of a
        store without queue files: a broker would build all queues, and after the write none of these.
        """
        if self.options.topics is not None:
            return {}
        filed = {each[:2] for each in StoredTopics(self.source).filed_queues(lambda _: True)}
        is_all = not StoredTopics(self.source).has_queue_files
        new = [key for key in new if key not in filed]
        light = dict[QueueKey, str]()
        if self.written is not None and not StoredTopics(self.source).has_light_queues:
            light = {key: _NO_LIGHT for key in new if is_light_queue(key[0])}
            new = [key for key in new if key not in light]
        written = [key for key in new if key[0] in (self.written or ())]
        created = {*written}.difference(of_known_topics(self.source, written))  # by the write, from offset 0
        new = [key for key in new if key not in created]
        others = (queue.seen.last for key, queue in self.compared.items() if key not in new)
        is_built = self.is_crashed or max(others, default=-1) >= self.broker_start - 1
        seen = {key: queue.seen for key, queue in self.compared.items()}
        left = {
            key: decision
            for key, decision in Fates(self.source, self.log).decide(new, seen).items()
            if decision.fate is not Fate.LOST
            and not self._is_answered(
                key, decision.fate, is_all=is_all, is_built=is_built and not decision.is_without_topic
            )
        }
        self.unknown = {key: seen[key] for key, each in left.items() if each.fate is Fate.UNKNOWN}
        asked = {k: queue for k, queue in self.unknown.items() if is_all or k[0] in (self.written or ())}
        if asked and self.unfiled is None:
            raise Fates(self.source, self.log).question(asked)
        return (
            light
            | dict.fromkeys(created, "the write creates the topic again")
            | {
                key: f"{each.evidence} (name the topic with --topic to rebuild it)"
                for key, each in left.items()
            }
        )

    def _is_answered(self, key: QueueKey, fate: Fate, *, is_all: bool, is_built: bool) -> bool:
        """Whether a queue is built all the same: a broker that starts builds it, or the user said so.

        A broker that starts on a store without a crash dispatches what is behind the newest entry of all
        queues. A change that completes other queues there (`is_built`) has to build this one, too: a broker
        that starts afterwards does not.
        """
        is_written = is_all or key[0] in (self.written or ())
        is_said = (self.written is None and is_all) or (self.unfiled == "read" and is_written)
        return (is_built and self.compared[key].by_broker > 0) or (fate is Fate.UNKNOWN and is_said)


def of_known_topics(opened: Opened, queues: Collection[QueueKey]) -> list[QueueKey]:
    """The queues whose topic is in topics.json or has a queue directory: they may have had messages.

    Without topics.json all queues.
    """
    topics = known_topics(opened) if queues else None
    return [
        key
        for key in queues
        if topics is None or key[0] in topics or StoredTopics(opened).has_directory(key[0])
    ]


# ---- the sizes of files ------------------------------------------------------------------------------------


def _usual_file_size(opened: Opened, kind: QueueKind, given: int | None) -> int | None:
    """The bytes of the store's queue files: `given` if a file has them, else the most frequent length.

    Damaged files have other lengths. Without a file with a length of whole units, `given`.
    """
    unit = LAYOUTS[kind].itemsize
    sizes = opened.files.kept((_sizes_of_files, opened, kind), lambda: _sizes_of_files(opened, kind))
    whole = {size: count for size, count in sizes.items() if size and not size % unit}
    if not whole or given in whole:
        return given
    return max(whole, key=lambda size: (whole[size], size))


def _sizes_of_files(opened: Opened, kind: QueueKind) -> Counter[int]:
    """How many queue files have each length, of enough queues."""
    sizes: Counter[int] = Counter()
    for _, _, directory, found in list_queues(opened, lambda _: True, lambda _: None):
        if found == kind:
            with suppress(StoreError):
                sizes.update(file.size for file in files_at(directory).store_files(directory))
        if sizes.total() > _FILES_LOOKED_AT:
            break
    return sizes


# ---- a locked store ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LockedStore:
    """What the holder of a store's lock knows of it. `log` is the commitlog as it was listed last,
    `settings` has the sizes of new files.
    """

    opened: Opened
    log: CommitLog
    settings: StoreSettings
    options: CommitOptions
    files: FileWrites
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def conf(self) -> BrokerConf:
        return self.options.conf or BrokerConf()

    @property
    def geometry(self) -> IndexGeometry | None:
        """None if the index files stay as they are."""
        return self.settings.geometry if self.options.message_index_enable else None

    @property
    def log_files(self) -> LogFiles:
        size = self.settings.mapped_file_size_commit_log
        return LogFiles(self.log, self.log.directories, size, self.files)

    def relisted(self) -> LockedStore:
        """The store with the commitlog files that exist now."""
        return replace(self, log=open_log(self.log.directories))

    def compared(self, *, index: bool) -> RecoverOptions:
        """How a writer compares the store with its log."""
        options = self.options
        is_given = options.settings is not None and options.is_queue_size_given
        is_known = StoreSettings.is_queue_file_size_known(self.opened, self.log, is_given)
        return RecoverOptions(
            index=index and options.message_index_enable,
            cut_after_damage=options.cut_after_damage,
            settings=self.settings,
            is_queue_size_given=is_known,
            batch_queue_file_size=self.conf.batch_queue_file_size,
            delay_levels_ms=self.conf.known_delay_levels_ms,
            tag_keys=options.tag_keys,
            clock=options.clock,
        )

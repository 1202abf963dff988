"""A store directory opened for reading: the store, its queues and their messages, the queue offset of a
point in time, and which queues a read needs: read from consume queues, or by a scan where these are missing.

Reading changes no file and takes no lock.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice, starmap
from operator import attrgetter
from typing import Protocol, Self

import pyarrow as pa

from store_format.bookkeeping.journal import CommitState, StoreState, rebuild_state
from store_format.bookkeeping.ledger import GivenUp
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import has_rocksdb_queues
from store_format.consumequeue.offset_by_time import QueueTimes
from store_format.consumequeue.own_files import Boundary
from store_format.consumequeue.slices import Newest, QueueRange, QueueRanges, QueueSlice
from store_format.consumequeue.units import FiledQueue
from store_format.display.text import shown
from store_format.errors import (
    CorruptStoreError,
    OffsetOutOfRangeError,
    OptionError,
    StoreError,
    StorePermissionError,
    UnsupportedFormatError,
)
from store_format.files import paths
from store_format.files.paths import refuse
from store_format.files.read import FileCache, all_answered, files_at
from store_format.layouts import OFFSET_MAX
from store_format.message.columns import DEFAULT_COLUMNS, DecodeOptions, arrow_schema, decode_options_of
from store_format.metadata.read import known_topics
from store_format.names import QueueKey, did_you_mean, is_light_queue, is_system_topic
from store_format.opened.store import Opened
from store_format.read.log_reader import LogReader, scan_units
from store_format.read.queue_reader import QueueReader
from store_format.read.queue_times import offset_at_time, offset_in_rows
from store_format.read.static_topics import with_logical
from store_format.read.store_root import OtherFiles, broker_name_of, has_queue_files, log_directories
from store_format.read.tolerance import Tolerance
from store_format.survey.entry_proofs import Contradictions
from store_format.survey.fates import Fate, Fates, StoredTopics, Unfiled
from store_format.survey.gone import QueueProofs
from store_format.survey.scan import LogQueue, LogQueues
from store_format.survey.snapshot import Snapshot
from store_format.survey.unfiled_queues import UnfiledQueues

_log = logging.getLogger(__name__)

_SHOWN_MAX = 8
_SCAN_CUT_BYTES = 64 << 10  # a scan may be split between windows of a walk, 1 MiB or a file
_PREVIEW_ROWS = 10
_PREVIEW_COLUMNS = ("queueOffset", "storeTimestamp", "tags", "keys", "msgId", "body")
_KEY = attrgetter("key")  # topic and id of a queue
_LOOKS_MAX = 100  # while a writer replaces rebuilt queues, microseconds each


@dataclass(slots=True)
class OneLook:
    """What one answer of several parts has seen of a store: all its queues, after a part asked for them."""

    taken: Snapshot | None = None
    queues: list[Queue] | None = None


def _every_topic(topic: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, repr=False)
class Store:
    """One broker's store directory, opened for reading. Methods look at the files as they are when called."""

    path: str
    broker_name: str
    log: CommitLog
    commit_log_paths: tuple[str, ...]
    _unfiled: UnfiledQueues = field(repr=False, compare=False)
    files: FileCache = field(default_factory=FileCache, repr=False, compare=False)
    # errors skipped so far, by their text; None: errors are raised
    unreadable: dict[str, StoreError] | None = field(default=None, repr=False, compare=False)
    fail_on_unknown: bool | None = field(default=None, repr=False, compare=False)
    compacted: bool = True  # whether compacted topics are read as consumers get them
    tiered_path: str | None = None  # tieredStoreFilePath
    _look: OneLook | None = field(default=None, repr=False, compare=False)

    @classmethod
    @all_answered()
    def open(
        cls,
        path: str,
        *,
        broker_name: str | None = None,
        commit_log_paths: Sequence[str] = (),
        files: FileCache | None = None,
        skip_unreadable: bool = False,
        unfiled_queues: Unfiled | None = None,
        fail_on_unknown: bool | None = None,
        holds_last: bool = False,
        compacted: bool = True,
        tiered_path: str | None = None,
    ) -> Self:
        """Opens the store at `path` for reading.

        `commit_log_paths` are the directories of the commitlog files if they are not in the store
        (`storePathCommitLog`). `files` shares open commitlog files between stores. A queue that may not be
        read, or that is a symbolic link, is an error when you read the queue; with `skip_unreadable`, the
        queue is skipped with a warning and noted in `unreadable`.

        `unfiled_queues` says what to do with messages of the commitlog that are in no consume queue, if the
        store does not show whether their topic was deleted and created again, or the queue was lost: "read"
        them, or "skip" them. None is an OptionError when you ask for the queue; with `fail_on_unknown` False,
        the queue is skipped with a warning. By default it is treated as one that may not be read.

        With `holds_last`, messages in the last commitlog file do not count: a program that copies the store
        of a running broker copies that file again and again. The other files are read as after a crash.

        Of topics with cleanup.policy=COMPACTION, queues have the messages that consumers get; with
        `compacted` False those of the commitlog, also older ones of a key. `tiered_path` is the directory of
        tiered storage (`tieredStoreFilePath`): queues begin with the messages that are only there.

        Raises StoreNotFoundError if `path` is not a store root, StorePermissionError if it may not be read,
        and CorruptStoreError if the commitlog files do not form a sequence.
        """
        root = paths.given(path)
        opened = Opened(root)
        files_at(root).look_again(root)
        directories = log_directories(opened, commit_log_paths)
        files = FileCache() if files is None else files
        log = CommitLog.open(directories, files, holds_last=holds_last)
        name = broker_name or broker_name_of(opened)
        unreadable: dict[str, StoreError] | None = {} if skip_unreadable else None
        unfiled = UnfiledQueues(opened, unfiled_queues)
        tiered = None if tiered_path is None else paths.given(tiered_path)
        return cls(
            root, name, log, directories, unfiled, files, unreadable, fail_on_unknown, compacted, tiered
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.broker_name} at {self.path}>"

    @property
    def opened(self) -> Opened:
        """The store as one value, for the functions that take it."""
        return Opened(self.path)

    @property
    def state(self) -> StoreState:
        """Clean, live or crashed at this moment; see `StoreState.of`."""
        return StoreState.of(self.opened)

    def time_at(self, physical_offset: int) -> int:
        """The store time in ms of the message at a physical offset; -1 if `pass_over` skips its file."""
        try:
            return self.log.store_timestamp_at(physical_offset)
        except StorePermissionError as error:
            self.pass_over([error])
            return -1

    @property
    def has_consume_queues(self) -> bool:
        """False if RocksDB keeps the consume queues or they were deleted: the commitlog is scanned then."""
        return has_queue_files(self.opened) or not self.log.relisted().files

    def snapshot(self, select: Callable[[str], bool] = _every_topic) -> Snapshot:
        """The first and last offsets of the queues of the selected topics at this moment.

        A configured queue with messages in the commitlog and no consume queue files counts as `damaged`, and
        is named in one warning per opened store. Raises UnsupportedFormatError if the store has no consume
        queue files at all.
        """
        if not self.has_consume_queues:
            raise UnsupportedFormatError(
                f"{self.path}: no consume queue files (RocksDB?); only the commitlog can be scanned: use "
                "survey()"
            )
        return self._snapshot(select)

    def _snapshot(self, select: Callable[[str], bool]) -> Snapshot:
        """`snapshot` of a store without queue files too: a commit may be creating the first ones."""
        of_all = self._look if select is _every_topic else None
        if of_all is not None and of_all.taken is not None:
            return of_all.taken
        served = self._compacted(OtherFiles(self.opened).compacted)
        OtherFiles(self.opened).warn(self.log, select, served, is_tiered_read=self.tiered_path is not None)
        for _ in range(_LOOKS_MAX):
            before = rebuild_state(self.opened)
            taken = self._taken(select)
            if rebuild_state(self.opened) == before:
                break
        if of_all is not None:
            of_all.taken = taken
        return taken

    def _taken(self, select: Callable[[str], bool]) -> Snapshot:
        refused: list[StoreError] = []
        taken = Snapshot.take(
            self.opened,
            self.log.relisted(),
            self.state,
            select,
            refuse if self.unreadable is None else refused.append,
        )
        self.pass_over(refused)
        self._warn_of_gone(taken)
        lost, question = self._unfiled.among(taken, select)
        if question is not None:
            self._ask(question)
        left_out = lost.keys() | self._unfiled.deleted_in(taken)
        if left_out:
            queues = QueueRanges.of(taken.queues).without(left_out)
            taken = replace(taken, queues=queues, damaged=taken.damaged | lost, lost=frozenset(lost))
        return self._served(taken, select)

    def in_log(self) -> Self:
        """The store with the messages of the commitlog alone."""
        return replace(self, compacted=False, tiered_path=None)

    @property
    def compacted_topics(self) -> frozenset[str]:
        """The names of the topics that are read from `compaction/`."""
        return self._compacted(OtherFiles(self.opened).compacted if self.compacted else ())

    def _compacted(self, topics: Collection[str]) -> frozenset[str]:
        """Those of the topics with cleanup.policy=COMPACTION that brokers serve from `compaction/`."""
        if not topics:
            return frozenset()
        from store_format.read.served import CompactedTopics  # most stores have none

        return CompactedTopics.of(self.opened, topics).names

    def _served(self, taken: Snapshot, select: Callable[[str], bool]) -> Snapshot:
        """The snapshot with the queues as consumers get them, where other files than the log decide that."""
        if self.tiered_path is None and not (self.compacted and OtherFiles(self.opened).compacted):
            return taken
        from store_format.consumequeue.tiered import TieredDirectory
        from store_format.metadata.tiered import TieredMetadata
        from store_format.read.served import KEYS, CompactedTopics, with_tiered

        compacted = self.compacted_topics
        if self.tiered_path is not None:
            directory = TieredDirectory.find(self.tiered_path, self.broker_name)
            metadata = TieredMetadata.read(self.opened)
            found = with_tiered(
                directory,
                metadata,
                taken.queues,
                lambda topic: select(topic) and topic not in compacted,
            )
            left_out = found.keys() & taken.damaged.keys()
            if left_out:
                self._unfiled.warn_of_tiered(left_out)
            found = {key: queue for key, queue in found.items() if key not in left_out}
            taken = replace(taken, queues=QueueRanges.of({**taken.queues, **found}))
        if not compacted:
            return taken
        tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
        reader = replace(self, log=taken.log).reader(DecodeOptions(KEYS, verify_crc=False), tolerance)
        served = CompactedTopics(self.opened, compacted).queues(taken.queues, reader)
        return replace(taken, queues=QueueRanges.of(taken.queues).changed(served))

    def _ask(self, question: OptionError) -> None:
        """Raises the question, or leaves the queues out with a warning."""
        if self.fail_on_unknown:
            raise question
        if self.fail_on_unknown is None:
            self.pass_over([question])
        else:
            but = ", except those that a broker files when it starts" * (self.state is StoreState.CRASHED)
            self._unfiled.warn(str(question), "%s These messages are left out%s", question, but)

    def look_again_for(self, keys: Collection[QueueKey] | None) -> None:
        """Says that these queues have messages, None: that any may have: one that has no files at the next
        look has lost them.
        """
        self._unfiled.look_again_for(keys)

    def in_one_look(self) -> Self:
        """The store for one answer of several parts, which looks at all queues only once."""
        return replace(self, _look=OneLook())

    def without_memory(self) -> Self:
        """The store without what earlier looks have found out about queues without files."""
        return replace(self, _unfiled=UnfiledQueues(self.opened, self._unfiled.answer))

    def _warn_of_gone(self, taken: Snapshot) -> None:
        """Warns of messages of the queues that no file shows, so that a read passes over them."""
        queues = taken.queues
        with suppress(StoreError, OSError):  # `verify` reports files that cannot be read
            given_up = QueueProofs(self.opened, self.log).given_up(queue.bounds for queue in queues.values())
            if given_up:
                first, count = given_up[0], sum(each.count for each in given_up)
                text = "%s: an earlier recovery gave up %d message%s of these queues, the first %s offset %d"
                name = f"{shown(first.topic)}-{first.queue_id}"
                plural = "s" * (count != 1)
                self._unfiled.warn(tuple(given_up), text, self.path, count, plural, name, first.first)
            gone = []
            if taken.state is not StoreState.LIVE and taken.log.growing_files is None:
                gone = QueueProofs(self.opened, taken.log).gone_by_ledger(queues.values())
            if gone:
                text, count = "%s: %d messages are lost, the first %s", sum(each.count for each in gone)
                self._unfiled.warn(tuple(gone), text, self.path, count, gone[0])

    def pass_over(self, errors: Iterable[StoreError], cluster: str = "") -> None:
        """Notes files that may not be read, with one warning for all new ones; of a `cluster`, its members.

        Raises the first error if the store was not opened with `skip_unreadable`.
        """
        if self.unreadable is None:
            for error in errors:
                raise error
            return
        new = {str(error): error for error in errors if str(error) not in self.unreadable}
        self.unreadable.update(new)
        if new:
            _log.warning(
                "%d %s of %s cannot be read and are skipped: %s",
                len(new),
                "stores" if cluster else "topics, queues or files",
                cluster or self.path,
                "; ".join(islice(new, _SHOWN_MAX)),
            )

    def survey(
        self, select: Callable[[str], bool] = lambda topic: True, *, cut_bytes: int = 64 << 20
    ) -> LogQueues:
        """The queues as the commitlog shows them, by one walk over the whole commitlog.

        Without the queues of deleted topics (`deleted_until`), and light queues that no broker makes.
        """
        OtherFiles(self.opened).warn(self.log, select)
        before = CommitState.read(self.opened)
        log, state = self.log.relisted(), self.state
        is_live = state is StoreState.LIVE
        stop = Snapshot.find_log_end(self.opened, log, state)
        deleted = StoredTopics(self.opened).deleted_until()

        has_light = has_rocksdb_queues(self.opened) or StoredTopics(self.opened).has_light_queues

        def is_there(topic: str) -> bool:
            is_deleted = deleted(topic) >= (OFFSET_MAX if stop is None else stop)
            return select(topic) and not is_deleted and (has_light or not is_light_queue(topic))

        begins = GivenUp.known(self.opened).queue_begins
        look = partial(LogQueues.of, select=is_there, cut_bytes=cut_bytes, is_live=is_live, begins=begins)
        found = look(log, stop=stop)
        if not is_live and any(queue.claims.left for queue in found.queues.values()):
            found = look(log, stop=stop, filing=QueueProofs(self.opened, log).filing(state))
        # a commit made progress meanwhile: survey what was complete before
        if CommitState.read(self.opened) != before:
            found = look(self.log.relisted(), stop=CommitState.committed_end(self.opened))
        self._unfiled.warn_of_restarted(found.queues)
        return found

    def _surveyed(self, select: Callable[[str], bool], cut_bytes: int = 64 << 20) -> LogQueues:
        """`survey`; of a store without queue files without those of an unknown fate, which it asks about."""
        found = self.survey(select, cut_bytes=cut_bytes)
        if self.has_consume_queues or self.state is StoreState.LIVE or self._unfiled.answer == "read":
            return found
        fates = Fates(self.opened, found.log).decide(found.queues, found.queues)
        unknown = {key: found.queues[key] for key, each in fates.items() if each.fate is Fate.UNKNOWN}
        if unknown and self._unfiled.answer is None:
            self._ask(Fates(self.opened, found.log).question(unknown))
        return replace(found, queues={key: found.queues[key] for key in found.queues.keys() - unknown})

    def topics(self) -> list[str]:
        """Returns the names of the topics that have queues, sorted; system topics included."""
        return sorted({queue.topic for queue in self.queues()})

    def queues(self, select: Callable[[str], bool] = _every_topic) -> list[Queue]:
        """Returns every queue of the selected topics, sorted by topic and queue id."""
        look = self._look
        if look is None or (look.queues is None and select is not _every_topic):
            return self._queues_now(select)
        if look.queues is None:
            look.queues = self._queues_now(select)
        return [queue for queue in look.queues if select(queue.topic)]

    @all_answered()
    def _queues_now(self, select: Callable[[str], bool]) -> list[Queue]:
        taken = self.indexed(select)
        if taken is None:
            self._unfiled.warn_of_none()
            return self._scanned(self._surveyed(select))
        if not taken.damaged:
            return sorted(self.queues_of(taken), key=_KEY)
        topics = {topic for topic, _ in taken.damaged}
        found = self.survey(topics.__contains__)
        scanned = [queue for queue in self._scanned(found) if queue.key in taken.damaged]
        # all of them read with the later listing of the commitlog
        return sorted(self.queues_of(replace(taken, log=found.log)) + scanned, key=_KEY)

    def indexed(self, select: Callable[[str], bool]) -> Snapshot | None:
        """The selected queues as consume queue files or a database have them; None if only the commitlog has
        them. A database that cannot be read is a warning.
        """
        if self.has_consume_queues:
            return self._snapshot(select)
        try:
            taken = Snapshot.take_database(self.opened, self.log.relisted(), self.state, select)
        except (CorruptStoreError, UnsupportedFormatError) as error:
            self._unfiled.warn(str(error), "%s: scanning the commitlog instead: %s", self.path, error)
            return None
        return None if taken is None else self._served(taken, select)

    def queues_of(self, taken: Snapshot) -> list[Queue]:
        """The queues of a snapshot, with the commitlog files that the snapshot has listed."""
        store = replace(self, log=taken.log)
        return [Queue(store, queue, None) for queue in taken.queues.values()]

    def _scanned(self, found: LogQueues) -> list[Queue]:
        store = replace(self, log=found.log)
        return [Queue(store, queue.range, queue) for _, queue in sorted(found.queues.items())]

    @all_answered()
    def queue(self, topic: str, queue_id: int) -> Queue:
        """Returns one queue. Raises OffsetOutOfRangeError for an unknown queue, naming the known ones."""
        found = self.indexed(topic.__eq__)
        if found is not None:
            if (topic, queue_id) in found.queues:
                return next(each for each in self.queues_of(found) if each.queue_id == queue_id)
            if (topic, queue_id) not in found.damaged:
                ids = sorted(queue for name, queue in found.queues if name == topic)
                near = did_you_mean(topic, sorted(self.topics(), key=is_system_topic), "topics")
                have = f"its queues are {ids}" if ids else near
                raise OffsetOutOfRangeError(f"{self.path} has no queue {topic}-{queue_id}; {have}")
        else:
            self._unfiled.warn_of_none()
        for scanned in self._scanned(self._surveyed(topic.__eq__)):
            if scanned.queue_id == queue_id:
                return scanned
        raise OffsetOutOfRangeError(f"{self.path} has no message of queue {topic}-{queue_id}")

    def scanned_queues(self, select: Callable[[str], bool], cut_bytes: int) -> tuple[list[Queue], list[int]]:
        """The queues that `survey` finds, and the physical offsets at which a scan may be split."""
        found = self._surveyed(select, cut_bytes)
        return self._scanned(found), found.cuts

    def configured_topics(self) -> frozenset[str]:
        """Returns the topics in topics.json, with or without messages."""
        return frozenset(known_topics(self.opened) or ())

    def reader(
        self, decode_options: DecodeOptions, tolerance: Tolerance, tags_codes: frozenset[int] | None = None
    ) -> QueueReader:
        """A reader of slices of this store's queues; see `QueueReader`."""
        if decode_options.wants_logical:
            decode_options = with_logical(decode_options, self.opened, self.broker_name)
        return QueueReader(
            self.log, self.broker_name, decode_options, tolerance, tags_codes, f"{self.path}/consumequeue_ext"
        )

    def scan(
        self,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        *,
        verify_crc: bool = True,
        on_damage: str = "FAILFAST",
    ) -> Iterator[pa.RecordBatch]:
        """Yields every message of the commitlog in its order, also half messages and rolled back ones.

        At damaged bytes, `on_damage` FAILFAST raises CorruptStoreError; DROPMALFORMED warns and skips. Warns
        of messages that are lost with the last commitlog files.
        """
        decode_options, tolerance = decode_options_of(columns, verify_crc), Tolerance(on_damage)
        decode_options = with_logical(decode_options, self.opened, self.broker_name)
        log, state = self.log.relisted(), self.state
        stop, is_live = Snapshot.find_log_end(self.opened, log, state), state is StoreState.LIVE
        yield from scan_units(
            log, decode_options, self.broker_name, tolerance, stop, is_live=is_live,
            contradictions=Contradictions(self.opened, log),
        )  # fmt: skip
        QueueProofs(self.opened, log).warn_of_gone(state)


class Queue:
    """One queue of a store, with the offsets that it had when `Store.queue` or `Store.queues` returned it.

    A look at the end of the log makes 10,000 of them: no dataclass, which would take three times as long.
    """

    __slots__ = ("_known", "max_offset", "min_offset", "newest", "scanned", "store")

    def __init__(
        self,
        store: Store,
        known: QueueRange,
        scanned: LogQueue | None,
        newest: Newest | None = None,
    ) -> None:
        """`scanned` is set if the queue is read by a scan of the commitlog. `newest` is the last message, if
        a look at the log read it: `known` may end before it.
        """
        self.store, self.scanned, self.newest, self._known = store, scanned, newest, known
        self.min_offset = known.min_offset
        self.max_offset = known.max_offset if newest is None else newest.stop

    def grown(self, store: Store, newest: Newest) -> Queue:
        """The queue, which has files and no message that these lack, up to its newest message."""
        return Queue(store, self._known, None, newest)

    @property
    def range(self) -> QueueRange:
        """The queue as plain values."""
        if self.newest is not None and self._known.max_offset != self.max_offset:
            self._known = self._known.grown(self.newest)
        return self._known

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Queue):
            return NotImplemented
        return (self.range, self.scanned, self.store) == (other.range, other.scanned, other.store)

    def __hash__(self) -> int:
        return hash((self.range, self.store))

    def __repr__(self) -> str:
        offsets = f"offsets {self.min_offset:,} to {self.max_offset:,}"
        return f"<Queue {shown(self.topic)}-{self.queue_id} of {self.store.broker_name}: {offsets}>"

    @property
    def messages(self) -> int:
        """How many messages the queue has, by its ends; those of a compacted queue without the gaps."""
        gaps = self._known.gaps if self._known.parts else 0
        return self.max_offset - self.min_offset - gaps

    @property
    def topic(self) -> str:
        """The topic of the queue."""
        return self._known.topic

    @property
    def queue_id(self) -> int:
        """The queue id, from 0."""
        return self._known.queue_id

    @property
    def key(self) -> QueueKey:
        """The pair (topic, queue id)."""
        return self._known.topic, self._known.queue_id

    @property
    def held_max_offset(self) -> int:
        """The queue offset after the last message as the consume queue has it, where `holds_last` leaves
        messages out: `max_offset` and these.
        """
        bounds = self.range.bounds
        if self.store.log.growing_files is None or bounds is None:
            return self.max_offset
        filed = FiledQueue(self.topic, self.queue_id, bounds.directory, bounds.kind)
        there = filed.bounds(self.store.log.min_offset, scan=True)
        return self.max_offset if there is None else max(self.max_offset, there.max_offset)

    def piece(self, start: int | None = None, stop: int | None = None) -> QueueSlice:
        """Returns the offsets [start, stop), limited to the queue's; None is the first or the last."""
        low = self.min_offset if start is None else max(start, self.min_offset)
        high = self.max_offset if stop is None else min(stop, self.max_offset)
        return self.range.piece(low, max(low, high))

    def read(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        verify_crc: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """Yields the messages of offsets [start, stop) in order, as record batches of about 2 MB.

        Raises OffsetOutOfRangeError if `start` is outside [min_offset, max_offset], OptionError for an
        unknown column, and CorruptStoreError at a damaged message.
        """
        if start is not None and not self.min_offset <= start <= self.max_offset:
            have = f"the queue holds {self.min_offset} to {self.max_offset}"
            raise OffsetOutOfRangeError(
                f"{self.topic}-{self.queue_id}: offset {start} is not in the queue; {have}"
            )
        piece = self.piece(start, stop)
        yield from read_pieces([(self, piece)], decode_options_of(columns, verify_crc), Tolerance())

    def to_table(
        self,
        start: int | None = None,
        stop: int | None = None,
        *,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        verify_crc: bool = True,
    ) -> pa.Table:
        """Returns what `read` yields as one table in memory.

        Example: `store.queue("Orders", 0).to_table(columns=["queueOffset", "keys", "body"])`.
        """
        batches = self.read(start, stop, columns=columns, verify_crc=verify_crc)
        return pa.Table.from_batches(batches, arrow_schema(tuple(columns)))

    def offset_at(
        self, timestamp_ms: int, boundary: Boundary = "LOWER", *, on_damage: str = "FAILFAST"
    ) -> int:
        """Returns the queue offset for a store time in ms since 1970, between min_offset and max_offset.

        LOWER: the first message at or after the time; UPPER: the last message at or before it (the rule of
        MessageStore.getOffsetInQueueByTime). If the search needs a message that cannot be read, FAILFAST
        raises CorruptStoreError; the other modes use the time of the next readable message.
        """
        if self.scanned is None:
            return offset_at_time(self.range, self.store.log, timestamp_ms, boundary, on_damage)
        columns = decode_options_of(["queueOffset", "storeTimestampMs"], False)
        tolerance = Tolerance("FAILFAST" if on_damage == "FAILFAST" else "DROPMALFORMED")
        rows = read_pieces([(self, self.piece())], columns, tolerance)
        return offset_in_rows(self.range, rows, timestamp_ms, boundary)

    def first_since(self, timestamp_ms: int, *, on_damage: str = "FAILFAST") -> int:
        """Returns the queue offset from which on a read finds the messages stored at or after a time.

        That is `offset_at` LOWER, but before it if other files have messages that the consume queue and the
        commitlog no longer have: a broker does not search them.
        """
        found = self.offset_at(timestamp_ms, on_damage=on_damage)
        bounds, parts = self.range.bounds, self.range.parts
        if not parts or parts[0].own is None or (bounds is not None and bounds.min_offset < found):
            return found
        low, high = parts[0].min_offset, min(parts[0].max_offset, found)
        log = parts[0].own.log(self.store.files)
        times = QueueTimes(parts[0].piece(low, high), lambda place, _: log.store_timestamp_at(place))
        at = bisect_left(times, timestamp_ms) if low < high else 0
        return low + at if at < high - low else found

    def _repr_html_(self) -> str:
        """The queue for notebooks: its offsets and its newest messages, or why these cannot be read."""
        from store_format.display.page import PageSpace, card, fact, facts, table, text, warning

        lines = [
            ("broker", text(self.store.broker_name)),
            ("offsets", f"{self.min_offset} to {self.max_offset} (exclusive: the next message gets it)"),
            ("messages", f"{self.messages:,}"),
        ]
        parts: list[str] = []
        try:
            start = max(self.max_offset - _PREVIEW_ROWS, self.min_offset)
            batches = list(self.read(start, columns=_PREVIEW_COLUMNS))
            if batches:
                rows = table(batches, batches[0].schema, PageSpace(), limit=_PREVIEW_ROWS)
                parts.append(f'<div class="s">the newest</div>{rows}')
        except (StoreError, OSError) as error:
            parts.append(warning(f"its newest messages cannot be read: {error}"))
        name = f"{self.topic}-{self.queue_id}"
        return card(name, "message queue", [facts(starmap(fact, lines)), *parts]).source


def read_pieces(
    pieces: Sequence[tuple[Queue, QueueSlice]],
    decode_options: DecodeOptions,
    tolerance: Tolerance,
    tags_codes: frozenset[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of slices of queues of one store.

    Queues with consume queue files come first, each in its order. Queues without them follow, read by one
    walk over the commitlog.
    """
    pieces = [(queue, piece) for queue, piece in pieces if piece.start < piece.stop]
    if not pieces:
        return
    # of queues from several looks: the newest listing of the commitlog has the files of all their messages
    store = max((queue.store for queue, _ in pieces), key=lambda store: store.log.stop)
    reader = store.reader(decode_options, tolerance, tags_codes)
    with all_answered():
        yield from reader.read([piece for queue, piece in pieces if queue.scanned is None])
        scanned = {queue.key: queue.scanned for queue, _ in pieces if queue.scanned is not None}
        if scanned:
            of_log = [piece for queue, piece in pieces if queue.scanned is not None]
            stop = max(queue.physical_stop for queue in scanned.values())
            yield from LogReader(reader, of_log, scanned).read(reader.log.min_offset, stop)


# ---- the queues that a read needs --------------------------------------------------------------------------


class QueueChoice(Protocol):
    """Which queues a caller reads."""

    def chooses_topic(self, topic: str) -> bool:
        """False only for a topic of which no queue is read."""

    def chooses_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        """Whether this queue of a chosen topic is read."""


@dataclass(frozen=True, slots=True)
class StoreQueues:
    """The queues of one store for one read.

    `filed` have consume queue files, and `store` lists the commitlog files with their messages. `scanned` are
    found only in the commitlog; their scan may be split at `cuts`. `log_end` is the end of the commitlog
    where it had to be determined: after a crash, for a scan, and where a recovery has left whole messages
    after it (`has_remains`).
    """

    store: Store
    filed: QueueRanges
    scanned: list[Queue] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    log_end: int | None = None
    has_remains: bool = False

    @property
    def queues(self) -> list[Queue]:
        """The queues with consume queue files, made at each call."""
        return [Queue(self.store, queue, None) for queue in self.filed.values()]


def find_queues(store: Store, choice: QueueChoice, *, level: int = logging.WARNING) -> StoreQueues:
    """The chosen queues as the files are now. A necessary scan is logged at `level`."""

    def chooses(key: QueueKey) -> bool:
        return choice.chooses_queue(key[0], store.broker_name, key[1])

    snapshot = store.indexed(choice.chooses_topic)
    if snapshot is None:
        _log.log(
            level, "%s has no consume queue files (RocksDB, or deleted): scanning its commitlog", store.path
        )
        scanned, cuts = store.scanned_queues(choice.chooses_topic, _SCAN_CUT_BYTES)
        chosen = [queue for queue in scanned if chooses(queue.key)]
        return StoreQueues(store, QueueRanges.of({}), chosen, cuts, cuts[-1])
    filed = QueueRanges.of(snapshot.queues)
    filed = filed.without([key for key in filed if not chooses(key)])
    found = StoreQueues(
        replace(store, log=snapshot.log), filed, log_end=snapshot.log_end, has_remains=snapshot.has_remains
    )
    if not snapshot.damaged:
        return found
    # a warning of the store names the lost queues
    damaged = [(key, error) for key, error in snapshot.damaged.items() if key not in snapshot.lost]
    if damaged:
        (topic, queue_id), error = damaged[0]
        text = "%d consume queues cannot be used, scanning the commitlog for them; %s-%d: %s"
        _log.log(level, text, len(damaged), topic, queue_id, error)
    lost = {key for key in snapshot.damaged if chooses(key)}
    if not lost:
        return found
    topics = {name for name, _ in lost}
    scanned, cuts = store.scanned_queues(topics.__contains__, _SCAN_CUT_BYTES)
    chosen = [queue for queue in scanned if queue.key in lost]
    return StoreQueues(found.store, filed, chosen, cuts, cuts[-1])

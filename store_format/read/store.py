"""A store directory opened for reading: the store, its queues and their messages.

Reading changes no file and takes no lock.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, starmap
from typing import Self

import pyarrow as pa

from store_format.bookkeeping.journal import committed_end, read_commit_state, rebuild_state
from store_format.bookkeeping.state import StoreState, store_state
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.offset_by_time import Boundary, QueueTimes, offset_at
from store_format.consumequeue.slices import QueueRange, QueueSlice
from store_format.errors import (
    CorruptStoreError,
    OffsetOutOfRangeError,
    OptionError,
    StoreError,
    StoreNotFoundError,
    StorePermissionError,
    UnsupportedFormatError,
)
from store_format.files.read import LOST_AND_FOUND, FileCache, entry_names, refuse
from store_format.files.status import is_directory
from store_format.message.columns import BODY_SIZE_MAX, COLUMNS, DEFAULT_COLUMNS, DecodeOptions
from store_format.message.parts import HEAD_SIZE_MAX, read_head
from store_format.metadata.read import read_topics
from store_format.read.log_end import find_log_end
from store_format.read.log_reader import LogQueue, LogReader, Survey, scan_units, survey
from store_format.read.queue_reader import QueueReader
from store_format.read.snapshot import Snapshot, take_snapshot
from store_format.read.store_root import broker_name_of, refuse_root
from store_format.read.tolerance import Tolerance
from store_format.read.unfiled_queues import UnfiledQueues

__all__ = ["Queue", "Store", "decode_options_of"]

_log = logging.getLogger(__name__)

_SHOWN_MAX = 8
_LOOKS_MAX = 100  # while a writer moves rebuilt queues in, which takes it microseconds each
_PREVIEW_ROWS = 10
_PREVIEW_COLUMNS = ("queueOffset", "storeTimestamp", "tags", "keys", "msgId", "body")


@dataclass(frozen=True, slots=True)
class Store:
    """The directory of one broker's store, opened for reading.

    Every method (`topics`, `queue`, `snapshot` ...) looks at the files as they are when it is called.
    """

    path: str
    broker_name: str
    log: CommitLog
    commit_log_paths: tuple[str, ...]
    files: FileCache = field(default_factory=FileCache, repr=False, compare=False)
    # errors passed over so far, by their text; None: an error is raised
    unreadable: dict[str, StoreError] | None = field(default=None, repr=False, compare=False)
    _lost: UnfiledQueues = field(default_factory=UnfiledQueues, repr=False, compare=False)

    @classmethod
    def open(
        cls,
        path: str,
        *,
        broker_name: str | None = None,
        commit_log_paths: Sequence[str] = (),
        files: FileCache | None = None,
        skip_unreadable: bool = False,
    ) -> Self:
        """`commit_log_paths` are directories of commitlog files that lie elsewhere (`storePathCommitLog`).

        Stores that are opened one after the other may share the commitlog files they hold open in `files`. A
        queue that this user may not read, or that is a link, is an error to whom it concerns; with
        `skip_unreadable` it is passed over, with a warning, and noted in `unreadable`.

        Raises StoreNotFoundError for a path that is no store root, StorePermissionError for one that may not
        be read, and CorruptStoreError for commitlog files that do not fit together.
        """
        root = os.path.abspath(path)
        names = entry_names(root)
        directories = tuple(commit_log_paths) or (f"{root}/commitlog",)
        if "commitlog" not in names and not commit_log_paths:
            refuse_root(root, names)
        for directory in commit_log_paths:
            if not is_directory(directory):
                raise StoreNotFoundError(
                    f"storePathCommitLog: {directory} is no directory; name those that hold commitlog files, all of them"
                )
        files = FileCache() if files is None else files
        log = CommitLog.open(directories, files)
        return cls(
            root,
            broker_name or broker_name_of(root),
            log,
            directories,
            files,
            {} if skip_unreadable else None,
        )

    @property
    def state(self) -> StoreState:
        """Clean, live or crashed, as `store_state` decides it now."""
        return store_state(self.path)

    def _log_stop(self) -> int | None:
        """Where the log ends by a rule instead of its bytes: after a crash, and at a commit of ours that is
        not complete.
        """
        return find_log_end(self.path, self.log, self.state)

    def time_at(self, physical_offset: int) -> int:
        """The store time in ms of the message there; -1 where none can be read, as
        `CommitLog.store_timestamp_at`.

        Where none may be read, the file is passed over, or that is an error.
        """
        try:
            return self.log.store_timestamp_at(physical_offset)
        except StorePermissionError as error:
            self.pass_over([error])
            return -1

    @property
    def has_consume_queues(self) -> bool:
        """False when RocksDB keeps the consume queues, or they are gone: then only the commitlog can be
        scanned.
        """
        names = entry_names(f"{self.path}/consumequeue", missing_ok=True) - {LOST_AND_FOUND}
        if "CURRENT" in names:
            # both kinds with rocksdbCQDoubleWriteEnable
            return any(os.path.isdir(f"{self.path}/consumequeue/{name}") for name in names)
        return (
            bool(names)
            or bool(entry_names(f"{self.path}/batchconsumequeue", missing_ok=True) - {LOST_AND_FOUND})
            or not self.log.files
        )

    def snapshot(self, select: Callable[[str], bool] = lambda topic: True) -> Snapshot:
        """Where the queues of the selected topics begin and end now. Raises UnsupportedFormatError without
        consume queue files.

        A configured queue that has messages in the commitlog and no files counts as `damaged`; once an open
        store, a warning names it.
        """
        if not self.has_consume_queues:
            raise UnsupportedFormatError(
                f"{self.path}: no consume queue files (RocksDB?); only the commitlog can be scanned: use survey()"
            )
        for _ in range(_LOOKS_MAX):
            before = rebuild_state(self.path)
            taken = self._taken(select)
            if rebuild_state(self.path) == before:
                break
        self._list_log()
        return taken

    def _taken(self, select: Callable[[str], bool]) -> Snapshot:
        refused: list[StoreError] = []
        taken = take_snapshot(
            self.path, self.log, self.state, select, refuse if self.unreadable is None else refused.append
        )
        self.pass_over(refused)
        lost = self._lost.among(self, taken, select)
        if not lost:
            return taken
        queues = {key: queue for key, queue in taken.queues.items() if key not in lost}
        return replace(taken, queues=queues, damaged=taken.damaged | lost, lost=frozenset(lost))

    def pass_over(self, errors: Iterable[StoreError]) -> None:
        """Notes what may not be read, with one warning for all that is new. Raises the first, unless opened
        with `skip_unreadable`.
        """
        if self.unreadable is None:
            for error in errors:
                raise error
            return
        new = {str(error): error for error in errors if str(error) not in self.unreadable}
        self.unreadable.update(new)
        if new:
            _log.warning(
                "%d topics, queues or files of %s are passed over: %s",
                len(new),
                self.path,
                "; ".join(islice(new, _SHOWN_MAX)),
            )

    def _list_log(self) -> None:
        """The commitlog's files anew: queues may lead to some that were made since. This class is frozen for
        its users alone.
        """
        object.__setattr__(self, "log", CommitLog.open(self.commit_log_paths, self.files))

    def survey(
        self, select: Callable[[str], bool] = lambda topic: True, *, cut_bytes: int = 64 << 20
    ) -> Survey:
        """The queues as the commitlog itself shows them, by one walk over all of it."""
        before = read_commit_state(self.path)
        is_live = self.state is StoreState.LIVE
        stop = self._log_stop()
        self._list_log()
        found = survey(self.log, select, stop=stop, cut_bytes=cut_bytes, is_live=is_live)
        # a commit went on: again, up to where all was committed before
        if read_commit_state(self.path) != before:
            stop = committed_end(self.path)
            self._list_log()
            found = survey(self.log, select, stop=stop, cut_bytes=cut_bytes, is_live=is_live)
        self._lost.warn_of_hidden(self, found.queues)
        return found

    def topics(self) -> list[str]:
        """The topics that have queues, sorted; system topics too."""
        return sorted({queue.topic for queue in self.queues()})

    def queues(self, select: Callable[[str], bool] = lambda topic: True) -> list[Queue]:
        """Every queue of the selected topics, sorted by topic and id."""
        if not self.has_consume_queues:
            self._lost.warn_of_none(self)
            found = self.survey(select)
            return [Queue(self, _log_range(queue), queue) for _, queue in sorted(found.queues.items())]
        taken = self.snapshot(select)
        missing = (
            self.survey(lambda topic: any(topic == damaged for damaged, _ in taken.damaged)).queues
            if taken.damaged
            else {}
        )
        queues = [Queue(self, queue, None) for queue in taken.queues.values()]
        queues += [
            Queue(self, _log_range(queue), queue) for key, queue in missing.items() if key in taken.damaged
        ]
        return sorted(queues, key=lambda queue: (queue.topic, queue.queue_id))

    def queue(self, topic: str, queue_id: int) -> Queue:
        """One queue. Raises OffsetOutOfRangeError, naming what is there, when the store has no such queue."""
        if self.has_consume_queues:
            found = self.snapshot(lambda name: name == topic)
            if (topic, queue_id) in found.queues:
                return Queue(self, found.queues[topic, queue_id], None)
            if (topic, queue_id) not in found.damaged:
                ids = sorted(queue for name, queue in found.queues if name == topic)
                have = (
                    f"its queues are {ids}"
                    if ids
                    else f"the topics are {', '.join(self.topics()[:_SHOWN_MAX])}"
                )
                raise OffsetOutOfRangeError(f"{self.path} has no queue {topic}-{queue_id}; {have}")
        else:
            self._lost.warn_of_none(self)
        scanned = self.survey(lambda name: name == topic).queues.get((topic, queue_id))
        if scanned is None:
            raise OffsetOutOfRangeError(f"{self.path} has no message of queue {topic}-{queue_id}")
        return Queue(self, _log_range(scanned), scanned)

    def scanned_queues(self, select: Callable[[str], bool], cut_bytes: int) -> tuple[list[Queue], list[int]]:
        """The queues as `survey` finds them, and physical offsets at which a scan may be cut into parts."""
        found = self.survey(select, cut_bytes=cut_bytes)
        return [
            Queue(self, _log_range(queue), queue) for _, queue in sorted(found.queues.items())
        ], found.cuts

    def configured_topics(self) -> frozenset[str]:
        """The topics in topics.json, with messages or without."""
        return frozenset(read_topics(self.path) or ())

    def reader(
        self, decode_options: DecodeOptions, tolerance: Tolerance, tags_codes: frozenset[int] | None = None
    ) -> QueueReader:
        """What reads slices of this store's queues; see `QueueReader`."""
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
        """Every unit of the commitlog in its order, those in no queue (rolled back, prepared) included.

        `on_damage`: FAILFAST raises at the first damaged bytes; DROPMALFORMED steps over them, with a warning
        and a count.
        """
        is_live = self.state is StoreState.LIVE
        decode_options, tolerance = decode_options_of(columns, verify_crc), Tolerance(on_damage)
        yield from scan_units(
            self.log, decode_options, self.broker_name, tolerance, self._log_stop(), is_live=is_live
        )


@dataclass(frozen=True, slots=True)
class Queue:
    """One message queue of a store, as it was when it was asked for."""

    store: Store
    range: QueueRange
    scanned: LogQueue | None  # set when the commitlog has to serve it

    @property
    def topic(self) -> str:
        return self.range.topic

    @property
    def queue_id(self) -> int:
        return self.range.queue_id

    @property
    def min_offset(self) -> int:
        """The first queue offset that can be read."""
        return self.range.min_offset

    @property
    def max_offset(self) -> int:
        """The queue offset behind the last message."""
        return self.range.max_offset

    def piece(self, start: int | None = None, stop: int | None = None) -> QueueSlice:
        """Offsets [start, stop), cut to what there is; None = from the first, to the last."""
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
        """The messages of offsets [start, stop) in order, in batches of about 2 MB.

        Raises OffsetOutOfRangeError when `start` lies outside [min_offset, max_offset], CorruptStoreError at
        a damaged message.
        """
        if start is not None and not self.min_offset <= start <= self.max_offset:
            have = f"it holds {self.min_offset} to {self.max_offset}"
            raise OffsetOutOfRangeError(
                f"{self.topic}-{self.queue_id}: offset {start} is not in the queue; {have}"
            )
        yield from self._read(self.piece(start, stop), decode_options_of(columns, verify_crc), Tolerance())

    def _read(
        self, piece: QueueSlice, decode_options: DecodeOptions, tolerance: Tolerance
    ) -> Iterator[pa.RecordBatch]:
        reader = self.store.reader(decode_options, tolerance)
        if self.scanned is None:
            yield from reader.read([piece])
        else:
            end = self.scanned.physical_stop
            yield from LogReader(reader, [piece], {(self.topic, self.queue_id): self.scanned}).read(
                self.store.log.min_offset, end
            )

    def offset_at(
        self, timestamp_ms: int, boundary: Boundary = "LOWER", *, on_damage: str = "FAILFAST"
    ) -> int:
        """The queue offset for a store time in ms, between min_offset and max_offset
        (MessageStore.getOffsetInQueueByTime).

        LOWER: the first message at or after it; UPPER: the last one at or before it. Where the search meets a
        message that cannot be read, FAILFAST raises CorruptStoreError; every other mode takes the time of the
        next message that can be read.
        """
        bounds = self.range.bounds
        if bounds is not None and not self.range.extra and self.max_offset == bounds.max_offset:
            unknown: list[int] = []

            def time_at(physical_offset: int) -> int:
                time = self._time_at(physical_offset, on_damage)
                if time < 0 and physical_offset >= bounds.commit_log_min:
                    unknown.append(physical_offset)
                return time

            found = offset_at(bounds, timestamp_ms, boundary, time_at)
            if not unknown:
                return found
        return self._search(timestamp_ms, boundary, on_damage)

    def _time_at(self, physical_offset: int, on_damage: str) -> int:
        time = self.store.log.store_timestamp_at(physical_offset)
        error = self._damage_at(physical_offset) if time < 0 and on_damage == "FAILFAST" else None
        if error is not None:
            raise error
        return time

    def _damage_at(self, physical_offset: int) -> CorruptStoreError | None:
        """Why the time of an entry's message cannot be read; None where retention has deleted it."""
        log = self.store.log.anew()
        if 0 <= physical_offset < log.min_offset:
            return None
        file = log.file_at(physical_offset)
        if file is None:
            stop = log.files[-1].stop if log.files else 0
            place = (
                self.range.bounds.directory
                if self.range.bounds is not None
                else f"{self.topic}-{self.queue_id}"
            )
            return CorruptStoreError(
                place,
                0,
                f"commitlog offsets between {log.min_offset} and {stop}, inside a file",
                f"{physical_offset}",
            )
        position = physical_offset - file.start
        head = log.view(file).read(position, HEAD_SIZE_MAX)
        expected = f"a message of {self.topic}-{self.queue_id}, for a search by time: magic code 0xDAA320A7 (V1) or 0xDAA320AB (V2)"
        return CorruptStoreError(
            file.path, position, f"{expected}, physicalOffset {physical_offset}", _head_found(head)
        )

    def _repr_html_(self) -> str:
        return _queue_card(self)

    def _search(self, timestamp_ms: int, boundary: Boundary, on_damage: str) -> int:
        """By definition instead of the broker's steps, for queues that no file of theirs describes whole, or
        with damaged messages.
        """
        if self.scanned is None:
            piece = self.range.piece(self.min_offset, self.max_offset)
            at = QueueTimes(piece, lambda physical_offset: self._time_at(physical_offset, on_damage))
            lower = bisect_left(at, timestamp_ms)
            upper = bisect_right(at, timestamp_ms) - 1
            return self.min_offset + (lower if boundary == "LOWER" else max(upper, 0))
        found, before = self.max_offset, self.min_offset
        tolerance = Tolerance("FAILFAST" if on_damage == "FAILFAST" else "DROPMALFORMED")
        for batch in self._read(
            self.piece(), decode_options_of(["queueOffset", "storeTimestampMs"], False), tolerance
        ):
            offsets, times = batch["queueOffset"].to_numpy(), batch["storeTimestampMs"].to_numpy()
            found = min([found, *offsets[times >= timestamp_ms].tolist()])
            before = max([before, *offsets[times <= timestamp_ms].tolist()])
        return found if boundary == "LOWER" else before


def _head_found(data: bytes) -> str:
    head = read_head(data)
    return "the end of the file" if head is None else f"0x{head.magic:08X}, {head.physical_offset}"


def decode_options_of(columns: Sequence[str], verify_crc: bool) -> DecodeOptions:
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise OptionError(f"unknown column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    return DecodeOptions(tuple(columns), verify_crc, BODY_SIZE_MAX)


def _log_range(queue: LogQueue) -> QueueRange:
    return QueueRange(
        queue.topic, queue.queue_id, queue.min_offset, queue.max_offset, None, is_batch=queue.is_batch
    )


def _queue_card(queue: Queue) -> str:
    """The HTML of a queue: its offsets and its newest messages."""
    from store_format.display.page import Room, card, fact, facts, text, warning
    from store_format.display.table import table

    start = max(queue.max_offset - _PREVIEW_ROWS, queue.min_offset)
    lines = [
        ("broker", text(queue.store.broker_name)),
        ("offsets", f"{queue.min_offset:,} up to {queue.max_offset:,}, which is not in it yet"),
        ("messages", f"{queue.max_offset - queue.min_offset:,}"),
    ]
    parts: list[str] = []
    try:
        batches = (
            list(queue.read(start, columns=_PREVIEW_COLUMNS)) if queue.max_offset > queue.min_offset else []
        )
        if batches:
            rows = table(batches, batches[0].schema, Room(), limit=_PREVIEW_ROWS)
            parts.append(f'<div class="s">the newest</div>{rows}')
    except (StoreError, OSError) as error:
        parts.append(warning(f"its newest messages cannot be read: {error}"))
    name = f"{queue.topic}-{queue.queue_id}"
    return card(name, "message queue", [facts(starmap(fact, lines)), *parts]).source

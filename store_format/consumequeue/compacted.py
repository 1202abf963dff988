"""Compacted topics (`cleanup.policy=COMPACTION`): what a consumer gets of a queue, from `compaction/`.

A broker copies each message with keys to a log of the queue, with an entry in a queue file of the same name
(CompactionLog). Rounds of the broker then replace these files by shorter ones, which keep the newest message
of each key. Queue offsets stay as they are, so the entries have gaps (SparseConsumeQueue). The physical
offsets of messages are those in this log, and change with each round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import QUEUE_OFFSET_MAX, QueueBounds
from store_format.consumequeue.own_files import (
    Boundary,
    Span,
    as_entries,
    joined_entries,
    own_log,
    read_listed,
)
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import valid_batch_units
from store_format.errors import CorruptStoreError, FileReplacedError, TruncatedRecordError
from store_format.files.lock import StoreLock
from store_format.files.paths import StoreFile
from store_format.files.polling import Clocks
from store_format.files.read import FileCache, files_at
from store_format.layouts import BATCH_CQ_UNIT
from store_format.names import QueueKey
from store_format.opened.store import Opened

# A round of the broker may be replacing the files: 20 ms, on a machine with too much work half a second.
_ROUND_SECONDS_MAX, _PAUSE_SECONDS = 3.0, 0.01
_UNSEEN_SECONDS_MAX = 0.5  # of a broker that was killed, or whose lock another machine does not see
_UNIT = BATCH_CQ_UNIT.itemsize


def _end_mark() -> bytes:
    unit = np.zeros(1, BATCH_CQ_UNIT)
    unit["physical_offset"] = unit["compacted_offset"] = -1
    return unit.tobytes()


_END_MARK = _end_mark()  # behind the entries of a full log file (SparseConsumeQueue.putEndPositionInfo)


class CompactedFiles(NamedTuple):
    """The files of one queue below `compaction/`: `spans` describe the entries in each of `queue_files`."""

    queue_files: tuple[StoreFile, ...] = ()
    log_files: tuple[StoreFile, ...] = ()
    spans: tuple[Span, ...] = ()

    @property
    def stop(self) -> int:
        return self.spans[-1][1] + 1 if self.spans else 0

    def read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        cache, parts = FileCache(len(self.queue_files) or 1), []
        for file, (first, last, count) in zip(self.queue_files, self.spans, strict=True):
            if first >= stop or last < start:
                continue
            units = np.frombuffer(read_listed(file, 0, count * _UNIT, cache), BATCH_CQ_UNIT)
            low, high = np.searchsorted(units["base_offset"], [start, stop]).tolist()
            units = units[low:high]
            parts.append((units["base_offset"].astype(np.int64), as_entries(units)))
        return joined_entries(parts)

    def log(self, cache: FileCache) -> CommitLog:
        return own_log(self.log_files, cache)

    def place_of(self, offset: int) -> tuple[str, int]:
        for file, (_, last, _) in zip(self.queue_files, self.spans, strict=True):
            if offset <= last:
                units = np.frombuffer(
                    read_listed(file, 0, file.size // _UNIT * _UNIT, FileCache(1)), BATCH_CQ_UNIT
                )
                return file.path, int(np.searchsorted(units["base_offset"], offset)) * _UNIT
        return (self.queue_files[-1].path if self.queue_files else "", 0)

    def offset_at(
        self, timestamp: int, boundary: Boundary, oldest_in_log: int | None, cache: FileCache
    ) -> int | None:
        return None

    def served_from(self, min_offset: int) -> int:
        return 0  # CompactionLog.getMessage answers an offset before the first message with that message


def compacted_part(opened: Opened, key: QueueKey) -> QueueRange:
    """The entries of a queue in `compaction/`: from the first to the last, or from 0 to 0 without any.

    Raises CorruptStoreError for files that do not fit together or entries that do not ascend, and
    FileReplacedError if rounds of the broker replace the files again and again.
    """
    topic, queue_id = key
    queue_directory, log_directory = (
        f"{opened.path}/compaction/{folder}/{topic}/{queue_id}"
        for folder in ("compactionCq", "compactionLog")
    )
    files, edges = _settled(opened, log_directory, queue_directory)
    if edges is None:
        return QueueRange(topic, queue_id, 0, 0, None, own=files)
    first, last = edges
    count = sum(span[2] for span in files.spans)
    start, stop = int(first["base_offset"]), int(last["base_offset"]) + 1
    size = max(file.size for file in files.queue_files)
    places = int(first["physical_offset"]), int(last["physical_offset"]), int(last["size"])
    bounds = QueueBounds(
        topic, queue_id, queue_directory, "batch", size, 0, 0, 0, 0, count, start, stop, *places
    )
    return QueueRange(topic, queue_id, start, stop, bounds, own=files)


def has_compacted_files(opened: Opened, topic: str) -> bool:
    """Whether a broker has made compaction files of the topic."""
    return opened.files.is_directory(f"{opened.path}/compaction/compactionCq/{topic}")


def _settled(
    opened: Opened, log_directory: str, queue_directory: str
) -> tuple[CompactedFiles, tuple[np.void, np.void] | None]:
    """What `_looked` returns for the files between two rounds of the broker: they are looked at again while
    a round replaces them, in a store that a broker has not left in order.
    """
    directories = log_directory, queue_directory
    is_written = StoreLock.holder(f"{opened.path}/lock") is not None
    seconds = _ROUND_SECONDS_MAX if is_written else _UNSEEN_SECONDS_MAX
    for _ in Clocks().attempts(seconds, _PAUSE_SECONDS):
        logs, queues = map(_listed, directories)
        failure: CorruptStoreError | FileReplacedError | None = None
        try:
            found = _looked(queues, logs)
            _check_moved(log_directory, queue_directory)
        except (CorruptStoreError, FileReplacedError) as error:
            failure = error
        is_same = tuple(map(_listed, directories)) == (logs, queues)
        if is_same and failure is None:
            return found
        abort = f"{opened.path}/abort"
        if is_same and not files_at(abort).exists(abort):
            break
        for directory in directories:
            opened.files.look_again(directory)
    raise failure or FileReplacedError(
        f"{log_directory}: its files are replaced while they are listed; read it again"
    )


def _check_moved(log_directory: str, queue_directory: str) -> None:
    """Raises CorruptStoreError while a round has moved its log files and not all of its files of entries:
    the entries then lead into other log files (CompactionLog.replaceFiles).
    """
    moved = {file.start for file in _listed(f"{log_directory}/compacting")}
    for file in _listed(f"{queue_directory}/compacting"):
        if file.start not in moved:
            expected = "no file whose log file a round of the broker has put in its place"
            raise CorruptStoreError(file.path, 0, expected, "one that was not put in its place")


def _listed(directory: str) -> tuple[StoreFile, ...]:
    return tuple(file for file in files_at(directory).store_files(directory) if file.size)


def _looked(
    queue_files: tuple[StoreFile, ...], log_files: tuple[StoreFile, ...]
) -> tuple[CompactedFiles, tuple[np.void, np.void] | None]:
    """The files with their spans, and the first and the last entry. Reads all entries, and checks that they
    ascend and lead into the log file of the same name.
    """
    by_start, cache = {file.start: file for file in log_files}, FileCache(1)
    used: list[StoreFile] = []
    spans: list[Span] = []
    edges: list[np.void] = []
    for file in queue_files:
        units = _entries_of(file, cache, is_last=file is queue_files[-1])
        if not len(units):
            continue
        _check(file, units, by_start.get(file.start), spans[-1][1] if spans else -1)
        used.append(file)
        spans.append((int(units[0]["base_offset"]), int(units[-1]["base_offset"]), len(units)))
        edges += [units[0], units[-1]]
    _check_lengths(queue_files, log_files)
    found = CompactedFiles(tuple(used), log_files, tuple(spans))
    own_log(log_files, cache)  # refuses files that overlap
    return found, (edges[0], edges[-1]) if edges else None


def _entries_of(file: StoreFile, cache: FileCache, *, is_last: bool) -> NDArray[np.void]:
    """The entries of a file, which zeros follow (SparseConsumeQueue.recover), or the mark of a full log file
    and zeros.

    In the last file, a crash may leave a part of one more entry: its message is read from the commitlog.
    """
    units = np.frombuffer(read_listed(file, 0, file.size // _UNIT * _UNIT, cache), BATCH_CQ_UNIT)
    valid = valid_batch_units(units)
    stop = len(units) if valid.all() else int(valid.argmin())
    is_marked = units[stop : stop + 1].tobytes() == _END_MARK
    stop_of_rest = stop + (is_last or is_marked)
    rest = units[stop_of_rest:].tobytes()
    if rest.strip(b"\0"):
        at = stop_of_rest * _UNIT + len(rest) - len(rest.lstrip(b"\0"))
        expected = f"zeros behind the last entry, number {stop - 1}"
        raise CorruptStoreError(file.path, at, expected, "other bytes")
    return units[:stop]


def _check_lengths(queue_files: tuple[StoreFile, ...], log_files: tuple[StoreFile, ...]) -> None:
    """Raises TruncatedRecordError for a file that was cut: those of one kind have one length, and the length
    of a log file is a multiple of that of a queue file (CompactionLog).
    """
    for files in (queue_files, log_files):
        size = max((file.size for file in files), default=0)
        for file in files:
            if file.size < size:
                found = f"{file.size} bytes"
                raise TruncatedRecordError(file.path, file.size, f"{size} bytes as in other files", found)
    for file in queue_files[-1:] if log_files else ():
        if log_files[-1].size % file.size:
            expected = f"a length of which {log_files[-1].size}, that of a log file, is a multiple"
            raise TruncatedRecordError(file.path, file.size, expected, f"{file.size} bytes")


def _check(file: StoreFile, units: NDArray[np.void], log_file: StoreFile | None, before: int) -> None:
    if log_file is None:
        raise CorruptStoreError(file.path, 0, "a file of this name in compactionLog", "none")
    offsets = np.concatenate(([before], units["base_offset"].astype(np.int64)))
    physical, sizes = (units[name].astype(np.int64) for name in ("physical_offset", "size"))
    if (wrong := np.flatnonzero((offsets[1:] <= offsets[:-1]) | (offsets[1:] >= QUEUE_OFFSET_MAX))).size:
        at = int(wrong[0])
        expected = f"a queue offset behind {offsets[at]}, that of the entry before"
        raise CorruptStoreError(file.path, at * _UNIT, expected, str(offsets[at + 1]))
    outside = (physical < log_file.start) | (physical > log_file.stop - sizes)
    outside[1:] |= physical[1:] < physical[:-1]
    if (wrong := np.flatnonzero(outside)).size:
        at = int(wrong[0])
        expected = f"a message in {log_file.path}, behind that of the entry before"
        found = f"{sizes[at]} bytes at {physical[at]}"
        raise CorruptStoreError(file.path, at * _UNIT, expected, found)

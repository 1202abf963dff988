"""Tiered storage (TieredMessageStore) in files: the part of a queue that a broker has uploaded.

The POSIX provider writes segments below `tieredStoreFilePath`, for each queue those of a log and those of a
consume queue: `HASH_CLUSTER/BROKER/TOPIC/QUEUE/COMMIT_LOG` and `…/CONSUME_QUEUE`. A segment's name has the
offset of its first byte behind 8 digits of a hash. Units and entries are as in the store, but physical
offsets are those in the queue's own log. The directory alone says all that a reader needs: a broker, too,
takes the length of a file for that of its last segment (FlatAppendFile.recoverFileSize).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import QUEUE_OFFSET_MAX, QueueBounds, can_be_queue, is_queue_id
from store_format.consumequeue.own_files import Boundary, joined_entries, own_log, read_listed
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import valid_units
from store_format.display.text import first_names
from store_format.errors import CorruptStoreError, OptionError, StoreNotFoundError, TruncatedRecordError
from store_format.files import paths
from store_format.files.paths import StoreFile
from store_format.files.read import FileCache, files_at
from store_format.layouts import CQ_UNIT
from store_format.message.single import HEAD_SIZE_MAX, read_head
from store_format.metadata.tiered import TieredMetadata
from store_format.names import QueueKey

_SEGMENT = re.compile(r"[0-9a-f]{8}([0-9]{20})\Z", re.ASCII)  # MessageStoreUtil.offset2FileName
_CLUSTER = re.compile(r"[0-9a-f]{8}_.", re.ASCII)
_UNIT = CQ_UNIT.itemsize


class TieredFiles(NamedTuple):
    """The segments of one queue, which hold the queue offsets [start, stop)."""

    queue_files: tuple[StoreFile, ...]
    log_files: tuple[StoreFile, ...]
    start: int
    stop: int

    def read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        cache, parts = FileCache(1), []
        for file in self.queue_files:
            low, high = max(start * _UNIT, file.start), min(stop * _UNIT, file.stop)
            if low >= high:
                continue
            data = read_listed(file, low - file.start, high - file.start, cache)
            units = np.frombuffer(data[: len(data) // _UNIT * _UNIT], CQ_UNIT)
            self._refuse_invalid(file, low, units)
            parts.append((np.arange(low // _UNIT, low // _UNIT + len(units), dtype=np.int64), units))
        return joined_entries(parts)

    def _refuse_invalid(self, file: StoreFile, position: int, units: NDArray[np.void]) -> None:
        valid = valid_units(units)
        if not valid.all():
            at = position - file.start + int(valid.argmin()) * _UNIT
            found = str(units[int(valid.argmin())])
            raise CorruptStoreError(file.path, at, "the place and the size of a message", found)

    def log(self, cache: FileCache) -> CommitLog:
        return own_log(self.log_files, cache)

    def place_of(self, offset: int) -> tuple[str, int]:
        for file in self.queue_files:
            if offset * _UNIT < file.stop:
                return file.path, max(offset * _UNIT - file.start, 0)
        return self.queue_files[-1].path, self.queue_files[-1].size

    def served_from(self, min_offset: int) -> int:
        return min_offset

    def offset_at(
        self, timestamp: int, boundary: Boundary, oldest_in_log: int | None, cache: FileCache
    ) -> int | None:
        """FlatMessageFile.getQueueOffsetByTimeAsync, of a time before that of the commitlog's first message
        (TieredMessageStore.getOffsetInQueueByTime).
        """
        if oldest_in_log is not None and timestamp >= oldest_in_log:
            return None
        log, low, high = self.log(cache), self.start, self.stop - 1

        def time_at(offset: int) -> int:
            _, units = self.read(offset, offset + 1)
            time = log.store_timestamp_at(int(units[0]["physical_offset"]))
            if time < 0:
                expected = f"an entry that leads to the message with offset {offset}, for a search by time"
                raise CorruptStoreError(*self.place_of(offset), expected, str(units[0]))
            return time

        if time_at(high) < timestamp:
            return high + 1 if boundary == "LOWER" else high
        if time_at(low) > timestamp:
            return low
        found = _first_at_or_behind(time_at, low, high, timestamp)
        step = -1 if boundary == "LOWER" else 1
        while low <= found + step <= high and time_at(found) == timestamp == time_at(found + step):
            found += step
        return found


def _first_at_or_behind(time_at: Callable[[int], int], low: int, high: int, timestamp: int) -> int:
    """A message of this time, by the broker's probes, or the first later one."""
    while low < high:
        middle = low + (high - low) // 2
        time = time_at(middle)
        if time == timestamp:
            return middle
        low, high = (middle + 1, high) if time < timestamp else (low, middle)
    return low


class TieredDirectory(NamedTuple):
    """The directory of one broker in tiered storage."""

    path: str

    @staticmethod
    def find(path: str, broker_name: str) -> TieredDirectory:
        """That of a broker below `tieredStoreFilePath`. Raises StoreNotFoundError without one, and
        OptionError if several clusters have a broker of this name.
        """
        files = files_at(path)
        clusters = [each for name, each in files.directories(path) if _CLUSTER.match(name)]
        found = [f"{each}/{broker_name}" for each in clusters if files.is_directory(f"{each}/{broker_name}")]
        if len(found) > 1:
            raise OptionError(
                f"tieredStoreFilePath {path}: expected one cluster with a broker {broker_name}, found "
                f"{', '.join(found)}; move or mount the one of this store elsewhere"
            )
        if not found:
            others = f"no directory of broker {broker_name} in {first_names(map(paths.base_name, clusters))}"
            raise StoreNotFoundError(
                f"tieredStoreFilePath {path}: expected a directory of a cluster (8 hex digits, _, its name) "
                f"with a directory {broker_name} in it, found "
                f"{others if clusters else 'no directory of a cluster'}; give the path that the broker has"
            )
        return TieredDirectory(found[0])

    def keys(self, select: Callable[[str], bool]) -> list[QueueKey]:
        """The queues of the selected topics."""
        files = files_at(self.path)
        return [
            (topic, int(name))
            for topic, path in files.directories(self.path, select)
            if topic != INDEX_TOPIC
            for name, _ in files.directories(path, is_queue_id)
            if can_be_queue(topic, int(name))
        ]

    def index_files(self) -> list[StoreFile]:
        """The uploaded index files; one without items may be empty."""
        directory = f"{self.path}/{INDEX_TOPIC}/0/INDEX"
        return [file for file in files_at(directory).store_files(directory, _SEGMENT) if file.size]

    def part(self, key: QueueKey, metadata: TieredMetadata) -> QueueRange | None:
        """The uploaded part of a queue; None without a message.

        Raises CorruptStoreError for segments that do not fit together, or are shorter than the metadata say.
        """
        directory, name = f"{self.path}/{key[0]}/{key[1]}", f"{paths.base_name(self.path)}/{key[0]}/{key[1]}"
        queue_files = _segments(f"{directory}/CONSUME_QUEUE", metadata.queue_sizes.get(name, {}))
        log_files = _segments(f"{directory}/COMMIT_LOG", metadata.log_sizes.get(name, {}))
        if not queue_files or not log_files:
            return None
        for file in queue_files:
            if file.start % _UNIT:
                raise CorruptStoreError(
                    file.path, 0, f"an offset that is a multiple of {_UNIT}", str(file.start)
                )
        start, stop = (
            max(queue_files[0].start // _UNIT, _first_offset(log_files)),
            queue_files[-1].stop // _UNIT,
        )
        if start >= stop:
            return None
        own = TieredFiles(queue_files, log_files, start, stop)
        _, first = own.read(start, start + 1)
        _, last = own.read(stop - 1, stop)
        places = (int(first[0]["physical_offset"]), int(last[0]["physical_offset"]), int(last[0]["size"]))
        bounds = QueueBounds(
            *key, f"{directory}/CONSUME_QUEUE", "simple", queue_files[0].size // _UNIT * _UNIT or _UNIT,
            queue_files[0].start, queue_files[-1].start, 0, start, stop, start, stop, *places,
        )  # fmt: skip
        return QueueRange(*key, start, stop, bounds, own=own)


INDEX_TOPIC = "rmq_sys_INDEX"  # MessageStoreUtil.RMQ_SYS_TIERED_STORE_INDEX_TOPIC


def _segments(directory: str, sizes: Mapping[int, int]) -> tuple[StoreFile, ...]:
    """The segments of a flat file, at least of the committed `sizes`. A new one may still be empty.

    The oldest ones expire one by one.
    """
    files = files_at(directory).store_files(directory, _SEGMENT)
    while files and not files[-1].size:
        files.pop()
    begin, there = files[0].start if files else 0, {file.start: file.size for file in files}
    for base, size in sizes.items():
        if base >= begin and there.get(base, 0) < size:
            path = next((file.path for file in files if file.start == base), directory)
            expected = f"at least {size} bytes of the segment {base}, as tieredStoreMetadata.json says"
            raise TruncatedRecordError(path, there.get(base, 0), expected, f"{there.get(base, 0)} bytes")
    for file, following in pairwise(files):
        if file.stop != following.start:
            expected = f"a segment that begins at {file.stop}, where {file.path} ends"
            raise CorruptStoreError(following.path, 0, expected, str(following.start))
    if files and files[-1].stop // _UNIT >= QUEUE_OFFSET_MAX:
        raise CorruptStoreError(files[-1].path, 0, "an offset below 2^63", str(files[-1].start))
    return tuple(files)


def _first_offset(log_files: tuple[StoreFile, ...]) -> int:
    """The queue offset of the first message of the log (FlatMessageFile.getConsumeQueueMinOffset)."""
    file = log_files[0]
    head = read_head(read_listed(file, 0, min(HEAD_SIZE_MAX, file.size), FileCache(1)))
    if head is None or head.physical_offset != file.start:
        found = "the end of the file" if head is None else f"physicalOffset {head.physical_offset}"
        raise CorruptStoreError(file.path, 0, f"a message with physicalOffset {file.start}", found)
    return head.queue_offset

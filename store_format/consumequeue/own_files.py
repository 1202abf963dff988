"""What a part of a queue answers whose entries and messages lie in files of that queue alone.

A broker keeps such files beside the consume queue and the commitlog: those of a compacted topic
(`consumequeue/compacted.py`) and of tiered storage. An entry then points into a log of the queue's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.errors import CorruptStoreError, FileReplacedError, StoreNotFoundError
from store_format.files.paths import StoreFile
from store_format.files.read import FileCache
from store_format.layouts import CQ_UNIT, OFFSET_MAX

_READ_SIZE = 4 << 20

Boundary = Literal["LOWER", "UPPER"]

Span = tuple[int, int, int]  # of a file of entries: the first and the last queue offset, how many entries


class OwnFiles(Protocol):
    """The files of a part of a queue, in plain values that travel to a task: those that planning listed."""

    @property
    def stop(self) -> int:
        """The queue offset behind the last message in the files."""

    def read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        """(queue offsets, entries as CQ_UNIT) of the queue offsets [start, stop); there may be gaps.

        Raises FileReplacedError if a file is not the one that planning listed.
        """

    def log(self, cache: FileCache) -> CommitLog:
        """The log to which the entries lead."""

    def place_of(self, offset: int) -> tuple[str, int]:
        """(file, byte) of the entry of a queue offset, or of the next one."""

    def served_from(self, min_offset: int) -> int:
        """The least queue offset at which a consumer can begin without a loss; `min_offset` is the first."""

    def offset_at(
        self, timestamp: int, boundary: Boundary, oldest_in_log: int | None, cache: FileCache
    ) -> int | None:
        """The queue offset for a time in ms, if a broker searches these files; None if it searches the
        consume queue. `oldest_in_log` is the time of the commitlog's first message, if it has one.
        """


def own_log(files: Sequence[StoreFile], cache: FileCache) -> CommitLog:
    """The log of these files, which ascend. Raises CorruptStoreError for files that overlap."""
    for file, following in pairwise(files):
        if following.start < file.stop:
            expected = f"a file that begins at or behind {file.stop}, where {file.path} ends"
            raise CorruptStoreError(following.path, 0, expected, str(following.start))
    if files and files[-1].stop > OFFSET_MAX:
        raise CorruptStoreError(files[-1].path, 0, "an end below 2^63", str(files[-1].stop))
    return CommitLog.of_files(files, cache)


def read_listed(file: StoreFile, start: int, stop: int, cache: FileCache) -> bytes:
    """The bytes [start, stop) of a file that was listed, in reads of at most 4 MiB.

    Raises FileReplacedError if the file was replaced or removed since, or became shorter.
    """
    try:
        view = cache.view(file)
    except StoreNotFoundError as error:
        raise gone_since(file.path) from error
    parts = [view.read(at, min(_READ_SIZE, stop - at)) for at in range(start, stop, _READ_SIZE)]
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    if len(data) < stop - start:
        raise FileReplacedError(
            f"{file.path}: expected {file.size} bytes, found {start + len(data)}: it became shorter"
        )
    return data


def gone_since(path: str) -> FileReplacedError:
    """The error for a file of a queue that was removed since planning."""
    return FileReplacedError(
        f"{path}: the file is gone: since the files of this queue were listed, a broker has replaced or "
        "deleted it; read the queue again"
    )


def as_entries(physical: NDArray[np.void]) -> NDArray[np.void]:
    """Units that have the fields of CQ_UNIT among others, as CQ_UNIT."""
    units = np.empty(len(physical), CQ_UNIT)
    for name in CQ_UNIT.names or ():
        units[name] = physical[name]
    return units


def no_entries() -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """(queue offsets, entries) of an empty range."""
    return np.empty(0, np.int64), np.empty(0, CQ_UNIT)


def joined_entries(
    parts: Iterable[tuple[NDArray[np.int64], NDArray[np.void]]],
) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    """The (queue offsets, entries) of all parts."""
    every = [no_entries(), *parts]
    return np.concatenate([part[0] for part in every]), np.concatenate([part[1] for part in every])


class DamagedFiles(NamedTuple):
    """Files that cannot be used: a read of a message of the part is this error; other queues are read."""

    error: CorruptStoreError

    @property
    def stop(self) -> int:
        return 0

    def read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
        return no_entries()  # for planning and views; a reader of messages asks for the log

    def log(self, cache: FileCache) -> CommitLog:
        raise self.error

    def place_of(self, offset: int) -> tuple[str, int]:
        return self.error.file, self.error.position

    def served_from(self, min_offset: int) -> int:
        return 0

    def offset_at(
        self, timestamp: int, boundary: Boundary, oldest_in_log: int | None, cache: FileCache
    ) -> int | None:
        raise self.error

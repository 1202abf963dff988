"""Staged files as the committer sees them: checked, read in runs of bounded size, removed when published."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.bookkeeping.staged_file import RECORDS_SUFFIX, StagedFile, staging_path
from store_format.commit.staging import TIMES_SUFFIX, BlockSum
from store_format.errors import CorruptStoreError, StoreNotFoundError, StoreWriteError
from store_format.files.read import FileView, entry_names
from store_format.files.write import FileWrites

__all__ = ["RecordsCheck", "StagedUnits", "check_staged", "read_staged", "remove_staging"]

_log = logging.getLogger(__name__)

_REMOVERS, _REMOVERS_SIZE = 2, 8 << 20  # for less a thread costs more than it saves


@dataclass(frozen=True, eq=False, slots=True)
class StagedUnits:
    """A run of staged units, what the queues need of them, and where their bytes stand in the records file."""

    sizes: NDArray[np.int32]
    queue: NDArray[np.int32]
    tags_codes: NDArray[np.int64]
    timed: NDArray[np.bool_] | None
    key_hashes: NDArray[np.int32]
    message_index: NDArray[np.int64]
    position: int

    def __len__(self) -> int:
        return len(self.sizes)


def check_staged(
    root: str, staged: StagedFile, *, records_sum: bool = True, chunk_size: int = 1 << 20
) -> None:
    """Size and checksum of both files; without `records_sum` of the records only the size: a `RecordsCheck`
    has the rest.

    Raises StoreNotFoundError for a missing one: collected as dead by another writer, or driver and executors
    see other directories.
    """
    for path, size, expected in (
        (staged.records_path(root), staged.records_size, staged.records_sum),
        (staged.meta_path(root), staged.meta_size, staged.meta_sum),
    ):
        found = BlockSum()
        buffer = np.empty(min(chunk_size, max(size, 1)), np.uint8)
        with _open(path) as view:
            if view.size != size:
                raise CorruptStoreError(
                    path, view.size, f"{size} bytes, as the task wrote", f"{view.size} bytes"
                )
            if path.endswith(RECORDS_SUFFIX) and not records_sum:
                continue
            for position in range(0, size, chunk_size):
                found.update(buffer[: view.read_into(position, buffer)].data)
        _compare(path, expected, found)


class RecordsCheck:
    """The checksum of a records file, taken while its bytes are read for the log: reading them twice would
    cost a fifth of a commit.
    """

    def __init__(self, root: str, staged: StagedFile) -> None:
        self._path = staged.records_path(root)
        self._staged = staged
        self._sum = BlockSum()
        self._position = 0

    def update(self, data: NDArray[np.uint8]) -> None:
        """The next bytes of the file. Raises CorruptStoreError behind the last ones if they were not what the
        task wrote.
        """
        self._sum.update(data.data)
        self._position += len(data)
        if self._position == self._staged.records_size:
            _compare(self._path, self._staged.records_sum, self._sum)


def _compare(path: str, expected: int, found: BlockSum) -> None:
    if found.finish() != expected:
        raise CorruptStoreError(
            path, 0, f"the checksum 0x{expected:08X} that the task saw", f"0x{found.value:08X}"
        )


def _open(path: str) -> FileView:
    try:
        return FileView(path)
    except FileNotFoundError as error:
        raise StoreNotFoundError(
            f"{path}: a staged file is missing. Another writer of this store removes staged files that have not changed for its "
            "stagingRetention: raise that option if this write took longer; else the driver and the executors do not see the same directory"
        ) from error


def read_staged(
    root: str, staged: StagedFile, *, chunk_size: int, units_max: int, skip: int = 0
) -> Iterator[StagedUnits]:
    """The units from the one numbered `skip` on, in runs of at most about `chunk_size` bytes of records and
    `units_max` units.
    """
    path = staged.meta_path(root)
    position, number = 0, 0
    with _open(path) as view:
        at = 0
        while at < staged.meta_size:
            length = int.from_bytes(view.read(at, 8), "little")
            if not 0 < length <= staged.meta_size - at - 8:
                raise CorruptStoreError(path, at, "the length of a part", str(length))
            part = _part(path, at, view.read(at + 8, length))
            at += 8 + length
            yield from _runs(part, position, chunk_size, units_max, max(skip - number, 0))
            number += len(part)
            position += int(part.sizes.sum(dtype=np.int64))


def _part(path: str, at: int, data: bytes) -> StagedUnits:
    try:
        batch = pa.ipc.open_stream(data).read_next_batch()
    except (pa.ArrowInvalid, StopIteration, OSError) as error:
        raise CorruptStoreError(path, at, "a part of staged units", str(error)) from error
    lists = batch.column(4)
    timed = batch.column(3)
    counts = np.diff(lists.offsets.to_numpy())
    return StagedUnits(
        batch.column(0).to_numpy(),
        batch.column(1).to_numpy(),
        batch.column(2).to_numpy(),
        timed.to_numpy(zero_copy_only=False) if timed.true_count else None,
        lists.flatten().to_numpy(),
        np.repeat(np.arange(len(batch)), counts),
        0,
    )


def _runs(
    part: StagedUnits, position: int, chunk_size: int, units_max: int, skip: int
) -> Iterator[StagedUnits]:
    ends = np.cumsum(part.sizes, dtype=np.int64)
    start = min(skip, len(part))
    while start < len(part):
        before = int(ends[start - 1]) if start else 0
        stop = min(int(np.searchsorted(ends, before + chunk_size, side="right")), start + units_max)
        stop = max(stop, start + 1)  # a unit larger than a chunk is one of its own
        low, high = np.searchsorted(part.message_index, [start, stop])
        yield StagedUnits(
            part.sizes[start:stop],
            part.queue[start:stop],
            part.tags_codes[start:stop],
            None if part.timed is None else part.timed[start:stop],
            part.key_hashes[low:high],
            part.message_index[low:high] - start,
            position + before,
        )
        start = stop


def remove_staging(root: str, staged: Sequence[StagedFile], files: FileWrites) -> None:
    """The files of these handles, and the directories of their writes with what else is in them. What is
    missing already is fine.

    The batch is committed by then: what cannot be removed is left to `dead_staging`, with a warning.
    """
    paths = [path for each in staged for path in (each.records_path(root), each.meta_path(root))]
    try:
        # Most of the time goes into giving their pages back, which the system does for two files at once.
        if sum(each.records_size for each in staged) < _REMOVERS_SIZE:
            deque(map(files.remove, paths), maxlen=0)
        else:
            with ThreadPoolExecutor(_REMOVERS) as threads:
                deque(threads.map(files.remove, paths), maxlen=0)
        for write in dict.fromkeys(each.write for each in staged):
            directory = staging_path(root, write)
            for name in entry_names(directory, missing_ok=True):
                if name.endswith(TIMES_SUFFIX):
                    files.remove(f"{directory}/{name}")
            files.remove_directory(directory)
    except StoreWriteError as error:
        _log.warning("%s", error)

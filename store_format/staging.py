"""What a task writes before anything is published: encoded units in one file, what the queues need of them in another.

Both lie under `.rmqlog/staging/<write>/` with random names. The handle, `StagedFile`, is plain values and carries sizes and
checksums, so that whoever commits can tell that it sees what the task wrote.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.encode import EncodedUnits
from store_format.errors import CorruptStoreError, StoreNotFoundError, StoreWriteError
from store_format.files import FileView, entry_names, list_directories, stat_identity
from store_format.write_files import FileWrites, WritableFile

_log = logging.getLogger(__name__)

__all__ = [
    "NOT_DISPATCHED",
    "NO_QUEUE",
    "OWN_DIRECTORY",
    "TIMES_SUFFIX",
    "StagedFile",
    "StagedUnits",
    "StagingWriter",
    "check_staged",
    "collect_staging",
    "read_staged",
    "remove_staging",
    "staging_path",
]

OWN_DIRECTORY = ".rmqlog"  # brokers leave it alone
TIMES_SUFFIX = ".times"  # store times of a write, one for each message
_STAGING = "staging"
_SUM_BLOCK = 1 << 16
NO_QUEUE = -1  # a prepared unit: indexed, but in no queue (CommitLogDispatcherBuildConsumeQueue)
NOT_DISPATCHED = -2  # a rolled back unit: neither
_META = pa.schema(
    [
        ("size", pa.int32()),  # bytes of the unit
        ("queue", pa.int32()),  # number in StagedFile.queues, or NO_QUEUE, or NOT_DISPATCHED
        ("tags_code", pa.int64()),
        ("timed", pa.bool_()),  # tags_code is a delay in ms, to which the store time is added: SCHEDULE_TOPIC_XXXX
        ("key_hashes", pa.list_(pa.int32())),  # index entries in the broker's order
    ]
)


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One staged pair `<name>.records` and `<name>.meta` of a write. Plain values: it travels in messages and journals."""

    write: str
    name: str
    units: int
    records_size: int
    records_sum: int
    meta_size: int
    meta_sum: int
    queues: tuple[tuple[str, int], ...]  # (topic, queue id) by number
    crc_property: bool
    unit_size_max: int

    def as_json(self) -> dict[str, Any]:  # Any: JSON
        return asdict(self)

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> StagedFile:
        return StagedFile(**{**value, "queues": tuple((str(topic), int(queue_id)) for topic, queue_id in value["queues"])})

    def records_path(self, root: str) -> str:
        return f"{staging_path(root, self.write)}/{self.name}.records"

    def meta_path(self, root: str) -> str:
        return f"{staging_path(root, self.write)}/{self.name}.meta"


def staging_path(root: str, write: str) -> str:
    return f"{root}/{OWN_DIRECTORY}/{_STAGING}/{write}"


class _BlockSum:
    """A checksum at memory speed: the CRC32 of the 64-bit sums of blocks of 64 KiB, the last one filled up with zeros.

    It is to notice files that are short, empty, stale or torn, not hostile ones. CRC32 of every byte would be half of a commit.
    """

    def __init__(self) -> None:
        self.value = 0
        self._rest = b""

    def update(self, data: Any) -> None:
        view = memoryview(data).cast("B")
        if self._rest:
            take = _SUM_BLOCK - len(self._rest)
            self._rest, view = self._rest + bytes(view[:take]), view[take:]
            if len(self._rest) < _SUM_BLOCK:
                return
            self._add(self._rest)
            self._rest = b""
        whole = len(view) // _SUM_BLOCK * _SUM_BLOCK
        if whole:
            self._add(view[:whole])
        self._rest = bytes(view[whole:])

    def _add(self, blocks: Any) -> None:
        words = np.frombuffer(blocks, np.uint64).reshape(-1, _SUM_BLOCK // 8)
        self.value = crc32(np.add.reduce(words, axis=1).astype("<u8").tobytes(), self.value)

    def finish(self) -> int:
        if self._rest:
            self._add(self._rest.ljust(_SUM_BLOCK, b"\0"))
            self._rest = b""
        return self.value


class StagingWriter:
    """Writes one staged pair, part by part: memory is that of a part. `close` syncs and gives the handle.

    Units have queueOffset, physicalOffset and storeTimestamp 0; the commit patches them. With `sync=False` nothing waits for the
    disk (ASYNC_FLUSH). A writer that is not closed leaves files that the collection of staging removes.
    """

    def __init__(self, root: str, write: str, *, sync: bool = True) -> None:
        self._files = FileWrites(sync=sync)
        self._write = write
        self._name = secrets.token_hex(8)  # attempt numbers of tasks repeat
        self._directory = self._files.make_directories(root, OWN_DIRECTORY, _STAGING, write)
        self._records = self._files.append_file(f"{self._directory}/{self._name}.records")
        self._meta = self._files.append_file(f"{self._directory}/{self._name}.meta")
        self._sums = (_BlockSum(), _BlockSum())
        self._sizes = [0, 0]
        self._units = 0
        self._unit_size_max = 0
        self._queues: dict[tuple[str, int], int] = {}
        self._crc_property = False

    def append(
        self,
        units: EncodedUnits,
        queues: Sequence[tuple[str, int]],
        queue_index: NDArray[np.integer[Any]],
        tags_codes: NDArray[np.int64],
        key_hashes: NDArray[np.int32] | None = None,
        message_index: NDArray[np.int64] | None = None,
        timed: NDArray[np.bool_] | None = None,
    ) -> None:
        """Unit i goes to queues[queue_index[i]]. `message_index` says, ascending, whose each of `key_hashes` is.

        Where `timed`, the tags code is a delay in ms: the commit makes it the time of delivery, as for SCHEDULE_TOPIC_XXXX.
        """
        numbers = [self._queues.setdefault(queue, len(self._queues)) for queue in queues]
        numbers_of = np.array([*numbers, NOT_DISPATCHED, NO_QUEUE], np.int32)  # negative indices find the last two
        counts = np.bincount(message_index, minlength=len(units)) if message_index is not None else np.zeros(len(units), np.int64)
        offsets = np.zeros(len(units) + 1, np.int32)
        np.cumsum(counts, out=offsets[1:])
        hashes = key_hashes if key_hashes is not None else np.empty(0, np.int32)
        assert len(queue_index) == len(tags_codes) == len(units)
        assert len(hashes) == offsets[-1]
        sizes = units.sizes
        columns = [
            pa.array(sizes.astype(np.int32)),
            pa.array(numbers_of[queue_index]),
            pa.array(tags_codes),
            pa.array(np.zeros(len(units), bool) if timed is None else timed),
            pa.ListArray.from_arrays(pa.array(offsets), pa.array(hashes)),
        ]
        sink = pa.BufferOutputStream()
        # Each part is a stream of its own: the file can be read part by part, and its writer keeps nothing open.
        with pa.ipc.new_stream(sink, _META) as stream:
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=_META))
        meta = sink.getvalue()
        first, stop = int(units.offsets[0]), int(units.offsets[-1])
        self._put(0, self._records, units.data[first:stop])
        self._put(1, self._meta, len(meta).to_bytes(8, "little"))
        self._put(1, self._meta, meta)
        self._units += len(units)
        self._unit_size_max = max(self._unit_size_max, int(sizes.max(initial=0)))
        self._crc_property = units.crc_property

    def _put(self, which: int, file: WritableFile, data: Any) -> None:
        view = memoryview(data).cast("B")
        file.size += len(view)
        file.write(self._sizes[which], view)
        self._sizes[which] += len(view)
        self._sums[which].update(view)

    def close(self) -> StagedFile:
        for file in (self._records, self._meta):
            self._files.sync(file)
            file.close()
        self._files.sync_directory(self._directory)
        records_sum, meta_sum = (each.finish() for each in self._sums)
        return StagedFile(
            self._write, self._name, self._units, self._sizes[0], records_sum, self._sizes[1], meta_sum,
            tuple(self._queues), self._crc_property, self._unit_size_max,
        )  # fmt: skip

    def discard(self) -> None:
        """Removes what was written, for a task that failed."""
        for file in (self._records, self._meta):
            file.close()
            self._files.remove(file.path)


# ---- reading ----------------------------------------------------------------------------------------------------------


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


def check_staged(root: str, staged: StagedFile, *, chunk_size: int = 1 << 20) -> None:
    """Size and checksum of both files.

    Raises StoreNotFoundError for a missing one, which mostly means that driver and executors do not see the same directory.
    """
    for path, size, expected in (
        (staged.records_path(root), staged.records_size, staged.records_sum),
        (staged.meta_path(root), staged.meta_size, staged.meta_sum),
    ):
        found = _BlockSum()
        buffer = np.empty(min(chunk_size, max(size, 1)), np.uint8)
        with _open(path) as view:
            if view.size != size:
                raise CorruptStoreError(path, view.size, f"{size} bytes, as the task wrote", f"{view.size} bytes")
            for position in range(0, size, chunk_size):
                found.update(buffer[: view.read_into(position, buffer)].data)
        if found.finish() != expected:
            raise CorruptStoreError(path, 0, f"the checksum 0x{expected:08X} that the task saw", f"0x{found.value:08X}")


def _open(path: str) -> FileView:
    try:
        return FileView(path)
    except FileNotFoundError as error:
        hint = "do driver and executors see the same directory?"
        raise StoreNotFoundError(f"{path}: a staged file is missing; {hint}") from error


def read_staged(root: str, staged: StagedFile, *, chunk_size: int, units_max: int, skip: int = 0) -> Iterator[StagedUnits]:
    """The units from the one numbered `skip` on, in runs of at most about `chunk_size` bytes of records and `units_max` units."""
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


def _runs(part: StagedUnits, position: int, chunk_size: int, units_max: int, skip: int) -> Iterator[StagedUnits]:
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
    """The files of these handles, and the directories of their writes with what else is in them. What is missing already is fine.

    The batch is committed by then: what cannot be removed is left to `collect_staging`, with a warning.
    """
    try:
        for each in staged:
            files.remove(each.records_path(root))
            files.remove(each.meta_path(root))
        for write in dict.fromkeys(each.write for each in staged):
            directory = staging_path(root, write)
            for name in entry_names(directory, missing_ok=True):
                if name.endswith(TIMES_SUFFIX):
                    files.remove(f"{directory}/{name}")
            files.remove_directory(directory)
    except StoreWriteError as error:
        _log.warning("%s", error)


def collect_staging(root: str, named: Collection[str], *, older_than: float, files: FileWrites) -> list[str]:
    """Removes writes unchanged since `older_than` (seconds of the epoch) that no journal has `named`; which they were."""
    removed = []
    for write, directory in list_directories(f"{root}/{OWN_DIRECTORY}/{_STAGING}"):
        names = entry_names(directory, missing_ok=True)
        paths = [f"{directory}/{name}" for name in names]
        identities = [identity for identity in map(stat_identity, [directory, *paths]) if identity is not None]
        if write in named or any(mtime_ns >= older_than * 1e9 for _, _, mtime_ns in identities):
            continue
        for path in paths:
            files.remove(path)
        files.remove_directory(directory)
        removed.append(write)
    return removed

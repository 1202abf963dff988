"""What a task writes before the commit: messages in one file, columns for queues and index in another.

Both files are in `.rmqlog/staging/<write>/`, with random names. The handle, `StagedFile`, carries sizes and
checksums, so that the committing process can check that it reads what the task wrote.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.bookkeeping.identity import RECORDS_SUFFIX, STAGING, StagedFile
from store_format.errors import IllegalMessageError, StoreNotFoundError, StoreWriteError
from store_format.files.write import FileWrites, WritableFile
from store_format.index.updates import index_key_hashes
from store_format.java.numbers import parse_long
from store_format.message import sysflag
from store_format.message.encode import MESSAGE_SIZE_MAX, EncodedUnits, Integers, MessageColumns, encode
from store_format.message.properties import PropertyTable, tags_codes
from store_format.message.single import head_offset
from store_format.names import DELAY, DELAY_LEVELS_MS, KEYS, SCHEDULE_TOPIC, TAGS, UNIQ_KEY, QueueKey
from store_format.opened.store import OWN_DIRECTORY, Opened

TIMES_SUFFIX = ".times"  # store times of a write, one for each message
_SUM_BLOCK = 1 << 16
_ATTEMPTS_MAX = 3
NO_QUEUE = -1  # a prepared message: indexed, but in no queue (CommitLogDispatcherBuildConsumeQueue)
NOT_DISPATCHED = -2  # a rolled back message: neither indexed nor in a queue
_META = pa.schema(
    [
        ("size", pa.int32()),  # bytes of the unit
        ("queue", pa.int32()),  # number in StagedFile.queues, or NO_QUEUE, or NOT_DISPATCHED
        ("tags_code", pa.int64()),
        # SCHEDULE_TOPIC_XXXX: tags_code is a delay in ms, and the commit adds the store time
        ("timed", pa.bool_()),
        ("key_hashes", pa.list_(pa.int32())),  # index entries in the broker's order
    ]
)


def bodies_sum(body_crcs: NDArray[np.int64]) -> int:
    """A checksum of a set of bodies, below 2^64, in any order: the mixed CRCs are added (SplitMix64).

    The sums of two sets are added for their union.
    """
    mixed = body_crcs.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return int((mixed ^ (mixed >> np.uint64(31))).sum(dtype=np.uint64))


class BlockSum:
    """A checksum at memory speed: the CRC32 of the 64-bit sums of 64 KiB blocks, the last padded with zeros.

    It detects short, empty, stale and torn files, not hostile ones. CRC32 of every byte would take half of a
    commit.
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
    """Writes one staged pair, part by part; memory is bounded by a part. `close` returns the handle.

    Units have queueOffset, physicalOffset and storeTimestamp 0; the commit fills them in. With `sync=False`
    nothing waits for the disk (ASYNC_FLUSH). If a writer is not closed, `abandoned_staging.collect` removes
    its files. Without `makes_directory` the directory is that of `begin`; if the write was given up
    and the directory removed, the writer raises StoreNotFoundError.
    """

    def __init__(
        self, opened: Opened, write: str, *, sync: bool = True, makes_directory: bool = True
    ) -> None:
        self._files = FileWrites(sync=sync)
        self._write = write
        self._makes_directory = makes_directory
        self._name = secrets.token_hex(8)  # random, because attempt numbers of tasks repeat
        self._directory, self._records, self._meta = self._make(opened)
        self._sums = (BlockSum(), BlockSum())
        self._sizes = [0, 0]
        self._units = 0
        self._unit_size_max = 0
        self._queues: dict[QueueKey, int] = {}
        self._bodies = 0
        self._parked: dict[QueueKey, None] = {}
        self._crc_property = False

    def _make(self, opened: Opened) -> tuple[str, WritableFile, WritableFile]:
        """Tries again if a failed attempt has just removed the empty directory."""
        directory = StagedFile.directory(opened, self._write)
        for attempt in range(_ATTEMPTS_MAX):
            try:
                if self._makes_directory:
                    self._files.make_directories(opened.path, OWN_DIRECTORY, STAGING, self._write)
                records = self._files.create(f"{directory}/{self._name}{RECORDS_SUFFIX}", 0)
                return directory, records, self._files.create(f"{directory}/{self._name}.meta", 0)
            except StoreWriteError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                if not self._makes_directory:
                    raise StoreNotFoundError(
                        f"{directory}: expected the directory of this write, found nothing. Either the write "
                        "was given up, or driver and executors do not see the same directory: mount it at "
                        "the same path everywhere"
                    ) from error
                if attempt == _ATTEMPTS_MAX - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def append(
        self,
        units: EncodedUnits,
        queues: Sequence[QueueKey],
        queue_index: NDArray[np.integer[Any]],
        tags_codes: NDArray[np.int64],
        key_hashes: NDArray[np.int32] | None = None,
        key_ends: NDArray[np.int64] | None = None,
        timed: NDArray[np.bool_] | None = None,
        parked: Iterable[QueueKey] = (),
        body_crcs: NDArray[np.int64] | None = None,
    ) -> None:
        """Appends units; unit i goes to queues[queue_index[i]].

        `key_hashes` and `key_ends` are those of `index_key_hashes`. `parked` are the queues to which delayed
        messages are delivered later. `body_crcs` are the CRCs of the bodies before compression, None
        to take those in the units; their sum tells a batch from another batch with its number. For `timed`
        units the tags code is a delay in ms, which the commit turns into the time of delivery
        (SCHEDULE_TOPIC_XXXX).
        """
        numbers = [self._queues.setdefault(queue, len(self._queues)) for queue in queues]
        # Negative indices find the last two.
        numbers_of = np.array([*numbers, NOT_DISPATCHED, NO_QUEUE], np.int32)
        assert len(queue_index) == len(tags_codes) == len(units)
        hashes = key_hashes if key_hashes is not None else np.empty(0, np.int32)
        if timed is None:
            timed = np.zeros(len(units), bool)
        meta = _encode_meta(units.sizes, numbers_of[queue_index], tags_codes, timed, hashes, key_ends)
        first, stop = int(units.offsets[0]), int(units.offsets[-1])
        self._put(0, self._records, units.data[first:stop])
        self._put(1, self._meta, len(meta).to_bytes(8, "little"))
        self._put(1, self._meta, meta)
        if body_crcs is None:
            body_crcs = gather_units(
                units.data, units.offsets[:-1] + head_offset("body_crc"), np.dtype(">i4")
            ).astype(np.int64)
        self._bodies = (self._bodies + bodies_sum(body_crcs)) % (1 << 64)
        self._parked.update(dict.fromkeys(parked))
        self._units += len(units)
        self._unit_size_max = max(self._unit_size_max, int(units.sizes.max(initial=0)))
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
            tuple(self._queues), self._crc_property, self._unit_size_max, tuple(self._parked), self._bodies,
        )  # fmt: skip

    def discard(self) -> None:
        """Removes the files of a failed task, and the directory if no other task has files in it."""
        for file in (self._records, self._meta):
            file.close()
            self._files.remove(file.path)
        if self._makes_directory:
            self._files.remove_directory(self._directory)

    def stage(
        self,
        messages: MessageColumns,
        *,
        crc_property: bool = False,
        tag_keys: bool = True,
        message_size_max: int = MESSAGE_SIZE_MAX,
        delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
    ) -> None:
        """Encodes messages and appends them to the staged file, each for the queue of its topic and queue id.

        Tags code and index keys come from the properties as stored; `tag_keys` indexes tags too, as brokers
        do from 5.4 on. `delay_levels_ms` is the broker's messageDelayLevel. The commit assigns queue offset,
        physical offset and store time. Raises IllegalMessageError as `encode` does, and for a null body.
        """
        if messages.body.null_count:
            row = messages.body.is_null().index(pa.scalar(True)).as_py()
            topic = messages.topic if isinstance(messages.topic, str) else messages.topic[row].as_py()
            raise IllegalMessageError(
                f"topic {topic}: message {row} has no body (null). Give b'' for an empty one"
            )
        units = encode(messages, crc_property=crc_property, message_size_max=message_size_max)
        count = len(units)
        encoded = _encoded_topics(messages.topic, count)
        names = encoded.dictionary.to_pylist()
        codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        table = PropertyTable(pc.fill_null(messages.properties.cast(pa.binary()), b""))
        scheduled = np.isin(codes, [code for code, name in enumerate(names) if name == SCHEDULE_TOPIC])
        # With a store time of 0 the time of delivery is the delay, which is what a staged file holds.
        tags = tags_codes(table, scheduled, np.zeros(count, np.int64), delay_levels_ms)
        delays = table.values(DELAY).to_pylist() if scheduled.any() else []
        timed = (
            np.array([bool(flag) and _is_level(delays[i]) for i, flag in enumerate(scheduled.tolist())], bool)
            if delays
            else None
        )
        queues, index = _number_queues(
            names, codes, _spread(messages.queue_id, count), _spread(messages.sys_flag, count)
        )
        rolled_back = index == NOT_DISPATCHED
        hashes, key_ends = index_key_hashes(
            encoded,
            table.values(UNIQ_KEY),
            table.values(KEYS),
            table.values(TAGS),
            tag_keys=tag_keys,
            rolled_back=rolled_back if rolled_back.any() else None,
        )
        self.append(units, queues, index, tags, hashes, key_ends, timed)

    @staticmethod
    def begin(opened: Opened, write: str, *, sync: bool) -> None:
        """Creates the directory of a write, in the driver. A task that starts after its removal stages
        nothing.

        With `sync` the directory is on the disk before a journal names files in it.
        """
        FileWrites(sync=sync).make_directories(opened.path, OWN_DIRECTORY, STAGING, write)


def _encode_meta(
    sizes: NDArray[np.int64],
    queue: NDArray[np.int32],
    tags_codes: NDArray[np.int64],
    timed: NDArray[np.bool_],
    key_hashes: NDArray[np.int32],
    key_ends: NDArray[np.int64] | None,
) -> pa.Buffer:
    """One part of the second file: an Arrow stream, so that the file can be read part by part."""
    offsets = np.zeros(len(sizes) + 1, np.int32) if key_ends is None else key_ends.astype(np.int32)
    assert (len(offsets), offsets[-1]) == (len(sizes) + 1, len(key_hashes))
    columns = [
        pa.array(sizes.astype(np.int32)),
        pa.array(queue),
        pa.array(tags_codes),
        pa.array(timed),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(key_hashes)),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _META) as stream:
        stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=_META))
    return sink.getvalue()


# ---- message columns ---------------------------------------------------------------------------------------


def _encoded_topics(topics: str | pa.Array, count: int) -> pa.DictionaryArray:
    if isinstance(topics, str):
        topics = pa.array([topics] * count, pa.string())
    return topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()


def _is_level(text: str | None) -> bool:
    return (parse_long(text) or 0) > 0


def _spread(values: Integers, count: int) -> NDArray[np.int64]:
    return values.astype(np.int64) if isinstance(values, np.ndarray) else np.full(count, values, np.int64)


def _number_queues(
    names: list[str], codes: NDArray[np.int64], queue_ids: NDArray[np.int64], sys_flags: NDArray[np.int64]
) -> tuple[list[QueueKey], NDArray[np.int64]]:
    """(The queues of the batch, each message's place in that list).

    Prepared messages get NO_QUEUE, rolled back messages NOT_DISPATCHED.
    """
    kinds = sys_flags & sysflag.TRANSACTION_MASK
    queued = (kinds == sysflag.TRANSACTION_NONE) | (kinds == sysflag.TRANSACTION_COMMIT)
    values, inverse = np.unique(codes[queued] << 32 | queue_ids[queued], return_inverse=True)
    index = np.where(kinds == sysflag.TRANSACTION_ROLLBACK, NOT_DISPATCHED, NO_QUEUE)
    index[queued] = inverse
    return [(names[value >> 32], value & 0xFFFFFFFF) for value in values.tolist()], index

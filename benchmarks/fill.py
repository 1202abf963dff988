"""Stores as a broker leaves them, filled by the project's own encoder: whole commitlog and consume queue
files, sparse behind the data.

Messages go to the queues in turn, as producers send them, so that the entries of one queue lie far apart in
the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import fixed_width, from_flat
from store_format.java.text import tags_code_many
from store_format.layouts import BLANK_HEAD, CHECKPOINT, CHECKPOINT_FILE_SIZE, CQ_UNIT, MAGIC_BLANK, pack
from store_format.message.encode import EncodedUnits, MessageColumns, assign, encode
from store_format.message.property_encoder import encode_property_columns

BROKER_NAME = "broker-bench"
_MEMBER_TOPIC = f"rmq_sys_SYNC_BROKER_MEMBER_{BROKER_NAME}"  # TopicConfigManager: tells the broker's name
_CONSUME_QUEUE_FILE_SIZE = 300_000 * CQ_UNIT.itemsize  # MessageStoreConfig.mappedFileSizeConsumeQueue
_BLANK_SIZE_MIN = BLANK_HEAD.itemsize  # CommitLog.END_FILE_MIN_BLANK_LENGTH
_CHUNK_BYTES = 32 << 20
_UNIT_BYTES_WITHOUT_BODY = 256  # estimate, for the size of a chunk
START_MS = 1_700_000_000_000
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
# MessageClientIDSetter: address, process, class loader
_CLIENT = bytes.fromhex("0A010203" + "1C61" + "18B4AAC2")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What to fill a store with. Every message has TAGS, KEYS, UNIQ_KEY and two user properties, region and
    traceId.
    """

    messages: int
    body_size: int
    topics: int = 1
    queues_per_topic: int = 8
    commit_log_file_size: int = 1 << 30  # MessageStoreConfig.mappedFileSizeCommitLog
    seed: int = 1

    @property
    def queues(self) -> int:
        return self.topics * self.queues_per_topic

    @property
    def topic_names(self) -> list[str]:
        return [f"Orders{number:05d}" for number in range(self.topics)] if self.topics > 1 else ["Orders"]


def fill(root: Path, filling: Filling) -> None:
    """Write the store into the directory `root`, which must be new: as after an orderly end, no `abort`."""
    (root / "commitlog").mkdir(parents=True)
    log = _LogFiles(root / "commitlog", filling.commit_log_file_size)
    parts = [_append(log, filling, start, stop) for start, stop in _chunks(filling)]
    log.close()
    # without it numpy joins structured arrays in native byte order
    units = np.concatenate(parts, dtype=CQ_UNIT)
    _write_consume_queues(root / "consumequeue", filling, units)
    _write_config(root, filling)
    last_ms, last_offset = START_MS + filling.messages, int(units["physical_offset"][-1])
    longs = pack(
        CHECKPOINT,
        dict(zip(CHECKPOINT.names or (), (last_ms, last_ms, 0, 0, last_offset, last_offset), strict=True)),
    )
    (root / "checkpoint").write_bytes(longs.tobytes().ljust(CHECKPOINT_FILE_SIZE, b"\0"))
    (root / "lock").write_bytes(b"lock")


def _chunks(filling: Filling) -> Iterator[tuple[int, int]]:
    step = max(_CHUNK_BYTES // (filling.body_size + _UNIT_BYTES_WITHOUT_BODY), 1)
    for start in range(0, filling.messages, step):
        yield start, min(start + step, filling.messages)


# ---- messages ----------------------------------------------------------------------------------------------


def _append(log: _LogFiles, filling: Filling, start: int, stop: int) -> NDArray[np.void]:
    """Messages [start, stop) of all, appended to the log. Returns their consume queue units, in the order of
    the log.
    """
    number = np.arange(start, stop)
    messages, tags = message_columns(filling, start, stop)
    units = encode(messages)
    physical = log.place(units.sizes)
    assign(
        units,
        physical_offset=physical,
        queue_offset=number // filling.queues,
        store_timestamp=START_MS + 1 + number,
    )
    log.write(units, physical)
    columns = {"physical_offset": physical, "size": units.sizes, "tags_code": tags_code_many(tags)}
    return pack(CQ_UNIT, columns)


def message_columns(filling: Filling, start: int, stop: int) -> tuple[MessageColumns, pa.StringArray]:
    """(messages [start, stop) of all, their tags)"""
    number = np.arange(start, stop)
    place = number % filling.queues  # topic after topic, and within a topic queue after queue
    rng = np.random.default_rng((filling.seed, start))
    properties, tags = _properties(number, rng)
    topics = pa.DictionaryArray.from_arrays(
        pa.array((place // filling.queues_per_topic).astype(np.int32)), filling.topic_names
    )
    messages = MessageColumns(
        topic=topics,
        body=fixed_width(np.frombuffer(rng.bytes(len(number) * filling.body_size), f"V{filling.body_size}")),
        properties=properties,
        queue_id=(place % filling.queues_per_topic).astype(np.int32),
        flag=(number % 7).astype(np.int32),
        born_timestamp=START_MS + number,
        born_ip=bytes([10, 1, 2, 3]),
        born_port=51234,
        store_ip=bytes([10, 1, 2, 4]),
        store_port=10911,
    )
    return messages, tags


def _properties(
    number: NDArray[np.int64], rng: np.random.Generator
) -> tuple[pa.LargeBinaryArray, pa.StringArray]:
    """(properties strings, tags)"""
    count = len(number)
    order = pa.array(number).cast(pa.string())
    tags = pa.array(["TagA", "TagB", "TagC", "TagD", "TagE"]).take(pa.array(rng.integers(0, 5, count)))
    regions = pa.array([f"eu-west-{i}" for i in range(9)]).take(pa.array(rng.integers(0, 9, count)))
    unique = np.empty((count, 16), np.uint8)
    unique[:, :10] = np.frombuffer(_CLIENT, np.uint8)
    unique[:, 10:14] = (number >> 16).astype(">u4").view(np.uint8).reshape(-1, 4)
    unique[:, 14:] = (number & 0xFFFF).astype(">u2").view(np.uint8).reshape(-1, 2)
    trace = rng.integers(0, 256, (count, 8), dtype=np.uint8)
    columns = {
        "KEYS": _prefixed("order-", order),
        "UNIQ_KEY": _hex(unique),
        "TAGS": tags,
        "region": regions,
        "traceId": _hex(trace),
    }
    return encode_property_columns(count, columns), tags


def _prefixed(prefix: str, values: pa.StringArray) -> pa.StringArray:
    return pa.compute.binary_join_element_wise(prefix, values, "")


def _hex(raw: NDArray[np.uint8]) -> pa.LargeStringArray:
    count, size = raw.shape
    digits = np.empty((count, 2 * size), np.uint8)
    digits[:, 0::2], digits[:, 1::2] = _HEX[raw >> 4], _HEX[raw & 15]
    return from_flat(digits.reshape(-1), np.arange(0, (count + 1) * 2 * size, 2 * size)).cast(
        pa.large_string()
    )


# ---- files -------------------------------------------------------------------------------------------------


class _LogFiles:
    """The commitlog's files, each of full size from the start, and where its next message goes."""

    def __init__(self, directory: Path, file_size: int) -> None:
        self._directory = directory
        self._file_size = file_size
        self._end = 0

    def place(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where messages of these sizes go: none across two files, and a file's end has room for a BLANK
        (CommitLog.doAppend).
        """
        physical = np.empty(len(sizes), np.int64)
        start = 0
        while start < len(sizes):
            room = self._file_size - self._end % self._file_size - _BLANK_SIZE_MIN
            ends = np.cumsum(sizes[start:])
            count = int(np.searchsorted(ends, room, side="right"))
            if count:
                physical[start : start + count] = self._end + ends[:count] - sizes[start : start + count]
                self._end += int(ends[count - 1])
            start += count
            if start < len(sizes):
                self._next_file(int(sizes[start]))
        return physical

    def _next_file(self, size: int) -> None:
        left = self._file_size - self._end % self._file_size
        if left == self._file_size:
            raise ValueError(f"a message of {size} bytes does not fit a commitlog file of {self._file_size}")
        blank = pack(BLANK_HEAD, {"size": left, "magic": MAGIC_BLANK})
        self._write(self._end, blank.view(np.uint8))
        self._end += left

    def write(self, units: EncodedUnits, physical: NDArray[np.int64]) -> None:
        """The units, whose places are these: a run for each file they are in."""
        files = physical // self._file_size
        edges = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist(), len(files)]
        for first, last in pairwise(edges):
            self._write(int(physical[first]), units.data[units.offsets[first] : units.offsets[last]])

    def _write(self, position: int, data: NDArray[np.uint8]) -> None:
        base = position // self._file_size * self._file_size
        path = self._directory / f"{base:020d}"
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.seek(position - base)
            file.write(data.data)

    def close(self) -> None:
        """Give every file its full size; behind the data it is a hole."""
        for path in self._directory.iterdir():
            with path.open("r+b") as file:
                file.truncate(self._file_size)


def _write_consume_queues(directory: Path, filling: Filling, units: NDArray[np.void]) -> None:
    for topic_number, topic in enumerate(filling.topic_names):
        for queue_id in range(filling.queues_per_topic):
            place = topic_number * filling.queues_per_topic + queue_id
            _write_queue(directory / topic / str(queue_id), units[place :: filling.queues].tobytes())


def _write_queue(directory: Path, data: bytes) -> None:
    directory.mkdir(parents=True)
    for start in range(0, len(data) or 1, _CONSUME_QUEUE_FILE_SIZE):
        with (directory / f"{start:020d}").open("wb") as file:
            file.write(data[start : start + _CONSUME_QUEUE_FILE_SIZE])
            file.truncate(_CONSUME_QUEUE_FILE_SIZE)


def _write_config(root: Path, filling: Filling) -> None:
    counts = dict.fromkeys(filling.topic_names, filling.queues_per_topic) | {_MEMBER_TOPIC: 1}
    table: dict[str, dict[str, Any]] = {
        topic: {
            "attributes": {},
            "order": False,
            "perm": 6,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        for topic, count in counts.items()
    }
    version = {"counter": len(table), "stateVersion": 0, "timestamp": START_MS}
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text(
        json.dumps({"dataVersion": version, "topicConfigTable": table}), encoding="utf-8"
    )

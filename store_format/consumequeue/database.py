"""Consume queues in a RocksDB database: where each queue begins and ends, and its entries by queue offset
(RocksDBConsumeQueueStore, RocksDBConsumeQueueTable, RocksDBConsumeQueueOffsetTable).

The keys of a queue's entries are one range in the order of the queue offsets. The record `max` of a queue is
its last entry: what lies behind it is left from before a crash. The record `min` may be old, so that the
first entry of the commitlog is searched.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.files import QueueBounds, queue_database
from store_format.errors import CorruptStoreError
from store_format.files.read import files_at
from store_format.java.text import decode_utf8
from store_format.layouts import CQ_UNIT, ROCKSDB_CQ_VALUE, ROCKSDB_OFFSET_VALUE
from store_format.names import CHECKPOINT_TOPIC, QueueKey
from store_format.opened.store import Opened

_ENTRIES, _OFFSETS = "default", "offset"  # families
_CTRL = b"\x01"
_NUMBER = struct.Struct(">q")
_FILE_SIZE = CQ_UNIT.itemsize << 26  # of the one file that a queue in a database looks like
_QUEUES_ASKED = 1000  # at once
_TIMES_READ = 256  # entries that are read at once for a search by time
_Ints = NDArray[np.int64]


class LastEntry(NamedTuple):
    """The last entry of a queue, as the record `max` has it."""

    physical_offset: int
    queue_offset: int


@dataclass(frozen=True, slots=True)
class QueueDatabase:
    """What the database in `directory` says of all queues. The messages up to the physical offset
    `checkpoint` have their entries.
    """

    directory: str
    checkpoint: int
    ends: dict[QueueKey, LastEntry]

    @staticmethod
    def read(opened: Opened) -> QueueDatabase | None:
        """The queues in the store's database as they are now; None without one.

        Raises UnsupportedFormatError without rocksdict, and CorruptStoreError.
        """
        directory = queue_database(opened)
        if directory is None:
            return None
        checkpoint, ends = -1, dict[QueueKey, LastEntry]()
        for records in opened.files.databases.ask(directory, family=_OFFSETS):
            for key, value in records:
                topic, kind, queue_id = _split(directory, key)
                if kind != b"max":
                    continue
                if len(value) == _NUMBER.size and topic == CHECKPOINT_TOPIC:
                    checkpoint = _NUMBER.unpack(value)[0]
                elif len(value) == ROCKSDB_OFFSET_VALUE.itemsize:
                    ends[topic, queue_id] = LastEntry(*np.frombuffer(value, ROCKSDB_OFFSET_VALUE)[0].item())
                else:
                    raise _wrong(directory, "16 bytes as the end of a queue", f"{len(value)} bytes")
        return QueueDatabase(directory, checkpoint, ends)

    def bounds(
        self,
        opened: Opened,
        keys: Iterable[QueueKey],
        commit_log_min: int,
        commit_log_stop: int | None = None,
    ) -> dict[QueueKey, QueueBounds]:
        """Where these queues begin and end. No entry at or behind `commit_log_stop` counts.

        Raises CorruptStoreError for a queue whose last entry is missing.
        """
        stops = {key: self.ends[key].queue_offset + 1 for key in keys}
        if commit_log_stop is not None:
            far = [key for key in stops if self.ends[key].physical_offset >= commit_log_stop]
            stops |= {
                key: edge[0] for key, edge in self._edges(opened, {k: stops[k] for k in far}, commit_log_stop)
            }
        found = dict[QueueKey, QueueBounds]()
        filled = {key: stop for key, stop in stops.items() if stop > 0}
        for key, (start, first, last) in self._edges(opened, filled, commit_log_min):
            stop = stops[key]
            first_place = first[0] if start < stop else -1
            edges = (start, stop, start, stop, first_place, *last)
            found[key] = QueueBounds(
                *key, self.directory, "database", _FILE_SIZE, 0, 0, commit_log_min, *edges
            )
        return found

    def _edges(
        self, opened: Opened, stops: dict[QueueKey, int], least: int
    ) -> Iterable[tuple[QueueKey, tuple[int, tuple[int, int], tuple[int, int]]]]:
        """For each queue the first queue offset below its stop whose message lies at `least` or behind, and
        (physical offset, size) there and at the last offset.
        """
        keys, size = [*stops], ROCKSDB_CQ_VALUE.itemsize
        for at in range(0, len(keys), _QUEUES_ASKED):
            some = keys[at : at + _QUEUES_ASKED]
            firsts = [(_prefix(key).hex(), stops[key], least) for key in some]
            answers = opened.files.databases.ask(self.directory, family=_ENTRIES, firsts=firsts)
            for key, records in zip(some, answers, strict=True):
                values = records.values
                if len(values) not in (_NUMBER.size + size, _NUMBER.size + 2 * size):
                    name = f"an entry of 28 bytes at {key[0]}-{key[1]}, offset {stops[key] - 1}"
                    raise _wrong(self.directory, name, f"{len(values) - _NUMBER.size} bytes")
                units = np.frombuffer(values, ROCKSDB_CQ_VALUE, offset=_NUMBER.size)
                first, last = (
                    (int(each["physical_offset"]), int(each["size"])) for each in (units[0], units[-1])
                )
                yield key, (_NUMBER.unpack_from(values)[0], first, last)


def database_entries(bounds: QueueBounds, start: int, stop: int) -> tuple[_Ints, NDArray[np.void]]:
    """(queue offsets, units) of the offsets [start, stop). A missing entry is a unit of zeros."""
    offsets = np.arange(start, stop, dtype=np.int64)
    units = np.zeros(len(offsets), CQ_UNIT)
    values = database_values(bounds, start, stop)
    for name in CQ_UNIT.names or ():
        units[name] = values[name]
    units.flags.writeable = False
    return offsets, units


def database_values(bounds: QueueBounds, start: int, stop: int) -> NDArray[np.void]:
    """The values of the entries [start, stop), as stored; zeros where an entry is missing."""
    bounds.check_range(start, stop, 0)
    prefix = _prefix((bounds.topic, bounds.queue_id))
    values = files_at(bounds.directory).databases.numbered(
        bounds.directory,
        _ENTRIES,
        prefix,
        range(start, stop),
        ROCKSDB_CQ_VALUE.itemsize,
        last=bounds.max_offset,
    )
    return np.frombuffer(values, ROCKSDB_CQ_VALUE)


def first_entries_at(bounds: QueueBounds, stop: int, physical_offsets: Iterable[int]) -> _Ints:
    """For each physical offset, the first queue offset below `stop` whose message lies there or behind;
    `stop` without one.
    """
    prefix = _prefix((bounds.topic, bounds.queue_id)).hex()
    firsts = [(prefix, stop, least) for least in physical_offsets]
    answers = files_at(bounds.directory).databases.ask(bounds.directory, family=_ENTRIES, firsts=firsts)
    return np.array([_NUMBER.unpack_from(records.values)[0] for records in answers], np.int64)


def store_timestamp_in_database(bounds: QueueBounds) -> Callable[[int], int]:
    """A function that gives the store time in ms of the entry of a queue offset."""
    block, start = np.zeros(0, ROCKSDB_CQ_VALUE), 0

    def time_at(offset: int) -> int:
        nonlocal block, start
        if not start <= offset < start + len(block):
            start = offset - offset % _TIMES_READ
            block = database_values(bounds, start, min(start + _TIMES_READ, bounds.max_offset))
        return int(block["store_timestamp"][offset - start])

    return time_at


def _prefix(key: QueueKey) -> bytes:
    """The key of the queue's entries, up to the queue offset."""
    topic, queue_id = key[0].encode(errors="surrogatepass"), key[1]
    return struct.pack(">i", len(topic)) + _CTRL + topic + _CTRL + struct.pack(">i", queue_id) + _CTRL


def _split(directory: str, key: bytes) -> tuple[str, bytes, int]:
    """(topic, `max` or `min`, queue id) of a key of the family `offset`."""
    length = int.from_bytes(key[:4])
    if len(key) != length + 14:
        raise _wrong(directory, "a key with a topic, max or min, and a queue id", repr(key[:80]))
    return decode_utf8(key[5 : 5 + length]), key[6 + length : 9 + length], int.from_bytes(key[10 + length :])


def _wrong(directory: str, expected: str, found: str) -> CorruptStoreError:
    return CorruptStoreError(directory, 0, expected, found)

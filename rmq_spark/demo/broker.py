"""The broker of the demo: stores what clients send, delivers, retries and buries, by its own clock."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.demo.shop import LENGTH_MS, Message
from rmq_spark.produce.unique_ids import format_ids
from rmq_spark.services import retry, run_once
from store_format.commit.options import CommitOptions
from store_format.files.lock import CheckedLock
from store_format.files.write import FileWrites
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns
from store_format.metadata.group_offsets import add_subscription_group, write_group_offsets
from store_format.names import (
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TRANSACTION_ID,
    UNIQ_KEY,
    WAIT,
    dead_letter_topic,
    retry_topic,
)
from store_format.store import MessageStore

_MINUTE, _HOUR = 60_000, 3_600_000
STORM_MS, _STORM_LENGTH_MS = 5 * _HOUR, 25 * _MINUTE  # the mail server is down
_RETRIES_LENGTH_MS = _STORM_LENGTH_MS + 15 * _MINUTE  # until the last retry succeeds
_STEP_MS, _STORM_STEP_MS = _HOUR, _MINUTE  # a turn of the broker's services

_DISK_LIMIT = 100  # the demo is small: it may use what the disk has
_MAIL_GROUP, _MAIL_RETRIES_MAX = "CG_mail", 5
_RETRIES, DEAD_LETTERS = retry_topic(_MAIL_GROUP), dead_letter_topic(_MAIL_GROUP)
_QUEUES = {
    "Orders": 4,
    "Payments": 2,
    "Reminders": 1,
    _RETRIES: 1,
    DEAD_LETTERS: 1,
    HALF_TOPIC: 1,
    SCHEDULE_TOPIC: 18,
}
# group -> (topics, how far behind the end it has read)
_GROUPS = {
    "CG_billing": (("Orders", "Payments"), 0),
    _MAIL_GROUP: (("Orders",), 0),
    "CG_reminder": (("Reminders",), 0),
    "CG_search": (("Orders",), 9 * _HOUR),
    "CG_report": (("Orders", "Payments"), 62 * _HOUR),
}
_CLIENT, _BROKER = bytes([10, 0, 5, 17]), bytes([10, 0, 3, 11])


def steps_until(end_ms: int) -> Iterator[int]:
    """The times at which the broker's services run: often during the retry storm."""
    now, storm = end_ms - LENGTH_MS, end_ms - STORM_MS
    while now < end_ms:
        in_storm = storm <= now < storm + _RETRIES_LENGTH_MS
        now = min(now + (_STORM_STEP_MS if in_storm else _STEP_MS), end_ms)
        yield now


@dataclass(slots=True)
class Broker:
    """Stores messages and runs the services, with the clock of the demo. Nothing waits for the disk."""

    path: str
    storm_ms: int
    ids: Iterator[int] = field(default_factory=count)
    retries_seen: int = 0
    written: list[tuple[int, int]] = field(default_factory=list)  # (end of the commitlog, time)

    def step(self, messages: Sequence[Message], now_ms: int) -> None:
        """Stores the messages, delivers what is due, and sends back what CG_mail cannot consume."""
        failed = self._store(messages, now_ms) if messages else []
        run_once(self.path, ["schedule"], now_ms, apply=True, disk_limit=_DISK_LIMIT)
        if self.storm_ms <= now_ms < self.storm_ms + _RETRIES_LENGTH_MS:
            failed += self._delivered_retries(now_ms)
        if failed:
            store = MessageStore.open(self.path)
            retry.send_back(
                store, _MAIL_GROUP, failed,
                max_reconsume_times=_MAIL_RETRIES_MAX, now_ms=now_ms, disk_limit=_DISK_LIMIT,
            )  # fmt: skip

    def _is_mail_down(self, time_ms: int) -> bool:
        return self.storm_ms <= time_ms < self.storm_ms + _STORM_LENGTH_MS

    def _store(self, messages: Sequence[Message], now_ms: int) -> list[retry.Place]:
        """Appends the messages; returns the places of those that CG_mail fails to consume."""
        times = np.array([each.time_ms for each in messages], np.int64)
        options = CommitOptions(sync=False, new_topics=_QUEUES, clock=lambda: now_ms, disk_limit=_DISK_LIMIT)
        columns = self._columns(messages, times)
        result = MessageStore.open(self.path).append(columns, store_timestamps=times, options=options)
        self.written.append((result.stop, now_ms))
        next_offsets = {queue: first for queue, (first, _) in result.queues.items()}
        failed: list[retry.Place] = []
        for each in messages:
            offset = next_offsets[each.topic, each.queue_id]
            next_offsets[each.topic, each.queue_id] = offset + 1
            if each.topic == "Orders" and each.tag == "paid" and self._is_mail_down(each.time_ms):
                failed.append((each.topic, each.queue_id, offset))
        return failed

    def _columns(self, messages: Sequence[Message], times: NDArray[np.int64]) -> MessageColumns:
        numbers = np.fromiter(self.ids, np.int64, len(messages))
        unique = _unique_ids(times, numbers)
        names = sorted({name for each in messages for name in each.properties})
        more = {
            name: pa.array([each.properties.get(name) for each in messages], pa.string()) for name in names
        }
        is_half = pa.array([each.topic == HALF_TOPIC for each in messages])
        properties = {
            "KEYS": pa.array([each.key for each in messages]),
            "TAGS": pa.array([each.tag for each in messages]),
            UNIQ_KEY: unique,
            WAIT: "true",
            **more,
            TRANSACTION_ID: pa.array(
                [
                    key if half else None
                    for key, half in zip(unique.to_pylist(), is_half.to_pylist(), strict=True)
                ],
                pa.string(),
            ),
        }
        return MessageColumns(
            topic=pa.array([each.topic for each in messages]),
            body=pa.array([each.body for each in messages], pa.large_binary()),
            properties=encode_property_columns(len(messages), properties),
            queue_id=np.array([each.queue_id for each in messages], np.int64),
            # from the producer to the broker it takes 1 to 8 ms, for some messages longer
            born_timestamp=times - 1 - numbers % 8 - (numbers % 50 == 0) * (numbers % 400),
            born_ip=_CLIENT,
            born_port=40_112,
            store_ip=_BROKER,
            store_port=10_911,
        )

    def _delivered_retries(self, now_ms: int) -> list[retry.Place]:
        """The retries delivered since the last call, if CG_mail fails to consume them too."""
        queues = MessageStore.open(self.path).queues(_RETRIES.__eq__)
        stop = queues[0].max_offset if queues else 0
        new = range(self.retries_seen, stop)
        self.retries_seen = stop
        return [(_RETRIES, 0, offset) for offset in new] if self._is_mail_down(now_ms) else []

    def date_files(self, store: MessageStore) -> None:
        """Gives each commitlog file the time of its last message: retention goes by it."""
        for file in store.log.files:
            end = file.start + file.size
            last = next((now for stop, now in self.written if stop >= end), self.written[-1][1])
            os.utime(file.path, (last / 1000, last / 1000))


def _unique_ids(times: NDArray[np.int64], numbers: NDArray[np.int64]) -> pa.StringArray:
    """UNIQ_KEY as a Java client makes it, in UTC."""
    first = datetime.fromtimestamp(int(times[0]) / 1000, UTC)
    month = first.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    prefix = _CLIENT + (4711).to_bytes(2, "big") + bytes([0x2A, 0x13, 0x9A, 0x4E])
    return format_ids(prefix, times - round(month.timestamp() * 1000), numbers).cast(pa.string())


def write_groups(store: MessageStore, end_ms: int) -> None:
    """The groups and their offsets."""
    with CheckedLock(store.path):
        for group in _GROUPS:
            add_subscription_group(store.path, group, timestamp=end_ms, files=FileWrites(sync=False))
    for group, (topics, behind_ms) in _GROUPS.items():
        topics = (*topics, *([_RETRIES] if group == _MAIL_GROUP else []))
        offsets = {
            queue.key: queue.offset_at(end_ms - behind_ms) if behind_ms else queue.max_offset
            for queue in store.queues(frozenset(topics).__contains__)
        }
        write_group_offsets(store.path, group, offsets, timestamp=end_ms, files=FileWrites(sync=False))

"""The shop of the demo and its broker.

Clients send orders, payments, reminders of carts, and half messages. The broker stores what they send,
delivers, retries and buries, by its own clock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.produce.unique_ids import format_ids
from rmq_spark.services import retry, run_once
from store_format.commit.options import CommitOptions
from store_format.display.rows import iso_utc
from store_format.files.lock import CheckedLock
from store_format.files.write import FileWrites
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns
from store_format.metadata.group_offsets import put_subscription_group, write_group_offsets
from store_format.names import (
    DELAY,
    DELAY_LEVELS_MS,
    HALF_TOPIC,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    SCHEDULE_TOPIC,
    TRAN_MSG,
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
_FIRST_RETRY_LEVEL = 3  # a broker delays the first retry by this level
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

_LENGTH_MS = 72 * _HOUR
_BURST_MS, _BURST_LENGTH_MS = 30 * _HOUR, 20 * _MINUTE  # the burst begins so long before the end
_REMINDER_LEVEL = 17  # delay level of one hour
_CITIES = ("Hangzhou", "Shanghai", "Shenzhen", "Chengdu", "Beijing", "Wuhan")
_REGIONS = ("east", "east", "south", "west", "north", "south")  # of _CITIES
_GOODS = (("TEA-250", 18.5), ("CUP-01", 42.0), ("POT-1L", 129.0), ("RICE-5K", 59.9), ("FAN-S", 88.0))
_METHODS = ("alipay", "wechat", "card")


# ---- what clients send -------------------------------------------------------------------------------------


class _Message(NamedTuple):
    time_ms: int  # when the broker stores the message
    topic: str
    queue_id: int
    tag: str
    key: str
    body: bytes
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Order:
    """One order, from which all its messages are made."""

    number: int
    time_ms: int
    customer: int
    city: int
    goods: tuple[tuple[int, int], ...]  # index in _GOODS, quantity
    method: str
    minutes_to_pay: float | None  # None: the order is cancelled
    hours_to_ship: float

    @property
    def key(self) -> str:
        return f"A-{100_000 + self.number}"

    @property
    def amount(self) -> float:
        return round(sum(_GOODS[good][1] * quantity for good, quantity in self.goods), 2)


def messages_until(end_ms: int, orders: int, end_hour: float | None = None) -> Iterator[_Message]:
    """All messages that clients send until `end_ms`, not sorted.

    Customers sleep as if `end_ms` were at the UTC hour `end_hour`; by default, by the clock.
    """
    for order in _orders(end_ms, orders, end_ms / _HOUR % 24 if end_hour is None else end_hour):
        yield from (each for each in _messages_of(order) if each.time_ms < end_ms)
    yield from (
        _half_message(number, end_ms - minutes * _MINUTE) for number, minutes in enumerate((47, 12, 3))
    )


def _messages_of(order: _Order) -> Iterator[_Message]:
    yield _order_message(order, "created", order.time_ms)
    if order.number % 7 == 0:
        yield _reminder(order)
    if order.minutes_to_pay is None:
        yield _order_message(order, "cancelled", order.time_ms + 30 * _MINUTE)
        return
    paid_ms = order.time_ms + round(order.minutes_to_pay * _MINUTE)
    yield _payment(order, paid_ms)
    yield _order_message(order, "paid", paid_ms + 20)
    yield _order_message(order, "shipped", paid_ms + round(order.hours_to_ship * _HOUR))


def _orders(end_ms: int, orders: int, end_hour: float) -> Iterator[_Order]:
    random = np.random.default_rng(42)
    draw = random.integers
    for number, time_ms in enumerate(_order_times(random, end_ms, orders, end_hour).tolist()):
        goods = tuple((int(draw(len(_GOODS))), int(draw(1, 4))) for _ in range(int(draw(1, 4))))
        yield _Order(
            number,
            time_ms,
            int(draw(1, 2500)),
            int(draw(len(_CITIES))),
            goods,
            _METHODS[int(draw(len(_METHODS)))],
            None if draw(100) < 6 else float(random.lognormal(1.0, 0.9)),
            float(random.uniform(2, 20)),
        )


def _order_times(random: np.random.Generator, end_ms: int, orders: int, end_hour: float) -> NDArray[np.int64]:
    """The times of the orders, sorted: few at night (UTC+8), many in the evening, most in the burst."""
    start_ms = end_ms - _LENGTH_MS
    minutes = np.arange(_LENGTH_MS // _MINUTE)
    hour = (end_hour - _LENGTH_MS // _HOUR + 8 + minutes / 60) % 24
    weights = 1.1 + np.sin((hour - 14) / 12 * np.pi) * 0.75 + (np.abs(hour - 20) < 1.5) * 0.6
    burst = (_LENGTH_MS - _BURST_MS) // _MINUTE
    weights[burst : burst + _BURST_LENGTH_MS // _MINUTE] *= 14
    chosen = random.choice(minutes, orders, p=weights / weights.sum())
    times: NDArray[np.int64] = np.sort(start_ms + chosen * _MINUTE + random.integers(0, _MINUTE, orders))
    return times


def _json(value: Mapping[str, Any]) -> bytes:  # Any: JSON
    return json.dumps(value, separators=(",", ":")).encode()


def _order_message(order: _Order, event: str, time_ms: int) -> _Message:
    body = {
        "orderId": order.key,
        "event": event,
        "at": iso_utc(time_ms),
        "customer": f"C-{order.customer:04d}",
        "city": _CITIES[order.city],
        "items": [{"sku": _GOODS[good][0], "quantity": quantity} for good, quantity in order.goods],
        "amount": order.amount,
        "currency": "CNY",
    }
    properties = {"region": _REGIONS[order.city]}
    return _Message(time_ms, "Orders", order.number % 4, event, order.key, _json(body), properties)


def _payment(order: _Order, time_ms: int) -> _Message:
    key = f"P-{500_000 + order.number}"
    body = {
        "paymentId": key,
        "orderId": order.key,
        "method": order.method,
        "amount": order.amount,
        "currency": "CNY",
    }
    keys = f"{key} {order.key}"
    return _Message(time_ms, "Payments", order.number % 2, order.method, keys, _json(body), {})


def _reminder(order: _Order) -> _Message:
    """A delayed message: it waits in SCHEDULE_TOPIC_XXXX, and its properties name its real topic."""
    body = {"orderId": order.key, "customer": f"C-{order.customer:04d}", "text": "Your cart is waiting"}
    properties = {DELAY: str(_REMINDER_LEVEL), REAL_TOPIC: "Reminders", REAL_QID: "0"}
    level_queue = _REMINDER_LEVEL - 1
    time_ms = order.time_ms + 5
    return _Message(time_ms, SCHEDULE_TOPIC, level_queue, "cart", order.key, _json(body), properties)


def _half_message(number: int, time_ms: int) -> _Message:
    """A half message without a decision."""
    key = f"A-9{number:05d}"
    body = {"orderId": key, "event": "created", "at": iso_utc(time_ms), "amount": 59.9, "currency": "CNY"}
    properties = {TRAN_MSG: "true", PGROUP: "PG_orders", REAL_TOPIC: "Orders", REAL_QID: str(number % 4)}
    return _Message(time_ms, HALF_TOPIC, 0, "created", key, _json(body), properties)


# ---- the broker --------------------------------------------------------------------------------------------


def steps_until(end_ms: int) -> Iterator[int]:
    """The times at which the broker's services run: often during the retry storm."""
    now, storm = end_ms - _LENGTH_MS, end_ms - STORM_MS
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
    next_due_ms: int | None = None  # when a delayed message is due next
    written: list[tuple[int, int]] = field(default_factory=list)  # (end of the commitlog, time)

    def step(self, messages: Sequence[_Message], now_ms: int) -> None:
        """Stores the messages, sorted by time, delivers what is due, and sends back what CG_mail cannot
        consume: a message at the end of the step, a retry when it is delivered.

        While there are retries, each is delivered at the time of its delay level.
        """
        failed, left = [], list(messages)
        while self.next_due_ms is not None and self.next_due_ms < now_ms and self._has_retries(now_ms):
            due_ms = self.next_due_ms
            stop = next((i for i, each in enumerate(left) if each.time_ms > due_ms), len(left))
            failed += self._store(left[:stop], due_ms)
            del left[:stop]
            self._deliver([], due_ms)
        self._deliver(failed + self._store(left, now_ms), now_ms)

    def _has_retries(self, time_ms: int) -> bool:
        return self.storm_ms <= time_ms < self.storm_ms + _RETRIES_LENGTH_MS

    def _deliver(self, failed: list[retry.Place], now_ms: int) -> None:
        """Delivers what is due; sends back the messages that failed, and the retries that fail now."""
        turn = run_once(self.path, ["schedule"], now_ms, apply=True, disk_limit=_DISK_LIMIT)
        next_us = [time for time in turn["nextDue"].cast(pa.int64()).to_pylist() if time is not None]
        self.next_due_ms = min(next_us) // 1000 if next_us else None
        if self._has_retries(now_ms):
            failed = failed + self._delivered_retries(now_ms)
        if failed:
            retry.send_back(
                MessageStore.open(self.path), _MAIL_GROUP, failed,
                max_reconsume_times=_MAIL_RETRIES_MAX, now_ms=now_ms, disk_limit=_DISK_LIMIT,
            )  # fmt: skip
            soonest_ms = now_ms + DELAY_LEVELS_MS[_FIRST_RETRY_LEVEL - 1]
            self.next_due_ms = min(self.next_due_ms or soonest_ms, soonest_ms)

    def _is_mail_down(self, time_ms: int) -> bool:
        return self.storm_ms <= time_ms < self.storm_ms + _STORM_LENGTH_MS

    def _store(self, messages: Sequence[_Message], now_ms: int) -> list[retry.Place]:
        """Appends the messages; returns the places of those that CG_mail fails to consume."""
        if not messages:
            return []
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

    def _columns(self, messages: Sequence[_Message], times: NDArray[np.int64]) -> MessageColumns:
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
            put_subscription_group(store.opened, group, timestamp=end_ms, files=FileWrites(sync=False))
    for group, (topics, behind_ms) in _GROUPS.items():
        topics = (*topics, *([_RETRIES] if group == _MAIL_GROUP else []))
        offsets = {
            queue.key: queue.offset_at(end_ms - behind_ms) if behind_ms else queue.max_offset
            for queue in store.queues(frozenset(topics).__contains__)
        }
        write_group_offsets(store.opened, group, offsets, timestamp=end_ms, files=FileWrites(sync=False))

"""What the clients of the demo send: orders, payments, reminders of carts, and half messages."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.display.rows import iso_utc
from store_format.names import DELAY, HALF_TOPIC, PGROUP, REAL_QID, REAL_TOPIC, SCHEDULE_TOPIC, TRAN_MSG

_MINUTE, _HOUR = 60_000, 3_600_000
LENGTH_MS = 72 * _HOUR
_BURST_MS, _BURST_LENGTH_MS = 30 * _HOUR, 20 * _MINUTE  # the burst begins so long before the end
_REMINDER_LEVEL = 17  # delay level of one hour
_CITIES = ("Hangzhou", "Shanghai", "Shenzhen", "Chengdu", "Beijing", "Wuhan")
_REGIONS = ("east", "east", "south", "west", "north", "south")  # of _CITIES
_GOODS = (("TEA-250", 18.5), ("CUP-01", 42.0), ("POT-1L", 129.0), ("RICE-5K", 59.9), ("FAN-S", 88.0))
_METHODS = ("alipay", "wechat", "card")


class Message(NamedTuple):
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


def messages_until(end_ms: int, orders: int, end_hour: float | None = None) -> Iterator[Message]:
    """All messages that clients send until `end_ms`, not sorted.

    Customers sleep as if `end_ms` were at the UTC hour `end_hour`; by default, by the clock.
    """
    for order in _orders(end_ms, orders, end_ms / _HOUR % 24 if end_hour is None else end_hour):
        yield from (each for each in _messages_of(order) if each.time_ms < end_ms)
    for number, minutes in enumerate((47, 12, 3)):
        yield _half_message(number, end_ms - minutes * _MINUTE)


def _messages_of(order: _Order) -> Iterator[Message]:
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
    start_ms = end_ms - LENGTH_MS
    minutes = np.arange(LENGTH_MS // _MINUTE)
    hour = (end_hour - LENGTH_MS // _HOUR + 8 + minutes / 60) % 24
    weights = 1.1 + np.sin((hour - 14) / 12 * np.pi) * 0.75 + (np.abs(hour - 20) < 1.5) * 0.6
    burst = (LENGTH_MS - _BURST_MS) // _MINUTE
    weights[burst : burst + _BURST_LENGTH_MS // _MINUTE] *= 14
    chosen = random.choice(minutes, orders, p=weights / weights.sum())
    times: NDArray[np.int64] = np.sort(start_ms + chosen * _MINUTE + random.integers(0, _MINUTE, orders))
    return times


def _json(value: Mapping[str, Any]) -> bytes:  # Any: JSON
    return json.dumps(value, separators=(",", ":")).encode()


def _order_message(order: _Order, event: str, time_ms: int) -> Message:
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
    return Message(time_ms, "Orders", order.number % 4, event, order.key, _json(body), properties)


def _payment(order: _Order, time_ms: int) -> Message:
    key = f"P-{500_000 + order.number}"
    body = {
        "paymentId": key,
        "orderId": order.key,
        "method": order.method,
        "amount": order.amount,
        "currency": "CNY",
    }
    keys = f"{key} {order.key}"
    return Message(time_ms, "Payments", order.number % 2, order.method, keys, _json(body), {})


def _reminder(order: _Order) -> Message:
    """A delayed message: it waits in SCHEDULE_TOPIC_XXXX, and its properties name its real topic."""
    body = {"orderId": order.key, "customer": f"C-{order.customer:04d}", "text": "Your cart is waiting"}
    properties = {DELAY: str(_REMINDER_LEVEL), REAL_TOPIC: "Reminders", REAL_QID: "0"}
    level_queue = _REMINDER_LEVEL - 1
    time_ms = order.time_ms + 5
    return Message(time_ms, SCHEDULE_TOPIC, level_queue, "cart", order.key, _json(body), properties)


def _half_message(number: int, time_ms: int) -> Message:
    """A half message without a decision."""
    key = f"A-9{number:05d}"
    body = {"orderId": key, "event": "created", "at": iso_utc(time_ms), "amount": 59.9, "currency": "CNY"}
    properties = {TRAN_MSG: "true", PGROUP: "PG_orders", REAL_TOPIC: "Orders", REAL_QID: str(number % 4)}
    return Message(time_ms, HALF_TOPIC, 0, "created", key, _json(body), properties)

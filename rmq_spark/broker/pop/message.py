"""What a consumer gives its user: messages (`MessageView`), receipt handles, and counters.

A message is decoded where it is used: a consumer that only acknowledges reads no properties. The rules of the
fields are those of the proxy (GrpcConverter.buildSystemProperties).
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from store_format.errors import CorruptStoreError, InvalidReceiptHandleError, OptionError
from store_format.message import sysflag
from store_format.message.compression import DecompressionError, decompress
from store_format.message.hosts import format_host, offset_msg_id
from store_format.message.properties import decode_properties
from store_format.message.single import SingleUnit, UnitPlace
from store_format.names import (
    BORN_HOST,
    CLIENT_PROPERTIES,
    KEYS,
    RESERVED_PROPERTIES,
    SHARDING_KEY,
    TAGS,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
)
from store_format.pop.records import CheckPoint, PointKey
from store_format.pop.state import PopState

_BODY_SIZE_MAX = 1 << 30
_HANDLE_FIELDS = 8
_HANDLE_FIELDS_OF_PROXY = 9  # with the commitlog offset behind them
_SHOWN_MAX = 100


class ReceiptHandle(NamedTuple):
    """A receipt handle's fields (ExtraInfoUtil, ReceiptHandle): which hand-out of which message it names.

    `start` and `pop_time` name the check point in its queue, `offset` is the message's queue offset. `flag`
    is 0 for the topic, 1 and 2 for the pop retry topics. `revive_queue_id` is 999 for ordered messages.
    """

    start: int
    pop_time: int
    invisible_ms: int
    revive_queue_id: int
    flag: int
    broker_name: str
    queue_id: int
    offset: int

    @property
    def text(self) -> str:
        """The handle as a client gets it: the fields, separated by spaces."""
        return " ".join(map(str, self))

    @property
    def visible_at(self) -> int:
        """The time in ms from which the handle is expired."""
        return self.pop_time + self.invisible_ms

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Reads the text of a handle; a proxy's ninth field is ignored.

        >>> ReceiptHandle.parse("100 1700000000000 60000 3 0 broker-a 2 101").offset
        101

        Raises InvalidReceiptHandleError for another text.
        """
        fields = text.split(" ")
        if len(fields) in (_HANDLE_FIELDS, _HANDLE_FIELDS_OF_PROXY):
            start, pop_time, invisible_ms, revive, flag, broker_name, queue_id, offset = fields[
                :_HANDLE_FIELDS
            ]
            try:
                return cls(
                    int(start), int(pop_time), int(invisible_ms), int(revive), int(flag), broker_name,
                    int(queue_id), int(offset),
                )  # fmt: skip
            except ValueError:
                pass
        raise InvalidReceiptHandleError(
            text[:_SHOWN_MAX],
            "is not a handle: expected 8 fields separated by spaces, `ckStart popTime invisibleTime "
            "reviveQid retryFlag brokerName queueId msgQueueOffset`; give the message, or its receipt_handle",
        )


class MessageView:
    """A received message, with the names of org.apache.rocketmq.client.apis.message.MessageView.

    Times are in ms since 1970. If the message is damaged in the store, `error` says where and how. Then only
    `topic`, `queue_id`, `offset`, `broker_name`, `receipt_handle` and `delivery_attempt` (from this place in
    the store) are known, and every other attribute raises the error. A damaged message is not lost: it is
    delivered again until somebody acknowledges it.
    """

    __slots__ = ("_attempt", "_properties", "_unit", "error", "handle", "place", "root", "topic")

    def __init__(
        self,
        root: str,
        topic: str,
        handle: ReceiptHandle,
        place: UnitPlace,
        unit: SingleUnit | None,
        error: CorruptStoreError | None = None,
        *,
        attempt: int | None = None,
    ) -> None:
        self.root = root
        self.topic = topic
        self.place = place
        self.error = error
        self.handle = handle
        self._unit = unit
        self._attempt = attempt
        self._properties: dict[str, str] | None = None

    # ---- where it is ---------------------------------------------------------------------------------------

    @property
    def receipt_handle(self) -> str:
        """The receipt handle of this delivery; `change_invisible_duration` replaces it."""
        return self.handle.text

    @property
    def broker_name(self) -> str:
        """The broker whose store has the message."""
        return self.handle.broker_name

    @property
    def queue_id(self) -> int:
        """The queue of the message; a redelivered message is in a queue of the pop retry topic."""
        return self.handle.queue_id

    @property
    def offset(self) -> int:
        """The queue offset of the message in that queue."""
        return self.handle.offset

    # ---- what it is ----------------------------------------------------------------------------------------

    @property
    def message_id(self) -> str:
        """The message id that the producer's client assigned (UNIQ_KEY), or else the offset message id."""
        head = self._decoded.head
        given = self.stored_properties.get(UNIQ_KEY)
        return given or offset_msg_id(head.store_ip, head.store_port, head.physical_offset)

    @property
    def body(self) -> bytes:
        """The body, decompressed. Raises CorruptStoreError for bytes that cannot be decompressed."""
        unit = self._decoded
        if not unit.head.sys_flag & sysflag.COMPRESSED:
            return unit.body
        try:
            return decompress(unit.body, unit.head.sys_flag, size_max=_BODY_SIZE_MAX)
        except DecompressionError as error:
            position = self.place.physical_offset - self.place.file_start
            raise CorruptStoreError(self.place.path, position, error.expected, error.found) from error

    @property
    def tag(self) -> str | None:
        """The tag of the message (the property TAGS), or None."""
        return self.stored_properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the message: the words of the property KEYS."""
        return tuple(self.stored_properties.get(KEYS, "").split())

    @property
    def message_group(self) -> str | None:
        """The message group of an ordered message (the property __SHARDINGKEY), or None."""
        return self.stored_properties.get(SHARDING_KEY)

    @property
    def delivery_timestamp(self) -> int | None:
        """The delivery time of a timer message (the property TIMER_DELIVER_MS), in ms since 1970, or None."""
        text = self.stored_properties.get(TIMER_DELIVER_MS, "")
        return int(text) if text.isdecimal() else None

    @property
    def delivery_attempt(self) -> int:
        """The number of this delivery: 1 for the first."""
        return self._attempt if self._attempt is not None else self._decoded.head.reconsume_times + 1

    @property
    def born_host(self) -> str:
        """The producer's address, without its port."""
        head = self._decoded.head
        given = self.stored_properties.get(BORN_HOST)
        return given or format_host(head.born_ip, head.born_port).rpartition(":")[0].strip("[]")

    @property
    def born_timestamp(self) -> int:
        """When the producer created the message, in ms since 1970."""
        return self._decoded.head.born_timestamp

    @property
    def store_timestamp(self) -> int:
        """When the message was stored, in ms since 1970."""
        return self._decoded.head.store_timestamp

    @property
    def properties(self) -> Mapping[str, str]:
        """The user's properties, without RocketMQ's own properties (MessageConst.STRING_HASH_SET)."""
        return {
            name: value
            for name, value in self.stored_properties.items()
            if name not in RESERVED_PROPERTIES and name not in CLIENT_PROPERTIES
        }

    @property
    def stored_properties(self) -> Mapping[str, str]:
        """All properties of the message, including RocketMQ's own."""
        if self._properties is None:
            self._properties = decode_properties(self._decoded.properties)
        return self._properties

    @property
    def _decoded(self) -> SingleUnit:
        if self._unit is None:
            assert self.error is not None
            raise self.error
        return self._unit

    def __repr__(self) -> str:
        where = f"topic={self.topic!r}, queue_id={self.queue_id}, offset={self.offset}"
        if self.error is not None:
            return f"MessageView({where}, error={str(self.error)!r})"
        return f"MessageView({where}, message_id={self.message_id!r}, attempt={self.delivery_attempt})"


def checked_messages(given: object) -> list[MessageView | str]:
    """The messages or receipt handles to acknowledge, as a list. Raises OptionError for anything else."""
    is_one = isinstance(given, MessageView | str) or not isinstance(given, Iterable)
    found: list[MessageView | str] = []
    for each in [given] if is_one else list(given):  # type: ignore[call-overload] # an Iterable
        if not isinstance(each, MessageView | str):
            shown = repr(each)[:_SHOWN_MAX]
            raise OptionError(f"ack: expected a message, a receipt handle, or several of them, found {shown}")
        found.append(each)
    return found


# ---- handles in the in-flight log --------------------------------------------------------------------------


def acknowledge(
    state: PopState, handles: Sequence[ReceiptHandle], now_ms: int
) -> list[InvalidReceiptHandleError]:
    """Acknowledges the messages of these handles. Returns an error for each handle that is not valid."""
    errors: list[InvalidReceiptHandleError] = []
    positions: dict[PointKey, set[int]] = {}  # a handle may be given twice
    for handle in handles:
        found = position_of(state, handle, now_ms)
        if isinstance(found, InvalidReceiptHandleError):
            errors.append(found)
        else:
            positions.setdefault(found[0].key, set()).add(found[1])
    for key, bits in positions.items():
        point = state.check_point(key)
        assert point is not None
        state.ack(key, None if len(bits) == len(point.offsets) and not point.acked else bits)
    return errors


def position_of(
    state: PopState, handle: ReceiptHandle, now_ms: int
) -> tuple[CheckPoint, int] | InvalidReceiptHandleError:
    """The check point of the handle and the position of its message."""
    point = state.check_point((handle.flag, handle.queue_id, handle.start, handle.pop_time))
    if point is None:
        return unknown_handle(handle)
    try:
        position = point.offsets.index(handle.offset)
    except ValueError:
        return unknown_handle(handle)
    held = 0 if state.reviving is None else state.reviving.bits.get(point.key, 0)
    if (point.acked | held) >> position & 1:
        return unknown_handle(handle)
    if point.visible_at <= now_ms:
        late = now_ms - point.visible_at
        return InvalidReceiptHandleError(
            handle.text,
            f"is expired: the invisible time of {point.invisible_ms / 1000:g} s ended {late} ms ago, and the "
            "message is delivered again; receive with a longer invisible_duration, or call "
            "change_invisible_duration in time",
        )
    return point, position


def unknown_handle(handle: ReceiptHandle) -> InvalidReceiptHandleError:
    return InvalidReceiptHandleError(
        handle.text,
        "names no message that is in flight: it was acknowledged, its invisible time was changed (the newer "
        "handle counts), or it expired and was delivered again",
    )


# ---- counters ----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class ConsumerMetrics:
    """Counters of one consumer since it was created, from `SimpleConsumer.metrics()`.

    Messages: `received` were returned by receives, and `redelivered` of them had been delivered before.
    `acked` and `changed` had accepted handles; `invalid_handles` were refused. `filtered` did not match the
    subscription and were acknowledged. `dead_letters` had reached the group's maximum of deliveries. `lost`
    were deleted by retention before their delivery. `damaged` were returned with an `error`.

    Receives: `short_polling_hit` found messages at once (RocketMQ's is_short_polling_hit), `long_polling`
    waited (is_long_polling), `empty` returned no message. `notified` counts the wake-ups.
    """

    receives: int = 0
    received: int = 0
    redelivered: int = 0
    acked: int = 0
    changed: int = 0
    filtered: int = 0
    dead_letters: int = 0
    lost: int = 0
    damaged: int = 0
    invalid_handles: int = 0
    short_polling_hit: int = 0
    long_polling: int = 0
    notified: int = 0
    empty: int = 0


class Counters:
    """The counters of one consumer, which its threads share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = ConsumerMetrics()

    def add(self, **counts: int) -> None:
        """Adds to the counters of these names."""
        with self._lock:
            for name, count in counts.items():
                setattr(self._now, name, getattr(self._now, name) + count)

    def snapshot(self) -> ConsumerMetrics:
        with self._lock:
            return replace(self._now)

    def forget(self) -> None:
        """Starts again from 0, in a forked child."""
        self._lock, self._now = threading.Lock(), ConsumerMetrics()

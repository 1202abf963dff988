"""The messages that a consumer hands out, and how they are read from a queue.

A message is a row of a record batch. A column becomes Python values when a listener first asks for it, for
all messages that were read with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.consume.consumer import MessageQueue, parse_subscription
from rmq_spark.consume.sql92 import CountingFilter
from store_format.errors import StoreError
from store_format.message.columns import DecodeOptions
from store_format.names import CLIENT_PROPERTIES, RESERVED_PROPERTIES, SHARDING_KEY, TIMER_DELIVER_MS
from store_format.read.choice import MessageChoice
from store_format.read.store import Queue, read_pieces
from store_format.read.tolerance import Tolerance

_ERROR = "_corrupt_record"
_COLUMNS = (
    *("topic", "queueOffset", "flag", "body", "properties", "tags", "keys", "msgId", "offsetMsgId"),
    *("bornTimestampMs", "storeTimestampMs", "bornHost", "reconsumeTimes", "physicalOffset", "storeSize"),
    _ERROR,
)


class _Rows:
    """The messages of one record batch of one queue."""

    __slots__ = ("_batch", "_lists", "mean_size", "queue")

    def __init__(self, batch: pa.RecordBatch, queue: MessageQueue) -> None:
        self._batch, self.queue = batch, queue
        self.mean_size: float = pc.mean(batch["storeSize"]).as_py() or 0.0
        self._lists: dict[str, list[Any]] = {}  # Any: the values of a column

    def values(self, name: str) -> list[Any]:
        found = self._lists.get(name)
        if found is None:
            found = self._lists[name] = self._batch[name].to_pylist()
        return found


class MessageExt:
    """A message as a listener gets it, with the attributes of `rmq_spark.pop.MessageView`.

    Times are in ms since 1970. `topic` is the topic that the message was first sent to; a retried message is
    stored in `stored_topic`, the group's retry topic. If the message is damaged in the store, `error` says
    where and how. Then only `message_queue`, `queue_id`, `offset`, `broker_name` and `stored_topic` are
    known, and every other attribute raises the error.
    """

    __slots__ = ("_row", "_rows", "failures", "offset")

    def __init__(self, rows: _Rows, row: int, offset: int) -> None:
        self._rows, self._row, self.offset = rows, row, offset
        self.failures = 0  # of this consumer, since the message was read

    def _value(self, name: str) -> Any:  # Any: the value of a column
        if self.error is not None:
            raise self.error
        return self._rows.values(name)[self._row]

    @property
    def error(self) -> StoreError | None:
        """Why the message cannot be read; None for a message that can."""
        text = self._rows.values(_ERROR)[self._row]
        return None if text is None else StoreError(text)

    @property
    def mean_size(self) -> float:
        """The bytes of a message in the commitlog, on average of those that were read with this one."""
        return self._rows.mean_size

    # ---- where it is ---------------------------------------------------------------------------------------

    @property
    def message_queue(self) -> MessageQueue:
        """The queue that has the message, with the stored topic."""
        return self._rows.queue

    @property
    def stored_topic(self) -> str:
        """The topic that has the message: the group's retry topic for a retried message."""
        return self._rows.queue.topic

    @property
    def broker_name(self) -> str:
        """The broker whose store has the message."""
        return self._rows.queue.broker_name

    @property
    def queue_id(self) -> int:
        """The queue of the message."""
        return self._rows.queue.queue_id

    @property
    def physical_offset(self) -> int:
        """The offset of the message in the commitlog."""
        offset: int = self._value("physicalOffset")
        return offset

    @property
    def store_size(self) -> int:
        """The bytes that the message takes in the commitlog."""
        size: int = self._value("storeSize")
        return size

    # ---- what it is ----------------------------------------------------------------------------------------

    @property
    def topic(self) -> str:
        """The topic that the message was first sent to."""
        topic: str = self._value("topic")
        return topic

    @property
    def message_id(self) -> str:
        """The message id that the producer's client assigned (UNIQ_KEY), or else the offset message id."""
        message_id: str = self._value("msgId")
        return message_id

    @property
    def offset_message_id(self) -> str:
        """The broker's message id: store host and physical offset."""
        message_id: str = self._value("offsetMsgId")
        return message_id

    @property
    def body(self) -> bytes:
        """The body, decompressed."""
        body: bytes = self._value("body")
        return body

    @property
    def flag(self) -> int:
        """The flag that the producer set."""
        flag: int = self._value("flag")
        return flag

    @property
    def tag(self) -> str | None:
        """The tag of the message (the property TAGS), or None."""
        tag: str | None = self._value("tags")
        return tag

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of the message: the words of the property KEYS."""
        return tuple(self._value("keys") or ())

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
    def reconsume_times(self) -> int:
        """How often the message has failed: as stored, and since this consumer has read it."""
        times: int = self._value("reconsumeTimes")
        return times + self.failures

    @property
    def delivery_attempt(self) -> int:
        """The number of this delivery: 1 for the first."""
        return self.reconsume_times + 1

    @property
    def born_host(self) -> str:
        """The producer's address, without its port."""
        host: str = self._value("bornHost")
        return host.rpartition(":")[0].strip("[]")

    @property
    def born_timestamp(self) -> int:
        """When the producer created the message, in ms since 1970."""
        time: int = self._value("bornTimestampMs")
        return time

    @property
    def store_timestamp(self) -> int:
        """When the message was stored, in ms since 1970."""
        time: int = self._value("storeTimestampMs")
        return time

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
        return dict(self._value("properties"))

    def __repr__(self) -> str:
        where = f"{self._rows.queue}, offset={self.offset}"
        if self.error is not None:
            return f"MessageExt({where}, error={str(self.error)!r})"
        return f"MessageExt({where}, message_id={self.message_id!r}, attempt={self.delivery_attempt})"


class Expression:
    """What a consumer reads of one topic: tags, or an SQL92 condition. Raises OptionError as RocketMQ does.

    >>> Expression("TagA || TagB").text
    'TAG TagA || TagB'
    """

    def __init__(self, expression: str = "*", expression_type: str = "TAG") -> None:
        tags, where = parse_subscription(expression_type, expression)
        self.text = f"{expression_type} {expression}"
        condition = None if where is None else CountingFilter(where)
        self._choice = MessageChoice(tags=tags, where=condition)

    def read(self, queue: Queue, name: MessageQueue, start: int, stop: int, group: str) -> list[MessageExt]:
        """The messages of the offsets [start, stop) of a queue that the expression takes, damaged ones too.

        Raises OffsetOutOfRangeError for messages that retention has deleted since the last look.
        """
        choice = self._choice
        options = DecodeOptions(_COLUMNS, tags=choice.tags, where=choice.where, group=group)
        pieces = [(queue, queue.piece(start, stop))]
        found: list[MessageExt] = []
        for batch in read_pieces(pieces, options, Tolerance("PERMISSIVE"), choice.tags_codes):
            rows = _Rows(batch, name)
            found += [MessageExt(rows, row, offset) for row, offset in enumerate(rows.values("queueOffset"))]
        return found

"""The columns of messages: one small function for each column, called for selected columns only."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from store_format.display.columns import TIME_MS_MIN, TIME_MS_STOP
from store_format.java.text import decode_utf8
from store_format.message.columns import TIMESTAMP_TYPE
from store_format.message.hosts import format_hosts, offset_msg_ids
from store_format.message.locate import Units
from store_format.message.property_table import PropertyTable
from store_format.message.rows import UnitRows
from store_format.message.tags_code import tags_codes
from store_format.names import (
    KEYS,
    REAL_TOPIC,
    RETRY_PREFIX,
    RETRY_TOPIC,
    SCHEDULE_TOPIC,
    TAGS,
    UNIQ_KEY,
    is_retry_topic,
    normal_topic,
)

_STRING = pa.string()
_CONSTANT_ROWS = 1 << 16


class MessageRows(UnitRows):
    """The rows of units as columns by name; the columns share one parsed table of properties.

    With `group`, `topic` is the topic that a delayed message, or a message that the group retries, was sent
    to.
    """

    def __init__(
        self,
        units: Units,
        broker_name: str,
        *,
        open_bodies: bool,
        body_size_max: int,
        opened_max: int | None,
        group: str | None,
    ) -> None:
        super().__init__(units, open_bodies=open_bodies, body_size_max=body_size_max, opened_max=opened_max)
        self.broker_name = broker_name
        self.group = group
        self._table: PropertyTable | None = None

    def properties(self) -> PropertyTable:
        if self._table is None:
            self._table = self.property_table()
        return self._table

    def prepare(self, names: Collection[str]) -> None:
        """Finds what these columns need of the properties, in one pass."""
        wanted = [
            _PROPERTY_OF.get(name, name) for name in names if name in _PROPERTY_OF or name not in _BUILDERS
        ]
        if wanted or "properties" in names:
            self.properties().find(wanted, maps="properties" in names)

    def share_properties(self, other: MessageRows) -> None:
        """Takes over the properties of `other`, which has rows of the same units."""
        self._table = other._table

    def column(self, name: str) -> pa.Array:
        """Returns a column by name; a name that is no built-in column is a property."""
        builder = _BUILDERS.get(name)
        return builder(self) if builder is not None else self.properties().values(name)


@lru_cache(maxsize=64)
def _constant(value: str) -> pa.StringArray:
    return pa.repeat(pa.scalar(value, _STRING), _CONSTANT_ROWS)


def _repeat(value: str, count: int) -> pa.StringArray:
    return (
        _constant(value)[:count] if count <= _CONSTANT_ROWS else pa.repeat(pa.scalar(value, _STRING), count)
    )


def _java_text(raw: pa.BinaryArray) -> pa.StringArray:
    """Returns bytes as text, with malformed UTF-8 replaced as in Java."""
    try:
        return raw.cast(_STRING)
    except pa.ArrowInvalid:
        return pa.array([decode_utf8(value) for value in raw.to_pylist()], _STRING)


def _topic(rows: MessageRows) -> pa.Array:
    topics = _queue_topic(rows)
    if rows.group is None or rows.units.refs.identity is None:
        return topics
    names = rows.units.refs.identity.topics
    is_scheduled = SCHEDULE_TOPIC in names
    if is_scheduled:  # ScheduleMessageService.messageTimeup
        real = pc.coalesce(rows.properties().values(REAL_TOPIC), topics)
        topics = pc.if_else(pc.equal(topics, SCHEDULE_TOPIC), real, topics)
    # DefaultMQPushConsumerImpl.resetRetryAndNamespace
    if is_scheduled or any(is_retry_topic(name) for name in names):
        first = pc.coalesce(rows.properties().values(RETRY_TOPIC), topics)
        topics = pc.if_else(pc.starts_with(topics, RETRY_PREFIX), first, topics)
        for name in pc.unique(topics).to_pylist():  # PopMessageProcessor answers with the popped topic
            popped, version = normal_topic(name, rows.group)
            if version:
                topics = pc.if_else(pc.equal(topics, name), popped, topics)
    return topics


def _queue_topic(rows: MessageRows) -> pa.Array:
    identity = rows.units.refs.identity
    if identity is None:
        return rows.take(_java_text(rows.units.stored_topics()))
    if identity.topic_index is None:
        return _repeat(identity.topics[0], len(rows))
    return pa.array(identity.topics, _STRING).take(pa.array(rows.of_units(identity.topic_index)))


def _queue_id(rows: MessageRows) -> pa.Array:
    identity = rows.units.refs.identity
    return rows.header("queue_id") if identity is None else pa.array(rows.of_units(identity.queue_ids))


def _timestamp(field: str) -> Callable[[MessageRows], pa.Array]:
    def build(rows: MessageRows) -> pa.Array:
        stored = rows.of_units(rows.units.integers(field)).astype(np.int64, copy=False)
        if not len(stored) or (stored.min() >= TIME_MS_MIN and stored.max() < TIME_MS_STOP):
            return pa.array(stored * 1000).view(TIMESTAMP_TYPE)
        outside = (stored < TIME_MS_MIN) | (stored >= TIME_MS_STOP)
        return pa.array(np.where(outside, 0, stored) * 1000, mask=outside).view(TIMESTAMP_TYPE)

    return build


def offset_msg_id(rows: MessageRows) -> pa.StringArray:
    physical = rows.units.physical_offsets
    return rows.take(
        _by_variant(rows.units, "store", lambda ip, port, index: offset_msg_ids(ip, port, physical[index]))
    )


def _host_column(which: str) -> Callable[[MessageRows], pa.Array]:
    return lambda rows: rows.take(
        _by_variant(rows.units, which, lambda ip, port, index: format_hosts(ip, port))
    )


def _by_variant(units: Units, which: str, build: Callable[[Any, Any, Any], pa.StringArray]) -> pa.StringArray:
    """Returns the text that `build` makes for each head variant, in the order of the units."""
    hosts = units.hosts(which)
    if len(hosts) == 1:
        return build(hosts[0][1], hosts[0][2], slice(None))
    parts = [(rows, build(ip, port, rows)) for rows, ip, port in hosts if rows is not None]
    order = np.empty(len(units), np.int64)
    order[np.concatenate([rows for rows, _ in parts])] = np.arange(len(units))
    return pa.concat_arrays([part for _, part in parts]).take(pa.array(order))


def _msg_id(rows: MessageRows) -> pa.Array:
    unique = rows.properties().values(UNIQ_KEY)
    return unique if not unique.null_count else pc.coalesce(unique, offset_msg_id(rows))


def _tags_code(rows: MessageRows) -> pa.Array:
    units = rows.units
    codes = units.refs.tags_codes
    if codes is None:
        scheduled = pc.equal(units.stored_topics(), SCHEDULE_TOPIC.encode()).to_numpy(zero_copy_only=False)
        codes = tags_codes(
            units.properties(),
            scheduled,
            units.integers("store_timestamp").astype(np.int64),
        )
    return pa.array(rows.of_units(codes))


_PROPERTY_OF = {"tags": TAGS, "keys": KEYS, "msgId": UNIQ_KEY}
_BUILDERS: dict[str, Callable[[MessageRows], pa.Array]] = {
    "topic": _topic,
    "flag": lambda rows: rows.header("flag"),
    "body": MessageRows.bodies,
    "properties": lambda rows: rows.properties().map_array(),
    "brokerName": lambda rows: _repeat(rows.broker_name, len(rows)),
    "queueId": _queue_id,
    "queueOffset": lambda rows: pa.array(rows.queue_offsets()),
    "bornTimestamp": _timestamp("born_timestamp"),
    "storeTimestamp": _timestamp("store_timestamp"),
    "tags": lambda rows: rows.properties().values(TAGS),
    # KEYS at spaces, empty parts left out, as the index does (IndexService.buildIndex)
    "keys": lambda rows: rows.properties().words(KEYS),
    "msgId": _msg_id,
    "bornTimestampMs": lambda rows: rows.header("born_timestamp"),
    "storeTimestampMs": lambda rows: rows.header("store_timestamp"),
    "offsetMsgId": offset_msg_id,
    "bornHost": _host_column("born"),
    "storeHost": _host_column("store"),
    "sysFlag": lambda rows: pa.array(rows.of_units(rows.units.sys_flag)),
    "bodyCRC": lambda rows: rows.header("body_crc"),
    "reconsumeTimes": lambda rows: rows.header("reconsume_times"),
    "preparedTransactionOffset": lambda rows: rows.header("prepared_transaction_offset"),
    "physicalOffset": lambda rows: pa.array(rows.of_units(rows.units.physical_offsets)),
    "storeSize": lambda rows: pa.array(rows.of_units(rows.units.refs.sizes).astype(np.int32)),
    "tagsCode": _tags_code,
    "storedTopic": lambda rows: rows.take(_java_text(rows.units.stored_topics())),
    "rawBody": MessageRows.raw_bodies,
    "_corrupt_record": lambda rows: pa.nulls(len(rows), _STRING),
}

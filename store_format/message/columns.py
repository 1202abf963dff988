"""From checked units to Arrow columns: one small builder a column, and only those a caller asks for.

`COLUMNS` names every column with its Arrow type (the camelCase of MessageExt); a name outside it is a
property column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.arrays.ranges import mapped_array
from store_format.display.columns import TIME_MS_MIN, TIME_MS_STOP
from store_format.java.text import decode_utf8
from store_format.message.hosts import format_hosts, offset_msg_ids
from store_format.message.locate import Units, inner_batches, locate
from store_format.message.property_table import PropertyTable
from store_format.message.rows import TooMuchOpenedError, UnitRows
from store_format.message.tags_code import tags_codes
from store_format.message.unit_refs import BadUnit, UnitRefs
from store_format.names import (
    KEYS,
    REAL_TOPIC,
    RETRY_PREFIX,
    RETRY_TOPIC,
    SCHEDULE_TOPIC,
    TAGS,
    UNIQ_KEY,
    is_retry_topic,
)

__all__ = [
    "BODY_SIZE_MAX",
    "COLUMNS",
    "DEFAULT_COLUMNS",
    "DecodeOptions",
    "PropertyFilter",
    "arrow_schema",
    "decode",
    "decode_parts",
]

_STRING = pa.string()
_TIMESTAMP = pa.timestamp("us", tz="UTC")

COLUMNS: dict[str, pa.DataType] = {
    "topic": _STRING,
    "flag": pa.int32(),
    "body": pa.binary(),
    "properties": pa.map_(_STRING, _STRING),
    "brokerName": _STRING,
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "bornTimestamp": _TIMESTAMP,
    "storeTimestamp": _TIMESTAMP,
    "tags": _STRING,
    "keys": pa.list_(pa.field("element", _STRING)),
    "msgId": _STRING,
    "bornTimestampMs": pa.int64(),
    "storeTimestampMs": pa.int64(),
    "offsetMsgId": _STRING,
    "bornHost": _STRING,
    "storeHost": _STRING,
    "sysFlag": pa.int32(),
    "bodyCRC": pa.int32(),
    "reconsumeTimes": pa.int32(),
    "preparedTransactionOffset": pa.int64(),
    "physicalOffset": pa.int64(),
    "storeSize": pa.int32(),
    "tagsCode": pa.int64(),
    "storedTopic": _STRING,
    "rawBody": pa.binary(),
    "_corrupt_record": _STRING,
}
DEFAULT_COLUMNS = tuple(COLUMNS)[:12]

BODY_SIZE_MAX = 64 << 20  # a decompressed body: sixteen times the default maxMessageSize

_PROPERTY_BACKED = frozenset({"properties", "tags", "keys", "msgId"})
_CONSTANT_ROWS = 1 << 16
_OPENED_BYTES_MAX = 32 << 20  # what bodies of one batch may inflate to, unless it is a single one


class PropertyFilter(Protocol):
    """Says of messages, by their properties, which to keep."""

    def mask(self, count: int, values: Callable[[str], pa.StringArray]) -> pa.BooleanArray:
        """One element for each of `count` messages; `values(name)` is a property of all of them, null where
        absent.
        """


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Which columns to build, in order; names outside COLUMNS are property columns. Plain values: it travels
    to tasks.

    `tags` keeps only messages whose TAGS is one of these (the exact half of a TAG subscription), `key` those
    with this word in KEYS or as UNIQ_KEY, `message_id` the one with this UNIQ_KEY or offset message id,
    `where` those it says. `original_topics` gives as `topic` of a message that waits for another try, or for
    its time, the topic it was sent to.
    """

    names: tuple[str, ...] = DEFAULT_COLUMNS
    verify_crc: bool = True
    body_size_max: int = BODY_SIZE_MAX
    tags: frozenset[str] | None = None
    key: str | None = None
    message_id: str | None = None
    where: PropertyFilter | None = None
    original_topics: bool = False

    @property
    def filters(self) -> bool:
        return any(wish is not None for wish in (self.tags, self.key, self.message_id, self.where))

    @property
    def needs_properties(self) -> bool:
        return self.filters or any(name in _PROPERTY_BACKED or name not in COLUMNS for name in self.names)


def arrow_schema(names: Collection[str]) -> pa.Schema:
    """The schema of batches with these columns; every field nullable, as Spark's are."""
    return pa.schema([pa.field(name, COLUMNS.get(name, _STRING)) for name in names])


def decode(refs: UnitRefs, options: DecodeOptions, broker_name: str) -> tuple[pa.RecordBatch, list[BadUnit]]:
    """Check and decode units into one RecordBatch with `options.names`, rows in the order of the units.

    Units that fail a check are left out and returned with their reason, by place in `refs`; nothing is raised
    for them.
    """
    return _decode(refs, options, broker_name, None)


def decode_parts(
    refs: UnitRefs, options: DecodeOptions, broker_name: str
) -> Iterator[tuple[UnitRefs, pa.RecordBatch, list[BadUnit]]]:
    """The same for parts of `refs`, one after the other: more than one where bodies inflate to more than
    should be held at once.
    """
    try:
        decoded = _decode(refs, options, broker_name, _OPENED_BYTES_MAX)
    except TooMuchOpenedError:
        decoded = None  # on from outside of this block: the error keeps alive what was opened
    if decoded is not None:
        yield refs, *decoded
        return
    half = len(refs) // 2
    yield from decode_parts(refs.select(np.arange(half)), options, broker_name)
    yield from decode_parts(refs.select(np.arange(half, len(refs))), options, broker_name)


def _decode(
    refs: UnitRefs, options: DecodeOptions, broker_name: str, opened_max: int | None
) -> tuple[pa.RecordBatch, list[BadUnit]]:
    units, bad = locate(refs, verify_crc=options.verify_crc)
    # of the units in refs
    places = np.setdiff1d(np.arange(len(refs)), [unit.index for unit in bad]) if bad else None
    seen = _look(units, options, broker_name)
    keep = None if seen is None else seen.wanted()
    # Beginning anew with what stays pays where that is less than half: at one message in five 5 to 15 % of
    # the time of default columns, three quarters of it where bodies of 8 KiB are compressed.
    if keep is not None and 2 * np.count_nonzero(keep) < len(units):
        units, seen = units.select(keep), None
        places = np.flatnonzero(keep) if places is None else places[keep]
        keep, options = None, replace(options, tags=None, key=None, message_id=None, where=None)
    rows = _Rows(units, options, broker_name, opened_max)
    if places is not None and rows.bad:
        rows.bad = [BadUnit(int(places[unit.index]), unit.error) for unit in rows.bad]
    if seen is None or rows.bad:
        keep = rows.wanted()
    else:
        rows.share_properties(seen)
    arrays = [rows.column(name) for name in options.names]
    batch = (
        pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(options.names))
        if arrays
        else rows.empty_batch()
    )
    if keep is not None:
        batch = batch.filter(pa.array(keep))
    return batch, sorted(bad + rows.bad, key=lambda unit: unit.index)


def _look(units: Units, options: DecodeOptions, broker_name: str) -> _Rows | None:
    """The rows as far as a filter looks at them, before bodies are opened; None where that does not settle
    which units to keep.
    """
    if not options.filters or inner_batches(units).any():
        return None
    rows = _Rows(units, replace(options, names=()), broker_name, None)
    return None if rows.bad else rows


class _Rows(UnitRows):
    """The rows of units, and what the columns have in common."""

    def __init__(
        self, units: Units, options: DecodeOptions, broker_name: str, opened_max: int | None
    ) -> None:
        super().__init__(
            units,
            open_bodies="body" in options.names,
            body_size_max=options.body_size_max,
            opened_max=opened_max,
        )
        self.options = options
        self.broker_name = broker_name
        self._table: PropertyTable | None = None

    def empty_batch(self) -> pa.RecordBatch:
        """No columns, but the right number of rows: what `count()` needs."""
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(self), pa.struct([])))

    def properties(self) -> PropertyTable:
        if self._table is None:
            self._table = PropertyTable(self.raw_properties())
        return self._table

    def share_properties(self, other: _Rows) -> None:
        """Those of rows of the same units."""
        self._table = other._table

    def wanted(self) -> NDArray[np.bool_] | None:
        """Rows to keep; None for all: the tag by its string, and the asked-for part of a batch."""
        identity = self.units.refs.identity
        keep = None
        if identity is not None and identity.wanted is not None:
            offsets = self.queue_offsets()
            keep = (offsets >= self.of_units(identity.wanted[0])) & (
                offsets < self.of_units(identity.wanted[1])
            )
        for mine in self._matches():
            found = pc.fill_null(mine, False).to_numpy(zero_copy_only=False)
            keep = found if keep is None else keep & found
        return None if keep is None or keep.all() else keep

    def _matches(self) -> Iterator[pa.BooleanArray]:
        """One array for each filter of the options."""
        wanted = self.options
        if wanted.tags is not None:
            yield pc.is_in(self.properties().values(TAGS), pa.array(sorted(wanted.tags), _STRING))
        if wanted.key is not None:
            words = pc.binary_join_element_wise(" ", self.properties().values(KEYS), " ", "")
            unique = pc.fill_null(pc.equal(self.properties().values(UNIQ_KEY), wanted.key), False)
            # KEYS is split at spaces, so several words with spaces between them are no key.
            word = pc.fill_null(pc.match_substring(words, f" {wanted.key} "), False)
            yield unique if " " in wanted.key else pc.or_(unique, word)
        if wanted.message_id is not None:
            unique = pc.fill_null(pc.equal(self.properties().values(UNIQ_KEY), wanted.message_id), False)
            yield pc.or_(unique, pc.equal(_offset_msg_id(self), wanted.message_id.upper()))
        if wanted.where is not None:
            yield wanted.where.mask(len(self), self.properties().values)

    def column(self, name: str) -> pa.Array:
        builder = _BUILDERS.get(name)
        return builder(self) if builder is not None else self.properties().values(name)


# ---- builders ----------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _constant(value: str) -> pa.StringArray:
    return pa.repeat(pa.scalar(value, _STRING), _CONSTANT_ROWS)


def _repeat(value: str, count: int) -> pa.StringArray:
    return (
        _constant(value)[:count] if count <= _CONSTANT_ROWS else pa.repeat(pa.scalar(value, _STRING), count)
    )


def _text(raw: pa.BinaryArray) -> pa.StringArray:
    """Bytes as text; malformed UTF-8 replaced, as Java's decoder does."""
    try:
        return raw.cast(_STRING)
    except pa.ArrowInvalid:
        return pa.array([decode_utf8(value) for value in raw.to_pylist()], _STRING)


def _topic(rows: _Rows) -> pa.Array:
    topics = _queue_topic(rows)
    if not rows.options.original_topics or rows.units.refs.identity is None:
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
    return topics


def _queue_topic(rows: _Rows) -> pa.Array:
    identity = rows.units.refs.identity
    if identity is None:
        return rows.take(_text(rows.units.stored_topics()))
    if identity.topic_index is None:
        return _repeat(identity.topics[0], len(rows))
    return pa.array(identity.topics, _STRING).take(pa.array(rows.of_units(identity.topic_index)))


def _queue_id(rows: _Rows) -> pa.Array:
    identity = rows.units.refs.identity
    return rows.header("queue_id") if identity is None else pa.array(rows.of_units(identity.queue_ids))


def _timestamp(field: str) -> Callable[[_Rows], pa.Array]:
    def build(rows: _Rows) -> pa.Array:
        stored = rows.of_units(rows.units.integers(field)).astype(np.int64)
        outside = (stored < TIME_MS_MIN) | (stored >= TIME_MS_STOP)
        if not outside.any():
            return pa.array(stored * 1000).view(_TIMESTAMP)
        return pa.array(np.where(outside, 0, stored) * 1000, mask=outside).view(_TIMESTAMP)

    return build


def _keys(rows: _Rows) -> pa.Array:
    """KEYS at spaces, empty parts left out, as the index does (IndexService.buildIndex)."""
    values = rows.properties().values(KEYS)
    if not (mapped_array(values)[1] == ord(" ")).any():
        offsets = np.zeros(len(values) + 1, np.int32)
        present = values.is_valid().to_numpy(zero_copy_only=False)
        np.cumsum(present, out=offsets[1:])
        nulls = pa.array(~present) if values.null_count else None
        return pa.ListArray.from_arrays(
            pa.array(offsets), values.drop_null(), type=COLUMNS["keys"], mask=nulls
        )
    lists = pc.split_pattern(values, " ")
    flat = lists.flatten()
    empty = pc.equal(flat, "").to_numpy(zero_copy_only=False)
    parent = pc.list_parent_indices(lists).to_numpy()[~empty]
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(np.bincount(parent, minlength=len(values)), out=offsets[1:])
    nulls = values.is_null() if values.null_count else None
    return pa.ListArray.from_arrays(
        pa.array(offsets), flat.filter(pa.array(~empty)), type=COLUMNS["keys"], mask=nulls
    )


def _offset_msg_id(rows: _Rows) -> pa.StringArray:
    physical = rows.units.refs.positions + rows.units.refs.base
    return rows.take(
        _by_variant(rows.units, "store", lambda ip, port, index: offset_msg_ids(ip, port, physical[index]))
    )


def _host(which: str) -> Callable[[_Rows], pa.Array]:
    return lambda rows: rows.take(
        _by_variant(rows.units, which, lambda ip, port, index: format_hosts(ip, port))
    )


def _by_variant(units: Units, which: str, build: Callable[[Any, Any, Any], pa.StringArray]) -> pa.StringArray:
    """Text made for each header variant, put back in the order of the units."""
    hosts = units.hosts(which)
    if len(hosts) == 1:
        return build(hosts[0][1], hosts[0][2], slice(None))
    parts = [(rows, build(ip, port, rows)) for rows, ip, port in hosts if rows is not None]
    order = np.empty(len(units), np.int64)
    order[np.concatenate([rows for rows, _ in parts])] = np.arange(len(units))
    return pa.concat_arrays([part for _, part in parts]).take(pa.array(order))


def _msg_id(rows: _Rows) -> pa.Array:
    unique = rows.properties().values(UNIQ_KEY)
    return unique if not unique.null_count else pc.coalesce(unique, _offset_msg_id(rows))


def _tags_code(rows: _Rows) -> pa.Array:
    units = rows.units
    codes = units.refs.tags_codes
    if codes is None:
        scheduled = pc.equal(units.stored_topics(), SCHEDULE_TOPIC.encode()).to_numpy(zero_copy_only=False)
        codes = tags_codes(
            PropertyTable(units.raw_properties()),
            scheduled,
            units.integers("store_timestamp").astype(np.int64),
        )
    return pa.array(rows.of_units(codes))


_BUILDERS: dict[str, Callable[[_Rows], pa.Array]] = {
    "topic": _topic,
    "flag": lambda rows: rows.header("flag"),
    "body": _Rows.bodies,
    "properties": lambda rows: rows.properties().map_array(),
    "brokerName": lambda rows: _repeat(rows.broker_name, len(rows)),
    "queueId": _queue_id,
    "queueOffset": lambda rows: pa.array(rows.queue_offsets()),
    "bornTimestamp": _timestamp("born_timestamp"),
    "storeTimestamp": _timestamp("store_timestamp"),
    "tags": lambda rows: rows.properties().values(TAGS),
    "keys": _keys,
    "msgId": _msg_id,
    "bornTimestampMs": lambda rows: rows.header("born_timestamp"),
    "storeTimestampMs": lambda rows: rows.header("store_timestamp"),
    "offsetMsgId": _offset_msg_id,
    "bornHost": _host("born"),
    "storeHost": _host("store"),
    "sysFlag": lambda rows: pa.array(rows.of_units(rows.units.sys_flag)),
    "bodyCRC": lambda rows: rows.header("body_crc"),
    "reconsumeTimes": lambda rows: rows.header("reconsume_times"),
    "preparedTransactionOffset": lambda rows: rows.header("prepared_transaction_offset"),
    "physicalOffset": lambda rows: pa.array(rows.of_units(rows.units.refs.positions + rows.units.refs.base)),
    "storeSize": lambda rows: pa.array(rows.of_units(rows.units.refs.sizes).astype(np.int32)),
    "tagsCode": _tags_code,
    "storedTopic": lambda rows: rows.take(_text(rows.units.stored_topics())),
    "rawBody": _Rows.raw_bodies,
    "_corrupt_record": lambda rows: pa.nulls(len(rows), _STRING),
}

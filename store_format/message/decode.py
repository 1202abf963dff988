"""Decodes message units into record batches: checks, filters, and the columns that a caller selects. Each
column has one small function, which is called for selected columns only.

It is apart from `columns.py`, because it imports `pyarrow.compute`, and a process that only plans reads, such
as the source of a stream, decodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.display.columns import TIME_MS_MIN, TIME_MS_STOP
from store_format.java.text import decode_utf8
from store_format.message.columns import TIMESTAMP_TYPE, DecodeOptions, arrow_schema
from store_format.message.hosts import format_hosts, offset_msg_ids
from store_format.message.locate import BadUnit, UnitRefs, Units, inner_batches, locate
from store_format.message.properties import PropertyTable, tags_codes
from store_format.message.rows import TooMuchOpenedError, UnitRows
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

_OPENED_BYTES_MAX = 32 << 20  # decompressed bodies of one record batch, unless it is a single body

_STRING = pa.string()
_CONSTANT_ROWS = 1 << 16


# ---- record batches ----------------------------------------------------------------------------------------


def decode(refs: UnitRefs, options: DecodeOptions, broker_name: str) -> tuple[pa.RecordBatch, list[BadUnit]]:
    """Returns a RecordBatch with `options.names` of the units that pass the checks, and each bad unit.

    Rows have the order of the units. Bad units have their index in `refs` and the reason; they raise nothing.
    """
    return _decode(refs, options, broker_name, None)


def decode_parts(
    refs: UnitRefs, options: DecodeOptions, broker_name: str
) -> Iterator[tuple[UnitRefs, pa.RecordBatch, list[BadUnit]]]:
    """Yields (part of `refs`, `decode` of the part); several if decompressed bodies need much memory."""
    try:
        decoded = _decode(refs, options, broker_name, _OPENED_BYTES_MAX)
    except TooMuchOpenedError:
        decoded = None  # continue outside of this block: the error keeps the decompressed bodies alive
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
    # place in `refs` of each unit; None: all units are good
    places = np.setdiff1d(np.arange(len(refs)), [unit.index for unit in bad]) if bad else None
    filtered = _filter_first(units, options, broker_name)
    keep = None if filtered is None else _kept_rows(filtered, options)
    # Building rows again from the kept units pays where fewer than half are kept: at one message in five it
    # saves 5 to 15 % of the time of the default columns, three quarters of it with compressed bodies of 8
    # KiB.
    if keep is not None and 2 * np.count_nonzero(keep) < len(units):
        units, filtered = units.select(keep), None
        places = np.flatnonzero(keep) if places is None else places[keep]
        keep, options = None, replace(options, tags=None, key=None, message_id=None, where=None)
    rows = _message_rows(units, options, broker_name, "body" in options.names, opened_max)
    if places is not None and rows.bad:
        rows.bad = [BadUnit(int(places[unit.index]), unit.error) for unit in rows.bad]
    if filtered is None or rows.bad:
        keep = _kept_rows(rows, options)
    else:
        rows.share_properties(filtered)
    batch = _record_batch(rows, options.names)
    if keep is not None:
        batch = batch.filter(pa.array(keep))
    return batch, sorted(bad + rows.bad, key=lambda unit: unit.index)


def _message_rows(
    units: Units, options: DecodeOptions, broker_name: str, open_bodies: bool, opened_max: int | None
) -> _MessageRows:
    return _MessageRows(
        units,
        broker_name,
        open_bodies=open_bodies,
        body_size_max=options.body_size_max,
        opened_max=opened_max,
        group=options.group,
    )


def _record_batch(rows: _MessageRows, names: tuple[str, ...]) -> pa.RecordBatch:
    if not names:  # no columns, but the right number of rows: what `count()` needs
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    rows.prepare(names)
    return pa.RecordBatch.from_arrays([rows.column(name) for name in names], schema=arrow_schema(names))


def _filter_first(units: Units, options: DecodeOptions, broker_name: str) -> _MessageRows | None:
    """Returns rows to filter before bodies are decompressed; None where the filter needs every row built.

    Messages of an inner batch, and rows that are left out, are known only once the bodies are decompressed.
    """
    if not options.filters or inner_batches(units).any():
        return None
    rows = _message_rows(units, options, broker_name, False, None)
    return None if rows.bad else rows


def _kept_rows(rows: _MessageRows, options: DecodeOptions) -> NDArray[np.bool_] | None:
    """Returns the rows that pass the filters and lie in the wanted part of their batch; None for all rows."""
    identity = rows.units.refs.identity
    keep = None
    if identity is not None and identity.wanted is not None:
        offsets = rows.queue_offsets()
        start, stop = (rows.of_units(bounds) for bounds in identity.wanted)
        keep = (offsets >= start) & (offsets < stop)
    for matches in _filter_results(rows, options):
        found = pc.fill_null(matches, False).to_numpy(zero_copy_only=False)
        keep = found if keep is None else keep & found
    return None if keep is None or keep.all() else keep


def _filter_results(rows: _MessageRows, options: DecodeOptions) -> Iterator[pa.BooleanArray]:
    """Yields one array for each filter of the options."""
    values = rows.properties().values if options.filters else None
    if values is None:
        return
    if options.tags is not None:
        yield pc.is_in(values(TAGS), pa.array(sorted(options.tags), pa.string()))
    if options.key is not None:
        yield rows.properties().has_key(options.key)
    if options.message_id is not None:
        unique = pc.fill_null(pc.equal(values(UNIQ_KEY), options.message_id), False)
        yield pc.or_(unique, pc.equal(_offset_msg_id(rows), options.message_id.upper()))
    if options.where is not None:
        yield options.where.mask(len(rows), values)


# ---- columns -----------------------------------------------------------------------------------------------


class _MessageRows(UnitRows):
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

    def share_properties(self, other: _MessageRows) -> None:
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


def _topic(rows: _MessageRows) -> pa.Array:
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


def _queue_topic(rows: _MessageRows) -> pa.Array:
    identity = rows.units.refs.identity
    if identity is None:
        return rows.take(_java_text(rows.units.stored_topics()))
    if identity.topic_index is None:
        return _repeat(identity.topics[0], len(rows))
    return pa.array(identity.topics, _STRING).take(pa.array(rows.of_units(identity.topic_index)))


def _queue_id(rows: _MessageRows) -> pa.Array:
    identity = rows.units.refs.identity
    return rows.header("queue_id") if identity is None else pa.array(rows.of_units(identity.queue_ids))


def _timestamp(field: str) -> Callable[[_MessageRows], pa.Array]:
    def build(rows: _MessageRows) -> pa.Array:
        stored = rows.of_units(rows.units.integers(field)).astype(np.int64, copy=False)
        if not len(stored) or (stored.min() >= TIME_MS_MIN and stored.max() < TIME_MS_STOP):
            return pa.array(stored * 1000).view(TIMESTAMP_TYPE)
        outside = (stored < TIME_MS_MIN) | (stored >= TIME_MS_STOP)
        return pa.array(np.where(outside, 0, stored) * 1000, mask=outside).view(TIMESTAMP_TYPE)

    return build


def _offset_msg_id(rows: _MessageRows) -> pa.StringArray:
    physical = rows.units.physical_offsets
    return rows.take(
        _by_variant(rows.units, "store", lambda ip, port, index: offset_msg_ids(ip, port, physical[index]))
    )


def _host_column(which: str) -> Callable[[_MessageRows], pa.Array]:
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


def _msg_id(rows: _MessageRows) -> pa.Array:
    unique = rows.properties().values(UNIQ_KEY)
    return unique if not unique.null_count else pc.coalesce(unique, _offset_msg_id(rows))


def _tags_code(rows: _MessageRows) -> pa.Array:
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
_BUILDERS: dict[str, Callable[[_MessageRows], pa.Array]] = {
    "topic": _topic,
    "flag": lambda rows: rows.header("flag"),
    "body": _MessageRows.bodies,
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
    "offsetMsgId": _offset_msg_id,
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
    "rawBody": _MessageRows.raw_bodies,
    "_corrupt_record": lambda rows: pa.nulls(len(rows), _STRING),
}

"""Decodes message units into record batches: checks, filters, and the columns that a caller selects.

`COLUMNS` maps every built-in column to its Arrow type; its names are those of MessageExt. Any other name is
the name of a property.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.errors import OptionError
from store_format.message.column_builders import TIMESTAMP_TYPE, MessageRows, offset_msg_id
from store_format.message.locate import Units, inner_batches, locate
from store_format.message.property_table import WORDS_TYPE
from store_format.message.rows import TooMuchOpenedError
from store_format.message.unit_refs import BadUnit, UnitRefs
from store_format.names import TAGS, UNIQ_KEY

_STRING = pa.string()

COLUMNS: dict[str, pa.DataType] = {
    "topic": _STRING,
    "flag": pa.int32(),
    "body": pa.binary(),
    "properties": pa.map_(_STRING, _STRING),
    "brokerName": _STRING,
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "bornTimestamp": TIMESTAMP_TYPE,
    "storeTimestamp": TIMESTAMP_TYPE,
    "tags": _STRING,
    "keys": WORDS_TYPE,
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

_OPENED_BYTES_MAX = 32 << 20  # decompressed bodies of one record batch, unless it is a single body


class PropertyFilter(Protocol):
    """Selects messages by their properties."""

    def mask(self, count: int, values: Callable[[str], pa.StringArray]) -> pa.BooleanArray:
        """Returns which of `count` messages to keep; `values(name)` is a property of each, null if absent."""


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """Which columns to build, in order, and which messages to keep. Plain values: Spark sends them to tasks.

    A name outside COLUMNS is a property. `tags` keeps messages whose TAGS is one of these (after the filter
    by tags code), `key` those with this word in KEYS or as UNIQ_KEY, `message_id` the message with this
    UNIQ_KEY or offset message id, `where` the messages that it selects. With `group` the `topic` of a delayed
    message, and of a message that the group retries, is the topic that it was sent to.
    """

    names: tuple[str, ...] = DEFAULT_COLUMNS
    verify_crc: bool = True
    body_size_max: int = BODY_SIZE_MAX
    tags: frozenset[str] | None = None
    key: str | None = None
    message_id: str | None = None
    where: PropertyFilter | None = None
    group: str | None = None

    @property
    def filters(self) -> bool:
        return any(wish is not None for wish in (self.tags, self.key, self.message_id, self.where))


def decode_options_of(columns: Sequence[str], verify_crc: bool) -> DecodeOptions:
    """The options for these columns. Raises OptionError for a name that is no column."""
    unknown = [name for name in columns if name not in COLUMNS]
    if unknown:
        raise OptionError(f"unknown column {unknown[0]!r}; the columns are {', '.join(COLUMNS)}")
    return DecodeOptions(tuple(columns), verify_crc, BODY_SIZE_MAX)


def arrow_schema(names: Collection[str]) -> pa.Schema:
    """Returns the schema of batches with these columns; every field is nullable, as in Spark."""
    return _schema(tuple(names))


@lru_cache(maxsize=64)
def _schema(names: tuple[str, ...]) -> pa.Schema:
    return pa.schema([pa.field(name, COLUMNS.get(name, _STRING)) for name in names])


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
) -> MessageRows:
    return MessageRows(
        units,
        broker_name,
        open_bodies=open_bodies,
        body_size_max=options.body_size_max,
        opened_max=opened_max,
        group=options.group,
    )


def _record_batch(rows: MessageRows, names: tuple[str, ...]) -> pa.RecordBatch:
    if not names:  # no columns, but the right number of rows: what `count()` needs
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
    rows.prepare(names)
    return pa.RecordBatch.from_arrays([rows.column(name) for name in names], schema=arrow_schema(names))


def _filter_first(units: Units, options: DecodeOptions, broker_name: str) -> MessageRows | None:
    """Returns rows to filter before bodies are decompressed; None where the filter needs every row built.

    Messages of an inner batch, and rows that are left out, are known only once the bodies are decompressed.
    """
    if not options.filters or inner_batches(units).any():
        return None
    rows = _message_rows(units, options, broker_name, False, None)
    return None if rows.bad else rows


def _kept_rows(rows: MessageRows, options: DecodeOptions) -> NDArray[np.bool_] | None:
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


def _filter_results(rows: MessageRows, options: DecodeOptions) -> Iterator[pa.BooleanArray]:
    """Yields one array for each filter of the options."""
    values = rows.properties().values if options.filters else None
    if values is None:
        return
    if options.tags is not None:
        yield pc.is_in(values(TAGS), pa.array(sorted(options.tags), _STRING))
    if options.key is not None:
        yield rows.properties().has_key(options.key)
    if options.message_id is not None:
        unique = pc.fill_null(pc.equal(values(UNIQ_KEY), options.message_id), False)
        yield pc.or_(unique, pc.equal(offset_msg_id(rows), options.message_id.upper()))
    if options.where is not None:
        yield options.where.mask(len(rows), values)

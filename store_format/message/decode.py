"""Decodes message units into record batches: checks, filters, and the columns that a caller selects. Each
column has one small function, which is called for selected columns only.

Each message of the checked units is one row: inner batches are split, and bodies are decompressed on demand.
Units that cannot be decompressed, or contradict their consume queue entry, are left out and reported. The
body of an inner batch is a sequence of wire messages (MessageDecoder.decodeMessages, spec 2.11): one walk
through each body records where messages start; numpy and Arrow then take all messages apart at once.

It is apart from `columns.py`, because it imports `pyarrow.compute`, and a process that only plans reads, such
as the source of a stream, decodes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_ranges, gather_units, numbers
from store_format.display.columns import TIME_MS_MIN, TIME_MS_STOP
from store_format.errors import CorruptStoreError
from store_format.java.numbers import parse_long
from store_format.java.text import decode_utf8
from store_format.layouts import CQ_EXT_ADDRESS_MAX, WIRE_MESSAGE_HEAD, as_struct
from store_format.message import sysflag
from store_format.message.columns import (
    COLUMNS,
    TIMESTAMP_TYPE,
    DecodeOptions,
    LogicalRange,
    arrow_schema,
)
from store_format.message.compression import DecompressionError, decompress
from store_format.message.hosts import format_hosts, offset_msg_ids
from store_format.message.locate import PORT_MAX, BadUnit, UnitRefs, Units, inner_batches, locate
from store_format.message.properties import PropertyTable, tags_codes
from store_format.message.single import head_offset
from store_format.names import (
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
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

_Ints = NDArray[np.int64]
Bad = tuple[UnitRefs, BadUnit]

_OPENED_AT_ONCE = 256  # bodies that one thread opens for a check
_WIRE_HEAD_SIZE = WIRE_MESSAGE_HEAD.itemsize
_WIRE_HEAD = as_struct(WIRE_MESSAGE_HEAD)
_WIRE_SIZE_MIN = _WIRE_HEAD_SIZE + 2  # no body, no properties
_INNER_MESSAGES_MAX = 2**15 - 1  # INNER_NUM and the batch size in the queue are shorts


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
    except _TooMuchOpenedError:
        decoded = None  # continue outside of this block: the error keeps the decompressed bodies alive
    if decoded is not None:
        yield refs, *decoded
        return
    half = len(refs) // 2
    yield from decode_parts(refs.select(np.arange(half)), options, broker_name)
    yield from decode_parts(refs.select(np.arange(half, len(refs))), options, broker_name)


def unopened(refs: UnitRefs, each: Callable[..., Iterable[list[Bad]]] = map) -> list[Bad]:
    """Returns (part of `refs`, bad unit) for the units that pass all checks, and that no client decodes.

    A body is not compressed as the sysFlag says, an inner batch cannot be split, or a host has a wrong port.
    `each` is `map`, or that of threads: zlib and zstd work without the interpreter lock.
    """

    def bad_of(rows: _Ints) -> list[Bad]:
        parts = decode_parts(units.refs.select(rows), DecodeOptions(("body",), verify_crc=False), "")
        return [(part, unit) for part, _, bad in parts for unit in bad]

    units, _ = locate(refs, verify_crc=False)
    rows = np.flatnonzero(units.parts.is_unusual)
    parts = np.split(rows, range(_OPENED_AT_ONCE, len(rows), _OPENED_AT_ONCE)) if len(rows) else []
    return [found for bad in each(bad_of, parts) for found in bad]


def _have_wrong_port(units: Units) -> NDArray[np.bool_]:
    """Which units have a host that is no InetSocketAddress: MessageDecoder returns null for them."""
    born, store = (units.integers(f"{host}_port").view(np.uint32) for host in ("born", "store"))
    return (born > PORT_MAX) | (store > PORT_MAX)


def _decode(
    refs: UnitRefs, options: DecodeOptions, broker_name: str, opened_max: int | None
) -> tuple[pa.RecordBatch, list[BadUnit]]:
    with_bodies = "body" in options.names and not options.filters
    units, bad = locate(refs, verify_crc=options.verify_crc, with_bodies=with_bodies)
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
        logical=options.logical,
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


# ---- rows --------------------------------------------------------------------------------------------------


class _TooMuchOpenedError(Exception):
    """The decompressed bodies of several units exceed the memory limit: the caller decodes fewer units."""


class _UnitRows:
    """The rows of `units`; `bad` has the units left out, with their index among the given units.

    `unit_of` is the unit of each row, None where each unit is one row. `opened_max` limits the bytes of the
    decompressed bodies of several units (TooMuchOpenedError); a single body may have `body_size_max`.
    """

    def __init__(
        self, units: Units, *, open_bodies: bool, body_size_max: int, opened_max: int | None
    ) -> None:
        self.bad: list[BadUnit] = []
        self._origin = np.arange(len(units))  # index of each unit among the given units
        self._body_size_max = body_size_max
        self._opened_max = opened_max
        self.unit_of: _Ints | None = None
        self._offset_in_batch: _Ints | None = None
        self._own: dict[str, NDArray[Any]] = {}
        self._opened: dict[int, bytes] = {}
        self._spread_parts: tuple[pa.BinaryArray, pa.BinaryArray] | None = None
        self._reject_foreign_light(units)
        self.units = self._without_bad(units)
        identity = units.refs.identity
        if units.parts.is_unusual.any() or (identity is not None and identity.counts is not None):
            self._look_into(self.units, open_bodies)

    def _look_into(self, units: Units, open_bodies: bool) -> None:
        """Rejects units that no client decodes, opens bodies, and splits inner batches."""
        for i in np.flatnonzero(_have_wrong_port(units)).tolist():
            ports = " and ".join(str(units.integers(f"{host}_port")[i]) for host in ("born", "store"))
            at = int(units.refs.positions[i])
            self._reject(units, i, at, f"hosts with ports from 0 to {PORT_MAX}", f"ports {ports}")
        if units.refs.identity is None:  # else `locate` has compared the queueOffset
            self._reject_moved(units, np.flatnonzero(inner_batches(units)))
        units = self._without_bad(units)
        inner = inner_batches(units)
        compressed = (units.sys_flag & sysflag.COMPRESSED) != 0
        opened = self._open(units, np.flatnonzero(inner | compressed if open_bodies else inner), compressed)
        messages = self._split(units, inner, opened)
        if self.bad:
            kept = self._origin
            units = self._without_bad(units)
            keep = np.isin(kept, self._origin)
            place = np.cumsum(keep) - 1
            inner, opened = inner[keep], {int(place[i]): body for i, body in opened.items() if keep[i]}
        self.units = units
        self._opened = {i: body for i, body in opened.items() if not inner[i]}
        if messages is not None:
            self._spread(inner, messages)

    # ---- units left out ------------------------------------------------------------------------------------

    def _reject(self, units: Units, i: int, position: int, expected: str, found: str) -> None:
        position += units.refs.place(i) - int(units.refs.positions[i])  # in the file, not in the buffer
        self.bad.append(
            BadUnit(int(self._origin[i]), CorruptStoreError(units.refs.path, position, expected, found))
        )

    def _without_bad(self, units: Units) -> Units:
        if not self.bad:
            return units
        keep = ~np.isin(self._origin, [unit.index for unit in self.bad])
        self._origin = self._origin[keep]
        return units.select(keep)

    def _reject_foreign_light(self, units: Units) -> None:
        """Rejects units whose two parallel lists lack their light queue and offset (LmqDispatch)."""
        identity = units.refs.identity
        light = None if identity is None else identity.light_rows()
        if identity is None or light is None or not light.any():
            return
        table = units.properties()
        table.find((INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET))
        names = table.values(INNER_MULTI_DISPATCH).to_pylist()
        offsets = table.values(INNER_MULTI_QUEUE_OFFSET).to_pylist()
        for i in np.flatnonzero(light).tolist():
            queue, offset = identity.topic_of(i), str(int(identity.queue_offsets[i]))
            pairs = list(zip((names[i] or "").split(","), (offsets[i] or "").split(","), strict=False))
            if (queue, offset) not in pairs:
                self._reject(
                    units,
                    i,
                    int(units.parts.properties_start[i]),
                    f"light queue {queue} at offset {offset}",
                    f"{names[i]} at {offsets[i]}",
                )

    def _reject_moved(self, units: Units, rows: _Ints) -> None:
        """Rejects batches that a queue has at INNER_BASE (CommitLog.checkMessageAndReturnSize), and a client
        at another queueOffset (MessageDecoder.decodeMessage).
        """
        bases = units.select(rows).properties().values(INNER_BASE).to_pylist()
        offsets = units.integers("queue_offset")[rows].tolist()
        for i, base, offset in zip(rows.tolist(), bases, offsets, strict=True):
            if parse_long(base) not in (None, offset):
                at = int(units.refs.positions[i]) + head_offset("queue_offset")
                self._reject(units, i, at, f"queueOffset {base}, as in {INNER_BASE}", str(offset))

    # ---- opening and splitting -----------------------------------------------------------------------------

    def _open(self, units: Units, index: _Ints, compressed: NDArray[np.bool_]) -> dict[int, bytes]:
        """Returns the bodies at `index`, decompressed if they are stored compressed."""
        opened: dict[int, bytes] = {}
        if not len(index):
            return opened
        stored = units.stored_bodies()
        total = 0
        for i in index.tolist():
            body = stored[i].as_py()
            if compressed[i]:
                try:
                    body = decompress(body, int(units.sys_flag[i]), size_max=self._body_size_max)
                except DecompressionError as error:
                    self._reject(units, i, int(units.parts.body_start[i]), error.expected, error.found)
                    continue
            opened[i] = body
            total += len(body)
            self._refuse_too_much(total, len(opened))
        return opened

    def _refuse_too_much(self, total: int, count: int) -> None:
        if self._opened_max is not None and total > self._opened_max and count > 1:
            raise _TooMuchOpenedError

    def _split(
        self, units: Units, inner: NDArray[np.bool_], opened: dict[int, bytes]
    ) -> _WireMessages | None:
        """Returns the messages of all good batches; None when no unit is a batch."""
        identity = units.refs.identity
        counts = None if identity is None else identity.counts
        if counts is not None:
            for i in np.flatnonzero(~inner & (counts != 1)).tolist():
                self._reject(
                    units,
                    i,
                    int(units.parts.body_start[i]),
                    f"{int(counts[i])} messages, as in the consume queue entry",
                    "a unit that is no batch",
                )
        if not inner.any():
            return None
        index = [i for i in np.flatnonzero(inner).tolist() if i in opened]
        messages, wrong = split_batches(
            [opened[i] for i in index], None if counts is None else counts[index].tolist()
        )
        for at, (byte, expected, found) in wrong.items():
            self._reject(units, index[at], int(units.parts.body_start[index[at]]) + byte, expected, found)
        # each row has its topic
        self._refuse_too_much(int((messages.counts * units.parts.topic_length[index]).sum()), len(index))
        return messages

    def _spread(self, inner: NDArray[np.bool_], messages: _WireMessages) -> None:
        """Replaces the row of each batch by a row for each of its messages."""
        units = self.units
        counts = np.ones(len(units), np.int64)
        counts[inner] = messages.counts[messages.counts > 0]  # a rejected batch has no messages
        self.unit_of = np.repeat(np.arange(len(units)), counts)
        self._offset_in_batch = np.arange(len(self.unit_of)) - np.repeat(np.cumsum(counts) - counts, counts)
        # Rows of batches come after all stored units in the concatenated arrays below.
        source = self.unit_of.copy()
        from_batch = inner[self.unit_of]
        source[from_batch] = len(units) + np.arange(int(from_batch.sum()))
        take = pa.array(source)
        self._own = {
            "flag": np.concatenate((units.integers("flag"), messages.flags))[source],
            "body_crc": np.concatenate((units.integers("body_crc"), messages.body_crcs))[source],
        }
        bodies = pa.concat_arrays([_replace(units.stored_bodies(), self._opened), messages.bodies]).take(take)
        properties = pa.concat_arrays([units.raw_properties(), messages.raw_properties]).take(take)
        self._spread_parts = bodies, properties

    # ---- the rows ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.units) if self.unit_of is None else len(self.unit_of)

    def of_units(self, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the value of its unit for each row."""
        return values if self.unit_of is None else values[self.unit_of]

    def take(self, array: pa.Array) -> pa.Array:
        return array if self.unit_of is None else array.take(pa.array(self.unit_of))

    def header(self, name: str) -> pa.Array:
        """Returns a head field of each row; messages of a batch have some fields of their own."""
        own = self._own.get(name)
        return numbers(self.of_units(self.units.integers(name)) if own is None else own)

    def bodies(self) -> pa.BinaryArray:
        """Returns the bodies as the producer sent them, if `open_bodies` was given."""
        if self._spread_parts is not None:
            return self._spread_parts[0]
        return _replace(self.units.stored_bodies(), self._opened)

    def raw_bodies(self) -> pa.BinaryArray:
        """Returns the stored bodies; a message of a batch has its own body, not the body of the batch."""
        if self.unit_of is None or self._spread_parts is None:
            return self.units.stored_bodies()
        if not self._opened:
            return self._spread_parts[0]
        stored = pa.concat_arrays([self._spread_parts[0], self.units.stored_bodies()])
        plain = ~inner_batches(self.units)[self.unit_of]
        return stored.take(
            pa.array(np.where(plain, len(self.unit_of) + self.unit_of, np.arange(len(self.unit_of))))
        )

    def property_table(self) -> PropertyTable:
        """Returns the properties of each row, not yet parsed."""
        return self.units.properties() if self._spread_parts is None else PropertyTable(self._spread_parts[1])

    def queue_offsets(self) -> _Ints:
        identity = self.units.refs.identity
        stored = (
            identity.queue_offsets
            if identity is not None
            else self.units.integers("queue_offset").astype(np.int64)
        )
        offsets = self.of_units(stored)
        return offsets if self._offset_in_batch is None else offsets + self._offset_in_batch


def _replace(bodies: pa.BinaryArray, replacements: dict[int, bytes]) -> pa.BinaryArray:
    """Returns `bodies` with some values replaced; the others are not copied through Python."""
    if not replacements:
        return bodies
    index = sorted(replacements)
    take = np.arange(len(bodies))
    take[index] = len(bodies) + np.arange(len(index))
    opened = pa.array([replacements[i] for i in index], pa.binary())
    return opened if len(index) == len(bodies) else pa.concat_arrays([bodies, opened]).take(pa.array(take))


# ---- inner batches -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _WireMessages:
    """The messages of many batch bodies in order: body i has `counts[i]` of them."""

    counts: NDArray[np.int64]
    flags: NDArray[np.int32]
    body_crcs: NDArray[np.int32]  # 0: RocketMQ does not compute the CRC of a message in a batch
    bodies: pa.BinaryArray
    raw_properties: pa.BinaryArray


def split_batches(
    bodies: list[bytes], expected_counts: list[int] | None = None
) -> tuple[_WireMessages, dict[int, tuple[int, str, str]]]:
    """Returns the messages of batch bodies, and (byte, expected, found) for each bad body by its index.

    A bad body has lengths that do not add up, no message, or another number of messages than expected. Its
    count is 0.
    """
    starts: list[int] = []
    counts = np.zeros(len(bodies), np.int64)
    wrong: dict[int, tuple[int, str, str]] = {}
    base = 0
    for i, body in enumerate(bodies):
        found, problem = _starts(body)
        if problem is None and expected_counts is not None and len(found) != expected_counts[i]:
            problem = 0, f"{expected_counts[i]} messages, as in the consume queue entry", str(len(found))
        if problem is None and not found:
            problem = 0, "at least one message in a batch", "none"
        if problem is not None:
            wrong[i] = problem
        else:
            counts[i] = len(found)
            starts += [base + start for start in found]
        base += len(body)
    buffer = np.frombuffer(b"".join(bodies), np.uint8)
    heads = np.array(starts, np.int64)
    records = gather_units(buffer, heads, WIRE_MESSAGE_HEAD)
    body_length = records["body_length"].astype(np.int64)
    properties = heads + _WIRE_HEAD_SIZE + body_length
    properties_length = records["total_size"].astype(np.int64) - _WIRE_SIZE_MIN - body_length
    messages = _WireMessages(
        counts,
        records["flag"].astype(np.int32),
        records["body_crc"].astype(np.int32),
        gather_ranges(buffer, heads + _WIRE_HEAD_SIZE, body_length),
        gather_ranges(buffer, properties + 2, properties_length),
    )
    return messages, wrong


def _starts(body: bytes) -> tuple[list[int], tuple[int, str, str] | None]:
    starts: list[int] = []
    position, end = 0, len(body)
    while position < end:
        if len(starts) == _INNER_MESSAGES_MAX:
            return starts, (position, f"at most {_INNER_MESSAGES_MAX} messages in a batch", "more")
        if end - position < _WIRE_SIZE_MIN:
            return starts, (
                position,
                f"a wire message of at least {_WIRE_SIZE_MIN} bytes",
                f"{end - position} bytes left of the batch",
            )
        size, _, _, _, body_length = _WIRE_HEAD.unpack_from(body, position)
        if size < _WIRE_SIZE_MIN or size > end - position:
            return starts, (position, f"a wire message size up to {end - position}", str(size))
        if body_length < 0 or body_length > size - _WIRE_SIZE_MIN:
            return starts, (position + 16, f"a body length up to {size - _WIRE_SIZE_MIN}", str(body_length))
        where = position + _WIRE_HEAD_SIZE + body_length
        properties_length = int.from_bytes(body[where : where + 2], "big", signed=True)
        if properties_length != size - _WIRE_SIZE_MIN - body_length:
            return starts, (
                where,
                f"properties length {size - _WIRE_SIZE_MIN - body_length}",
                str(properties_length),
            )
        starts.append(position)
        position += size
    return starts, None


# ---- columns -----------------------------------------------------------------------------------------------


class _MessageRows(_UnitRows):
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
        logical: Sequence[LogicalRange],
    ) -> None:
        super().__init__(units, open_bodies=open_bodies, body_size_max=body_size_max, opened_max=opened_max)
        self.broker_name = broker_name
        self.group = group
        self.logical = logical
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
    return pa.array(identity.topics, _STRING).take(numbers(rows.of_units(identity.topic_index)))


def _queue_id(rows: _MessageRows) -> pa.Array:
    identity = rows.units.refs.identity
    return rows.header("queue_id") if identity is None else numbers(rows.of_units(identity.queue_ids))


def _logical(name: str) -> Callable[[_MessageRows], pa.Array]:
    """The column of a message of a static topic; null in other topics, and while no broker has decided it."""

    def build(rows: _MessageRows) -> pa.Array:
        found, known = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.bool_)
        offsets, ids = rows.queue_offsets(), _queue_id(rows).to_numpy()
        topics = _queue_topic(rows) if rows.logical else None
        for each in rows.logical:
            topic, queue_id = each.queue
            mine = (ids == queue_id) & (offsets >= each.start) & (offsets < each.stop)
            mine &= pc.equal(topics, topic).to_numpy(zero_copy_only=False)
            if name == "logicalQueueId":
                found[mine], known[mine] = each.queue_id, True
            elif each.offset is not None:
                found[mine], known[mine] = offsets[mine] - each.start + each.offset, True
        return pa.array(found, COLUMNS[name], mask=~known)

    return build


def _timestamp(field: str) -> Callable[[_MessageRows], pa.Array]:
    def build(rows: _MessageRows) -> pa.Array:
        stored = rows.of_units(rows.units.integers(field)).astype(np.int64, copy=False)
        if not len(stored) or (stored.min() >= TIME_MS_MIN and stored.max() < TIME_MS_STOP):
            return numbers(stored * 1000, TIMESTAMP_TYPE)
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
        codes = tags_codes(
            units.properties(),
            pc.equal(units.stored_topics(), SCHEDULE_TOPIC.encode()).to_numpy(zero_copy_only=False),
            units.integers("store_timestamp").astype(np.int64),
            unknown=CQ_EXT_ADDRESS_MAX,
        )
    unknown = codes <= CQ_EXT_ADDRESS_MAX  # an address in a lost extension of the queue
    return pa.array(rows.of_units(codes), mask=rows.of_units(unknown) if unknown.any() else None)


_PROPERTY_OF = {"tags": TAGS, "keys": KEYS, "msgId": UNIQ_KEY}
_BUILDERS: dict[str, Callable[[_MessageRows], pa.Array]] = {
    "topic": _topic,
    "flag": lambda rows: rows.header("flag"),
    "body": _MessageRows.bodies,
    "properties": lambda rows: rows.properties().map_array(),
    "brokerName": lambda rows: _repeat(rows.broker_name, len(rows)),
    "queueId": _queue_id,
    "queueOffset": lambda rows: numbers(rows.queue_offsets()),
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
    "sysFlag": lambda rows: numbers(rows.of_units(rows.units.sys_flag)),
    "bodyCRC": lambda rows: rows.header("body_crc"),
    "reconsumeTimes": lambda rows: rows.header("reconsume_times"),
    "preparedTransactionOffset": lambda rows: rows.header("prepared_transaction_offset"),
    "physicalOffset": lambda rows: numbers(rows.of_units(rows.units.physical_offsets)),
    "storeSize": lambda rows: numbers(rows.of_units(rows.units.refs.sizes).astype(np.int32)),
    "tagsCode": _tags_code,
    "storedTopic": lambda rows: rows.take(_java_text(rows.units.stored_topics())),
    "rawBody": _MessageRows.raw_bodies,
    "logicalQueueId": _logical("logicalQueueId"),
    "logicalQueueOffset": _logical("logicalQueueOffset"),
    "_corrupt_record": lambda rows: pa.nulls(len(rows), _STRING),
}

"""Message columns: encoded as message units, and made of stored messages.

A unit is byte for byte that of a broker (MessageExtEncoder.encode, spec 2.1). A kernel makes units of their
parts, or Python does one by one where that loads faster. A message that breaks a limit raises an
IllegalMessageError that names its topic. `assign` writes offsets and store times into encoded units, because
a commit knows them only later.

A broker delivers, retries and commits a message by storing a copy with another topic, queue and properties
(ScheduleMessageService, AbstractSendMessageProcessor, EndTransactionProcessor). The body stays as stored
(`StoredMessages`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from struct import Struct
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import flat_bytes, new_array, without_nulls
from store_format.errors import IllegalMessageError
from store_format.java.text import utf16_length
from store_format.layouts import CRC_PROPERTY_SIZE, MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, as_struct
from store_format.message.columns import BODY_SIZE_MAX
from store_format.message.compression import DecompressionError, decompress
from store_format.message.locate import Units
from store_format.message.properties import PropertyTable, crc_properties
from store_format.message.property_encoder import encode_property_columns, without_crc_property
from store_format.message.single import CRC_MASK, head_offset, head_variant
from store_format.message.sysflag import BORN_HOST_V6, COMPRESSED, STORE_HOST_V6

MESSAGE_SIZE_MAX = 4 << 20  # MessageStoreConfig.maxMessageSize
UNIT_OVERHEAD_MAX = 1 << 16  # MessageExtEncoder: bytes by which a unit may exceed maxMessageSize
PROPERTIES_SIZE_MAX = 2**15 - 1  # MessageExtEncoder: the length is an i16; an appended CRC property counts

_INT, _LONG = Struct(">i"), Struct(">q")
_LOCALHOST = bytes([127, 0, 0, 1])

# CommitLog.asyncPutMessage: a topic of more UTF-16 units makes a V2 unit. The V1 length is a signed byte.
TOPIC_V1_LENGTH_MAX = 127
_TOPIC_SIZE_MAX = 255  # HookUtils.checkBeforePutMessage

Integers: TypeAlias = NDArray[np.integer[Any]] | int
_Addresses: TypeAlias = NDArray[np.void] | bytes

_HOSTS = (("born_ip", BORN_HOST_V6), ("store_ip", STORE_HOST_V6))

_Ints = NDArray[np.int64]

_V16 = np.dtype("V16")


# ---- checksums ---------------------------------------------------------------------------------------------


def _range_crcs(data: NDArray[np.uint8], starts: _Ints, stops: _Ints) -> _Ints:
    """Returns the CRC of data[start:stop] for each pair."""
    if not kernels.ready(len(starts)):
        view, pairs = data.data, zip(starts.tolist(), stops.tolist(), strict=True)
        return np.array([crc32(view[start:stop]) for start, stop in pairs], np.int64) & CRC_MASK
    crcs = np.empty(len(starts), np.int64)
    kernels.crc32.crc32_into(data, np.ascontiguousarray(starts), stops - starts, crcs)
    return crcs & CRC_MASK


def body_crcs(body: pa.Array) -> NDArray[np.int64]:
    """Returns the CRC of each body of a (large) binary array without nulls; 0 for an empty body."""
    data, offsets = flat_bytes(body)
    return _range_crcs(data, offsets[:-1], offsets[1:])


# ---- message units -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MessageColumns:
    """Messages to write, as columns. Each column is an array with one value for each message, or a single
    number or address that applies to all messages.

    - `topic`: an array, or one str for all messages.
    - `body`: bytes, which are stored unchanged. `MessageStore.append` refuses a null body.
    - `properties`: encoded property strings, from `encode_property_columns`.
    - `born_timestamp`, `store_timestamp`: ms since 1970.
    - `born_ip`, `store_ip`: raw addresses of 4 or 16 bytes. In an array of 16-byte addresses (V16), the host
      bit of `sys_flag` marks the IPv6 addresses, and only the first 4 bytes of the others are used. In all
      other cases the encoder sets the host bit.
    - `queue_offset`, `physical_offset`, `store_timestamp`: `MessageStore.append` assigns them.

    Example::

        MessageColumns(
            topic="Orders",
            body=pa.array([b"one", b"two"]),
            properties=encode_property_columns(2, {"KEYS": pa.array(["order-1", "order-2"])}),
            queue_id=1,
        )
    """

    topic: pa.StringArray | pa.DictionaryArray | str
    body: pa.BinaryArray | pa.LargeBinaryArray
    properties: pa.BinaryArray | pa.LargeBinaryArray
    queue_id: Integers = 0
    flag: Integers = 0
    queue_offset: Integers = 0
    physical_offset: Integers | None = None  # None: `assign` sets it, and the CRC property
    sys_flag: Integers = 0
    born_timestamp: Integers = 0
    born_ip: _Addresses = _LOCALHOST
    born_port: Integers = 0
    store_timestamp: Integers = 0
    store_ip: _Addresses = _LOCALHOST
    store_port: Integers = 0
    reconsume_times: Integers = 0
    prepared_transaction_offset: Integers = 0


@dataclass(frozen=True, slots=True)
class EncodedUnits:
    """Units end to end: unit i is data[offsets[i]:offsets[i + 1]]. `crc_property`: each ends in its CRC."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]
    crc_property: bool = False

    @property
    def sizes(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[bytes]:
        for start, stop in pairwise(self.offsets.tolist()):
            yield self.data[start:stop].tobytes()


def encode(
    messages: MessageColumns, *, crc_property: bool = False, message_size_max: int = MESSAGE_SIZE_MAX
) -> EncodedUnits:
    """Returns the messages as units; a topic of more than 127 UTF-16 units makes a V2 unit.

    With `crc_property` each unit ends in its CRC property (spec 2.7). Raises IllegalMessageError for a topic,
    properties, a body or a unit above its limit, and for a number that does not fit its field.
    """
    properties = without_nulls(messages.properties)
    if crc_property:
        properties = without_crc_property(properties.cast(pa.large_binary()))
    topics = EncodedTopics(messages.topic)
    parts = _UnitParts(
        topics,
        *flat_bytes(without_nulls(messages.body)),
        *flat_bytes(properties),
        CRC_PROPERTY_SIZE * crc_property,
    )
    topics.check(parts.body_sizes, message_size_max, "a body", "maxMessageSize")
    topics.check(parts.properties_sizes, PROPERTIES_SIZE_MAX, "properties", "the broker's limit")
    parts.take_numbers(vars(messages))
    # After the checks above this one can fail only with a message_size_max near 2 GiB; the size is an i32.
    topics.check(
        parts.sizes,
        min(message_size_max + UNIT_OVERHEAD_MAX, 2**31 - 1),
        "a unit",
        "maxMessageSize + 65536",
    )
    units = EncodedUnits(*parts.units(), crc_property)
    if crc_property and messages.physical_offset is not None:
        _seal(units)
    return units


def assign(
    units: EncodedUnits,
    *,
    physical_offset: NDArray[np.int64],
    queue_offset: NDArray[np.int64],
    store_timestamp: NDArray[np.int64],
) -> None:
    """Writes offsets and store times into `units`, whose data is writable, then computes CRC properties."""
    columns = [np.ascontiguousarray(each) for each in (physical_offset, queue_offset, store_timestamp)]
    if kernels.ready(len(units)):
        done = kernels.patch.assign(units.data, units.offsets, *columns)
        assert done == len(units), f"unit {done} has no room for its head"
    else:
        _assign_one_by_one(units, *(column.tolist() for column in columns))
    if units.crc_property:
        _seal(units)


def _assign_one_by_one(
    units: EncodedUnits, physical: list[int], queue_offsets: list[int], store_timestamps: list[int]
) -> None:
    """`kernels.patch.assign` without the kernel."""
    flag, first, second = (head_offset(name) for name in ("sys_flag", "queue_offset", "physical_offset"))
    for start, *values in zip(
        units.offsets[:-1].tolist(), queue_offsets, physical, store_timestamps, strict=True
    ):
        (sys_flag,) = _INT.unpack_from(units.data.data, start + flag)
        third = head_offset("store_timestamp", variant=int(sys_flag & BORN_HOST_V6 != 0))
        for place, value in zip((first, second, third), values, strict=True):
            _LONG.pack_into(units.data.data, start + place, value)


def _seal(units: EncodedUnits) -> None:
    """Writes each unit's CRC property, the CRC of all bytes before it (CommitLog, enabledAppendPropCRC)."""
    starts = units.offsets[1:] - CRC_PROPERTY_SIZE
    _scatter(units.data, starts, crc_properties(_range_crcs(units.data, units.offsets[:-1], starts)))


def _scatter(data: NDArray[np.uint8], positions: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Writes each row of `values` at its position, through a void view: one index a row, not one a byte."""
    if not len(positions):
        return
    size = values.nbytes // len(positions)
    windows = np.ndarray((len(data) - size + 1,), f"V{size}", data, strides=(1,))
    windows[positions] = np.ascontiguousarray(values).view(f"V{size}").reshape(-1)


# ---- fields ------------------------------------------------------------------------------------------------


def _fitting(name: str, values: Integers, size: int) -> Integers:
    """Returns `values`. Raises IllegalMessageError if one does not fit a signed field of `size` bytes."""
    if isinstance(values, np.ndarray):
        if not len(values) or (values.dtype.kind == "i" and values.dtype.itemsize <= size):
            return values
        extremes = [int(values.min()), int(values.max())]
    else:
        extremes = [values]
    for value in extremes:
        if not -1 << 8 * size - 1 <= value < 1 << 8 * size - 1:
            raise IllegalMessageError(f"{name} {value} does not fit its field of {size} bytes")
    return values


# ---- topics ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TopicPiece:
    """A topic as the unit stores it: its length, then its name."""

    name: str
    stored: bytes
    magic: int


def _topic_piece(name: str) -> _TopicPiece:
    raw = name.encode()
    v1 = utf16_length(name) <= TOPIC_V1_LENGTH_MAX
    size_max = TOPIC_V1_LENGTH_MAX if v1 else _TOPIC_SIZE_MAX
    if len(raw) > size_max:
        raise IllegalMessageError(f"topic {name}: {len(raw)} bytes long, at most {size_max} are allowed")
    return _TopicPiece(name, len(raw).to_bytes(1 if v1 else 2, "big") + raw, MAGIC_V1 if v1 else MAGIC_V2)


class EncodedTopics:
    """The topics of a batch as stored, each once: `codes` has the place of each message's, or of all."""

    def __init__(self, topic: pa.Array | str) -> None:
        self.codes = np.zeros(1, np.int64)
        if isinstance(topic, str):
            names = [topic]
        else:
            if topic.null_count:
                raise IllegalMessageError("topic null: every message needs a topic")
            encoded = topic if pa.types.is_dictionary(topic.type) else topic.dictionary_encode()
            names = encoded.dictionary.to_pylist()
            if len(names) != 1:
                self.codes = encoded.indices.to_numpy().astype(np.int64)
        self.pieces = [_topic_piece(name) for name in names]

    def check(self, sizes: NDArray[np.int64], size_max: int, what: str, limit: str) -> None:
        """Raises IllegalMessageError when one of `sizes` exceeds `size_max`, whose name is `limit`."""
        if int(sizes.max(initial=0)) > size_max:
            index = int(sizes.argmax())
            topic = self.pieces[self.codes[index if len(self.codes) > 1 else 0]].name
            raise IllegalMessageError(
                f"topic {topic}: {what} of {int(sizes[index])} bytes, "
                f"at most {size_max} are allowed ({limit})"
            )


# ---- units -------------------------------------------------------------------------------------------------

# (name, size in bytes) of the numbers of a head, in the order of the head and of `kernels.encode.write_units`
_NUMBERS = (
    ("queue_id", 4), ("flag", 4), ("queue_offset", 8), ("physical_offset", 8), ("sys_flag", 4),
    ("born_timestamp", 8), ("born_port", 4), ("store_timestamp", 8), ("store_port", 4),
    ("reconsume_times", 4), ("prepared_transaction_offset", 8),
)  # fmt: skip
_HEADS = tuple(map(as_struct, MESSAGE_HEADS))
_HEAD_SIZES = np.array([head.size for head in _HEADS], np.int64)
_PADDING = 8  # bytes behind its output that a kernel may overwrite


class _UnitParts:
    """The parts of units: bytes with offsets, and arrays with an element for each message or for all.

    `crc_size` bytes behind the properties count as properties.
    """

    def __init__(
        self,
        topics: EncodedTopics,
        body: NDArray[np.uint8],
        body_ends: NDArray[np.int64],
        properties: NDArray[np.uint8],
        property_ends: NDArray[np.int64],
        crc_size: int,
    ) -> None:
        self._topics, self._crc_size = topics, crc_size
        self._body, self._body_ends = body, body_ends
        self._properties, self._property_ends = properties, property_ends
        self.body_sizes = np.diff(body_ends)
        self.properties_sizes = np.diff(property_ends) + crc_size

    def __len__(self) -> int:
        return len(self.body_sizes)

    def take_numbers(self, columns: Mapping[str, Any]) -> None:
        """Takes the numbers and addresses of heads. Raises IllegalMessageError for one that does not fit."""
        values = dict(columns)
        if values["physical_offset"] is None:
            values["physical_offset"] = 0
        for name, size in sorted(_NUMBERS, key=itemgetter(1)):
            _fitting(name, values[name], size)
        ips = {name: values[name] for name, _ in _HOSTS}
        values["sys_flag"] = _with_host_flags(values["sys_flag"], ips)
        self._numbers = {
            name: self._checked(name, np.asarray(values[name], np.int64)) for name, _ in _NUMBERS
        }
        self._ips = [
            self._checked(name, np.array([ip], f"V{len(ip)}") if isinstance(ip, bytes) else ip)
            for name, ip in ips.items()
        ]
        codes, stored = self._checked("topic", self._topics.codes), self._topics.pieces
        sizes = (
            _HEAD_SIZES[head_variant(self._numbers["sys_flag"])] + self.body_sizes + self.properties_sizes + 2
        )
        sizes += np.array([len(piece.stored) for piece in stored], np.int64)[codes]
        self.sizes = sizes

    def _checked(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the values. Kernels rely on their number."""
        values = np.ascontiguousarray(np.atleast_1d(values))
        if len(values) not in (1, len(self)):
            raise ValueError(f"{name}: expected {len(self)} values, or one, found {len(values)}")
        return values

    def units(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Returns (the units end to end, the place of each and the end of the last)."""
        places = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.sizes, out=places[1:])
        if not kernels.ready(len(self)):
            return np.frombuffer(bytearray(b"".join(self._one_by_one())), np.uint8), places
        pieces = self._topics.pieces
        data = new_array(int(places[-1]) + _PADDING, np.uint8)
        kernels.encode.write_units(
            data,
            places,
            tuple(self._numbers.values()),
            self._body,
            self._body_ends,
            self._properties,
            self._property_ends,
            np.frombuffer(b"".join(piece.stored for piece in pieces), np.uint8),
            np.cumsum([0, *(len(piece.stored) for piece in pieces)]),
            np.array([piece.magic for piece in pieces], np.int64),
            self._topics.codes,
            *(part for ip in self._ips for part in (ip.view(np.uint8), ip.itemsize)),
            self._crc_size,
        )
        return data[:-_PADDING], places

    def _one_by_one(self) -> Iterator[bytes]:
        """Returns each unit, as the kernel writes it."""
        rows = zip(*(_each(values, len(self)) for values in self._numbers.values()), strict=True)
        hosts = zip(*(_each(values, len(self)) for values in self._ips), strict=True)
        pieces = (self._topics.pieces[code] for code in _each(self._topics.codes, len(self)))
        bodies = pairwise(self._body_ends.tolist())
        properties = pairwise(self._property_ends.tolist())
        for size, row, ips, piece, body_range, range_ in zip(
            self.sizes.tolist(), rows, hosts, pieces, bodies, properties, strict=True
        ):
            body = self._body[slice(*body_range)].tobytes()
            raw = self._properties[slice(*range_)].tobytes() + bytes(self._crc_size)
            queue_id, flag, queue_offset, physical_offset, sys_flag, born, port, *rest = row
            yield _HEADS[int(head_variant(sys_flag))].pack(
                size, piece.magic, crc32(body) & CRC_MASK, queue_id, flag, queue_offset, physical_offset,
                sys_flag, born, ips[0], port, rest[0], ips[1], *rest[1:], len(body),
            )  # fmt: skip
            yield body + piece.stored + len(raw).to_bytes(2, "big") + raw


def _each(values: NDArray[Any], count: int) -> list[Any]:
    each: list[Any] = values.tolist()
    return each if len(values) == count else each * count


def _with_host_flags(sys_flag: Integers, addresses: dict[str, _Addresses]) -> NDArray[np.int64]:
    flags = np.array(sys_flag, np.int64)
    for name, bit in _HOSTS:
        ip = addresses[name]
        size = len(ip) if isinstance(ip, bytes) else ip.dtype.itemsize
        if size not in (4, 16):
            raise IllegalMessageError(f"{name}: expected an address of 4 or 16 bytes, found {size}")
        if size == 4:
            flags &= ~bit
        elif isinstance(ip, bytes):
            flags |= bit
    return flags


# ---- stored messages as columns ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredMessages:
    """Messages as the commitlog has them. All columns of `messages` are arrays, one element a message.

    `messages` keeps both hosts, the flags, the times and the offsets; `physical_offset`, `queue_offset` and
    `store_timestamp` of a copy are assigned by its commit.
    """

    messages: MessageColumns

    def __len__(self) -> int:
        return len(self.messages.body)

    @property
    def physical_offsets(self) -> _Ints:
        offsets: _Ints = np.asarray(self.messages.physical_offset, np.int64)
        return offsets

    @property
    def queue_offsets(self) -> _Ints:
        return np.asarray(self.messages.queue_offset, np.int64)

    @property
    def store_timestamps(self) -> _Ints:
        return np.asarray(self.messages.store_timestamp, np.int64)

    @property
    def sizes(self) -> _Ints:
        """The size of body and properties in bytes, for limits on a batch."""
        sizes: _Ints = pc.add(
            pc.binary_length(self.messages.body), pc.binary_length(self.messages.properties)
        ).to_numpy()
        return sizes

    def properties(self, *names: str) -> list[pa.StringArray]:
        """The values of these properties, null where a message does not have one."""
        table = PropertyTable(self.messages.properties.cast(pa.binary()))
        return [table.values(name) for name in names]

    def take(self, index: Any) -> StoredMessages:
        """The messages at `index`: a boolean mask, or indices in any order."""
        places = np.flatnonzero(index) if np.asarray(index).dtype == bool else np.asarray(index, np.int64)
        arrow = pa.array(places)
        taken = {
            name: value.take(arrow) if isinstance(value, pa.Array) else value[places]
            for name, value in _columns_of(self.messages).items()
            if value is not None
        }
        return StoredMessages(MessageColumns(**taken))

    def unopened(self) -> dict[int, DecompressionError]:
        """The messages whose bodies are not compressed as their sysFlag says: the error by place."""
        found, flags = {}, np.asarray(self.messages.sys_flag, np.int64)
        for place in np.flatnonzero(flags & COMPRESSED).tolist():
            try:
                decompress(self.messages.body[place].as_buffer(), int(flags[place]), size_max=BODY_SIZE_MAX)
            except DecompressionError as error:
                found[place] = error
        return found

    def copies(self, **changed: Any) -> MessageColumns:
        """The columns for new messages, arrays too, with some of them replaced."""
        zeros = np.zeros(len(self), np.int64)
        return replace(
            self.messages, physical_offset=None, queue_offset=zeros, store_timestamp=zeros, **changed
        )


def stored_messages(parts: Sequence[Units]) -> StoredMessages:
    """The messages of these units, in their order."""
    kind = pa.large_binary()
    numbers = (
        "queue_id", "flag", "queue_offset", "physical_offset", "sys_flag", "born_timestamp",
        "store_timestamp", "reconsume_times", "prepared_transaction_offset",
    )  # fmt: skip
    columns: dict[str, Any] = {
        name: np.concatenate([np.empty(0, np.int64), *(units.integers(name) for units in parts)]).astype(
            np.int64
        )
        for name in numbers
    }
    for which in ("born", "store"):
        hosts = [_hosts(units, which) for units in parts]
        columns[f"{which}_ip"] = np.concatenate([np.empty(0, _V16), *(ip for ip, _ in hosts)])
        columns[f"{which}_port"] = np.concatenate([np.empty(0, np.int64), *(port for _, port in hosts)])
    columns["topic"] = _joined_arrays([units.stored_topics() for units in parts], pa.binary()).cast(
        pa.string()
    )
    columns["body"] = _joined_arrays([units.stored_bodies() for units in parts], kind)
    columns["properties"] = _joined_arrays([units.raw_properties() for units in parts], kind)
    return StoredMessages(MessageColumns(**columns))


def join_columns(parts: Sequence[MessageColumns]) -> MessageColumns:
    """The messages of several columns in one, in their order. Each part has arrays, as `StoredMessages`."""
    columns: dict[str, Any] = {}
    for name, first in _columns_of(parts[0]).items():
        values = [getattr(part, name) for part in parts]
        if first is None:
            columns[name] = None
        else:
            columns[name] = (
                pa.concat_arrays(values) if isinstance(first, pa.Array) else np.concatenate(values)
            )
    return MessageColumns(**columns)


def _joined_arrays(arrays: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    return pa.concat_arrays([pa.array([], kind), *(array.cast(kind) for array in arrays)])


def _hosts(units: Units, which: str) -> tuple[NDArray[np.void], _Ints]:
    """The addresses as 16 bytes, an IPv4 address in the first 4; and the ports."""
    ip, port = np.zeros(len(units), _V16), np.zeros(len(units), np.int64)
    wide = ip.view(np.uint8).reshape(len(units), 16)
    for rows, raw, ports in units.hosts(which):
        where = slice(None) if rows is None else rows
        size = raw.dtype.itemsize
        wide[where, :size] = np.ascontiguousarray(raw).view(np.uint8).reshape(-1, size)
        port[where] = ports
    return ip, port


def _columns_of(messages: MessageColumns) -> dict[str, Any]:
    return {name: getattr(messages, name) for name in messages.__dataclass_fields__}


def edited_properties(
    raw: pa.LargeBinaryArray, put: Mapping[str, Any], *, removed: Collection[str] = ()
) -> pa.LargeBinaryArray:
    """Properties strings after a broker has read, changed and written them again.

    `put` has one value for all messages (str) or one for each (array; null leaves the property as it is).
    The names come out in the order of Java's HashMap (MessageDecoder.messageProperties2String).
    """
    maps = PropertyTable(raw.cast(pa.binary())).map_array()
    if removed:
        maps = _without(maps, removed)
    return encode_property_columns(len(raw), put, maps)


def _without(maps: pa.MapArray, names: Collection[str]) -> pa.MapArray:
    offsets = maps.offsets.to_numpy()
    keys, items = maps.keys[offsets[0] : offsets[-1]], maps.items[offsets[0] : offsets[-1]]
    kept = pc.invert(pc.is_in(keys, pa.array(sorted(names), keys.type)))
    counts = np.concatenate([[0], np.cumsum(kept.to_numpy(zero_copy_only=False))])
    return pa.MapArray.from_arrays(
        pa.array(counts[offsets - offsets[0]].astype(np.int32)), keys.filter(kept), items.filter(kept)
    )

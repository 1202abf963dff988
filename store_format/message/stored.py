"""Stored messages as columns that can be written again: what the broker's own services do with a message.

A broker delivers, retries and commits a message by storing a copy with another topic, queue and properties
(ScheduleMessageService, AbstractSendMessageProcessor, EndTransactionProcessor). The body stays as stored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.message.encode import MessageColumns
from store_format.message.locate import Units
from store_format.message.properties import PropertyTable
from store_format.message.property_encoder import encode_property_columns

_Ints = NDArray[np.int64]
_V16 = np.dtype("V16")


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

"""One row for each message of checked units: splits inner batches, decompresses bodies on demand.

Units that cannot be decompressed, or contradict their consume queue entry, are left out and reported. The
body of an inner batch is a sequence of wire messages (MessageDecoder.decodeMessages, spec 2.11): one walk
through each body records where messages start; numpy and Arrow then take all messages apart at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_ranges, gather_units
from store_format.errors import CorruptStoreError
from store_format.layouts import WIRE_MESSAGE_HEAD, as_struct
from store_format.message import sysflag
from store_format.message.compression import DecompressionError, decompress
from store_format.message.locate import BadUnit, Units, inner_batches
from store_format.message.properties import PropertyTable
from store_format.names import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET

_Ints = NDArray[np.int64]

_WIRE_HEAD_SIZE = WIRE_MESSAGE_HEAD.itemsize
_WIRE_HEAD = as_struct(WIRE_MESSAGE_HEAD)
_WIRE_SIZE_MIN = _WIRE_HEAD_SIZE + 2  # no body, no properties
_INNER_MESSAGES_MAX = 2**15 - 1  # INNER_NUM and the batch size in the queue are shorts


class TooMuchOpenedError(Exception):
    """The decompressed bodies of several units exceed the memory limit: the caller decodes fewer units."""


class UnitRows:
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
        self._reject_foreign_light(units)
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
        self.unit_of: _Ints | None = None
        self._offset_in_batch: _Ints | None = None
        self._own: dict[str, NDArray[Any]] = {}
        self._opened = {i: body for i, body in opened.items() if not inner[i]}
        self._spread_parts: tuple[pa.BinaryArray, pa.BinaryArray] | None = None
        if messages is not None:
            self._spread(inner, messages)

    # ---- units left out ------------------------------------------------------------------------------------

    def _reject(self, units: Units, i: int, position: int, expected: str, found: str) -> None:
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
                found = f"{names[i]} at {offsets[i]}"
                self._reject(
                    units,
                    i,
                    int(units.parts.properties_start[i]),
                    f"light queue {queue} at offset {offset}",
                    found,
                )

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
            raise TooMuchOpenedError

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
                    _expected_count(int(counts[i])),
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
        return pa.array(self.of_units(self.units.integers(name)) if own is None else own)

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


def _expected_count(count: int) -> str:
    return f"{count} messages, as in the consume queue entry"


def _replace(bodies: pa.BinaryArray, replacements: dict[int, bytes]) -> pa.BinaryArray:
    """Returns `bodies` with some values replaced; the others are not copied through Python."""
    if not replacements:
        return bodies
    index = sorted(replacements)
    take = np.arange(len(bodies))
    take[index] = len(bodies) + np.arange(len(index))
    opened = pa.array([replacements[i] for i in index], pa.binary())
    if len(index) == len(bodies):
        return opened
    return pa.concat_arrays([bodies, opened]).take(pa.array(take))


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

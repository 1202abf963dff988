"""Inner batches: units whose body is a sequence of wire messages (MessageDecoder.decodeMessages, spec 2.11).

One walk through each body records where messages start; numpy and Arrow then take all messages apart at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_ranges, gather_units
from store_format.layouts import WIRE_MESSAGE_HEAD, as_struct

_HEAD = WIRE_MESSAGE_HEAD.itemsize
_STRUCT = as_struct(WIRE_MESSAGE_HEAD)
_SIZE_MIN = _HEAD + 2  # no body, no properties
_COUNT_MAX = 2**15 - 1  # INNER_NUM and the batch size in the queue are shorts


@dataclass(frozen=True, slots=True)
class WireMessages:
    """The messages of many batch bodies in order: body i has `counts[i]` of them."""

    counts: NDArray[np.int64]
    flags: NDArray[np.int32]
    body_crcs: NDArray[np.int32]  # 0: RocketMQ does not compute the CRC of a message in a batch
    bodies: pa.BinaryArray
    raw_properties: pa.BinaryArray


def split_batches(
    bodies: list[bytes], expected_counts: list[int] | None = None
) -> tuple[WireMessages, dict[int, tuple[int, str, str]]]:
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
    properties = heads + _HEAD + body_length
    properties_length = records["total_size"].astype(np.int64) - _SIZE_MIN - body_length
    messages = WireMessages(
        counts,
        records["flag"].astype(np.int32),
        records["body_crc"].astype(np.int32),
        gather_ranges(buffer, heads + _HEAD, body_length),
        gather_ranges(buffer, properties + 2, properties_length),
    )
    return messages, wrong


def _starts(body: bytes) -> tuple[list[int], tuple[int, str, str] | None]:
    starts: list[int] = []
    position, end = 0, len(body)
    while position < end:
        if len(starts) == _COUNT_MAX:
            return starts, (position, f"at most {_COUNT_MAX} messages in a batch", "more")
        if end - position < _SIZE_MIN:
            return starts, (
                position,
                f"a wire message of at least {_SIZE_MIN} bytes",
                f"{end - position} bytes left of the batch",
            )
        size, _, _, _, body_length = _STRUCT.unpack_from(body, position)
        if size < _SIZE_MIN or size > end - position:
            return starts, (position, f"a wire message size up to {end - position}", str(size))
        if body_length < 0 or body_length > size - _SIZE_MIN:
            return starts, (position + 16, f"a body length up to {size - _SIZE_MIN}", str(body_length))
        where = position + _HEAD + body_length
        properties_length = int.from_bytes(body[where : where + 2], "big", signed=True)
        if properties_length != size - _SIZE_MIN - body_length:
            return starts, (
                where,
                f"properties length {size - _SIZE_MIN - body_length}",
                str(properties_length),
            )
        starts.append(position)
        position += size
    return starts, None

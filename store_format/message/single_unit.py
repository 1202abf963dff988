"""One message unit decoded by itself: a few microseconds, where columns need some hundred for their setup.

`locate.py` and `columns.py` decode many units at once, with the same checks. Consumers that receive a few
messages at a time decode here.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from store_format.errors import CorruptStoreError
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_HEADS, as_struct
from store_format.message.explain import explain
from store_format.message.parts import HEAD_SIZE, LENGTH_MAX, TOPIC_LENGTH_MAX_V1, head_variant
from store_format.message.unit_refs import Identity, UnitRefs

_STRUCTS = tuple(as_struct(layout) for layout in MESSAGE_HEADS)
_CRC_MASK = 0x7FFFFFFF


class UnitPlace(NamedTuple):
    """Where a unit is, and in which queue: what its consume queue entry says of it.

    `path` and `file_start` are the commitlog file and the physical offset of its first byte.
    """

    path: str
    file_start: int
    physical_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int


class SingleUnit(NamedTuple):
    """The fields of one message. `body` is as stored, `properties` the stored properties string.

    Hosts are (raw address, port); times are in ms.
    """

    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[bytes, int]
    store_timestamp: int
    store_host: tuple[bytes, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes


def decode_unit(unit: bytes, place: UnitPlace, topic: bytes) -> SingleUnit:
    """Decodes the bytes that were read at `place`; `topic` is `place.topic` encoded.

    Checks what `locate` checks, the CRC of the body included. Raises CorruptStoreError, or a class of it, for
    the first check that fails.
    """
    decoded = _decode(unit, place, topic)
    if decoded is None:
        raise unit_error(unit, place)
    return decoded


def _decode(unit: bytes, place: UnitPlace, topic: bytes) -> SingleUnit | None:
    size = len(unit)
    if size != place.size or size < HEAD_SIZE:
        return None
    head: tuple[Any, ...] = _STRUCTS[0].unpack_from(unit)
    variant = head_variant(head[7])
    if variant:
        if size < _STRUCTS[variant].size:
            return None
        head = _STRUCTS[variant].unpack_from(unit)
    (
        total_size, magic, body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_timestamp,
        born_ip, born_port, store_timestamp, store_ip, store_port, reconsume_times, prepared, body_length,
    ) = head  # fmt: skip
    body_length = max(body_length, 0)  # as in MessageDecoder
    body_start = _STRUCTS[variant].size
    topic_start = body_start + body_length + (1 if magic == MAGIC_V1 else 2)
    stop = topic_start + len(topic)
    if (
        total_size != size
        or (magic != MAGIC_V1 and magic != MAGIC_V2)
        or physical_offset != place.physical_offset
        or queue_id != place.queue_id
        or queue_offset != place.queue_offset
        or stop + 2 > size
    ):
        return None
    topic_length = int.from_bytes(unit[body_start + body_length : topic_start], "big")
    properties_length = int.from_bytes(unit[stop : stop + 2], "big")
    if (
        topic_length != len(topic)
        or topic_length > (TOPIC_LENGTH_MAX_V1 if magic == MAGIC_V1 else LENGTH_MAX)
        or unit[topic_start:stop] != topic
        or properties_length > LENGTH_MAX
        or stop + 2 + properties_length != size
    ):
        return None
    body = unit[body_start : body_start + body_length]
    if body_length and crc32(body) & _CRC_MASK != body_crc:
        return None
    return SingleUnit(
        flag,
        sys_flag,
        born_timestamp,
        (born_ip, born_port),
        store_timestamp,
        (store_ip, store_port),
        reconsume_times,
        prepared,
        body,
        unit[stop + 2 :],
    )


def unit_error(unit: bytes, place: UnitPlace) -> CorruptStoreError:
    """The first check of `decode_unit` that fails, as an error with file, byte, expected and found."""
    position = place.physical_offset - place.file_start
    identity = Identity(
        (place.topic,), None, np.array([place.queue_id], np.int32), np.array([place.queue_offset], np.int64)
    )
    refs = UnitRefs(
        place.path,
        np.frombuffer(unit, np.uint8),
        place.physical_offset,
        np.zeros(1, np.int64),
        np.array([place.size], np.int64),
        None,
        identity,
    )
    error = explain(refs, 0)
    return type(error)(error.file, error.position + position, error.expected, error.found)

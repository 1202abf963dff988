"""Heads and topics of message units, encoded a column at a time; `encode.py` joins them with the other parts.

A message that breaks a limit raises an IllegalMessageError that names its topic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.arrays.ranges import fixed_width
from store_format.errors import IllegalMessageError
from store_format.java.text import utf16_length
from store_format.layouts import MAGIC_V1, MAGIC_V2, MESSAGE_HEADS
from store_format.message.parts import head_variant
from store_format.message.sysflag import BORN_HOST_V6, STORE_HOST_V6

# CommitLog.asyncPutMessage: a topic of more UTF-16 units makes a V2 unit. The V1 length is a signed byte.
TOPIC_V1_LENGTH_MAX = 127
TOPIC_SIZE_MAX = 255  # HookUtils.checkBeforePutMessage

Integers: TypeAlias = NDArray[np.integer[Any]] | int
Addresses: TypeAlias = NDArray[np.void] | bytes

_HOSTS = (("born_ip", BORN_HOST_V6), ("store_ip", STORE_HOST_V6))


def lengths(values: pa.LargeBinaryArray) -> NDArray[np.int64]:
    sizes: NDArray[np.int64] = pc.binary_length(values).to_numpy()
    return sizes


def fitting(name: str, values: Integers, size: int) -> Integers:
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
    size_max = TOPIC_V1_LENGTH_MAX if v1 else TOPIC_SIZE_MAX
    if len(raw) > size_max:
        raise IllegalMessageError(f"topic {name}: {len(raw)} bytes long, at most {size_max} are allowed")
    return _TopicPiece(name, len(raw).to_bytes(1 if v1 else 2, "big") + raw, MAGIC_V1 if v1 else MAGIC_V2)


class Topics:
    """The topics of a batch as stored, their sizes and magic codes: one for all messages or one for each.

    Each distinct topic is encoded once.
    """

    pieces: pa.LargeBinaryArray | pa.LargeBinaryScalar
    sizes: Any  # an integer, or an array with an element for each message
    magic: Any

    def __init__(self, topic: pa.Array | str) -> None:
        self._codes: NDArray[np.int64] | None = None
        if isinstance(topic, str):
            piece = _topic_piece(topic)
            self._distinct = [piece]
            self.pieces, self.sizes, self.magic = (
                pa.scalar(piece.stored, pa.large_binary()),
                len(piece.stored),
                piece.magic,
            )
            return
        if topic.null_count:
            raise IllegalMessageError("topic null: every message needs a topic")
        encoded = topic if pa.types.is_dictionary(topic.type) else topic.dictionary_encode()
        self._distinct = [_topic_piece(name) for name in encoded.dictionary.to_pylist()]
        self._codes = encoded.indices.to_numpy().astype(np.int64)
        self.pieces = pa.array([piece.stored for piece in self._distinct], pa.large_binary()).take(
            encoded.indices
        )
        self.sizes = np.array([len(piece.stored) for piece in self._distinct], np.int64)[self._codes]
        self.magic = np.array([piece.magic for piece in self._distinct], np.int64)[self._codes]

    def check(self, sizes: NDArray[np.int64], size_max: int, what: str, limit: str) -> None:
        """Raises IllegalMessageError when one of `sizes` exceeds `size_max`, whose name is `limit`."""
        if int(sizes.max(initial=0)) > size_max:
            index = int(sizes.argmax())
            topic = self._distinct[0 if self._codes is None else int(self._codes[index])].name
            raise IllegalMessageError(
                f"topic {topic}: {what} of {int(sizes[index])} bytes, "
                f"at most {size_max} are allowed ({limit})"
            )


# ---- heads -------------------------------------------------------------------------------------------------


def heads(
    numbers: dict[str, Integers], addresses: dict[str, Addresses], rest_sizes: NDArray[np.int64]
) -> pa.LargeBinaryArray:
    """Returns the heads of units whose other parts have `rest_sizes` bytes.

    `numbers` has every field but the total size; `addresses` has born_ip and store_ip. Heads are filled one
    variant after another (MESSAGE_HEADS).
    """
    sys_flag = _with_host_flags(numbers["sys_flag"], addresses, len(rest_sizes))
    numbers = numbers | {"sys_flag": sys_flag}
    variants = head_variant(sys_flag)
    parts, places = [], []
    for variant in np.unique(variants).tolist():
        rows = np.flatnonzero(variants == variant)
        chosen = slice(None) if len(rows) == len(variants) else rows
        part = np.empty(len(rows), MESSAGE_HEADS[variant])
        part["total_size"] = rest_sizes[chosen] + part.itemsize
        for name, values in numbers.items():
            part[name] = values[chosen] if isinstance(values, np.ndarray) else values
        for name, ip in addresses.items():
            part[name] = (
                np.void(ip) if isinstance(ip, bytes) else _narrowed(ip[chosen], part.dtype[name].itemsize)
            )
        parts.append(fixed_width(part))
        places.append(rows)
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return pa.array([], pa.large_binary())
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places))))


def _with_host_flags(sys_flag: Integers, addresses: dict[str, Addresses], count: int) -> NDArray[np.int64]:
    flags = np.empty(count, np.int64)
    flags[:] = sys_flag
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


def _narrowed(ip: NDArray[np.void], size: int) -> NDArray[np.void]:
    """Returns the first `size` bytes of each address."""
    if ip.dtype.itemsize == size:
        return ip
    first = np.ascontiguousarray(ip).view(np.uint8).reshape(len(ip), -1)[:, :size]
    narrowed: NDArray[np.void] = np.ascontiguousarray(first).view(f"V{size}").reshape(-1)
    return narrowed

"""The layout of a message unit: sizes and fields of heads, and the parts of many units as arrays.

`one.py` finds and checks the parts of one unit, `kernels/units.py` those of many; they accept the same units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store_format.arrays.ranges import gather_units
from store_format.layouts import MESSAGE_HEADS

HEAD_SIZE = MESSAGE_HEADS[0].itemsize  # 88: with two IPv4 hosts
HEAD_SIZE_MAX = MESSAGE_HEADS[3].itemsize  # 112: with two IPv6 hosts
TOPIC_LENGTH_MAX_V1 = 0x7F  # MessageDecoder reads one signed byte
LENGTH_MAX = 0x7FFF  # V2 topic lengths and properties lengths are signed shorts
CRC_MASK = 0x7FFFFFFF  # RocketMQ stores a CRC without its top bit (UtilAll.crc32)

_Ints = NDArray[np.int64]


def head_offset(name: str, variant: int = 0) -> int:
    """Returns the offset of a head field in bytes; up to born_ip it is the same in all variants."""
    fields: Any = MESSAGE_HEADS[variant].fields
    return int(fields[name][1])


_SYS_FLAG_AT = head_offset("sys_flag")


def head_variant(sys_flag: Any) -> Any:
    """Returns the index into MESSAGE_HEADS: bit 0 for an IPv6 born host, bit 1 for an IPv6 store host."""
    return (sys_flag >> 4) & 3


def head_layout(unit: bytes) -> np.dtype[np.void]:
    """Returns the head layout that the system flag of `unit` selects; the IPv4 layout for a shorter unit."""
    flag = unit[_SYS_FLAG_AT : _SYS_FLAG_AT + 4]
    return MESSAGE_HEADS[head_variant(int.from_bytes(flag, "big")) if len(flag) == 4 else 0]


@dataclass(slots=True)
class PartArrays:
    """The parts of many units: positions in the buffer and lengths, both in bytes.

    `fits` tells which units passed the checks; all other numbers of the others are 0.
    """

    fits: NDArray[np.bool_]
    sys_flag: NDArray[np.int32]
    body_start: _Ints
    body_length: _Ints
    topic_start: _Ints
    topic_length: _Ints
    properties_start: _Ints
    properties_length: _Ints

    @classmethod
    def of(cls, count: int) -> PartArrays:
        """Returns the parts of `count` units of which none fits."""
        return cls(np.zeros(count, bool), np.zeros(count, np.int32), *np.zeros((6, count), np.int64))

    def select(self, index: _Ints) -> PartArrays:
        """Returns the parts of the units at ascending `index`."""
        return PartArrays(*(getattr(self, name)[index] for name in self.__slots__))


def stored_sizes(buffer: NDArray[np.uint8], positions: _Ints) -> _Ints:
    """Returns the total size stored at each position; 0, which `locate` refuses, outside the buffer."""
    return _stored(buffer, positions, "total_size")


def stored_offsets(buffer: NDArray[np.uint8], positions: _Ints) -> _Ints:
    """Returns the physical offset stored in the unit at each position; 0 outside the buffer."""
    return _stored(buffer, positions, "physical_offset")


def _stored(buffer: NDArray[np.uint8], positions: _Ints, field: str) -> _Ints:
    found, kind = np.zeros(len(positions), np.int64), MESSAGE_HEADS[0][field]
    at = positions + head_offset(field)
    inside = (positions >= 0) & (at <= len(buffer) - kind.itemsize)
    found[inside] = gather_units(buffer, at[inside], kind)
    return found

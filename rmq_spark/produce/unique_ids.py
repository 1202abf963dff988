"""UNIQ_KEY as the Java client makes it (MessageClientIDSetter, spec 2.13), many at a time.

It is upper-case hex of the address, the process id, four bytes that distinguish processes of one machine, the
ms since the month began in the local zone, and a counter.
"""

from __future__ import annotations

import os
import socket
from datetime import datetime, tzinfo
from functools import cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.arrays.ranges import fixed_width

_COUNTER_BITS = 16
_LOCALHOST = bytes([127, 0, 0, 1])


class UniqueIds:
    """The ids of one task attempt, all different, however many are made in one millisecond.

    A millisecond has 65,536 counter values. After these, or if the clock goes back, ids continue from the
    last id, with a later millisecond than the clock's.
    """

    def __init__(self, ip: bytes, pid: int, *, instance: bytes, zone: tzinfo | None = None) -> None:
        """`ip` has 4 or 16 bytes. `instance` are 4 random bytes, in place of the hash of Java's class loader.

        `zone` is the time zone in which a month begins; None is the machine's.
        """
        self._prefix = ip + (pid & 0xFFFF).to_bytes(2, "big") + instance
        self._zone = zone
        self._next = 0  # milliseconds and counter in one number

    @staticmethod
    def of_this_process() -> UniqueIds:
        return UniqueIds(own_address(), os.getpid(), instance=os.urandom(4))

    def take(self, count: int, now_ms: int) -> pa.LargeBinaryArray:
        """`count` ids made at `now_ms`."""
        first = max(now_ms << _COUNTER_BITS, self._next)
        self._next = first + count
        month_start_ms = self._month_start_ms(first >> _COUNTER_BITS)
        serials = np.arange(
            first - (month_start_ms << _COUNTER_BITS), self._next - (month_start_ms << _COUNTER_BITS)
        )
        return format_ids(self._prefix, serials >> _COUNTER_BITS, serials)

    def _month_start_ms(self, now_ms: int) -> int:
        now = datetime.fromtimestamp(now_ms // 1000, self._zone)
        return round(now.replace(day=1, hour=0, minute=0, second=0).timestamp() * 1000)


def format_ids(prefix: bytes, ms: NDArray[np.int64], counter: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Hex of `prefix`, the low 32 bits of each `ms` and the low 16 of each `counter`."""
    hexadecimal = _hex_words()
    fixed = prefix.hex().upper().encode()
    # Words of 16 bits into fields take a fifth of the time of a byte matrix.
    text = np.empty(len(ms), [("prefix", f"V{len(fixed)}"), ("high", "u4"), ("low", "u4"), ("counter", "u4")])
    text["prefix"] = np.void(fixed)
    text["high"], text["low"], text["counter"] = (
        hexadecimal[ms >> 16 & 0xFFFF],
        hexadecimal[ms & 0xFFFF],
        hexadecimal[counter & 0xFFFF],
    )
    return fixed_width(text)


@cache
def _hex_words() -> NDArray[np.uint32]:
    """The four hex digits of each number of 16 bits."""
    return np.frombuffer("".join(f"{word:04X}" for word in range(1 << 16)).encode(), "u4")


def own_address() -> bytes:
    """This machine's address in its network, 127.0.0.1 without a network.

    Connecting a datagram socket sends nothing: the routing table gives the source address. The target is an
    address reserved for documentation (RFC 5737).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return _LOCALHOST
        return socket.inet_aton(probe.getsockname()[0])

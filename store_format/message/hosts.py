"""Born and store hosts as text and in message ids.

A host on disk has 4 or 16 bytes of address and a 32-bit port (spec 2.2). The text is that of
InetSocketAddress.
"""

from __future__ import annotations

import re
import socket
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_V4_IN_V6 = bytes(10) + b"\xff\xff"
_HOST = re.compile(r"/?(?:\[([0-9A-Fa-f:.]+)\]|([0-9.]+)):([0-9]{1,5})\Z", re.ASCII)
# The two characters of each byte value.
_HEX_PAIRS = np.frombuffer("".join(f"{byte:02X}" for byte in range(256)).encode(), "u2")
_INT32_MAX = 2**31 - 1


def format_host(ip: bytes, port: int) -> str:
    """Returns `ip:port` as Java prints it: IPv6 in brackets, in lower case, with all zero groups.

    An IPv4-mapped IPv6 address becomes IPv4 (InetAddress.getByAddress).

    >>> format_host(bytes.fromhex("20010db8000000000000000000000002"), 10911)
    '[2001:db8:0:0:0:0:0:2]:10911'
    """
    if ip.startswith(_V4_IN_V6) and len(ip) == 16:
        ip = ip[12:]
    if len(ip) == 4:
        return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{port}"
    groups = (f"{ip[i] << 8 | ip[i + 1]:x}" for i in range(0, 16, 2))
    return f"[{':'.join(groups)}]:{port}"


def format_hosts(ip: NDArray[np.void], port: NDArray[np.integer[Any]]) -> pa.StringArray:
    """Returns `format_host` of each host. Each distinct host is formatted once: few hosts send many messages.

    `ip` is an array of V4 or V16, `port` of 32-bit integers in any byte order.
    """
    size = ip.dtype.itemsize
    hosts = np.empty(len(ip), [("ip", f"V{size}"), ("port", ">i4")])
    hosts["ip"], hosts["port"] = ip, port
    if size == 4:
        codes = pa.array(hosts.view(np.int64)).dictionary_encode()  # address and port make one machine word
        distinct = codes.dictionary.to_numpy().view(hosts.dtype)
    else:
        raw = pa.Array.from_buffers(pa.binary(hosts.itemsize), len(hosts), [None, pa.py_buffer(hosts)])
        codes = raw.dictionary_encode()
        distinct = np.frombuffer(b"".join(codes.dictionary.to_pylist()), hosts.dtype)
    texts = pa.array([format_host(host["ip"].tobytes(), int(host["port"])) for host in distinct], pa.string())
    return texts.take(codes.indices)


def parse_host(text: str) -> tuple[bytes, int]:
    """Returns (raw address, port): the inverse of `format_host`. Accepts a leading slash and compressed IPv6.

    >>> parse_host("127.0.0.1:10911")
    (b'\\x7f\\x00\\x00\\x01', 10911)

    Raises ValueError for everything but a literal address; host names are not resolved.
    """
    match = _HOST.match(text)
    if match is None or int(match[3]) > 65535:
        raise ValueError(f"{text!r} is not a host: expected 'a.b.c.d:port' or '[IPv6]:port'")
    try:
        ip = (
            socket.inet_pton(socket.AF_INET6, match[1])
            if match[1]
            else socket.inet_pton(socket.AF_INET, match[2])
        )
    except OSError as error:
        raise ValueError(f"{text!r} is not a host: the address is malformed") from error
    return ip, int(match[3])


def offset_msg_ids(
    store_ip: NDArray[np.void],
    store_port: NDArray[np.integer[Any]],
    physical_offset: NDArray[np.integer[Any]],
) -> pa.StringArray:
    """Returns offset message ids, upper-case hex of address, port, offset (MessageDecoder.createMessageId).

    An id has 32 characters, or 56 with an IPv6 store host.
    """
    size = store_ip.dtype.itemsize
    ids = np.empty(len(store_ip), [("ip", f"V{size}"), ("port", ">i4"), ("physical_offset", ">i8")])
    ids["ip"], ids["port"], ids["physical_offset"] = store_ip, store_port, physical_offset
    width = 2 * ids.itemsize
    if len(ids) * width > _INT32_MAX:
        raise OverflowError(f"{len(ids)} message ids do not fit one Arrow array: decode smaller batches")
    text = _HEX_PAIRS[ids.view(np.uint8)]
    offsets = np.arange(0, (len(ids) + 1) * width, width, dtype=np.int32)
    return pa.Array.from_buffers(pa.string(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(text)])


def offset_msg_id(store_ip: bytes, store_port: int, physical_offset: int) -> str:
    """Returns the offset message id of one message: `offset_msg_ids` for scalars.

    >>> offset_msg_id(bytes([127, 0, 0, 1]), 10911, 88)
    '7F00000100002A9F0000000000000058'
    """
    return f"{store_ip.hex().upper()}{store_port & 0xFFFFFFFF:08X}{physical_offset:016X}"

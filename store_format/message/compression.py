"""Compressed bodies: which codec the sys flag names, and decompression that cannot be made to fill the
memory.

Clients compress, the broker stores what it got (org.apache.rocketmq.common.compression.CompressionType, spec
2.6).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from store_format.errors import StoreError
from store_format.message.sysflag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT

# CompressionType by name: the number in the sys flag.
COMPRESSION_TYPES = {"LZ4": 1, "ZSTD": 2, "ZLIB": 3}

_PIECE_SIZE = 1 << 16


class DecompressionError(StoreError, ValueError):
    """A stored body that does not decompress. Whoever knows the file and the byte adds them."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return f"expected {self.expected}, found {self.found}"


def compression_flag(name: str) -> int:
    """The sys flag bits of a body compressed with `name`.

    >>> hex(compression_flag("ZLIB"))
    '0x301'
    """
    return COMPRESSED | COMPRESSION_TYPES[name] << COMPRESSION_SHIFT


def compress(body: bytes, name: str, level: int = 5) -> bytes:
    """The body as a client stores it; 5 is the client's default level (DefaultMQProducer). LZ4 has no levels,
    in Java and here.
    """
    if name == "ZLIB":
        return zlib.compress(body, level)
    if name == "ZSTD":
        codec = pa.Codec("zstd", compression_level=level)
    elif name == "LZ4":
        codec = pa.Codec("lz4")  # the frame format
    else:
        raise ValueError(f"compression type {name!r}: expected one of {', '.join(COMPRESSION_TYPES)}")
    compressed: bytes = codec.compress(body, asbytes=True)
    return compressed


def decompress(stored: Any, sys_flag: int, *, size_max: int) -> bytes:
    """The body a compressed unit carries, at most `size_max` bytes; `stored` is anything with the buffer
    protocol.

    An empty body stays empty (MessageDecoder.decode looks at the flag only when there is a body).
    Concatenated LZ4 and ZSTD frames are one body, as for Java's streams. Raises DecompressionError for an
    unknown type, truncated or foreign bytes, bytes behind the end, and more than `size_max` bytes of output:
    memory stays within twice `size_max` and a mebibyte.
    """
    number = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    row = _CODECS.get(number)
    if row is None:
        raise DecompressionError("compression type 0 or 3 (ZLIB), 1 (LZ4) or 2 (ZSTD)", f"type {number}")
    if not memoryview(stored).nbytes:
        return b""
    name, inflate = row
    try:
        return inflate(stored, size_max)
    except (zlib.error, OSError, pa.ArrowException) as error:
        raise DecompressionError(f"a body compressed with {name}", f"bytes that are not: {error}") from error


def _too_large(name: str, size_max: int) -> DecompressionError:
    return DecompressionError(f"a {name} body of at most {size_max} bytes", "one that inflates to more")


def _inflate_zlib(stored: Any, size_max: int) -> bytes:
    stream = zlib.decompressobj()
    body = stream.decompress(stored, size_max + 1)  # 0 would mean no limit
    if len(body) > size_max:
        raise _too_large("ZLIB", size_max)
    if not stream.eof:
        raise DecompressionError("a complete ZLIB stream", f"its end missing after {len(body)} bytes of body")
    if stream.unused_data:
        raise DecompressionError("nothing behind the ZLIB stream", f"{len(stream.unused_data)} more bytes")
    return body


def _inflate_frames(name: str, stored: Any, size_max: int) -> bytes:
    """Arrow's streams read frame after frame and fail on a truncated one; each read inflates about a mebibyte
    at most.
    """
    pieces = []
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(stored), name.lower()) as stream:
        while piece := stream.read(_PIECE_SIZE):
            size += len(piece)
            if size > size_max:
                raise _too_large(name, size_max)
            pieces.append(piece)
    return b"".join(pieces)


def _inflate_lz4(stored: Any, size_max: int) -> bytes:
    return _inflate_frames("LZ4", stored, size_max)


def _inflate_zstd(stored: Any, size_max: int) -> bytes:
    return _inflate_frames("ZSTD", stored, size_max)


_CODECS: dict[int, tuple[str, Callable[[Any, int], bytes]]] = {
    0: ("ZLIB", _inflate_zlib),  # clients before 4.9.4 left the type out
    1: ("LZ4", _inflate_lz4),
    2: ("ZSTD", _inflate_zstd),
    3: ("ZLIB", _inflate_zlib),
}

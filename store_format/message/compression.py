"""Compressed bodies: the codec that the sys flag names, and decompression with a memory limit.

Clients compress; the broker stores the body unchanged (CompressionType, spec 2.6).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from store_format.display.text import shown
from store_format.errors import StoreError
from store_format.message.sysflag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT

# CompressionType by name: the number in the sys flag.
COMPRESSION_TYPES = {"LZ4": 1, "ZSTD": 2, "ZLIB": 3}

_PIECE_SIZE = 1 << 16

# version 1, independent blocks of at most _PIECE_SIZE bytes, no checksums but that of the head
_LZ4_HEAD = bytes.fromhex("04224d18604082")
_LZ4_PLAIN = 1 << 31  # in the size of a block: it is not compressed


class DecompressionError(StoreError, ValueError):
    """A stored body that cannot be decompressed. The caller adds file and byte."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found

    def __str__(self) -> str:
        return shown(f"expected {self.expected}, found {self.found}")


def compression_flag(name: str) -> int:
    """Returns the sys flag bits of a body compressed with `name`.

    >>> hex(compression_flag("ZLIB"))
    '0x301'
    """
    return COMPRESSED | COMPRESSION_TYPES[name] << COMPRESSION_SHIFT


def compress(body: bytes, name: str, level: int = 5) -> bytes:
    """Returns the body as a client compresses it; level 5 is the default of DefaultMQProducer.

    LZ4 has no levels.
    """
    if name == "ZLIB":
        return zlib.compress(body, level)
    if name == "ZSTD":
        codec = pa.Codec("zstd", compression_level=level)
    elif name == "LZ4":
        return _lz4_frame(body)
    else:
        raise ValueError(f"compression type {name!r}: expected one of {', '.join(COMPRESSION_TYPES)}")
    compressed: bytes = codec.compress(body, asbytes=True)
    return compressed


def _lz4_frame(body: bytes) -> bytes:
    """One LZ4 frame of independent blocks. Of bodies above 64 KiB, Arrow's codec makes blocks that need the
    block before, which Java's LZ4FrameInputStream refuses.
    """
    codec, parts = pa.Codec("lz4_raw"), [_LZ4_HEAD]
    for at in range(0, len(body), _PIECE_SIZE):
        piece = body[at : at + _PIECE_SIZE]
        packed = codec.compress(piece, asbytes=True)
        is_smaller = len(packed) < len(piece)
        parts.append((len(packed) if is_smaller else len(piece) | _LZ4_PLAIN).to_bytes(4, "little"))
        parts.append(packed if is_smaller else piece)
    return b"".join([*parts, bytes(4)])


def decompress(stored: Any, sys_flag: int, *, size_max: int) -> bytes:
    """Returns the decompressed body of at most `size_max` bytes; `stored` has the buffer protocol.

    An empty body stays empty: MessageDecoder.decode looks at the flag only when the body has bytes.
    Concatenated LZ4 and ZSTD frames are one body, as in Java's streams. Raises DecompressionError for an
    unknown type, truncated or other bytes, bytes behind the end, and more than `size_max` bytes of output.
    Uses memory of at most twice `size_max` and a mebibyte.
    """
    number = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    row = _CODECS.get(number)
    if row is None:
        raise DecompressionError("compression type 0 or 3 (ZLIB), 1 (LZ4) or 2 (ZSTD)", f"type {number}")
    if not memoryview(stored).nbytes:
        return b""
    name, inflate = row
    try:
        return inflate(name, stored, size_max)
    except (zlib.error, OSError, pa.ArrowException) as error:
        raise DecompressionError(f"a body compressed with {name}", f"other bytes: {error}") from error


def _too_large(name: str, size_max: int) -> DecompressionError:
    return DecompressionError(f"a {name} body of at most {size_max} bytes", "more bytes")


def _inflate_zlib(name: str, stored: Any, size_max: int) -> bytes:
    stream = zlib.decompressobj()
    body = stream.decompress(stored, size_max + 1)  # 0 would mean no limit
    if len(body) > size_max:
        raise _too_large(name, size_max)
    if not stream.eof:
        raise DecompressionError(
            f"a complete {name} stream", f"no end of the stream after {len(body)} bytes of body"
        )
    if stream.unused_data:
        raise DecompressionError(f"nothing behind the {name} stream", f"{len(stream.unused_data)} more bytes")
    return body


def _inflate_frames(name: str, stored: Any, size_max: int) -> bytes:
    """Returns the body of all frames. Arrow's streams refuse a truncated frame and inflate 1 MiB a read."""
    pieces = []
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(stored), name.lower()) as stream:
        while piece := stream.read(_PIECE_SIZE):
            size += len(piece)
            if size > size_max:
                raise _too_large(name, size_max)
            pieces.append(piece)
    return b"".join(pieces)


_CODECS: dict[int, tuple[str, Callable[[str, Any, int], bytes]]] = {
    0: ("ZLIB", _inflate_zlib),  # clients before 4.9.4 did not set the type
    1: ("LZ4", _inflate_frames),
    2: ("ZSTD", _inflate_frames),
    3: ("ZLIB", _inflate_zlib),
}

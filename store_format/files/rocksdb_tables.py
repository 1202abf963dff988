"""Reads the records of one queue from the tables of a RocksDB database, some ten times as fast as the library
gives them (BlockBasedTableReader, Block, format.h).

Tables as RocketMQ's brokers write them (RocksDBOptionsFactory): format version 5, CRC-32C, an index of one
level, blocks of LZ4 or ZSTD. Everything else is `None`, and so is what is damaged: then the library reads it,
and says what is wrong.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from store_format import kernels

ReadRanges = Callable[[Sequence[tuple[str, int, int]]], list[bytes]]  # (file name, first byte, bytes)

_FOOTER = struct.Struct("<c40sIQ")  # checksum, handles of the meta index and the index, version, magic
_MAGIC, _VERSION, _CRC32C = 0x88E241B785F4CFF7, 5, b"\1"
_COMPARATOR = b"leveldb.BytewiseComparator"
_TRAILER = 5  # bytes behind a block: the kind of compression, and the checksum
_CODECS = {4: "lz4_raw", 5: "lz4_raw", 7: "zstd"}
_BLOCK_MAX, _READ_MAX = 4 << 20, 64 << 20  # bytes
_KEY_MAX = 1 << 10
_NUMBERS_MIN = 64  # fewer cost less with the library
_INTERNAL = 8  # bytes behind each key: the sequence number and the kind
_UNUSUAL_BLOCKS = {b"rocksdb.range_del", b"rocksdb.compression_dict"}
_NUMBER = struct.Struct(">q")


class _UnusualError(Exception):
    """A table that only the library reads."""


@dataclass(frozen=True, slots=True)
class _DataBlocks:
    """The data blocks of a table: a key of each that is not before its last key and not behind the first key
    of the next block, where it begins, and its bytes without the trailer. Raises _UnusualError if they do not
    follow one another.
    """

    keys: list[bytes]
    starts: list[int]
    sizes: list[int]

    def __post_init__(self) -> None:
        stops = [start + size + _TRAILER for start, size in zip(self.starts, self.sizes, strict=True)]
        if (
            min(self.sizes, default=-1) < 0
            or any(low > high for low, high in pairwise(self.keys))
            or any(stop > start for stop, start in zip(stops, self.starts[1:], strict=False))
        ):
            raise _UnusualError

    @property
    def stop(self) -> int:
        """The position behind the last block."""
        return self.starts[-1] + self.sizes[-1] + _TRAILER


@dataclass(slots=True)
class _DatabaseTable:
    name: str
    size: int
    first: bytes  # key
    last: bytes
    family: bytes = b""
    blocks: _DataBlocks | None = None


class DatabaseTables:
    """The tables of a database. `described` are the name, the bytes, the first and the last key of each, in
    JSON; `read` gives ranges of bytes of their files.
    """

    def __init__(self, described: Sequence[bytes], read: ReadRanges) -> None:
        self._read = read
        self._tables = [
            _DatabaseTable(name, size, bytes.fromhex(first), bytes.fromhex(last))
            for name, size, first, last in map(json.loads, described)
        ]
        self._is_usual = bool(described)

    def numbered(self, family: str, prefix: bytes, start: int, stop: int, size: int) -> memoryview | None:
        """The values, `size` bytes each, of the keys that are `prefix` and a number in [start, stop), 8 bytes
        each; zeros for a missing key. None if only the library can tell.
        """
        if not self._is_usual or stop - start < _NUMBERS_MIN or not kernels.ready(stop - start):
            return None
        sequences = np.full(stop - start, -1, np.int64)
        values = np.zeros((stop - start) * size, np.uint8)
        wanted = np.frombuffer(prefix, np.uint8)
        key = np.zeros(max(_KEY_MAX, len(prefix) + 16), np.uint8)
        try:
            low, high = prefix + _NUMBER.pack(start), prefix + _NUMBER.pack(stop)
            for block in self._data(family.encode(), low, high):
                given = np.frombuffer(block, np.uint8)
                taken = kernels.table_blocks.take_numbered(
                    given, wanted, start, stop, size, key, sequences, values
                )
                if taken < 0:
                    return None
        except (_UnusualError, OSError):  # the library names the file
            return None
        return values.data

    def _data(self, family: bytes, low: bytes, high: bytes) -> Iterator[memoryview]:
        """The blocks of the family's tables that may have keys in [low, high)."""
        asked, spans = [], []
        for table in self._tables:
            if table.last < low or table.first >= high:
                continue
            if table.blocks is None:
                self._look_at(table)
            assert table.blocks is not None
            if table.family != family:
                continue
            blocks = table.blocks
            first = bisect_left(blocks.keys, low)
            last = min(bisect_left(blocks.keys, high, first), len(blocks.keys) - 1)
            if first > last:
                continue
            begin = blocks.starts[first]
            sizes = blocks.sizes[first : last + 1]
            asked.append((table.name, begin, blocks.starts[last] + sizes[-1] + _TRAILER - begin))
            spans.append((np.array(blocks.starts[first : last + 1]) - begin, np.array(sizes)))
        if sum(size for _, _, size in asked) > _READ_MAX:
            raise _UnusualError
        for data, places in zip(self._read(asked) if asked else (), spans, strict=True):
            yield from _contents(data, *places)

    def _look_at(self, table: _DatabaseTable) -> None:
        """Reads the blocks and the family of a table from its end."""
        try:
            table.family, table.blocks = self._ends(table)
        except (_UnusualError, LookupError, ValueError, OverflowError, struct.error) as error:
            self._is_usual = False
            raise _UnusualError from error

    def _ends(self, table: _DatabaseTable) -> tuple[bytes, _DataBlocks]:
        if table.size < _FOOTER.size:
            raise _UnusualError
        footer = self._bytes(table, table.size - _FOOTER.size, _FOOTER.size)
        checksum, handles, version, magic = _FOOTER.unpack(footer)
        if (checksum, version, magic) != (_CRC32C, _VERSION, _MAGIC):
            raise _UnusualError
        (meta_start, meta_size), at = _handle(handles, 0)
        (index_start, index_size), _ = _handle(handles, at)
        meta = {key: value for key, value, _ in _records(self._block(table, meta_start, meta_size))}
        if not meta.keys().isdisjoint(_UNUSUAL_BLOCKS):
            raise _UnusualError
        (start, size), _ = _handle(meta[b"rocksdb.properties"], 0)
        properties = {key: value for key, value, _ in _records(self._block(table, start, size))}
        if (
            properties[b"rocksdb.comparator"] != _COMPARATOR
            or any(name.startswith(b"rocksdb.external_sst_file.") for name in properties)
            or any(properties[b"rocksdb.block.based.table.index.type"])
        ):
            raise _UnusualError
        is_delta, is_user_key = (
            _varint(properties.get(b"rocksdb.index." + name, b"\0"), 0)[0] > 0
            for name in (b"value.is.delta.encoded", b"key.is.user.key")
        )
        index = self._block(table, index_start, index_size)
        blocks = _index(index, is_delta=is_delta, cut=0 if is_user_key else _INTERNAL)
        if blocks.stop > table.size:
            raise _UnusualError
        return properties[b"rocksdb.column.family.name"], blocks

    def _block(self, table: _DatabaseTable, start: int, size: int) -> bytes:
        if size > _READ_MAX:
            raise _UnusualError
        data = self._bytes(table, start, size + _TRAILER)
        (block,) = _contents(data, np.zeros(1, np.int64), np.array([size], np.int64))
        return bytes(block)

    def _bytes(self, table: _DatabaseTable, start: int, size: int) -> bytes:
        (data,) = self._read([(table.name, start, size)])
        if len(data) != size:
            raise _UnusualError
        return data


# ---- blocks ------------------------------------------------------------------------------------------------


def _contents(data: bytes, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Iterator[memoryview]:
    """The blocks of these places, decompressed. Raises _UnusualError for a wrong checksum."""
    if kernels.table_blocks.right_blocks(np.frombuffer(data, np.uint8), starts, sizes) < len(starts):
        raise _UnusualError
    whole = memoryview(data)
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        kind, block = data[start + size], whole[start : start + size]
        if kind == 0:
            yield block
        else:
            yield _decompressed(kind, block)


def _decompressed(kind: int, block: memoryview) -> memoryview:
    """A block as it was before its compression; its length comes first."""
    import pyarrow as pa

    size, at = _varint(block, 0)
    if kind not in _CODECS or size > _BLOCK_MAX:
        raise _UnusualError
    try:
        return memoryview(pa.Codec(_CODECS[kind]).decompress(block[at:], size))
    except (OSError, pa.ArrowException) as error:
        raise _UnusualError from error


def _records(block: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """(key, value, bytes shared with the key before) of a block that is no data block."""
    at, stop, key = 0, _stop(block), b""
    while at < stop:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        size, at = _varint(block, at)
        key = key[:shared] + block[at : at + rest]
        at += rest
        yield key, block[at : at + size], shared
        at += size


def _index(block: bytes, *, is_delta: bool, cut: int) -> _DataBlocks:
    """The data blocks that an index names. Where its values are deltas, a record with a shared key has only
    by how many bytes its block is larger than the one before. Of each key, the last `cut` bytes are left out.
    """
    keys, starts, sizes = list[bytes](), list[int](), list[int]()
    at, stop, key = 0, _stop(block), b""
    while at < stop:
        shared, at = _varint(block, at)
        rest, at = _varint(block, at)
        if not is_delta:
            _, at = _varint(block, at)
        key = key[:shared] + block[at : at + rest]
        at += rest
        if is_delta and shared:
            delta, at = _varint(block, at)
            start, size = starts[-1] + sizes[-1] + _TRAILER, sizes[-1] + (delta >> 1 ^ -(delta & 1))
        else:
            (start, size), at = _handle(block, at)
        keys.append(key[: len(key) - cut])
        starts.append(start)
        sizes.append(size)
    return _DataBlocks(keys, starts, sizes)


def _stop(block: bytes) -> int:
    """Where the records of a block end that has no hash index."""
    return len(block) - 4 - 4 * int.from_bytes(block[-4:], "little")


def _handle(block: bytes, at: int) -> tuple[tuple[int, int], int]:
    """((first byte, bytes) of a block, the position behind them)."""
    start, at = _varint(block, at)
    size, at = _varint(block, at)
    return (start, size), at


def _varint(block: bytes | memoryview, at: int) -> tuple[int, int]:
    """(number, the position behind it). Raises IndexError at the end."""
    number = shift = 0
    while block[at] > 127:
        number |= (block[at] & 127) << shift
        at, shift = at + 1, shift + 7
    return number | block[at] << shift, at + 1

"""Tables of RocksDB that rmqlog reads itself: what it takes is what the library gives, and what it does not
know is left to the library.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    ChecksumType,
    DataBlockIndexType,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
)

from store_format import kernels
from store_format.files.read import files_at
from store_format.files.rocksdb import RocksDatabase
from store_format.files.rocksdb_tables import DatabaseTables
from tests.support.fixtures import Golden

PREFIX, SIZE = b"\0\0\0\1\1T\1\0\0\0\0\1", 28
NUMBERS = range(5, 400)  # keys outside of them exist, too


def _key(number: int, prefix: bytes = PREFIX) -> bytes:
    return prefix + struct.pack(">q", number)


def _value(*numbers: int) -> bytes:
    return struct.pack(">7i", *numbers, *bytes(7 - len(numbers)))


@contextmanager
def _opened(directory: str) -> Iterator[tuple[RocksDatabase, DatabaseTables]]:
    kernels.load()
    with files_at(directory).database(directory) as database:
        described = [records.values for records in database.ask(tables=True)]
        yield database, DatabaseTables(described, database._read_ranges)


def _by_tables(
    tables: DatabaseTables, prefix: bytes, numbers: range, family: str = "default"
) -> bytes | None:
    values = tables.numbered(family, prefix, numbers.start, numbers.stop, SIZE)
    return None if values is None else bytes(values)


def _by_library(database: RocksDatabase, prefix: bytes, numbers: range) -> bytes:
    wanted = {"start": numbers.start, "stop": numbers.stop, "value_size": SIZE}
    answer = database.ask(family="default", prefix=prefix.hex(), **wanted)
    return b"".join(records.values for records in answer)


@pytest.mark.parametrize("name", ["rocksdbcq-5.5.0", "rocksdbcq-crash2-5.5.0", "rocksdbcq-configv2-5.5.0"])
def test_the_entries_that_brokers_wrote(golden: Golden, name: str) -> None:
    with _opened(f"{golden(name)}/consumequeue") as (database, tables):
        told = defaultdict[bytes, dict[int, bytes]](dict)
        for part in database.records("default"):
            for key, value in part:
                told[key[:-8]][int.from_bytes(key[-8:])] = value
        assert len(told) > 10
        for prefix, values in told.items():
            numbers = range(max(min(values) - 2, 0), max(values) + 70)
            found = _by_tables(tables, prefix, numbers)
            assert found == b"".join(values.get(number, bytes(SIZE)) for number in numbers)
        assert _by_tables(tables, prefix, range(100), "offset") == bytes(100 * SIZE)


# ---- databases with everything that the library can make ---------------------------------------------------


def _written(
    directory: Path,
    change: Callable[[Rdict], None] = lambda database: None,
    *,
    compression: DBCompressionType | None = None,
    checksum: ChecksumType | None = None,
    index: BlockBasedIndexType | None = None,
    is_flushed: bool = True,
) -> str:
    """A database with three tables, in which later values replace others; `change` is in the last one."""
    blocks = BlockBasedOptions()
    blocks.set_format_version(5)
    blocks.set_block_size(512)
    blocks.set_checksum_type(checksum or ChecksumType.crc32c())
    blocks.set_data_block_index_type(DataBlockIndexType.binary_and_hash())
    blocks.set_index_type(index or BlockBasedIndexType.binary_search())
    options = Options(raw_mode=True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(compression or DBCompressionType.lz4())
    options.set_disable_auto_compactions(True)
    database = Rdict(str(directory), options)
    for table, numbers in enumerate([range(300), range(200, 420), range(100, 300, 3)]):
        batch = WriteBatch(raw_mode=True)
        for number in numbers:
            batch.put(_key(number), _value(table, number))
            batch.put(_key(number, b"\0\0\0\1\1S\1\0\0\0\0\1"), _value(9, number))
            batch.put(_key(number, b"\0\0\0\1\1U\1\0\0\0\0\1"), _value(8, number))
        database.write(batch)
        if table == 2:
            change(database)
        if table < 2 or is_flushed:
            database.flush()
    if not is_flushed:
        shutil.copytree(directory, f"{directory}-killed")
    database.close()  # which flushes
    return str(directory) if is_flushed else f"{directory}-killed"


def _delete(database: Rdict) -> None:
    for number in (6, 201, 250, 399):
        del database[_key(number)]


def _delete_range(database: Rdict) -> None:
    database.delete_range(_key(20), _key(40))


def _short(database: Rdict) -> None:
    database[_key(30)] = b"short"


def _compact(database: Rdict) -> None:
    _delete(database)
    database.compact_range(None, None)


@pytest.mark.parametrize("compression", ["none", "lz4", "lz4hc", "zstd"])
@pytest.mark.parametrize("change", [_delete, _compact])
def test_the_last_value_of_each_key(
    tmp_path: Path, compression: str, change: Callable[[Rdict], None]
) -> None:
    directory = _written(tmp_path / "database", change, compression=getattr(DBCompressionType, compression)())
    with _opened(directory) as (database, tables):
        found = _by_tables(tables, PREFIX, NUMBERS)
        told = _by_library(database, PREFIX, NUMBERS)
    assert found == told
    assert told[: 2 * SIZE] == _value(0, 5) + bytes(SIZE)  # 6 is deleted
    places = {number: told[(number - 5) * SIZE :][:4] for number in (99, 100, 298, 299, 300)}
    assert {number: value[3] for number, value in places.items()} == {99: 0, 100: 2, 298: 2, 299: 1, 300: 1}


@pytest.mark.parametrize(
    ("change", "given"),
    [
        (_delete_range, {}),
        (_short, {}),
        (_delete, {"is_flushed": False}),
        (_delete, {"compression": DBCompressionType.snappy()}),
        (_delete, {"checksum": ChecksumType.xxh3()}),
        (_delete, {"index": BlockBasedIndexType.two_level_index_search()}),
    ],
    ids=["range", "short", "log", "snappy", "xxh3", "index"],
)
def test_what_only_the_library_reads(
    tmp_path: Path, change: Callable[[Rdict], None], given: dict[str, object]
) -> None:
    directory = _written(tmp_path / "database", change, **given)  # type: ignore[arg-type] # by name
    with _opened(directory) as (database, tables):
        assert _by_tables(tables, PREFIX, NUMBERS) is None
        told = _by_library(database, PREFIX, NUMBERS)
        assert database.numbered("default", PREFIX, NUMBERS, SIZE, last=0) == told
    assert len(told) == len(NUMBERS) * SIZE


def _in_many_tables(database: Rdict) -> None:
    for number in range(1000, 1070):
        database[_key(number)] = _value(7, number)
        database.flush()


@pytest.mark.parametrize("change", [_delete, _in_many_tables])
def test_files_that_are_deleted_meanwhile_and_more_than_are_kept_open(
    tmp_path: Path, change: Callable[[Rdict], None]
) -> None:
    directory = _written(tmp_path / "database", change)
    open_before = len(os.listdir("/dev/fd"))
    with files_at(directory).database(directory) as database:
        for table in Path(directory).glob("*.sst"):
            table.unlink()
        told = _by_library(database, PREFIX, NUMBERS)
        assert database.numbered("default", PREFIX, NUMBERS, SIZE, last=0) == told
        assert len(told) == len(NUMBERS) * SIZE
        assert told.count(_value(2, 100)) == 1
    assert len(os.listdir("/dev/fd")) == open_before


def test_calls_that_go_on_are_read_ahead_and_give_the_same(tmp_path: Path) -> None:
    with _opened(_written(tmp_path / "database", _delete)) as (database, _):
        told, last = _by_library(database, PREFIX, NUMBERS), NUMBERS.stop
        found, kept = b"", 0
        for start in range(NUMBERS.start, last, 20):
            numbers = range(start, min(start + 20, last))
            ahead = database.kept("default", PREFIX, numbers, SIZE)
            kept += ahead is not None
            found += ahead or database.numbered("default", PREFIX, numbers, SIZE, last=last)
        assert found == told
        assert kept > 10
        assert database.kept("default", PREFIX, range(5), SIZE) is None


# ---- damage ------------------------------------------------------------------------------------------------


def _ranges(data: bytes, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
    return [data[at : at + size] for _, at, size in ranges]


def test_a_flipped_byte_is_never_another_value(tmp_path: Path) -> None:
    """Also in the index, the properties and the footer; bytes that nothing reads may change nothing."""
    directory = _written(tmp_path / "database", _compact)
    with _opened(directory) as (database, tables):
        described = [records.values for records in database.ask(tables=True)]
        told = _by_tables(tables, PREFIX, NUMBERS)
    (table,) = Path(directory).glob("*.sst")
    data = bytearray(table.read_bytes())
    refused = 0
    draw = random.Random(1)
    for _ in range(150):
        place, bit = draw.randrange(len(data)), 1 << draw.randrange(8)
        data[place] ^= bit
        given = DatabaseTables(described, partial(_ranges, bytes(data)))
        found = _by_tables(given, PREFIX, NUMBERS)
        assert found is None or found == told
        refused += found is None
        data[place] ^= bit
    assert refused > 50


@given(st.binary(max_size=60), st.binary(max_size=200), st.integers(0, 3), st.integers(0, 60))
def test_any_bytes_as_a_block(prefix: bytes, data: bytes, restarts: int, count: int) -> None:
    block = np.frombuffer(data + bytes(4 * restarts) + struct.pack("<I", restarts), np.uint8)
    sequences, values = np.full(count, -1, np.int64), np.zeros(count * SIZE, np.uint8)
    taken = kernels.table_blocks.take_numbered(
        block, np.frombuffer(prefix, np.uint8), 0, count, SIZE, np.zeros(80, np.uint8), sequences, values
    )
    assert taken in (0, -1)
    assert (sequences >= -1).all()


def test_the_checksum_of_a_block() -> None:
    """The CRC-32C of 123456789 is 0xE3069283 (RFC 3720); RocksDB rotates it and adds a number."""
    crc = 0xE3069283
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    block = b"123456789" + struct.pack("<I", masked)
    starts, sizes = np.zeros(1, np.int64), np.array([8], np.int64)  # the kind of compression counts
    right = kernels.table_blocks.right_blocks
    assert right(np.frombuffer(block, np.uint8), starts, sizes) == 1
    assert right(np.frombuffer(block[:-1] + b"\0", np.uint8), starts, sizes) == 0
    assert right(np.frombuffer(block[:-1], np.uint8), starts, sizes) == 0

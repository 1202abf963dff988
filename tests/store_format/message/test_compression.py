"""Bodies that real clients compressed, and bytes made to do harm."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store_format.message.compression import (
    COMPRESSION_TYPES,
    DecompressionError,
    compress,
    compression_flag,
    decompress,
)

_TESTS = Path(__file__).parents[2]
_NAMES = sorted(COMPRESSION_TYPES)
_BODY = b"".join(b"line %d of a body that compresses\n" % i for i in range(5_000))


def zstd_bomb() -> bytes:
    """4 GiB of zeros in 128 KiB: 32,768 run-length blocks of 128 KiB behind a frame header with a window of 1
    MiB (RFC 8878).
    """
    block, last = ((1 << 17) << 3 | 1 << 1 | last for last in (0, 1))
    header = bytes.fromhex("28b52ffd0050")
    return header + (block.to_bytes(3, "little") + b"\0") * 32_767 + last.to_bytes(3, "little") + b"\0"


def zlib_bomb() -> bytes:
    stream = zlib.compressobj(9)
    return b"".join([stream.compress(bytes(1 << 20)) for _ in range(64)] + [stream.flush()])


_BOMBS = {"LZ4": lambda: compress(bytes(64 << 20), "LZ4"), "ZSTD": zstd_bomb, "ZLIB": zlib_bomb}


@pytest.mark.parametrize("store", ["basic-5.5.0", "basic-4.9.7"])
def test_bodies_that_clients_compressed(store: str) -> None:
    types = set()
    with gzip.open(_TESTS / "golden" / store / "expected.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            if "rawBody" in row and row["sysFlag"] & 1:
                body, stored = base64.b64decode(row["body"]), base64.b64decode(row["rawBody"])
                assert decompress(stored, row["sysFlag"], size_max=len(body)) == body
                types.add(row["sysFlag"] >> 8 & 7)
    assert types == {1, 2, 3}


def test_clients_before_4_9_4_compressed_by_zlib_and_named_no_type() -> None:
    assert decompress(zlib.compress(_BODY), 0x001, size_max=1 << 20) == _BODY


@pytest.mark.parametrize("name", _NAMES)
@given(body=st.binary(min_size=1, max_size=2_000))
def test_there_and_back(name: str, body: bytes) -> None:
    assert decompress(compress(body, name), compression_flag(name), size_max=len(body)) == body


@pytest.mark.parametrize("name", _NAMES)
def test_any_buffer_will_do(name: str) -> None:
    stored = compress(_BODY, name)
    for view in (memoryview(stored), np.frombuffer(stored, np.uint8), pa.py_buffer(stored)):
        assert decompress(view, compression_flag(name), size_max=len(_BODY)) == _BODY
    assert decompress(b"", compression_flag(name), size_max=10) == b""


@pytest.mark.parametrize("name", _NAMES)
def test_output_is_capped_to_the_byte(name: str) -> None:
    stored = compress(_BODY, name)
    most = len(_BODY) - 1
    with pytest.raises(DecompressionError, match=f"a {name} body of at most {most} bytes, found more bytes"):
        decompress(stored, compression_flag(name), size_max=most)


@pytest.mark.parametrize("name", _NAMES)
def test_a_bomb_ends_within_the_limit(name: str) -> None:
    bomb, size_max = _BOMBS[name](), 1 << 20
    assert len(bomb) < 300_000
    pool = pa.default_memory_pool()
    arrow_bound = max(pool.max_memory(), pool.bytes_allocated() + 4 * size_max)
    tracemalloc.start()
    try:
        with pytest.raises(DecompressionError, match="found more bytes"):
            decompress(bomb, compression_flag(name), size_max=size_max)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * size_max
    assert pool.max_memory() <= arrow_bound


@pytest.mark.parametrize("name", _NAMES)
def test_every_truncation_is_an_error(name: str) -> None:
    stored = compress(_BODY[:3_000], name)
    for size in range(1, len(stored)):
        with pytest.raises(DecompressionError):
            decompress(stored[:size], compression_flag(name), size_max=10_000)


@pytest.mark.parametrize("name", _NAMES)
def test_bytes_behind_the_end_are_an_error(name: str) -> None:
    with pytest.raises(DecompressionError):
        decompress(compress(_BODY, name) + b"garbage", compression_flag(name), size_max=1 << 20)


@pytest.mark.parametrize("name", ["LZ4", "ZSTD"])
def test_frames_in_a_row_are_one_body_as_for_javas_streams(name: str) -> None:
    skippable = bytes.fromhex("502a4d1804000000") + b"skip"
    frames = [compress(b"", name), compress(_BODY, name), skippable, compress(b"", name)]
    stored = b"".join([*frames, compress(b"the end", name)])
    assert decompress(stored, compression_flag(name), size_max=1 << 20) == _BODY + b"the end"


@pytest.mark.parametrize("number", [4, 5, 6, 7])
def test_unknown_types_are_named(number: int) -> None:
    with pytest.raises(DecompressionError, match=rf"1 \(LZ4\) or 2 \(ZSTD\), found type {number}"):
        decompress(b"x", 1 | number << 8, size_max=10)


@pytest.mark.process
@pytest.mark.parametrize("name", _NAMES)
@settings(max_examples=200)
@given(data=st.data())
def test_foreign_and_flipped_bytes_end_in_an_error_or_within_the_limit(
    name: str, data: st.DataObject
) -> None:
    stored = bytearray(compress(_BODY[:500], name))
    for _ in range(data.draw(st.integers(1, 3))):
        stored[data.draw(st.integers(0, len(stored) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert len(decompress(stored, compression_flag(name), size_max=1_000)) <= 1_000
    except DecompressionError as error:
        assert error.found  # noqa: PT017


def test_the_error_survives_pickling() -> None:
    error = DecompressionError("a complete ZLIB stream", "nothing")
    again = pickle.loads(pickle.dumps(error))
    assert (again.expected, again.found, str(again)) == (error.expected, error.found, str(error))


def test_only_javas_types_compress() -> None:
    with pytest.raises(ValueError, match="expected one of LZ4, ZSTD, ZLIB"):
        compress(b"x", "SNAPPY")

"""The extension of a consume queue: vectors, files written by the broker's rule, and addresses that lead
nowhere.
"""

from __future__ import annotations

import json
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.consumequeue.units import ext_offset, is_ext_address, resolve_tags_codes
from store_format.layouts import CQ_EXT_HEAD

VECTORS: dict[str, Any] = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())[
    "cq_ext"
]

Unit = tuple[int, int, bytes]  # tags code, store time, bit map


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def _write(directory: Path, units: list[Unit], file_size: int, first: int = 0) -> list[int]:
    """Puts units as ConsumeQueueExt.put does and returns their addresses."""
    files, addresses = [bytearray()], []
    for tags_code, store_timestamp, bit_map in units:
        unit = struct.pack(">hqqh", 20 + len(bit_map), tags_code, store_timestamp, len(bit_map)) + bit_map
        if len(unit) > file_size - len(files[-1]) - 4:
            files[-1] += b"\xff\xff"
            files.append(bytearray())
        addresses.append((first + len(files) - 1) * file_size + len(files[-1]) - 2**63)
        files[-1] += unit
    for number, file in enumerate(files, first):
        (directory / f"{number * file_size:020d}").write_bytes(file.ljust(file_size, b"\0"))
    return addresses


def _longs(values: list[int]) -> np.ndarray:
    return np.array(values, ">i8")


units = st.tuples(st.integers(-(2**31), 2**62), st.integers(0, 2**62), st.binary(max_size=40))


@given(
    written=st.lists(units, min_size=1, max_size=60),
    file_size=st.integers(64, 400),
    first=st.integers(0, 3),
    data=st.data(),
)
def test_every_address_gives_its_unit(
    written: list[Unit], file_size: int, first: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        addresses = _write(Path(name), written, file_size, first)
        asked = data.draw(st.lists(st.integers(0, len(written) - 1), max_size=80))
        plain = data.draw(
            st.lists(st.integers(-(2**31), 2**63 - 1), min_size=len(asked), max_size=len(asked))
        )
        mixed = [value for pair in zip([addresses[i] for i in asked], plain, strict=True) for value in pair]
        expected = [
            value for pair in zip([written[i][0] for i in asked], plain, strict=True) for value in pair
        ]
        resolved = resolve_tags_codes(name, _longs(mixed))
        assert resolved.dtype == np.int64
        assert resolved.tolist() == expected


@given(
    st.binary(min_size=64, max_size=200),
    st.lists(st.integers(-(2**63), -(2**63) + 300), min_size=1, max_size=5),
)
def test_any_bytes_give_whole_units_inside_the_file_and_leave_other_addresses(
    content: bytes, addresses: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / f"{0:020d}").write_bytes(content)
        found = resolve_tags_codes(name, _longs(addresses)).tolist()
    for address, tags_code in zip(addresses, found, strict=True):
        unit = content[address + 2**63 :][:20].ljust(20, b"\xff")
        size, stored, _, bit_map_size = struct.unpack(">hqqh", unit)
        is_whole = bit_map_size >= 0 and size == 20 + bit_map_size <= len(content) - address - 2**63
        assert tags_code == (stored if is_whole else address)


def test_addresses_far_apart_in_a_large_file_are_read_apart(directory: Path) -> None:
    size = 50_331_648
    unit = struct.pack(">hqqh", 20, 7, 8, 0)
    positions = [0, 20, 3_000_000, 3_000_020, 50_000_000]
    with (directory / f"{0:020d}").open("wb") as file:
        file.truncate(size)
        for position in positions:
            os.pwrite(file.fileno(), unit, position)
    assert (
        resolve_tags_codes(str(directory), _longs([position - 2**63 for position in positions])).tolist()
        == [7] * 5
    )


def test_vectors(directory: Path) -> None:
    content = b"".join(bytes.fromhex(unit["hex"]) for unit in VECTORS["units"]) + bytes.fromhex(
        VECTORS["end_of_file_marker_hex"]
    )
    (directory / f"{0:020d}").write_bytes(content.ljust(100, b"\0"))
    addresses = _longs([address["cq_tags_code"] for address in VECTORS["address"]])
    assert addresses.tobytes().hex() == "".join(address["hex"] for address in VECTORS["address"])
    assert ext_offset(addresses).tolist() == [address["ext_offset"] for address in VECTORS["address"]]
    found = resolve_tags_codes(str(directory), addresses)
    assert found.tolist() == [unit["tags_code"] for unit in VECTORS["units"]]
    for offset, unit in zip(ext_offset(addresses).tolist(), VECTORS["units"], strict=True):
        head = np.frombuffer(content, CQ_EXT_HEAD, 1, offset)[0]
        bit_map = bytes.fromhex(unit["bitmap_hex"])
        assert head.tolist() == (20 + len(bit_map), unit["tags_code"], unit["store_time"], len(bit_map))
        assert content[offset + 20 :].startswith(bit_map)


def test_the_limit_of_addresses() -> None:
    values = _longs([-(2**63), VECTORS["max_addr"], VECTORS["max_addr"] + 1, -1, 0, 2**63 - 1])
    assert is_ext_address(values).tolist() == [True, True, False, False, False, False]
    assert ext_offset(values[:2]).tolist() == [0, 2**63 - 2147483649]


def test_without_an_address_no_file_is_looked_at() -> None:
    assert resolve_tags_codes("/nowhere", _longs([5, -7])).tolist() == [5, -7]
    assert resolve_tags_codes("/nowhere", _longs([])).tolist() == []


# ConsumeQueue.getExt of a broker finds nothing there, and takes the tags code as unknown.
_UNIT = struct.pack(">hqqh", 20, 7, 8, 0)


@pytest.mark.parametrize(
    ("files", "offset"),
    [
        ({}, 40),  # no file, or no directory
        *[({300: bytes(100), 400: bytes(100)}, offset) for offset in (0, 299, 320, 500, 2**63 - 2147483649)],
        ({0: _UNIT.ljust(100, b"\0"), 200: bytes(100)}, 120),  # the file between is lost
        ({0: bytes(80) + _UNIT}, 81),  # cut off
        ({0: struct.pack(">hqqh", 21, 1, 2, 0).ljust(100, b"\0")}, 0),
        ({0: struct.pack(">hqqh", 19, 1, 2, -1).ljust(100, b"\0")}, 0),
        ({0: struct.pack(">hqqh", 101, 1, 2, 81).ljust(100, b"\0")}, 0),  # reaches beyond the file
        ({0: struct.pack(">hqqh", -32749, 1, 2, 32767).ljust(100, b"\0")}, 0),  # 20 + 32767 as a short
        ({0: b"\xff\xff".ljust(100, b"\0")}, 0),  # the mark of a file's end
    ],
)
def test_an_address_without_a_whole_unit_stays_and_is_counted(
    directory: Path, files: dict[int, bytes], offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    files = {600: _UNIT.ljust(100, b"\0"), **files}
    for start, content in files.items():
        (directory / f"{start:020d}").write_bytes(content)
    asked = [600 - 2**63, offset - 2**63, 5]
    assert resolve_tags_codes(str(directory), _longs(asked)).tolist() == [7, offset - 2**63, 5]
    assert [record.getMessage() for record in caplog.records] == [
        f"{directory}: the tags codes of 1 messages are lost: filters by tag look at the messages"
    ]


def test_without_a_directory_all_addresses_stay(tmp_path: Path) -> None:
    assert resolve_tags_codes(f"{tmp_path}/none", _longs([-(2**63), 5])).tolist() == [-(2**63), 5]

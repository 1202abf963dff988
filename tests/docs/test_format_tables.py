"""FORMAT.md says what the code and the bytes say: its tables are current, its example is a real message, its
list of unprotected fields is what flipping every bit finds.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.format_tables import FORMAT_FILE, fill, render
from store_format.layouts import LAYOUTS, unit
from tests.support import oracle
from tests.support.oracle import Message, OracleError

TEXT = FORMAT_FILE.read_text(encoding="utf-8")
VECTORS: dict[str, Any] = json.loads((Path(__file__).parent.parent / "vectors" / "vectors.json").read_bytes())
V1_BASIC = bytes.fromhex(
    next(vector["hex"] for vector in VECTORS["messages"] if vector["name"] == "v1_basic")
)


def test_tables_are_current() -> None:
    assert fill(TEXT) == TEXT, "FORMAT.md is stale; run: python -m docs.format_tables"


def test_every_field_has_a_row_with_a_meaning() -> None:
    tables = render()
    assert tables.keys() == LAYOUTS.keys()
    for name, layout in LAYOUTS.items():
        rows = [line.split(" | ") for line in tables[name].splitlines()[2:]]
        assert [row[3] for row in rows] == [f"`{field}`" for field in layout.names or ()]
        assert all(row[4].strip(" |") for row in rows), name
        assert sum(int(row[1]) for row in rows) == layout.itemsize


def test_a_wrong_offset_is_refused() -> None:
    with pytest.raises(TypeError, match="field size: the types before it do not add up to its offset 9"):
        unit(12, ("physical_offset", ">i8", 0, "where"), ("size", ">i4", 9, "bytes"))


def test_a_missing_place_is_refused() -> None:
    with pytest.raises(ValueError, match=r"FORMAT\.md has markers for"):
        fill(TEXT.replace("<!-- layout CQ_UNIT -->", ""))


def test_the_example_is_the_vector() -> None:
    block = TEXT.split("<!-- example v1_basic -->\n```\n")[1].split("```")[0]
    lines = block.splitlines()
    assert "".join(line.split()[0] for line in lines) == V1_BASIC.hex()
    named = [line.split()[1] for line in lines if line.split()[1] in (LAYOUTS["MESSAGE_HEAD"].names or ())]
    assert tuple(named) == LAYOUTS["MESSAGE_HEAD"].names


def field_at(position: int) -> str:
    for name, (dtype, offset, *_) in (LAYOUTS["MESSAGE_HEAD"].fields or {}).items():
        if offset <= position < offset + dtype.itemsize:
            return name
    parts = (
        (93, "body"),
        (94, "topic length"),
        (103, "topic"),
        (105, "properties length"),
        (126, "properties"),
    )
    return next(name for stop, name in parts if position < stop)


def unseen_flips() -> set[tuple[str, int]]:
    """(field, bit of the field's byte string) of each flip after which a reader still gets a message, from
    the same queue.
    """
    wanted = oracle.decode_message(V1_BASIC, 0, 1024)
    unseen = set()
    for position in range(len(V1_BASIC)):
        for bit in range(8):
            flipped = bytearray(V1_BASIC)
            flipped[position] ^= 1 << bit
            try:
                message = oracle.decode_message(bytes(flipped), 0, 1024)
                assert len(message.decompressed) == 5
            except OracleError:
                continue
            if place(message) == place(wanted):
                unseen.add((field_at(position), position * 8 + bit))
    return unseen


def place(message: Message) -> tuple[str, int, int]:
    return message.topic, message.queue_id, message.queue_offset


def test_the_unprotected_fields_are_listed_by_name() -> None:
    listed = TEXT.split("<!-- unprotected -->\n")[1].split("<!-- end -->")[0]
    names = re.findall(r"^- `(\w+)`", listed, re.MULTILINE)
    unseen = unseen_flips()
    assert {name for name, _ in unseen} == set(names)
    # In part: of sysFlag's 32 bits the two of the hosts and COMPRESSED are noticed, as the list says;
    # elsewhere no bit is.
    flips = {name: sum(other == name for other, _ in unseen) for name in names}
    assert flips.pop("sys_flag") == 32 - 3
    assert flips.pop("properties") == 21 * 8
    assert all(count == 8 * LAYOUTS["MESSAGE_HEAD"][name].itemsize for name, count in flips.items())


def test_the_crc_property_covers_what_nothing_else_does() -> None:
    message = oracle.decode_message(V1_BASIC, 0, 1024)
    unit = oracle.encode_message(oracle.with_crc_property(message))
    for bit in range(8 * len(unit)):
        flipped = bytearray(unit)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not oracle.verify_crc_property(bytes(flipped))


def test_an_empty_bodys_crc_is_not_looked_at() -> None:
    message = Message(b"T", physical_offset=7, body_crc=1)
    assert oracle.decode_message(oracle.encode_message(message), 0, 7).body_crc == 1
    with pytest.raises(OracleError, match="body CRC"):
        oracle.decode_message(oracle.encode_message(Message(b"T", b"x", physical_offset=7, body_crc=1)), 0, 7)

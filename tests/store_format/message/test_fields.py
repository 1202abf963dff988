"""The fields of a unit: all bytes once, in order, whatever the bytes are; and the values that were
encoded.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.message.one import unit_fields
from tests.support import oracle
from tests.support.small_store import FIELDS, KINDS, write_small_store


def _whole(unit: bytes) -> None:
    fields = unit_fields(unit)
    at = 0
    for field in fields:
        assert (field.start, field.size > 0) == (at, True)
        at += field.size
    assert at == len(unit)


@pytest.mark.parametrize("name", KINDS)
def test_fields_of_every_kind_of_message(name: str, tmp_path: Path) -> None:
    message = write_small_store(tmp_path).messages[name]
    unit = oracle.encode_message(message)
    fields = unit_fields(unit)
    _whole(unit)
    values = {field.name: field.value for field in fields}
    assert "rest" not in values
    assert values["topic"] == message.topic
    for field in ("queue_id", "queue_offset", "physical_offset", "reconsume_times"):
        assert int(values[field]) == getattr(message, field)
    assert [field.value for field in fields if field.name == "property"] == [
        f"{key} = {value}" for key, value in message.properties.items()
    ]
    known = {name.replace("host", "ip") for name, _ in FIELDS}
    assert known <= {field.name for field in fields}


@given(st.binary(max_size=400))
def test_any_bytes_are_fields(data: bytes) -> None:
    _whole(data)


@given(st.integers(0, 700), st.integers(0, 255), st.integers(0, 700))
def test_damaged_units_are_fields(at: int, byte: int, length: int) -> None:
    unit = bytearray(oracle.encode_message(KINDS["v6"]))
    unit[at % len(unit)] = byte
    _whole(bytes(unit[:length]))

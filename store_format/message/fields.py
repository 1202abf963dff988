"""Every field of one message unit with its position and value, down to single properties: for hex dumps.

The fields cover all bytes, whatever they are. Nothing is raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

import numpy as np

from store_format.format_tables import field_meanings
from store_format.java.text import decode_utf8
from store_format.layouts import (
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
)
from store_format.message import sysflag
from store_format.message.hosts import format_host
from store_format.message.one import find_parts, head_layout, read_head

_MAGICS = {
    MAGIC_V1: "a message, its topic length in one byte",
    MAGIC_V2: "a message, its topic length in two bytes",
    MAGIC_BLANK: "blank",
}
_LENGTHS = {"topic": "bytes of the topic", "properties": "bytes of the properties"}


@dataclass(frozen=True, slots=True)
class UnitField:
    """Bytes [start, start + size) of a unit, their value in words, and the meaning of the field (`about`)."""

    start: int
    size: int
    name: str
    value: str
    about: str = ""


def unit_fields(unit: bytes) -> list[UnitField]:
    """Returns the fields in their order. Bytes that belong to no field are a field `rest`."""
    layout = head_layout(unit)
    fields = list(_head_fields(unit, layout))
    at = sum(field.size for field in fields)
    if at == layout.itemsize:
        fields += _tail_fields(unit)
        at = sum(field.size for field in fields)
    if at < len(unit):
        fields.append(UnitField(at, len(unit) - at, "rest", "bytes that belong to no field"))
    return fields


@lru_cache(maxsize=1)
def _meanings() -> dict[str, str]:
    return field_meanings("MESSAGE_HEAD")


def _head_fields(unit: bytes, layout: np.dtype[np.void]) -> Iterator[UnitField]:
    ip = b""
    for name, (kind, at, *_) in (layout.fields or {}).items():
        part = unit[at : at + kind.itemsize]
        if len(part) < kind.itemsize:
            return
        number = int.from_bytes(part, "big", signed=kind.kind == "i")
        value = str(number)
        if name.endswith("_ip"):
            ip = part
            value = format_host(part, 0).rpartition(":")[0]
        elif name.endswith("_port"):
            value = f"{number}: {format_host(ip, number)}"
        elif name == "magic":
            value = f"0x{number:08X}: {_MAGICS.get(number, 'no kind of record')}"
        elif name == "body_crc":
            value = f"0x{number & 0xFFFFFFFF:08X}"
        elif name == "sys_flag":
            value = f"0x{number & 0xFFFFFFFF:X}: {sysflag.describe(number)}"
        elif name.endswith("_timestamp"):
            value = f"{number}{_time_text(number)}"
        yield UnitField(at, kind.itemsize, name, value, _meanings().get(name, "").partition(";")[0])


def _time_text(ms: int) -> str:
    try:
        return f": {(datetime(1970, 1, 1) + timedelta(milliseconds=ms)).isoformat(timespec='milliseconds')}Z"
    except OverflowError:
        return ""


def _tail_fields(unit: bytes) -> Iterator[UnitField]:
    """Yields body, topic and properties with their lengths, as far as the lengths fit."""
    head = read_head(unit)
    assert head is not None
    parts, _ = find_parts(unit, 0, len(unit), head)
    if parts.body_start + parts.body_length > len(unit):
        return
    if parts.body_length:
        size = parts.body_length
        yield UnitField(parts.body_start, size, "body", f"{size} bytes", "as stored, perhaps compressed")
    for name, start, length in (
        ("topic", parts.topic_start, parts.topic_length),
        ("properties", parts.properties_start, parts.properties_length),
    ):
        if length is None:
            return
        at = parts.body_start + parts.body_length if name == "topic" else start - 2
        yield UnitField(at, start - at, f"{name}_length", str(length), _LENGTHS[name])
        if not 0 <= length <= len(unit) - start:
            return
        if name == "topic" and length:
            yield UnitField(start, length, "topic", decode_utf8(unit[start : start + length]))
        elif length:
            yield from _property_fields(unit[start : start + length], start)


def _property_fields(raw: bytes, at: int) -> Iterator[UnitField]:
    """Yields a field for each segment with its closing 0x02; `about` marks segments that Java ignores."""
    start = 0
    while start < len(raw):
        stop = raw.find(PROPERTY_SEPARATOR, start)
        stop = len(raw) if stop < 0 else stop
        name, _, value = raw[start:stop].partition(bytes([NAME_VALUE_SEPARATOR]))
        about = "" if name and value else "no name or no value: not read as a property"
        size = min(stop + 1, len(raw)) - start
        yield UnitField(at + start, size, "property", f"{decode_utf8(name)} = {decode_utf8(value)}", about)
        start += size

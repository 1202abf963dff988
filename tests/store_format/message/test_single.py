"""`decode_unit` accepts what `locate` accepts, with the same fields, and explains the rest as it does."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from store_format.errors import CorruptStoreError
from store_format.files.paths import StoreFile
from store_format.message.encode import stored_messages
from store_format.message.locate import Identity, UnitRefs, locate
from store_format.message.single import SingleUnit, UnitPlace, decode_unit
from tests.support import oracle
from tests.support.oracle import Message

V6 = ("2001:db8:0:0:0:0:0:1", 7)
MESSAGES = [
    Message(b"Orders", queue_id=2, queue_offset=5, physical_offset=1000, body=b"body", flag=-3),
    Message(b"t" * 140, b"", b"TAGS\x01a\x02", magic=0xDAA320AB, queue_offset=1, physical_offset=1000),
    Message(b"T", physical_offset=1000, body=b"x" * 300, born_host=V6, store_host=V6, sys_flag=0x30),
    Message(b"T", physical_offset=1000, body=b"y", born_host=V6, sys_flag=0x10, reconsume_times=7),
]
_FILE_START = 488


def _place(message: Message, unit: bytes) -> UnitPlace:
    return UnitPlace(
        "commitlog/0", _FILE_START, message.physical_offset, len(unit), message.topic_bytes.decode(),
        message.queue_id, message.queue_offset,
    )  # fmt: skip


def _refs(unit: bytes, place: UnitPlace) -> UnitRefs:
    """The same unit for `locate`, in a file whose other bytes are zeros."""
    buffer = np.zeros(place.physical_offset - _FILE_START + len(unit), np.uint8)
    buffer[place.physical_offset - _FILE_START :] = np.frombuffer(unit, np.uint8)
    identity = Identity((place.topic,), None, np.array([place.queue_id]), np.array([place.queue_offset]))
    at, file = (
        np.array([place.physical_offset - _FILE_START]),
        StoreFile(place.path, _FILE_START, len(buffer)),
    )
    return UnitRefs(file, buffer, at, at + _FILE_START, np.array([place.size]), None, identity)


@pytest.mark.parametrize("message", MESSAGES)
def test_the_fields_are_those_of_locate(message: Message) -> None:
    unit = oracle.encode_message(message)
    place = _place(message, unit)
    found = decode_unit(unit, place)
    units, bad = locate(_refs(unit, place), verify_crc=True)
    assert not bad
    columns = stored_messages([units]).messages
    for name in ("flag", "sys_flag", "born_timestamp", "store_timestamp", "reconsume_times",
                 "prepared_transaction_offset"):  # fmt: skip
        assert getattr(found.head, name) == int(np.asarray(getattr(columns, name))[0]), name
    assert (found.body, found.properties) == (columns.body[0].as_py(), columns.properties[0].as_py())
    for which in ("born", "store"):
        ip, port = getattr(found.head, f"{which}_ip"), getattr(found.head, f"{which}_port")
        wide = np.asarray(getattr(columns, f"{which}_ip"))[0].tobytes()
        assert (ip.ljust(16, b"\0"), port) == (wide, int(np.asarray(getattr(columns, f"{which}_port"))[0]))


@pytest.mark.parametrize("message", MESSAGES)
def test_damage_is_found_and_explained_as_by_locate(message: Message) -> None:
    """Each byte is changed once, and the unit is cut at some places."""
    unit, random = oracle.encode_message(message), Random(3)
    place = _place(message, unit)
    for position in range(len(unit)):
        changed = bytearray(unit)
        changed[position] ^= random.randrange(1, 256)
        _compare(bytes(changed), place)
    for size in (0, 50, 88, 91, len(unit) - 1):
        with pytest.raises(CorruptStoreError):
            decode_unit(unit[:size], place)


def _compare(unit: bytes, place: UnitPlace) -> None:
    _, bad = locate(_refs(unit, place), verify_crc=True)
    found: SingleUnit | CorruptStoreError
    try:
        found = decode_unit(unit, place)
    except CorruptStoreError as error:
        found = error
    if bad:
        assert isinstance(found, CorruptStoreError)
        assert str(found) == str(bad[0].error)
    else:
        assert isinstance(found, SingleUnit)

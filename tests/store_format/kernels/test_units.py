"""The kernels accept exactly the units that the plain code accepts, and find the same parts in them."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.message.locate import Identity, UnitRefs, locate
from tests.support.oracle import Message
from tests.support.rows import placed, unit_refs
from tests.support.strategies import messages, torn

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())["messages"]
BASE = 2**40
LIGHT = "%LMQ%q"
FIELDS = ("magic", "flag", "queue_offset", "store_timestamp", "store_port", "body_length")


def refs_of(data: bytes, positions: list[int], sizes: list[int], who: Identity | None = None) -> UnitRefs:
    places, lengths = np.array(positions, np.int64), np.array(sizes, np.int64)
    return unit_refs(data, BASE, places, lengths, identity=who)


def outcome(refs: UnitRefs, *, verify_crc: bool) -> tuple[int, list[Any]]:
    """Everything that `locate` says about the units; the first is how many are good."""
    units, bad = locate(refs, verify_crc=verify_crc, with_bodies=True)
    found: list[Any] = [(unit.index, str(unit.error), type(unit.error)) for unit in bad]
    found += [getattr(units.parts, name).tolist() for name in units.parts.__slots__]
    found += [units.stored_bodies().to_pylist(), units.refs.positions.tolist()]
    found += [*(units.integers(name).tolist() for name in FIELDS)]
    return len(units), found


def compare(refs: UnitRefs, *, verify_crc: bool) -> int:
    """Compares the kernels with the plain code; returns how many units are good."""
    assert kernels.units is not None  # numba is loaded, so that the batches take the kernels
    by_kernel = outcome(refs, verify_crc=verify_crc)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ready", lambda rows=0: False)
        assert outcome(refs, verify_crc=verify_crc) == by_kernel
    return by_kernel[0]


@pytest.mark.parametrize("vector", VECTORS[:6], ids=lambda vector: vector["name"])
def test_every_flipped_bit_of_units_of_a_broker(vector: dict) -> None:
    unit = bytearray.fromhex(vector["hex"])
    size, bits = len(unit), 8 * len(unit)
    copies = np.tile(np.frombuffer(unit, np.uint8), (bits + 1, 1))
    positions = np.arange(bits + 1) * size
    copies[:, 28:36] = (positions + BASE).astype(">i8").view(np.uint8).reshape(-1, 8)
    flipped = np.arange(bits)
    copies[flipped, flipped // 8] ^= (1 << flipped % 8).astype(np.uint8)
    queue_id, _, queue_offset = struct.unpack_from(">iiq", unit, 12)
    topic = stored_topic(unit).decode()
    who = Identity(
        (topic,), None, np.full(bits + 1, queue_id, np.int32), np.full(bits + 1, queue_offset, np.int64)
    )
    refs = refs_of(copies.tobytes(), positions.tolist(), [size] * (bits + 1), who)
    intact, fitting = compare(refs, verify_crc=True), compare(refs, verify_crc=False)
    body_bits = 8 * unit[(88 + 12 * (unit[39] >> 4 & 3).bit_count()) - 1]
    assert 0 < intact <= fitting - body_bits < bits


def stored_topic(unit: bytearray) -> bytes:
    head = 88 + 12 * (unit[39] >> 4 & 3).bit_count()
    (body,) = struct.unpack_from(">i", unit, head - 4)
    at = head + body
    width = 1 if unit[7] == 0xA7 else 2
    return bytes(unit[at + width : at + width + int.from_bytes(unit[at : at + width], "big")])


@given(
    st.lists(messages(), min_size=1, max_size=5), st.data(), st.booleans(),
    st.sampled_from(["scan", "one topic", "topics"]),
)  # fmt: skip
def test_any_units_damaged_or_not(
    drawn: list[Message], data: st.DataObject, verify_crc: bool, source: str
) -> None:
    log, stored = placed(drawn, BASE)
    positions = [message.physical_offset - BASE for message in stored]
    sizes = [message.total_size for message in stored]
    who = None
    if source != "scan":
        names = tuple(dict.fromkeys(message.topic_bytes.decode() for message in stored))
        names = (names[0],) if source == "one topic" else (*names, LIGHT)
        index = [names.index(m.topic_bytes.decode()) if source == "topics" else 0 for m in stored]
        if source == "topics" and data.draw(st.booleans()):
            index[0] = data.draw(st.integers(0, len(names) - 1))
        who = Identity(
            names,
            None if source == "one topic" else np.array(index, np.int32),
            np.array([message.queue_id for message in stored], np.int32),
            np.array([message.queue_offset for message in stored], np.int64),
            tuple(name == LIGHT for name in names),
        )
    if data.draw(st.booleans()):
        log = data.draw(torn(log)).data
    if data.draw(st.booleans()):
        positions[0] = data.draw(st.sampled_from([-1, 1, 2**62, -(2**63)]))
    if data.draw(st.booleans()):
        sizes[-1] = data.draw(st.sampled_from([-1, 0, 90, 91, sizes[-1] - 1, sizes[-1] + 1, 2**31, 2**62]))
    compare(refs_of(log, positions, sizes, who), verify_crc=verify_crc)

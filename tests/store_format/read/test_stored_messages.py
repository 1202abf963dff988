"""Stored messages as columns to write again: encoded at their old places, they are the same bytes.

Units that are read together are the bytes of the commitlog, whatever lies between them.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
import pytest

from store_format import MessageStore
from store_format.files.view import FileView
from store_format.message.encode import edited_properties, encode
from store_format.message.locate import Identity
from store_format.message.properties import PropertyTable
from store_format.message.single import HEAD_SIZE_MAX
from store_format.read.stored_messages import read_stored, read_stored_slice, read_units
from tests.support.fixtures import Golden
from tests.support.popped import TOPIC, popped_store

GOLDENS = ("basic-4.9.7", "delay-tx-5.5.0", "edge-5.5.0", "retry-dlq-5.5.0", "pop-5.5.0")


@pytest.mark.parametrize("name", GOLDENS)
def test_columns_encode_to_the_stored_bytes(golden: Golden, name: str) -> None:
    store = MessageStore.open(str(golden(name)))
    count = 0
    for queue in store.queues():
        if queue.topic.startswith("%LMQ%"):
            continue  # its messages have another topic
        messages, offsets, bad = read_stored_slice(store.log, queue.piece())
        assert not bad
        assert offsets.tolist() == messages.queue_offsets.tolist()
        units = list(encode(messages.messages))
        assert units == [
            store.log.read(int(at), len(unit))
            for at, unit in zip(messages.physical_offsets, units, strict=True)
        ]
        count += len(units)
    assert count > 20


def test_order_gaps_and_damage(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    store = MessageStore.open(str(root))
    queue = next(queue for queue in store.queues() if queue.max_offset - queue.min_offset > 8)
    whole, _, _ = read_stored_slice(store.log, queue.piece())
    at, sizes = whole.physical_offsets, np.array([len(unit) for unit in encode(whole.messages)])
    backwards, places, bad = read_stored(store.log, at[::-1].copy(), sizes[::-1].copy())
    assert (backwards.physical_offsets.tolist(), bad) == (at[::-1].tolist(), [])
    assert places.tolist() == list(range(len(at)))
    assert (
        backwards.take(np.array([2, 0])).queue_offsets.tolist() == whole.queue_offsets[::-1][[2, 0]].tolist()
    )
    # a byte of a body is damaged, an offset is outside of the log
    file = store.log.file_at(int(at[3]))
    assert file is not None
    with open(file.path, "r+b") as opened:
        opened.seek(int(at[3]) - file.start + sizes[3] - 40)
        byte = opened.read(1)
        opened.seek(-1, 1)
        opened.write(bytes([byte[0] ^ 1]))
    store = MessageStore.open(str(root))
    asked = np.concatenate([at[:5], [1 << 50]])
    found, places, bad = read_stored(store.log, asked, np.concatenate([sizes[:5], [100]]))
    hurt = [each.index for each in bad]
    assert set(places.tolist()) | set(hurt) == set(range(5))
    assert found.physical_offsets.tolist() == asked[places].tolist()


def test_another_queue_s_message_is_damage(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    first, second = [queue for queue in store.queues("TopicA".__ne__) if queue.max_offset > 3][:2]
    messages, _, _ = read_stored_slice(store.log, second.piece())
    count = len(messages)
    identity = Identity((first.topic,), None, np.full(count, 99, np.int32), messages.queue_offsets)
    sizes = np.array([len(unit) for unit in encode(messages.messages)])
    found, places, bad = read_stored(store.log, messages.physical_offsets, sizes, identity)
    assert (len(found), len(places), len(bad)) == (0, 0, count)


def test_properties_are_edited_in_the_order_of_a_hash_map() -> None:
    raw = pa.array([b"TAGS\x01a\x02KEYS\x01k\x02", b"DELAY\x013\x02x\x01y\x02"], pa.large_binary())
    edited = edited_properties(
        raw, {"WAIT": "false", "KEYS": pa.array([None, "new"])}, removed=("TAGS", "absent")
    )
    maps = PropertyTable(edited.cast(pa.binary())).map_array().to_pylist()
    assert [dict(each) for each in maps] == [
        {"KEYS": "k", "WAIT": "false"},
        {"DELAY": "3", "x": "y", "KEYS": "new", "WAIT": "false"},
    ]
    again = edited_properties(edited, {})
    assert again.equals(edited)  # the order is that of the map, whoever puts the properties


# ---- bytes of units ----------------------------------------------------------------------------------------


def test_units_across_files_with_gaps(tmp_path: Path) -> None:
    store = MessageStore.open(str(popped_store(tmp_path / "s", 400)))
    assert len(store.log.files) > 3
    _, entries = store.queue(TOPIC, 0).piece().read()
    places = list(zip(entries["physical_offset"].tolist(), entries["size"].tolist(), strict=True))
    random = Random(7)
    for count in (1, 2, 32, 400):
        chosen = sorted(random.sample(places, count))
        for (offset, size), found in zip(chosen, read_units(store.log, chosen), strict=True):
            assert found is not None
            file, data = found
            assert file == store.log.file_at(offset)
            assert data == store.log.read(offset, size)


def test_places_that_are_not_there(tmp_path: Path) -> None:
    store = MessageStore.open(str(popped_store(tmp_path / "s", 400)))
    file = store.log.files[1]
    Path(file.path).unlink()
    beyond = store.log.stop
    found = read_units(store.log, [(0, 100), (file.start, 100), (file.start + 100, 50), (beyond, 100)])
    assert [each is None for each in found] == [False, True, True, True]
    assert read_units(store.log, []) == []


def test_a_damaged_size_reads_no_gigabyte(tmp_path: Path) -> None:
    store = MessageStore.open(str(popped_store(tmp_path / "s", 3, file_size=1 << 26)))
    (found,) = read_units(store.log, [(0, 2**31 - 2)])
    assert found is not None
    file, data = found
    with FileView(file.path) as view:
        assert data == view.read(0, HEAD_SIZE_MAX)

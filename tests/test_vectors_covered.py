"""Every section of vectors.json is used by a test; a section that nobody lists here, or a test that no longer
names it, fails.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.walk import Damage
from store_format.files.paths import StoreFile
from store_format.layouts import DLEDGER_HEAD, unpack
from store_format.message.single import UnitCheck, UnitKind, check_unit
from store_format.names import DELAY_LEVELS_MS
from tests.support import oracle
from tests.support.rows import ALL, BROKER, expected_row, table_rows
from tests.test_oracle import VECTORS, vector_message

ROOT = Path(__file__).parent

# Section -> the tests of the project's own code that use it; the oracle's are all in test_oracle.py.
USED = {
    "meta": [],  # how the file was made
    "checked_against": [],
    "java_string_hash": ["store_format/java/test_hashes.py"],
    "index_key_hash": ["store_format/java/test_hashes.py"],
    "crc": ["store_format/message/test_encode.py"],
    "crc_property": ["store_format/message/test_properties.py"],
    "offset_msg_id": ["store_format/message/test_hosts.py"],
    "uniq_key_id": ["test_oracle.py"],  # made by clients: a string like any other here
    "file_names": ["test_vectors_covered.py"],
    "index_file_name": ["store_format/index/test_file.py"],
    "delay_levels_default_ms": ["test_vectors_covered.py"],
    "properties": ["store_format/message/test_properties.py"],
    "properties_parse": [
        "store_format/message/test_properties.py",
    ],
    "messages": [
        "store_format/message/test_columns.py",
        "store_format/message/test_encode.py",
    ],
    "batch_wire_body": ["store_format/message/test_inner_batch.py"],
    "batch_cq_entry": ["store_format/consumequeue/test_batch.py"],
    "cq_entry": ["store_format/consumequeue/test_simple.py"],
    "cq_pre_blank_entry": ["store_format/consumequeue/test_simple.py"],
    "cq_ext": ["store_format/consumequeue/test_ext.py"],
    "blank": ["test_vectors_covered.py"],
    "mini_store": ["test_vectors_covered.py", "store_format/index/test_file.py"],
    "index_worked_default": ["store_format/index/test_updates.py"],
    "checkpoint": ["store_format/metadata/test_checkpoint.py"],
    "timer": ["store_format/metadata/test_timer.py", "store_format/metadata/test_timer_write.py"],
    "rocksdb_cq": ["test_oracle.py"],  # not read: the commitlog serves such stores
    "java_hashmap_order": ["store_format/message/test_properties.py"],
    "dledger": ["test_vectors_covered.py"],
    "pop_json": ["store_format/pop/test_broker_in_flight.py"],
}


def test_every_section_is_listed() -> None:
    assert set(USED) == set(VECTORS)


@pytest.mark.parametrize("section", [section for section, tests in USED.items() if tests])
def test_the_tests_listed_name_the_section(section: str) -> None:
    for test in USED[section]:
        text = (ROOT / test).read_text(encoding="utf-8")
        assert re.search(rf'\[\s*"{section}",?\s*\]', text), test


# ---- sections that no room's own test uses -----------------------------------------------------------------


def test_small_tables() -> None:
    for vector in VECTORS["file_names"]:
        assert StoreFile.name_at(vector["offset"]) == vector["name"]
    assert {str(level): delay for level, delay in enumerate(DELAY_LEVELS_MS, 1)} == VECTORS[
        "delay_levels_default_ms"
    ]


@pytest.mark.parametrize("vector", VECTORS["blank"], ids=lambda vector: str(vector["wrote_position"]))
def test_blank(vector: dict[str, Any]) -> None:
    remaining = vector["file_size"] - vector["wrote_position"]
    rolls = vector["msg_len_to_append"] + 8 > remaining
    assert rolls is vector["rolls"]
    if rolls and "hex_first_8" in vector:
        head = bytes.fromhex(vector["hex_first_8"])
        assert check_unit(
            head + b"stale", 0, remaining, physical_offset=vector["wrote_position"]
        ) == UnitCheck(UnitKind.BLANK, remaining)


def test_dledger() -> None:
    vector = VECTORS["dledger"]["entry_header"]
    (head,) = unpack(bytes.fromhex(vector["hex"]), DLEDGER_HEAD).tolist()
    assert dict(zip(DLEDGER_HEAD.names or (), head, strict=True)) == {
        name: vector[name] for name in DLEDGER_HEAD.names or ()
    }


def test_mini_store(tmp_path: Path) -> None:
    """Written as the vectors say, it reads as what its makers put in."""
    vector = VECTORS["mini_store"]
    queues = {f"consumequeue/{queue}": files for queue, files in vector["consumequeue"].items()}
    for folder, files in {"commitlog": vector["commitlog"], **queues}.items():
        (tmp_path / folder).mkdir(parents=True)
        for name, content in files.items():
            (tmp_path / folder / name).write_bytes(bytes.fromhex(content))
    shared = {name: vector["config"][name] for name in ("born_timestamp", "born_host", "store_host")}
    messages = []
    for inputs, place in zip(vector["inputs"], vector["messages"], strict=True):
        messages.append(vector_message(shared | inputs, place["physical_offset"], place["queue_offset"]))
        assert messages[-1].total_size == place["size"]

    store = MessageStore.open(str(tmp_path), broker_name=BROKER)
    assert store.state is StoreState.CLEAN
    assert [(queue.topic, queue.queue_id) for queue in store.queues()] == [("TopicTest", 0), ("TopicTest", 1)]
    for queue in store.queues():
        right = [
            expected_row(m, tags_code=oracle.tags_code(m)) for m in messages if m.queue_id == queue.queue_id
        ]
        assert table_rows(queue.read(columns=ALL)) == right
    assert table_rows(store.scan(ALL)) == [expected_row(m, tags_code=oracle.tags_code(m)) for m in messages]
    walk = store.log.walk(0)
    assert sum(len(run.positions) for run in walk if not isinstance(run, Damage)) == len(messages)
    assert walk.end is not None
    assert walk.end.offset == vector["max_phy_offset"]

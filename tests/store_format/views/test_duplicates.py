"""The view `duplicates`: what was stored twice, what only looks so, the same rows in any number of passes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.views import duplicates
from tests.support import oracle
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.staged import append, make_store, numbered

AT = 1_700_000_100_000
Row = tuple[Any, ...]


def store_at(root: Path, at_ms: int, topic: str, *messages: tuple[int, dict[str, str]]) -> None:
    """Messages (queue, properties), stored at a time."""
    made = [
        Message(topic.encode(), b"{}", oracle.encode_properties(properties), queue, born_timestamp=at_ms)
        for queue, properties in messages
    ]
    append(root, made, options=CommitOptions(clock=lambda: at_ms))


@pytest.fixture
def root(root: Path) -> Path:
    store_at(root, AT, "T", (0, {"UNIQ_KEY": "A", "KEYS": "o1 o1"}), (1, {"UNIQ_KEY": "B", "KEYS": "o2 red"}))
    store_at(root, AT + 1000, "T", (3, {"UNIQ_KEY": "A", "KEYS": "o1 o1"}), (2, {}), (2, {"TAGS": "t"}))
    blue = {"UNIQ_KEY": "C", "KEYS": "o2 blue"}
    store_at(root, AT + 5000, "T", (1, blue), (0, {"UNIQ_KEY": "D", "KEYS": "o2"}))
    store_at(root, AT + 6000, "Other", (0, {"UNIQ_KEY": "A", "KEYS": "o1"}))
    store_at(root, AT + 7000, "T", (0, {"UNIQ_KEY": "B", "ORIGIN_MESSAGE_ID": "B", "KEYS": "o2"}))
    return root


def rows_of(table: pa.Table) -> list[Row]:
    """(by, value, copies, first queue and offset, queue and offset, ms between)."""
    place = ("firstQueueId", "firstQueueOffset", "queueId", "queueOffset")
    names = ("by", "value", "copies", *place, "betweenMs")
    return sorted(tuple(row[name] for name in names) for row in table.to_pylist())


EXPECTED = [
    ("key", "o2", 3, 1, 0, 0, 1, 5000),
    ("key", "o2", 3, 1, 0, 1, 1, 5000),
    ("msgId", "A", 2, 0, 0, 3, 0, 1000),
]


def test_what_was_stored_again_in_its_topic(root: Path) -> None:
    table = MessageStore.open(str(root)).view("duplicates")
    assert rows_of(table) == EXPECTED
    row = next(row for row in table.to_pylist() if row["by"] == "msgId")
    assert (row["brokerName"], row["topic"]) == ("broker-a", "T")
    between = row["storeTimestamp"] - row["firstStoreTimestamp"]
    assert between.total_seconds() == 1
    assert row["firstPhysicalOffset"] == 0 < row["physicalOffset"]


@pytest.mark.parametrize(("slots", "texts"), [(1, 1), (2, 3), (1 << 16, 1), (4, 1000)])
def test_the_rows_are_the_same_in_any_number_of_passes(root: Path, slots: int, texts: int) -> None:
    queues = MessageStore.open(str(root)).queues("T".__eq__)
    found = [
        (row["text"], row["first_physical"], row["physical"])
        for table in duplicates._of_topic(queues, slots_max=slots, texts_max=texts)
        for row in table.to_pylist()
    ]
    kinds = {"key": "K", "msgId": "U"}
    expected = [
        (kinds[row["by"]] + row["value"], row["firstPhysicalOffset"], row["physicalOffset"])
        for row in MessageStore.open(str(root)).view("duplicates").to_pylist()
    ]
    assert sorted(found) == sorted(expected)


def test_nothing_is_double_in_a_store_without_repeats(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    append(root, [each for each in numbered("T", 0, 300) if b"even" not in each.properties_bytes])
    assert MessageStore.open(str(root)).view("duplicates").num_rows == 0


def test_the_brokers_copies_of_one_message_are_no_duplicates(golden: Golden) -> None:
    for name in ("retry-dlq-5.5.0", "delay-tx-5.5.0", "pop-5.5.0"):
        table = MessageStore.open(str(golden(name))).view("duplicates")
        assert [row for row in table.to_pylist() if row["by"] == "msgId"] == [], name

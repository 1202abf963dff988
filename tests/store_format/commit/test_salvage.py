"""Salvaged copies, and recoveries, of stores with messages that a broker serves all the same."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store_format.commit.recover import recover
from store_format.errors import CorruptStoreError
from tests.support import oracle
from tests.support.file_edits import overwrite
from tests.support.reads import flip
from tests.support.referee.law import tree
from tests.support.referee.made import BrokerStore
from tests.support.staged import Rows, rows_by_queue

SIZE_AT, MAGIC_AT, QUEUE_ID_AT, OFFSET_AT, PHYSICAL_AT, BODY_AT = 3, 7, 15, 27, 35, 88


def _salvaged(root: Path) -> Rows:
    target = root.with_name("copy")
    recover(str(root), into=str(target), salvage=True).apply()
    return rows_by_queue(target)


def _file(root: Path, queue: str, entry: int = 0) -> Path:
    return root / "consumequeue" / queue / oracle.file_name(entry * 20)


@pytest.fixture
def store(tmp_path: Path) -> BrokerStore:
    """Five messages of one queue."""
    store = BrokerStore(tmp_path / "store")
    for _ in range(5):
        store.put("A")
    return store


@pytest.mark.parametrize("crashed", [False, True])
@pytest.mark.parametrize("number", [1, 4])
@pytest.mark.parametrize("at", [SIZE_AT, MAGIC_AT, OFFSET_AT, PHYSICAL_AT])
def test_a_record_that_is_whole_apart_from_its_numbers_gets_them_right(
    store: BrokerStore, at: int, number: int, crashed: bool
) -> None:
    root = store.write(crashed=crashed)
    before = rows_by_queue(root)
    flip(root, store.messages[number].physical_offset + at)
    rows = recover(str(root), into=str(root.with_name("new")), salvage=True).table().to_pylist()
    assert [row["entries"] for row in rows if row["action"] in ("restore", "lost", "salvage")] == [1]
    assert _salvaged(root) == before


def test_a_recovery_in_place_does_not_cut_off_a_record_that_a_broker_hands_out(store: BrokerStore) -> None:
    root = store.write()
    flip(root, store.messages[-1].physical_offset + MAGIC_AT)
    with pytest.raises(CorruptStoreError, match="in 1 messages that a broker hands out all the same"):
        recover(str(root)).apply()
    recover(str(root), cut_after_damage=True).apply()
    assert len(rows_by_queue(root)["A", 0]) == 4


def test_a_recovery_goes_on_behind_a_record_of_which_only_the_physical_offset_is_wrong(
    store: BrokerStore,
) -> None:
    """As a broker does, which serves the record."""
    root = store.write()
    flip(root, store.messages[-1].physical_offset + PHYSICAL_AT)
    before = tree(root)
    recover(str(root)).apply()
    assert tree(root) == before


def test_a_light_queue_keeps_the_message_that_its_own_entry_contradicts(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path / "store", conf={"enableLmq": "true", "enableMultiDispatch": "true"})
    for at in range(4):
        light = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": str(at)}
        store.put("Parent", properties=light)
    root = store.write()
    before = rows_by_queue(root)
    flip(root, store.messages[2].physical_offset + OFFSET_AT)
    assert _salvaged(root) == before


def test_a_message_whose_place_has_zeros_belongs_there_though_the_next_entry_leads_to_it(
    tmp_path: Path,
) -> None:
    store = BrokerStore(tmp_path / "store")
    store.put("A")
    root = store.write()
    overwrite(_file(root, "A/0"), 0, bytes(20) + _file(root, "A/0").read_bytes()[:20])
    assert _salvaged(root) == {("A", 0): [(0, 0)]}


def test_an_entry_beside_entries_that_lead_nowhere_contradicts_no_message(store: BrokerStore) -> None:
    """The log is another store's: a message begins where an entry leads to by chance."""
    root = store.write()
    for entry, physical in enumerate([store.messages[1].physical_offset, 3000, 3100, 3200, 3300]):
        overwrite(_file(root, "A/0"), entry * 20, physical.to_bytes(8))
    assert [offset for offset, _ in _salvaged(root)["A", 0]] == [0, 1, 2, 3, 4]


def test_an_entry_contradicts_no_message_whose_queue_has_entries_of_others(tmp_path: Path) -> None:
    """The log is another store's: the only entry of A-1 leads to a message of A-0 by chance."""
    store = BrokerStore(tmp_path / "store")
    for offset in (0, 4, 5, 6):
        store.put("A", offset=offset)
    first, *others = store.entries["A", 0]
    store.entries |= {("A", 0): others, ("A", 1): [first]}
    store.first["A", 1] = 0
    assert [offset for offset, _ in _salvaged(store.write())["A", 0]] == [0, 4, 5, 6]


def test_entries_of_a_shifted_file_are_no_beginning(store: BrokerStore) -> None:
    root = store.write()
    before = rows_by_queue(root)
    queue = _file(root, "A/0")
    queue.write_bytes(b"\0" + queue.read_bytes()[:-1])
    assert _salvaged(root) == before


def test_a_directory_between_queue_files_stays_out_of_the_copy(store: BrokerStore) -> None:
    store.put("A", 1)
    root = store.write()
    before = rows_by_queue(root)
    _file(root, "A/0", entry=8).mkdir()
    assert _salvaged(root) == before


@pytest.mark.parametrize("is_copied", [False, True])
def test_a_queue_that_a_broker_builds_is_built_with_the_entries_before_its_messages(
    tmp_path: Path, is_copied: bool
) -> None:
    """A broker files the messages behind the newest entry of all queues: B-0 gets one, and C-0 has none."""
    store = BrokerStore(tmp_path / "store", queue_entries=2)
    for topic in "BBBCC":
        store.put(topic)
    root = store.write()
    _file(root, "B/0", entry=2).write_bytes(bytes(40))
    shutil.rmtree(root / "consumequeue/C")
    if not is_copied:
        recover(str(root)).apply()
    found = _salvaged(root) if is_copied else rows_by_queue(root)
    assert {key: len(rows) for key, rows in found.items()} == {("B", 0): 3, ("C", 0): 2}


def test_a_queue_that_a_broker_builds_after_a_crash_is_not_of_a_deleted_topic(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path / "store")
    store.put("A", 1)
    for offset in (0, 1, 1, 2):
        store.put("A", 0, offset=offset)
    store.put("B")
    root = store.write(crashed=True)
    shutil.rmtree(root / "consumequeue/A")
    recover(str(root)).apply()
    assert [offset for offset, _ in rows_by_queue(root)["A", 1]] == [0]


def test_a_message_that_claims_a_queue_that_a_broker_builds_stays_there(store: BrokerStore) -> None:
    store.put("A", 1)
    root = store.write(crashed=True)
    flip(root, store.messages[2].physical_offset + QUEUE_ID_AT, 2)
    recover(str(root)).apply()
    assert _file(root, "A/2").exists()


def test_a_copy_keeps_the_first_of_two_messages_behind_a_damaged_one(tmp_path: Path) -> None:
    """A broker that makes the queue of the copy's log files the second one, too, behind the gap."""
    store = BrokerStore(tmp_path / "store")
    for offset in (0, 1, 2, 3, 3, 4):
        store.put("A", offset=offset)
    root = store.write()
    before = rows_by_queue(root)["A", 0]
    flip(root, store.messages[1].physical_offset + BODY_AT)
    assert _salvaged(root)["A", 0] == [before[0], *before[2:]]


@pytest.mark.parametrize("number", [0, 2])
def test_a_message_far_away_from_the_others_of_its_queue_is_left(store: BrokerStore, number: int) -> None:
    """No entry shows its queue offset, of which a bit was flipped."""
    root = store.write()
    before = rows_by_queue(root)["A", 0]
    overwrite(_file(root, "A/0"), number * 20, before[number - 1][1].to_bytes(8))
    flip(root, store.messages[number].physical_offset + OFFSET_AT - 2, 0x20)
    left = recover(str(root), into=str(root.with_name("new")), salvage=True).table().to_pylist()
    assert [row["entries"] for row in left if row["action"] == "left"] == [1]
    assert _salvaged(root)["A", 0] == before[:number] + before[number + 1 :]


@pytest.mark.parametrize("crashed", [False, True])
def test_an_inner_batch_without_its_number_of_messages_stays_whole(tmp_path: Path, crashed: bool) -> None:
    """No checksum covers the property INNER_NUM, which zeros took: the entry and the body have the number."""
    store = BrokerStore(tmp_path / "store")
    store.topic("Inner", 1, {"queue.type": "BatchCQ"})
    body = oracle.encode_inner_batch(oracle.SubMessage(i, b"part", b"") for i in range(3))
    numbers = {"INNER_BASE": "1", "INNER_NUM": "3"}
    store.put("Inner")
    batch = store.put("Inner", body=body, count=3, sys_flag=0xC0, properties=numbers)
    root = store.write(crashed=crashed)
    before = rows_by_queue(root)["Inner", 0]
    end = batch.physical_offset + batch.total_size
    overwrite(root / "commitlog" / oracle.file_name(0), end - len("_NUM\x013\x02"), bytes(7))
    assert len(before) == 4
    assert _salvaged(root)["Inner", 0] == before
    recover(str(root)).apply()
    assert rows_by_queue(root)["Inner", 0] == before


@pytest.mark.parametrize("crashed", [False, True])
def test_a_message_that_claims_a_place_of_an_inner_batch_takes_none(tmp_path: Path, crashed: bool) -> None:
    """A flipped bit of its queueOffset; its own entry leads to it."""
    store = BrokerStore(tmp_path / "store")
    store.topic("Inner", 1, {"queue.type": "BatchCQ"})
    store.put("Inner")
    flipped = store.put("Inner").physical_offset
    store.put_batch("Inner", 4)
    store.put("Inner")
    root = store.write(crashed=crashed)
    before = rows_by_queue(root)["Inner", 0]
    flip(root, flipped + OFFSET_AT, 4)
    assert _salvaged(root)["Inner", 0] == before


def test_an_entry_of_an_inner_batch_with_a_wrong_physical_offset_stays(tmp_path: Path) -> None:
    """A broker does not compare the physical offset, and hands the batch out."""
    store = BrokerStore(tmp_path)
    store.topic("Inner", 1, {"queue.type": "BatchCQ"})
    for _ in range(3):
        store.put("Inner")
    root = store.write()
    flip(root, store.messages[1].physical_offset + PHYSICAL_AT)
    path = root / "batchconsumequeue/Inner/0" / oracle.file_name(0)
    before = path.read_bytes()
    recover(str(root)).apply()
    assert path.read_bytes() == before

"""Salvaged copies, and recoveries, of stores with messages that a broker serves all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.commit.recover import recover
from store_format.errors import CorruptStoreError, OptionError
from tests.support import oracle
from tests.support.file_edits import overwrite
from tests.support.reads import flip
from tests.support.referee.law import tree
from tests.support.referee.made import BrokerStore, made
from tests.support.staged import Rows, rows_by_queue

SIZE_AT, MAGIC_AT, OFFSET_AT, PHYSICAL_AT = 3, 7, 27, 35


def _salvaged(root: Path) -> Rows:
    target = root.with_name("copy")
    recover(str(root), into=str(target), salvage=True).apply()
    return rows_by_queue(target)


def _file(root: Path, queue: str, entry: int = 0) -> Path:
    return root / "consumequeue" / queue / oracle.file_name(entry * 20)


@pytest.fixture
def store(tmp_path: Path) -> BrokerStore:
    """Five messages of one queue."""
    return made(tmp_path / "store", "A*5")


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


def test_a_copy_gets_the_directories_above_it(store: BrokerStore, tmp_path: Path) -> None:
    root = store.write()
    target = tmp_path / "rescued/today/copy"
    recover(str(root), into=str(target)).apply()
    assert rows_by_queue(target) == rows_by_queue(root)
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match="/file: expected a directory above the copy, found a file"):
        recover(str(root), into=str(tmp_path / "file/x/copy"))


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


def test_an_entry_of_an_inner_batch_with_a_wrong_physical_offset_stays(tmp_path: Path) -> None:
    """A broker does not compare the physical offset, and hands the batch out."""
    store = made(tmp_path, "Inner*3")
    root = store.write()
    flip(root, store.messages[1].physical_offset + PHYSICAL_AT)
    path = root / "batchconsumequeue/Inner/0" / oracle.file_name(0)
    before = path.read_bytes()
    recover(str(root)).apply()
    assert path.read_bytes() == before

"""The facade: what it says about a directory, about queues and times, and about what is not there."""

from __future__ import annotations

import pickle
import pydoc
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import store_format
from store_format import MessageColumns, MessageStore, encode_property_columns
from store_format.bookkeeping.journal import StoreState
from store_format.errors import (
    CorruptStoreError,
    OffsetOutOfRangeError,
    OptionError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from store_format.files.lock import StoreLock
from tests.support import oracle
from tests.support.fixtures import Unchanged
from tests.support.rows import ALL, BROKER, table_rows
from tests.support.small_store import SmallStore, write_small_store
from tests.support.staged import append, make_store, numbered


@pytest.fixture
def small(tmp_path: Path) -> SmallStore:
    return write_small_store(tmp_path / "store")


def opened(small: SmallStore) -> MessageStore:
    return MessageStore.open(str(small.root), broker_name=BROKER)


# ---- opening -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing", "/missing does not exist; give the broker's store directory (storePathRootDir)"),
        ("missing/deeper", "/missing/deeper does not exist; "),
        ("store/lock", "/store/lock is a file; give the broker's store directory"),
        ("store/config", "/store/config is part of a store; the store root is "),
        ("store/commitlog", "/store/commitlog is part of a store; the store root is "),
        ("empty", "/empty is not a store root: expected a directory `commitlog` in it, found nothing"),
        ("other", "/other is not a store root: expected a directory `commitlog` in it, found a, b"),
    ],
)
def test_a_path_that_is_no_store(small: SmallStore, path: str, message: str) -> None:
    base = small.root.parent
    for name in ("empty", "other/a", "other/b"):
        (base / name).mkdir(parents=True)
    with pytest.raises(StoreNotFoundError) as caught:
        MessageStore.open(str(base / path))
    assert message in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_dledger_store_without_its_commitlog_or_with_several_is_named(tmp_path: Path) -> None:
    (tmp_path / "dledger-n0").mkdir()
    with pytest.raises(UnsupportedFormatError, match=r"enableDLegerCommitLog=true.* in dledger-n0/data"):
        MessageStore.open(str(tmp_path))
    for name in ("dledger-n0/data", "dledger-n1/data"):
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(UnsupportedFormatError, match=r"one DLedger node .*found dledger-n0, dledger-n1"):
        MessageStore.open(str(tmp_path))
    given = MessageStore.open(str(tmp_path), commit_log_paths=[str(tmp_path / "dledger-n1/data")])
    assert given.queues() == []


def test_the_broker_is_named_by_option_topics_or_directory(small: SmallStore) -> None:
    assert opened(small).broker_name == BROKER
    assert MessageStore.open(str(small.root)).broker_name == "store"
    (small.root / "config" / "topics.json").write_text(
        '{"topicConfigTable":{"rmq_sys_SYNC_BROKER_MEMBER_b1":{"topicName":"x"}}}'
    )
    assert MessageStore.open(str(small.root)).broker_name == "b1"


def test_a_log_in_several_directories(small: SmallStore) -> None:
    other = small.root.parent / "other disk"
    other.mkdir()
    shutil.move(small.root / "commitlog" / oracle.file_name(2048), other)
    store = MessageStore.open(
        str(small.root), broker_name=BROKER, commit_log_paths=[str(small.root / "commitlog"), str(other)]
    )
    assert {
        (queue.topic, queue.queue_id): table_rows(queue.read(columns=ALL)) for queue in store.queues()
    } == small.rows


def test_reading_changes_nothing(small: SmallStore, unchanged: Unchanged) -> None:
    with unchanged(small.root):
        store = opened(small)
        for queue in store.queues():
            list(queue.read())
        list(store.scan())
        store.survey()
        store.topics()


# ---- state -------------------------------------------------------------------------------------------------

HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


def test_state_by_lock_and_abort(small: SmallStore) -> None:
    lock = small.root / "lock"
    assert opened(small).state is StoreState.CLEAN
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"held\n"
        assert opened(small).state is StoreState.LIVE
        assert StoreLock.holder(str(lock)) == process.pid
        (small.root / "abort").touch()
        assert opened(small).state is StoreState.LIVE
        process.stdin.close()
    assert StoreLock.holder(str(lock)) is None
    assert opened(small).state is StoreState.CRASHED
    lock.unlink()
    assert StoreLock.holder(str(lock)) is None


def test_a_lock_that_is_a_link_is_not_asked(small: SmallStore) -> None:
    lock = small.root / "lock"
    lock.rename(small.root / "elsewhere")
    lock.symlink_to("elsewhere")
    with pytest.raises(CorruptStoreError, match="found a symbolic link"):
        StoreLock.holder(str(lock))


# ---- queues ------------------------------------------------------------------------------------------------


def test_topics_and_queues(small: SmallStore) -> None:
    store = opened(small)
    assert store.topics() == sorted({topic for topic, _ in small.rows})
    assert [(queue.topic, queue.queue_id) for queue in store.queues()] == sorted(small.rows)
    queue = store.queue("Orders", 1)
    assert (queue.topic, queue.queue_id, queue.min_offset, queue.max_offset) == ("Orders", 1, 0, 4)


@pytest.mark.parametrize(
    ("topic", "queue_id", "message"),
    [
        ("Orders", 2, "has no queue Orders-2; its queues are [0, 1]"),
        ("Order", 0, "has no queue Order-0; did you mean Orders?"),
        ("x", 0, "has no queue x-0; the topics are "),
    ],
)
def test_a_queue_that_is_not_there(small: SmallStore, topic: str, queue_id: int, message: str) -> None:
    with pytest.raises(OffsetOutOfRangeError) as caught:
        opened(small).queue(topic, queue_id)
    assert message in str(caught.value)


@pytest.mark.parametrize("start", [-1, 6])
def test_a_start_outside_the_queue(small: SmallStore, start: int) -> None:
    with pytest.raises(
        OffsetOutOfRangeError, match=f"Orders-0: offset {start} is not in the queue; the queue holds 0 to 5"
    ):
        list(opened(small).queue("Orders", 0).read(start))


def test_a_stop_outside_the_queue_is_its_end(small: SmallStore) -> None:
    queue = opened(small).queue("Orders", 0)
    assert table_rows(queue.read(3, 99, columns=ALL)) == small.rows["Orders", 0][3:]
    assert list(queue.read(5)) == list(queue.read(3, 2)) == []


def test_an_unknown_column(small: SmallStore) -> None:
    with pytest.raises(OptionError, match="unknown column 'Body'; the columns are topic, flag, body"):
        list(opened(small).queue("Orders", 0).read(columns=["Body"]))


@pytest.mark.parametrize("how", ["queues", "no queues", "crashed"])
def test_offsets_by_time_by_definition(small: SmallStore, how: str) -> None:
    """Times rise by a millisecond from message to message, so the broker's steps and the definition agree."""
    if how == "no queues":
        shutil.rmtree(small.root / "consumequeue")
        shutil.rmtree(small.root / "batchconsumequeue")
    elif how == "crashed":
        (small.root / "consumequeue" / "Orders" / "0" / oracle.file_name(60)).unlink()
        (small.root / "abort").touch()
    for queue_id in (0, 1):
        queue = opened(small).queue("Orders", queue_id)
        times = [row["storeTimestampMs"] for row in small.rows["Orders", queue_id]]
        for time in range(min(times) - 2, max(times) + 3):
            lower = sum(at < time for at in times)
            upper = max(sum(at <= time for at in times) - 1, 0)
            assert (queue.offset_at(time, "LOWER"), queue.offset_at(time, "UPPER")) == (lower, upper), (
                time,
                times,
            )


def test_a_store_in_one_look_stays_at_its_first_look_at_all_queues(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("Orders", 0, 8))
    store = MessageStore.open(str(root))
    looked = store.in_one_look()
    first = looked.queues()
    append(root, [*numbered("Orders", 8, 8), *numbered("Later", 0, 8)])
    assert looked.queues() == first == looked.queues("Orders".__eq__)
    assert looked.queues("Later".__eq__) == []
    assert [(queue.topic, queue.max_offset) for queue in store.queues()] == (
        [("Later", 2)] * 4 + [("Orders", 4)] * 4
    )


def test_no_consume_queues_at_all(small: SmallStore) -> None:
    shutil.rmtree(small.root / "consumequeue")
    (small.root / "consumequeue").mkdir()
    (small.root / "consumequeue" / "CURRENT").touch()  # as RocksDB leaves it
    shutil.rmtree(small.root / "batchconsumequeue")
    store = opened(small)
    assert not store.has_consume_queues
    with pytest.raises(UnsupportedFormatError, match="only the commitlog can be scanned"):
        store.snapshot()
    with pytest.raises(OffsetOutOfRangeError, match="has no message of queue Orders-7"):
        store.queue("Orders", 7)
    assert table_rows(store.queue("Orders", 0).read(columns=ALL)) == small.rows["Orders", 0]


def test_an_empty_store_has_no_queues(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    store = MessageStore.open(str(tmp_path))
    assert (store.state, store.queues(), store.topics(), list(store.scan())) == (StoreState.CLEAN, [], [], [])


def test_a_store_object_sees_commitlog_files_created_after_it(tmp_path: Path) -> None:
    store = MessageStore.create(str(tmp_path / "store"))
    properties = encode_property_columns(1, {"KEYS": "order-1", "UNIQ_KEY": "id-1"})
    store.append(MessageColumns(topic="Orders", body=pa.array([b"one"]), properties=properties))
    assert store.queue("Orders", 0).to_table()["body"].to_pylist() == [b"one"]
    assert store.find(key="order-1").table["body"].to_pylist() == [b"one"]
    assert [batch.num_rows for batch in store.scan()] == [1]
    assert store.trace("id-1")["what"].to_pylist() == ["born", "stored"]


def test_help_shows_the_public_names() -> None:
    page = pydoc.plain(pydoc.render_doc(store_format))
    assert [name for name in store_format.__all__ if name not in dir(store_format)] == []
    for name in ("MessageStore", "MessageColumns", "CommitOptions", "Queue"):
        assert f"class {name}(" in page
    assert "Appends the messages in one commit" in page

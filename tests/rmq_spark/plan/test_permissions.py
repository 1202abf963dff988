"""What the system does not let a user read: an error that says what to do, to those whom it concerns and to
no others.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.starts import open_stores
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.diagnose import diagnose
from store_format.errors import CorruptStoreError, OptionError, StoreError, StorePermissionError
from tests.support.permissions import as_nobody, open_directory
from tests.support.reads import PLACE, read
from tests.support.small_store import SmallStore, write_small_store
from tests.support.writes import numbered_rows, write


@pytest.fixture
def small() -> Iterator[SmallStore]:
    with open_directory() as directory:
        store = write_small_store(directory / "store")
        topics = {
            name: {"topicName": name, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
            for name in ("Orders", "Parent")
        }
        (store.root / "config" / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
        rows_of(store, subscribe="Orders")  # imports
        yield store


def rows_of(store: SmallStore, **options: str) -> set[tuple[str, int, int]]:
    return set(read(store.root, **{"columns": PLACE, "brokerName": "broker-a"} | options).places())


def lock_out(path: Path) -> Path:
    path.chmod(0)
    return path


@pytest.mark.parametrize(
    "place",
    [
        "",
        "commitlog",
        "consumequeue",
        "batchconsumequeue",
        "consumequeue/Orders",
        "consumequeue/Orders/0",
        "config",
        "config/topics.json",
        "lock",
    ],
)
def test_what_may_not_be_read_is_named_with_what_to_do(small: SmallStore, place: str) -> None:
    path = lock_out(small.root / place)
    with as_nobody(), pytest.raises(StorePermissionError) as caught:
        rows_of(
            small, brokerName="x" if place == "lock" else "broker-a"
        ) if "config" not in place else MessageStore.open(str(small.root))
    error = caught.value
    assert isinstance(error, StoreError)
    assert isinstance(error, PermissionError)
    assert str(error).startswith(str(path))
    assert " may not read it, its owner is " in str(error)
    assert "read permission" in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (StorePermissionError, str(error))
    path.chmod(0o755)


@pytest.mark.parametrize("place", [f"commitlog/{0:020d}", f"consumequeue/Orders/0/{0:020d}"])
def test_a_file_that_may_not_be_read(small: SmallStore, place: str) -> None:
    path = lock_out(small.root / place)
    with as_nobody(), pytest.raises(StorePermissionError, match=str(path)):
        rows_of(small, startingTimestamp="1700000001005", startingOffsetsByTimestampStrategy="latest")


ODD_NEIGHBOURS = ["unreadable", "link", "link to a queue", "lost+found"]


def put(store: SmallStore, what: str) -> str:
    """A neighbour of the topic Orders that may not be read; its path."""
    queues = store.root / "consumequeue"
    if what == "link":
        (queues / "Other").symlink_to("/nowhere")
        return str(queues / "Other")
    if what == "link to a queue":
        (queues / "Parent" / "7").symlink_to("/nowhere")
        return str(queues / "Parent" / "7")
    if what == "lost+found":
        (queues / "lost+found").mkdir(0)
        return ""
    return str(lock_out(queues / "Parent"))


@pytest.mark.parametrize("what", ODD_NEIGHBOURS)
def test_a_read_of_one_topic_does_not_mind_its_neighbours(small: SmallStore, what: str) -> None:
    expected = rows_of(small, subscribe="Orders")
    put(small, what)
    with as_nobody():
        assert rows_of(small, subscribe="Orders") == expected
        stream = StreamStores(
            parse_read_options({"path": str(small.root), "subscribe": "Orders"}, where="stream")
        )
        stream.look()
        assert {queue_id for _, _, queue_id in stream.queues} == {0, 1}


@pytest.mark.parametrize("what", ODD_NEIGHBOURS)
def test_a_read_of_all_topics_fails_or_says_what_it_leaves_out(
    small: SmallStore, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = rows_of(small, includeSystemTopics="true")
    path = put(small, what)
    with as_nobody():
        if not path:  # fsck's own, no topic
            assert rows_of(small, includeSystemTopics="true") == expected
            return
        with pytest.raises((StorePermissionError, CorruptStoreError), match=path):
            rows_of(small, includeSystemTopics="true")
        with caplog.at_level(logging.WARNING):
            found = rows_of(small, includeSystemTopics="true", failOnDataLoss="false")
    left = {row for row in expected if row[0] == "Parent"} if what == "unreadable" else set()
    assert found == expected - left
    (told,) = caplog.messages
    assert told.startswith(
        f"1 topics, queues or files of {small.root} cannot be read and are skipped: {path}"
    )


def test_a_member_of_a_cluster_that_may_not_be_read(
    small: SmallStore, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = small.root.parent
    other = write_small_store(cluster / "other").root
    (cluster / "lost+found").mkdir(0)
    options = {"path": str(cluster)}
    assert len(open_stores(parse_read_options(options))) == 2
    lock_out(other)
    with as_nobody():
        with pytest.raises(StorePermissionError, match=str(other)):
            open_stores(parse_read_options(options))
        with caplog.at_level(logging.WARNING):
            (store,) = open_stores(parse_read_options(options | {"failOnDataLoss": "false"}))
    assert store.path == str(small.root)
    assert str(other) in caplog.text


def test_a_stream_passes_over_nothing(small: SmallStore) -> None:
    """It would take the queues for deleted ones, and read them all again when they may be read again."""
    options = {"path": str(small.root), "includeSystemTopics": "true", "failOnDataLoss": "false"}
    stream = StreamStores(parse_read_options(options, where="stream"))
    stream.look()
    path = put(small, "unreadable")
    with as_nobody():
        with pytest.raises(StorePermissionError, match=path):
            StreamStores(parse_read_options(options, where="stream")).look()
        with pytest.raises(StorePermissionError, match=path):
            stream.look(anew=True)


@pytest.mark.parametrize("what", ODD_NEIGHBOURS)
def test_a_misspelt_topic_is_said_to_be_none(small: SmallStore, what: str) -> None:
    put(small, what)
    with as_nobody(), pytest.raises(OptionError, match="no store has a topic 'Ordres'; "):
        rows_of(small, subscribe="Ordres")


def test_lost_and_found_wherever_a_file_system_may_begin(small: SmallStore) -> None:
    """To check a store, and to write to it, as its owner: what fsck made is root's own."""
    places = [small.root / place for place in ("commitlog", "consumequeue", "index", "config", "")]
    shutil.rmtree(small.root / "batchconsumequeue")
    write(small.root, numbered_rows(0, 4, topic="Orders"))  # imports
    before = [str(problem) for problem in diagnose(str(small.root))]
    for place in places:
        (place / "lost+found").mkdir(0)
    for path in small.root.rglob("*"):
        if path.name != "lost+found" and os.geteuid() == 0:
            os.chown(path, 65534, 65534)
    if os.geteuid() == 0:
        os.chown(small.root, 65534, 65534)
    with as_nobody():
        assert [str(problem) for problem in diagnose(str(small.root))] == before
        assert list(write(small.root, numbered_rows(4, 8, topic="Orders"))) == [str(small.root)]
        queues = MessageStore.open(str(small.root)).queues(lambda topic: topic == "Orders")
    assert sum(queue.max_offset - queue.min_offset for queue in queues) == 9 + 8


def test_lost_and_found_alone_is_no_consume_queue(small: SmallStore) -> None:
    """As on a file system of its own that was not mounted, or mounted anew."""
    for folder in ("consumequeue", "batchconsumequeue"):
        (small.root / folder).rename(small.root / f"old-{folder}")
    (small.root / "consumequeue" / "lost+found").mkdir(parents=True)
    with pytest.raises(OptionError, match="set unfiledQueues=read"):
        MessageStore.open(str(small.root)).topics()
    store = MessageStore.open(str(small.root), unfiled_queues="read")
    assert not store.has_consume_queues
    assert "Orders" in store.topics()

"""The fate of messages that no consume queue file shows: each row of the table, and what callers do with it.

Nobody reads messages of deleted topics from the commitlog, and no writer makes queues for them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import Journal
from store_format.commit.options import CommitOptions
from store_format.diagnose import diagnose
from store_format.errors import OptionError
from store_format.layouts import OFFSET_MAX
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.survey.fates import Fate, Fates, StoredTopics, Unfiled
from store_format.survey.scan import LogQueues
from tests.support.fork_server import ForkServer
from tests.support.kills import killed_stores
from tests.support.referee.world import commit_killed
from tests.support.staged import append, deleted_topic, make_store, numbered


@pytest.fixture
def root(root: Path) -> Path:
    """Topics T and Other; T was deleted."""
    append(root, numbered("T", 0, 8) + numbered("Other", 0, 4))
    deleted_topic(root, "T")
    return root


def _counts(root: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for queue in MessageStore.open(str(root)).queues():
        rows = sum(batch.num_rows for batch in queue.read())
        counts[queue.topic] = counts.get(queue.topic, 0) + rows
    return counts


# ---- the table ---------------------------------------------------------------------------------------------


def _fates(root: Path, *keys: QueueKey, dispatched: int = OFFSET_MAX) -> list[Fate]:
    store = MessageStore.open(str(root))
    seen = LogQueues.of(store.log, {topic for topic, _ in keys}.__contains__).queues
    return [each.fate for each in Fates(Opened(str(root)), store.log).decide(keys, seen, dispatched).values()]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """T, whose queues have offsets 0 to 3, and Other behind it."""
    root = make_store(tmp_path / "two")
    append(root, numbered("T", 0, 16))
    append(root, numbered("Other", 0, 4))
    return root


def _commit(root: Path, topic: str, queue_id: int, *, version: bool = True) -> None:
    value: dict[str, object] = {"offsetTable": {f"{topic}@g": {str(queue_id): 1}}}
    if version:
        value["dataVersion"] = {"counter": 1, "timestamp": 1}
    (root / "config/consumerOffset.json").write_text(json.dumps(value))


def test_a_running_broker_dispatches_later_messages_soon(two: Path) -> None:
    shutil.rmtree(two / "consumequeue/T")
    last = MessageStore.open(str(two)).queue("Other", 3).range.bounds
    assert last is not None
    assert _fates(two, ("T", 0), dispatched=0) == [Fate.WAITING]
    assert _fates(two, ("T", 0), dispatched=last.last_physical_offset) == [Fate.UNKNOWN]


def test_the_queues_of_a_system_topic_are_lost(two: Path) -> None:
    append(two, numbered("RMQ_SYS_TRANS_HALF_TOPIC", 0, 1))
    append(two, numbered("Other", 4, 4))
    shutil.rmtree(two / "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC")
    assert _fates(two, ("RMQ_SYS_TRANS_HALF_TOPIC", 0)) == [Fate.LOST]


def test_a_topic_that_topics_json_lacks_is_deleted(two: Path) -> None:
    deleted_topic(two, "T")
    assert _fates(two, ("T", 0), ("T", 1)) == [Fate.DELETED] * 2


def test_without_any_queue_file_all_are_lost(two: Path) -> None:
    shutil.rmtree(two / "consumequeue")
    assert _fates(two, ("T", 0), ("Other", 0)) == [Fate.LOST] * 2


def _emptied(root: Path) -> None:
    """The directories of queues are gone from `consumequeue`: lost, or their topics created again."""
    for path in (root / "consumequeue").iterdir():
        shutil.rmtree(path)


def test_an_emptied_directory_of_queues_shows_nothing(two: Path) -> None:
    """DefaultMessageStore.deleteTopics leaves the directory when the last topic is deleted. Real 5.5.0 and
    4.9.7 that start without any queue file build the queues of all messages from the log's begin.
    """
    _emptied(two)
    assert _fates(two, ("T", 0), ("Other", 0)) == [Fate.UNKNOWN] * 2
    _commit(two, "T", 1)  # a broker removes the offsets of a deleted topic
    assert _fates(two, ("T", 0), ("Other", 0)) == [Fate.LOST] * 2


@pytest.mark.parametrize("leaves_directory", [False, True])
def test_the_only_topic_is_deleted_and_created_again(tmp_path: Path, leaves_directory: bool) -> None:
    """Reads, `verify` and a write ask, as where another topic has queue files."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 40, queues=2))
    text = (root / "config/topics.json").read_text()
    deleted_topic(root, "T")
    if leaves_directory:
        (root / "consumequeue/T").mkdir(parents=True)
    assert _readable(root) == 0
    assert MessageStore.open(str(root)).queues() == []
    (root / "config/topics.json").write_text(text)
    assert _readable(root) == 0
    for ask in (
        lambda: MessageStore.open(str(root)).queues(),
        lambda: MessageStore.open(str(root)).queue("T", 1),
        lambda: append(root, numbered("T", 40, 1)),
        lambda: append(root, numbered("Other", 0, 1)),  # after this write no broker builds the queues of T
    ):
        with pytest.raises(OptionError, match=r"40 messages of 2 queues.*unfiledQueues=skip"):
            ask()
    told = {answer: Store.open(str(root), unfiled_queues=answer).queues() for answer in get_args(Unfiled)}
    assert {answer: sum(len(queue.to_table()) for queue in queues) for answer, queues in told.items()} == {
        "read": 40,
        "skip": 0,
    }
    append(root, numbered("T", 40, 2, queues=2), options=CommitOptions(unfiled_queues="skip"))
    assert {queue.key: queue.max_offset for queue in MessageStore.open(str(root)).queues()} == {
        ("T", 0): 1,
        ("T", 1): 1,
    }


def _readable(root: Path) -> int:
    return diagnose(str(root)).summary.readable


def test_offsets_that_begin_again_show_a_new_topic(two: Path) -> None:
    deleted_topic(two, "T")
    append(two, numbered("T", 16, 1), options=CommitOptions(new_topics={"T": 4}))
    assert _fates(two, ("T", 1), ("T", 2)) == [Fate.DELETED] * 2


def test_an_earlier_message_of_another_queue_shows_that_the_topic_was_there(two: Path) -> None:
    shutil.rmtree(two / "consumequeue/T/3")
    assert _fates(two, ("T", 3)) == [Fate.LOST]


def test_other_files_know_that_a_queue_had_messages(two: Path) -> None:
    shutil.rmtree(two / "consumequeue/T")
    assert _fates(two, ("T", 0), ("T", 1)) == [Fate.UNKNOWN] * 2
    _commit(two, "T", 1, version=False)  # a 4.9 broker keeps the offsets of deleted topics
    assert _fates(two, ("T", 0), ("T", 1)) == [Fate.UNKNOWN] * 2
    _commit(two, "T", 1)
    assert _fates(two, ("T", 0), ("T", 1)) == [Fate.LOST] * 2  # T was there already
    shutil.rmtree(two / "consumequeue/Other/0")
    assert _fates(two, ("Other", 0)) == [Fate.UNKNOWN]


def test_the_ledger_does_not_show_that_no_broker_has_deleted_the_topic_since(two: Path) -> None:
    """The topic was deleted and created again after our last commit, and has no message yet."""
    append(two, numbered("T", 16, 4))
    topics = (two / "config/topics.json").read_bytes()
    deleted_topic(two, "T")
    (two / "config/topics.json").write_bytes(topics)
    assert _fates(two, ("T", 0), ("T", 1)) == [Fate.UNKNOWN] * 2


def test_a_part_of_the_log_shows_a_new_topic_by_its_files(two: Path) -> None:
    """The offsets of T-0 begin at 0 again in a part of the log that was not read."""
    deleted_topic(two, "T")
    append(two, numbered("T", 16, 40, queues=1), options=CommitOptions(new_topics={"T": 4}))
    log = MessageStore.open(str(two)).log
    whole = LogQueues.of(log, "T".__eq__).queues
    head = LogQueues.of(log, "T".__eq__, stop=whole["T", 0].epochs[-1][0]).queues
    tail = LogQueues.of(log, "T".__eq__, start=whole["T", 0].last).queues["T", 0]
    head["T", 0].join(tail)
    assert len(head["T", 0].epochs) == 1
    assert Fates(Opened(str(two)), log).decide([("T", 1)], head)["T", 1].fate is not Fate.LOST


def test_everybody_asks_with_one_sentence(two: Path) -> None:
    shutil.rmtree(two / "consumequeue/T")
    store = MessageStore.open(str(two))
    with pytest.raises(OptionError) as read:
        store.queues()
    with pytest.raises(OptionError) as write:
        append(two, numbered("T", 16, 4))
    assert str(read.value) == str(write.value)
    assert "16 messages of 4 queues (the first is T-0)" in str(read.value)
    assert {queue.topic for queue in store.queues("Other".__eq__)} == {"Other"}
    answers: tuple[Unfiled, ...] = ("read", "skip")
    counts = {
        answer: sum(queue.max_offset for queue in MessageStore.open(str(two), unfiled_queues=answer).queues())
        for answer in answers
    }
    assert counts == {"read": 20, "skip": 4}
    assert sum(queue.max_offset for queue in MessageStore.open(str(two), skip_unreadable=True).queues()) == 4


# ---- deleted topics ----------------------------------------------------------------------------------------


def test_a_topic_is_deleted_if_neither_topics_json_nor_a_directory_has_it(root: Path) -> None:
    (root / "consumequeue/Filed/0").mkdir(parents=True)
    (root / "consumequeue/Emptied").mkdir()  # as an old broker leaves it
    until = StoredTopics(Opened(str(root))).deleted_until()
    assert {topic: until(topic) for topic in ("T", "Emptied", "a/b")} == dict.fromkeys(
        ("T", "Emptied", "a/b"), OFFSET_MAX
    )
    kept = ("Other", "Filed", "%LMQ%light", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")
    assert {topic: until(topic) for topic in kept} == dict.fromkeys(kept, 0)


def test_retries_and_dead_letters_are_those_of_a_known_group(root: Path) -> None:
    of_g = ("%RETRY%g", "%DLQ%g", "%RETRY%g_T", "%RETRY%g+T")
    assert {StoredTopics(Opened(str(root))).deleted_until()(topic) for topic in of_g} == {
        0
    }  # nothing says which groups there are
    groups = {"subscriptionGroupTable": {"g": {"groupName": "g"}}}
    (root / "config/subscriptionGroup.json").write_text(json.dumps(groups))
    assert {StoredTopics(Opened(str(root))).deleted_until()(topic) for topic in of_g} == {0}
    assert {
        StoredTopics(Opened(str(root))).deleted_until()(topic) for topic in ("%RETRY%h", "%DLQ%gone")
    } == {OFFSET_MAX}


@pytest.mark.parametrize("why", ["no file", "no topic", "damaged", "a .bak", "RocksDB"])
def test_without_the_topics_nothing_is_known_to_be_deleted(root: Path, why: str) -> None:
    path = root / "config/topics.json"
    if why == "a .bak":  # it lacks also the topics that were created since
        path.with_name("topics.json.bak").write_bytes(path.read_bytes())
        path.write_text("{")
    elif why == "RocksDB":
        (root / "config/topics").mkdir()
        (root / "config/topics/CURRENT").touch()
    elif why == "no file":
        path.unlink()
        path.with_name("topics.json.bak").unlink(missing_ok=True)
    else:
        path.write_text('{"topicConfigTable":{}}' if why == "no topic" else "{")
        path.with_name("topics.json.bak").unlink(missing_ok=True)
    assert StoredTopics(Opened(str(root))).deleted_until()("T") == 0


def test_a_store_without_queues_is_read_without_them(root: Path) -> None:
    shutil.rmtree(root / "consumequeue")
    assert _counts(root) == {"Other": 4}
    append(root, numbered("Other", 4, 4))
    assert _counts(root) == {"Other": 8}


def test_a_recovery_after_a_crash_leaves_them_out(root: Path) -> None:
    """Also where it scans them, as a broker does."""
    shutil.rmtree(root / "consumequeue/Other/0")
    (root / "abort").write_text("4711")
    assert _counts(root) == {"Other": 4}
    append(root, numbered("Other", 4, 4))
    assert _counts(root) == {"Other": 8}
    assert not (root / "consumequeue/T").exists()


def test_a_commit_that_is_not_complete_creates_the_topic(
    root: Path, tmp_path: Path, forks: ForkServer
) -> None:
    """The new messages count from its base on, whoever completes it."""
    begun = 0
    for _, killed in killed_stores(
        forks, root, tmp_path, "kill", commit_killed, numbered("T", 100, 8), 1_700_000_300_000, every=5
    ):
        journal = Journal.read(Opened(str(killed)))
        if journal is not None:
            begun += 1
            assert StoredTopics(Opened(str(killed))).deleted_until()("T") == journal.base
        assert _counts(killed) in ({"Other": 4}, {"Other": 4, "T": 0}, {"Other": 4, "T": 8})
    assert begun > 3

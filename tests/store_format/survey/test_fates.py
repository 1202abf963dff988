"""Messages of deleted topics: nobody reads them from the commitlog, and no writer makes queues for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import read_journal
from store_format.layouts import OFFSET_MAX
from store_format.survey.fates import deleted_until
from tests.support.fork_server import ForkServer
from tests.support.kills import killed_stores
from tests.support.referee.world import commit_killed
from tests.support.staged import append, deleted_topic, make_store, numbered


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topics T and Other; T was deleted."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 8) + numbered("Other", 0, 4))
    deleted_topic(root, "T")
    return root


def _counts(root: Path) -> dict[str, int]:
    counts: dict[str, int] = {}
    for queue in MessageStore.open(str(root)).queues():
        rows = sum(batch.num_rows for batch in queue.read())
        counts[queue.topic] = counts.get(queue.topic, 0) + rows
    return counts


def test_a_topic_is_deleted_if_neither_topics_json_nor_a_directory_has_it(root: Path) -> None:
    (root / "consumequeue/Filed/0").mkdir(parents=True)
    (root / "consumequeue/Emptied").mkdir()  # as an old broker leaves it
    until = deleted_until(str(root))
    assert {topic: until(topic) for topic in ("T", "Emptied", "a/b")} == dict.fromkeys(
        ("T", "Emptied", "a/b"), OFFSET_MAX
    )
    kept = ("Other", "Filed", "%LMQ%light", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC")
    assert {topic: until(topic) for topic in kept} == dict.fromkeys(kept, 0)


def test_retries_and_dead_letters_are_those_of_a_known_group(root: Path) -> None:
    of_g = ("%RETRY%g", "%DLQ%g", "%RETRY%g_T", "%RETRY%g+T")
    assert {deleted_until(str(root))(topic) for topic in of_g} == {0}  # nothing says which groups there are
    groups = {"subscriptionGroupTable": {"g": {"groupName": "g"}}}
    (root / "config/subscriptionGroup.json").write_text(json.dumps(groups))
    assert {deleted_until(str(root))(topic) for topic in of_g} == {0}
    assert {deleted_until(str(root))(topic) for topic in ("%RETRY%h", "%DLQ%gone")} == {OFFSET_MAX}


@pytest.mark.parametrize("why", ["no file", "no topic", "damaged", "RocksDB"])
def test_without_the_topics_nothing_is_known_to_be_deleted(root: Path, why: str) -> None:
    path = root / "config/topics.json"
    if why == "RocksDB":
        (root / "config/topics").mkdir()
        (root / "config/topics/CURRENT").touch()
    elif why == "no file":
        path.unlink()
        path.with_name("topics.json.bak").unlink(missing_ok=True)
    else:
        path.write_text('{"topicConfigTable":{}}' if why == "no topic" else "{")
        path.with_name("topics.json.bak").unlink(missing_ok=True)
    assert deleted_until(str(root))("T") == 0


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
        journal = read_journal(str(killed))
        if journal is not None:
            begun += 1
            assert deleted_until(str(killed))("T") == journal.base
        assert _counts(killed) in ({"Other": 4}, {"Other": 4, "T": 0}, {"Other": 4, "T": 8})
    assert begun > 3

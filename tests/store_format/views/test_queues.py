"""The views of topics, queues, groups and files, against what the brokers' own classes told and what lies on
disk.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from store_format.bookkeeping.settings import StoreSettings
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.reads import flip
from tests.support.referee.answers import rmqlog
from tests.support.staged import append, make_store, messages_of, numbered

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]
NOW = 1_800_000_000_000


def view(root: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = MessageStore.open(str(root)).view(name, now_ms=NOW).to_pylist()
    return rows


def _told(name: str, broker: str) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """The broker's rows of each queue, in order."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in goldens.expected_rows(name):
        if broker in ("", row.get("brokerName")):
            found.setdefault((row["topic"], row["queueId"]), []).append(row)
    return found


def _ms(time: Any) -> int | None:
    return None if time is None else round(time.timestamp() * 1000)


def _shown(ms: int) -> int | None:
    return ms if -62135596800000 <= ms < 253402300800000 else None


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_queues(golden: Golden, name: str, broker: str) -> None:
    root, answers = goldens.brokers(name, golden(name))[broker]
    told = _told(name, broker)
    rows = {(row["topic"], row["queueId"]): row for row in view(root, "queues")}
    queues = {(queue["topic"], queue["queueId"]): queue for queue in answers["queues"] if queue["maxOffset"]}
    assert set(queues) <= set(rows)
    assert all(rows[key]["messages"] == 0 for key in set(rows) - set(queues))
    for key, queue in queues.items():
        row, messages = rows[key], told[key]
        assert (row["minOffset"], row["maxOffset"]) == (queue["minOffset"], queue["maxOffset"])
        assert row["messages"] == queue["maxOffset"] - queue["minOffset"]
        sizes = {message["physicalOffset"]: message["storeSize"] for message in messages}
        assert row["bytes"] == sum(sizes.values())
        assert _ms(row["firstStoreTimestamp"]) == _shown(messages[0]["storeTimestamp"])
        assert _ms(row["lastStoreTimestamp"]) == _shown(messages[-1]["storeTimestamp"])
        folder = "batchconsumequeue" if key[0] == "Inner" else "consumequeue"
        assert row["source"] == folder


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_topics_are_their_queues_together(golden: Golden, name: str, broker: str) -> None:
    root, answers = goldens.brokers(name, golden(name))[broker]
    queues = view(root, "queues")
    rows = {row["topic"]: row for row in view(root, "topics")}
    configured = answers["topics"]
    if name == "rocksdb-5.5.0":
        configured = sorted(read_topics(Opened(str(root))) or ())
    assert set(rows) == {queue["topic"] for queue in queues} | set(configured or ())
    for topic, row in rows.items():
        mine = [queue for queue in queues if queue["topic"] == topic]
        assert row["configured"] == (None if configured is None else topic in configured)
        assert (row["queues"], row["messages"]) == (len(mine), sum(queue["messages"] for queue in mine))
        assert row["bytes"] == sum(queue["bytes"] for queue in mine)
        columns = ("firstStoreTimestamp", "lastStoreTimestamp")
        times = [queue[column] for queue in mine for column in columns if queue[column] is not None]
        assert row["lastStoreTimestamp"] == max(times, default=None)


def test_topic_settings(golden: Golden) -> None:
    rows = {row["topic"]: row for row in view(golden("batchcq-5.5.0"), "topics")}
    assert rows["Inner"]["queueType"] == "BatchCQ"
    benchmark = rows["BenchmarkTest"]
    assert (benchmark["readQueueNums"], benchmark["perm"], benchmark["queues"]) == (1024, "RW-", 0)
    assert rows["rmq_sys_SYNC_BROKER_MEMBER_broker-a"]["perm"] == "--X"
    assert view(golden("rocksdb-5.5.0"), "topics")[0]["configured"] is True


def test_groups(golden: Golden) -> None:
    rows = {row["group"]: row for row in view(golden("retry-dlq-5.5.0"), "groups")}
    assert [rows[f"CG_{name}"]["deadLetters"] for name in ("fail", "direct", "orderly")] == [20, 7, 1]
    failing, tools = rows["CG_fail"], rows["TOOLS_CONSUMER"]
    assert failing["topics"] == ["%RETRY%CG_fail", "Jobs"]
    assert (failing["queues"], failing["lagMessages"], failing["lagMs"]) == (5, 0, 0)
    assert (tools["configured"], tools["lagMessages"], tools["topics"]) == (True, None, [])
    assert rows["CG_direct"]["retryMaxTimes"] == 16


def test_a_pop_retry_topic_is_no_group(copy_of: Golden) -> None:
    root = copy_of("pop-5.5.0")
    text = (root / "config" / "topics.json").read_text()
    assert '"PopWork":{' in text
    # without its topic, too, the group that has its offsets owns it
    for changed in (text, text.replace('"PopWork":{', '"Gone":{', 1)):
        (root / "config" / "topics.json").write_text(changed)
        groups = {row["group"] for row in view(root, "groups")}
        assert "CG_pop" in groups
        assert not any("PopWork" in group for group in groups)
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
    assert "CG_pop_PopWork" in {row["group"] for row in view(root, "groups")}


def test_groups_lag_is_the_sum_of_their_queues(golden: Golden) -> None:
    root = golden("basic-5.5.0")
    lag = view(root, "lag")
    for group in view(root, "groups"):
        mine = [row for row in lag if row["group"] == group["group"] and row["committedOffset"] is not None]
        assert group["lagMessages"] == (sum(row["lagMessages"] for row in mine) if mine else None)
        assert group["lagMs"] == max((row["lagMs"] for row in mine), default=None)


def test_a_topic_that_is_not_configured_any_more(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    text = (root / "config" / "topics.json").read_text()
    (root / "config" / "topics.json").write_text(text.replace('"Orders":{', '"Others":{', 1))
    rows = {row["topic"]: row for row in view(root, "topics")}
    assert (rows["Orders"]["configured"], rows["Orders"]["perm"]) == (False, None)
    assert rows["Orders"]["messages"] > 0
    assert (rows["Others"]["configured"], rows["Others"]["queues"]) == (True, 0)


# ---- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_files(golden: Golden, name: str, broker: str) -> None:
    root, answers = goldens.brokers(name, golden(name))[broker]
    rows = {row["file"]: row for row in view(root, "files")}
    on_disk = dict(answers["filesOnDisk"])
    elsewhere = ("compaction/", *(("consumequeue/",) if name == "rocksdb-5.5.0" else ()))
    listed = {file for file in on_disk if not file.startswith(elsewhere)}
    assert all(file.startswith("config/") and file.count("/") > 1 for file in listed - set(rows))
    for file in listed & set(rows):
        assert rows[file]["sizeBytes"] == (root / file).stat().st_size
    log = [row for row in rows.values() if row["kind"] == "commitlog"]
    assert log[0]["start"] == answers["commitLog"]["minOffset"]
    messages = [row for queue in _told(name, broker).values() for row in queue]
    end = max(row["physicalOffset"] + row["storeSize"] for row in messages)
    assert max(row["stop"] for row in log if row["usedBytes"]) == end
    assert all(row["fill"] == 1.0 for row in log if row["stop"] < end)
    for row in rows.values():
        assert row["fill"] is None or 0 <= row["fill"] <= 1
        assert row["usedBytes"] is None or 0 <= row["usedBytes"] <= row["sizeBytes"]
    entries: dict[tuple[str, int], int] = {}
    for row in rows.values():
        if row["kind"] == "consumequeue":
            key = row["topic"], row["queueId"]
            entries[key] = max(entries.get(key, 0), row["stop"] or 0)
    queues = {(queue["topic"], queue["queueId"]): queue["maxOffset"] for queue in answers["queues"]}
    crashed = "crash" in name  # there the newest entries are in memory only
    assert all(queues[key] == stop or crashed for key, stop in entries.items() if key in queues)


def test_index_fill(golden: Golden) -> None:
    rows = [row for row in view(golden("basic-5.5.0"), "files") if row["kind"] == "index"]
    assert len(rows) > 3
    assert {row["fill"] for row in rows[:-1]} == {1.0}
    assert 0 < rows[-1]["fill"] < 1
    assert {row["entries"] for row in rows[:-1]} == {int(goldens.config("basic-5.5.0")["maxIndexNum"]) - 1}
    assert all(row["firstStoreTimestamp"] <= row["lastStoreTimestamp"] for row in rows)


def test_a_file_with_holes_takes_less_than_its_length(golden: Golden) -> None:
    rows = view(golden("defaults-5.5.0"), "files")
    (log,) = [row for row in rows if row["kind"] == "commitlog" and row["usedBytes"]]
    assert log["sizeBytes"] == 1 << 30
    assert 0 < log["diskBytes"] < 1 << 27
    assert log["fill"] == log["usedBytes"] / log["sizeBytes"]


def test_a_place_that_was_given_up_counts_once(tmp_path: Path) -> None:
    """A rebuilt queue begins with a pre-blank entry at the place of its first message, which is lost."""
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 13, 400))
    append(root, numbered("T", 0, 10, queues=1))
    flip(root, 88)  # in the body of the first message
    recovered = tmp_path / "recovered"
    assert not rmqlog(root, "recover", root, "--into", recovered, "--salvage", "--apply").code
    shutil.rmtree(recovered / "consumequeue")
    assert not rmqlog(recovered, "recover", recovered, "--apply").code
    (row,) = view(recovered, "queues")
    assert (row["minOffset"], row["maxOffset"], row["messages"]) == (0, 10, 9)


def test_a_place_that_was_given_up_before_the_first_message_does_not_count(tmp_path: Path) -> None:
    """Retention has deleted the messages before, with their queue files."""
    root, recovered = tmp_path / "store", tmp_path / "recovered"
    make_store(root, StoreSettings("broker-a", 1 << 13, 400))
    for topic, number, count in ("T", 0, 41), ("U", 0, 1), ("T", 41, 19):
        append(root, numbered(topic, number, count, queues=1, body_size=69))
    first, second = sorted((root / "commitlog").iterdir())
    last = [each for each in messages_of(root) if each.physical_offset < int(second.name)][-1]
    assert last.queue_offset == 40
    flip(root, last.physical_offset + 88)
    assert not rmqlog(root, "recover", root, "--into", recovered, "--salvage", "--apply").code
    (recovered / "commitlog" / first.name).unlink()
    for path in sorted((recovered / "consumequeue/T/0").iterdir())[:2]:
        path.unlink()
    row = view(recovered, "queues")[0]
    assert (row["minOffset"], row["maxOffset"], row["messages"]) == (41, 60, 19)

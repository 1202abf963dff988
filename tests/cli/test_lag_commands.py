"""`lag`: a row for each group and topic, worst first; -l a row for each queue; pop; RocketMQ's own groups."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.file_edits import edited_json
from tests.support.fixtures import Golden

STORE, CLEANED, CLUSTER = "basic-5.5.0", "cleaned-5.5.0", "cluster-5.5.0"
NOW_MS = 1_900_000_000_000
NOW = ("--now", NOW_MS)


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("age", lambda row: (row["lagMs"] is None, -(row["lagMs"] or 0))),
        ("bytes", lambda row: (row["lagBytes"] is None, -(row["lagBytes"] or 0))),
        ("lost", lambda row: (row["lostMessages"] is None, -(row["lostMessages"] or 0))),
        ("loss", lambda row: (row["expiresTimestamp"] is None, row["expiresTimestamp"] or "")),
        ("group", lambda row: (row["group"], row["topic"])),
        ("topic", lambda row: (row["topic"], row["group"])),
    ],
)
def test_rows_are_sorted_by_a_word(
    rmqlog: Runner, golden: Golden, sort: str, key: Callable[[dict[str, Any]], Any]
) -> None:
    rows = rmqlog.rows("lag", golden(CLEANED), *NOW, "--sort", sort)
    keys = [key(row) for row in rows]
    assert keys == sorted(keys)
    assert len(set(keys)) > 1
    assert rmqlog.rows("lag", golden(CLEANED), *NOW, "--sort", sort, "-n", 2) == rows[:2]


def test_the_next_loss_is_that_of_the_files_that_expire_first(rmqlog: Runner, golden: Golden) -> None:
    store = golden(CLEANED)
    rows = rmqlog.rows("lag", store, *NOW, "--all")
    found = {(row["group"], row["topic"]): row for row in rows if row["expiresInMs"] is not None}
    assert len(found) >= 3
    # All files but the last one have expired at NOW: what is lost is all that is not in the last file.
    last = max(int(file.name) for file in (store / "commitlog").iterdir())
    committed = goldens.expected(CLEANED)["consumerOffset"]["offsetTable"]
    for (group, topic), row in found.items():
        offsets = {int(queue): offset for queue, offset in committed[f"{topic}@{group}"].items()}
        old = [each for each in goldens.expected_rows(CLEANED) if each["physicalOffset"] < last]
        unread = [
            each["queueOffset"] >= offsets.get(each["queueId"], 1 << 60)
            for each in old
            if each["topic"] == topic
        ]
        assert row["nextLostMessages"] == sum(unread) > 0, (group, topic)
    instant, said = rmqlog("lag", store, *NOW).err.splitlines()
    assert instant.endswith(f" ({NOW_MS})")
    assert said == (
        f"rmqlog: unread messages of {len({group for group, _ in found})} groups have expired: "
        f"rmqlog retention {store}"
    )
    assert rmqlog("lag", store, *NOW, "-o", "json").err == f"{instant}\n"
    assert rmqlog("lag", golden("retry-dlq-5.5.0"), *NOW).err == f"{instant}\n"


def test_the_queues_are_the_broker_s_and_unknown_is_empty(rmqlog: Runner, golden: Golden) -> None:
    committed = goldens.expected(STORE)["consumerOffset"]["offsetTable"]
    rows = rmqlog.rows("lag", golden(STORE), *NOW, "-l", "-g", "CG_some", "-t", "Orders")
    queues = goldens.expected(STORE)["queues"]
    maxima = {queue["queueId"]: queue["maxOffset"] for queue in queues if queue["topic"] == "Orders"}
    assert {str(row["queueId"]): row["committedOffset"] for row in rows} == committed["Orders@CG_some"]
    assert all(row["lagMessages"] == maxima[row["queueId"]] - row["committedOffset"] for row in rows)
    retry = rmqlog.rows("lag", golden(STORE), *NOW, "--queues", "-g", "CG_some", "-t", "%RETRY%*")
    assert [(row["committedOffset"], row["lagMessages"]) for row in retry] == [(None, None)]


def test_offsets_beyond_the_end_of_a_queue_are_said(rmqlog: Runner, golden: Golden, copy_of: Golden) -> None:
    """The store lost its last messages: groups have read what is not there any more."""
    store = copy_of(STORE)
    offsets = store / "config" / "consumerOffset.json"
    text = offsets.read_text(encoding="utf-8")
    offsets.write_text(text.replace("0:351", "0:9351"), encoding="utf-8")
    for words in (("lag",), ("lag", "-l"), ("lag", "-o", "json")):
        assert (
            "committed offsets of CG_all lie beyond the end of the queues (lag below 0): the store has lost "
            f"its last messages; check with rmqlog verify {store}\n"
        ) in rmqlog(words[0], store, *NOW, *words[1:]).err
    assert "lie beyond" not in rmqlog("lag", golden(STORE), *NOW).err


def test_queues_that_no_consumer_reads_are_named(rmqlog: Runner, golden: Golden, copy_of: Golden) -> None:
    """readQueueNums was made smaller: the messages behind it still count as unread."""
    store = copy_of(STORE)
    topics = store / "config" / "topics.json"
    with edited_json(topics) as document:
        document["topicConfigTable"]["Orders"]["readQueueNums"] = 2
    assert (
        "rmqlog: consumers do not read the queues 2 to 3 of Orders (readQueueNums=2 in topics.json): their "
        "messages count as unread here. To have them consumed: mqadmin updateTopic -r 4\n"
    ) in rmqlog("lag", store).err
    assert "consumers do not read" not in rmqlog("lag", golden(STORE)).err


def test_a_static_topic_has_no_lag_and_is_named(rmqlog: Runner, copy_of: Golden) -> None:
    store = copy_of(STORE)
    detail = {"bname": "broker-a", "currIdMap": {}, "dirty": False, "epoch": 1, "hostedQueues": {}}
    detail |= {"scope": "__global__", "topic": "Orders", "totalQueues": 4}
    mapping = store / "config" / "topicQueueMapping.json"
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    document = {"dataVersion": version, "topicQueueMappingInfoMap": {"Orders": detail}}
    mapping.write_text(json.dumps(document), encoding="utf-8")
    said = rmqlog("lag", store).err
    assert "rmqlog: the lag of Orders is unknown: the offsets of a static topic count over the queues" in said


def test_groups_of_the_file_that_a_broker_no_longer_reads(rmqlog: Runner, copy_of: Golden) -> None:
    """With enableLmq a broker reads lmqConsumerOffset.json alone (BrokerController)."""
    store = copy_of(STORE)
    light = {"offsetTable": {}, "lmqOffsetTable": {}, "dataVersion": {"counter": 1, "timestamp": 1 << 60}}
    (store / "config" / "lmqConsumerOffset.json").write_text(json.dumps(light), encoding="utf-8")
    done = rmqlog("lag", store)
    assert done.code == 1
    assert "groups of consumerOffset.json are not shown: CG_all, " in done.err
    assert "A broker with enableLmq has written lmqConsumerOffset.json later" in done.err

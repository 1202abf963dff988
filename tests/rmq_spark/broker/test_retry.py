"""Failed messages of a store that no broker has open: retries, dead letters, and their resending."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rmq_spark.services import recover, retry, run_once
from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.errors import (
    CorruptStoreError,
    IllegalMessageError,
    OffsetOutOfRangeError,
    OptionError,
    StoreWriteError,
)
from store_format.files.lock import StoreLock
from store_format.message.encode import MessageColumns
from store_format.metadata.read import BrokerConf, read_topics
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.file_edits import edited_json
from tests.support.stored_rows import rows_in

GOLDEN = "retry-dlq-5.5.0"
COLUMNS = ("topic", "queueId", "queueOffset", "reconsumeTimes", "body", "properties", "storeHost")


@pytest.fixture
def root(tmp_path: pathlib.Path) -> str:
    return str(goldens.unpack(GOLDEN, tmp_path / "store"))


def rows(root: str, topic: str) -> list[dict[str, Any]]:
    return rows_in(root, *COLUMNS, topic=topic)


def last(root: str, topic: str, count: int = 1) -> list[dict[str, Any]]:
    return sorted(rows(root, topic), key=lambda row: int(row["queueOffset"]))[-count:]


def group_config(root: str, group: str, **settings: int) -> None:
    path = pathlib.Path(root, "config", "subscriptionGroup.json")
    table = {"subscriptionGroupTable": {group: {"groupName": group, **settings}}}
    path.write_text(json.dumps(table))


def test_a_failed_message_waits_for_its_retry(root: str) -> None:
    result = retry.send_back(root, "CG_new", [("Jobs", 1, 3), ("Jobs", 2, 0), ("Jobs", 1, 3)], now_ms=10**13)
    assert result == retry.SendBackResult(committed=True, retried=2, dead_letters=0)
    first, second = last(root, "SCHEDULE_TOPIC_XXXX", 2)
    original = {(row["queueId"], row["queueOffset"]): row for row in rows(root, "Jobs")}
    assert {first["body"], second["body"]} == {original[1, 3]["body"], original[2, 0]["body"]}
    assert (first["queueId"], first["reconsumeTimes"]) == (2, 1)
    properties = dict(first["properties"])
    assert (properties["REAL_TOPIC"], properties["RETRY_TOPIC"]) == ("%RETRY%CG_new", "Jobs")
    assert first["storeHost"] == "127.0.0.1:30911"
    topics = read_topics(Opened(root))
    assert topics is not None
    assert (topics["%RETRY%CG_new"].read_queue_nums, topics["%RETRY%CG_new"].perm) == (1, 6)
    assert "%DLQ%CG_new" not in topics
    waiting = MessageStore.open(root).view("delayed", now_ms=0).to_pylist()
    assert [row["topic"] for row in waiting[-2:]] == ["%RETRY%CG_new"] * 2


def test_the_delays_of_the_broker(root: str) -> None:
    """messageDelayLevel has two levels: level 3 becomes level 2, and the message is due after 7 s."""
    conf = BrokerConf.of({"messageDelayLevel": "1s 7s"}, "broker.conf")
    retry.send_back(root, "CG_new", [("Jobs", 1, 3)], now_ms=10**13, broker_conf=conf)
    (waiting,) = [row for row in rows(root, "SCHEDULE_TOPIC_XXXX") if row["queueId"] == 1]
    assert dict(waiting["properties"])["DELAY"] == "2"
    (row,) = [row for row in MessageStore.open(root).view("delayed").to_pylist() if row["delayLevel"] == 2]
    assert (row["topic"], row["dueTimestamp"].timestamp()) == ("%RETRY%CG_new", 10**10 + 7)


def test_the_last_retry_becomes_a_dead_letter(root: str) -> None:
    group_config(root, "CG_fail", retryMaxTimes=1, retryQueueNums=4)
    result = retry.send_back(root, "CG_fail", [("%RETRY%CG_fail", 0, 5), ("Jobs", 0, 0)])
    assert (result.retried, result.dead_letters) == (1, 1)
    (dead,) = last(root, "%DLQ%CG_fail")
    (source,) = [row for row in rows(root, "%RETRY%CG_fail") if row["queueOffset"] == 5]
    assert (dead["queueOffset"], dead["reconsumeTimes"], dead["body"]) == (20, 2, source["body"])
    # consumers read queue 0 only, the retry topic has no other
    (waiting,) = last(root, "SCHEDULE_TOPIC_XXXX")
    assert dict(waiting["properties"])["REAL_QID"] == "0"


def test_the_whole_life_of_a_message_that_always_fails(root: str) -> None:
    """RocketMQ's schedule: 16 retries after 10 s to 2 h, the 17th failure makes a dead letter."""
    now = 10**13
    run_once(root, ["schedule"], now, apply=True)
    place, waited = ("Jobs", 0, 0), []
    while retry.send_back(root, "CG_new", [place], now_ms=now).retried:
        (waiting,) = MessageStore.open(root).view("delayed").to_pylist()
        due = round(waiting["dueTimestamp"].timestamp() * 1000)
        waited.append((due - now) // 1000)
        assert run_once(root, ["schedule"], due - 1, apply=True)["done"].to_pylist() == [0]
        assert run_once(root, ["schedule"], due, apply=True)["done"].to_pylist() == [1]
        place, now = ("%RETRY%CG_new", 0, len(waited) - 1), due
    minutes = [60 * minute for minute in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)]
    assert waited == [10, 30, *minutes]
    (dead,) = rows(root, "%DLQ%CG_new")
    assert dead["reconsumeTimes"] == 17
    retries = rows(root, "%RETRY%CG_new")
    assert [row["reconsumeTimes"] for row in retries] == list(range(1, 17))
    assert len({dict(row["properties"])["ORIGIN_MESSAGE_ID"] for row in [dead, *retries]}) == 1


def test_minus_one_is_the_default_of_a_concurrent_consumer(root: str) -> None:
    """16 retries, whatever the group's retryMaxTimes (DefaultMQPushConsumerImpl.getMaxReconsumeTimes)."""
    group_config(root, "CG_fail", retryMaxTimes=1, retryQueueNums=1)
    retried = ("%RETRY%CG_fail", 0, 5)
    result = retry.send_back(root, "CG_fail", [retried, ("Jobs", 0, 0)], max_reconsume_times=-1)
    assert (result.retried, result.dead_letters) == (2, 0)
    with pytest.raises(OptionError, match="max_reconsume_times=-2: expected -1"):
        retry.send_back(root, "CG_fail", [retried], max_reconsume_times=-2)


def test_a_dead_letter_topic_is_created_with_one_queue(root: str) -> None:
    assert retry.send_back(root, "CG_new", [("Jobs", 0, 0)], delay_level=-1).dead_letters == 1
    topics = read_topics(Opened(root))
    assert topics is not None
    assert [(topics[f"{kind}CG_new"].write_queue_nums, topics[f"{kind}CG_new"].perm) for kind in KINDS] == [
        (1, 6),
        (1, 6),
    ]


KINDS = ("%RETRY%", "%DLQ%")


def test_a_repeated_call_writes_nothing(root: str) -> None:
    first = retry.send_back(root, "CG_new", [("Jobs", 0, 0)], key=("fix", 7))
    size = len(rows(root, "SCHEDULE_TOPIC_XXXX"))
    again = retry.send_back(root, "CG_new", [("Jobs", 0, 0)], key=("fix", 7))
    lower = retry.send_back(root, "CG_new", [("No", 0, 0)], key=("fix", 6))
    assert (first.committed, again.committed, lower.committed) == (True, False, False)
    assert again == retry.SendBackResult(False, 0, 0)
    assert len(rows(root, "SCHEDULE_TOPIC_XXXX")) == size
    with pytest.raises(OptionError, match="does not begin with 'rmqlog/'"):
        retry.send_back(root, "CG_new", [("Jobs", 0, 0)], key=("rmqlog/x", 7))


def test_physical_offsets_name_messages_too(root: str) -> None:
    (row,) = [
        row
        for row in goldens.expected_rows(GOLDEN)
        if (row["topic"], row["queueId"], row["queueOffset"]) == ("Jobs", 3, 2)
    ]
    assert retry.send_back(root, "CG_new", [row["physicalOffset"]]).retried == 1
    assert dict(last(root, "SCHEDULE_TOPIC_XXXX")[0]["properties"])["ORIGIN_MESSAGE_ID"] == row["msgId"]
    with pytest.raises(OptionError, match="found both"):
        retry.send_back(root, "CG_new", [row["physicalOffset"], ("Jobs", 0, 0)])


@pytest.mark.parametrize(
    ("place", "what"),
    [
        (("Jobs", 0, 15), "topic Jobs, queue 0, offset 15: .* the queue has offsets 0 to 15, without"),
        (("Jobs", 0, -1), "topic Jobs, queue 0, offset -1: "),
        (("Jobs", 9, 0), r"topic Jobs, queue 9, offset 0: .* the queues of the topic are \[0, 1, 2, 3\]"),
        (("No", 0, 0), "topic No, queue 0, offset 0: .* no messages of this topic"),
        (1 << 40, "physical offset 1099511627776: .* the commitlog has 0 to"),
    ],
)
def test_a_place_without_a_message_is_named_and_nothing_is_written(
    root: str, place: retry.Place, what: str
) -> None:
    before = MessageStore.open(root).queues()
    with pytest.raises(OffsetOutOfRangeError, match=what):
        retry.send_back(root, "CG_new", [place if isinstance(place, int) else ("Jobs", 0, 1), place])
    assert [queue.range for queue in MessageStore.open(root).queues()] == [queue.range for queue in before]


def test_a_physical_offset_inside_a_message(root: str) -> None:
    with pytest.raises(CorruptStoreError):
        retry.send_back(root, "CG_new", [251])


def test_a_group_that_keeps_no_retries(root: str) -> None:
    group_config(root, "CG_none", retryQueueNums=0)
    with pytest.raises(OptionError, match="group CG_none: expected retryQueueNums above 0"):
        retry.send_back(root, "CG_none", [("Jobs", 0, 0)])


def test_a_retry_topic_that_is_closed(root: str) -> None:
    path = pathlib.Path(root, "config", "topics.json")
    text = path.read_text()
    start = text.index('"%RETRY%CG_fail":')
    end = text.index("}", text.index('"perm"', start))
    path.write_text(text[:start] + text[start:end].replace('"perm":6', '"perm":4') + text[end:])
    with pytest.raises(IllegalMessageError, match="topic %RETRY%CG_fail: expected write permission"):
        retry.send_back(root, "CG_fail", [("Jobs", 0, 0)])


def test_no_place_is_no_work_but_a_committed_key(root: str) -> None:
    assert retry.send_back(root, "CG_new", [], key=("fix", 1)) == retry.SendBackResult(True, 0, 0)
    assert not retry.send_back(root, "CG_new", [("Jobs", 0, 0)], key=("fix", 1)).committed


def test_a_disk_that_is_too_full_is_refused(root: str) -> None:
    with pytest.raises(StoreWriteError, match="above the limit of 0 % for writes"):
        retry.send_back(root, "CG_new", [("Jobs", 0, 0)], disk_limit=0)
    assert retry.send_back(root, "CG_new", [("Jobs", 0, 0)], disk_limit=100).retried == 1


def test_a_store_in_use_is_refused(root: str) -> None:
    with StoreLock(root), pytest.raises(RuntimeError, match="one writer at a time"):
        retry.send_back(root, "CG_new", [("Jobs", 0, 0)], lock_timeout=0)


# ---- resend ------------------------------------------------------------------------------------------------


def resent_rows(root: str, topic: str = "Jobs") -> list[dict[str, Any]]:
    return [row for row in rows(root, topic) if "__RESENT_FROM" in dict(row["properties"])]


def test_a_resent_dead_letter_is_a_new_message(root: str) -> None:
    plan = retry.resend(root, "CG_fail", where=retry.Where(keys=("id-41",)))
    assert (plan.due, len(resent_rows(root))) == (1, 0)
    (row,) = plan.table().to_pylist()
    assert (row["originTopic"], row["targetTopic"], row["resent"]) == ("Jobs", "Jobs", False)
    assert plan.apply(now_ms=10**13) == retry.ResendResult(resent=1, already=0)
    (copy,) = resent_rows(root)
    (dead,) = [row for row in rows(root, "%DLQ%CG_fail") if row["body"] == copy["body"]]
    properties = dict(copy["properties"])
    assert copy["reconsumeTimes"] == 0
    first = next(row for row in rows(root, "Jobs") if row["body"] == copy["body"])
    assert properties == dict(first["properties"]) | {"__RESENT_FROM": properties["__RESENT_FROM"]}
    assert properties["UNIQ_KEY"] == dict(dead["properties"])["UNIQ_KEY"]
    assert len(rows(root, "%DLQ%CG_fail")) == 20  # the dead letter stays


def test_a_resent_message_is_retried_from_the_beginning(root: str) -> None:
    """It can fail as often as a new message, and its next dead letter can be resent too."""
    retry.resend(root, "CG_fail", where=retry.Where(keys=("id-41",))).apply()
    (copy,) = resent_rows(root)
    place = ("Jobs", int(copy["queueId"]), int(copy["queueOffset"]))
    assert retry.send_back(root, "CG_fail", [place]).retried == 1
    (waiting,) = last(root, "SCHEDULE_TOPIC_XXXX")
    properties = dict(waiting["properties"])
    assert (waiting["reconsumeTimes"], properties["DELAY"], properties["RETRY_TOPIC"]) == (1, "3", "Jobs")
    first = next(row for row in rows(root, "%DLQ%CG_fail") if row["body"] == copy["body"])
    assert properties["ORIGIN_MESSAGE_ID"] != dict(first["properties"])["ORIGIN_MESSAGE_ID"]
    retry.send_back(root, "CG_fail", [place], delay_level=-1)
    again = retry.resend(root, "CG_fail", where=retry.Where(keys=("id-41",)))
    assert [row["resent"] for row in again.table().to_pylist()] == [True, False]
    assert again.apply() == retry.ResendResult(resent=1, already=1)


def test_dead_letters_are_resent_once(root: str) -> None:
    first = retry.resend(root, "CG_fail", where=retry.Where(limit=15))
    second = retry.resend(root, "CG_fail")
    assert (first.due, second.due) == (15, 20)
    assert first.apply() == retry.ResendResult(15, 0)
    assert first.apply() == retry.ResendResult(0, 15)
    assert second.apply() == retry.ResendResult(5, 15)
    assert retry.resend(root, "CG_fail").due == 0
    assert retry.resend(root, "CG_direct").due == 7
    assert len(resent_rows(root)) == 20


def test_a_crash_before_the_state_file_repeats_nothing(root: str) -> None:
    retry.resend(root, "CG_fail", where=retry.Where(limit=3)).apply()
    state = pathlib.Path(root, ".rmqlog", "resent.json")
    before = state.read_bytes()
    retry.resend(root, "CG_fail", where=retry.Where(limit=10)).apply()
    state.write_bytes(before)
    assert retry.resend(root, "CG_fail").due == 10
    assert retry.resend(root, "CG_fail").apply() == retry.ResendResult(10, 10)
    assert len(resent_rows(root)) == 20


def _other_messages(path: pathlib.Path) -> None:
    """Gives each message another UNIQ_KEY of the same length: the log of another store of the same sizes."""
    for file in sorted(path.glob("commitlog/*")):
        data = file.read_bytes()
        for key in set(re.findall(rb"UNIQ_KEY\x01([0-9A-F]{32})", data)):
            data = data.replace(key, key[::-1])
        file.write_bytes(data)


def test_another_dead_letter_at_the_place_of_a_resent_one_is_resent(
    root: str, tmp_path: pathlib.Path
) -> None:
    """A backup was restored: `.rmqlog` stayed, and the log has other messages at the same offsets."""
    retry.resend(root, "CG_fail", where=retry.Where(limit=3)).apply()
    backup = goldens.unpack(GOLDEN, tmp_path / "backup")
    _other_messages(backup)
    for name in ("commitlog", "consumequeue", "index", "config", "checkpoint"):
        shutil.rmtree(path) if (path := pathlib.Path(root, name)).is_dir() else path.unlink()
        (backup / name).rename(path)
    plan = retry.resend(root, "CG_fail")
    assert [row["resent"] for row in plan.table().to_pylist()] == [False] * 20
    assert plan.due == 20


def test_a_dead_letter_without_unique_key_is_resent_once(root: str) -> None:
    """Its id is the offset message id; after a crash before the state file it is read from the copy."""
    state = pathlib.Path(root, ".rmqlog", "resent.json")
    dead = MessageColumns(
        topic="%DLQ%CG_fail",
        body=pa.array([b"no key"], pa.binary()),
        properties=pa.array([b"KEYS\x01none\x02RETRY_TOPIC\x01Jobs\x02"], pa.binary()),
        queue_id=np.zeros(1, np.int64),
    )
    MessageStore.open(root).append(dead)
    for count in (1, 0):
        plan = retry.resend(root, "CG_fail", where=retry.Where(keys=("none",)))
        assert plan.apply().resent == count
    state.unlink()
    assert retry.resend(root, "CG_fail", where=retry.Where(keys=("none",))).apply().resent == 0
    (entry,) = json.loads(state.read_text())["groups"]["CG_fail"]["messages"].values()
    assert entry == plan.rows[0]["msgId"]


def test_a_recovered_copy_knows_what_was_resent(root: str, tmp_path: pathlib.Path) -> None:
    new = str(tmp_path / "new")
    for limit in (3, 5):  # the ledger has the last turn alone
        retry.resend(root, "CG_fail", where=retry.Where(limit=limit)).apply()
    recover(root, into=new).apply()
    assert retry.resend(new, "CG_fail").due == retry.resend(root, "CG_fail").due == 15
    assert retry.resend(new, "CG_fail").apply() == retry.ResendResult(15, 5)


def test_a_late_plan_stores_no_other_messages(root: str) -> None:
    """The dead letter topic was deleted and made again: other dead letters have the places of the plan."""
    plan = retry.resend(root, "CG_fail", where=retry.Where(limit=2))
    topics = pathlib.Path(root, "config", "topics.json")
    with edited_json(topics) as table:
        del table["topicConfigTable"]["%DLQ%CG_fail"]
    shutil.rmtree(pathlib.Path(root, "consumequeue", "%DLQ%CG_fail"))
    properties = b"KEYS\x01other\x02RETRY_TOPIC\x01Jobs\x02"
    others = MessageColumns(
        topic="%DLQ%CG_fail",
        body=pa.array([b"other"] * 4, pa.binary()),
        properties=pa.array([properties] * 4, pa.binary()),
        queue_id=np.zeros(4, np.int64),
    )
    MessageStore.open(root).append(others, options=CommitOptions(unfiled_queues="skip"))
    with pytest.raises(StoreWriteError, match=r"offset 0: expected the dead letter .* a new plan"):
        plan.apply()
    assert resent_rows(root) == []
    assert retry.resend(root, "CG_fail").apply() == retry.ResendResult(4, 0)
    assert {row["body"] for row in resent_rows(root)} == {b"other"}


def test_a_damaged_state_file_is_named(root: str) -> None:
    """Without the file nobody knows what was stored again, so nothing is."""
    retry.resend(root, "CG_fail", where=retry.Where(limit=3)).apply()
    pathlib.Path(root, ".rmqlog", "resent.json").write_text("{")
    with pytest.raises(CorruptStoreError, match=r"resent\.json"):
        retry.resend(root, "CG_fail")


def test_one_group_alone_gets_the_message_again(root: str) -> None:
    plan = retry.resend(root, "CG_direct", to="%RETRY%CG_direct", where=retry.Where(limit=2))
    assert plan.apply().resent == 2
    found = resent_rows(root, "%RETRY%CG_direct")
    assert [(row["queueId"], dict(row["properties"])["RETRY_TOPIC"]) for row in found] == [(0, "Jobs")] * 2
    assert resent_rows(root) == []
    assert retry.send_back(root, "CG_direct", [("%RETRY%CG_direct", 0, 0)]).retried == 1
    assert dict(last(root, "SCHEDULE_TOPIC_XXXX")[0]["properties"])["RETRY_TOPIC"] == "Jobs"


def test_the_life_of_a_resent_message(root: str) -> None:
    before = MessageStore.open(root).view("duplicates").num_rows
    retry.resend(root, "CG_fail", where=retry.Where(keys=("id-41",))).apply()
    (copy,) = resent_rows(root)
    assert MessageStore.open(root).view("duplicates").num_rows == before
    key = dict(copy["properties"])["UNIQ_KEY"]
    retry.send_back(root, "CG_fail", [("Jobs", int(copy["queueId"]), int(copy["queueOffset"]))])
    events = MessageStore.open(root).trace(key).to_pylist()
    what = [event["what"] for event in events if event["what"] not in ("passed", "not reached")]
    assert what == [
        "born", "stored", "waits for retry 1", "retry 1", "dead letter", "resent", "waits for retry 1",
    ]  # fmt: skip
    (resent,) = [event for event in events if event["what"] == "resent"]
    assert resent["detail"] == f"from the dead letter {dict(copy['properties'])['__RESENT_FROM']}"


def test_dead_letters_are_chosen(root: str) -> None:
    def chosen(**where: Any) -> int:
        return retry.resend(root, "CG_fail", where=retry.Where(**where)).due

    stamps = sorted(row["storeTimestamp"] for row in retry.resend(root, "CG_fail").table().to_pylist())
    middle = round(stamps[10].timestamp() * 1000)
    (key,) = {
        row["msgId"] for row in retry.resend(root, "CG_fail").table().to_pylist() if row["keys"] == ["id-41"]
    }
    assert chosen(topic="Jo*") == 20
    assert chosen(topic="Steps") == 0
    assert chosen(message_ids=(key,)) == chosen(keys=(key,)) == 1
    assert chosen(since_ms=middle) + chosen(until_ms=middle) == 20
    assert 0 < chosen(since_ms=middle) < 20
    assert chosen(tags=("TagB",)) == 4


def test_where_dead_letters_cannot_go(root: str) -> None:
    with pytest.raises(OptionError, match="group CG_fall has no dead letters; did you mean CG_fail"):
        retry.resend(root, "CG_fall")
    with pytest.raises(OptionError, match=r"no topic is named 'Jabs'; .* did you mean Jobs"):
        retry.resend(root, "CG_fail", to="Jabs")
    for topic in ("SCHEDULE_TOPIC_XXXX", "%RETRY%other", "%DLQ%CG_fail"):
        with pytest.raises(OptionError, match="expected a topic of users, or %RETRY%CG_fail"):
            retry.resend(root, "CG_fail", to=topic)
    path = pathlib.Path(root, "config", "topics.json")
    text = path.read_text()
    start = text.index('"Jobs":')
    path.write_text(text[:start] + text[start:].replace('"perm":6', '"perm":4', 1))
    plan = retry.resend(root, "CG_fail")
    assert (plan.due, len(plan.left)) == (0, 20)
    assert "%DLQ%CG_fail-0@3: " in plan.left[3]
    assert "topic Jobs: expected write permission" in plan.left[3]
    assert retry.resend(root, "CG_fail", to="Steps").apply().resent == 20
    assert {row["queueId"] for row in resent_rows(root, "Steps")} == {0, 1}


def test_letters_that_cannot_be_sent_are_named_and_left_out(root: str) -> None:
    def dead(properties: bytes, sys_flag: int = 0) -> None:
        columns = MessageColumns(
            topic="%DLQ%CG_fail",
            body=pa.array([b"plain"], pa.binary()),
            properties=pa.array([properties], pa.binary()),
            sys_flag=sys_flag,
        )
        MessageStore.open(root).append(columns)

    dead(b"KEYS\x01none\x02")
    dead(b"RETRY_TOPIC\x01Gone\x02")
    dead(b"RETRY_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02")
    dead(b"RETRY_TOPIC\x01Jobs\x02", 1)  # the body is not compressed
    plan = retry.resend(root, "CG_fail")
    expected = [
        "%DLQ%CG_fail-0@20: it has no original topic (RETRY_TOPIC); name one with --to (to=)",
        f"%DLQ%CG_fail-0@21: {root}: no topic is named 'Gone'; create it, or name another with",
        "%DLQ%CG_fail-0@22: topic SCHEDULE_TOPIC_XXXX: expected a topic of users, or %RETRY%CG_fail",
        "%DLQ%CG_fail-0@23: no consumer could read its body: expected a body compressed with ZLIB",
    ]
    assert [left[: len(text)] for left, text in zip(plan.left, expected, strict=True)] == expected
    assert plan.apply().resent == 20
    plan = retry.resend(root, "CG_fail", to="Steps")
    assert [left.split(":")[0] for left in plan.left] == ["%DLQ%CG_fail-0@23"]
    assert plan.apply() == retry.ResendResult(3, 20)

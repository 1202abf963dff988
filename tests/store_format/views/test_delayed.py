"""The views of messages that wait or were given up: delayed ones, half messages, dead letters, against what
the brokers kept of them.
"""

from __future__ import annotations

import base64
import json
import shutil
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from store_format.message.encode import MessageColumns
from store_format.store import MessageStore
from tests.support import goldens, oracle
from tests.support.fixtures import Golden
from tests.support.staged import deleted_topic

NOW = 1_795_244_400_000  # a few minutes after the brokers were shut down


def view(root: Path, name: str, now: int = NOW) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = MessageStore.open(str(root)).view(name, now_ms=now).to_pylist()
    return rows


def _ms(time: Any) -> int:
    return round(time.timestamp() * 1000)


def _counts(root: Path, file: str, member: str) -> dict[str, int]:
    """What the broker itself counted when it was shut down."""
    metrics = json.loads((root / "config" / file).read_text())
    return {topic: metric["count"] for topic, metric in metrics[member].items()}


def _told(name: str, topic: str) -> list[dict[str, Any]]:
    return [row for row in goldens.expected_rows(name) if row["topic"] == topic]


# ---- delayed -----------------------------------------------------------------------------------------------


def test_delay_levels(golden: Golden) -> None:
    rows = [row for row in view(golden("delay-tx-5.5.0"), "delayed") if row["kind"] == "level"]
    done = goldens.expected("delay-tx-5.5.0")["delayOffset"]["offsetTable"]
    stored = _told("delay-tx-5.5.0", "SCHEDULE_TOPIC_XXXX")
    told = [row for row in stored if row["queueOffset"] >= done[str(row["queueId"] + 1)]]
    found = {(row["storedQueueId"], row["storedQueueOffset"]): row for row in rows}
    assert len(rows) == len(told) == 43
    for message in told:
        row = found[message["queueId"], message["queueOffset"]]
        properties = message["properties"]
        assert (row["topic"], row["queueId"]) == (properties["REAL_TOPIC"], int(properties["REAL_QID"]))
        assert (row["delayLevel"], row["msgId"]) == (int(properties["DELAY"]), properties["UNIQ_KEY"])
        assert _ms(row["dueTimestamp"]) == message["tagsCode"]
        assert row["dueInMs"] == message["tagsCode"] - NOW
        assert (row["physicalOffset"], row["bytes"]) == (message["physicalOffset"], message["storeSize"])
        assert row["state"] == "waiting"


def test_a_message_is_due_when_the_clock_says_so(golden: Golden) -> None:
    root = golden("delay-tx-5.5.0")
    # A slot of the wheel fires when its second has passed.
    due = sorted(_ms(row["dueTimestamp"]) + 1000 * (row["kind"] == "timer") for row in view(root, "delayed"))
    for moment in (due[0] - 1, due[0], due[-1] - 1, due[-1]):
        states = Counter(row["state"] for row in view(root, "delayed", moment))
        assert states["due"] == sum(time <= moment for time in due)
        assert states["waiting"] == sum(time > moment for time in due)


@pytest.mark.parametrize("name", ["delay-tx-5.5.0", "pop-5.5.0", "basic-5.5.0"])
def test_timer_messages_are_those_that_the_broker_counted(golden: Golden, name: str) -> None:
    root = golden(name)
    rows = [row for row in view(root, "delayed") if row["kind"] == "timer"]
    assert dict(Counter(row["topic"] for row in rows)) == _counts(root, "timermetrics", "timingCount")
    told = {row["queueOffset"]: row for row in _told(name, "rmq_sys_wheel_timer")}
    for row in rows:
        properties = told[row["storedQueueOffset"]]["properties"]
        assert _ms(row["dueTimestamp"]) == int(properties["TIMER_OUT_MS"])
        assert (row["topic"], row["queueId"]) == (properties["REAL_TOPIC"], int(properties["REAL_QID"]))


def test_without_the_brokers_notes_it_is_unknown_what_is_delivered(copy_of: Golden) -> None:
    root = copy_of("delay-tx-5.5.0")
    for name in ("delayOffset.json", "delayOffset.json.bak", "timercheck"):
        (root / "config" / name).unlink()
    rows = view(root, "delayed")
    assert {row["state"] for row in rows} == {"unknown"}
    assert sum(row["kind"] == "level" for row in rows) == len(_told("delay-tx-5.5.0", "SCHEDULE_TOPIC_XXXX"))


def test_without_consume_queues_the_same_messages_wait(copy_of: Golden) -> None:
    root = copy_of("delay-tx-5.5.0")
    expected = {name: view(root, name) for name in ("delayed", "transactions", "deadLetters")}
    shutil.rmtree(root / "consumequeue")
    for name, rows in expected.items():
        found = view(root, name)
        assert sorted(found, key=str) == sorted(rows, key=str), name


# ---- transactions ------------------------------------------------------------------------------------------


def test_transactions(golden: Golden) -> None:
    root = golden("delay-tx-5.5.0")
    rows = view(root, "transactions")
    halves = _told("delay-tx-5.5.0", "RMQ_SYS_TRANS_HALF_TOPIC")
    assert {row["msgId"] for row in rows} == {half["properties"]["UNIQ_KEY"] for half in halves}
    assert sum(row["copies"] for row in rows) == len(halves)
    pending = Counter(row["topic"] for row in rows if row["state"] == "pending")
    assert dict(pending) == _counts(root, "transactionMetrics", "transactionCount")
    ops = _told("delay-tx-5.5.0", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    texts = [text for op in ops for text in base64.b64decode(op["body"]).decode().split(",")]
    decided = {int(text) for text in texts if text}
    stored = [row for row in _told("delay-tx-5.5.0", "Tx") if row["sysFlag"] & 0xC == 0x8]
    committed = {row["preparedTransactionOffset"]: row for row in stored}
    by_id: dict[str, list[dict[str, Any]]] = {}
    for half in halves:
        by_id.setdefault(half["properties"]["UNIQ_KEY"], []).append(half)
    for row in rows:
        copies = by_id[row["msgId"]]
        commit = [committed[copy["physicalOffset"]] for copy in copies if copy["physicalOffset"] in committed]
        has_op = any(copy["queueOffset"] in decided for copy in copies)
        assert row["state"] == ("committed" if commit else "rolled back" if has_op else "pending")
        assert (row["decidedTimestamp"] is not None) == has_op
        assert row["ageMs"] == NOW - copies[0]["storeTimestamp"]
        assert row["halfQueueOffset"] == copies[-1]["queueOffset"]
        assert row["checkTimes"] == int(copies[-1]["properties"].get("TRANSACTION_CHECK_TIMES", 0))
        if commit:
            names = ("committedQueueOffset", "committedPhysicalOffset", "topic", "queueId")
            place = [commit[0][name] for name in ("queueOffset", "physicalOffset", "topic", "queueId")]
            assert [row[name] for name in names] == place
    assert Counter(row["state"] for row in rows) == {"committed": 32, "rolled back": 32, "pending": 16}


def test_a_half_message_whose_op_is_deleted_is_unknown(copy_of: Golden) -> None:
    root = copy_of("delay-tx-5.5.0")
    deleted_topic(root, "RMQ_SYS_TRANS_OP_HALF_TOPIC")
    states = Counter(row["state"] for row in view(root, "transactions"))
    assert (states["committed"], states["rolled back"]) == (32, 0)
    assert states["unknown"] + states["pending"] == 48
    assert states["pending"] >= 16


# ---- dead letters ------------------------------------------------------------------------------------------


def test_dead_letters(golden: Golden) -> None:
    rows = view(golden("retry-dlq-5.5.0"), "deadLetters")
    told = [row for row in goldens.expected_rows("retry-dlq-5.5.0") if row["topic"].startswith("%DLQ%")]
    found = {(row["topic"], row["queueOffset"]): row for row in rows}
    assert len(rows) == len(told) == 28
    for message in told:
        row, properties = found[message["topic"], message["queueOffset"]], message["properties"]
        assert row["group"] == message["topic"].removeprefix("%DLQ%")
        for column, name in {
            "originTopic": "RETRY_TOPIC",
            "originMsgId": "ORIGIN_MESSAGE_ID",
            "msgId": "UNIQ_KEY",
        }.items():
            assert row[column] == properties[name]
        for column in ("reconsumeTimes", "physicalOffset"):
            assert row[column] == message[column]
        assert _ms(row["storeTimestamp"]) == message["storeTimestamp"]


def test_a_damaged_dead_letter_hides_no_other(copy_of: Golden) -> None:
    root = copy_of("retry-dlq-5.5.0")
    victim = next(row for row in goldens.expected_rows("retry-dlq-5.5.0") if row["topic"] == "%DLQ%CG_fail")
    file = root / "commitlog" / "00000000000000000000"
    data = bytearray(file.read_bytes())
    data[victim["physicalOffset"] + 4] ^= 1  # its magic code
    file.write_bytes(data)
    rows = view(root, "deadLetters")
    assert len(rows) == 27
    assert victim["physicalOffset"] not in {row["physicalOffset"] for row in rows}
    assert any(row["severity"] == "damage" for row in view(root, "problems"))


# ---- made up: what no golden store has ---------------------------------------------------------------------


def _append(
    root: Path, topic: str, properties: list[dict[str, str]], bodies: list[bytes] | None = None
) -> list[int]:
    """Messages of queue 0 of a topic; their physical offsets."""
    text = [oracle.encode_properties(each) for each in properties]
    body = pa.array(bodies or [b"x"] * len(text), pa.binary())
    columns = MessageColumns(topic=topic, body=body, properties=pa.array(text, pa.binary()))
    store = MessageStore.open(str(root))
    store.append(columns, store_timestamps=np.full(len(text), NOW - 5000, np.int64))
    places = [at for batch in store.scan(["physicalOffset"]) for at in batch["physicalOffset"].to_pylist()]
    return places[-len(text) :]


def _timer(unique: str, due: int, **more: str) -> dict[str, str]:
    return {"UNIQ_KEY": unique, "TIMER_OUT_MS": str(due), "REAL_TOPIC": "Orders", "REAL_QID": "3", **more}


def test_timer_messages_put_back_and_recalled(root: Path) -> None:
    later = NOW + 10_000
    _append(
        root,
        "rmq_sys_wheel_timer",
        [
            _timer("fired", NOW - 60_000),
            _timer("rolled", later),
            _timer("victim", later),
            _timer("old victim", later),
            _timer("rolled", later, TIMER_ROLL_TIMES="1"),
            _timer("recall", later, TIMER_DEL_UNIQKEY="victim"),
            _timer("recall of 5.3", later, TIMER_DEL_UNIQKEY="Orders+old victim"),
            {"UNIQ_KEY": "no time"},
            _timer("not yet read", NOW - 60_000),
        ],
    )
    (root / "config" / "timercheck").write_bytes(
        struct.pack(">7q", NOW - 1000, 0, 8, 8, 0, 0, 0).ljust(4096, b"\0")
    )
    rows = {row["msgId"]: row for row in view(root, "delayed")}
    assert {name: row["state"] for name, row in rows.items()} == {
        "rolled": "waiting",
        "victim": "recalled",
        "old victim": "recalled",
        "recall": "recall",
        "recall of 5.3": "recall",
        "not yet read": "due",
    }
    rolled = rows["rolled"]
    assert (rolled["rollTimes"], rolled["storedQueueOffset"], rolled["queueId"]) == (1, 4, 3)


def test_transactions_that_were_discarded_and_those_in_rocksdb(root: Path) -> None:
    half = {"REAL_TOPIC": "Orders", "REAL_QID": "0", "PGROUP": "p"}
    _append(root, "Orders", [{}])
    a, b, c, d = ({"UNIQ_KEY": name, **half} for name in "abcd")
    _append(root, "RMQ_SYS_TRANS_HALF_TOPIC", [a, b, half])
    _append(root, "TRANS_CHECK_MAX_TIME_TOPIC", [a])
    bodies = [b"2,,junk,99999999999999999999,", b"1,"]
    _append(root, "RMQ_SYS_TRANS_OP_HALF_TOPIC", [{"TAGS": "d"}, {"TAGS": "other"}], bodies)
    places = _append(root, "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", [c, d])
    _append(root, "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC", [{"TAGS": "d", "TRANS_OFFSET": str(places[0])}])
    rows = view(root, "transactions")
    by_id = {row["msgId"]: row["state"] for row in rows if len(row["msgId"]) == 1}
    assert by_id == {"a": "discarded", "b": "pending", "c": "rolled back", "d": "pending"}
    # without UNIQ_KEY, at queue offset 2
    assert [row["state"] for row in rows if len(row["msgId"]) > 1] == ["rolled back"]
    assert {row["ageMs"] for row in rows} == {5000}


def test_a_transaction_is_decided_where_its_topic_is_deleted(copy_of: Golden) -> None:
    """Without the topic's queues nothing says whether a half message was committed or rolled back."""
    root = copy_of("delay-tx-5.5.0")
    shutil.rmtree(root / "consumequeue" / "Tx")
    scanned = Counter(row["state"] for row in view(root, "transactions"))
    assert scanned == {"committed": 32, "rolled back": 32, "pending": 16}
    text = (root / "config" / "topics.json").read_text()
    (root / "config" / "topics.json").write_text(text.replace('"Tx":{', '"Other":{'))
    assert Counter(row["state"] for row in view(root, "transactions")) == {"decided": 64, "pending": 16}

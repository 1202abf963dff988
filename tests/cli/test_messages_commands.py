"""`head`, `tail`, `get` and `find`: the rows are those that the broker read, in each of the forms."""

from __future__ import annotations

import base64
import json
import select
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import rmq_spark
from store_format import CommitOptions, MessageColumns, MessageStore
from store_format.errors import OptionError
from store_format.message.columns import COLUMNS
from tests.support import goldens
from tests.support.cli_runs import Runner, command, environment
from tests.support.fixtures import Golden
from tests.support.staged import append, numbered

STORE = "basic-5.5.0"
_SYSTEM = ("%", "rmq_sys", "SCHED", "RMQ_SYS")
NAMED = ("--columns", "topic,queueId,queueOffset,physicalOffset")


Places = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def placed(rmqlog: Runner) -> Places:
    """`placed(…)`: the places of the rows of a run."""
    return lambda *words: _places(rmqlog.rows(*words, *NAMED))


def _places(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["topic"], row["queueId"], row["queueOffset"], row["physicalOffset"]) for row in rows]


def _in_log(topic: str | None = None) -> list[dict[str, Any]]:
    topics = (topic,) if topic else ("Audit", "Metrics", "Orders")
    rows = [row for row in goldens.expected_rows(STORE) if row["topic"] in topics]
    return sorted(rows, key=lambda row: row["physicalOffset"])


def _user_rows(name: str) -> list[dict[str, Any]]:
    return [row for row in goldens.expected_rows(name) if not row["topic"].startswith(_SYSTEM)]


@pytest.mark.parametrize("topic", [None, "Orders"])
def test_head_and_tail_are_the_ends_of_the_log(placed: Places, golden: Golden, topic: str | None) -> None:
    chosen, wanted = () if topic is None else ("--topic", topic), _places(_in_log(topic))
    assert placed("head", golden(STORE), *chosen) == wanted[:10]
    assert placed("tail", golden(STORE), *chosen, "-n", 25) == wanted[-25:]


@pytest.mark.process
@pytest.mark.parametrize("tag", ["TagB", "标签"])
@pytest.mark.parametrize("count", [3, 5000])
def test_head_and_tail_with_a_tag(placed: Places, golden: Golden, tag: str, count: int) -> None:
    wanted = _places([row for row in _in_log() if row["properties"].get("TAGS") == tag])
    assert placed("head", golden(STORE), "--tag", tag, "-n", count) == wanted[:count]
    assert placed("tail", golden(STORE), "--tag", tag, "-n", count) == wanted[-count:]


def test_a_window_of_time_a_condition_and_a_key(placed: Places, golden: Golden) -> None:
    rows = _in_log()
    since, until = rows[300]["storeTimestamp"], rows[900]["storeTimestamp"]
    wanted = [row for row in rows if since <= row["storeTimestamp"] < until]
    found = placed("head", golden(STORE), "--since", since, "--until", until, "-n", 9999)
    assert found == _places(wanted)
    wanted = [row for row in rows if row["properties"].get("region") == "eu-3"]
    assert placed("find", golden(STORE), "--where", "region = 'eu-3'") == _places(wanted) != []
    wanted = [row for row in wanted if "AaBB" in row["properties"].get("KEYS", "").split(" ")]
    found = placed("find", golden(STORE), "--where", "region = 'eu-3'", "--key", "AaBB")
    assert found == _places(wanted)


@pytest.mark.parametrize("name", ["rocksdb-5.5.0", "batchcq-5.5.0", "cleaned-5.5.0", "crash-5.5.0"])
def test_stores_of_other_kinds(placed: Places, golden: Golden, name: str) -> None:
    rows = _user_rows(name)
    topic = max(row["topic"] for row in rows)
    wanted = _places([row for row in rows if row["topic"] == topic])
    wanted.sort(key=lambda place: (place[3], place[2]))
    assert placed("head", golden(name), "--topic", topic, "-n", 7) == wanted[:7]
    assert placed("tail", golden(name), "--topic", topic, "-n", 7) == wanted[-7:]
    assert placed("find", golden(name), "--topic", topic) == wanted


def test_json_has_the_columns_of_the_dataframe(rmqlog: Runner, golden: Golden) -> None:
    (row,) = rmqlog.rows("head", golden(STORE), "-n", 1)
    expected = _in_log()[0]
    assert set(row) == set(COLUMNS) - {"rawBody", "_corrupt_record", "logicalQueueId", "logicalQueueOffset"}
    for name in ("body", "physicalOffset", "storeSize", "tagsCode", "properties"):
        assert row[name] == expected[name]
    as_text = json.loads(rmqlog("head", golden(STORE), "-n", 1, "-o", "jsonl", "--body", "text").out)
    assert as_text["body"] == base64.b64decode(expected["body"]).decode("utf-8", "replace")


def test_get_takes_either_kind_of_id(rmqlog: Runner, placed: Places, golden: Golden) -> None:
    expected = _in_log()[2]
    for id_ in (expected["properties"]["UNIQ_KEY"], expected["msgId"]):
        assert placed("get", golden(STORE), id_) == _places([expected])
    done = rmqlog("get", golden(STORE), expected["msgId"])
    assert done.code == 0
    assert f"queueOffset                {expected['queueOffset']}\n" in done.out
    assert "region = eu-3\n" in done.out


@pytest.mark.parametrize("name", [STORE, "rocksdb-5.5.0", "batchcq-5.5.0"])
def test_get_takes_topic_queue_and_offset(rmqlog: Runner, golden: Golden, name: str) -> None:
    rows = _user_rows(name)
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        place = f"{row['topic']}/{row['queueId']}@{row['queueOffset']}"
        (found,) = rmqlog.rows("get", golden(name), place)
        assert _places([found]) == _places([row])
        assert found["body"] == row["body"]
    assert f"queueOffset                {rows[-1]['queueOffset']}\n" in rmqlog("get", golden(name), place).out


def test_an_address_names_a_message_of_each_broker(rmqlog: Runner, golden: Golden) -> None:
    path = golden("cluster-5.5.0")
    rows = rmqlog.rows("head", path, "-n", 9999)
    places: dict[str, set[str]] = {}
    for row in rows:
        place = f"{row['topic']}/{row['queueId']}@{row['queueOffset']}"
        places.setdefault(place, set()).add(row["brokerName"])
    shared = next(place for place, brokers in places.items() if len(brokers) == 2)
    assert {row["brokerName"] for row in rmqlog.rows("get", path, shared)} == places[shared]
    said = rmqlog("find", path, "--topic", rows[0]["topic"]).err.splitlines()
    assert [line.split(": ")[1] for line in said] == sorted(places[shared])


@pytest.mark.parametrize("name", [STORE, "rocksdb-5.5.0", "batchcq-5.5.0"])
def test_head_from_a_queue_offset(rmqlog: Runner, placed: Places, golden: Golden, name: str) -> None:
    rows = _user_rows(name)
    topic = max(row["topic"] for row in rows)
    queue = max(row["queueId"] for row in rows if row["topic"] == topic)
    wanted = [row for row in rows if (row["topic"], row["queueId"]) == (topic, queue)][5:8]
    assert len(wanted) == 3
    chosen = ("--topic", topic, "--queue", queue, "--offset", 5)
    assert placed("head", golden(name), *chosen, "-n", 3) == _places(wanted)
    said = rmqlog.fails(1, "head", golden(name), "--topic", topic, "--offset", 10**9)
    assert said.startswith("no message has the offset 1000000000 or a later one; the last offset is ")
    assert placed("head", golden(name), *chosen, "--since", 1, "-n", 1) == _places(wanted[:1])


@pytest.mark.process
def test_only_new_messages_are_followed(root: Path) -> None:
    append(root, numbered("T", 0, 8))
    arguments = command("tail", "-f", "-n", 0, "--interval", 0.05, root, "-o", "jsonl", *NAMED)
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=environment(), text=True) as run:
        assert run.stdout is not None
        written = 2  # messages of queue 0
        try:
            while not (shown := select.select([run.stdout], [], [], 0.5)[0]) and written < 400:
                append(root, numbered("T", 4 * written, 1))
                written += 1
            assert shown
            assert 2 <= json.loads(run.stdout.readline())["queueOffset"] < written
        finally:
            run.kill()


def test_find_takes_a_key_or_an_id(placed: Places, golden: Golden) -> None:
    by_option = placed("find", golden(STORE), "--key", "AaBB")
    assert placed("find", golden(STORE), "AaBB") == by_option != []
    expected = _in_log()[2]
    for id_ in (expected["properties"]["UNIQ_KEY"], expected["msgId"], expected["msgId"].lower()):
        assert placed("find", golden(STORE), id_) == _places([expected])
    narrowed = placed("find", golden(STORE), "AaBB", "--where", "region = 'eu-3'")
    assert 0 < len(narrowed) < len(by_option)


def _word_of(rows: list[dict[str, Any]]) -> str:
    """A part of a body."""
    bodies = [base64.b64decode(row["body"]).decode("utf-8", "replace") for row in rows]
    return next(body[1:9] for body in bodies if len(body) > 9 and body[1:9].isascii())


@pytest.mark.parametrize("name", [STORE, "edge-5.5.0", "rocksdb-5.5.0"])
def test_find_looks_into_bodies(rmqlog: Runner, placed: Places, golden: Golden, name: str) -> None:
    rows = _user_rows(name)
    for word in ("order", "队列", "cart") if name == STORE else (_word_of(rows), "e"):
        wanted = [row for row in rows if word.encode() in base64.b64decode(row["body"])]
        found = placed("find", golden(name), "--body", word)
        assert sorted(found) == sorted(_places(wanted)) != []
        assert placed("find", golden(name), "--body", word, "-n", 2) == found[:2]
    key = next((row["properties"]["KEYS"].split(" ")[0] for row in rows if "KEYS" in row["properties"]), None)
    if key is not None:
        assert "no message matches" in rmqlog.fails(1, "find", golden(name), key, "--body", "\0nowhere\0")


_BODIES = {
    b'{"id": 7, "items": [1.5, "\xe5\x8d\x95"]}': {"id": 7, "items": [1.5, "单"]},
    b"[1, 2]": [1, 2],
    b'"text"': "text",
    b"plain text": "plain text",
    b"": "",
    b"NaN": "NaN",
    b"[1e999]": "[1e999]",
    b"\xff\x00": {"base64": "/wA="},
    b'{"amount":12345678901234567.89}': '{"amount":12345678901234567.89}',  # a double loses the last digits
    b'{"amount":12.50}': {"amount": 12.5},
    b"[" * 2000 + b"]" * 2000: "[" * 2000 + "]" * 2000,
    b'{"a":' * 400 + b"1" + b"}" * 400: None,
}


def test_json_bodies_are_nested(rmqlog: Runner, tmp_path: Path) -> None:
    store = MessageStore.create(str(tmp_path / "store"), mapped_file_size_commit_log=1 << 20)
    bodies = pa.array(list(_BODIES), pa.binary())
    properties = pa.array([b""] * len(bodies), pa.binary())
    messages = MessageColumns(topic="Orders", body=bodies, properties=properties)
    store.append(messages, options=CommitOptions(new_topics={"Orders": 1}))
    json_bodies = ("--columns", "body", "--body", "json")
    found = [row["body"] for row in rmqlog.rows("head", store.path, "-n", 99, *json_bodies)]
    for body, value in zip(found, _BODIES.values(), strict=True):
        assert body == value or value is None
    deep, depth = found[-1], 0
    while isinstance(deep, dict):
        deep, depth = deep["a"], depth + 1
    assert depth == 400
    out = tmp_path / "a.jsonl"
    refused = rmqlog("export", store.path, tmp_path / "a.parquet", *json_bodies)
    assert (refused.code, "Parquet has bodies as bytes; leave out --body-form" in refused.err) == (2, True)
    assert rmqlog("export", store.path, out, *json_bodies).code == 0
    assert [json.loads(line)["body"] for line in out.read_text().splitlines()] == found
    searched = ("--topic", "Orders", "--columns", "body", "--body-form", "json")
    assert rmqlog.rows("find", store.path, *searched) == [{"body": body} for body in found]


def test_a_word_without_quotes_is_no_condition(golden: Golden) -> None:
    """answers.txt has what the command says."""
    with pytest.raises(OptionError, match=r"^where: region = north compares"):
        rmq_spark.open(str(golden(STORE))).messages("Orders", where="region = north")


def test_get_gives_the_bare_body(golden: Golden, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from rmq_spark.cli.main import main

    expected = _in_log()[2]
    assert main(["get", str(golden(STORE)), expected["msgId"], "-o", "raw"]) == 0
    assert capfdbinary.readouterr().out == base64.b64decode(expected["body"])


def test_find_by_key_gives_what_has_it_and_says_how(rmqlog: Runner, placed: Places, golden: Golden) -> None:
    wanted = [row for row in _in_log("Orders") if "AaBB" in row["properties"].get("KEYS", "").split(" ")]
    asked = ("find", golden(STORE), "--key", "AaBB", "--topic")
    assert placed(*asked, "Orders") == placed(*asked, "Ord*", "--no-index") == _places(wanted)
    assert f"{len(wanted)} found by index" in rmqlog(*asked, "Orders").err
    assert rmqlog.table("find", golden(STORE), "--key", "AaBB", "-n", 2)[0][:2] == ["storeTimestamp", "topic"]

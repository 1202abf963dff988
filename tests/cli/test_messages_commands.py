"""`head`, `tail`, `get` and `find`: the rows are those that the broker read, in each of the forms."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store_format.message.columns import COLUMNS
from tests.support import goldens
from tests.support.cli_runs import Runner

Golden = Callable[[str], Path]
STORE = "basic-5.5.0"
NAMED = ("--columns", "topic,queueId,queueOffset,physicalOffset")


def _places(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["topic"], row["queueId"], row["queueOffset"], row["physicalOffset"]) for row in rows]


def _in_log(topic: str | None = None) -> list[dict[str, Any]]:
    rows = [
        row
        for row in goldens.expected_rows(STORE)
        if row["topic"] in ((topic,) if topic else ("Audit", "Metrics", "Orders"))
    ]
    return sorted(rows, key=lambda row: row["physicalOffset"])


@pytest.mark.parametrize("topic", [None, "Orders"])
def test_head_and_tail_are_the_ends_of_the_log(rmqlog: Runner, golden: Golden, topic: str | None) -> None:
    chosen = () if topic is None else ("--topic", topic)
    assert _places(rmqlog.rows("head", golden(STORE), *chosen, *NAMED)) == _places(_in_log(topic)[:10])
    assert _places(rmqlog.rows("tail", golden(STORE), *chosen, *NAMED, "-n", 25)) == _places(
        _in_log(topic)[-25:]
    )


@pytest.mark.process
@pytest.mark.parametrize("tag", ["TagB", "标签"])
@pytest.mark.parametrize("count", [3, 5000])
def test_head_and_tail_with_a_tag(rmqlog: Runner, golden: Golden, tag: str, count: int) -> None:
    wanted = [row for row in _in_log() if row["properties"].get("TAGS") == tag]
    assert _places(rmqlog.rows("head", golden(STORE), "--tag", tag, "-n", count, *NAMED)) == _places(
        wanted[:count]
    )
    assert _places(rmqlog.rows("tail", golden(STORE), "--tag", tag, "-n", count, *NAMED)) == _places(
        wanted[-count:]
    )


def test_a_window_of_time_a_condition_and_a_key(rmqlog: Runner, golden: Golden) -> None:
    rows = _in_log()
    since, until = rows[300]["storeTimestamp"], rows[900]["storeTimestamp"]
    wanted = [row for row in rows if since <= row["storeTimestamp"] < until]
    assert _places(
        rmqlog.rows("head", golden(STORE), "--since", since, "--until", until, "-n", 9999, *NAMED)
    ) == _places(wanted)
    wanted = [row for row in rows if row["properties"].get("region") == "eu-3"]
    assert wanted
    assert _places(rmqlog.rows("find", golden(STORE), "--where", "region = 'eu-3'", *NAMED)) == _places(
        wanted
    )
    wanted = [row for row in wanted if "AaBB" in row["properties"].get("KEYS", "").split(" ")]
    found = rmqlog.rows("find", golden(STORE), "--where", "region = 'eu-3'", "--key", "AaBB", *NAMED)
    assert _places(found) == _places(wanted)


@pytest.mark.parametrize("name", ["rocksdb-5.5.0", "batchcq-5.5.0", "cleaned-5.5.0", "crash-5.5.0"])
def test_stores_of_other_kinds(rmqlog: Runner, golden: Golden, name: str) -> None:
    rows = goldens.expected_rows(name)
    topic = max(
        {row["topic"] for row in rows if not row["topic"].startswith(("%", "rmq_sys", "SCHED", "RMQ_SYS"))}
    )
    wanted = sorted(
        (row for row in rows if row["topic"] == topic),
        key=lambda row: (row["physicalOffset"], row["queueOffset"]),
    )
    assert _places(rmqlog.rows("head", golden(name), "--topic", topic, "-n", 7, *NAMED)) == _places(
        wanted[:7]
    )
    assert _places(rmqlog.rows("tail", golden(name), "--topic", topic, "-n", 7, *NAMED)) == _places(
        wanted[-7:]
    )
    assert _places(rmqlog.rows("find", golden(name), "--topic", topic, *NAMED)) == _places(wanted)


def test_json_has_the_columns_of_the_dataframe(rmqlog: Runner, golden: Golden) -> None:
    (row,) = rmqlog.rows("head", golden(STORE), "-n", 1)
    expected = _in_log()[0]
    assert set(row) == set(COLUMNS) - {"rawBody", "_corrupt_record"}
    assert row["body"] == expected["body"]
    assert (row["physicalOffset"], row["storeSize"], row["tagsCode"]) == tuple(
        expected[name] for name in ("physicalOffset", "storeSize", "tagsCode")
    )
    assert row["properties"] == expected["properties"]
    as_text = json.loads(rmqlog("head", golden(STORE), "-n", 1, "-o", "jsonl", "--bodies", "text").out)
    assert as_text["body"] == base64.b64decode(expected["body"]).decode("utf-8", "replace")


def test_get_takes_either_kind_of_id(rmqlog: Runner, golden: Golden) -> None:
    expected = _in_log()[2]
    for id_ in (expected["properties"]["UNIQ_KEY"], expected["msgId"]):
        (row,) = rmqlog.rows("get", golden(STORE), id_, *NAMED)
        assert _places([row]) == _places([expected])
    done = rmqlog("get", golden(STORE), expected["msgId"])
    assert done.code == 0
    assert f"queueOffset                {expected['queueOffset']}\n" in done.out
    assert "region = eu-3\n" in done.out


def test_get_gives_the_bare_body(golden: Golden, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from rmq_spark.cli.main import main

    expected = _in_log()[2]
    assert main(["get", str(golden(STORE)), expected["msgId"], "-o", "raw"]) == 0
    assert capfdbinary.readouterr().out == base64.b64decode(expected["body"])


def test_find_by_key_gives_what_has_it_and_says_how(rmqlog: Runner, golden: Golden) -> None:
    wanted = [row for row in _in_log("Orders") if "AaBB" in row["properties"].get("KEYS", "").split(" ")]
    asked = [
        query["physicalOffsets"]
        for query in goldens.expected(STORE)["queryByKey"]
        if (query["topic"], query["key"]) == ("Orders", "AaBB")
    ]
    assert {offset for answer in asked for offset in answer} & {row["physicalOffset"] for row in wanted}
    assert _places(
        rmqlog.rows("find", golden(STORE), "--topic", "Orders", "--key", "AaBB", *NAMED)
    ) == _places(wanted)
    assert _places(
        rmqlog.rows("find", golden(STORE), "--key", "AaBB", "--topic", "Ord*", "--no-index", *NAMED)
    ) == _places(wanted)
    assert (
        f"{len(wanted)} found by index"
        in rmqlog("find", golden(STORE), "--topic", "Orders", "--key", "AaBB").err
    )
    assert rmqlog.table("find", golden(STORE), "--key", "AaBB", "-n", 2)[0][:2] == ["storeTimestamp", "topic"]


def test_what_is_not_there_is_told(rmqlog: Runner, golden: Golden) -> None:
    assert rmqlog.fails(2, "get", golden(STORE), "nobody") == "no message has the id 'nobody'"
    assert rmqlog.fails(2, "find", golden(STORE), "--key", "nobody") == "no message matches"
    assert "did you mean Orders?" in rmqlog.fails(2, "head", golden(STORE), "--topic", "Oders")
    assert "did you mean Orders?" in rmqlog.fails(2, "tail", golden(STORE), "--topic", "Oders")
    # an empty answer to a question that has one
    assert rmqlog("head", golden(STORE), "--until", "1000").code == 0


def test_wrong_usage_is_one_sentence(rmqlog: Runner, golden: Golden) -> None:
    assert "(-2 hours), found 'noon'" in rmqlog.fails(1, "head", golden(STORE), "--since", "noon")
    assert "<-- HERE" in rmqlog.fails(1, "head", golden(STORE), "--where", "a >")
    assert "did you mean queueOffset?" in rmqlog.fails(1, "head", golden(STORE), "--columns", "queuOffset")
    assert "--since must be before --until" in rmqlog.fails(
        1, "head", golden(STORE), "--since", "5", "--until", "5"
    )
    assert "use only one" in rmqlog.fails(1, "find", golden(STORE), "--key", "a", "--id", "b")
    assert "jsonl" in rmqlog.fails(1, "tail", "-f", golden(STORE), "-o", "json")
    assert "Missing argument 'ID'" in rmqlog.fails(1, "get", golden(STORE))


def test_damage_stops_a_command_or_is_left_out_and_counted(
    rmqlog: Runner, golden: Golden, tmp_path: Path
) -> None:
    broken = _in_log("Orders")[5]
    store = tmp_path / "store"
    shutil.copytree(golden(STORE), store)
    log = store / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[broken["physicalOffset"] + 100] ^= 0xFF
    log.write_bytes(data)
    said = rmqlog.fails(3, "head", store, "--topic", "Orders")
    assert f"at byte {broken['physicalOffset'] + 8}: expected body CRC" in said
    done = rmqlog("head", store, "--topic", "Orders", "--skip-damage", "-o", "jsonl", *NAMED)
    assert done.code == 4
    assert "1 damaged messages or stretches of the commitlog" in done.err
    assert broken["physicalOffset"] not in [
        json.loads(line)["physicalOffset"] for line in done.out.splitlines()
    ]

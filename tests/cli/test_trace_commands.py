"""`trace`: the life of one message, and of all messages with a key."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from store_format import MessageStore
from store_format.views.trace import TRACE_COLUMNS
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden
from tests.support.text_terminal import seen


def _rows(path: str, words: tuple[str, ...]) -> list[dict[str, Any]]:
    """The rows of a run in JSON lines."""
    code, text = seen(None, "trace", path, *words, "-o", "jsonl")
    assert code == 0
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def test_the_life_of_a_dead_letter(rmqlog: Runner, golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    dead = store.view("deadLetters").to_pylist()[0]
    rows = rmqlog.rows("trace", golden("retry-dlq-5.5.0"), dead["msgId"])
    assert [row["what"] for row in rows] == store.trace(dead["msgId"])["what"].to_pylist()
    assert list(rows[0]) == ["key", "msgId", *(column.name for column in TRACE_COLUMNS)]
    assert {(row["key"], row["msgId"]) for row in rows} == {(None, dead["msgId"])}
    assert {"born", "dead letter"} <= {row["what"] for row in rows}
    assert rmqlog.table("trace", golden("retry-dlq-5.5.0"), dead["msgId"])[0][:3] == ["time", "what", "topic"]


def test_the_life_of_all_messages_with_a_key(rmqlog: Runner, golden: Golden) -> None:
    path = golden("retry-dlq-5.5.0")
    store = MessageStore.open(str(path))
    found = store.find(key="id-9").table.to_pylist()
    ids = list(dict.fromkeys(row["msgId"] for row in found))
    assert len(ids) == 2
    rows = rmqlog.rows("trace", path, "--key", "id-9")
    assert [(row["msgId"], row["what"]) for row in rows] == [
        (each, what) for each in ids for what in store.trace(each)["what"].to_pylist()
    ]
    assert {row["key"] for row in rows} == {"id-9"}
    assert rmqlog("trace", path, "id-9") == rmqlog("trace", path, "--key", "id-9")
    assert rmqlog("trace", path, "--key", "id-9").err == (
        "rmqlog: messages with the key id-9: 2\n"
        f"rmqlog: a dead letter of CG_fail: rmqlog dlq {path} -g CG_fail --key id-9 --with-body\n"
    )
    shown = rmqlog("trace", path, "--key", "id-9").out.split("\n\n")
    for table, each in zip(shown, ids, strict=True):
        assert table.splitlines()[0] == f"message {each}"
        assert table.rstrip("\n").count("\n") == 1 + store.trace(each).num_rows
    one = rmqlog("trace", path, "--key", "id-9", "-n", 1)
    assert one.err.startswith("rmqlog: messages with the key id-9: 2; the first is shown\n")
    jobs = rmqlog.rows("trace", path, "--key", "id-9", "--topic", "Jobs")
    assert {row["msgId"] for row in jobs} == {row["msgId"] for row in found if row["topic"] == "Jobs"}
    assert rmqlog.rows("trace", path, "id-9", "--topic", "Jobs") == jobs
    (job,) = {row["msgId"] for row in jobs}
    assert {row["msgId"] for row in rmqlog.rows("trace", path, job, "-t", "Jobs")} == {job}
    assert "leave out --topic" in rmqlog.fails(2, "trace", path, "Jobs/0@2", "-t", "Jobs")
    place = next(row for row in found if row["topic"] == "Jobs")
    named = f"Jobs/{place['queueId']}@{place['queueOffset']}"
    assert rmqlog.rows("trace", path, named) == rmqlog.rows("trace", path, place["msgId"])


def test_the_lives_of_several_keys(rmqlog: Runner, golden: Golden) -> None:
    path = golden("retry-dlq-5.5.0")
    both = rmqlog.rows("trace", path, "--key", "id-9", "--key", "id-10")
    each = [rmqlog.rows("trace", path, "--key", key) for key in ("id-9", "id-10")]
    assert both == each[0] + each[1]
    done = rmqlog("trace", path, "--key", "id-9", "--key", "ID-10", "-n", 1)
    assert (done.code, done.out.count("message ")) == (0, 1)
    assert (
        "\nrmqlog: no message has the key 'ID-10'; keys are case-sensitive, did you mean id-10?\n" in done.err
    )
    assert "(key id-9)\n" in done.out
    said = rmqlog.fails(1, "trace", path, "--key", "nobody", "--key", "nothing")
    assert said == "no message has the key 'nobody'; no message has the key 'nothing'"


def test_a_narrow_table_cuts_no_detail_and_no_millisecond(golden: Golden) -> None:
    path = str(golden("retry-dlq-5.5.0"))
    code, text = seen(80, "trace", path, "--key", "id-9")
    assert code == 0
    rows = [line for line in text.splitlines() if re.match(r"\d\d:\d\d:\d\d", line)]
    assert rows
    assert all(re.match(r"\d\d:\d\d:\d\d\.\d{3} ", line) for line in rows)
    assert "…" not in text
    assert "level 3 for %RETRY%CG_fail, due 2026-11-21T06:53:07.287Z" in text
    assert text.count("committed offset") == sum(
        row["what"] == "passed" for row in _rows(path, ("--key", "id-9"))
    )


def test_tries_of_a_dead_letter_are_its_first_delivery_and_its_retries(
    rmqlog: Runner, golden: Golden
) -> None:
    """Real brokers' dead letters: of send-backs, of an orderly group, and given up at once."""
    path = golden("retry-dlq-5.5.0")
    store = MessageStore.open(str(path))
    rows = store.view("deadLetters").to_pylist()
    firsts = {row["group"]: row for row in reversed(rows)}
    assert {group: row["reconsumeTimes"] for group, row in firsts.items()} == {
        "CG_direct": 1, "CG_orderly": 2, "CG_fail": 2,
    }  # fmt: skip
    row = firsts["CG_fail"]
    retries = [what for what in store.trace(row["msgId"])["what"].to_pylist() if what.startswith("retry ")]
    assert row["reconsumeTimes"] == 1 + len(retries)
    shown = rmqlog.table("dlq", path, "--columns", "tries")
    assert shown[0] == ["reconsumeTimes"]  # a pipe has the columns' names; screens/verbs/dlq.txt a terminal's
    assert len(shown) == 1 + len(rows)


@pytest.mark.parametrize("form", [(), ("-o", "jsonl")])
def test_all_times_of_a_line_are_in_one_zone(rmqlog: Runner, golden: Golden, form: tuple[str, ...]) -> None:
    asked = ("trace", golden("retry-dlq-5.5.0"), "--key", "id-9", *form)
    due = "level 3 for %RETRY%CG_fail, due 2026-11-21T"
    assert f"{due}06:53:07.287Z" in rmqlog(*asked).out
    for zone, time in (("Europe/Berlin", "07:53:07.287+01:00"), ("+08:00", "14:53:07.287+08:00")):
        text = rmqlog(*asked, "--tz", zone).out
        assert f"{due}{time}" in text
        assert "06:53:07" not in text


@pytest.mark.parametrize(
    ("words", "titles"),
    [
        (("find", "--tag", "TagA"), {"tags"}),
        (("find", "id-9"), {"tags", "keys"}),
        (("dlq",), {"tries", "tags", "keys"}),
    ],
)
def test_a_narrow_table_shows_what_the_search_was_for(
    golden: Golden, words: tuple[str, ...], titles: set[str]
) -> None:
    verb, *more = words
    code, text = seen(80, verb, str(golden("retry-dlq-5.5.0")), *more)
    assert code == 0
    assert titles <= set(text.splitlines()[1].split()) | set(text.splitlines()[0].split())

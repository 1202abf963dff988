"""`trace`: the life of one message, and of all messages with a key."""

from __future__ import annotations

from store_format import MessageStore
from store_format.views.trace import TRACE_COLUMNS
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden


def test_the_life_of_a_dead_letter(rmqlog: Runner, golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    dead = store.view("deadLetters").to_pylist()[0]
    rows = rmqlog.rows("trace", golden("retry-dlq-5.5.0"), dead["msgId"])
    assert [row["what"] for row in rows] == store.trace(dead["msgId"])["what"].to_pylist()
    assert list(rows[0]) == [column.name for column in TRACE_COLUMNS]
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
    assert one.err.startswith("rmqlog: messages with the key id-9: 2; the first 1 are shown\n")
    jobs = rmqlog.rows("trace", path, "--key", "id-9", "--topic", "Jobs")
    assert {row["msgId"] for row in jobs} == {row["msgId"] for row in found if row["topic"] == "Jobs"}
    place = next(row for row in found if row["topic"] == "Jobs")
    named = f"Jobs/{place['queueId']}@{place['queueOffset']}"
    assert rmqlog.rows("trace", path, named) == rmqlog.rows("trace", path, place["msgId"])

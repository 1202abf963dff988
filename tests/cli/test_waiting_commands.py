"""`dlq`, `delay` and `half`: rows of the views, by the filters that they have."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from rmq_spark.cli.main import main
from store_format import MessageStore
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden, Unchanged
from tests.support.halves import half_store, states, visible
from tests.support.reads import flip
from tests.support.writes import held

NOW_MS = 1_900_000_000_000
NOW = ("--now", NOW_MS)


def test_dead_letters(rmqlog: Runner, golden: Golden) -> None:
    """answers.txt has those of a group, a topic, a tag and a time."""
    path = golden("retry-dlq-5.5.0")
    view = MessageStore.open(str(path)).view("deadLetters").to_pylist()
    rows = rmqlog.rows("dlq", path)
    assert [row["physicalOffset"] for row in rows] == [row["physicalOffset"] for row in view]
    assert "No such option" in rmqlog.fails(2, "dlq", path, "--where", "a = 1")


def _bodies(name: str) -> dict[int, str]:
    return {row["physicalOffset"]: row["body"] for row in goldens.expected_rows(name)}


_WAITING = (
    ("dlq", "retry-dlq-5.5.0", "physicalOffset"),
    ("delay", "delay-tx-5.5.0", "physicalOffset"),
    ("half", "delay-tx-5.5.0", "halfPhysicalOffset"),
)


def test_bodies_of_messages_that_wait(rmqlog: Runner, golden: Golden) -> None:
    for verb, name, place in _WAITING:
        now = () if verb == "dlq" else NOW
        bare = rmqlog.rows(verb, golden(name), *now)
        rows = rmqlog.rows(verb, golden(name), *now, "--with-body")
        assert [{**row, "body": None} for row in rows] == [{**row, "body": None} for row in bare]
        assert "body" not in bare[0]
        known = _bodies(name)
        checked = [row for row in rows if row[place] in known]
        assert [row["body"] for row in checked] == [known[row[place]] for row in checked]
        assert all(row["body"] is not None for row in rows)
        assert rmqlog.table(verb, golden(name), *now, "--with-body")[0][-1] == "body"
        (first,) = rmqlog.rows(verb, golden(name), *now, "--columns", "body", "-n", 1)
        assert first == {"body": rows[0]["body"]}


def test_raw_bodies_of_messages_that_wait(golden: Golden, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    for verb, name, place in _WAITING:
        view = MessageStore.open(str(golden(name))).view(
            {"dlq": "deadLetters", "delay": "delayed", "half": "transactions"}[verb], now_ms=NOW_MS
        )
        assert main([verb, str(golden(name)), "-o", "raw", "-n", "1"]) == 0
        body = base64.b64decode(_bodies(name)[view[place][0].as_py()])
        assert capfdbinary.readouterr().out == body


def test_a_damaged_body_is_null(rmqlog: Runner, tmp_path: Path) -> None:
    path = goldens.unpack("retry-dlq-5.5.0", tmp_path / "store")
    victim = rmqlog.rows("dlq", path, "--with-body")[1]
    log = path / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    at = data.index(base64.b64decode(victim["body"]), victim["physicalOffset"])
    data[at] ^= 0xFF
    log.write_bytes(data)
    rows = {row["physicalOffset"]: row["body"] for row in rmqlog.rows("dlq", path, "--with-body")}
    assert rows.pop(victim["physicalOffset"]) is None
    assert None not in rows.values()


def test_messages_that_wait(rmqlog: Runner, golden: Golden) -> None:
    path = golden("delay-tx-5.5.0")
    view = MessageStore.open(str(path)).view("delayed", now_ms=NOW_MS).to_pylist()
    assert len(view) > 5
    rows = rmqlog.rows("delay", path, *NOW)
    assert [(row["kind"], row["physicalOffset"], row["dueInMs"]) for row in rows] == [
        (row["kind"], row["physicalOffset"], row["dueInMs"]) for row in view
    ]


def test_half_messages(rmqlog: Runner, golden: Golden) -> None:
    path = golden("delay-tx-5.5.0")
    view = MessageStore.open(str(path)).view("transactions", now_ms=NOW_MS).to_pylist()
    rows = rmqlog.rows("half", path, *NOW)
    assert [(row["state"], row["msgId"], row["ageMs"]) for row in rows] == [
        (row["state"], row["msgId"], row["ageMs"]) for row in view
    ]
    (found,) = rmqlog.rows("half", path, *NOW, "--key", "id-67")
    assert (found["state"], found["keys"]) == ("pending", ["id-67"])


def test_half_messages_are_decided_with_apply_only(
    rmqlog: Runner, tmp_path: Path, unchanged: Unchanged
) -> None:
    root = half_store(tmp_path / "store", ["A", "B", "C"])
    command = ("half", root, "--commit", "A", "--rollback", "B")
    with unchanged(root):
        rows = rmqlog.rows(*command)
        assert rmqlog(*command).err == "rmqlog: nothing was changed; add --apply to write the decisions\n"
    assert [(row["msgId"], row["decision"], row["state"]) for row in rows] == [
        ("A", "commit", "pending"),
        ("B", "rollback", "pending"),
    ]
    assert rmqlog(*command, "--apply").err == "rmqlog: 2 decisions written\n"
    assert (visible(root), states(root)["B"]) == (["A"], "rolled back")
    again = rmqlog(*command, "--apply")
    assert (again.code, again.err) == (0, "rmqlog: 0 decisions written\n")


def test_a_store_whose_half_messages_cannot_be_decided(rmqlog: Runner, tmp_path: Path) -> None:
    first, second = (half_store(tmp_path / f"broker-{name}", ids) for name, ids in (("a", "AB"), ("b", "C")))
    command = ("half", tmp_path, "--commit", "A", "--commit", "C", "--rollback", "B", "--apply")
    with held(second):
        done = rmqlog(*command)
    assert done.code == 4
    assert f"2 decisions written, then failed: {second}/lock: held by process " in done.err
    assert done.err.endswith("run the command again for the others\n")
    assert rmqlog(*command).err == "rmqlog: 1 decision written\n"
    assert (visible(first), visible(second)) == (["A"], ["C"])


def test_what_cannot_be_decided_is_told(rmqlog: Runner, tmp_path: Path) -> None:
    root = half_store(tmp_path / "store", ["A"])
    assert "msgId 'X': expected a half message" in rmqlog.fails(2, "half", root, "--commit", "X")
    assert "--apply needs a decision" in rmqlog.fails(2, "half", root, "--apply")
    assert "leave out --state" in rmqlog.fails(2, "half", root, "--commit", "A", "--state", "pending")
    assert visible(root) == []


def test_dead_letters_are_stored_again(rmqlog: Runner, tmp_path: Path) -> None:
    path = goldens.unpack("retry-dlq-5.5.0", tmp_path / "store")
    before = sum(queue.max_offset for queue in MessageStore.open(str(path)).queues("Jobs".__eq__))
    command = ("dlq", path, "-g", "CG_fail", "--resend")
    (row,) = rmqlog.rows(*command, "--key", "id-41")
    assert (row["originTopic"], row["targetTopic"], row["resent"]) == ("Jobs", "Jobs", False)
    seen = rmqlog(*command, "--key", "id-41").err
    assert "nothing was written; add --apply to store 1 dead letter of CG_fail again" in seen
    assert "unknown column 'nope'" in rmqlog.fails(2, *command, "--apply", "--columns", "nope")
    applied = rmqlog(*command, "--key", "id-41", "--apply", "--columns", "resent", "-o", "jsonl")
    assert "1 dead letter of CG_fail stored again, 0 were before" in applied.err
    assert applied.out == '{"resent": true}\n'
    again = rmqlog(*command, "-n", 10, "--to", "%RETRY%CG_fail", "--apply").err
    assert "9 dead letters of CG_fail stored again, 1 were before" in again
    after = sum(queue.max_offset for queue in MessageStore.open(str(path)).queues("Jobs".__eq__))
    assert after == before + 1
    assert "10 dead letters of CG_fail again; 10 were stored again before" in rmqlog(*command).err


def test_a_store_whose_dead_letters_cannot_be_stored_again(rmqlog: Runner, tmp_path: Path) -> None:
    for name in ("broker-a", "broker-b"):
        path = goldens.unpack("retry-dlq-5.5.0", tmp_path / "cluster" / name)
        topics = path / "config" / "topics.json"
        topics.write_text(topics.read_text().replace("broker-a", name))
    command = ("dlq", tmp_path / "cluster", "-g", "CG_fail", "--resend", "--apply")
    with held(tmp_path / "cluster" / "broker-b"):
        done = rmqlog(*command)
        assert done.code == 4
        assert "20 dead letters of CG_fail stored again, then failed: " in done.err
        assert "stop that process first" in done.err
        assert [line.split()[4] for line in done.out.splitlines()[1:]] == ["yes"] * 20 + ["no"] * 20
    assert "20 dead letters of CG_fail stored again, 20 were before" in rmqlog(*command).err


def test_a_letter_that_cannot_be_sent_does_not_stop_the_others(rmqlog: Runner, tmp_path: Path) -> None:
    path = goldens.unpack("retry-dlq-5.5.0", tmp_path / "store")
    offsets = [row["physicalOffset"] for row in rmqlog.rows("dlq", path, "-g", "CG_fail")]
    flip(path, offsets[0] + 39)  # the bit of the sysFlag: the body is compressed
    command = ("dlq", path, "-g", "CG_fail", "--resend")
    for more, said in (
        ((), "add --apply to store 19 dead letters of CG_fail again"),
        (("--apply",), "19 dead letters of CG_fail stored again, 0 were before"),
        (("--key", "none"), "no dead letters match"),
    ):
        done = rmqlog(*command, *more)
        assert said in done.err
        left = "left out: %DLQ%CG_fail-0@0: no consumer could read its body: expected a body compressed"
        assert (left in done.err, done.code) == ((False, 1) if "--key" in more else (True, 4))

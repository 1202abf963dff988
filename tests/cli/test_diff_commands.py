"""`diff`: exit codes of equal, different and partly unreadable stores, its rows, and what it says beside
them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from store_format.display.text import width
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.staged import append, make_store, numbered
from tests.support.text_terminal import TextTerminal, columns_of_terminal, seen

STORE = "basic-5.5.0"


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    """Two stores: one message lost, one changed, one moved."""
    messages = numbered("Orders", 0, 20)
    others = [
        *messages[:10],
        replace(messages[10], flag=7),
        replace(messages[11], queue_id=0),
        *messages[13:],
    ]
    for name, stored in (("a", messages), ("b", others)):
        append(make_store(tmp_path / name), stored)
    return tmp_path / "a", tmp_path / "b"


def test_equal_stores(rmqlog: Runner, golden: Golden, unchanged: Unchanged) -> None:
    store = golden(STORE)
    with unchanged(store):
        done = rmqlog("diff", store, store)
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines() == [
        "rmqlog: equal: A and B have the same 2,005 messages",
        "rmqlog: messages of system topics were not compared: -a",
    ]
    done = rmqlog("diff", store, store, "-a")
    assert (done.code, done.err) == (0, "rmqlog: equal: A and B have the same 2,010 messages\n")
    assert json.loads(rmqlog("diff", store, store, "-o", "json").out) == []


def test_different_stores(rmqlog: Runner, sides: tuple[Path, Path]) -> None:
    done = rmqlog("diff", *sides, "-o", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
    assert done.code == 1
    assert [(row["difference"], row["addressA"], row["fields"]) for row in rows] == [
        ("changed", "Orders/2@2", ["flag"]),
        ("onlyInA", "Orders/0@3", None),
    ]
    said = "different: 1 only in A, 1 changed; A has 20 messages, B has 19 messages; 1 in another queue"
    assert done.err == f"rmqlog: {said}: --moved\n"
    done = rmqlog("diff", *sides, "--moved", "-n", "2", "-o", "csv", "--columns", "in A,in B,difference")
    assert done.code == 1
    assert done.out.splitlines() == [
        "addressA,addressB,difference",
        "Orders/2@2,Orders/2@2,changed",
        "Orders/3@2,Orders/0@3,moved",
    ]
    assert done.err == f"rmqlog: {said}\n"


def test_a_move_is_no_difference(rmqlog: Runner, sides: tuple[Path, Path], tmp_path: Path) -> None:
    append(make_store(tmp_path / "c"), [replace(each, queue_id=1) for each in numbered("Orders", 0, 20)])
    done = rmqlog("diff", sides[0], tmp_path / "c")
    assert (done.code, done.out) == (0, "")
    assert done.err == "rmqlog: equal: A and B have the same 20 messages; 15 in another queue: --moved\n"
    assert len(rmqlog("diff", sides[0], tmp_path / "c", "--moved").out.splitlines()) == 16


def test_a_table_fits_a_terminal(golden: Golden) -> None:
    code, text = seen(80, "diff", golden("basic-4.9.7"), golden(STORE))
    assert code == 1
    assert max(map(width, text.splitlines())) <= 80
    assert len(text.splitlines()) > 2000


def test_only_the_topics_that_are_asked_for(rmqlog: Runner, sides: tuple[Path, Path]) -> None:
    append(sides[0], numbered("Audit", 0, 3))
    assert rmqlog("diff", *sides, "-t", "Aud*").err.startswith("rmqlog: different: 3 only in A; ")
    append(sides[1], numbered("Audit", 0, 3))
    assert rmqlog("diff", *sides, "-t", "Audit", "-t", "Audit*").code == 0
    assert rmqlog.fails(1, "diff", *sides, "-t", "Audti") == "no topic is named 'Audti'; did you mean Audit?"


def test_what_cannot_be_read_is_said(rmqlog: Runner, golden: Golden, copy_of: Golden) -> None:
    damaged = copy_of(STORE)
    overwrite(damaged / "commitlog" / "00000000000000262144", 39043, b"X")
    for words, name in (((damaged, golden(STORE)), "A"), ((golden(STORE), damaged), "B")):
        done = rmqlog("diff", *words, "-o", "jsonl")
        assert done.code == 4
        left_out = f"1 message of {name} could not be read, and is left out"
        assert done.err.splitlines()[-1] == f"rmqlog: {left_out}"
        (row,) = map(json.loads, done.out.splitlines())
        assert row["difference"] == ("onlyInB" if name == "A" else "onlyInA")


def test_wrong_words(rmqlog: Runner, golden: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden(STORE)
    assert rmqlog.fails(2, "diff", store) == "Missing argument 'OTHER'; see rmqlog diff --help"
    assert "does not exist" in rmqlog.fails(1, "diff", store, tmp_path / "nowhere")
    said = rmqlog.fails(2, "diff", store, store, "--columns", "difference,field")
    assert said == "--columns: unknown column 'field'; did you mean fields?"
    monkeypatch.setenv("RMQLOG_STORE", str(store))
    assert rmqlog("diff", golden("cluster-5.5.0"), "-n", "1").code == 1


def test_progress_is_shown_on_a_terminal(sides: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    from rmq_spark.cli import remarks
    from rmq_spark.cli.main import main

    monkeypatch.setattr(remarks, "_STEP_SECONDS", 0.0)
    terminal = TextTerminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with columns_of_terminal(80):
        assert main(["diff", *map(str, sides)]) == 1
    assert "diff: " in terminal.getvalue()
    assert "(100 %)" in terminal.getvalue()


def test_a_cluster_and_a_store_that_took_it_over(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    from tests.store_format.views.test_diff import producers_messages, store_of

    cluster = golden("cluster-5.5.0")
    messages = [
        message
        for root, _ in goldens.brokers("cluster-5.5.0", cluster).values()
        for message in producers_messages(root)
    ]
    done = rmqlog("diff", cluster, store_of(tmp_path / "one", messages))
    assert done.code == 0
    assert f"have the same {len(messages):,} messages" in done.err

"""Searches of a store with damaged messages: what may have matched is said, and the exit code is 4."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import rmq_spark
from rmq_spark.cli.exit_codes import NOT_FOUND, OK, PARTIAL
from store_format import MessageStore
from tests.support.cli_runs import Runner
from tests.support.file_edits import flip, overwrite
from tests.support.staged import append, make_store, numbered

LOST = 5  # the number of the damaged message
BODY_AT = 90


@pytest.fixture
def place(tmp_path: Path) -> int:
    """The physical offset of the damaged message of `tmp_path`/store: the bytes of its head are all 0xff."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 10))
    (row,) = MessageStore.open(str(root)).find(key=f"k{LOST}").table.to_pylist()
    overwrite(log_of(root), row["physicalOffset"], b"\xff" * 60)
    return int(row["physicalOffset"])


def log_of(root: Path) -> Path:
    return min((root / "commitlog").iterdir())


@pytest.mark.parametrize("topic", [(), ("-t", "T")])
@pytest.mark.parametrize("word", [f"k{LOST}", f"U{LOST:07d}"])
def test_the_index_names_the_damaged_message(
    rmqlog: Runner, tmp_path: Path, place: int, word: str, topic: tuple[str, ...]
) -> None:
    done = rmqlog("find", tmp_path / "store", word, *topic)
    assert done.code == PARTIAL
    assert (
        f"the index names a message with this key at physical offset {place}, which is damaged\n" in done.err
    )
    assert "no message matches" not in done.err
    assert rmqlog("find", tmp_path / "store", "k4", *topic).code == 0
    assert rmqlog("find", tmp_path / "store", "k44", *topic).code == NOT_FOUND


def test_a_damaged_body_is_a_part_of_the_answer(rmqlog: Runner, tmp_path: Path) -> None:
    """The key of the message can be read: a scan counts its bytes, index and id name its place."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 10))
    (row,) = MessageStore.open(str(root)).find(key="k5", columns=["offsetMsgId"]).table.to_pylist()
    place = row["physicalOffset"]
    flip(log_of(root), place + BODY_AT)
    for more, said in (
        (("k5",), f"the index names a message with this key at physical offset {place}, which is damaged"),
        (("k5", "--no-index"), "bytes are damaged and may have held more"),
        (
            ("--id", row["offsetMsgId"]),
            f"the id names a message at physical offset {place}, which is damaged",
        ),
    ):
        done = rmqlog("find", root, *more)
        assert (done.code, done.out) == (PARTIAL, ""), more
        assert said in done.err, more


@pytest.mark.parametrize("has_index", [True, False])
def test_trace_says_what_find_says(
    rmqlog: Runner,
    tmp_path: Path,
    place: int,
    has_index: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without an index, each of the searches for the lives of five messages meets the damage: one warning."""
    root = tmp_path / "store"
    said = f"the index names a message with this key at physical offset {place}, which is damaged"
    if not has_index:
        shutil.rmtree(root / "index")
        said = "bytes are damaged and may have held more"
    for word in (f"k{LOST}", f"U{LOST:07d}"):
        done = rmqlog("trace", root, word)
        assert (done.code, done.out) == (PARTIAL, "")
        assert f"no whole message has the id or key '{word}'" in done.err
        assert f"{said}\n" in done.err
        assert rmqlog("trace", root, "--key", word).code == rmqlog("find", root, word).code == PARTIAL
    caplog.clear()
    done = rmqlog("trace", root, "even")  # of the messages 0, 2, 4, 6, 8
    assert done.out.count("message ") == 5
    assert done.code == rmqlog("find", root, "even").code == (OK if has_index else PARTIAL)
    assert (f"{said}\n" in done.err) is not has_index
    assert sum("malformed" in line for line in caplog.messages) == 2 * (not has_index)  # of trace and find


def test_python_s_trace_says_what_damage_may_hide(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    root = str(tmp_path / "store")
    said = f"trace: the index names a message with this key at physical offset {place}, which is damaged"
    for store, asked in (
        (MessageStore.open(root), {"message_id": f"U{LOST:07d}"}),
        (rmq_spark.open(root), {"message_id": f"U{LOST:07d}"}),
        (rmq_spark.open(root), {"key": f"k{LOST}"}),
    ):
        assert isinstance(store, MessageStore)  # and no cluster
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert store.trace(**asked).num_rows == 0
        assert said in caplog.messages
        assert sum("malformed" in line for line in caplog.messages) == 1


@pytest.mark.parametrize(
    "asked",
    [("find", "--body", "message"), ("find", "--body", "message", "-n", 20), ("head",), ("tail",)],
)
def test_an_error_of_a_damaged_message_names_the_option_that_skips_it(
    rmqlog: Runner, tmp_path: Path, place: int, asked: tuple[object, ...]
) -> None:
    verb, *more = asked
    said = rmqlog.fails(3, verb, tmp_path / "store", *more)
    assert f" at byte {place + 4}: expected magic code" in said
    assert said.splitlines()[-1].endswith("; --skip-damage leaves damaged messages out")
    done = rmqlog(verb, tmp_path / "store", *more, "--skip-damage", "-o", "jsonl")
    assert (done.code, len(done.out.splitlines())) == (PARTIAL, 9)
    assert done.err.endswith("rmqlog: 1 damaged messages or stretches of the commitlog were left out\n")


def test_nothing_found_is_no_whole_answer_where_damage_was_skipped(
    rmqlog: Runner, tmp_path: Path, place: int
) -> None:
    done = rmqlog("find", tmp_path / "store", "--body", "message 5", "--skip-damage")
    assert (done.code, done.out) == (PARTIAL, "")
    assert "no message matches" not in done.err
    assert rmqlog("find", tmp_path / "store", "k4", "--skip-damage").code == OK

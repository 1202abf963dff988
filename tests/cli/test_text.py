"""What a hostile store contains reaches a terminal as plain characters, whichever command shows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.cli.cells import cell
from tests.support.cli_runs import Runner
from tests.support.hostile_store import HOSTILE_ID, HOSTILE_TOPIC, write_hostile_store


@given(st.text())
def test_whatever_a_cell_shows_is_printable(text: str) -> None:
    assert cell(text).isprintable()


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    return write_hostile_store(tmp_path / "store")


@pytest.mark.parametrize(
    "arguments",
    [
        *(("ls",), ("ls", "-l"), ("info",), ("du",), ("du", "--files")),
        *(("head",), ("tail",), ("find",), ("dump", "0"), ("verify",)),
        *(("get", HOSTILE_ID), ("trace", HOSTILE_ID), ("head", "--topic", "\x1bnone"), ("get", "\x1b[2J")),
        *(("head", "-o", "json"), ("ls", "-o", "jsonl")),
    ],
    ids=lambda arguments: " ".join(arguments).encode("unicode_escape").decode(),
)
def test_no_command_lets_it_through(rmqlog: Runner, hostile: Path, arguments: tuple[str, ...]) -> None:
    verb, *rest = arguments
    done = rmqlog(verb, hostile, *rest)
    assert done.out or done.err
    for line in (done.out + done.err).split("\n"):
        assert line.isprintable(), line
    assert len(done.out) < 20_000 or "-o" in arguments


def test_json_keeps_what_was_there(rmqlog: Runner, hostile: Path) -> None:
    row = json.loads(rmqlog("head", hostile, "-o", "jsonl", "-n", 1).out)
    assert (row["topic"], row["tags"]) == (HOSTILE_TOPIC, "t\x1b[31m<b>")
    assert row["keys"] == ["k\u202e", "\x07", "</td>"]


def test_a_long_body_says_its_size(rmqlog: Runner, hostile: Path) -> None:
    assert "… (4,194,304 bytes)" in rmqlog("tail", hostile, "-n", 1).out


def test_a_hostile_path_in_an_error(rmqlog: Runner, tmp_path: Path, unchanged: Callable[..., object]) -> None:
    assert r"\x1b[2J" in rmqlog.fails(1, "ls", tmp_path / "\x1b[2J")

"""What a hostile store contains reaches a terminal as plain characters: escapes, controls, overrides, broken UTF-8, long bodies."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.cli.text import body_text, cut, shown, width
from rmq_spark.cli.values_text import cell
from tests import oracle
from tests.cli.runs import Runner
from tests.oracle import Message

HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\u2066\r\n\x00\x7f\x9b31m\ud800"
HARMLESS = r"\x1b]0;owned\x07\x1b[2J\u202eevil\u2066\r\n\x00\x7f\x9b31m\ud800"


def test_hostile_text_is_spelled_out() -> None:
    assert shown(HOSTILE) == HARMLESS
    assert shown("订单 emoji😀 naïve عربى") == "订单 emoji😀 naïve عربى"
    assert body_text(b"a\xff\x1b[1mb", 40) == r"a\xff\x1b[1mb"


@given(st.text())
def test_whatever_is_shown_is_printable(text: str) -> None:
    assert shown(text).isprintable()
    assert cell(text).isprintable()


@given(st.binary(max_size=300), st.integers(1, 50))
def test_a_body_has_its_columns_and_a_note(body: bytes, columns: int) -> None:
    text = body_text(body, columns)
    assert text.isprintable()
    kept, cut_off, note = text.rpartition("… (")
    if cut_off:
        assert note == f"{len(body):,} bytes)"
        assert width(kept) <= columns
    else:
        assert width(text) <= columns


@given(st.text(st.characters(blacklist_categories=["C"])), st.integers(1, 30))
def test_a_cut_text_fits(text: str, columns: int) -> None:
    kept = cut(text, columns)
    assert width(kept) <= max(columns, 1)
    assert kept == text or kept.endswith("…")


def test_a_large_body_is_cut_quickly() -> None:
    assert body_text(b"x" * (4 << 20), 5) == "xxxx… (4,194,304 bytes)"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A store with one message whose names, tags, keys and body are hostile, and one with 4 MB of body."""
    root = tmp_path / "store"
    topic = "T\x1b[2J\u202e"
    bad = oracle.encode_properties([("TAGS", "t\x1b[31m"), ("KEYS", "k\u202e \x07"), ("UNIQ_KEY", "U\x1b]0;x\x07"), ("<script>", "\x9b1m")])
    messages = [
        Message(topic.encode(), b"\xff\xfe\x1b[2J", bad, 0, 0, 0),
        Message(topic.encode(), b"z" * (4 << 20), b"", 0, 1, 0),
    ]
    place, log, units = 0, b"", b""
    for message in messages:
        message = Message(message.topic_bytes, message.body, message.properties_bytes, 0, message.queue_offset, place)
        log += oracle.encode_message(message)
        units += oracle.cq_unit(place, message.total_size, oracle.tags_code(message))
        place += message.total_size
    for path, data in (("commitlog", log.ljust(8 << 20, b"\0")), (f"consumequeue/{topic}/0", units.ljust(2000, b"\0"))):
        (root / path).mkdir(parents=True)
        (root / path / oracle.file_name(0)).write_bytes(data)
    return root


@pytest.mark.parametrize(
    "arguments",
    [
        *(("ls",), ("ls", "-l"), ("info",), ("du",), ("du", "--files"), ("head",), ("tail",), ("find",), ("dump", "0"), ("verify",)),
        *(("get", "U\x1b]0;x\x07"), ("trace", "U\x1b]0;x\x07"), ("head", "--topic", "\x1bnone"), ("get", "\x1b[2J")),
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
    assert (row["topic"], row["tags"], row["keys"]) == ("T\x1b[2J\u202e", "t\x1b[31m", ["k\u202e", "\x07"])


def test_a_long_body_says_its_size(rmqlog: Runner, hostile: Path) -> None:
    assert "… (4,194,304 bytes)" in rmqlog("tail", hostile, "-n", 1).out


def test_a_hostile_path_in_an_error(rmqlog: Runner, tmp_path: Path, unchanged: Callable[..., object]) -> None:
    assert r"\x1b[2J" in rmqlog.fails(2, "ls", tmp_path / "\x1b[2J")

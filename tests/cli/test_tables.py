"""Tables that go to no terminal: units, time zones, brokers of a cluster, and two copies of one broker."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.cli.cells import are_told_apart, cell, short_file, short_id, zone_of
from store_format.display.units import duration_text, size_text, unit_of
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden
from tests.support.hostile_store import HOSTILE_ID, HOSTILE_TOPIC, write_hostile_store

STORE, CLUSTER = "basic-5.5.0", "cluster-5.5.0"
NOW = ("--now", "2026-11-22T04:00:00Z")


def test_a_table_has_units_and_json_has_numbers(rmqlog: Runner, golden: Golden) -> None:
    asked = ("lag", golden(STORE), *NOW, "-g", "CG_some", "-t", "Orders", "-q", 0)
    (row,) = rmqlog.rows(*asked)
    titles, cells = rmqlog.table(*asked)
    shown = dict(zip(titles, cells, strict=True))
    assert (shown["lagBytes"], shown["lagMs"]) == (size_text(row["lagBytes"]), duration_text(row["lagMs"]))
    assert shown["lagBytes"] == "279 KiB"
    assert shown["committedOffset"] == str(row["committedOffset"])


def test_offsets_and_ids_have_no_unit() -> None:
    for name in ("queueOffset", "physicalOffset", "queueId", "storeTimestampMs", "maxOffset", "flag"):
        assert unit_of(name) is None
    assert unit_of("lateMsMax") is duration_text


def test_zones_before_utc_and_half_hours() -> None:
    for name, clock in (("-03:30", "03:22"), ("+0530", "12:22"), ("utc", "06:52")):
        assert zone_of(name, to_terminal=True).full("2026-11-21T06:52:34.605Z")[11:16] == clock
    assert zone_of("+08:00", to_terminal=False).full("9999-12-31T23:59:59.999Z") == "9999-12-31T23:59:59.999Z"


@given(st.lists(st.from_regex(r"7F000001[0-9A-F]{24}", fullmatch=True)))
def test_short_ids_are_told_apart_or_refused(ids: list[str]) -> None:
    if are_told_apart(ids):
        assert len({short_id(each) for each in ids}) == len(set(ids))


@given(st.lists(st.integers(0, 10**20 - 1), unique=True))
def test_short_files_are_told_apart(starts: list[int]) -> None:
    names = [f"commitlog/{start:020}" for start in starts]
    assert len(set(map(short_file, names))) == len(names)
    assert short_file("consumequeue/Orders/2/00000000000000002000") == "consumequeue/Orders/2/…2000"
    assert short_file("index/20261121065807786") == "index/20261121065807786"


@pytest.mark.parametrize("verb", ["ls", "groups", "lag", "head", "tail", "find", "delay", "half", "dlq"])
def test_rows_of_a_cluster_name_their_broker(rmqlog: Runner, golden: Golden, verb: str) -> None:
    more = ("--topic", "*") if verb == "find" else ()
    done = rmqlog(verb, golden(CLUSTER), *more)
    assert done.code == (0 if done.out else 1)
    lines = done.out.splitlines()
    for i, line in enumerate(lines):
        assert line.startswith("broker" if i else "brokerName")
    assert lines or verb in ("delay", "half", "dlq")


@pytest.mark.parametrize("verb", ["head", "tail"])
def test_messages_of_a_cluster_are_merged_by_store_time(rmqlog: Runner, golden: Golden, verb: str) -> None:
    every = sorted(
        rmqlog.rows("find", golden(CLUSTER), "--topic", "*"),
        key=lambda row: (row["storeTimestampMs"], row["brokerName"], row["physicalOffset"]),
    )
    names = ("brokerName", "physicalOffset")
    found = rmqlog.rows(verb, golden(CLUSTER), "-n", 7, "--columns", ",".join(names))
    expected = every[:7] if verb == "head" else every[-7:]
    assert found == [{name: row[name] for name in names} for row in expected]


def test_two_copies_of_a_broker_are_refused(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    for name in ("master", "slave"):
        shutil.copytree(golden(STORE), tmp_path / name)
    for verb in ("ls", "groups", "tail", "du"):
        assert "slave both belong to broker broker-a; use only one of them" in rmqlog(verb, tmp_path).err
    assert rmqlog("ls", tmp_path / "slave").code == 0


# ---- what a hostile store contains, on a terminal ----------------------------------------------------------


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
        *(("find", "K"), ("find", "k", "\x07x"), ("head", "--key", "K"), ("find", "--where", "zz = 'x'")),
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

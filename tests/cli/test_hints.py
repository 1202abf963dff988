"""Hints of errors: each command that a hint names is one that the user meant, and that works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE = "basic-5.5.0"


def test_an_address_is_not_taken_for_a_topic(rmqlog: Runner, golden: Golden) -> None:
    store = golden(STORE)
    said = rmqlog.fails(2, "head", store, "Orders/2@100")
    assert "; write --topic Orders --queue 2 --offset 100; see rmqlog head --help" in said
    assert rmqlog("head", store, "--topic", "Orders", "--queue", 2, "--offset", 100).code == 0
    said = rmqlog.fails(2, "tail", store, "Orders/2@100")
    assert "; rmqlog get STORE Orders/2@100 shows this message" in said
    assert rmqlog("get", store, "Orders/2@100").code == 0
    said = rmqlog.fails(2, "lag", store, "Orders/2@100")
    assert "write" not in said


def test_a_second_key_is_not_taken_for_a_topic(rmqlog: Runner, golden: Golden) -> None:
    for words in (("a-1", "a-2"), ("a-1", "a-2", "a-3")):
        said = rmqlog.fails(2, "find", golden(STORE), *words)
        assert "write" not in said
        assert "; rmqlog find takes one WORD, call it for each; see" in said
    assert "; rmqlog get takes one ID, call it for each; see" in rmqlog.fails(
        2, "get", golden(STORE), "a", "b"
    )
    assert "write" not in rmqlog.fails(2, "export", golden(STORE), "Orders", "orders.parquet")
    assert "; write --topic Orders; see" in rmqlog.fails(2, "ls", golden(STORE), "Orders")


def test_trace_names_an_unknown_topic(rmqlog: Runner, golden: Golden) -> None:
    key = "id-2003"
    assert rmqlog("trace", golden(STORE), "--key", key).code == 0
    said = rmqlog.fails(1, "trace", golden(STORE), "--key", key, "--topic", "Order")
    assert said == "no topic is named 'Order'; did you mean Orders?"
    said = rmqlog.fails(1, "trace", golden(STORE), "--key", key, "--topic", "Audit")
    assert said == f"no message of --topic Audit has the key {key!r}"


@pytest.mark.parametrize("command", ["get", "trace"])
def test_a_bad_address_is_not_taken_for_an_id(rmqlog: Runner, golden: Golden, command: str) -> None:
    store = golden(STORE)
    said = rmqlog.fails(2, command, store, "Orders/x@1")
    assert "'Orders/x@1': expected a message as TOPIC/QUEUE@OFFSET, found the queue 'x'" in said
    for offset in ("-1", "last"):
        said = rmqlog.fails(2, command, store, f"Orders/2@{offset}")
        assert f"expected a message as TOPIC/QUEUE@OFFSET, found the offset '{offset}'" in said
        assert "rmqlog tail STORE --topic Orders --queue 2 -n 1 shows the last message" in said
    done = rmqlog("tail", store, "--topic", "Orders", "--queue", 2, "-n", 1, "-o", "jsonl")
    assert len(done.out.splitlines()) == 1


def test_dlq_names_the_nearest_group(rmqlog: Runner, golden: Golden) -> None:
    store = golden("retry-dlq-5.5.0")
    done = rmqlog("dlq", store, "-o", "jsonl", "--columns", "group")
    group = done.out.splitlines()[0].split('"')[3]
    said = rmqlog.fails(1, "dlq", store, "-g", group + "x")
    assert said == f"no group is named {group + 'x'!r}; did you mean {group}?"
    said = rmqlog.fails(1, "dlq", store, "-g", group, "--key", "nothing-has-it")
    assert said == "no dead letters match"


@pytest.mark.parametrize("place", ["x.parquet", "config/x.jsonl", "new/x.csv"])
def test_export_does_not_write_into_a_store(
    rmqlog: Runner, golden: Golden, tmp_path: Path, place: str
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden(STORE), store, ignore=shutil.ignore_patterns("timerwheel"))
    (store / "new").mkdir()
    linked = tmp_path / "link"
    linked.symlink_to(store)
    for source in (store, golden(STORE)):
        for out in (store / place, linked / place):
            said = rmqlog.fails(2, "export", source, out, "--topic", "Orders", "--force")
            assert f"{out} is inside the store {store}; give a place outside" in said
    assert not (store / place).exists()
    assert rmqlog("export", store, tmp_path / "x.jsonl", "--topic", "Orders").code == 0


def test_export_into_an_own_directory_of_the_log_is_refused(
    rmqlog: Runner, golden: Golden, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden(STORE), store, ignore=shutil.ignore_patterns("timerwheel"))
    (store / "commitlog").rename(tmp_path / "log")
    said = rmqlog.fails(2, "export", store, tmp_path / "log/x.jsonl", "--commitlog", tmp_path / "log")
    assert "is inside the store" in said

"""Hints of errors: each command that a hint names is one that the user meant, and that works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from rmq_spark.cli import hints
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE = "basic-5.5.0"


@pytest.mark.parametrize(
    "words",
    [
        ("head", "--topic", "Orders", "--queue", 2, "--offset", 100, "-n", 1),
        ("tail", "--topic", "Orders", "--queue", 2, "-n", 1),
        ("get", "Orders/2@100"),
        ("get", "Orders/2@last"),
        ("find", "id-2003"),
        ("trace", "--key", "id-2003"),
    ],
)
def test_what_a_hint_advises_works(rmqlog: Runner, golden: Golden, words: tuple[object, ...]) -> None:
    """answers.txt has the hints."""
    done = rmqlog(words[0], golden(STORE), *words[1:], "-o", "jsonl")
    assert (done.code, bool(done.out)) == (0, True)


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


# ---- a search that finds nothing, or not everything --------------------------------------------------------

RETRIED = "retry-dlq-5.5.0"


def _places(rmqlog: Runner, *words: object) -> list[list[object]]:
    lines = rmqlog(*words, "-o", "jsonl", "--columns", "topic,queueId,queueOffset").out.splitlines()
    return [list(json.loads(line).values()) for line in lines]


_KEY, _TAGS, _WHERE = ("--key", "k"), ("--tag", "TagA || Aa"), ("--where", "UNIQ_KEY IS NOT NULL")


@pytest.mark.parametrize(
    ("verb", "search"),
    [
        ("find", _TAGS),  # find looks keys up in all topics
        ("find", _WHERE),
        ("head", _KEY),
        ("head", _WHERE),
        ("tail", _TAGS),
        ("export", _KEY),
        ("export", _TAGS),
    ],
)
def test_matches_in_system_topics_are_counted(
    rmqlog: Runner, golden: Golden, verb: str, search: tuple[str, str]
) -> None:
    more = ("-", "--format", "jsonl") if verb == "export" else ("-o", "jsonl")
    many = () if verb in ("export", "find") else ("-n", 1000)
    mine = rmqlog(verb, golden(RETRIED), *more, *search, *many)
    every = rmqlog(verb, golden(RETRIED), *more, *search, *many, "-a")
    hidden = every.out.count("\n") - mine.out.count("\n")
    assert hidden > 0
    assert f"rmqlog: {hidden} more in system topics: -a\n" in mine.err
    assert "system topics" not in every.err
    named = rmqlog(verb, golden(RETRIED), *more, *search, *many, "-t", "Jobs")
    assert "system topics" not in named.err


def test_a_body_search_counts_them_too(rmqlog: Runner, golden: Golden) -> None:
    for more in ((), ("-i",), ("-E",), ("-E", "-i")):
        mine = rmqlog("find", golden(RETRIED), "--body", "order", *more, "-o", "jsonl")
        every = rmqlog("find", golden(RETRIED), "--body", "order", *more, "-o", "jsonl", "-a")
        hidden = every.out.count("\n") - mine.out.count("\n")
        assert f"rmqlog: {hidden} more in system topics: -a\n" in mine.err


def test_a_hint_reads_few_messages(rmqlog: Runner, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more would have to be read, the hint says what it knows."""
    monkeypatch.setattr(hints, "LOOKED_AT_MAX", 200)
    said = rmqlog("find", golden(STORE), "id-", "-t", "Orders").err
    assert "; keys are whole and case-sensitive: " in said
    assert " of the newest 200 messages begin" in said
    said = rmqlog("find", golden(STORE), "-t", "Orders", "--where", "tags = 'x'").err
    assert "; none of the newest 200 messages has a property tags, did you mean TAGS?" in said
    monkeypatch.setattr(hints, "LOOKED_AT_MAX", 3)
    said = rmqlog("head", golden(RETRIED), "--tag", "TagA").err
    assert said == "rmqlog: system topics were not searched; to search them, too: -a\n"


def test_no_hint_for_a_key_that_is_near_to_none(rmqlog: Runner, golden: Golden) -> None:
    for word in ("none-has-this-key", "*", "id-2003x"):
        assert rmqlog.fails(1, "find", golden(STORE), word) == "no message matches"


# ---- several keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", [STORE, "batchcq-5.5.0", "cluster-5.5.0"])
def test_several_keys_are_the_messages_of_each(rmqlog: Runner, golden: Golden, store: str) -> None:
    lines = rmqlog("find", golden(store), "-t", "*", "-o", "jsonl", "--columns", "keys").out.splitlines()
    keys = {key for line in lines for key in json.loads(line)["keys"] or ()}
    chosen = sorted(keys)[:: max(len(keys) // 4, 1)][:4]
    assert len(chosen) == 4
    each = {tuple(place) for key in chosen for place in _places(rmqlog, "find", golden(store), key)}
    for words in (chosen, [word for key in chosen for word in ("--key", key)]):
        found = _places(rmqlog, "find", golden(store), *words)
        assert {tuple(place) for place in found} == each
        assert store.startswith("cluster") or len(found) == len(each)
    exported = rmqlog(
        "export", golden(store), "-", "-a", "--format", "csv", "--columns", "topic,queueId,queueOffset",
        *(word for key in chosen for word in ("--key", key)),
    )  # fmt: skip
    assert {tuple(line.split(",")) for line in exported.out.splitlines()[1:]} == {
        tuple(map(str, place)) for place in each
    }


def test_an_export_of_several_keys_counts_what_system_topics_have(rmqlog: Runner, golden: Golden) -> None:
    words = ("export", golden(RETRIED), "-", "--format", "jsonl", "--key", "k", "--key", "id-9")
    mine, every = rmqlog(*words), rmqlog(*words, "-a")
    hidden = every.out.count("\n") - mine.out.count("\n")
    assert hidden > 0
    assert f"rmqlog: {hidden} more in system topics: -a\n" in mine.err

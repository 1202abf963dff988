"""Hints of errors: each command that a hint names is one that the user meant, and that works."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE = "basic-5.5.0"


@pytest.mark.parametrize(
    "words",
    [
        ("head", "--topic", "Orders", "--queue", 2, "--offset", 100, "-n", 1),
        ("tail", "--topic", "Orders", "--queue", 2, "-n", 1),
        ("get", "Orders/2@100"),
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

"""A store whose writer died at any change of a file is copied, renamed, or gets another commitlog directory:
its commit is completed where the store is now, and what is at the old place stays as it is.

Every change is a kill with --whole, else every fifth one.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from store_format.bookkeeping.identity import LogPlace
from store_format.bookkeeping.journal import Journal
from store_format.commit.append import recover
from store_format.commit.journal_place import is_concluded
from store_format.commit.options import CommitOptions
from store_format.commit.recover import recover as plan_recovery
from store_format.diagnose import diagnose
from store_format.errors import OffsetOutOfRangeError, StoreNotFoundError
from store_format.opened.store import Opened
from tests.support.fork_server import ForkServer
from tests.support.kills import States, killed_stores
from tests.support.moved_commits import complete, is_broken_off, make_place, options_of, write
from tests.support.staged import append, numbered
from tests.support.stored_rows import bodies_in
from tests.support.unchanged import unchanged

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def every(whole: bool) -> int:
    """Of so many changes one is a kill."""
    return 1 if whole else 5


@pytest.fixture
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test writes need not outlast the machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.usefixtures("_no_sync")
@pytest.mark.parametrize("kind", ["store", "cluster"])
def test_killed_at_each_change_and_moved(tmp_path: Path, forks: ForkServer, kind: str, every: int) -> None:
    """In turn: completed in a copy, and in the original, renamed, with other stores at the old place."""
    before, other = make_place(tmp_path / "before", kind), make_place(tmp_path / "other", kind, "Other")
    broken_off = 0
    for at, place in killed_stores(forks, before, tmp_path, "kill", write, kind, every=every):
        broken_off += is_broken_off(place, kind)
        moved = tmp_path / f"moved-{at}"
        if at % 2:
            shutil.copytree(place, moved, symlinks=True)
        else:
            place.rename(moved)
            other.rename(place)
        with unchanged(place):
            complete(moved, kind)
        shutil.rmtree(moved)
        if not at % 2:
            place.rename(other)
    assert broken_off > 30 // every


@pytest.mark.usefixtures("_no_sync")
def test_killed_at_each_change_and_with_another_commitlog(
    tmp_path: Path, forks: ForkServer, every: int
) -> None:
    """The commitlog's directory is moved, and another store's directory is at its place: that is refused."""
    before, other = make_place(tmp_path / "before", "elsewhere"), make_place(tmp_path / "other", "elsewhere")
    refused = 0
    for _, place in killed_stores(forks, before, tmp_path, "kill", write, "elsewhere", every=every):
        log, moved = place / "log", tmp_path / "moved"
        log.rename(moved)
        (other / "log").rename(log)
        if is_broken_off(place, "elsewhere"):
            for id_was_moved in (False, True):
                if id_was_moved:
                    os.rename(LogPlace.id_path(str(log)), LogPlace.id_path(str(moved)))
                directory = log if id_was_moved else moved
                with (
                    unchanged(place / "store"),
                    unchanged(log),
                    unchanged(moved),
                    pytest.raises(StoreNotFoundError, match=r"expected .*log.*Nothing was changed") as caught,
                ):
                    recover(str(place / "store"), options=options_of("elsewhere", directory))
                (said,) = _said(place / "store", directory)
                assert said.startswith("The next writer refuses")
                assert said.endswith(str(caught.value))
            refused += 1
        elif os.path.exists(LogPlace.id_path(str(log))):
            os.rename(LogPlace.id_path(str(log)), LogPlace.id_path(str(moved)))
        with unchanged(log):
            complete(place, "elsewhere", moved)
        log.rename(other / "log")
        shutil.rmtree(moved)
        os.unlink(LogPlace.id_path(str(moved)))
    assert refused > 30 // every


def _said(root: Path, log: Path) -> set[str]:
    """What `verify` says about the interrupted commit."""
    problems = diagnose(str(root), (str(log),))
    return {each.advice for each in problems if each.file.endswith("journal.json")}


@pytest.mark.usefixtures("_no_sync")
def test_killed_at_each_change_and_with_an_older_commitlog(
    tmp_path: Path, forks: ForkServer, every: int
) -> None:
    """Nobody can complete the commit. As the error says, a recovered copy has what the commitlog has."""
    before = make_place(tmp_path / "before", "elsewhere")
    older = shutil.copytree(before / "log", tmp_path / "older")
    options = options_of("elsewhere", before / "log")
    wanted = Counter(f"message {number} of T" for number in range(24))
    append(before / "store", numbered("T", 500, 2), key=("old", 2), options=options)
    refused = 0
    for at, place in killed_stores(forks, before, tmp_path, "kill", write, "elsewhere", every=every):
        if not is_broken_off(place, "elsewhere"):
            continue
        shutil.rmtree(place / "log")
        shutil.copytree(older, place / "log")
        store, log, copy = place / "store", place / "log", tmp_path / f"copy-{at}"
        with unchanged(place):
            with pytest.raises(StoreNotFoundError, match="rmqlog recover STORE --into NEW --apply") as caught:
                recover(str(store), options=options_of("elsewhere", log))
            assert "remove" not in str(caught.value)
            plan = plan_recovery(str(store), into=str(copy), commit_log_paths=(str(log),))
            previewed = plan.table()
            assert plan.apply().to_pylist() == previewed.to_pylist()
        assert Counter(bodies_in(copy)) == wanted
        found = diagnose(str(copy))
        assert {each.file for each in found if each.severity == "damage"} <= {f"{copy}/.rmqlog/ledger.json"}
        append(copy, numbered("T", 600, 4), options=CommitOptions(clock=lambda: 1_700_000_300_000))
        assert Counter(bodies_in(copy)) == wanted + Counter(
            f"message {number} of T" for number in range(600, 604)
        )
        refused += 1
        shutil.rmtree(copy)
    assert refused > 30 // every


@pytest.mark.usefixtures("_no_sync")
def test_killed_at_each_change_and_the_start_of_the_commit_deleted(
    tmp_path: Path, forks: ForkServer, every: int
) -> None:
    """It is unknown what was written. A recovered copy is whole, with each message that is left once."""
    before = make_place(tmp_path / "before", "store")
    options = CommitOptions(clock=lambda: 1_700_000_300_000)
    append(before / "store", numbered("T", 500, 30), key=("old", 2), options=options)
    later = [f"message {number} of T" for number in range(600, 604)]
    refused, states = 0, States()
    for at, place in killed_stores(forks, before, tmp_path, "kill", write, "store", every=every):
        if not states.is_new(place):
            continue
        store, journal = place / "store", Journal.read(Opened(str(place / "store")))
        files = sorted((store / "commitlog").iterdir())
        if (
            journal is None
            or int(files[-1].name) <= journal.base
            or is_concluded(Opened(str(store)), journal)
        ):
            continue
        if not any(files[-1].read_bytes()):
            continue  # an empty log looks like one that is not mounted
        for file in files[:-1]:
            file.unlink()
        copy = tmp_path / f"copy-{at}"
        with unchanged(place):
            with pytest.raises(OffsetOutOfRangeError, match="rmqlog recover STORE --into NEW --apply"):
                recover(str(store), options=options)
            plan_recovery(str(store), into=str(copy), cut_after_damage=True).apply()
        left = bodies_in(copy)
        assert len(left) == len(set(left))
        append(copy, numbered("T", 600, 4), options=options)
        assert Counter(bodies_in(copy)) == Counter(left + later)
        damaged = {each.file for each in diagnose(str(copy)) if each.severity == "damage"}
        assert damaged <= {f"{copy}/.rmqlog/ledger.json"}
        refused += 1
        shutil.rmtree(copy)
    assert refused > 10 // every

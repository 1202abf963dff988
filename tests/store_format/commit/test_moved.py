"""A store whose writer died at any change of a file is copied, renamed, or gets another commitlog directory:
its commit is completed where the store is now, and what is at the old place stays as it is.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from store_format.bookkeeping.identity import log_id_path
from store_format.commit.append import recover
from store_format.errors import StoreNotFoundError
from tests.support.fork_server import ForkServer
from tests.support.kills import killed_stores
from tests.support.moved_commits import complete, is_broken_off, make_place, options_of, write
from tests.support.unchanged import unchanged

pytestmark = pytest.mark.process


@pytest.fixture
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test writes need not outlast the machine."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_no_sync")
@pytest.mark.parametrize("kind", ["store", "cluster"])
def test_killed_at_each_change_and_moved(tmp_path: Path, forks: ForkServer, kind: str) -> None:
    """In turn: completed in a copy, and in the original, renamed, with other stores at the old place."""
    before, other = make_place(tmp_path / "before", kind), make_place(tmp_path / "other", kind, "Other")
    broken_off = 0
    for at, place in killed_stores(forks, before, tmp_path, "kill", write, kind):
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
    assert broken_off > 30


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_no_sync")
def test_killed_at_each_change_and_with_another_commitlog(tmp_path: Path, forks: ForkServer) -> None:
    """The commitlog's directory is moved, and another store's directory is at its place: that is refused."""
    before, other = make_place(tmp_path / "before", "elsewhere"), make_place(tmp_path / "other", "elsewhere")
    refused = 0
    for _, place in killed_stores(forks, before, tmp_path, "kill", write, "elsewhere"):
        log, moved = place / "log", tmp_path / "moved"
        log.rename(moved)
        (other / "log").rename(log)
        if is_broken_off(place, "elsewhere"):
            for id_was_moved in (False, True):
                if id_was_moved:
                    os.rename(log_id_path(str(log)), log_id_path(str(moved)))
                directory = log if id_was_moved else moved
                with (
                    unchanged(place / "store"),
                    unchanged(log),
                    unchanged(moved),
                    pytest.raises(StoreNotFoundError, match=r"expected .*log.*Nothing was changed"),
                ):
                    recover(str(place / "store"), options=options_of("elsewhere", directory))
            refused += 1
        elif os.path.exists(log_id_path(str(log))):
            os.rename(log_id_path(str(log)), log_id_path(str(moved)))
        with unchanged(log):
            complete(place, "elsewhere", moved)
        log.rename(other / "log")
        shutil.rmtree(moved)
        os.unlink(log_id_path(str(moved)))
    assert refused > 30

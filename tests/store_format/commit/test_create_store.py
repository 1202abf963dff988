"""Stores that are made and taken away again: only where there is none, and only when nothing was written."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.create_store import StoreDirectory
from store_format.errors import OptionError, StoreInUseError
from store_format.files.lock import StoreLock
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.staged import append, messages_of, numbered, stage

_SETTINGS = StoreSettings("broker-a", 1 << 14, 400, 50, 200)
_NOW = 1_700_000_000_000


def _create(root: Path, settings: StoreSettings = _SETTINGS) -> bool:
    return StoreDirectory(str(root)).create(settings, timestamp=_NOW, exist_ok=True, lock_timeout=10)


def test_a_place_is_free_until_a_store_is_in_it(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert not StoreDirectory(str(root)).is_store()
    assert StoreDirectory(str(root)).make()
    assert not StoreDirectory(str(root)).make()
    stage(root, numbered("T", 0, 1))  # a first write stages before the store is there
    assert not StoreDirectory(str(root)).is_store()
    assert _create(root)
    assert StoreDirectory(str(root)).is_store()
    assert not _create(root)
    with pytest.raises(OptionError, match=r"there: cannot create the store, because .*not does not exist"):
        StoreDirectory(str(tmp_path / "not" / "there")).is_store()


@pytest.mark.parametrize("left", range(7))
def test_a_creation_that_was_broken_off_is_done_again(tmp_path: Path, left: int) -> None:
    """`left` things of it stand: it is killed before the next one."""
    root = tmp_path / "store"
    _create(root)
    in_order = [
        ".rmqlog/store.json",
        "config",
        "config/topics.json",
        "checkpoint",
        "consumequeue",
        "index",
        "commitlog",
    ]
    for name in reversed(in_order[left:]):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert not StoreDirectory(str(root)).is_store()
    assert _create(root)
    append(root, numbered("T", 0, 3))
    assert len(messages_of(root)) == 3


def test_what_is_there_already_is_no_store_of_ours_begun(tmp_path: Path) -> None:
    root = tmp_path / "store"
    _create(root)
    append(root, numbered("T", 0, 3))
    shutil.rmtree(root / "commitlog")  # by somebody: its queues would not fit a new log
    with pytest.raises(OptionError, match="an empty directory, found consumequeue, index"):
        StoreDirectory(str(root)).is_store()


def test_two_that_make_it_at_once_make_one(tmp_path: Path) -> None:
    root, made = tmp_path / "store", []

    def make(size: int) -> None:
        made.append(_create(root, StoreSettings("broker-a", size)))

    threads = [threading.Thread(target=make, args=(1 << (14 + i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False, False, False, True]
    assert append(root, numbered("T", 0, 3)).committed


def test_an_empty_store_is_taken_away_and_one_that_was_written_is_not(tmp_path: Path) -> None:
    for name in ("empty", "written", "noted"):
        _create(tmp_path / name)
    append(tmp_path / "written", numbered("T", 0, 1))
    append(tmp_path / "noted", [], key=("job", 1))
    before = {name: sorted((tmp_path / name).rglob("*")) for name in ("written", "noted")}
    assert StoreDirectory(str(tmp_path / "empty")).remove_store()
    assert not StoreDirectory(str(tmp_path / "written")).remove_store()
    assert not StoreDirectory(str(tmp_path / "noted")).remove_store()
    assert {name: sorted((tmp_path / name).rglob("*")) for name in before} == before
    StoreDirectory(str(tmp_path / "empty")).restore(was_missing=True)
    assert not (tmp_path / "empty").exists()
    assert MessageStore.open(str(tmp_path / "written")).queues()


def test_a_place_is_left_as_it_was(tmp_path: Path) -> None:
    for name, was_missing in (("was empty", False), ("was missing", True)):
        root = tmp_path / name
        root.mkdir()
        staged = stage(root, numbered("T", 0, 1))
        with StoreLock(str(root)):
            pass
        StoreDirectory(str(root)).restore(was_missing=was_missing)
        assert (root / ".rmqlog" / "staging" / "w").exists()  # somebody's
        for path in (staged.records_path(Opened(str(root))), staged.meta_path(Opened(str(root)))):
            Path(path).unlink()
        (root / ".rmqlog" / "staging" / "w").rmdir()
        StoreDirectory(str(root)).restore(was_missing=was_missing)
        assert root.exists() != was_missing
        assert not root.exists() or not any(root.iterdir())


def test_whoever_waited_for_a_lock_file_that_went_away_takes_the_new_one(tmp_path: Path) -> None:
    entered: list[bool] = []

    def wait() -> None:
        with StoreLock(str(tmp_path), timeout=20):
            entered.append((tmp_path / "lock").exists())

    with StoreLock(str(tmp_path)):
        waiting = threading.Thread(target=wait)
        waiting.start()
        (tmp_path / "lock").unlink()
    waiting.join()
    assert entered == [True]
    with StoreLock(str(tmp_path)), pytest.raises(StoreInUseError):
        StoreLock(str(tmp_path)).__enter__()

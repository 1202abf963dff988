"""Which directories may keep compiled kernels: only those where no one else can put machine code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store_format.kernels.cache_directory import Places, find_places


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def user_cache(tmp_path: Path) -> Path:
    return tmp_path / ".cache/rmqlog/kernels"


def test_kernels_lie_beside_the_source_where_only_this_user_can_write(tmp_path: Path) -> None:
    source = tmp_path / "installed"
    source.mkdir(mode=0o755)
    places = find_places(source)
    assert places == Places((source / "__pycache__", user_cache(tmp_path)), source / "__pycache__")


def test_source_without_a_directory_uses_the_users_cache_which_no_one_else_can_read(tmp_path: Path) -> None:
    assert find_places(None).write == user_cache(tmp_path)
    for part in (".cache", ".cache/rmqlog", ".cache/rmqlog/kernels"):
        assert (tmp_path / part).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_directory_that_others_can_write_to_is_neither_read_nor_written(tmp_path: Path, mode: int) -> None:
    """The same holds below such a directory: its owner could exchange what lies in it."""
    source = tmp_path / "site-packages/store_format"
    source.mkdir(parents=True)
    for shared in (source, source.parent):
        shared.chmod(mode)
        places = find_places(source)
        assert places.read == (user_cache(tmp_path),)
        assert places.write == user_cache(tmp_path)
        assert places.refused == (f"{source}/__pycache__: others can write to {shared} (mode {mode:o})",)
        shared.chmod(0o755)


def test_a_sticky_directory_above_is_no_danger_but_is_itself_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(shared / "mine"))
    assert find_places(None).write == shared / "mine/rmqlog"
    (shared / "__pycache__").mkdir()
    (shared / "__pycache__").chmod(0o1777)
    assert find_places(shared).refused == (
        f"{shared}/__pycache__: others can write to {shared}/__pycache__ (mode 1777)",
    )


def test_the_directory_of_numba_comes_first_and_the_next_replaces_one_that_is_not_safe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "chosen"
    chosen.mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(chosen))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_places(None).write == chosen / "rmqlog"
    chosen.chmod(0o777)
    assert find_places(None).write == tmp_path / "xdg/rmqlog/kernels"


def test_a_store_keeps_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    for inside in (store, store / "commitlog", store / "config/cache"):
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(inside))
        places = find_places(None)
        assert places.write == user_cache(tmp_path)
        assert places.refused == (f"{inside}/rmqlog: {store} is a store",)
    assert os.listdir(store) == ["commitlog"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives directories to another user")
def test_a_directory_of_another_user_is_refused_and_one_of_root_is_read(tmp_path: Path) -> None:
    source = tmp_path / "installed"
    (source / "__pycache__").mkdir(parents=True)
    os.chown(source / "__pycache__", 12345, 12345)
    assert find_places(source).refused == (
        f"{source}/__pycache__: {source}/__pycache__ belongs to another user",
    )


def test_without_any_place_each_refusal_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    places = find_places(tmp_path)
    assert places.read == ()
    assert places.write is None
    assert [text.partition(": ")[2] for text in places.refused] == [
        f"others can write to {tmp_path} (mode 770)"
    ] * 2


def test_a_file_in_the_place_of_a_directory_is_a_refusal(tmp_path: Path) -> None:
    (tmp_path / ".cache").write_text("")
    refused = (f"{user_cache(tmp_path)}: {tmp_path}/.cache is not a directory",)
    assert find_places(None) == Places(refused=refused)

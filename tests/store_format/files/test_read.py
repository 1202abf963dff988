"""Files listed, and files held open: how many, how large together, and closed once deleted or replaced."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from store_format.errors import StoreNotFoundError
from store_format.files.read import FileCache, list_store_files
from store_format.files.view import FileView


def _file(directory: Path, name: str, size: int) -> str:
    path = directory / name
    path.write_bytes(bytes(size))
    return str(path)


def _descriptors() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue  # the listing's own
    return found


def test_an_unchanged_file_is_opened_once(tmp_path: Path) -> None:
    path = _file(tmp_path, "a", 10)
    cache = FileCache()
    assert cache.open(path) is cache.open(path)


def test_views_above_the_capacity_are_let_go_oldest_first(tmp_path: Path) -> None:
    paths = [_file(tmp_path, name, 100) for name in "abc"]
    cache = FileCache(capacity=2)
    for path in paths:
        cache.open(path)
    assert list(cache) == paths[1:]
    cache.open(paths[1])
    cache.open(paths[0])
    assert list(cache) == [paths[1], paths[0]]


def test_a_replaced_file_is_opened_anew(tmp_path: Path) -> None:
    path = _file(tmp_path, "a", 10)
    cache = FileCache()
    before = cache.open(path)
    os.replace(_file(tmp_path, "other", 20), path)
    after = cache.open(path)
    assert (before.size, after.size, len(cache)) == (10, 20, 1)


def test_deleted_and_replaced_files_are_let_go_of(tmp_path: Path) -> None:
    kept, deleted, replaced = (_file(tmp_path, name, 4096) for name in ("kept", "deleted", "replaced"))
    cache = FileCache()
    for path in (kept, deleted, replaced):
        cache.open(path)
    os.remove(deleted)
    os.replace(_file(tmp_path, "new", 1), replaced)
    assert any(name.startswith(deleted) for name in _descriptors())
    cache.forget_deleted()
    assert list(cache) == [kept]
    assert not any(name.startswith((deleted, replaced)) for name in _descriptors())


def test_a_view_in_use_outlives_the_cache(tmp_path: Path) -> None:
    path = _file(tmp_path, "a", 10)
    cache = FileCache(capacity=1)
    view: FileView = cache.open(path)
    cache.open(_file(tmp_path, "b", 10))
    assert path not in list(cache)
    assert view.read(0, 10) == bytes(10)


def test_a_file_that_is_gone_is_told(tmp_path: Path) -> None:
    cache = FileCache()
    path = _file(tmp_path, "a", 10)
    cache.open(path)
    os.remove(path)
    with pytest.raises(StoreNotFoundError, match="deleted"):
        cache.open(path)
    assert not len(cache)


def test_a_file_deleted_during_a_listing_hides_no_other_file(tmp_path: Path) -> None:
    """Retention deletes the oldest file at any time: the listing used to be empty then."""
    oldest, newest = _file(tmp_path, "0" * 20, 100), _file(tmp_path, "0" * 17 + "100", 100)

    class Deleting:
        def match(self, name: str) -> re.Match[str] | None:
            if os.path.exists(oldest):
                os.unlink(oldest)
            return re.match("[0-9]{20}", name)

    pattern: re.Pattern[str] = Deleting()  # type: ignore[assignment] # only match() is called
    assert [file.path for file in list_store_files(str(tmp_path), pattern)] == [newest]

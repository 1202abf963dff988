"""The proof itself is tried: each change that a reader could make by mistake must fail it, and none must
not.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.unchanged import snapshot, unchanged

SIZE = 3 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A sparse file with its data in the middle, as a commitlog of default size is, and a small one in a
    directory.
    """
    root = tmp_path / "store"
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_text("{}")
    with (root / "sparse").open("wb") as file:
        file.truncate(SIZE)
        file.seek(SIZE // 2)
        file.write(b"message")
    return root


def _write_and_put_the_times_back(path: Path, position: int, content: bytes) -> None:
    status = path.stat()
    with path.open("r+b") as file:
        file.seek(position)
        file.write(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _add_and_remove(path: Path) -> None:
    path.touch()
    path.unlink()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte in a hole, times put back": lambda root: _write_and_put_the_times_back(root / "sparse", 17, b"x"),
    "the last byte, times put back": lambda root: _write_and_put_the_times_back(
        root / "sparse", SIZE - 1, b"x"
    ),
    "the same byte at another place": lambda root: _write_and_put_the_times_back(
        root / "sparse", SIZE // 2, b"\0message"
    ),
    "a modification time alone": lambda root: os.utime(root / "sparse", ns=(0, 1)),
    "a new file": lambda root: (root / "config" / "new").touch(),
    "a file made and removed": lambda root: _add_and_remove(root / "config" / "temporary"),
    "a file removed": lambda root: (root / "config" / "topics.json").unlink(),
    "a longer file": lambda root: os.truncate(root / "sparse", SIZE + 1),
    "other permissions": lambda root: (root / "sparse").chmod(0o400),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(tree: Path, name: str) -> None:
    with pytest.raises(AssertionError, match="changed below"), unchanged(tree):
        CHANGES[name](tree)


def test_reading_is_no_change(tree: Path) -> None:
    before = snapshot(tree)
    with unchanged(tree):
        assert (tree / "sparse").read_bytes().strip(b"\0") == b"message"
    assert sorted(before) == [".", "config", "config/topics.json", "sparse"]


def test_an_empty_directory_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="is empty"), unchanged(tmp_path):
        pass

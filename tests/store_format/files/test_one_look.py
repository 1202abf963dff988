"""One look at local files: what it remembers, and what it notices all the same."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store_format.errors import CorruptStoreError
from store_format.files.read import kept_view, one_look, open_view, read_bytes, readable_identity

_OLD = 1_600_000_000


def _write(path: Path, data: bytes, seconds: int = _OLD) -> str:
    """A file as it was before the look, or one with a later time."""
    path.write_bytes(data)
    os.utime(path, (seconds, seconds))
    return str(path)


def test_a_small_file_is_read_once_in_a_look(tmp_path: Path) -> None:
    """Shown by bytes that change without a sign: a later look has the new ones."""
    path = _write(tmp_path / "a", b"one")
    with one_look():
        assert read_bytes(path) == b"one"
        _write(tmp_path / "a", b"two")
        assert read_bytes(path) == b"one"
        with one_look():  # a part of the same look
            assert read_bytes(path) == b"one"
        assert readable_identity(path) is not None
    assert read_bytes(path) == b"two"
    with one_look():
        assert read_bytes(path) == b"two"


def test_a_change_is_noticed_in_a_look(tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    with one_look():
        assert read_bytes(path) is None
        _write(tmp_path / "a", b"one")
        assert read_bytes(path) == b"one"
        before = readable_identity(path)
        _write(tmp_path / "a", b"two", _OLD + 1)
        assert read_bytes(path) == b"two"
        assert readable_identity(path) != before
        os.remove(path)
        assert read_bytes(path) is None
        assert readable_identity(path) is None


def test_a_file_that_changed_just_now_is_read_again(tmp_path: Path) -> None:
    """It may change again within a tick of its file system's clock."""
    path = tmp_path / "a"
    path.write_bytes(b"one")
    with one_look():
        assert read_bytes(str(path)) == b"one"
        young = path.stat()
        path.write_bytes(b"two")
        os.utime(path, ns=(young.st_atime_ns, young.st_mtime_ns))
        assert read_bytes(str(path)) == b"two"


def test_a_file_above_the_size_is_refused_in_a_look(tmp_path: Path) -> None:
    path = _write(tmp_path / "a", b"one")
    with one_look():
        assert read_bytes(path) == b"one"
        with pytest.raises(CorruptStoreError, match="at most 2 bytes"):
            read_bytes(path, 2)


def test_a_link_is_refused_in_a_look(tmp_path: Path) -> None:
    _write(tmp_path / "a", b"one")
    (tmp_path / "link").symlink_to("a")
    for _ in range(2):
        with one_look():
            for look in (read_bytes, readable_identity):
                with pytest.raises(CorruptStoreError):
                    look(str(tmp_path / "link"))


def test_a_queue_file_is_opened_once_in_a_look(tmp_path: Path) -> None:
    path = _write(tmp_path / "a", b"one")
    with one_look():
        with kept_view(path) as first:
            assert first.read(0, 3) == b"one"
        with kept_view(path) as again:
            assert again is first
        (tmp_path / "new").write_bytes(b"two")
        os.replace(tmp_path / "new", path)
        with kept_view(path) as later:
            assert later.read(0, 3) == b"two"
        assert open_view(path).identity == later.identity
    with kept_view(path) as outside:
        assert outside is not later


def test_a_look_keeps_few_files_open(tmp_path: Path) -> None:
    def count() -> int:
        return sum(1 for _ in os.scandir("/proc/self/fd"))

    paths = [_write(tmp_path / str(number), b"x") for number in range(200)]
    before = count()
    with one_look():
        for path in paths:
            kept_view(path).close()
        assert before < count() <= before + 150
    assert count() <= before

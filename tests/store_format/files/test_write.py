"""Modes and owners of what a write makes and replaces: whoever runs the broker must be able to open it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from store_format.commit.staging import StagingWriter
from store_format.errors import CorruptStoreError
from store_format.files.write import FileWrites, reserve
from store_format.opened.store import Opened
from tests.support.staged import append, make_store, numbered

_AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to another user")
_BROKER = 12345, 12346  # user and group


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _all(root: Path) -> list[Path]:
    return [root, *root.rglob("*")]


def _owner(path: Path) -> tuple[int, int]:
    return path.stat().st_uid, path.stat().st_gid


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_new_files_and_directories_have_the_modes_of_the_umask(tmp_path: Path, mask: int) -> None:
    with _umask(mask):
        root = make_store(tmp_path / "store")
        append(root, numbered("T", 0, 10), key=("app", 1))
        StagingWriter.begin(Opened(str(root)), "other", sync=True)
    found = {path: _mode(path) for path in _all(root)}
    assert found == {path: (0o777 if path.is_dir() else 0o666) & ~mask for path in found}


def test_a_replaced_file_keeps_its_mode_and_the_old_one_becomes_the_bak(root: Path) -> None:
    append(root, numbered("T", 0, 1), key=("app", 1))
    topics, ledger = root / "config" / "topics.json", root / ".rmqlog" / "ledger.json"
    topics.chmod(0o664)
    ledger.chmod(0o660)
    with _umask(0o077):
        append(root, numbered("New", 0, 1), key=("app", 2))
    files = (topics, topics.with_name("topics.json.bak"), ledger)
    assert [_mode(path) for path in files] == [0o664, 0o664, 0o660]


@_AS_ROOT
def test_a_replaced_file_keeps_its_owner(tmp_path: Path) -> None:
    for name, replace in _REPLACED.items():
        path = tmp_path / name
        path.write_bytes(b"old")
        os.chown(path, *_BROKER)
        replace(str(path))
        assert path.read_bytes() == b"new"
        assert _owner(path) == _BROKER


_REPLACED: dict[str, Callable[[str], None]] = {
    "replaced": lambda path: FileWrites(sync=False).replace(path, b"new"),
    "persisted": lambda path: FileWrites(sync=False).persist_config(path, b"new"),
    "not good": lambda path: FileWrites(sync=False).persist_config(path, b"new", is_good=False),
    "whole": lambda path: FileWrites(sync=False).write_whole(path, b"new"),
}


@_AS_ROOT
def test_what_root_makes_in_a_brokers_store_belongs_to_the_broker(root: Path) -> None:
    for path in _all(root):
        os.chown(path, *_BROKER)
    append(root, numbered("T", 0, 300), key=("app", 1))
    assert len(_all(root / "commitlog")) > 2
    assert {_owner(path) for path in _all(root)} == {_BROKER}


@_AS_ROOT
@pytest.mark.parametrize("lost", ["consumequeue/T/1", "consumequeue"])
def test_consume_queues_that_are_rebuilt_belong_to_the_broker_too(root: Path, lost: str) -> None:
    """Only what is in `consumequeue` shows whose it is: `.rmqlog` is root's, of a version that did not
    look.
    """
    append(root, numbered("T", 0, 40))
    for path in _all(root):
        os.chown(path, *(0, 0) if ".rmqlog" in path.parts else _BROKER)
    shutil.rmtree(root / lost)
    append(root, numbered("T", 40, 4))
    assert {_owner(path) for path in _all(root / "consumequeue")} == {_BROKER}


@_AS_ROOT
def test_a_directory_gives_its_group_to_what_is_made_in_it(tmp_path: Path) -> None:
    """setgid, as for a directory that Spark's user and the broker's share."""
    root = tmp_path / "store"
    root.mkdir()
    os.chown(root, 0, _BROKER[1])
    root.chmod(0o2775)
    with _umask(0o002):
        append(make_store(root), numbered("T", 0, 10))
    assert {(path.is_dir(), _mode(path), path.stat().st_gid) for path in _all(root)} == {
        (True, 0o2775, _BROKER[1]),
        (False, 0o664, _BROKER[1]),
    }


def test_what_is_refused_is_left_as_it_is(tmp_path: Path) -> None:
    """Neither a link's target nor a file that another process has just made gets another mode."""
    target = tmp_path / "target"
    target.write_bytes(b"kept")
    target.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(target)
    for replace in (
        FileWrites(sync=False).write_whole,
        lambda path, data: FileWrites(sync=False).create(path, 0),
    ):
        with pytest.raises(Exception, match="link"):
            replace(str(link), b"new")
    assert (target.read_bytes(), _mode(target)) == (b"kept", 0o640)
    with pytest.raises(CorruptStoreError):
        FileWrites(sync=False).make_directories(str(tmp_path), ".", "link")


def test_a_large_write_reserves_its_blocks_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = []

    def noting(descriptor: int, position: int, length: int) -> bool:
        found = reserve(descriptor, position, length)
        assert os.fstat(descriptor).st_size == 4 << 20
        assert os.pread(descriptor, length, position) == bytes(length)
        if found:
            assert os.fstat(descriptor).st_blocks * 512 >= length
        reserved.append((position, length))
        return found

    monkeypatch.setattr("store_format.files.write.reserve", noting)
    data = bytes(range(256)) * 4096
    with FileWrites(sync=False).create(str(tmp_path / "f"), 4 << 20) as file:
        file.write(100, data)
        file.write(3 << 20, b"few")
    assert reserved == [(100, 1 << 20)]
    written = bytes(100) + data + bytes((2 << 20) - 100) + b"few"
    assert (tmp_path / "f").read_bytes() == written.ljust(4 << 20, b"\0")


def test_where_nothing_can_be_reserved_nothing_fails() -> None:
    reading, writing = os.pipe()
    try:
        assert not reserve(writing, 0, 1 << 20)
    finally:
        os.close(reading)
        os.close(writing)


# ---- what other processes do -------------------------------------------------------------------------------


def test_a_file_that_was_replaced_here_is_not_displaced_by_another_process(tmp_path: Path) -> None:
    files = FileWrites(sync=True)
    config, own, other = (tmp_path / name for name in ("topics.json", "ledger.json", "log"))
    for path in (config, own, other):
        path.write_bytes(b"{}")
        with files.open(str(path)) as file:  # as when a commit with SYNC_FLUSH syncs the whole store
            files.sync(file)
    files.persist_config(str(config), b'{"a":1}')
    files.replace(str(own), b"new")
    assert files.displaced() == []
    other.rename(tmp_path / "moved")
    assert files.displaced() == [str(other)]

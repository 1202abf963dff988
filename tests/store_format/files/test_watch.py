"""Watched files: every way in which a file changes is reported, by inotify and by polling."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from store_format.files.watch import IN_Q_OVERFLOW, FileWatch, Inotify, reports_all_changes

_LONG = 10.0


@pytest.fixture(params=[True, False], ids=["inotify", "polled"])
def watch(request: pytest.FixtureRequest) -> Iterator[FileWatch]:
    found = FileWatch(use_inotify=request.param)
    yield found
    found.close()


def test_touched_written_replaced_and_removed(tmp_path: Path, watch: FileWatch) -> None:
    path, other = tmp_path / "file", tmp_path / "other"
    for each in (path, other):
        each.write_text("")
        os.utime(each, (1, 1))
    watch.watch([str(path), str(other)])
    for change in (
        lambda: os.utime(path),
        lambda: path.write_text("more"),
        lambda: os.rename(other, path),
        path.unlink,
        lambda: path.write_text("created"),
        lambda: path.write_text("created again"),
    ):
        while watch.wait(0.0):
            pass
        change()
        assert str(path) in watch.wait(_LONG)


def test_a_quiet_file_is_not_reported(tmp_path: Path, watch: FileWatch) -> None:
    path = tmp_path / "file"
    path.write_text("")
    os.utime(path, (1, 1))
    watch.watch([str(path)])
    (tmp_path / "beside").write_text("")
    path.read_text()
    began = time.monotonic()
    assert watch.wait(0.06) == set()
    assert time.monotonic() - began >= 0.06


def test_a_path_whose_directories_come_later(tmp_path: Path, watch: FileWatch) -> None:
    path = tmp_path / "a" / "b" / "file"
    watch.watch([str(path)])
    path.parent.mkdir(parents=True)
    path.write_text("")
    assert watch.wait(_LONG) == {str(path)}
    while watch.wait(0.06):
        pass
    os.utime(path, (2, 2))
    assert watch.wait(_LONG) == {str(path)}


def test_a_directory_whose_names_change(tmp_path: Path) -> None:
    watch = FileWatch()
    watch.watch([str(tmp_path)])
    (tmp_path / "new").mkdir()
    assert watch.wait(_LONG) == {str(tmp_path)}
    (tmp_path / "new").rename(tmp_path / "renamed")
    assert watch.wait(_LONG) == {str(tmp_path)}
    watch.close()


def test_a_renamed_directory_above_shows_in_a_refresh(tmp_path: Path) -> None:
    watch = FileWatch()
    path = tmp_path / "store" / "file"
    for name in ("store", "copy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    watch.watch([str(path)])
    assert watch.refresh() == set()
    (tmp_path / "store").rename(tmp_path / "old")
    (tmp_path / "copy").rename(tmp_path / "store")
    assert watch.refresh() == {str(path)}
    assert watch.refresh() == set()
    os.utime(path)
    assert watch.wait(_LONG) == {str(path)}
    watch.close()


def test_two_paths_of_one_directory_and_of_one_file(tmp_path: Path) -> None:
    watch = FileWatch()
    one, two, link = (str(tmp_path / name) for name in ("one", "two", "link"))
    watch.watch([one, two])
    Path(one).write_text("")
    assert watch.wait(_LONG) == {one}
    os.link(one, link)
    watch.watch([one, link])
    while watch.wait(0.0):
        pass
    os.utime(one)
    assert watch.wait(_LONG) == {one, link}
    watch.watch([link])
    os.utime(one)
    assert watch.wait(_LONG) == {link}
    watch.close()


def test_a_wake_ends_the_wait_also_an_early_one(watch: FileWatch) -> None:
    watch.wake()
    assert watch.wait(_LONG) == set()
    began = time.monotonic()
    threading.Timer(0.02, watch.wake).start()
    assert watch.wait(_LONG) == set()
    assert 0.02 <= time.monotonic() - began < _LONG


def test_no_inotify_left_means_polling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """max_user_watches and max_user_instances end in these errors."""
    path = tmp_path / "file"
    path.write_text("")

    def refused(number: int) -> object:
        def call(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        return call

    with monkeypatch.context() as patch:
        patch.setattr(Inotify, "add", refused(errno.ENOSPC))
        watch = FileWatch()
        watch.watch([str(path)])
    path.write_text("longer")
    assert watch.wait(_LONG) == {str(path)}
    watch.close()
    with monkeypatch.context() as patch:
        patch.setattr(Inotify, "__init__", refused(errno.EMFILE))
        watch = FileWatch()
    watch.watch([str(path)])
    path.write_text("longer again")
    assert watch.wait(_LONG) == {str(path)}
    watch.close()


def test_too_many_events_report_every_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = FileWatch()
    paths = {str(tmp_path / name) for name in "abc"}
    for path in paths:
        Path(path).write_text("")
    watch.watch(paths)
    monkeypatch.setattr(Inotify, "read", lambda self: iter([(-1, IN_Q_OVERFLOW, "")]))
    assert watch.wait(0.0) == paths
    monkeypatch.undo()
    os.utime(sorted(paths)[0])
    assert watch.wait(_LONG) == {sorted(paths)[0]}
    watch.close()


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc")
def test_only_file_systems_of_this_machine_count(tmp_path: Path) -> None:
    assert not reports_all_changes("/proc")
    assert not reports_all_changes(str(tmp_path / "missing"))


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        watch = FileWatch()
        watch.watch([str(tmp_path / "file")])
        watch.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_wake_after_the_close_writes_nowhere(tmp_path: Path) -> None:
    """Another file may have the number of the descriptor by then."""
    watch = FileWatch()
    watch.close()
    taken = [(tmp_path / str(number)).open("wb") for number in range(4)]
    watch.wake()
    for each in taken:
        each.close()
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0] * 4

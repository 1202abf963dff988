"""The doorbell: every commit rings it once its messages can be read, and no failure of it is the commit's."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import doorbell_path, ring_doorbell
from store_format.commit.append import recover
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.files.write import FileWrites
from store_format.opened.store import Opened
from tests.support.staged import append, columns_of, numbered

_OPTIONS = CommitOptions(sync=False)


def _rung_ns(root: Path) -> int:
    return Path(doorbell_path(Opened(str(root)))).stat().st_mtime_ns


def _commit(root: Path, first: int) -> None:
    append(root, numbered("T", first, 4), options=_OPTIONS)


def _messages(root: Path) -> int:
    return sum(queue.max_offset for queue in MessageStore.open(str(root)).queues())


@contextmanager
def _failing(function: str, path_end: str, error: BaseException) -> Iterator[None]:
    """A function of `os` that raises for some paths."""
    original = getattr(os, function)

    def failing(path: str, *rest: Any, **named: Any) -> Any:  # Any: of the function
        if path.endswith(path_end):
            raise error
        return original(path, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, function, failing)
        yield


def test_each_commit_rings_once_its_messages_can_be_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    touch = FileWrites.touch

    def look_then_touch(self: FileWrites, path: str) -> None:
        seen.append((path, _messages(root)))
        touch(self, path)

    monkeypatch.setattr(FileWrites, "touch", look_then_touch)
    _commit(root, 0)
    first = _rung_ns(root)
    _commit(root, 4)
    assert seen == [(f"{root}/.rmqlog/doorbell", 4), (f"{root}/.rmqlog/doorbell", 8)]
    assert first < _rung_ns(root) <= time.time_ns()


def test_a_session_rings_at_each_append(root: Path) -> None:
    rung = []
    with write_session(str(root), _OPTIONS) as session:
        for first in (0, 4):
            session.append(columns_of(numbered("T", first, 4)))
            rung.append(_rung_ns(root))
    assert len(set(rung)) == 2


def test_two_commits_in_a_row_give_different_times(tmp_path: Path) -> None:
    files = FileWrites(sync=False)
    root = tmp_path
    (root / ".rmqlog").mkdir()
    times = set()
    for _ in range(100):
        ring_doorbell(Opened(str(root)), files)
        times.add(_rung_ns(root))
    assert len(times) >= 99  # the first ring creates the file with the time of the file system's clock


def test_a_commit_does_not_fail_with_its_doorbell(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), _failing("open", "/doorbell", OSError(errno.ENOSPC, "No space left")):
        _commit(root, 0)
    assert _messages(root) == 4
    assert f"{root}/.rmqlog/doorbell: cannot touch: No space left; processes that wait" in caplog.text
    _commit(root, 4)
    assert Path(doorbell_path(Opened(str(root)))).exists()


def test_a_completed_commit_rings(root: Path) -> None:
    """The next writer completes a commit that was broken off, and its messages can be read then."""
    _commit(root, 0)
    rung = _rung_ns(root)
    with pytest.raises(KeyboardInterrupt), _failing("unlink", "/journal.json", KeyboardInterrupt()):
        _commit(root, 4)
    assert (_messages(root), _rung_ns(root)) == (4, rung)
    recover(str(root), options=_OPTIONS)
    assert _messages(root) == 8
    assert _rung_ns(root) > rung

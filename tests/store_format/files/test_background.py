"""Calls in a thread behind the caller: in order, one at a time, and none behind a failure or the block.

Large files are removed at once, and freed by a thread.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from store_format.files.background import BackgroundCalls, RemovedFiles


def test_calls_come_in_order_and_beside_the_caller() -> None:
    done: list[int] = []
    may_go_on = threading.Event()

    def wait() -> None:
        assert may_go_on.wait(10)
        done.append(0)

    with BackgroundCalls() as background:
        background.call(wait)
        assert done == []  # it waits for what comes here next
        may_go_on.set()
        for number in range(1, 50):
            background.call(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == list(range(50))


def test_a_failure_is_raised_by_a_later_call_and_nothing_is_called_after_it() -> None:
    done: list[str] = []
    calls = 0
    may_fail = threading.Event()

    def fail() -> None:
        assert may_fail.wait(10)
        raise ZeroDivisionError

    def call_for_ever() -> None:
        nonlocal calls
        with BackgroundCalls() as background:
            background.call(fail)
            while True:
                background.call(lambda: done.append("after"))
                calls += 1
                may_fail.set()

    with pytest.raises(ZeroDivisionError):
        call_for_ever()
    assert done == []
    assert calls < BackgroundCalls.AHEAD  # a call waits if that many are not done


def test_no_more_calls_wait_than_the_callers_buffers_allow() -> None:
    filled, written = 0, 0
    with BackgroundCalls() as background:

        def write() -> None:
            nonlocal written
            threading.Event().wait(0.002)
            written += 1

        for _ in range(20):
            assert (
                filled - written <= BackgroundCalls.AHEAD
            )  # the buffer that is filled now is not one of theirs
            filled += 1
            background.call(write)
    assert written == 20


def test_a_call_that_waits_is_not_begun_after_the_block_has_failed() -> None:
    started, may_end = threading.Event(), threading.Event()
    done: list[str] = []

    def first() -> None:
        started.set()
        assert may_end.wait(10)

    def fails() -> None:
        with BackgroundCalls() as background:
            background.call(first)
            assert started.wait(10)
            background.call(lambda: done.append("second"))
            threading.Timer(0.1, may_end.set).start()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert done == []


def test_a_failure_of_the_last_call_is_raised_at_the_end() -> None:
    with pytest.raises(ZeroDivisionError), BackgroundCalls() as background:
        background.call(lambda: print(1 // 0))


def test_what_the_block_raises_goes_before_and_the_call_has_ended_by_then() -> None:
    started, done = threading.Event(), []

    def slow() -> None:
        started.set()
        threading.Event().wait(0.2)
        done.append("written")
        raise ValueError

    def fails() -> None:
        with BackgroundCalls() as background:
            background.call(slow)
            assert started.wait(10)
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert done == ["written"]


# ---- removed files -----------------------------------------------------------------------------------------


def _held(path: Path) -> int:
    """How many descriptors of this process have the file open; its name may be gone."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if link.is_symlink()]
    return sum(target.removesuffix(" (deleted)") == str(path) for target in targets)


def test_a_thread_closes_removed_files_and_files_with_a_name_are_closed_at_once(tmp_path: Path) -> None:
    removed, kept = tmp_path / "removed", tmp_path / "kept"
    removed.write_bytes(b"1")
    kept.write_bytes(b"2")
    files = RemovedFiles()
    files.hold([str(removed), str(tmp_path / "missing"), str(kept)])
    removed.unlink()
    assert (_held(removed), _held(kept)) == (1, 1)
    files.close_named()
    assert (_held(removed), _held(kept)) == (1, 0)
    thread = files.free()
    assert thread is not None
    thread.join()
    assert _held(removed) == 0
    assert files.free() is None


def test_a_thousand_files_do_not_take_all_descriptors(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    files = RemovedFiles()
    files.hold([str(tmp_path / "file")] * 1000)
    assert len(files.descriptors) == 256
    files.close_named()
    assert files.descriptors == []

"""Attempts with pauses, threads that repeat a turn, and polled files: every change of a file is reported."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from time import sleep

import pytest

from store_format.files.paths import YOUNG_NS
from store_format.files.polling import Clocks, PolledFiles, Repeated


class _Time:
    """A clock that only sleeps move on."""

    def __init__(self, seconds: float = 1_700_000_000.0) -> None:
        self.now = seconds
        self.slept: list[float] = []
        self.clocks = Clocks(lambda: self.now, lambda: int(self.now * 1000), self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def _old(path: Path, seconds: int = 1) -> None:
    os.utime(path, (seconds, seconds))


def _old_file(path: Path) -> Path:
    path.write_text("")
    _old(path)
    return path


@pytest.mark.parametrize(
    ("seconds", "pause", "pause_max", "slept"),
    [
        pytest.param(1.0, 0.25, 0.25, [0.25] * 4, id="until the time is over"),
        pytest.param(0.0, 0.25, 0.25, [], id="one attempt without a time"),
        pytest.param(1.0, 0.125, 0.5, [0.125, 0.25, 0.5, 0.5], id="pauses grow up to the longest"),
    ],
)
def test_attempts(seconds: float, pause: float, pause_max: float, slept: list[float]) -> None:
    time = _Time()
    assert len(list(time.clocks.attempts(seconds, pause, pause_max=pause_max))) == len(slept) + 1
    assert time.slept == slept


def test_touched_written_replaced_removed_and_created(tmp_path: Path) -> None:
    path, other = _old_file(tmp_path / "file"), _old_file(tmp_path / "other")
    files = PolledFiles()
    files.watch([str(path), str(other)])
    for change in (
        lambda: _old(path, 2),
        lambda: path.write_text("more"),
        lambda: os.rename(other, path),
        path.unlink,
        lambda: path.write_text("created"),
        lambda: path.write_text("created again"),
    ):
        change()
        assert str(path) in files.changed()


def test_a_quiet_file_is_not_reported(tmp_path: Path) -> None:
    path = _old_file(tmp_path / "file")
    files = PolledFiles()
    files.watch([str(path)])
    (tmp_path / "beside").write_text("")
    path.read_text()
    assert files.changed() == set()


def test_a_second_change_within_a_tick_of_the_clock_is_reported(tmp_path: Path) -> None:
    """Both changes have the same time and size, so a file that was young at a look is reported once more."""
    path, time = tmp_path / "file", _Time()
    path.write_text("")
    os.utime(path, ns=(int(time.now * 1e9),) * 2)
    files = PolledFiles(time.clocks)
    files.watch([str(path)])
    assert files.changed() == set()
    time.now += 2 * YOUNG_NS / 1e9
    assert files.changed() == {str(path)}
    assert files.changed() == set()


def test_a_path_whose_directories_come_later(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file"
    files = PolledFiles()
    files.watch([str(path)])
    path.parent.mkdir(parents=True)
    assert files.changed() == set()
    path.write_text("")
    assert files.changed() == {str(path)}


def test_a_directory_whose_names_change(tmp_path: Path) -> None:
    _old(tmp_path)
    files = PolledFiles()
    files.watch([str(tmp_path)])
    (tmp_path / "new").mkdir()
    assert files.changed() == {str(tmp_path)}


def test_a_renamed_directory_above(tmp_path: Path) -> None:
    path = tmp_path / "store" / "file"
    for name in ("store", "copy"):
        (tmp_path / name).mkdir()
        _old_file(tmp_path / name / "file")
    files = PolledFiles()
    files.watch([str(path)])
    assert files.changed() == set()
    (tmp_path / "store").rename(tmp_path / "old")
    (tmp_path / "copy").rename(tmp_path / "store")
    assert files.changed() == {str(path)}


def test_a_path_that_stays_keeps_its_change(tmp_path: Path) -> None:
    path, other = _old_file(tmp_path / "file"), _old_file(tmp_path / "other")
    files = PolledFiles()
    files.watch([str(path)])
    _old(path, 2)
    files.watch([str(path), str(other)])
    assert files.changed() == {str(path)}
    _old(path, 3)
    files.watch([str(other)])
    assert files.changed() == set()


def test_pauses_grow_while_nothing_changes(tmp_path: Path) -> None:
    time = _Time()
    files = PolledFiles(time.clocks)
    path = tmp_path / "file"
    files.watch([str(path)])
    assert files.pause() == 0.005
    time.now += 1.0
    assert 0.019 < files.pause() < 0.021
    time.now += 100.0
    longest = files.pause()
    assert 0.03 <= longest <= 0.05
    path.write_text("")
    assert files.changed() == {str(path)}
    assert files.pause() == 0.005


def test_a_stop_waits_for_the_present_turn_and_is_followed_by_no_other() -> None:
    turns: list[str] = []
    begun = threading.Event()

    def turn() -> None:
        begun.set()
        while not repeated.is_stopping:
            sleep(0.001)
        turns.append(threading.current_thread().name)

    repeated = Repeated("turning", lambda: 0.0, turn)
    repeated.start()
    begun.wait()
    repeated.stop()
    assert turns == ["turning"]
    assert not any(each.name == "turning" for each in threading.enumerate())


def test_a_turn_may_stop_its_own_thread() -> None:
    repeated = Repeated("turning", lambda: 0.0, lambda: repeated.stop())
    repeated.start()
    repeated.stop()
    assert not any(each.name == "turning" for each in threading.enumerate())


def test_a_thread_that_never_started_is_stopped() -> None:
    repeated = Repeated("turning", lambda: 0.0, lambda: None)
    repeated.stop()
    assert repeated.is_stopping

"""The loop: when its turns begin, how it ends, writers beside it, and what a kill leaves."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from rmq_spark.broker.services import schedule, turn
from rmq_spark.broker.services.schedule import SchedulePlan
from rmq_spark.broker.services.service import Now, Service
from rmq_spark.broker.services.turn import TurnReport
from rmq_spark.services import Services, run_once
from store_format import MessageStore
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.options import CommitOptions
from store_format.errors import CorruptStoreError, OptionError
from store_format.read.store import Store
from tests.support.fixtures import Golden
from tests.support.staged import columns_of, make_store, numbered
from tests.support.waiting import BEGIN_MS, append, bodies, delayed, poisoned
from tests.support.writes import held

_ROOT = Path(__file__).resolve().parents[4]
_LATER_MS = BEGIN_MS + 60_000
_ENOUGH_SECONDS = 60.0


def _until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + _ENOUGH_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "the loop does not get there"
        time.sleep(0.005)


class Turns(list[list[TurnReport]]):
    """The turns of a loop."""

    @property
    def done(self) -> int:
        return sum(each.done for reports in self for each in reports)


def _loop(
    root: Path,
    turns: Turns,
    *,
    every: float = 0.01,
    extra: Sequence[Service] = (),
    clock_ms: Callable[[], int] = lambda: _LATER_MS,
) -> Services:
    return Services(
        str(root), every, only=["schedule"], extra=extra, on_turn=turns.append, clock_ms=clock_ms, apply=True
    )


def test_the_loop_wakes_up_when_a_message_is_due(root: Path) -> None:
    """Not `every` seconds later."""
    append(root, delayed("T", 1, 0, 1))
    turns, began = Turns(), time.monotonic()

    def clock_ms() -> int:
        """700 ms of the delay have passed when the loop begins."""
        return BEGIN_MS + 700 + int(1000 * (time.monotonic() - began))

    with _loop(root, turns, every=3600.0, clock_ms=clock_ms):
        _until(lambda: turns.done)
    assert [each.done for reports in turns for each in reports] == [0, 1]
    (late,) = [each.late_ms for reports in turns for each in reports if each.done]
    assert late is not None
    assert 0 <= late < 30_000


def test_a_long_backlog_takes_turns_without_a_pause_of_every(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "TURN_MESSAGES_MAX", 10)
    append(root, delayed("T", 1, 0, 25))
    turns = Turns()
    with _loop(root, turns, every=3600.0):
        _until(lambda: turns.done == 25)
    assert [each.done for reports in turns for each in reports] == [10, 10, 5]


def test_a_store_that_does_not_exist_yet(tmp_path: Path) -> None:
    root, turns = tmp_path / "store", Turns()
    with _loop(root, turns):
        time.sleep(0.03)
        make_store(root)
        MessageStore.open(str(root)).append(
            columns_of(delayed("T", 1, 0, 1)),
            options=CommitOptions(lock_timeout=_ENOUGH_SECONDS, clock=lambda: BEGIN_MS),
        )
        _until(lambda: turns.done)


def test_the_loop_needs_apply(root: Path, golden: Golden) -> None:
    """For every store, and for one that does not exist yet."""
    for store in (golden("retry-dlq-5.5.0"), root, root / "none"):
        with pytest.raises(OptionError, match=r"expected apply=True, found False. run_once\(path\) shows"):
            Services(str(store))
    with pytest.raises(OptionError, match="every=0: expected a number of seconds above 0"):
        Services(str(root), 0, apply=True)


def test_a_poisoned_message_stops_its_level_only(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The messages of the other levels are delivered when they are due, not `every` seconds later."""
    append(root, [poisoned("T", 1, 0), *delayed("T", 1, 1, 9), *delayed("T", 2, 10, 1)])
    turns, began = Turns(), time.monotonic()

    def clock_ms() -> int:
        """Level 1 is due when the loop begins, level 2 half a second later."""
        return BEGIN_MS + 4_500 + int(1000 * (time.monotonic() - began))

    with _loop(root, turns, every=3600.0, clock_ms=clock_ms) as services:
        _until(lambda: turns.done)
        assert "SCHEDULE_TOPIC_XXXX-0 offset 0" in services.failing["schedule"]
    assert bodies(root, "T") == {b"message 10 of T": 1}
    assert [len(each.errors) for reports in turns for each in reports] == [1, 1]
    assert caplog.text.count("service schedule: ") == 1, "the warning is logged once"


class Broken:
    """A service that fails with an error that nobody foresaw, the first time."""

    name = "broken"

    def __init__(self, error: Exception) -> None:
        self._errors = [error]

    def plan(self, store: Store, ledger: Ledger, now: Now) -> SchedulePlan:
        if self._errors:
            raise self._errors.pop()
        return schedule.Schedule().plan(store, ledger, now)


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("division"), CorruptStoreError("file", 7, "this", "that")]
)
def test_an_error_is_logged_and_does_not_end_the_loop(
    root: Path, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(turn, "_AFTER_ERROR_SECONDS", 0.01)
    append(root, delayed("T", 1, 0, 1))
    turns = Turns()
    with _loop(root, turns, extra=[Broken(error)]):
        _until(lambda: any(all(not each.errors for each in reports) for reports in turns))
    assert bodies(root, "T").total() == 1
    assert caplog.text.count("division" if isinstance(error, ZeroDivisionError) else "file at byte 7") >= 1


def test_a_directory_that_is_no_directory_for_a_while_does_not_end_the_loop(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A mount that fails, for example."""
    append(root, delayed("T", 1, 0, 1))
    aside, turns = root.with_name("aside"), Turns()
    root.rename(aside)
    root.touch()
    with _loop(root, turns) as services:
        _until(lambda: services.failing)
        assert f"{root} is a file" in services.failing[""]
        root.unlink()
        aside.rename(root)
        _until(lambda: turns.done)
        assert services.failing == {}
    assert caplog.text.count("is a file") == 1
    assert bodies(root, "T").total() == 1


def test_an_unforeseen_error_of_a_turn_is_failing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rmqlog services` ends with exit code 4 then."""
    monkeypatch.setattr(turn, "_AFTER_ERROR_SECONDS", 0.01)
    times = iter([ZeroDivisionError("the clock")])

    def clock_ms() -> int:
        for error in times:
            raise error
        return _LATER_MS

    services = Services(str(root), 0.01, only=["schedule"], clock_ms=clock_ms, apply=True)
    assert services._turn() == 0.01
    assert services.failing == {"": "ZeroDivisionError: the clock"}
    services._turn()
    assert services.failing == {}


def test_an_error_of_on_turn_ends_the_loop_and_is_raised_at_the_end(root: Path) -> None:
    def on_turn(reports: list[TurnReport]) -> None:
        raise LookupError("on_turn")

    services = Services(str(root), 0.01, only=["schedule"], on_turn=on_turn, apply=True)
    with pytest.raises(LookupError, match="on_turn"), services:
        _until(lambda: not services._thread.is_alive())


class Slow:
    """A service whose plan waits until the test lets it go on."""

    name = "slow"

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    def plan(self, store: Store, ledger: Ledger, now: Now) -> SchedulePlan:
        self.begun.set()
        assert self.go_on.wait(_ENOUGH_SECONDS)
        return schedule.Schedule().plan(store, ledger, now)


def test_the_end_waits_for_the_turn_that_is_under_way(root: Path) -> None:
    append(root, delayed("T", 1, 0, 5))
    slow, turns = Slow(), Turns()
    services = _loop(root, turns, every=3600.0, extra=[slow])
    with services:
        assert slow.begun.wait(_ENOUGH_SECONDS)
        services.stop()
        assert not turns
        slow.go_on.set()
    assert len(turns) == 1
    assert turns.done == 5
    assert not (root / "abort").exists()


def test_a_writer_and_a_loop_with_a_backlog_both_get_the_lock(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a Spark write in the process of the loop: neither waits until the other has nothing left to do."""
    monkeypatch.setattr(schedule, "TURN_MESSAGES_MAX", 5)
    append(root, delayed("T", 1, 0, 1_000))
    turns = Turns()
    options = CommitOptions(sync=False, lock_timeout=_ENOUGH_SECONDS, clock=lambda: BEGIN_MS)
    seen = []
    with _loop(root, turns, every=3600.0):
        for i in range(4):
            MessageStore.open(str(root)).append(
                columns_of(numbered("other", i, 1, queues=1)), options=options
            )
            seen.append(turns.done)
            before = len(turns)
            _until(lambda before=before: len(turns) > before)  # type: ignore[misc]
    assert seen[-1] < 1_000, "the writer waited for the whole backlog"
    assert len(turns) >= 4
    assert bodies(root, "other").total() == 4
    run_once(str(root), ["schedule"], _LATER_MS, apply=True)
    assert bodies(root, "T").total() == turns.done + 5
    assert max(bodies(root, "T").values()) == 1


def test_the_loop_waits_for_a_broker_and_warns_once(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(root, delayed("T", 1, 0, 2))
    turns = Turns()
    services = _loop(root, turns)
    with ExitStack() as stack:
        with held(root):
            stack.enter_context(services)
            _until(lambda: "stop that process first" in caplog.text)
            time.sleep(0.05)
            assert not turns
        _until(lambda: turns.done == 2)
    assert caplog.text.count("stop that process first") == 1


_BESIDE = """
import sys, threading
from rmq_spark.broker.services import schedule
from rmq_spark.services import Services

schedule.TURN_MESSAGES_MAX = 7
with Services(sys.argv[1], only=["schedule"], clock_ms=lambda: int(sys.argv[2]), apply=True,
              on_turn=lambda reports: print("turn", flush=True)):
    threading.Event().wait()
"""


@pytest.mark.slow
@pytest.mark.process
def test_a_signal_that_ends_the_process_leaves_nothing_half_done(root: Path) -> None:
    """SIGTERM in a process that does not handle the signal, as a Spark driver: a crash at any moment."""
    append(root, delayed("T", 1, 0, 600))
    for turns in (1, 4):
        command = [sys.executable, "-c", _BESIDE, str(root), str(_LATER_MS)]
        with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(turns):
                assert process.stdout.readline() == "turn\n"
            time.sleep(0.05 + 0.004 * turns)  # in the pause after a turn, or in the next turn
            process.send_signal(signal.SIGTERM)
        assert process.returncode == -signal.SIGTERM
        seen = bodies(root, "T")
        assert max(seen.values(), default=1) == 1
    assert 0 < seen.total() < 600
    run_once(str(root), ["schedule"], _LATER_MS, apply=True)
    assert set(bodies(root, "T").values()) == {1}
    assert bodies(root, "T").total() == 600
    assert MessageStore.open(str(root)).diagnose() == []

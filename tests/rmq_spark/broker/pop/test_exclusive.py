"""Messages that many processes share: each goes to one of them at a time, and none is lost."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from store_format.pop.state import PopState
from tests.support.pop_worker import Delivery, deliveries
from tests.support.popped import GROUP, TOPIC, popped_store

pytestmark = pytest.mark.slow

_DEADLINE_SECONDS = 300.0


class _Workers:
    """Processes that pop one store."""

    def __init__(self, root: Path, directory: Path, invisible: float, work: float = 0.0) -> None:
        self._root, self._directory = root, directory
        self._seconds = invisible, work
        self._go, self._stop = directory / "go", directory / "stop"
        self._running: dict[Path, subprocess.Popen[bytes]] = {}
        self._begun = 0

    def start(self) -> None:
        self._begun += 1
        record = self._directory / f"record-{self._begun}"
        arguments = [self._root, record, *self._seconds, self._go, self._stop]
        command = [sys.executable, "-m", "tests.support.pop_worker", *map(str, arguments)]
        self._running[record] = subprocess.Popen(command)

    def go(self) -> None:
        """Lets all begin at once."""
        deadline = time.monotonic() + _DEADLINE_SECONDS
        while len(list(self._directory.glob("record-*"))) < self._begun:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self._go.touch()

    def kill(self, random: Random) -> None:
        """Kills one that has received messages."""
        at_work = [path for path in sorted(self._running) if path.exists() and path.stat().st_size]
        if at_work:
            victim = self._running.pop(random.choice(at_work))
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            self.start()

    def end(self) -> None:
        """Lets all end by themselves."""
        self._stop.touch()
        for each in self._running.values():
            assert each.wait(_DEADLINE_SECONDS) == 0

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *error: object) -> None:
        """Leaves no process behind if the test fails."""
        for each in self._running.values():
            each.kill()
            each.wait()

    def seen(self) -> dict[int, list[Delivery]]:
        """The deliveries of each message in order of time."""
        found: dict[int, list[Delivery]] = defaultdict(list)
        for each in deliveries(sorted(self._directory.glob("record-*"))):
            found[each.number].append(each)
        return {number: sorted(each, key=lambda one: one.pop_time) for number, each in found.items()}


def _state(root: Path) -> PopState:
    return read_in_flight(in_flight_directory(Opened(str(root)), GROUP, TOPIC)) or PopState()


def _is_empty(root: Path, messages: int) -> bool:
    """Whether every message was handed out, and nothing is in flight, nor waits in the retry topic."""
    state = _state(root)
    handed = {key: queue.next_offset for key, queue in state.queues.items()}
    revived = state.totals["revived"]
    return (
        not state.in_flight
        and sum(offset for (flag, _), offset in handed.items() if not flag) == messages
        and sum(offset for (flag, _), offset in handed.items() if flag) == revived
    )


def _wait_until_empty(root: Path, messages: int) -> None:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while not _is_empty(root, messages):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.process
def test_each_message_goes_to_one_process(tmp_path: Path, whole: bool) -> None:
    messages, processes = (100_000, 8) if whole else (2_000, 2)
    root = popped_store(tmp_path / "s", messages, file_size=1 << 26)
    with _Workers(root, tmp_path, 600.0) as workers:
        for _ in range(processes):
            workers.start()
        workers.go()
        _wait_until_empty(root, messages)
        totals = _state(root).totals
        workers.end()
    seen = workers.seen()
    assert sorted(seen) == list(range(messages))
    assert all(len(each) == 1 and each[0].acked_at is not None for each in seen.values())
    assert (totals["popped"], totals["acked"], totals["revived"]) == (messages, messages, 0)


@pytest.mark.process
def test_killed_consumers_lose_nothing(tmp_path: Path, whole: bool) -> None:
    """A message comes again only when its invisible time is over, and never after its acknowledgement."""
    messages, processes, kills = (100_000, 8, 60) if whole else (2_000, 2, 2)
    invisible = 2.0 if whole else 0.5
    root = popped_store(tmp_path / "s", messages, file_size=1 << 26)
    random = Random(13)
    with _Workers(root, tmp_path, invisible, 0.03) as workers:
        for _ in range(processes):
            workers.start()
        workers.go()
        for _ in range(kills):
            before = _state(root).totals["popped"]
            while _state(root).totals["popped"] == before < messages:
                time.sleep(0.01)
            time.sleep(random.uniform(0, 0.05))
            workers.kill(random)
        _wait_until_empty(root, messages)
        workers.end()
    seen = workers.seen()
    assert sorted(seen) == list(range(messages))
    again = 0
    for number, each in seen.items():
        for one, after in pairwise(each):
            again += 1
            assert one.visible_at <= after.pop_time, (number, each)
            assert one.acked_at is None, (number, each)
            assert after.attempt > one.attempt
        assert each[-1].acked_at is not None, (number, each)
    print(f"{kills} kills: {again} redeliveries of {messages} messages")

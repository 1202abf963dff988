"""Consumers in processes that are killed, stopped past their lease and started again, on one group of 16
queues: every message is handled, nothing is recorded that was not, and no epoch has two owners.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consume.group.directory import read_state
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from tests.rmq_spark.client.conftest import wait_until
from tests.support.ownership import double_ownership, read_events
from tests.support.spark.processes import signal_session
from tests.support.staged import append, make_store, numbered

pytestmark = [pytest.mark.process, pytest.mark.slow]

_ROOT = Path(__file__).resolve().parents[3]
_QUEUES, _LEASE_S, _PAUSE_S = 16, 2.0, 0.01
_KINDS = {"one": "push", "two": "push", "three": "pull"}
_KINDS_AND_QUERY = {**_KINDS, "four": "query"}
_ORDERLY = dict.fromkeys(("five", "six", "seven"), "orderly")
_HELD = 16  # messages of a queue that a push consumer reads ahead
_LOOK_MS = 400  # on a busy machine, between the look at the group and the line that a listener writes


@dataclass
class _Run:
    """The store, the processes that are there, and the log that all of them write."""

    path: Path
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    started: int = 0
    poisons: set[str] = field(default_factory=set)
    stops: Counter[int] = field(default_factory=Counter)  # by process id

    @property
    def root(self) -> Path:
        return self.path / "store"

    @property
    def directory(self) -> str:
        return str(self.root / ".rmqlog" / "groups" / "g")

    def start(self, name: str) -> None:
        options = {
            "kind": (_KINDS_AND_QUERY | _ORDERLY)[name], "name": f"{name}-{self.started}",
            "root": str(self.root), "log": str(self.path / "log"), "checkpoint": str(self.path / name),
            "lease": _LEASE_S, "pause": _PAUSE_S,
        }  # fmt: skip
        self.started += 1
        command = [sys.executable, "-m", "tests.support.consumer_worker", json.dumps(options)]
        self.processes[name] = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, text=True, start_new_session=True
        )

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        signal_session(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdin is not None
        process.stdin.close()

    def stop_past_its_lease(self, name: str) -> None:
        process = self.processes[name]
        signal_session(process.pid, signal.SIGSTOP)
        self.stops[process.pid] += 1
        time.sleep(1.5 * _LEASE_S)
        signal_session(process.pid, signal.SIGCONT)

    def end(self, name: str) -> None:
        process = self.processes.pop(name)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.close()
        assert process.wait(60) == 0

    def append(self, first: int, count: int, *, is_poisoned: bool = False) -> None:
        messages = numbered("T", first, count, queues=_QUEUES)
        if is_poisoned:
            (message,) = numbered("T", first + count, 1, queues=_QUEUES)
            body = f"poison {first + count}"
            messages.append(replace(message, body=body.encode()))
            self.poisons.add(body)
        append(self.root, messages, options=CommitOptions(lock_timeout=30))

    def lines(self) -> list[dict[str, Any]]:
        path = self.path / "log"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    def polled(self) -> set[str]:
        """The poison that a pull consumer or a query had, which store no dead letters."""
        return {
            body for line in self.lines() if line["what"] == "done" for body in line["bodies"]
        } & self.poisons

    def done(self) -> set[tuple[int, int]]:
        """(queue, offset) of everything that was handled: poison is, when it is a dead letter."""
        return {
            (line["queue"][1], offset)
            for line in self.lines()
            for offset, body in zip(line["offsets"], line["bodies"], strict=True)
            if line["queue"][0] == "T" and (line["what"] == "done" or body.startswith("poison"))
        }

    def check_positions(self) -> None:
        """Every message before a recorded position was handled. The positions are read first."""
        entries = read_state(self.directory).queues
        done = self.done()
        for queue, entry in entries.items():
            missing = {(queue.queue_id, offset) for offset in range(entry.position or 0)} - done
            assert queue.topic != "T" or not missing, f"{queue}: recorded, and not handled: {sorted(missing)}"

    def check_order(self) -> None:
        """The calls of the listener for each queue: in the queue's order, from where the last owner ended at
        the latest. A stopped process may end a call when the queue is another member's.
        """
        reached, following, owner = Counter[int](), Counter[int](), Counter[int]()  # of each queue
        late = Counter[int]()  # of each process
        for line in self.lines():
            queue, epoch, offset = line["queue"][1], line["epoch"], line["offsets"][0]
            if epoch is None or epoch < owner[queue]:
                late[line["thread"][0]] += 1
                continue
            if epoch > owner[queue]:
                assert offset <= reached[queue], f"queue {queue}: a gap before {offset}"
                owner[queue], following[queue] = epoch, offset
            assert offset == following[queue], f"queue {queue}: {offset} in epoch {epoch}"
            following[queue] += line["what"] == "done"
            reached[queue] = max(reached[queue], following[queue])
        threads = 4
        assert all(count <= threads * self.stops[process] for process, count in late.items()), late

    def check_epochs(self) -> None:
        """No epoch has two owners, and nobody is handed messages of a queue that is another member's.

        A process may be stopped between its look and the line of the listener: once in each thread.
        """
        events = read_events(self.directory)
        assert double_ownership(events) == []
        begun = {(each.topic, each.queue, each.epoch): each.at for each in events if each.event == "gain"}
        late = Counter[tuple[int, int]]()
        for line in self.lines():
            following = begun.get((*line["queue"], (line["epoch"] or 0) + 1))
            if line["what"] == "hand" and following is not None and line["at"] > following + _LOOK_MS:
                late[tuple(line["thread"])] += 1
        assert all(count <= self.stops[process] for (process, _), count in late.items()), late

    def check_handed(self, names: Collection[str]) -> None:
        """These were handed messages, and few messages came twice."""
        hands = [line for line in self.lines() if line["what"] == "hand"]
        assert {*names} <= {line["name"].partition("-")[0] for line in hands}
        handed = Counter((*line["queue"], offset) for line in hands for offset in line["offsets"])
        twice = sum(count - 1 for count in handed.values())
        print(f"{len(handed)} messages, {twice} again, {self.started} processes")
        assert twice <= self.started * _QUEUES * _HELD


@pytest.fixture
def run(tmp_path: Path) -> Iterator[_Run]:
    made = _Run(tmp_path)
    make_store(made.root, StoreSettings("broker-a", 1 << 20, 20 * 400, 50, 200))
    made.append(0, 160)
    yield made
    for process in made.processes.values():
        signal_session(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()


def _kill_and_check(run: _Run, kinds: Collection[str], events: int, seed: int) -> None:
    """So many kills, stops and orderly ends, with messages between them."""
    chance, appended = random.Random(seed), 160
    for name in kinds:
        run.start(name)
    for number in range(events):
        time.sleep(chance.uniform(0.3, 1.2))
        for _ in range(3):
            run.append(appended, 40, is_poisoned=chance.random() < 0.2 and kinds is not _ORDERLY)
            appended += 41
        name = chance.choice(list(kinds))
        match chance.choice(("kill", "kill", "stop", "end")) if number else "kill":
            case "kill":
                run.kill(name)
                run.start(name)
            case "stop":
                run.stop_past_its_lease(name)
            case "end":
                run.end(name)
                run.start(name)
        run.check_positions()
    ends = {
        queue.queue_id: queue.max_offset
        for queue in MessageStore.open(str(run.root)).queues()
        if queue.topic == "T"
    }
    expected = {(queue, offset) for queue, end in ends.items() for offset in range(end)}
    wait_until(lambda: run.done() >= expected)
    wait_until(lambda: {*_dead_letters(run.root)} | run.polled() == run.poisons)
    for name in list(run.processes):
        run.end(name)
    run.check_positions()
    run.check_epochs()
    entries = read_state(run.directory).queues.items()
    assert {queue.queue_id: entry.position for queue, entry in entries if queue.topic == "T"} == ends
    dead = _dead_letters(run.root)
    assert {*dead.values()} <= {1}
    assert run.poisons - run.polled() <= dead.keys() <= run.poisons
    run.check_handed(kinds if events >= 40 else ())  # within few events, one may have no turn


def _dead_letters(root: Path) -> Counter[str]:
    found = Counter[str]()
    for queue in MessageStore.open(str(root)).queues():
        if queue.topic == "%DLQ%g":
            found.update(body.decode() for body in queue.to_table(columns=["body"])["body"].to_pylist())
    return found


@pytest.mark.timeout(180)
def test_members_that_are_killed_and_stopped(run: _Run) -> None:
    _kill_and_check(run, _KINDS, 6, seed=3)


@pytest.mark.whole
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(3))
def test_forty_kills_and_stops(run: _Run, seed: int) -> None:
    _kill_and_check(run, _KINDS_AND_QUERY, 40, seed)


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_an_orderly_listener_under_kills(run: _Run) -> None:
    _kill_and_check(run, _ORDERLY, 40, seed=4)
    run.check_order()

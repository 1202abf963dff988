"""Real processes in a group of 16 queues, killed and stopped by signals: every message read, one owner a
queue, repeats only in flight.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.change import OwnershipEvent
from rmq_spark.consume.group.directory import read_state
from rmq_spark.consume.offset_store import LocalOffsets
from tests.support.group_worker import QUEUES, spec_of
from tests.support.ownership import double_ownership, read_events

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
LEASE, PAUSE = 4.0, 0.05
CLIENTS = {"one": "room1-1", "two": "room2-2", "three": "room1-3"}
STRATEGIES: dict[str, dict[str, dict[str, Any]]] = {
    "AVG": {},
    "AVG_BY_CIRCLE": {},
    "CONSISTENT_HASH": {},
    "MACHINE_ROOM": {name: {"consumer_idcs": ["room1", "room2"]} for name in CLIENTS},
    "MACHINE_ROOM_NEARBY": {name: {"inner": "AVG_BY_CIRCLE"} for name in CLIENTS},
    "CONFIG": {
        "one": {"config": [*range(6)]},
        "two": {"config": [*range(6, 11)]},
        "three": {"config": [*range(11, 16)]},
    },
}
_BUSY = 1.0  # seconds for which a machine full of tests may keep a thread waiting
_IN_CI = ("AVG", "CONFIG")  # the proofs run all


@dataclass
class Worker:
    """A process of `tests.support.group_worker`; what it said is in a file, so that nobody has to read
    along.
    """

    options: dict[str, Any]
    output: Path
    process: subprocess.Popen[str]
    killed_at: float | None = None
    in_flight: set[tuple[int, int]] = field(default_factory=set)  # when it was killed or stopped

    def said(self) -> list[dict[str, Any]]:
        lines = self.output.read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

    def count(self, what: str) -> int:
        return sum(what in each for each in self.said())

    def read_on(self) -> None:
        """Waits for three batches more."""
        before = self.count("read")
        _until(lambda: self.count("read") > before + 2)

    def signal(self, number: signal.Signals) -> None:
        """While a batch is in flight and the group's lock is free.

        On a busy machine the batch may have ended by the time that the signal arrives, so the process is
        stopped first and asked again.
        """
        while True:
            before = self.count("begun")
            _until(partial(self._has_begun_after, before))
            self.process.send_signal(signal.SIGSTOP)
            _until(self._is_stopped)
            if "begun" in [each for each in self.said() if "begun" in each or "read" in each][-1]:
                break
            self.process.send_signal(signal.SIGCONT)
        self.process.send_signal(number)
        self.killed_at = time.monotonic()
        self.in_flight = self.last_batch

    def _has_begun_after(self, before: int) -> bool:
        return self.count("begun") > before

    def _is_stopped(self) -> bool:
        stat = Path(f"/proc/{self.process.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "T"

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.said()[-3:]

    @property
    def last_batch(self) -> set[tuple[int, int]]:
        """(queue, message) of the batch that was begun last."""
        return _messages([each["batch"] for each in self.said() if "begun" in each][-1])


def _messages(batch: dict[str, tuple[int, int]]) -> set[tuple[int, int]]:
    return {(int(queue), number) for queue, (start, stop) in batch.items() for number in range(start, stop)}


def _until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.02)


@dataclass
class Group:
    """The directory, the workers that are there or were, and what all of them read."""

    path: Path
    strategy: str = "AVG"
    lease: float = LEASE
    pause: float = PAUSE
    workers: dict[str, Worker] = field(default_factory=dict)
    gone: list[Worker] = field(default_factory=list)

    @property
    def directory(self) -> str:
        return str(self.path / "members")

    def start(self, name: str, clients: list[str] | None = None, *, rate: int = 3) -> Worker:
        options = {
            "directory": self.directory, "offsets": str(self.path / "offsets.json"),
            "checkpoint": str(self.path / name), "clients": clients or [CLIENTS[name]],
            "strategy": self.strategy, "arguments": STRATEGIES[self.strategy].get(name, {}),
            "lease": self.lease, "pause": self.pause, "rate": rate,
        }  # fmt: skip
        output = self.path / f"{name}-{len(self.gone)}.out"
        command = [sys.executable, "-m", "tests.support.group_worker", json.dumps(options)]
        with output.open("w") as file:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=file, stderr=sys.stderr, text=True
            )
        self.workers[name] = Worker(options, output, process)
        return self.workers[name]

    def kill(self, name: str) -> Worker:
        worker = self.workers.pop(name)
        worker.signal(signal.SIGKILL)
        worker.process.wait()
        self.gone.append(worker)
        return worker

    def expected(self) -> dict[int, str]:
        """Whose each queue must be, by the strategy and the workers that are there."""
        clients = [client for worker in self.workers.values() for client in worker.options["clients"]]
        found: dict[int, str] = {}
        for worker in self.workers.values():
            found |= {
                QUEUES.index(queue): client
                for queue, client in spec_of(worker.options).allocate(clients, QUEUES).items()
            }
        return found

    def owners(self) -> dict[int, str]:
        state = read_state(self.directory)
        return {
            QUEUES.index(queue): entry.client
            for queue, entry in state.queues.items()
            if entry.client is not None
        }

    def settle(self) -> float:
        """Waits until all is owned as it should be, and everybody has read on a little; the moment of the
        last gain.
        """
        expected = self.expected()
        _until(lambda: self.owners() == expected)
        for worker in self.workers.values():
            if any(client in expected.values() for client in worker.options["clients"]):
                worker.read_on()
        return max(
            each["at"] for worker in self.workers.values() for each in worker.said() if each.get("gained")
        )

    def end(self) -> None:
        for worker in self.workers.values():
            worker.end()

    def events(self) -> list[OwnershipEvent]:
        return read_events(self.directory)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    made = Group(tmp_path)
    yield made
    for worker in [*made.workers.values(), *made.gone]:
        with suppress(ProcessLookupError):
            worker.process.kill()
        worker.process.wait()
        if worker.process.stdin is not None:
            with suppress(BrokenPipeError):
                worker.process.stdin.close()


def _check(group: Group, recorded: dict[MessageQueue, int]) -> None:
    """What every run must show, however it went."""
    assert double_ownership(group.events()) == []
    everybody = [*group.workers.values(), *group.gone]
    reads = [(worker, each) for worker in everybody for each in worker.said() if "read" in each]
    times: dict[tuple[int, int], int] = {}
    for _, each in reads:
        for message in _messages(each["batch"]):
            times[message] = times.get(message, 0) + 1
    for queue, position in recorded.items():
        i = QUEUES.index(queue)
        missing = [number for number in range(position) if (i, number) not in times]
        # What a killed process read without being able to say so is in its in-flight batch.
        assert {(i, number) for number in missing} <= set().union(
            *(worker.in_flight for worker in group.gone)
        ), f"{queue} was not read"
    twice = {message for message, count in times.items() if count > 1}
    in_flight = set().union(*(worker.in_flight for worker in everybody))
    assert twice <= in_flight, f"read twice and not in flight at a kill: {sorted(twice - in_flight)[:5]}"


def _reading_at_once(group: Group) -> list[str]:
    """Queues that two processes were reading at one moment."""
    periods = sorted(
        (int(queue), *each["at"], worker.output.name)
        for worker in [*group.workers.values(), *group.gone]
        for each in worker.said()
        if "read" in each
        for queue in each["batch"]
    )
    return [f"{a} and {b}" for a, b in pairwise(periods) if a[0] == b[0] and a[3] != b[3] and b[1] < a[2]]


@pytest.mark.process
@pytest.mark.parametrize(
    "name", [name if name in _IN_CI else pytest.param(name, marks=pytest.mark.whole) for name in STRATEGIES]
)
def test_two_then_three_then_two_processes(group: Group, name: str) -> None:
    group.strategy = name
    group.start("one")
    group.start("two")
    group.settle()
    group.start("three")
    group.settle()
    killed = group.kill("three")
    taken_at = group.settle()
    assert killed.killed_at is not None
    # Its lock is gone with it: nobody waits for the lease.
    assert taken_at - killed.killed_at < LEASE or not any(e.event == "expire" for e in group.events())
    group.end()
    recorded = LocalOffsets(str(group.path / "offsets.json")).read()
    assert set(recorded) == set(QUEUES)
    _check(group, recorded)
    assert _reading_at_once(group) == []
    assert read_state(group.directory).members == {}


@pytest.mark.process
def test_logical_clients_and_a_restart_with_a_replay(group: Group) -> None:
    group.start("one", ["room1-1@0", "room1-1@1", "room1-1@2"])
    group.start("two")
    group.settle()
    left = group.kill("one").in_flight
    group.settle()
    again = group.start("one", ["room1-1@0", "room1-1@1", "room1-1@2"])
    group.settle()
    replayed = next(each for each in again.said() if "read" in each)
    assert _messages(replayed["batch"]) == left
    marked = {(each.broker, each.queue) for each in group.events() if each.event == "replay"}
    assert marked == {(QUEUES[i].broker_name, QUEUES[i].queue_id) for i, _ in left}
    group.end()
    _check(group, LocalOffsets(str(group.path / "offsets.json")).read())


@pytest.mark.process
def test_a_process_stopped_past_its_lease(group: Group) -> None:
    group.lease, group.pause = 2.0, 0.3
    one, two = group.start("one", rate=50), group.start("two", rate=1)
    group.settle()
    mine = {i for i, client in group.owners().items() if client == CLIENTS["one"]}
    assert mine
    one.signal(signal.SIGSTOP)
    _until(lambda: set(group.owners().values()) == {CLIENTS["two"]})
    two.read_on()
    taken_at = max(each["at"] for each in two.said() if each.get("gained"))
    assert one.killed_at is not None
    # Not before its lease was over, of which at most a quarter was gone; and then at the next trigger of one
    # that looks a dozen times.
    begun = [each["at"][0] for each in two.said() if "read" in each]
    trigger = max(after - before for before, after in pairwise(begun))
    assert 0.75 * group.lease <= taken_at - one.killed_at <= group.lease * (1 + 1 / 12) + trigger + _BUSY
    said = len(one.said())
    one.process.send_signal(signal.SIGCONT)
    _until(lambda: any(each.get("lost") or each.get("gained") for each in one.said()[said:]))
    # Its batch in flight ends, and then it begins nothing on what it lost before it has got it again.
    after = one.said()[said:]
    first = next(i for i, each in enumerate(after) if each.get("lost") or each.get("gained"))
    assert [each for each in after[:first] if "begun" in each] == []
    assert set(after[first]["lost"]) | set(after[first]["gained"]) == mine
    group.settle()
    # Between the end of its epoch and the next one, only the other's positions were recorded: steps of one,
    # not of 50.
    for i in mine:
        queue = QUEUES[i]
        events = [each for each in group.events() if (each.topic, each.broker, each.queue) == queue]
        end = next(n for n, each in enumerate(events) if each.event == "expire")
        of_other = events[end + 1 : end + 3]
        assert [(each.event, each.client) for each in of_other] == [
            ("gain", CLIENTS["two"]),
            ("release", CLIENTS["two"]),
        ]
        read_by_two = {
            n for each in two.said() if "read" in each for q, n in _messages(each["batch"]) if q == i
        }
        assert of_other[1].position in {n + 1 for n in read_by_two}
        assert events[end].position == of_other[0].position
    group.end()
    _check(group, LocalOffsets(str(group.path / "offsets.json")).read())

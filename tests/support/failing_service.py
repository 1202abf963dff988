"""Services that die at their Nth change of a file, and are run again.

For each N the store of a scenario of `tests/support/service_scenarios.py` is copied, and a fork of a process
without threads runs the scenario until it is killed. What readers see then must be a part of what an
undisturbed run leaves. Then the scenario runs again, undisturbed, and must leave the same: each message once,
the same state files, a store without problems.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from store_format import MessageStore
from store_format.commit.append import recover
from store_format.diagnose import diagnose
from store_format.read.stored_messages import read_stored_slice
from tests.support.failing_writer import Failure, install
from tests.support.fork_server import ForkServer
from tests.support.service_scenarios import SCENARIOS, Scenario

_STATE_FILES = (
    "delayOffset.json", "consumerOffset.json", "consumerOrderInfo.json", "subscriptionGroup.json",
    "timercheck",
)  # fmt: skip
_TIMES = ("dataVersion",)  # how often a state file was written

# A message of the store: topic, queue id, properties, body, reconsumeTimes.
_Row = tuple[str, int, bytes, bytes, int]


def messages_seen(root: str, scenario: Scenario) -> Counter[_Row]:
    """The messages that a reader finds in the queues of the scenario's topics, without places and times."""
    found: Counter[_Row] = Counter()
    store = MessageStore.open(root)
    for queue in store.queues(scenario.topics):
        stored, _, damaged = read_stored_slice(queue.store.log, queue.piece())
        assert not damaged, damaged
        columns = stored.messages
        names = [queue.topic] * len(stored), [queue.queue_id] * len(stored)
        parts = (
            columns.properties.to_pylist(),
            columns.body.to_pylist(),
            np.asarray(columns.reconsume_times).tolist(),
        )
        found.update(zip(*names, *parts, strict=True))
    return found


def state_files(root: str) -> dict[str, Any]:  # Any: JSON
    """The state files of `config/` without their data versions; None for a file that does not exist."""
    from store_format.java.fastjson import loads

    found: dict[str, Any] = {}
    for name in _STATE_FILES:
        path = Path(root, "config", name)
        value = loads(path.read_bytes(), str(path)) if path.exists() and name.endswith(".json") else None
        if path.exists() and value is None:
            value = path.read_bytes()[:28].hex()  # timercheck: without the data version
        found[name] = (
            {k: v for k, v in value.items() if k not in _TIMES} if isinstance(value, dict) else value
        )
    return found


def left(root: str, scenario: Scenario) -> tuple[Counter[_Row], object, object, object]:
    """What a run has left: messages, state files, what the scenario names, and the store's problems."""
    problems = [str(each) for each in diagnose(root).of("damage", "warning")]
    return messages_seen(root, scenario), state_files(root), scenario.seen(root), problems


def _run(name: str, root: str, what: str, at: int) -> None:
    """The action of a fork: the scenario, which dies at change `at`."""
    install(Failure(what, at))
    SCENARIOS[name].run(root)


def _killed(forks: ForkServer, name: str, root: str, what: str, at: int) -> bool:
    """Runs the scenario in a fork that dies at change `at`; False if the run ended before."""
    ended = forks.run(_run, name, root, what, at)
    assert not ended.error, f"change {at}: the run failed: {ended.error}"
    assert ended.signal in (0, signal.SIGKILL), ended
    return ended.signal == signal.SIGKILL


def _lost_by_broker(root: str, scenario: Scenario) -> object:
    """What a broker never delivers that starts after the next writer has completed the commit."""
    if scenario.lost is None:
        return None
    copy = shutil.copytree(root, f"{root}-killed")
    recover(root)
    lost = scenario.lost(root)
    shutil.rmtree(root)
    os.rename(copy, root)
    return lost


@contextmanager
def _counting() -> Iterator[Failure]:
    """Counts the changes of a file in this process, and leaves out fsync."""
    counted = Failure("kill", 0)
    originals = install(counted)
    try:
        yield counted
    finally:
        for call, original in originals.items():
            setattr(os, call, original)


def check(
    forks: ForkServer, name: str, directory: Path, what: str, every: int, *, twice: bool = False
) -> dict[str, int]:
    """Kills the scenario at every `every`-th change of its run; with `what` = `torn`, after half of a write.
    With `twice` the next run dies, too. Raises AssertionError if a run leaves anything else.

    Returns the changes of a whole run, and how many runs were killed.
    """
    with _counting():
        return _check(forks, name, directory, what, every, twice)


def _check(
    forks: ForkServer, name: str, directory: Path, what: str, every: int, twice: bool
) -> dict[str, int]:
    scenario, base = SCENARIOS[name], str(directory / "base")
    scenario.make(directory / "base")
    whole = shutil.copytree(base, f"{directory}/whole")
    before = messages_seen(whole, scenario)
    with _counting() as counted:
        scenario.run(whole)
    wanted = left(whole, scenario)
    assert wanted[3] == [], wanted[3]
    assert wanted[:3] != (before, state_files(base), scenario.seen(base)), "the run changes nothing"
    kills = 0
    for at in range(1, counted.count + 1, every):
        root = shutil.copytree(base, f"{directory}/{at}")
        assert _killed(forks, name, root, what, at), f"change {at} of {counted.count}: the run ended before"
        kills += 1
        between = messages_seen(root, scenario)
        extra = between - wanted[0] - before
        assert not extra, f"change {at}: a reader sees {extra}"
        lost = _lost_by_broker(root, scenario)
        assert not lost, f"change {at}: a broker that starts now never delivers {lost}"
        if twice:
            kills += _killed(forks, name, root, what, at // 2 + 1)
        scenario.run(root)
        found = left(root, scenario)
        for part, (mine, right) in zip(
            ("messages", "state files", "more", "problems"), zip(found, wanted, strict=True), strict=True
        ):
            assert mine == right, f"change {at}: {part}: {_difference(mine, right)}"
        shutil.rmtree(root)
    return {"changes": counted.count, "kills": kills}


def _difference(mine: object, right: object) -> str:
    if isinstance(mine, Counter) and isinstance(right, Counter):
        return f"missing {list((right - mine).items())[:5]}, too many {list((mine - right).items())[:5]}"
    return f"found {mine}, expected {right}"

"""Services that die at their Nth change of a file, and are run again.

`python -m tests.support.failing_service SCENARIO BASE COPIES WHAT EVERY [twice]`, with a scenario of
`tests/support/service_scenarios.py`.

For each N the store at BASE is copied into COPIES, and a fork of a process without threads runs the scenario
until it is killed (WHAT: `kill`, or `torn`, which writes half of a write first). What readers see then must
be a part of what an undisturbed run leaves. Then the scenario runs again, undisturbed, and must leave the
same: each message once, the same state files, a store without problems. With `twice` the second run dies too.

Prints one JSON object: the changes of a whole run, and how many runs were killed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections import Counter
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


def check(
    forks: ForkServer, name: str, base: str, copies: str, what: str, every: int, *, twice: bool
) -> dict[str, int]:
    """Kills the scenario at every `every`-th change; raises AssertionError if a run leaves anything else."""
    scenario = SCENARIOS[name]
    install(Failure("kill", 0))  # without fsync
    whole = shutil.copytree(base, f"{copies}/whole")
    before = messages_seen(whole, scenario)
    counted = Failure("kill", 0)
    originals = install(counted)
    scenario.run(whole)
    for call, original in originals.items():
        setattr(os, call, original)
    wanted = left(whole, scenario)
    assert wanted[3] == [], wanted[3]
    assert wanted[:3] != (before, state_files(base), scenario.seen(base)), "the run changes nothing"
    kills = 0
    for at in range(1, counted.count + 1, every):
        root = shutil.copytree(base, f"{copies}/{at}")
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


def main(name: str, base: str, copies: str, what: str, every: str, *more: str) -> None:
    scenario = SCENARIOS[name]
    if not os.path.exists(base):
        scenario.make(Path(base))
    with ForkServer() as forks:
        print(json.dumps(check(forks, name, base, copies, what, int(every), twice="twice" in more)))


if __name__ == "__main__":
    # as the module that pickled actions name, not as __main__
    from tests.support.failing_service import main as run

    run(*sys.argv[1:])

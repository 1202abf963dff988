"""The scripted workload, made once for all tests of the services: a broker's store, and copies that went on.

`broker` went on under a broker, `ours` under our services with the clock driven through the same moments,
`handed` under ours for some seconds and then under a broker.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.interop import workload
from tests.interop.harness import RocketMQ
from tests.interop.our_broker import OurBroker
from tests.interop.programs import Line
from tests.interop.same import Copy
from tests.interop.workload import Left, now_ms
from tests.support.staged import messages_of

OLD = "4.9.7"  # has no timer messages
COPIES = ("broker", "ours", "handed")


@dataclass(frozen=True)
class Runs:
    """The stores of this version in `directory`, what the first broker left, what the groups have seen."""

    version: str
    directory: Path
    left: Left
    seen: dict[str, list[Line]]

    def copy(self, name: str) -> Copy:
        """A copy with what it has above the end of the store that the first broker left."""
        last = messages_of(self.directory / "left")[-1]
        end = last.physical_offset + last.total_size
        return Copy(self.directory / name, end, is_old=self.version == OLD)


def made_once(directory: Path, java: RocketMQ) -> Runs:
    """Makes the runs in `directory`, or waits for the process that makes them and reads its notes."""
    directory.mkdir(exist_ok=True)
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        notes = directory / "notes.json"
        if not notes.exists():
            left, seen = make(directory, java)
            notes.write_text(json.dumps([left.as_json(), seen]))
        left_data, seen = json.loads(notes.read_text())
    return Runs(java.version, directory, Left.of_json(left_data), seen)


def make(directory: Path, java: RocketMQ) -> tuple[Left, dict[str, list[Line]]]:
    store = directory / "left"
    store.mkdir()
    slowness = workload.slowness()
    long, short = workload.settings(slowness)
    with java.broker(store, long) as broker:
        left = workload.leave_work(broker, slowness, is_old=java.version == OLD)
    left.stopped_ms = now_ms()
    for name in COPIES:
        # holes stay holes: the timer wheel is a file of 38 MB
        subprocess.run(["cp", "-a", "--sparse=always", store, directory / name], check=True)
    started, seen = threading.Event(), {}
    conf = java.config_file(directory / "left", short | {"transactionCheckInterval": "2000"})

    def under_broker(name: str) -> None:
        with java.broker(directory / name, short) as broker:
            started.set()
            seen[name] = workload.go_on(broker, left, workload.delivered_in_the_end(left))

    def under_ours() -> None:
        started.wait(workload.START_SECONDS_MAX)
        ours = OurBroker(directory / "ours", conf)
        ours.turns(now_ms(), left.last_due_ms + 2000)
        ours.consume_in_order(now_ms())
        seen["ours"] = ours.seen

    def handed() -> None:
        ours = OurBroker(directory / "handed", conf, retries_max=5, checks_max=2)
        ours.consume_in_order(now_ms(), failures_max=2)
        ours.turns(left.stopped_ms, left.handed_over_ms)
        under_broker("handed")
        seen["between"] = ours.seen
        seen["checked"] = [{"uniqKey": key, "times": times} for key, times in ours.checks]

    with ThreadPoolExecutor(3) as threads:
        for each in [
            threads.submit(under_broker, "broker"),
            threads.submit(under_ours),
            threads.submit(handed),
        ]:
            each.result()
    return left, seen

"""The scripted workload, made once for all tests of the services: a broker's store, and copies that went on.

`broker` went on under a broker, `ours` under our services with the clock driven through the same moments,
`handed` under ours for some seconds and then under a broker.
"""

from __future__ import annotations

import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.interop import workload
from tests.interop.harness import RocketMQ
from tests.interop.our_broker import CHECK_INTERVAL_MS, OurBroker
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


def make(directory: Path, java: RocketMQ) -> tuple[Left, dict[str, list[Line]]]:
    """The store that a broker leaves, and its copies, which go on at the same time."""
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
    copies = _Copies(directory, java, left, short)
    with ThreadPoolExecutor(3) as threads:
        done = [threads.submit(each) for each in (copies.under_a_broker, copies.under_ours, copies.handed)]
        for each in done:
            each.result()
    return left, copies.seen


@dataclass
class _Copies:
    """What happens to each copy; `seen` is what the groups have seen."""

    directory: Path
    java: RocketMQ
    left: Left
    settings: dict[str, str]
    seen: dict[str, list[Line]] = field(default_factory=dict)
    _started: threading.Event = field(default_factory=threading.Event)

    def under_a_broker(self) -> None:
        self._go_on("broker", by_us=False)

    def under_ours(self) -> None:
        self._started.wait(workload.START_SECONDS_MAX)
        ours = OurBroker(self.directory / "ours", self._conf())
        ours.turns(now_ms(), self.left.last_due_ms + 2000)
        ours.consume_in_order(now_ms())
        self.seen["ours"] = ours.seen

    def handed(self) -> None:
        ours = OurBroker(self.directory / "handed", self._conf(), retries_max=5, checks_max=2)
        ours.consume_in_order(now_ms(), failures_max=2)
        ours.turns(self.left.stopped_ms, self.left.handed_over_ms)
        ours.decide(self.left, self.left.handed_over_ms)
        self.seen["between"] = ours.seen
        self.seen["checked"] = [{"uniqKey": key, "times": times} for key, times in ours.checks]
        self._go_on("handed", by_us=True)

    def _go_on(self, name: str, *, by_us: bool) -> None:
        with self.java.broker(self.directory / name, self.settings) as broker:
            self._started.set()
            expected = workload.delivered_in_the_end(self.left, by_us=by_us)
            self.seen[name] = workload.go_on(broker, self.left, expected)

    def _conf(self) -> str:
        """A broker checks transactions when the test says so; ours does by the clock."""
        return self.java.config_file(
            self.directory / "left", self.settings | {"transactionCheckInterval": str(CHECK_INTERVAL_MS)}
        )

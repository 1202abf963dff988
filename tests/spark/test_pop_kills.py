"""A query that pops is killed again and again, at random moments, while another member shares its queue.

What must hold: every attempt at a batch has the same messages; restarted within the invisible time, the two
members together have each message once; restarted later, only what was in flight at the kill comes twice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from rmq_spark.consume.stream_offset import PopOffset
from store_format import MessageStore
from store_format.names import pop_retry_topic
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from tests.support.spark.pop_process import start_query
from tests.support.spark.processes import ROOT, signal_session
from tests.support.staged import append, make_store, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KILLS, KILLS_QUICK = 20, 1
LATE_EVERY, LATE_S = 5, 4  # of so many kills, one restart comes after an invisible time of so many seconds
IN_TIME_S = 600  # longer than the slowest machine needs to start a query again
MESSAGES_PER_KILL, MESSAGES_PER_KILL_QUICK = 1_000, 400
_TIMEOUT_S = 180  # of a query that hangs; a JVM starts on a machine full of tests


class Member:
    """One query: its checkpoint, and what it wrote by batch and attempt."""

    def __init__(self, store: Path, base: Path) -> None:
        self.store, self.base = store, base
        base.mkdir()
        self.places = str(store), str(base / "checkpoint"), str(base / "output")

    def start(self, *options: str) -> None:
        environment = dict(
            os.environ, SPARK_CONF_DIR=str(ROOT / "conf"), PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT)
        )
        with (self.base / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.spark.pop_process", *self.places, *options],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )

    def wait_for_a_moment(self, choose: random.Random) -> None:
        """Returns up to a second after the query has begun one or two batches."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "running\n", self.log()
        wanted, deadline = self.begun() + choose.randrange(1, 3), time.monotonic() + _TIMEOUT_S
        while self.begun() < wanted:
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.01)
        time.sleep(choose.uniform(0, 1))

    def kill(self) -> None:
        if self.process.poll() is not None:
            return
        signal_session(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def log(self) -> str:
        return (self.base / "log").read_text(errors="replace")[-4000:]

    def drain(self, spark: SparkSession, *options: str) -> None:
        """Reads what is ready, in this process."""
        query = start_query(spark, *self.places, *options, available_now=True)
        assert query.awaitTermination(_TIMEOUT_S)

    def _numbers(self, what: str) -> list[int]:
        directory = self.base / "checkpoint" / what
        names = os.listdir(directory) if directory.is_dir() else []
        return sorted(int(name) for name in names if name.isdecimal())

    def committed(self) -> int:
        return len(self._numbers("commits"))

    def begun(self) -> int:
        return len(self._numbers("offsets"))

    def offset(self, number: int) -> PopOffset:
        text = (self.base / "checkpoint" / "offsets" / str(number)).read_text()
        return PopOffset.from_json(json.loads(text.splitlines()[2]))

    def in_flight(self) -> set[bytes]:
        """The bodies of what the query had taken and not acknowledged when it was killed."""
        offsets = self._numbers("offsets")
        owner = self.offset(offsets[-1]).owner
        state = read_in_flight(in_flight_directory(Opened(str(self.store)), "g", "T"))
        assert state is not None
        found: set[bytes] = set()
        for point in state.check_points():
            if point.owner == owner:
                topic = "T" if point.flag == 0 else pop_retry_topic("g", "T")
                queue = MessageStore.open(str(self.store)).queue(topic, point.queue_id)
                rows = queue.read(columns=["body"], start=point.start, stop=point.offsets[-1] + 1)
                found.update(body for batch in rows for body in batch["body"].to_pylist())
        return found

    def batches(self) -> dict[int, list[list[bytes]]]:
        """The bodies of each finished attempt at each batch, sorted."""
        found: dict[int, list[list[bytes]]] = {}
        for attempt in (self.base / "output").glob("batch=*/*"):
            if (attempt / "_SUCCESS").exists():
                bodies = pq.read_table(attempt)["body"].to_pylist()
                number = int(attempt.parent.name.removeprefix("batch="))
                found.setdefault(number, []).append(sorted(bodies))
        return found

    def read(self) -> Counter[bytes]:
        """The bodies of the committed batches, as a table of a lake that replaces a batch has them."""
        batches = self.batches()
        return Counter(body for number in self._numbers("commits") for body in batches.get(number, [[]])[0])


@pytest.mark.timeout(3600)  # 20 kills with --whole
def test_what_is_killed_is_repeated_as_promised(spark: SparkSession, tmp_path: Path, whole: bool) -> None:
    kills, messages = (KILLS, MESSAGES_PER_KILL) if whole else (KILLS_QUICK, MESSAGES_PER_KILL_QUICK)
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose, store = random.Random(seed), make_store(tmp_path / "store")
    one, two = (Member(store, tmp_path / name) for name in ("one", "two"))
    total, repeated = 0, 0
    may_come_twice: set[bytes] = set()
    for kill in range(kills):
        append(store, numbered("T", total, messages, queues=1))
        total += messages
        is_late = kill % LATE_EVERY == LATE_EVERY - 1
        one.start("maxOffsetsPerTrigger=100", f"invisibleDuration={LATE_S if is_late else IN_TIME_S}s")
        try:
            one.wait_for_a_moment(choose)
        finally:
            one.kill()
        repeated += one.begun() > one.committed()
        if is_late:
            may_come_twice |= one.in_flight()
            time.sleep(LATE_S + 1)
        if is_late or choose.random() < 0.5:  # another member takes what it can, while the first is down
            two.drain(spark, "maxOffsetsPerTrigger=300")
    one.drain(spark, "maxOffsetsPerTrigger=5000")
    two.drain(spark, "maxOffsetsPerTrigger=5000")
    for member in (one, two):
        for number, attempts in member.batches().items():
            assert all(attempt == attempts[0] for attempt in attempts), number
    counts = one.read() + two.read()
    assert counts.keys() == {message.body for message in numbered("T", 0, total, queues=1)}
    twice = {body for body, count in counts.items() if count > 1}
    assert twice <= may_come_twice
    assert max(counts.values()) <= 2
    written = sum(len(attempts) > 1 for attempts in one.batches().values())
    print(
        f"{kills} kills of {one.begun()} batches: {repeated} were repeated, {written} of them were already "
        f"written; {total} messages, {one.read().total()} and {two.read().total()} read; {len(twice)} came "
        f"twice of {len(may_come_twice)} that were in flight for too long"
    )

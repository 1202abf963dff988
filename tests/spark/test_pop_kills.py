"""A query that pops is killed again and again, at random moments, while another member shares its queue.

What must hold: every attempt at a batch has the same messages; restarted within the invisible time, the two
members together have each message once; restarted later, only what was in flight at the kill comes twice.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rmq_spark.consume.stream_offset import PopOffset
from store_format import MessageStore
from store_format.names import pop_retry_topic
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from tests.support.fixtures import SparkSession
from tests.support.spark.killed_query import KilledQuery
from tests.support.staged import append, make_store, numbered

pytestmark = pytest.mark.slow

KILLS, KILLS_QUICK = 20, 1
LATE_EVERY, LATE_S = 5, 4  # of so many kills, one restart comes after an invisible time of so many seconds
IN_TIME_S = 600  # longer than the slowest machine needs to start a query again
MESSAGES_PER_KILL, MESSAGES_PER_KILL_QUICK = 1_000, 400
_TIMEOUT_S = 180  # of a query that hangs; a JVM starts on a machine full of tests


class Member(KilledQuery):
    """One query, and what it wrote by batch and attempt."""

    def __init__(self, store: Path, base: Path) -> None:
        super().__init__("pop", store, base)

    def wait_for_a_moment(self, choose: random.Random) -> None:
        """Returns up to a second after the query has begun one or two batches."""
        self.wait_until_running()
        self.wait_for_batches(choose.randrange(1, 3), "offsets", _TIMEOUT_S)
        time.sleep(choose.uniform(0, 1))

    def drain(self, spark: SparkSession, *options: str) -> None:
        """Reads what is ready, in this process."""
        query = self.start_here(spark, *options, trigger={"availableNow": True})
        assert query.awaitTermination(_TIMEOUT_S)

    def in_flight(self) -> set[bytes]:
        """The bodies of what the query had taken and not acknowledged when it was killed."""
        owner = PopOffset.from_json(self.offset(self.numbers("offsets")[-1])).owner
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
        return Counter(body for number in self.numbers("commits") for body in batches.get(number, [[]])[0])


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

"""Real queries in processes of their own share a group of 16 queues; one is killed, the other takes over, it
comes back.

Other orders, and a process that stands still, are in tests/rmq_spark/consume/group/test_processes.py, which
CI runs; the proofs run this too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.change import OwnershipEvent
from rmq_spark.consume.group.directory import read_state
from rmq_spark.consume.offset_store import StoreOffsets
from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.stream.plan import ranges
from store_format.commit.options import CommitOptions
from tests.support.ownership import double_ownership, read_events
from tests.support.spark.killed_query import KilledQuery
from tests.support.staged import append, make_store, numbered

pytestmark = [pytest.mark.slow, pytest.mark.whole]

QUEUES, RATE, LEASE_S = 16, 64, 5
PORTION = 4 * RATE // QUEUES  # messages of each queue that four batches read
BROKER = "broker-a"
_TIMEOUT_S = 180  # two JVMs start on a machine full of tests; a query that hangs fails the test
_TRIGGER_S = 20.0  # a batch of this test on a machine full of tests

Message = tuple[int, int]  # queue, offset


class Query(KilledQuery):
    """A query of the group."""

    def __init__(self, store: Path, base: Path, name: str) -> None:
        super().__init__(
            "group",
            store,
            base / name,
            f"clientId={name}",
            f"leaseTime={LEASE_S}s",
            "persistConsumerOffsetInterval=0s",
            f"maxOffsetsPerTrigger={RATE}",
            "allocateMessageQueueStrategy=CONSISTENT_HASH",
        )

    def batch(self, number: int) -> set[Message]:
        """What Spark's offset log says of a batch."""
        before = self.offset(number - 1) if number else {}
        found = ranges(StreamOffset.from_json(before), StreamOffset.from_json(self.offset(number)))
        return {
            (queue, offset) for (_, _, queue), (low, high) in found.items() for offset in range(low, high)
        }

    def last_batch(self) -> set[Message]:
        return self.batch(self.numbers("offsets")[-1])

    def read(self) -> Counter[Message]:
        """What its committed batches hold."""
        rows: Counter[Message] = Counter()
        for directory in self.outputs():
            table = pq.ParquetDataset(directory).read()
            rows.update(zip(table["queueId"].to_pylist(), table["queueOffset"].to_pylist(), strict=True))
        return rows


def _until(condition: Callable[[], object], *queries: Query, seconds: float = _TIMEOUT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert all(query.is_alive() for query in queries), [query.log() for query in queries]
        assert time.monotonic() < deadline, [query.log() for query in queries]
        time.sleep(0.05)


class Shared:
    """The store, the directory where the group meets, and the queries."""

    def __init__(self, path: Path) -> None:
        self.store = make_store(path / "store")
        self.directory = f"{self.store}/.rmqlog/groups/g"
        self.total = 0
        self.one, self.two = self.queries = [Query(self.store, path, name) for name in ("one", "two")]

    def append(self, count: int) -> None:
        """So many messages to each queue."""
        options = CommitOptions(clock=lambda: 1_700_000_100_000, lock_timeout=30)  # queries record offsets
        messages = numbered("T", self.total * QUEUES, count * QUEUES, queues=QUEUES)
        append(self.store, messages, options=options)
        self.total += count

    def busy(self, condition: Callable[[], object]) -> Callable[[], object]:
        """The condition, which also sees to it that no query runs out of messages before it holds."""

        def check() -> object:
            if self.left() < 2 * PORTION * QUEUES:
                self.append(PORTION)
            return condition()

        return check

    def left(self) -> int:
        """How many messages the group has not read."""
        found = StoreOffsets("g", {BROKER: str(self.store)}).read()
        return sum(self.total - found.get(MessageQueue("T", BROKER, queue), 0) for queue in range(QUEUES))

    def owners(self) -> Counter[str]:
        state = read_state(self.directory)
        return Counter(
            entry.client
            for queue, entry in state.queues.items()
            if entry.client is not None and queue.topic == "T"
        )

    def events(self) -> list[OwnershipEvent]:
        return read_events(self.directory)

    def is_shared(self) -> bool:
        owners = self.owners()
        return len(owners) == 2 and sum(owners.values()) == QUEUES

    def everything(self) -> set[Message]:
        return {(queue, offset) for queue in range(QUEUES) for offset in range(self.total)}

    def is_read(self) -> bool:
        found = StoreOffsets("g", {BROKER: str(self.store)}).read()
        return all(found.get(MessageQueue("T", BROKER, queue)) == self.total for queue in range(QUEUES))


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    shared = Shared(tmp_path)
    yield shared
    for query in shared.queries:
        query.kill()


@pytest.mark.timeout(900)  # more than three waits of _TIMEOUT_S
def test_a_killed_query_is_succeeded_and_comes_back(shared: Shared) -> None:
    one, two = shared.one, shared.two
    shared.append(PORTION)
    one.start()
    _until(shared.busy(lambda: one.committed() >= 2), one)
    assert shared.owners() == {"one": QUEUES}
    two.start()
    _until(shared.busy(shared.is_shared), one, two)
    _until(shared.busy(lambda: two.committed() >= 2), one, two)
    # Nothing was read twice until now: queues went over at a boundary, with what had been read of them.
    begun = one.begun()
    _until(shared.busy(lambda: one.begun() > begun), one, two)
    killed_at = time.time()
    one.kill()
    in_flight = one.last_batch()
    was_committed = one.begun() == one.committed()
    _until(lambda: shared.owners() == {"two": QUEUES}, two)
    taken_at = max(event.at for event in shared.events() if event.event == "gain") / 1000
    assert taken_at - killed_at < LEASE_S + _TRIGGER_S
    _until(shared.is_read, two)
    rows = one.read() + two.read()
    assert rows.keys() == shared.everything()
    twice = {message for message, count in rows.items() if count > 1}
    assert twice <= (in_flight if was_committed else set())

    shared.append(20)
    one.start()  # Spark repeats the batch that was in flight, whose queues are the other's by now
    _until(shared.is_shared, one, two)
    _until(shared.is_read, one, two)
    _until(lambda: one.begun() == one.committed() and two.begun() == two.committed(), one, two)
    rows = one.read() + two.read()
    assert rows.keys() == shared.everything()
    assert {message for message, count in rows.items() if count > 1} <= in_flight
    events = shared.events()
    assert double_ownership(events) == []
    replayed = {event.queue for event in events if event.event == "replay"}
    assert replayed == (set() if was_committed else {queue for queue, _ in in_flight})

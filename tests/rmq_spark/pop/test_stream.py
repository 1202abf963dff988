"""The offsets of a stream that pops, without Spark: what a batch takes, repeats and acknowledges."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consume.pop_offset import PopOffset
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Split
from rmq_spark.pop.stream import PopPositions
from rmq_spark.stream.stores import StreamStores
from store_format.pop.log import in_flight_directory, read_in_flight
from store_format.pop.state import PopState
from tests.support.staged import append, make_store, numbered

Place = tuple[int, int]
INVISIBLE_MS = 60_000


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_200_000

    def __call__(self) -> int:
        return self.now


class Query:
    """What Spark does with one query: `offsets` and `commits` are its logs, `rows` what its sink has.

    `restart` is a new process with the same logs.
    """

    def __init__(self, root: Path, clock: Clock, **options: str) -> None:
        self.given = {
            "path": str(root),
            "group": "g",
            "subscribe": "T",
            "consumeMode": "pop",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "columns": "queueId,queueOffset,body",
            **options,
        }
        self.clock = clock
        self.offsets: list[dict[str, Any]] = []
        self.commits = 0
        self.rows: dict[int, list[Place]] = {}
        self.bodies: list[bytes] = []
        self.restart()

    def restart(self, **options: str) -> None:
        self.stop()
        parsed = parse_read_options(self.given | options, where=STREAM)
        self.scan = Scan(fields_from_options(parsed), parsed)
        assert parsed.pop is not None
        self.positions = PopPositions(StreamStores(parsed), self.scan, parsed.pop, clock_ms=self.clock)
        if self.commits < len(self.offsets):
            self.run()

    def stop(self) -> None:
        """As a kill: nothing is written, and nothing is renewed from now on."""
        positions = getattr(self, "positions", None)
        if positions is not None and positions._opened is not None:
            positions._opened[1].stop()

    def start(self) -> dict[str, Any]:
        return self.offsets[-1] if self.offsets else self.positions.initial()

    def take(self) -> bool:
        """Spark asks for the end of the next batch, and stores it."""
        start = self.start()
        end = json.loads(json.dumps(self.positions.latest(start)))
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def run(self) -> None:
        """Runs the last stored batch; its commit is noted."""
        before = self.offsets[-2] if len(self.offsets) > 1 else self.positions.initial()
        planned = self.positions.plan(before, self.offsets[-1])
        batches = [batch for split in planned.splits for batch in _read(self.scan, split)]
        self.bodies += [body for batch in batches for body in batch["body"].to_pylist()]
        self.rows[len(self.offsets) - 1] = [
            place
            for batch in batches
            for place in zip(batch["queueId"].to_pylist(), batch["queueOffset"].to_pylist(), strict=True)
        ]
        self.commits = len(self.offsets)

    def step(self) -> bool:
        if not self.take():
            return False
        self.run()
        return True

    def read(self) -> Counter[Place]:
        return Counter(place for rows in self.rows.values() for place in rows)


def _read(scan: Scan, split: Split) -> Iterator[Any]:
    return scan.read(split)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 40, queues=2))
    return root


@pytest.fixture
def queries() -> Iterator[list[Query]]:
    made: list[Query] = []
    yield made
    for query in made:
        query.stop()


def state(store: Path) -> PopState:
    found = read_in_flight(in_flight_directory(str(store), "g", "T"))
    assert found is not None
    return found


def test_two_queries_share_a_queue(store: Path, clock: Clock, queries: list[Query]) -> None:
    one, two = (Query(store, clock, maxOffsetsPerTrigger="8") for _ in range(2))
    queries += [one, two]
    assert one.take()
    assert two.take()
    # both have a part of the same queues at the same time
    assert {each.queue.queue_id for each in PopOffset.from_json(one.offsets[0]).ranges} == {0, 1}
    assert {each.queue.queue_id for each in PopOffset.from_json(two.offsets[0]).ranges} == {0, 1}
    one.run()
    two.run()
    while any([one.step(), two.step()]):
        pass
    everything = {(queue, offset) for queue in range(2) for offset in range(20)}
    assert one.read() + two.read() == Counter(everything)
    assert (len(one.read()), len(two.read())) == (24, 16)
    assert state(store).in_flight == 0  # the last question acknowledged the last batch
    append(store, numbered("T", 40, 4, queues=2))
    assert two.step()
    assert two.read().keys() >= {(0, 20), (0, 21), (1, 20), (1, 21)}

"""A store that another process appends to reads as a prefix of what is being written: never torn, never an
error, never less again.
"""

from __future__ import annotations

import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState
from tests.support.fixtures import Golden, SparkSession
from tests.support.live_writer import QUEUES, message_body

TRIES, TRIES_WHOLE = 250, 1000


@contextmanager
def writer(root: Path, messages: int) -> Iterator[Callable[[], bool]]:
    """The writer at work; what is yielded says whether it is done. It ends with the block, or by itself after
    a while.
    """
    command = [sys.executable, "-m", "tests.support.live_writer", str(root), str(messages)]
    directory = Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        lines: list[bytes] = []

        def done() -> bool:
            assert process.stdout is not None
            if not lines and process.poll() is None and _readable(process.stdout.fileno()):
                lines.append(process.stdout.readline())
            return lines == [b"done\n"]

        yield done
        process.stdin.close()
        assert process.wait(30) == 0


def _readable(descriptor: int) -> bool:
    poll = select.poll()  # unlike select, for any number of descriptors
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def read_prefixes(root: Path) -> dict[tuple[str, int], int]:
    """The length of each queue, after a look at every row."""
    store = MessageStore.open(str(root))
    lengths = {}
    for queue in store.queues():
        wanted, length = _rows_of(queue.topic, queue.queue_id), 0
        for batch in queue.read(columns=["queueOffset", "body", "tags"]):
            assert batch.equals(wanted.slice(length, batch.num_rows))
            length += batch.num_rows
        assert length == queue.max_offset
        lengths[queue.topic, queue.queue_id] = length
    return lengths


@cache
def _rows_of(topic: str, queue_id: int) -> pa.RecordBatch:
    """What the first messages of a queue must read as. Arrow compares a thousand of them in no time."""
    offsets = range(1000)
    bodies = [message_body(topic, queue_id, offset) for offset in offsets]
    columns = [
        pa.array(offsets, pa.int64()),
        pa.array(bodies),
        pa.array([f"t{each % 5}" for each in offsets]),
    ]
    return pa.RecordBatch.from_arrays(columns, ["queueOffset", "body", "tags"])


def scanned(root: Path) -> int:
    """How many messages a walk of the log finds, after a look at each; then the same from the queues that the
    log shows.
    """
    store = MessageStore.open(str(root))
    next_offset = dict.fromkeys(QUEUES, 0)
    for batch in store.scan(["topic", "queueId", "queueOffset", "body", "tags"]):
        for row in batch.to_pylist():
            queue = row["topic"], row["queueId"]
            assert row["queueOffset"] == next_offset[queue]
            assert row["body"] == message_body(*queue, row["queueOffset"])
            assert row["tags"] == f"t{row['queueOffset'] % 5}"
            next_offset[queue] += 1
    surveyed = store.survey().queues
    assert all(queue.max_offset >= next_offset[key] for key, queue in surveyed.items())
    return sum(next_offset.values())


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_many_reads_see_prefixes(tmp_path: Path, whole: bool) -> None:
    tries = TRIES_WHOLE if whole else TRIES
    root, total = tmp_path / "store", 4 * tries
    lengths = dict.fromkeys(QUEUES, 0)
    states, walked = [], 0
    with writer(root, total) as done:
        for attempt in range(tries):
            grown = read_prefixes(root)
            assert all(grown.get(queue, 0) >= length for queue, length in lengths.items())
            states.append(sum(grown.values()))
            lengths |= grown
            if attempt % 10 == 0:
                count = scanned(root)
                assert count >= max(states[-1], walked)
                walked = count
        assert MessageStore.open(str(root)).state is StoreState.LIVE
        while not done():
            time.sleep(0.05)
        assert read_prefixes(root) == dict.fromkeys(QUEUES, total // len(QUEUES))
        assert scanned(root) == total
    assert len(set(states)) > 50  # it was growing all the while


@pytest.mark.process
def test_some_reads_see_prefixes(tmp_path: Path) -> None:
    root = tmp_path / "store"
    seen = set()
    with writer(root, 400) as done:
        while not done():
            seen.add(sum(read_prefixes(root).values()))
            scanned(root)
        assert sum(read_prefixes(root).values()) == scanned(root) == 400
    assert len(seen) > 3
    # left as by a crash: abort is there, and nobody holds the lock
    assert read_prefixes(root) == dict.fromkeys(QUEUES, 100)
    assert MessageStore.open(str(root)).state is StoreState.CRASHED


@pytest.mark.slow
def test_through_spark(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    root, total = tmp_path / "store", 1000
    # The first read of a session takes as long as the writer.
    assert spark.read.format("rmqlog").load(str(golden("basic-5.5.0"))).count()
    with writer(root, total) as done:
        counts = []
        while not done():
            frame = (
                spark.read.format("rmqlog")
                .option("columns", "topic,queueId,queueOffset,body")
                .load(str(root))
            )
            rows = frame.toArrow().to_pylist()
            counts.append(len(rows))
            for topic, queue_id in QUEUES:
                mine = sorted(
                    (row["queueOffset"], row["body"])
                    for row in rows
                    if (row["topic"], row["queueId"]) == (topic, queue_id)
                )
                assert mine == [
                    (offset, message_body(topic, queue_id, offset)) for offset in range(len(mine))
                ]
        assert counts == sorted(counts)
        assert spark.read.format("rmqlog").load(str(root)).count() == total
    assert len(counts) > 1

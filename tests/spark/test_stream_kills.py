"""A stream of a growing store whose Spark process is killed again and again: every message once per
checkpoint, checked by what it says.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from pathlib import Path
from zlib import crc32

import pyarrow.parquet as pq
import pytest

from tests.support import oracle
from tests.support.fixtures import SparkSession
from tests.support.live_writer import CQ_FILE_SIZE, LOG_FILE_SIZE, QUEUES, message_body
from tests.support.spark.frames import read
from tests.support.spark.killed_query import KilledQuery
from tests.test_live_store import writer

pytestmark = pytest.mark.slow

KILLS, KILLS_QUICK = 30, 1
MESSAGES_PER_KILL = 2_000
_START_TIMEOUT_S, _END_TIMEOUT_S = 120, 300  # of a query that hangs, on a machine full of tests


def told(query: KilledQuery) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """By queue the (offset, body) of every row of every committed batch, sorted; a row that came twice is
    there twice.
    """
    found = defaultdict(list)
    for directory in query.outputs():
        for row in pq.ParquetDataset(directory).read().to_pylist():
            found[row["topic"], row["queueId"]].append((row["queueOffset"], row["body"]))
    return {queue: sorted(rows) for queue, rows in found.items()}


def positions(query: KilledQuery) -> dict[tuple[str, int], int]:
    """Where the last committed batch ended, from Spark's offset log."""
    committed = query.numbers("commits")
    topics = query.offset(committed[-1]) if committed else {}
    return {
        (topic, int(queue)): offset
        for topic in topics
        for queue, offset in topics[topic].get("store", {}).items()
    }


def delete_old_files(root: Path, read_to: dict[tuple[str, int], int]) -> int:
    """Deletes the commitlog files whose messages were all read, but the last one; how many. What readers need
    is kept.
    """
    needed = []
    for (topic, queue), offset in read_to.items():
        start = 20 * (offset - 1)
        file = root / "consumequeue" / topic / str(queue) / oracle.file_name(start - start % CQ_FILE_SIZE)
        needed.append(int.from_bytes(file.read_bytes()[start % CQ_FILE_SIZE :][:8], "big") if offset else 0)
    files = sorted((root / "commitlog").iterdir())
    old = [path for path in files[:-1] if needed and int(path.name) + LOG_FILE_SIZE <= min(needed)]
    for path in old:
        path.unlink()
    return len(old)


def checksum(rows: list[tuple[int, bytes]]) -> int:
    total = 0
    for offset, body in rows:
        total = crc32(b"%d:" % offset + body, total)
    return total


@pytest.mark.timeout(3600)  # 30 kills with --whole
def test_every_message_exactly_once_over_many_kills(spark: SparkSession, tmp_path: Path, whole: bool) -> None:
    kills = KILLS if whole else KILLS_QUICK
    messages = kills * MESSAGES_PER_KILL
    seed = random.randrange(1 << 32)
    print("seed", seed)
    choose, root = random.Random(seed), tmp_path / "store"
    stream = KilledQuery("positions", root, tmp_path / "stream", "startingOffsets=earliest")
    progress, deleted = [], 0
    with writer(root, messages) as done:
        for kill in range(kills):
            # A little more than comes in the time of a batch: some batches wait for messages, others have too
            # many.
            stream.start("maxOffsetsPerTrigger=300")
            try:
                stream.wait_until_running()
                if kill % 3 == 0:  # however slow the machine: some of them get somewhere
                    stream.wait_for_batches(2, "commits", _START_TIMEOUT_S)
                else:
                    stream.wait_for_batches(choose.randrange(2), "offsets", _START_TIMEOUT_S)
                time.sleep(choose.uniform(0, 1))
            finally:
                stream.kill()
            progress.append(stream.committed())
            deleted += delete_old_files(root, positions(stream))
        assert deleted > 0
        assert progress[-1] >= 2 * ((kills + 2) // 3)
        deadline = time.monotonic() + _END_TIMEOUT_S
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.5)
        query = stream.start_here(spark)
        try:
            while sum(map(len, told(stream).values())) < messages:
                assert time.monotonic() < deadline + _END_TIMEOUT_S
                assert query.isActive
                time.sleep(0.5)
        finally:
            query.stop()
    rows = told(stream)
    assert {queue: [offset for offset, _ in each] for queue, each in rows.items()} == {
        queue: list(range(messages // len(QUEUES))) for queue in QUEUES
    }
    assert all(body == message_body(*queue, offset) for queue, each in rows.items() for offset, body in each)
    in_batch = defaultdict(list)
    for row in read(spark, root, columns="topic,queueId,queueOffset,body").collect():
        in_batch[row.topic, row.queueId].append((row.queueOffset, bytes(row.body)))
    assert in_batch.keys() == rows.keys()
    for queue, each in in_batch.items():
        # a batch sees what retention has left
        assert checksum(rows[queue][min(each)[0] :]) == checksum(sorted(each))

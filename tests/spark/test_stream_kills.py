"""A stream of a growing store whose Spark process is killed again and again: every message once per
checkpoint, checked by what it says.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import pyarrow.parquet as pq
import pytest

from tests.support import oracle
from tests.support.live_writer import CQ_FILE_SIZE, LOG_FILE_SIZE, QUEUES, message_body
from tests.support.spark.frames import read
from tests.support.spark.processes import ROOT
from tests.support.spark.stream_process import start_query
from tests.test_live_store import writer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

KILLS, KILLS_QUICK = 30, 1
MESSAGES_PER_KILL = 2_000
_START_TIMEOUT_S, _END_TIMEOUT_S = 120, 300  # of a query that hangs, on a machine full of tests


class Process:
    """The stream in a process group of its own: the Python that drives it, the JVM and the workers die
    together.
    """

    def __init__(self, store: Path, base: Path, *options: str) -> None:
        environment = dict(
            os.environ, SPARK_CONF_DIR=str(ROOT / "conf"), PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(ROOT)
        )
        places = str(store), str(base / "checkpoint"), str(base / "output")
        self.log = (base / "log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.spark.stream_process", *places, *options],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=self.log, start_new_session=True,
            text=True,
        )  # fmt: skip

    def wait_until_running(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "running\n", Path(self.log.name).read_text()[-4000:]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()


def batches(base: Path) -> list[Path]:
    """The directories of batches that Spark has committed, by number."""
    commits = base / "checkpoint" / "commits"
    numbers = (
        sorted(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        if commits.is_dir()
        else []
    )
    return [base / "output" / f"batch={number}" for number in numbers]


def told(base: Path) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """By queue the (offset, body) of every row of every committed batch, sorted; a row that came twice is
    there twice.
    """
    found = defaultdict(list)
    for directory in batches(base):
        for row in pq.ParquetDataset(directory).read().to_pylist():
            found[row["topic"], row["queueId"]].append((row["queueOffset"], row["body"]))
    return {queue: sorted(rows) for queue, rows in found.items()}


def positions(base: Path) -> dict[tuple[str, int], int]:
    """Where the last committed batch ended, from Spark's offset log."""
    number = batches(base)[-1].name.removeprefix("batch=") if batches(base) else None
    if number is None:
        return {}
    topics = json.loads((base / "checkpoint" / "offsets" / number).read_text().splitlines()[2])
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


def _wait_for_batches(base: Path, count: int, state: str) -> None:
    """Until so many more are begun ("offsets") or ended ("commits"): what is killed then is any part of one,
    at every pace.
    """
    directory = base / "checkpoint" / state

    def reached() -> int:
        return sum(path.name.isdecimal() for path in directory.iterdir()) if directory.is_dir() else 0

    wanted, deadline = reached() + count, time.monotonic() + _START_TIMEOUT_S
    while reached() < wanted:
        assert time.monotonic() < deadline
        time.sleep(0.02)


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
    choose, root, base = random.Random(seed), tmp_path / "store", tmp_path / "stream"
    base.mkdir()
    # 300 a batch is a little more than comes in the time of one: some batches wait for messages, others have
    # too many.
    options = ("startingOffsets=earliest", "maxOffsetsPerTrigger=300")
    progress, deleted = [], 0
    with writer(root, messages) as done:
        for kill in range(kills):
            stream = Process(root, base, *options)
            try:
                stream.wait_until_running()
                if kill % 3 == 0:  # however slow the machine: some of them get somewhere
                    _wait_for_batches(base, 2, "commits")
                else:
                    _wait_for_batches(base, choose.randrange(2), "offsets")
                time.sleep(choose.uniform(0, 1))
            finally:
                stream.kill()
            progress.append(len(batches(base)))
            deleted += delete_old_files(root, positions(base))
        assert deleted > 0
        assert progress[-1] >= 2 * ((kills + 2) // 3)
        deadline = time.monotonic() + _END_TIMEOUT_S
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.5)
        query = start_query(spark, str(root), str(base / "checkpoint"), str(base / "output"), options[0])
        try:
            while sum(map(len, told(base).values())) < messages:
                assert time.monotonic() < deadline + _END_TIMEOUT_S
                assert query.isActive
                time.sleep(0.5)
        finally:
            query.stop()
    rows = told(base)
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

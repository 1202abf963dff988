"""`tail -f` beside a process that writes: every message once, in the order of each queue, and none of it
twice at the seam.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from rmq_spark.cli.filters import Filters
from rmq_spark.cli.follow import Follower
from store_format import MessageStore
from store_format.read.tolerance import Tolerance
from tests.support.cli_runs import command, environment
from tests.support.live_writer import QUEUES
from tests.test_live_store import writer

MESSAGES = 400


def test_everything_that_is_written_comes_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with writer(root, MESSAGES) as done:
        while not (root / "commitlog").is_dir() or not any((root / "consumequeue").rglob("0*")):
            time.sleep(0.01)
        follower = Follower(
            [MessageStore.open(str(root))], Filters(), ("topic", "queueId", "queueOffset"), Tolerance()
        )
        batches = follower.last(5)
        looks_after_the_end = 0

        def pause() -> None:
            nonlocal looks_after_the_end
            looks_after_the_end += done()
            if looks_after_the_end > 2:
                raise EOFError
            time.sleep(0.02)

        with suppress(EOFError):
            batches.extend(follower.news(pause))
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    assert len(set(rows)) == len(rows)
    for topic, queue in QUEUES:
        offsets = [row[2] for row in rows if row[:2] == (topic, queue)]
        assert offsets == list(range(offsets[0], MESSAGES // len(QUEUES)))


@pytest.mark.process
def test_a_real_tail_follows_until_ctrl_c(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with writer(root, 2000) as _:
        arguments = (
            "tail",
            "-f",
            root,
            "--interval",
            "0.05",
            "--topic",
            "Live",
            "-o",
            "jsonl",
            "--columns",
            "queueId,queueOffset",
        )
        with subprocess.Popen(
            command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            seen = [json.loads(process.stdout.readline()) for _ in range(60)]
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
            assert process.wait(120) == 130
    assert said == b"rmqlog: interrupted\n"
    assert len({tuple(row.values()) for row in seen}) == 60


@pytest.mark.process
def test_a_table_shows_rows_as_they_come(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with (
        writer(root, 1000) as _,
        subprocess.Popen(
            command("tail", "-f", root, "--interval", "0.05", "-n", "3"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
        ) as process,
    ):
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(30)]
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
    assert lines[0].startswith(b"storeTimestamp")
    assert all(b"Live" in line or b"Other" in line for line in lines[1:])

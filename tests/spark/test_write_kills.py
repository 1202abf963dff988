"""A streaming query that is killed, driver, JVM and workers at once, and started again from its checkpoint:
each message is there once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import CommitState, Journal
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.abandoned_staging import collect
from store_format.opened.store import Opened
from tests.support.fixtures import SparkSession
from tests.support.oracle import build_index_files
from tests.support.spark.doomed_query import KILL, REPORT, write
from tests.support.spark.killed_query import batch_numbers
from tests.support.spark.processes import end_session, start_session
from tests.support.staged import messages_of
from tests.support.watching_reader import look, watching

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # a JVM for each death

_ROWS = 40  # of a batch: new files of all kinds every other one
_TIMEOUT_S = 230  # of a run that hangs; less than what makes pytest print where it waits
_SCRIPT = (
    "import sys; from pathlib import Path; from tests.support.spark.doomed_query import main; "
    "main(Path(sys.argv[1]))"
)


class _Query:
    """A query of `doomed_query`, with all it needs in one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.store, self.files = directory, directory / "store", 0
        (directory / "source").mkdir()

    def more(self, files: int) -> None:
        """Batches for the source to find, in this order."""
        for number in range(self.files, self.files + files):
            path = self.directory / "source" / f"{number}.txt"
            path.write_text("".join(f"{number}:{row}\n" for row in range(_ROWS)))
            os.utime(path, (1_700_000_000 + number,) * 2)
        self.files += files

    def start(self, kill: str = "") -> subprocess.Popen[str]:
        command = ["-c", _SCRIPT, str(self.directory)]
        return start_session(command, self.directory / "log", **{KILL: kill, REPORT: str(self._report)})

    def run(self, kill: str) -> None:
        """Until it is killed."""
        with self.start(kill) as process:
            try:
                code = process.wait(_TIMEOUT_S)
            finally:
                end_session(process.pid)
        assert code == -signal.SIGKILL, (self.directory / "log").read_text()

    @property
    def _report(self) -> Path:
        return self.directory / "report"

    def reports(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._report.read_text().splitlines()]

    def batches(self, name: str) -> set[int]:
        """Those in `offsets` or `commits` of Spark's checkpoint."""
        return set(batch_numbers(self.directory / "checkpoint" / name))

    def forget(self, batch: int) -> None:
        """The checkpoint is as if Spark was killed before it noted that the batch was done."""
        commit = self.directory / "checkpoint" / "commits" / str(batch)
        commit.unlink()
        commit.with_name(f".{batch}.crc").unlink(missing_ok=True)

    def check(self) -> None:
        """Everything once, nothing left over, and a store such as a broker that wrote this log would have
        made.
        """
        assert look(self.store) == dict.fromkeys(
            (f"{number}:{row}" for number in range(self.files) for row in range(_ROWS)), 1
        )
        assert list(MessageStore.open(str(self.store)).diagnose()) == []
        made = build_index_files(messages_of(self.store), 50, 200)
        assert [path.read_bytes() for path in sorted((self.store / "index").iterdir())] == made
        own = {str(path.relative_to(self.store / ".rmqlog")) for path in (self.store / ".rmqlog").rglob("*")}
        assert own == {"store.json", "broker.conf", "ledger.json", "doorbell", "staging"}
        assert not (self.store / "abort").exists()


def _killed_sometime(query: _Query, seconds: float) -> None:
    """From outside, so long after the first commit of this run."""
    before = Ledger.read(Opened(str(query.store)))
    with query.start() as process:
        try:
            deadline = time.monotonic() + _TIMEOUT_S
            while Ledger.read(Opened(str(query.store))) == before and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(seconds)
            assert process.poll() is None, (query.directory / "log").read_text()
        finally:
            end_session(process.pid)
            assert process.wait(60) == -signal.SIGKILL


def test_a_query_that_is_killed_again_and_again_writes_all_once(
    spark: SparkSession, tmp_path: Path, whole: bool
) -> None:
    """In the midst of a commit, and with --whole also behind one, in the next run that completes it, and
    anywhere. Runs that end in order are in the session of this process.

    store_format/commit/test_append_crash.py kills commits at all their changes, without Spark.
    """
    query = _Query(tmp_path)
    root = str(query.store)
    with watching(query.store, _ROWS) as seen:
        query.more(1)
        if whole:
            query.run("after 0")  # the log has the batch, Spark's own commit log does not
        else:
            write(spark, tmp_path)
            query.forget(0)
        assert query.batches("offsets") - query.batches("commits") == {0}
        assert [entry.number for entry in Ledger.read(Opened(root)).keys.values()] == [0]
        assert Journal.read(Opened(root)) is None
        query.more(2)
        kills = ("new torn pwrite /consumequeue/", "again torn pwrite /index/")
        for kill in kills if whole else kills[:1]:
            query.run(kill)
            assert query.reports()[-1]["killed"] == "pwrite"
            assert query.batches("offsets") - query.batches("commits") == {1}
            assert Journal.read(Opened(root)) is not None
            assert CommitState.read(Opened(root)).base is not None  # readers are kept from what is behind it
            time.sleep(1)  # the reader looks at it
        if whole:
            query.more(8)
            _killed_sometime(query, random.uniform(0, 1))
        query.more(2)
        write(spark, tmp_path)
    # What dead tasks staged is kept for `stagingRetention`, as nobody else can tell them from tasks at work.
    assert len(collect(root, older_than=time.time())) <= 4
    query.check()
    assert query.batches("offsets") == query.batches("commits")
    assert seen["batches"] == query.files
    assert seen["looks"] > 100
    assert seen["hidden"] > 10

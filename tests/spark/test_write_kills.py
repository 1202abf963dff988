"""A streaming query that is killed, driver, JVM and workers at once, and started again from its checkpoint:
each message is there once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import read_commit_state, read_journal
from store_format.bookkeeping.ledger import read_ledger
from store_format.commit.abandoned_staging import collect
from tests.support.oracle import build_index_files
from tests.support.spark.doomed_query import KILL, REPORT, end_session
from tests.support.spark.processes import ROOT
from tests.support.staged import messages_of
from tests.support.watching_reader import look, watching

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]  # a JVM for each death

_ROWS = 40  # of a batch: new files of all kinds every other one
_TIMEOUT_S = 230  # less than what makes pytest print where it waits
_SCRIPT = (
    "import sys; from pathlib import Path; from tests.support.spark.doomed_query import main; "
    "main(Path(sys.argv[1]))"
)

# Where to kill (`doomed_query.KILL`); whether a journal stands then, and whether readers are kept from what
# is behind its base.
_DEATHS = [
    ("new kill mkdir /commitlog", False, False),  # a store half made
    ("new kill rename /journal.json", False, False),
    ("new kill rename /abort", True, False),
    ("new torn pwrite /commitlog/", True, True),
    ("new torn pwrite /consumequeue/", True, True),
    ("again torn pwrite /index/", True, True),  # while the next run completes it
    ("new kill rename /ledger.json", True, True),
    ("new kill unlink /abort", True, True),
    ("new kill unlink /journal.json", True, False),
]
_DEATHS_ANYWHERE = 3
_DEATHS_QUICK, _DEATHS_ANYWHERE_QUICK = (_DEATHS[0], *_DEATHS[4:7]), 1  # without --whole


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

    def start(self, kill: str = "") -> subprocess.Popen[bytes]:
        python = {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONPATH": str(ROOT),
        }
        environment = dict(
            os.environ, SPARK_CONF_DIR=str(ROOT / "conf"), **python, **{KILL: kill, REPORT: str(self._report)}
        )
        command = [sys.executable, "-c", _SCRIPT, str(self.directory)]
        with open(self.directory / "log", "ab") as log:
            return subprocess.Popen(
                command, cwd=self.directory, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def run(self, kill: str = "") -> None:
        """Until it ends or is killed."""
        process = self.start(kill)
        try:
            code = process.wait(_TIMEOUT_S)
        finally:
            end_session(process.pid)
        assert code == (-signal.SIGKILL if kill else 0), (self.directory / "log").read_text()

    @property
    def _report(self) -> Path:
        return self.directory / "report"

    def reports(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self._report.read_text().splitlines()]

    def batches(self, name: str) -> set[int]:
        """Those in `offsets` or `commits` of Spark's checkpoint."""
        return {int(path.name) for path in (self.directory / "checkpoint" / name).glob("[0-9]*")}

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
    before = read_ledger(str(query.store))
    process = query.start()
    try:
        deadline = time.monotonic() + _TIMEOUT_S
        while read_ledger(str(query.store)) == before and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(seconds)
        assert process.poll() is None, (query.directory / "log").read_text()
    finally:
        end_session(process.pid)
        assert process.wait(60) == -signal.SIGKILL


def test_a_query_killed_in_its_commits_and_anywhere_writes_all_once(tmp_path: Path, whole: bool) -> None:
    deaths, anywhere = (_DEATHS, _DEATHS_ANYWHERE) if whole else (_DEATHS_QUICK, _DEATHS_ANYWHERE_QUICK)
    query = _Query(tmp_path)
    root = str(query.store)
    chance = random.Random(4)
    with watching(query.store, _ROWS) as seen:
        for kill, has_journal, is_hidden in deaths:
            query.more(2)
            query.run(kill)
            assert query.reports()[-1]["killed"] == kill.split()[2]
            assert (read_journal(root) is not None, read_commit_state(root).base is not None) == (
                has_journal,
                is_hidden,
            ), kill
        for _ in range(anywhere):
            query.more(8)
            _killed_sometime(query, chance.uniform(0, 1))
        query.more(2)
        query.run()
    # What dead tasks staged is kept for `stagingRetention`, as nobody else can tell them from tasks at work.
    assert len(collect(root, older_than=time.time())) <= len(deaths) + anywhere
    query.check()
    assert seen["batches"] == query.files
    assert seen["looks"] > 100
    assert seen["hidden"] > 10


def test_a_driver_that_dies_before_spark_knows_of_the_commit(tmp_path: Path) -> None:
    """The log has the batch, Spark's own commit log does not: the next run replays it, into a store that is
    new and one that is not.
    """
    query = _Query(tmp_path)
    with watching(query.store, _ROWS) as seen:
        for number in range(2):
            query.more(1 + number)
            query.run(f"after {number}")
            assert query.batches("offsets") - query.batches("commits") == {number}
            assert [entry.number for entry in read_ledger(str(query.store)).keys.values()] == [number]
            assert read_journal(str(query.store)) is None
        query.run()
    query.check()
    assert query.batches("offsets") == query.batches("commits") == set(range(query.files))
    assert seen["batches"] == query.files

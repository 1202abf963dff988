"""Streams of tiny batches: what a commit of ten messages costs, waiting for the disk apart, and that nothing
grows with their number.

Costs are asserted as processor time, which other work on the machine does not change; the time by the clock
is printed (`pytest -s`).
"""

from __future__ import annotations

import logging
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmq_spark.write.stage_and_commit import commit_write, stage_rows
from store_format import MessageStore
from tests.support.spark.processes import ROOT
from tests.support.spark.tiny_batches import LOG, ROWS
from tests.support.staged import append, make_store, numbered
from tests.support.watching_reader import look
from tests.support.writes import bodies, numbered_rows, target_of

pytestmark = pytest.mark.slow

_COMMIT_MS_MAX = 30
_COMMITS, _COMMITS_QUICK = 1000, 400
_MICRO_BATCHES, _MICRO_BATCHES_QUICK = 100, 30  # Spark itself takes half a second for each
_LEDGER_GROWTH_MAX = 64  # bytes: numbers get more digits
_SCRIPT = (
    "import sys; from pathlib import Path; from tests.support.spark.tiny_batches import main; "
    "main(Path(sys.argv[1]))"
)


def _own(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in (root / ".rmqlog").rglob("*")}


def _figures(name: str, milliseconds: Sequence[float]) -> str:
    ordered = sorted(milliseconds)
    return (
        f"{name}: median {statistics.median(ordered):.1f} ms, 99 % "
        f"{ordered[len(ordered) * 99 // 100]:.1f} ms, max {ordered[-1]:.1f} ms"
    )


def _clocked(lines: Sequence[str]) -> tuple[list[float], list[float]]:
    """From the sink's own lines: milliseconds of each commit but for the disk, and those of waiting for
    it.
    """
    found = [
        re.search(
            r": 10 messages into .*; committed in ([\d.]+) ms, of which ([\d.]+) ms waiting for the disk",
            line,
        )
        for line in lines
    ]
    times = [(float(match[1]), float(match[2])) for match in found if match is not None]
    return [all_ms - disk_ms for all_ms, disk_ms in times], [disk_ms for _, disk_ms in times]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_many_commits(tmp_path: Path, caplog: pytest.LogCaptureFixture, flush: str, whole: bool) -> None:
    root, count, spent = tmp_path / "store", _COMMITS if whole else _COMMITS_QUICK, []
    for number in range(count):
        target = target_of(root, flushDiskType=flush)
        staged = stage_rows(target, [numbered_rows(number * ROWS, number * ROWS + ROWS)])
        begun = time.process_time()
        with caplog.at_level(logging.INFO, "rmq_spark"):
            commit_write(target, [staged], ("stream", number))
        spent.append((time.process_time() - begun) * 1000)
        if number == 0:
            first, ledger_size = _own(root), (root / ".rmqlog" / "ledger.json").stat().st_size
    net, disk = _clocked([record.getMessage() for record in caplog.records])
    print(
        f"\n{count} commits, {flush}",
        _figures("processor", spent),
        _figures("clock", net),
        _figures("disk", disk),
        sep="\n  ",
    )
    assert len(net) == count
    assert statistics.median(spent) < _COMMIT_MS_MAX
    assert sorted(spent)[count * 99 // 100] < _COMMIT_MS_MAX
    assert _own(root) == first
    assert (root / ".rmqlog" / "ledger.json").stat().st_size <= ledger_size + _LEDGER_GROWTH_MAX
    assert bodies(root) == dict.fromkeys(range(count * ROWS), 1)


@pytest.mark.spark
@pytest.mark.timeout(2700)
def test_a_stream_of_tiny_micro_batches(tmp_path: Path, whole: bool) -> None:
    count = _MICRO_BATCHES if whole else _MICRO_BATCHES_QUICK
    append(make_store(tmp_path / "source"), numbered("T", 0, count * ROWS))
    python = {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),
    }
    environment = dict(
        os.environ, SPARK_CONF_DIR=str(ROOT / "conf"), **python, **{LOG: str(tmp_path / "log")}
    )
    command = [sys.executable, "-c", _SCRIPT, str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=2500
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = (tmp_path / "log").read_text().splitlines()
    net, disk = _clocked(lines)
    spent = [
        float(match[2]) for line in lines if (match := re.fullmatch(r"process (\d+) took ([\d.]+) ms", line))
    ]
    print(
        f"\n{count} micro-batches",
        _figures("processor", spent),
        _figures("clock", net),
        _figures("disk", disk),
        sep="\n  ",
    )
    assert len(net) == len(spent) == count
    assert statistics.median(spent) < _COMMIT_MS_MAX
    store = MessageStore.open(str(tmp_path / "target"))
    assert look(tmp_path / "target") == look(tmp_path / "source")
    assert list(store.diagnose()) == []
    names = {"staging", "store.json", "broker.conf", "ledger.json", "doorbell"}
    assert _own(tmp_path / "target") == {".rmqlog/" + name for name in names}
    assert (tmp_path / "target" / ".rmqlog" / "ledger.json").stat().st_size < 1000

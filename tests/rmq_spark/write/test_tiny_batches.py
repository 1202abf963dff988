"""Streams of tiny batches: what a commit of ten messages costs, waiting for the disk apart, and that nothing
grows with their number.

Costs are asserted as processor time, which other work on the machine does not change; the time by the clock
is printed (`pytest -s`).
"""

from __future__ import annotations

import logging
import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from rmq_spark.write.stage_and_commit import commit_write, stage_rows
from tests.support.writes import bodies, numbered_rows, target_of

pytestmark = pytest.mark.slow

ROWS = 10  # of a batch
_COMMIT_MS_MAX = 30
_GROWTH_MAX = 1.5  # a machine's speed changes within a run
_COMMITS, _COMMITS_QUICK = 1000, 150


def _own(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in (root / ".rmqlog").rglob("*")}


def _ledger_but_digits(root: Path) -> str:
    """The ledger with each number and each journal's random name as one digit."""
    return re.sub(r'"[0-9a-f]{16}"|\d+', "0", (root / ".rmqlog" / "ledger.json").read_text())


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


@pytest.mark.timeout(1200)  # 1,000 commits with --whole, on a slow disk
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
            first, ledger = _own(root), _ledger_but_digits(root)
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
    assert statistics.median(spent[-count // 3 :]) < _GROWTH_MAX * statistics.median(spent[: count // 3])
    assert _own(root) == first
    assert _ledger_but_digits(root) == ledger
    assert bodies(root) == dict.fromkeys(range(count * ROWS), 1)

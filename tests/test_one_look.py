"""One answer comes from one look: how often it opens the files of a store."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rmq_spark import demo

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
_LOCK = "lock"  # who asks whether a broker runs opens this file, which has no content


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "store"
    demo.create(str(path), end_ms=1_795_000_000_000, orders=500)
    return path


def _opens(call: str, store: Path) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.support.opens", call, str(store)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.returncode, run.stderr
    return {path: int(count) for count, path in (line.split("\t") for line in run.stdout.splitlines())}


def test_lag_opens_few_files(shop: Path) -> None:
    found = _opens("lag", shop)
    assert sum(found.values()) <= 60, found
    _refuse_small_files_read_twice(found)


def test_planning_opens_few_files(shop: Path) -> None:
    found = _opens("plan", shop)
    queues = {path: count for path, count in found.items() if path.startswith("consumequeue/Orders/")}
    assert len(queues) == 4
    assert max(queues.values()) <= 4, queues
    _refuse_small_files_read_twice(found)


def test_a_report_opens_few_files(shop: Path) -> None:
    found = _opens("report", shop)
    assert sum(found.values()) <= 150, found
    queues = {path: count for path, count in found.items() if path.startswith("consumequeue/")}
    assert max(queues.values()) <= 8, queues
    assert not {path: count for path, count in found.items() if count > 1 and path.startswith("config/")}


def _refuse_small_files_read_twice(found: dict[str, int]) -> None:
    twice = {
        path: count
        for path, count in found.items()
        if count > 1 and path.split("/")[0] not in (_LOCK, "commitlog", "consumequeue")
    }
    assert not twice

"""SIGKILL at every change of a file of every service: the next run completes, each message exactly once.

`tests/support/service_scenarios.py` has the scenarios; a new one there is a new case here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.service_scenarios import SCENARIOS

_ROOT = Path(__file__).resolve().parents[4]


def _run(directory: Path, name: str, what: str, every: int, *more: str) -> dict[str, int]:
    copies = directory / "copies"
    copies.mkdir()
    command = [
        sys.executable, "-m", "tests.support.failing_service",
        name, str(directory / "base"), str(copies), what, str(every), *more,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


@pytest.mark.slow
@pytest.mark.timeout(1400)
@pytest.mark.parametrize("what", [pytest.param("kill", marks=pytest.mark.whole), "torn"])
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_killed_at_many_changes(tmp_path: Path, name: str, what: str, whole: bool) -> None:
    counts = _run(tmp_path, name, what, 1 if whole else SCENARIOS[name].every)
    assert counts["kills"] >= (counts["changes"] if whole else 5)
    print(name, what, counts)


@pytest.mark.whole
@pytest.mark.slow
@pytest.mark.timeout(1400)
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_killed_again_in_the_next_run(tmp_path: Path, name: str) -> None:
    counts = _run(tmp_path, name, "torn", 1, "twice")
    assert counts["kills"] > counts["changes"]
    print(name, counts)

"""SIGKILL at every change of a file of every service: the next run completes, each message exactly once.

`tests/support/service_scenarios.py` has the scenarios; a new one there is a new case here. CI tears writes at
some changes of each; the proofs also kill before writes, at every change, and twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.failing_service import check
from tests.support.fork_server import ForkServer
from tests.support.service_scenarios import SCENARIOS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1400)]


@pytest.mark.parametrize("what", [pytest.param("kill", marks=pytest.mark.whole), "torn"])
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_killed_at_many_changes(tmp_path: Path, forks: ForkServer, name: str, what: str, whole: bool) -> None:
    counts = check(forks, name, tmp_path, what, 1 if whole else SCENARIOS[name].every)
    assert counts["kills"] >= (counts["changes"] if whole else 5)
    print(name, what, counts)


@pytest.mark.whole
@pytest.mark.parametrize("name", list(SCENARIOS))
def test_killed_again_in_the_next_run(tmp_path: Path, forks: ForkServer, name: str) -> None:
    counts = check(forks, name, tmp_path, "torn", 1, twice=True)
    assert counts["kills"] > counts["changes"]
    print(name, counts)

"""Lives of stores: whatever happens to a store, in any order, all callers agree about what it holds.

`--whole` goes over more lives: see `make proofs`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.fork_server import ForkServer
from tests.support.referee.machine import Machine


@pytest.mark.process
def test_all_callers_agree_in_every_life(tmp_path: Path, forks: ForkServer, whole: bool) -> None:
    Machine.base, Machine.forks = tmp_path, forks
    lives = settings(
        max_examples=1000 if whole else 25,
        stateful_step_count=30 if whole else 12,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Machine, settings=lives)

"""Lives of stores: whatever happens to a store, in any order, all callers agree about what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.support.fork_server import ForkServer
from tests.support.referee.machine import Machine


def _live(place: Path, forks: ForkServer, *, lives: int, steps: int) -> None:
    Machine.base, Machine.forks, Machine.judged = place, forks, 0
    chosen = settings(max_examples=lives, stateful_step_count=steps, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Machine, settings=chosen)
    assert Machine.judged > lives * steps // 3  # a life may end early, but most do not


@pytest.mark.process
def test_all_callers_agree_in_every_life(tmp_path: Path, forks: ForkServer) -> None:
    _live(tmp_path, forks, lives=25, steps=12)


@pytest.mark.process
@pytest.mark.whole
@pytest.mark.timeout(7000)
def test_all_callers_agree_in_many_lives(tmp_path: Path, forks: ForkServer) -> None:
    _live(tmp_path, forks, lives=1500, steps=30)

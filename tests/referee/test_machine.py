"""Lives of stores: whatever happens to a store, in any order, all callers agree about what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer
from tests.support.referee.machine import live

_LIVES, _STEPS = 25, 20  # of each test


@pytest.mark.process
@pytest.mark.parametrize("number", range(4))
def test_all_callers_agree_in_every_life(tmp_path: Path, forks: ForkServer, number: int) -> None:
    live(tmp_path, forks, number, lives=_LIVES, steps=_STEPS)


@pytest.mark.process
@pytest.mark.whole
@pytest.mark.timeout(7000)
def test_all_callers_agree_in_many_lives(tmp_path: Path, forks: ForkServer) -> None:
    live(tmp_path, forks, 100, lives=1500, steps=30)

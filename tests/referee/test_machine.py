"""Lives of stores: whatever happens to a store, in any order, all callers agree about what it holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer
from tests.support.referee.machine import live


@pytest.mark.process
@pytest.mark.parametrize("number", range(4))
def test_all_callers_agree_in_every_life(tmp_path: Path, forks: ForkServer, number: int) -> None:
    live(tmp_path, forks, number, lives=25, steps=20)


@pytest.mark.process
@pytest.mark.whole
@pytest.mark.timeout(7000)
@pytest.mark.parametrize("number", range(100, 104))
def test_all_callers_agree_in_many_lives(tmp_path: Path, forks: ForkServer, number: int) -> None:
    live(tmp_path, forks, number, lives=600, steps=40)

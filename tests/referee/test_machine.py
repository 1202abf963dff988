"""Lives of stores: whatever happens to a store, in any order, all callers agree about what it holds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer
from tests.support.referee.machine import live

pytestmark = pytest.mark.slow


@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(4))
def test_all_callers_agree_in_every_life(tmp_path: Path, forks: ForkServer, number: int) -> None:
    live(tmp_path, forks, number, lives=range(8), steps=20)


def _digest_of_lives() -> str:
    with tempfile.TemporaryDirectory() as place, ForkServer() as forks:
        return live(Path(place), forks, 0, lives=range(1), steps=20, asks=False)


@pytest.mark.process
def test_a_number_has_the_same_lives_in_every_process(forks: ForkServer) -> None:
    assert forks.call(_digest_of_lives) == _digest_of_lives()


@pytest.mark.process
@pytest.mark.whole
@pytest.mark.timeout(7000)
@pytest.mark.parametrize("number", range(100, 104))
def test_all_callers_agree_in_many_lives(tmp_path: Path, forks: ForkServer, number: int) -> None:
    live(tmp_path, forks, number, lives=range(600), steps=40)

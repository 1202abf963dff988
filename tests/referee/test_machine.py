"""Lives of stores: whatever happens to a store, in any order, all callers agree about what it holds."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.support.fork_server import ForkServer
from tests.support.referee.machine import live

pytestmark = pytest.mark.slow


_IN_PROOFS = [pytest.mark.whole, pytest.mark.timeout(7000)]


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "lives", "steps"),
    [
        *(pytest.param(number, 8, 20, id=f"{number}", marks=pytest.mark.timeout(900)) for number in range(4)),
        *(pytest.param(number, 600, 40, id=f"{number}", marks=_IN_PROOFS) for number in range(100, 104)),
    ],
)
def test_all_callers_agree_in_every_life(
    tmp_path: Path, forks: ForkServer, number: int, lives: int, steps: int
) -> None:
    live(tmp_path, forks, number, lives=range(lives), steps=steps)


def _digest_of_lives() -> str:
    with tempfile.TemporaryDirectory() as place, ForkServer() as forks:
        return live(Path(place), forks, 0, lives=range(1), steps=20, asks=False)


@pytest.mark.process
def test_a_number_has_the_same_lives_in_every_process(forks: ForkServer) -> None:
    assert forks.call(_digest_of_lives) == _digest_of_lives()

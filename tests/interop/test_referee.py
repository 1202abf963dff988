"""The real broker is the referee: stores of a generator, each compared with what the broker's store classes
serve of it (tests/support/referee/law.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.harness import RocketMQ
from tests.support.fork_server import ForkServer
from tests.support.referee.generator import Generator
from tests.support.referee.judge import Judge
from tests.support.referee.law import Breach, Case

_SECONDS_MAX = {"5.5.0": 50.0, "4.9.7": 8.0}
_STORES = {"5.5.0": 300, "4.9.7": 30}
_PARTS = 6  # as many as `make proofs PART=1/6` has
_PROOF_SECONDS = 20 * 60.0


@pytest.fixture
def judge(
    request: pytest.FixtureRequest, rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> Iterator[Judge]:
    rocketmq(request.param)
    with ForkServer() as forks, Judge(request.param, tmp_path, Generator(forks)) as judge:
        yield judge


@pytest.mark.parametrize("judge", ["5.5.0", "4.9.7"], indirect=True)
def test_made_stores(judge: Judge, capsys: pytest.CaptureFixture[str]) -> None:
    stores, seconds = _STORES[judge.version], _SECONDS_MAX[judge.version]
    _judged(judge.judge, judge.version, "ci", stores, seconds, capsys)


@pytest.mark.parametrize("judge", ["5.5.0"], indirect=True)
def test_stores_that_a_broker_holds_open(judge: Judge, capsys: pytest.CaptureFixture[str]) -> None:
    _judged(judge.live, judge.version, "live", 25, 10.0, capsys)


@pytest.mark.whole
@pytest.mark.timeout(int(_PROOF_SECONDS) + 600)
@pytest.mark.parametrize("judge", ["5.5.0"], indirect=True)
@pytest.mark.parametrize("part", range(1, _PARTS + 1))
def test_more_made_stores(judge: Judge, part: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The stores of a part; `python -m tests.support.referee.judge` judges any number of them."""
    _judged(judge.live, judge.version, f"live {part}", 300, _PROOF_SECONDS / 10, capsys)
    _judged(judge.judge, judge.version, str(part), 100_000, _PROOF_SECONDS, capsys)


def _judged(
    look: Callable[[str, int], tuple[Case, list[Breach]]],
    version: str,
    seed: str,
    count: int,
    seconds_max: float,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Judges so many stores, or those that the time is enough for, and prints how many."""
    began, stores, wrong = time.monotonic(), 0, list[str]()
    while stores < count and time.monotonic() - began < seconds_max:
        case, found = look(seed, stores)
        wrong += [f"{seed}/{stores} [{case.name}] {breach}" for breach in found]
        stores += 1
    with capsys.disabled():
        print(f" {stores} stores in {time.monotonic() - began:.0f} s with {version}", end=" ")
    assert not wrong, f"{len(wrong)} breaches:\n" + "\n".join(wrong)

"""The list of messages that the tests' own referee keeps (tests/support/referee/truth.py) agrees with the
real broker: whatever a client of a broker gets of a damaged store is a message that readers must return.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.harness import RocketMQ
from tests.interop.referee import Referee, Verdict, body_of
from tests.support.referee.cases import CASES
from tests.support.referee.truth import Fate
from tests.support.referee.world import World

_PARTS = 6


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.whole) for part in range(1, _PARTS))]
)
def test_the_oracle_agrees(part: int, rocketmq: Callable[[str], RocketMQ], tmp_path: Path) -> None:
    rocketmq("5.5.0")
    wrong = []
    with Referee("5.5.0", tmp_path / "java") as referee:
        for number, name in enumerate(CASES):
            if number % _PARTS == part:
                world = CASES[name](_made(tmp_path / f"{number}"))
                verdict = referee.serve(world.root, _conf(world))
                wrong += [f"{name}: {each}" for each in _disagreements(world, verdict)]
    assert wrong == []


def _made(place: Path) -> Path:
    place.mkdir()
    return place


def _conf(world: World) -> dict[str, str]:
    settings = world.settings
    return {
        "mappedFileSizeCommitLog": str(settings.mapped_file_size_commit_log),
        "mappedFileSizeConsumeQueue": str(settings.mapped_file_size_consume_queue),
        "maxHashSlotNum": str(settings.max_hash_slot_num),
        "maxIndexNum": str(settings.max_index_num),
    }


def _disagreements(world: World, verdict: Verdict) -> list[str]:
    """Whole messages that a client gets, and that the list has as lost, deleted or never written."""
    truth = world.truth
    right = {each.place: body_of(each.body) for each in truth.of(Fate.KEPT, Fate.UNKNOWN)}
    return [
        f"a broker serves {place} at {each.physical_offset}, and the list has it as {truth.fate_at(*place)}"
        for place, each in verdict.client.items()
        if each.is_whole and right.get(place) != each.body
    ]

"""The stores that lives of the state machine leave behind, recovered by `rmqlog recover`, in a real broker's
classes: these have the rows that we read, and those that the oracle knows.

A salvage leaves no hole in a queue: the entry of a lost message leads to another message of the queue, which
the classes return at both places. Its tags code says so.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from store_format.layouts import CQ_LOST_TAGS_CODE
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from tests.interop.harness import RocketMQ
from tests.interop.rows import by_place, ours
from tests.support.fork_server import ForkServer
from tests.support.referee.answers import rmqlog
from tests.support.referee.askers import batch_read, restore
from tests.support.referee.machine import live
from tests.support.referee.truth import Row
from tests.support.referee.world import World

_LIVES, _LIVES_WHOLE, _STEPS = 6, 500, 20
_TOGETHER = 25  # stores of one JVM


@dataclass(frozen=True)
class Left:
    """A recovered store, and the rows that it has to have."""

    root: Path
    rows: Counter[Row]


def _recovered(world: World, root: Path) -> Left:
    """In place, or as a salvaged copy, in which messages are restored that a broker serves."""
    words = ("--into", root, "--salvage") if world.truth.lost else ()
    run = rmqlog(world.root, "recover", world.root, *words, "--apply")
    assert run.code == 0, run.err
    if not words:
        shutil.move(world.root, root)
    truth = world.truth.copy()
    if " restores the numbers of " in run.out:
        restore(root, truth)
    assert batch_read(root, truth, skips=True).rows == truth.rows
    return Left(root, truth.rows)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory, forks: ForkServer, whole: bool) -> list[Left]:
    place, kept = tmp_path_factory.mktemp("lives"), list[Left]()

    def keep(world: World) -> None:
        kept.append(_recovered(world, tmp_path_factory.mktemp("kept") / "store"))

    lives = _LIVES_WHOLE if whole else _LIVES
    live(place, forks, 0, lives=range(lives), steps=_STEPS, asks=False, ended=keep)
    assert len(kept) == lives
    return kept


@pytest.mark.timeout(7000)
@pytest.mark.parametrize("version", ["5.5.0", "4.9.7"])
def test_a_brokers_classes_have_the_same_rows(
    rocketmq: Callable[[str], RocketMQ], left: list[Left], tmp_path: Path, version: str
) -> None:
    for start in range(0, len(left), _TOGETHER):
        some = left[start : start + _TOGETHER]
        copies = [shutil.copytree(each.root, tmp_path / f"{start + i}") for i, each in enumerate(some)]
        for store, each, opened in zip(copies, some, rocketmq(version).open_stores(copies), strict=True):
            served = set(
                read_topics(Opened(str(each.root))) or ()
            )  # a broker makes queues again for deleted topics, too
            theirs = [line for line in by_place(opened.messages) if line["topic"] in served]
            theirs = [line for line in theirs if line["tagsCode"] != CQ_LOST_TAGS_CODE]
            mine = ours(each.root)
            assert [(one, other) for one, other in zip(theirs, mine, strict=True) if one != other] == []
            assert len(theirs) == each.rows.total()
            shutil.rmtree(store)

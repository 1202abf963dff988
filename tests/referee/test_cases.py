"""All callers of the product agree about a store, and with the list of the messages that it was given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.referee.cases import CASES
from tests.support.referee.rules import disagreements
from tests.support.referee.world import answers_about, golden_world, new_world

pytestmark = pytest.mark.slow

_GOLDENS = (
    "basic-4.9.7", "basic-5.5.0", "batchcq-5.5.0", "cleaned-5.5.0", "crash-torn-5.5.0", "delay-tx-5.5.0",
    "edge-5.5.0", "pop-5.5.0", "propcrc-5.5.0", "retry-dlq-5.5.0",
)  # fmt: skip


@pytest.mark.parametrize("name", _GOLDENS)
def test_all_agree_about_a_brokers_store(tmp_path: Path, name: str) -> None:
    assert disagreements(answers_about(golden_world(name, tmp_path))) == []


def test_all_agree_about_a_new_store(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    world.follow()
    assert disagreements(answers_about(world)) == []


@pytest.mark.parametrize("name", CASES)
def test_all_agree(tmp_path: Path, name: str) -> None:
    assert disagreements(answers_about(CASES[name](tmp_path))) == []

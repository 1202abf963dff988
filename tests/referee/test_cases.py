"""All callers of the product agree about a store, and with the list of the messages that it was given.

What is in `known.KNOWN` is wrong today. A case that no longer disagrees is deleted there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.support.referee.cases import CASES
from tests.support.referee.known import KNOWN
from tests.support.referee.rules import disagreements
from tests.support.referee.world import answers_about, golden_world, new_world

_GOLDENS = (
    "basic-4.9.7", "basic-5.5.0", "batchcq-5.5.0", "cleaned-5.5.0", "crash-torn-5.5.0", "delay-tx-5.5.0",
    "edge-5.5.0", "pop-5.5.0", "propcrc-5.5.0", "retry-dlq-5.5.0",
)  # fmt: skip

Judge = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    """The disagreements about the store of a case; each is made once."""

    @cache
    def judged(name: str) -> list[str]:
        return disagreements(answers_about(CASES[name](tmp_path_factory.mktemp("case"))))

    return judged


@pytest.mark.parametrize("name", _GOLDENS)
def test_all_agree_about_a_brokers_store(tmp_path: Path, name: str) -> None:
    assert disagreements(answers_about(golden_world(name, tmp_path))) == []


def test_all_agree_about_a_new_store(tmp_path: Path) -> None:
    world = new_world(tmp_path)
    world.follow()
    assert disagreements(answers_about(world)) == []


def _wrong_today(name: str) -> object:
    reason = "; ".join(KNOWN[name])
    return pytest.param(name, marks=pytest.mark.xfail(strict=True, reason=reason, raises=AssertionError))


@pytest.mark.parametrize("name", [_wrong_today(name) if name in KNOWN else name for name in CASES])
def test_all_agree(judge: Judge, name: str) -> None:
    assert judge(name) == []


@pytest.mark.parametrize("name", KNOWN)
def test_nothing_else_is_wrong(judge: Judge, name: str) -> None:
    assert judge(name) == list(KNOWN[name])

"""The recovery of one store of a cluster that other stores are missing from: nobody drops a part unasked."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

from store_format.commit.recover import recover
from store_format.errors import StoreNotFoundError
from store_format.store import MessageStore
from tests.store_format.commit.test_missing_stores import break_off
from tests.support.staged import append, make_store, messages_of, numbered


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Stores x, y and z with one message each."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    for name in ("x", "y", "z"):
        append(make_store(directory / name), numbered("Old", 0, 1))
    return directory


def _topics(*roots: Path) -> set[str]:
    return {message.topic for root in roots for message in messages_of(root)}


def test_a_recovery_of_one_store_takes_the_same_word(cluster: Path, caplog: pytest.LogCaptureFixture) -> None:
    break_off(cluster, told=("x",))
    shutil.rmtree(cluster / "x")
    for change in (recover(str(cluster / "y")), MessageStore.open(str(cluster / "y")).recover()):
        with pytest.raises(
            StoreNotFoundError,
            match=r"cluster/x with the id .*recover once with --ignore-missing-stores "
            r"\(ignore_missing_stores=True\): this store then drops its part",
        ):
            change.apply()
    with caplog.at_level(logging.WARNING):
        MessageStore.open(str(cluster / "y")).recover(ignore_missing_stores=True).apply()
        recover(str(cluster / "z"), ignore_missing_stores=True).apply()
    assert "y: its part of an interrupted commit, 10 messages, is dropped" in caplog.text
    assert _topics(cluster / "y", cluster / "z") == {"Old"}
    assert MessageStore.open(str(cluster / "y")).diagnose() == []


def test_a_recovery_completes_what_another_store_knows_to_have_begun(cluster: Path) -> None:
    """`ignore_missing_stores` drops nothing that can be known."""
    break_off(cluster, told=("y",))
    shutil.rmtree(cluster / "x")
    for name in ("z", "y"):
        recover(str(cluster / name), ignore_missing_stores=True).apply()
    assert _topics(cluster / "y", cluster / "z") == {"Old", "T"}
    assert len(messages_of(cluster / "y")) == len(messages_of(cluster / "z")) == 11

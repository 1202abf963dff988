"""What other files know about the end of a consume queue."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from store_format.bookkeeping.ledger import ledger_path, read_ledger
from store_format.names import REVIVE_GROUP
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.survey.fates import KnownEnd, committed_ends, known_ends, ledger_ends
from tests.support.referee.world import overwrite
from tests.support.staged import append, numbered


@pytest.fixture
def root(root: Path) -> Path:
    """Topics T, with 5 messages, and V, to which a second commit added the 3rd message of 3."""
    append(root, numbered("T", 0, 5, queues=1) + numbered("V", 0, 2, queues=1))
    append(root, numbered("V", 2, 1, queues=1))
    return root


def _ends(found: dict[tuple[str, int], KnownEnd]) -> dict[tuple[str, int], int]:
    return {key: end.offset for key, end in found.items()}


def test_the_ledger_knows_the_ends_of_the_last_commits(root: Path) -> None:
    log = Store.open(str(root)).log
    assert _ends(ledger_ends(Opened(str(root)), log)) == {("T", 0): 5, ("V", 0): 3}
    assert "ledger.json ends V-0 at offset 3" in ledger_ends(Opened(str(root)), log)["V", 0].evidence
    Path(ledger_path(Opened(str(root)))).write_text("{}")
    assert ledger_ends(Opened(str(root)), log) == {}


def test_a_broker_may_have_written_to_queues_of_earlier_commits(root: Path) -> None:
    ledger = read_ledger(Opened(str(root)))
    assert ledger.last is not None
    next_to_it, later = (replace(ledger.last, start=ledger.last.stop + size) for size in (0, 100))
    assert ledger.with_entry(None, next_to_it, {("V", 0): 4}).ends == {("T", 0): 5, ("V", 0): 4}
    assert ledger.with_entry(None, later, {("V", 0): 5}).ends == {("V", 0): 5}


def test_a_commit_that_was_cut_shows_nothing(root: Path) -> None:
    last = json.loads(Path(ledger_path(Opened(str(root)))).read_text())["last"]
    overwrite(root / "commitlog/00000000000000000000", last["last_offset"], bytes(last["last_size"]))
    assert ledger_ends(Opened(str(root)), Store.open(str(root)).log) == {}


def test_groups_have_committed_in_topics_that_are_not_deleted(root: Path) -> None:
    table = {"T@g": {"0": 4}, "T@h": {"0": 7, "1": 0}, "V@g": {"0": 1}, "Deleted@g": {"0": 9}}
    table[f"T@{REVIVE_GROUP}"] = {"0": 99}
    path = root / "config/consumerOffset.json"
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    path.write_text(json.dumps({"offsetTable": table}))
    assert committed_ends(Opened(str(root))) == {}  # of a 4.9 broker, which keeps those of deleted topics
    path.write_text(json.dumps({"offsetTable": table, "dataVersion": version}))
    assert _ends(committed_ends(Opened(str(root)))) == {("T", 0): 7, ("V", 0): 1}
    assert "group h has committed offset 7 of T-0" in committed_ends(Opened(str(root)))["T", 0].evidence
    assert _ends(known_ends(Opened(str(root)), Store.open(str(root)).log)) == {("T", 0): 7, ("V", 0): 3}

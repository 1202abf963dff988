"""The trace of messages that recoveries have given up."""

from __future__ import annotations

from pathlib import Path

from store_format.bookkeeping.ledger import GivenUp, note_given_up, read_given_up
from store_format.files.write import FileWrites
from store_format.opened.store import Opened
from tests.support.staged import make_store


def test_a_recovery_that_ran_twice_counts_each_message_once(tmp_path: Path) -> None:
    """The first run was killed when it had removed some of the entries."""
    root, files = str(make_store(tmp_path / "store")), FileWrites(sync=False)
    note_given_up(Opened(root), GivenUp((("T", 0, 100, 160), ("T", 1, 5, 9)), ((4096, 8192),)), files)
    note_given_up(
        Opened(root), GivenUp((("T", 0, 120, 160), ("V", 0, 5, 9)), ((0, 4096), (5000, 6000))), files
    )
    found = read_given_up(Opened(root))
    assert found == GivenUp((("T", 0, 100, 160), ("T", 1, 5, 9), ("V", 0, 5, 9)), ((0, 8192),))
    assert str(found) == "68 messages"
    note_given_up(Opened(root), GivenUp((("T", 0, 160, 161),)), files)
    assert read_given_up(Opened(root)).count == 69

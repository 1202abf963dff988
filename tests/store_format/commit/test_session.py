"""Several commits under one lock, the turns of a service, and where a service goes on after a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.errors import IllegalMessageError, StoreInUseError
from store_format.message.encode import MessageColumns
from store_format.opened.store import Opened
from tests.support.staged import append, columns_of, numbered, update_topic


def _columns(first: int, count: int) -> MessageColumns:
    return columns_of(numbered("T", first, count))


def _bodies(root: Path) -> int:
    return sum(queue.max_offset - queue.min_offset for queue in MessageStore.open(str(root)).queues())


def test_commits_under_one_lock(root: Path) -> None:
    with write_session(str(root)) as session:
        first = session.append(_columns(0, 8))
        second = session.append(_columns(8, 4), turn=ServiceTurn("schedule/1", 12, 5))
        assert second.start == first.stop
        assert sum(queue.max_offset for queue in session.store().queues()) == 12
        with pytest.raises(StoreInUseError, match="another thread of this process"):
            append(root, numbered("T", 12, 1))
    append(root, numbered("T", 12, 1))
    assert _bodies(root) == 13


def test_a_turn_is_always_carried_out(root: Path) -> None:
    """A person may have set the progress back: the number of the key then falls."""
    with write_session(str(root)) as session:
        session.append(_columns(0, 4), turn=ServiceTurn("schedule/1", 10, 6))
        session.append(_columns(4, 4), turn=ServiceTurn("schedule/1", 3, 0))
    assert _bodies(root) == 8
    entry = Ledger.read(Opened(str(root))).keys["rmqlog/schedule/1"]
    assert (entry.number, entry.began, entry.kept, entry.units) == (3, 0, True, 4)


def test_the_ledger_counts_after_a_crash_only(root: Path) -> None:
    with write_session(str(root)) as session:
        session.append(_columns(0, 4), turn=ServiceTurn("schedule/1", 10, 6))
        log, ledger = session.store().log, session.ledger()
        assert ledger.resume("schedule/1", 6, log) == 10  # the state file was not written
        assert ledger.resume("schedule/1", 10, log) == 10  # it was
        assert ledger.resume("schedule/1", 2, log) == 2  # somebody has set it back
        assert ledger.resume("schedule/2", 6, log) == 6
        entry = ledger.keys["rmqlog/schedule/1"]
    # the batch was cut and overwritten by a broker
    with open(root / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(entry.last_offset + 60)
        file.write(b"\xff\xff\xff")
    with write_session(str(root), CommitOptions(cut_after_damage=True)) as session:
        assert session.ledger().resume("schedule/1", 6, session.store().log) == 6


def test_a_turn_delivers_to_the_queue_that_a_message_names(root: Path) -> None:
    """As a broker does: topics.json is not asked, and no topic is created but those that are named."""
    append(root, numbered("T", 0, 4))
    update_topic(root, "T", 2)
    with write_session(str(root)) as session:
        with pytest.raises(IllegalMessageError, match="writeQueueNums=2"):
            session.append(_columns(0, 4))
        session.append(_columns(0, 4), turn=ServiceTurn("schedule/1", 1, 0))
        other = columns_of(numbered("Other", 0, 4))
        session.append(other, turn=ServiceTurn("schedule/1", 2, 1))
        assert "Other" not in session.store().configured_topics()
        session.append(other, turn=ServiceTurn("schedule/1", 3, 2), new_topics={"Other": 4})
        assert "Other" in session.store().configured_topics()


def test_the_clock_of_a_session_dates_its_messages(root: Path) -> None:
    with write_session(str(root), CommitOptions(clock=lambda: 1_700_000_000_123)) as session:
        session.append(_columns(0, 2))
    (first, *_) = MessageStore.open(str(root)).scan(["storeTimestampMs"])
    assert first["storeTimestampMs"].to_pylist() == [1_700_000_000_123] * 2

"""The newest entries of a queue are lost in a store without a crash: what shows it, and what does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.opened.store import Opened
from store_format.survey.snapshot import Snapshot
from tests.support.file_edits import overwrite
from tests.support.staged import append, make_store, messages_of, numbered

ENTRY = 20
SETTINGS = StoreSettings("broker-a", 1 << 20, 100 * ENTRY, 50, 200)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """T-0 has 60 messages, 30 in each commit; the last message of the log is in V-0."""
    root = make_store(tmp_path / "store", SETTINGS)
    for first in (0, 30):
        append(root, numbered("T", first, 30, queues=1) + numbered("V", first, 5, queues=1))
    return root


def _zero(root: Path, topic: str, start: int, stop: int) -> None:
    (path,) = (root / f"consumequeue/{topic}/0").iterdir()
    overwrite(path, start * ENTRY, bytes((stop - start) * ENTRY))


def _offsets(root: Path, topic: str) -> list[int]:
    queue = MessageStore.open(str(root)).queue(topic, 0)
    return [offset for batch in queue.read(columns=["queueOffset"]) for offset in batch[0].to_pylist()]


def _lose_ledger(root: Path) -> None:
    (root / ".rmqlog/ledger.json").unlink()


def test_what_nothing_shows_stays_as_it_is(root: Path) -> None:
    """A broker does the same: the next message gets the offset again."""
    _lose_ledger(root)
    _zero(root, "T", 50, 60)
    assert _offsets(root, "T") == list(range(50))


def test_damage_where_entries_are_looked_for_is_named(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log is read from the last message that has an entry on, which is that of V-0 offset 4."""
    messages = messages_of(root)
    start, damaged = messages[29].physical_offset, messages[34]
    _zero(root, "T", 30, 60)
    (log,) = (root / "commitlog").iterdir()
    overwrite(log, damaged.physical_offset, bytes([1]))
    assert _offsets(root, "T") == list(range(60))
    stop = messages[-1].physical_offset + messages[-1].total_size
    assert (
        f"commitlog {start} to {stop}: {damaged.total_size} bytes are damaged or missing; messages there "
        "have no consume queue entry"
    ) in caplog.messages


def test_a_queue_alone_is_seen_as_with_all_others(root: Path) -> None:
    _zero(root, "T", 50, 60)
    store = MessageStore.open(str(root))
    found = Snapshot.take_queue(Opened(str(root)), store.log, StoreState.CLEAN, "T", 0)
    assert found is not None
    assert found == store.snapshot().queues["T", 0]
    assert found.max_offset == 60


def test_a_commit_that_a_broker_has_cut_ends_no_queue(root: Path) -> None:
    """The broker has written over its first message."""
    before = shutil.copytree(root, root.parent / "before")
    second = append(root, numbered("T", 60, 10, queues=1), options=CommitOptions(clock=lambda: 1_000))
    assert second.queues["T", 0] == (60, 70)
    append(before, numbered("T", 900, 1, queues=1), options=CommitOptions(clock=lambda: 9_000_000_000_000))
    unit = messages_of(before)[-1]
    (log,) = (root / "commitlog").iterdir()
    (other,) = (before / "commitlog").iterdir()
    end = unit.physical_offset + unit.total_size
    overwrite(log, unit.physical_offset, other.read_bytes()[unit.physical_offset : end])
    shutil.rmtree(root / "consumequeue")
    shutil.copytree(before / "consumequeue", root / "consumequeue")
    assert _offsets(root, "T") == list(range(61))

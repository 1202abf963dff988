"""What a power loss leaves of the files of a commit with ASYNC_FLUSH: renamed, and without their bytes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store_format.commit import steps
from store_format.commit.append import flush
from store_format.commit.options import CommitOptions
from store_format.commit.recover import recover
from store_format.errors import CorruptStoreError
from store_format.store import MessageStore
from tests.support.staged import append, make_store, messages_of, numbered

_SYNC = CommitOptions(clock=lambda: 1_700_000_100_000)
_ASYNC = CommitOptions(clock=lambda: 1_700_000_100_000, sync=False)


def _ledger(root: Path) -> Path:
    return root / ".rmqlog" / "ledger.json"


@pytest.fixture
def root(root: Path) -> Path:
    """Batch 1 is flushed, batches 2 and 3 are not."""
    append(root, numbered("T", 0, 10), key=("q", 1), options=_SYNC)
    for number in (2, 3):
        append(root, numbered("T", 10 * number, 10), key=(f"q{number}", number), options=_ASYNC)
    return root


def test_the_ledger_of_the_last_flush_counts_where_that_of_a_commit_is_lost(root: Path) -> None:
    os.truncate(_ledger(root), 0)
    found = [each for each in MessageStore.open(str(root)).diagnose() if each.file == str(_ledger(root))]
    assert [each.severity for each in found] == ["warning"]
    assert "power loss" in found[0].advice
    assert not append(root, numbered("T", 0, 10), key=("q", 1), options=_SYNC).committed
    assert append(root, numbered("T", 30, 10), key=("q3", 3), options=_SYNC).committed  # not known any more
    assert len(messages_of(root)) == 40


@pytest.mark.parametrize("how", ["flush", "a SYNC commit"])
def test_what_was_kept_goes_when_the_ledger_is_on_the_disk(root: Path, how: str) -> None:
    kept = _ledger(root).with_name("ledger.json.bak")
    assert kept.exists()
    flush(str(root)) if how == "flush" else append(root, numbered("T", 90, 10), options=_SYNC)
    assert not kept.exists()
    os.truncate(_ledger(root), 0)
    with pytest.raises(CorruptStoreError, match="a ledger of this project"):
        append(root, numbered("T", 90, 10), options=_SYNC)


@pytest.mark.parametrize("data", [b"", bytes(5000)])
def test_a_journal_without_its_bytes_is_none(root: Path, data: bytes) -> None:
    journal = root / ".rmqlog" / "journal.json"
    journal.write_bytes(data)
    found = MessageStore.open(str(root)).diagnose()
    assert [each.severity for each in found if each.file == str(journal)] == ["warning"]
    append(root, numbered("T", 90, 10), options=_SYNC)
    assert len(messages_of(root)) == 40
    assert not journal.exists()


def test_a_batch_that_only_the_lost_ledger_had_is_written_again_with_a_warning(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.truncate(_ledger(root), 0)
    assert append(root, numbered("T", 30, 10), key=("q3", 3), options=_SYNC).committed
    (said,) = (text for text in caplog.messages if "lost with the power" in text)
    assert said.endswith("a batch that was committed since is written again if its job runs again")
    caplog.clear()
    assert append(root, numbered("T", 50, 10), key=("q5", 5), options=_SYNC).committed
    assert "lost with the power" not in caplog.text


def _break_off(root: Path, monkeypatch: pytest.MonkeyPatch, options: CommitOptions) -> Path:
    """A commit of 10 messages that ends before its ledger is written; returns a staged file."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(steps, "note_in_ledger", end)
        with pytest.raises(KeyboardInterrupt):
            append(root, numbered("T", 50, 10), key=("q", 5), options=options)
    (staged,) = (root / ".rmqlog/staging").rglob("*.records")
    return staged


@pytest.mark.parametrize("act", ["write", "recover"])
@pytest.mark.parametrize("size", [0, 100])
def test_a_commit_whose_staged_files_were_lost_with_the_power_is_dropped(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, size: int, act: str
) -> None:
    """Nobody could complete it, and every write was refused from then on."""
    os.truncate(_break_off(root, monkeypatch, _ASYNC), size)
    journal = root / ".rmqlog/journal.json"
    (found,) = (each for each in MessageStore.open(str(root)).diagnose() if each.file == str(journal))
    assert "The next writer drops this commit" in found.advice
    assert sum(queue.max_offset for queue in MessageStore.open(str(root)).queues("T".__eq__)) == 30
    if act == "recover":
        plan = recover(str(root))
        (row,) = (row for row in plan.table().to_pylist() if row["part"] == "commit")
        assert row["action"] == "drop"
        plan.apply()
    assert append(root, numbered("T", 50, 10), key=("q", 5), options=_SYNC).committed
    assert "10 messages with ASYNC_FLUSH was interrupted by a power loss" in caplog.text
    # a broker would find the first ten as well
    assert [each.body for each in messages_of(root)[-20:]] == [m.body for m in numbered("T", 50, 10)] * 2
    assert MessageStore.open(str(root)).diagnose() == []
    assert not journal.exists()


def test_a_commit_that_was_flushed_is_not_dropped(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(_break_off(root, monkeypatch, _SYNC), 100)
    with pytest.raises(CorruptStoreError, match="as the task wrote"):
        append(root, numbered("T", 90, 10), options=_SYNC)


def test_our_own_files_are_replaced_by_nobody_else(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The second queue without files makes a note, which the third write flushes and then replaces."""
    root = make_store(tmp_path / "store")
    for number, options in enumerate((_ASYNC, _ASYNC, _SYNC)):
        append(root, numbered("T", number, 1), options=options)
    assert (root / ".rmqlog" / "queues.json").exists()
    assert "another process" not in caplog.text

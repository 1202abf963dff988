"""How a store was left: one answer, for whoever opens the store and for whoever diagnoses it."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import Abort, CommitState, StoreState
from store_format.bookkeeping.ledger import GivenUp, ServiceCounters
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.errors import StoreError
from store_format.files.write import FileWrites
from store_format.opened.store import Opened
from tests.support.failing_writer import Failure, install
from tests.support.staged import append, make_store, numbered, stage

_FIRST, _BATCH = 20, 30


@pytest.mark.parametrize(
    ("abort", "state"),
    [(None, StoreState.CLEAN), (b"4711", StoreState.CRASHED), (b"", StoreState.CRASHED)],
    ids=["none", "of a 5.x broker", "of a 4.9 broker"],
)
def test_abort_files_of_brokers(tmp_path: Path, abort: bytes | None, state: StoreState) -> None:
    if abort is not None:
        (tmp_path / "abort").write_bytes(abort)
    assert StoreState.of(Opened(str(tmp_path))) is state


def test_the_mark_of_this_project_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / ".rmqlog").mkdir()
    Abort.write_mark(Opened(str(tmp_path)), "id1", FileWrites(sync=False))
    assert StoreState.of(Opened(str(tmp_path))) is StoreState.CLEAN


def _broken_off(before: Path, root: Path, at: int) -> bool:
    """Copies the store and commits to the copy with a disk that fails for good at its `at`th change. Whether
    a journal with its mark in `abort` is left.
    """
    shutil.copytree(before, root)
    staged = stage(root, numbered("T", _FIRST, _BATCH), write="w1", sync=False)
    failure = Failure("EIO:on", at)
    originals = install(failure)
    try:
        commit(str(root), [staged], key=("q", 1), options=CommitOptions(clock=lambda: 1_700_000_200_000))
    except StoreError:
        pass
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
    return CommitState.read(Opened(str(root))).base is not None


@pytest.mark.process
def test_a_commit_that_was_broken_off_is_no_crash_for_anybody(tmp_path: Path) -> None:
    """Readers hide it; diagnose reports the journal and nothing of the batch's own bytes."""
    before = make_store(tmp_path / "before")
    append(before, numbered("T", 0, _FIRST), key=("q", 0))
    broken = 0
    for at in range(1, 80, 3):
        root = tmp_path / str(at)
        if not _broken_off(before, root, at):
            continue
        broken += 1
        store = MessageStore.open(str(root))
        assert store.state is StoreState.of(Opened(str(root))) is StoreState.CLEAN
        assert sum(queue.max_offset - queue.min_offset for queue in store.queues()) == _FIRST
        found = store.diagnose()
        assert [problem.file for problem in found.of("damage", "warning")] == [
            f"{root}/.rmqlog/journal.json"
        ], [str(problem) for problem in found]
        assert [problem.file for problem in found.of("info")] == [f"{root}/abort"]
    assert broken > 5


# ---- the trace of messages that recoveries have given up ---------------------------------------------------


def test_a_recovery_that_ran_twice_counts_each_message_once(tmp_path: Path) -> None:
    """The first run was killed when it had removed some of the entries."""
    root, files = str(make_store(tmp_path / "store")), FileWrites(sync=False)
    GivenUp((("T", 0, 100, 160), ("T", 1, 5, 9)), ((4096, 8192),)).add_to(Opened(root), files)
    GivenUp((("T", 0, 120, 160), ("V", 0, 5, 9)), ((0, 4096), (5000, 6000))).add_to(Opened(root), files)
    found = GivenUp.read(Opened(root))
    assert found == GivenUp((("T", 0, 100, 160), ("T", 1, 5, 9), ("V", 0, 5, 9)), ((0, 8192),))
    assert str(found) == "68 messages"
    GivenUp((("T", 0, 160, 161),)).add_to(Opened(root), files)
    assert GivenUp.read(Opened(root)).count == 69


# ---- the counters of services ------------------------------------------------------------------------------


def test_turns_add_up() -> None:
    first = ServiceCounters().after(3, 250, 1000, failed=False)
    assert first == ServiceCounters(1, 3, 0, 1000, 250)
    assert first.after(0, 40, 2000, failed=True) == ServiceCounters(2, 3, 1, 2000, 250)


def test_the_view_shows_what_was_written(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    store = MessageStore.create(root, broker_name="broker-a")
    assert ServiceCounters.read_all(Opened(root)) is None
    assert store.view("services").num_rows == 0
    counters = {"timer": ServiceCounters(1, 2, 0, 5000, 7), "schedule": ServiceCounters(4, 9, 1, 6000, 80)}
    ServiceCounters.write_all(Opened(root), counters, FileWrites(sync=True))
    assert ServiceCounters.read_all(Opened(root)) == counters
    rows = store.view("services").drop_columns(["lastTurn"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("broker-a", "schedule", 4, 9, 1, 80),
        ("broker-a", "timer", 1, 2, 0, 7),
    ]


@pytest.mark.parametrize("data", [b"", b"[]", b'{"services":{"clean":3}}', b'{"services":{"a":{"x":1}}}'])
def test_a_file_that_cannot_be_read_is_empty(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".rmqlog").mkdir()
    (tmp_path / ".rmqlog" / "services.json").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert ServiceCounters.read_all(Opened(str(tmp_path))) == {}
    assert "services.json cannot be read" in caplog.text

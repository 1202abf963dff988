"""How a store was left: one answer, for whoever opens the store and for whoever diagnoses it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState, read_commit_state, store_state, write_abort_mark
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
    assert store_state(Opened(str(tmp_path))) is state


def test_the_mark_of_this_project_is_no_crash(tmp_path: Path) -> None:
    (tmp_path / ".rmqlog").mkdir()
    write_abort_mark(Opened(str(tmp_path)), "id1", FileWrites(sync=False))
    assert store_state(Opened(str(tmp_path))) is StoreState.CLEAN


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
    return read_commit_state(Opened(str(root))).base is not None


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
        assert store.state is store_state(Opened(str(root))) is StoreState.CLEAN
        assert sum(queue.max_offset - queue.min_offset for queue in store.queues()) == _FIRST
        found = store.diagnose()
        assert [problem.file for problem in found.of("damage", "warning")] == [
            f"{root}/.rmqlog/journal.json"
        ], [str(problem) for problem in found]
        assert [problem.file for problem in found.of("info")] == [f"{root}/abort"]
    assert broken > 5

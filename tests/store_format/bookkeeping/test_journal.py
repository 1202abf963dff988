"""Our own small files, whole and damaged: journal, ledger, settings, and what a reader makes of journal and
`abort`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_format.bookkeeping.identity import ClusterMember, LogPlace, StagedFile
from store_format.bookkeeping.journal import Abort, CommitState, Journal
from store_format.bookkeeping.ledger import Ledger, LedgerEntry
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import recover
from store_format.errors import CorruptStoreError, OptionError
from store_format.files.write import FileWrites
from store_format.index.file import IndexGeometry
from store_format.index.updates import IndexBatch, IndexFiles, last_index_file, rewind_index
from store_format.opened.store import Opened
from tests.support.failing_writer import write
from tests.support.file_edits import overwrite
from tests.support.fork_server import ForkServer
from tests.support.kills import kill_at
from tests.support.staged import append, make_store, numbered

_FILES = FileWrites(sync=False)
_STAGED = StagedFile("w", "n", 3, 300, 1, 80, 2, (("T", 0), ("Ü", 7)), False, 120)
_JOURNAL = Journal(
    "id1",
    ("q", 5),
    (_STAGED,),
    0,
    4096,
    65536,
    400,
    _STAGED.queues,
    (0, 12),
    {"T": 4},
    17,
    None,
    True,
    True,
    50,
    200,
    ("20231114221320123", "00" * 40),
    1_700_000_000_000,
    3600,
    (LogPlace("commitlog"), LogPlace("/somewhere/commitlog", "1a")),
    (ClusterMember("a", "2b"), ClusterMember("b", "3c")),
    False,
)
_ENTRY = LedgerEntry(5, "id1", 0, 100, 40, 60, 99)


@pytest.fixture
def root(tmp_path: Path) -> str:
    (tmp_path / ".rmqlog").mkdir()
    return str(tmp_path)


def test_a_journal_comes_back_as_it_was(root: str) -> None:
    assert Journal.read(Opened(root)) is None
    for journal in (_JOURNAL, replace(_JOURNAL, key=None, index_base=None, store_timestamps="x.times")):
        journal.write(Opened(root), _FILES)
        assert Journal.read(Opened(root)) == journal
    assert os.listdir(f"{root}/.rmqlog") == ["journal.json"]


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"null",
        b'{"version":2}',
        b'{"version":3}',
        b'{"version":1}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
)
@pytest.mark.parametrize("name", ["journal.json", "ledger.json", "store.json"])
def test_a_damaged_file_is_named(root: str, name: str, data: bytes) -> None:
    Path(root, ".rmqlog", name).write_bytes(data)
    read = {"journal.json": Journal.read, "ledger.json": Ledger.read, "store.json": StoreSettings.read}[name]
    with pytest.raises(CorruptStoreError) as caught:
        read(Opened(root))
    assert name in caught.value.file


_Change = Callable[[Any], object]  # of a journal's JSON
_CHANGES: dict[str, _Change] = {
    "staged files in another directory": lambda j: j["staged"][0].update(write="../../../elsewhere"),
    "a staged file elsewhere": lambda j: j["staged"][0].update(name="../../n"),
    "store times elsewhere": lambda j: j.update(store_timestamps="../../x.times"),
    "a text for a number": lambda j: j.update(base="x"),
    "no number": lambda j: j["staged"][0].update(units=None),
    "a number that no file has": lambda j: j.update(base=1 << 63),
    "an offset too many": lambda j: j["queue_bases"].append(1),
    "queues of staged files only": lambda j: j.update(queues=[["T", 0]], queue_bases=[0]),
    "no topics": lambda j: j.update(new_topics=None),
    "a list for a name": lambda j: j.update(index_base=[[], "00"]),
    "a header that is none": lambda j: j.update(index_base=["20231114221320123", "x"]),
    "a key of one part": lambda j: j.update(key=["q"]),
    "no zone": lambda j: j.update(zone_seconds=1 << 40),
}


@pytest.mark.parametrize("name", _CHANGES)
def test_a_journal_with_other_values_is_none(root: str, name: str) -> None:
    """Its names lead to no file elsewhere, and no caller fails on its values."""
    value = json.loads(_JOURNAL.to_bytes())
    _CHANGES[name](value)
    Path(root, ".rmqlog", "journal.json").write_text(json.dumps(value))
    with pytest.raises(CorruptStoreError, match="a journal of this project"):
        Journal.read(Opened(root))


def test_a_ledger_with_a_number_that_no_file_has_is_none(root: str) -> None:
    Ledger(last=replace(_ENTRY, stop=1 << 63)).write(Opened(root), _FILES)
    with pytest.raises(CorruptStoreError, match="a ledger of this project"):
        Ledger.read(Opened(root))


def test_empty_settings_are_named(root: str) -> None:
    Path(root, ".rmqlog", "store.json").write_bytes(b"")
    with pytest.raises(CorruptStoreError, match=r"store\.json"):
        StoreSettings.read(Opened(root))


def test_a_ledger_keeps_the_highest_number_of_each_key(root: str) -> None:
    assert Ledger.read(Opened(root)) == Ledger()
    ledger = Ledger().with_entry("q", _ENTRY, {("S", 0): 9})
    ledger = ledger.with_entry(None, replace(_ENTRY, journal="id2"), {("T", 3): 7, ("U", 0): 1})
    assert ledger.ends == {("T", 3): 7, ("U", 0): 1}
    ledger.write(Opened(root), _FILES)
    assert Ledger.read(Opened(root)) == ledger
    assert (ledger.has(("q", 5)), ledger.has(("q", 4)), ledger.has(("q", 6)), ledger.has(("r", 0))) == (
        True,
        True,
        False,
        False,
    )


def test_settings_come_back_and_are_checked(root: str) -> None:
    settings = StoreSettings("ü", 1 << 20, 1999, 100, 400)
    Path(root, ".rmqlog", "store.json").write_bytes(settings.to_json())
    assert StoreSettings.read(Opened(root)) == settings
    assert settings.queue_file_size == 2000
    assert "mappedFileSizeConsumeQueue=1999\n" in settings.broker_conf().decode()
    for wrong in (
        {"mapped_file_size_commit_log": 0},
        {"mapped_file_size_consume_queue": 19},
        {"max_index_num": 1},
    ):
        with pytest.raises(OptionError):
            StoreSettings("b", **wrong)


def test_readers_stop_at_the_base_only_while_abort_has_the_journals_id(root: str) -> None:
    assert CommitState.read(Opened(root)).base is None
    Ledger(last=_ENTRY).write(Opened(root), _FILES)
    assert CommitState.committed_end(Opened(root)) == 100
    _JOURNAL.write(Opened(root), _FILES)
    assert CommitState.read(Opened(root)).base is None  # nothing is written yet
    Abort.write_mark(Opened(root), "id1", _FILES)
    state = CommitState.read(Opened(root))
    assert (state.base, state.is_own, state.journal) == (4096, True, "id1")
    assert CommitState.committed_end(Opened(root)) == 4096
    Path(root, "abort").write_bytes(b"4711")  # a broker has started
    assert Abort.read_mark(Opened(root)) == ""
    assert (CommitState.read(Opened(root)).base, CommitState.read(Opened(root)).is_own) == (None, False)
    Abort.write_mark(Opened(root), "id0", _FILES)  # what a commit without flush left, before this one's mark
    assert (CommitState.read(Opened(root)).base, CommitState.read(Opened(root)).is_own) == (None, True)


# ---- the index wound back ----------------------------------------------------------------------------------


def _batch(first: int, count: int) -> IndexBatch:
    rng = np.random.default_rng(first)
    messages = np.arange(count)
    hashes = rng.integers(0, 1000, 2 * count).astype(np.int32)
    return IndexBatch(
        100 * (first + messages), 1_700_000_000_000 + 10 * (first + messages), hashes, np.repeat(messages, 2)
    )


def _write(root: str, *batches: IndexBatch) -> None:
    from datetime import UTC

    files = IndexFiles(f"{root}/index", IndexGeometry(20, 100), 1_700_000_000_000, UTC, _FILES)
    for batch in batches:
        files.write(batch)
    files.close()


def _index(root: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(root, "index").iterdir())}


@pytest.mark.parametrize("count", [1, 5, 30, 49, 50, 120])
@pytest.mark.parametrize("header_lost", [True, False])
def test_entries_written_later_leave_no_trace(root: str, count: int, header_lost: bool) -> None:
    _write(root, _batch(1, 40))
    before, base = _index(root), last_index_file(f"{root}/index")
    _write(root, _batch(100, count))
    assert _index(root) != before
    if header_lost:  # the crash came between the slots and the header
        for name, data in before.items():
            overwrite(Path(root, "index", name), 0, data[:40])
    rewind_index(f"{root}/index", base, IndexGeometry(20, 100), _FILES)
    assert _index(root) == before


def test_an_index_that_was_not_there_is_gone(root: str) -> None:
    _write(root, _batch(1, 120))
    rewind_index(f"{root}/index", None, IndexGeometry(20, 100), _FILES)
    assert _index(root) == {}


@pytest.mark.process
@pytest.mark.parametrize("at", range(20, 120, 20))
def test_a_commit_that_ends_while_its_state_is_read(tmp_path: Path, forks: ForkServer, at: int) -> None:
    """Else a reader that began before the commit, and saw a part of it, would find the same state behind its
    look as before it.
    """
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 40), key=("q", 0))
    before = CommitState.read(Opened(str(root)))
    kill_at(forks, root, "kill", at, write, 40, 450)
    assert CommitState.read(Opened(str(root))) != before
    for name in ("/journal.json", "/abort"):
        copy = Path(shutil.copytree(root, tmp_path / name.strip("/")))
        pending = [f"{copy}/.rmqlog{name}", f"{copy}{name}"]

        def ends(
            event: str, arguments: tuple[object, ...], pending: list[str] = pending, copy: Path = copy
        ) -> None:
            if event == "open" and arguments[0] in pending:
                pending.clear()
                recover(str(copy))

        sys.addaudithook(ends)
        during = CommitState.read(Opened(str(copy)))
        assert not pending
        assert during == CommitState.read(Opened(str(copy)))
        assert during.base is None

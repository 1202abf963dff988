"""The table of the states of a commit: every row is made by a kill, and reader and writer do what it says."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from store_format.bookkeeping.journal import STATES, Abort, Journal, Reading, State, Writing, find_state
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.append import commit_cluster
from store_format.commit.options import CommitOptions
from store_format.opened.store import Opened
from tests.support.failing_writer import staged_members, write, write_cluster
from tests.support.fork_server import ForkServer
from tests.support.kills import States, killed_stores
from tests.support.staged import append, make_store, numbered, prepare_stage
from tests.support.stored_rows import bodies_in

pytestmark = pytest.mark.slow

_FIRST, _BATCH = 4, 40  # messages before the commit, and of the commit
_NAMES = ("broker-a", "broker-b")
# what another process does to `abort` after the kill: nothing; a broker starts, and is killed too
_AFTERWARDS = (None, b"4711")
_WITHOUT = b""  # the store is copied without the file


def _options(mode: str) -> CommitOptions:
    return CommitOptions(sync=mode == "sync", clock=lambda: 1_700_000_300_000)


def _expected(*numbers: int) -> list[str]:
    return sorted(m.body.decode().rstrip(".") for i in numbers for m in numbered("T", i, 1))


def _state(root: Path) -> State:
    return State.of(Opened(str(root)), Journal.read(Opened(str(root))))


def _check_reading(root: Path, state: State, before: list[str], whole: list[str]) -> None:
    read = bodies_in(root)
    if state.reading is Reading.TO_BASE:
        assert read == before
    elif state.reading is Reading.ALL:
        last = Ledger.read(Opened(str(root))).last
        is_done = state.in_ledger or (state.journal is None and last is not None and last.units == _BATCH)
        assert read == whole if is_done else read in (before, whole)
    else:  # a broker keeps a beginning of the commit
        assert set(before) <= set(read) <= set(whole)
        assert len(read) == len(set(read))


def test_each_combination_of_the_files_has_one_row() -> None:
    combinations = itertools.product((None, False, True), Abort, (False, True))
    found = {find_state(*each).name for each in combinations}
    assert found == {state.name for state in STATES}
    assert len(found) == len(STATES)
    evidence = [(s.journal, s.abort, s.in_ledger) for s in STATES]
    assert len(set(evidence)) == len(evidence)


def test_what_a_reader_does_does_not_depend_on_the_ledger() -> None:
    """Readers compare the ledger's identity only."""
    for complete, abort in itertools.product((None, False, True), Abort):
        assert (
            find_state(complete, abort, in_ledger=False).reading
            == find_state(complete, abort, in_ledger=True).reading
        )


@pytest.mark.process
@pytest.mark.timeout(600)
def test_reader_and_writer_follow_the_table_after_each_kill(tmp_path: Path, forks: ForkServer) -> None:
    forks.prepare(prepare_stage, numbered("T", _FIRST, _BATCH))
    met: set[str] = set()
    for mode in ("sync", "async"):
        (tmp_path / mode).mkdir()
        before = make_store(tmp_path / mode / "store")
        append(before, numbered("T", 0, _FIRST), key=("q", 0), options=_options(mode))
        seen = States()
        for _, killed in killed_stores(
            forks, before, tmp_path / mode, "kill", write, _FIRST, _BATCH, 1, mode
        ):
            if not seen.is_new(killed):
                continue
            for number, abort in enumerate((*_AFTERWARDS, _WITHOUT)):
                root = Path(shutil.copytree(killed, tmp_path / mode / "walked"))
                if abort is not None:
                    (root / "abort").write_bytes(abort)
                if abort == _WITHOUT:
                    (root / "abort").unlink()
                met.add(_walk(root, mode, number))
                shutil.rmtree(root)
    assert met == {s.name for s in STATES if s.journal is not False and s.name != "concluded, not flushed"}


def _walk(root: Path, mode: str, number: int) -> str:
    state = _state(root)
    before, whole = _expected(*range(_FIRST)), _expected(*range(_FIRST + _BATCH))
    _check_reading(root, state, before, whole)
    has_batch = state.writing is not Writing.APPEND and state.journal is not None
    append(root, numbered("T", 100, 1), key=("other", number), options=_options(mode))
    left = _state(root)
    assert left.writing in (Writing.APPEND, Writing.FLUSH)
    read = bodies_in(root)
    assert read in (sorted(_expected(*range(_FIRST), 100)), sorted(_expected(*range(_FIRST + _BATCH), 100)))
    if has_batch:
        assert len(read) == _FIRST + _BATCH + 1
    return state.name


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_commit_over_a_cluster_follows_the_table(tmp_path: Path, forks: ForkServer) -> None:
    cluster = tmp_path / "cluster"
    cluster.mkdir()
    for i, name in enumerate(_NAMES):
        append(
            make_store(cluster / name),
            numbered("T", 1000 + i, 1),
            key=("old", 0),
            options=_options("async" if i else "sync"),
        )
    met: dict[bytes | None, set[str]] = {
        abort: set() for abort in (*_AFTERWARDS, b"rmqlog of an earlier commit")
    }
    seen = States()
    for _, killed in killed_stores(
        forks, cluster, tmp_path / "killed", "kill", write_cluster, _NAMES, every=5
    ):
        if not seen.is_new(killed):
            continue
        for abort, names in met.items():
            root = Path(shutil.copytree(killed, tmp_path / "walked"))
            names |= _walk_cluster(root, abort)
            shutil.rmtree(root)
    expected = ["announced", "announced, crashed", "announced, not flushed"]
    assert [name in names for name, names in zip(expected, met.values(), strict=True)] == [True] * 3


def _walk_cluster(cluster: Path, abort: bytes | None) -> set[str]:
    met = set()
    for i, name in enumerate(_NAMES):
        root = cluster / name
        if abort == b"4711" or (abort and _state(root).name == "announced"):
            (root / "abort").write_bytes(abort)
        state = _state(root)
        met.add(state.name)
        if state.reading is not Reading.RECOVERED:
            mine = _expected(1000 + i), _expected(1000 + i, *range(10 * i, 10 * i + 10))
            assert bodies_in(root) in mine[: 1 if state.reading is Reading.TO_BASE else 2]
    commit_cluster(staged_members(cluster, _NAMES, 0, "again"), key=("q", 1), options=_options("async"))
    for i, name in enumerate(_NAMES):
        assert bodies_in(cluster / name) == _expected(1000 + i, *range(10 * i, 10 * i + 10))
    return met


@pytest.mark.process
def test_a_journal_that_came_back_hides_no_crash_of_a_broker(tmp_path: Path, forks: ForkServer) -> None:
    """The removal of the journal is not synced: a power loss brings it back. Then a broker crashed."""
    forks.prepare(prepare_stage, numbered("T", _FIRST, _BATCH))
    before = make_store(tmp_path / "store")
    append(before, numbered("T", 0, _FIRST), key=("q", 0))
    stores = killed_stores(forks, before, tmp_path, "kill", write, _FIRST, _BATCH, 1)
    killed = next(root for _, root in stores if _state(root).name == "concluded")
    root = Path(shutil.copytree(killed, tmp_path / "crashed"))
    append(root, numbered("T", 100, 1))  # the broker's message, whose queue entry is not on the disk
    for name in ("ledger.json", "journal.json"):
        shutil.copy(killed / ".rmqlog" / name, root / ".rmqlog" / name)
    shutil.rmtree(root / "consumequeue")
    shutil.copytree(killed / "consumequeue", root / "consumequeue")
    (root / "abort").write_bytes(b"4711")
    assert _state(root).name == "concluded, crashed"
    assert bodies_in(root) == _expected(*range(_FIRST + _BATCH), 100)
    append(root, numbered("T", 200, 1))
    assert bodies_in(root) == _expected(*range(_FIRST + _BATCH), 100, 200)

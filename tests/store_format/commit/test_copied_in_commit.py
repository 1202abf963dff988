"""A store whose commit was interrupted, and that lacks `abort`, or is a copy that was made meanwhile: what
the commitlog has of the batch gets its topics, queue entries and index entries.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from store_format.bookkeeping.journal import Abort, Journal, Reading, State, Writing
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.errors import CorruptStoreError, StoreNotFoundError
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support import oracle
from tests.support.failing_writer import Failure, install
from tests.support.file_edits import overwrite
from tests.support.fork_server import ForkServer
from tests.support.kills import States, killed_stores
from tests.support.oracle import build_index_files
from tests.support.staged import append, make_store, messages_of, numbered, stage
from tests.support.stored_rows import bodies_in

_FIRST, _OLD, _NEW = 20, 30, 20  # messages before, and in the batch: of T, and of U, which the batch creates
_BATCH = [*numbered("T", _FIRST, _OLD), *numbered("U", _FIRST + _OLD, _NEW)]
_KEY = ("job", 1)
_EVERY = 16  # without --whole


def write_both(root: Path, failure: Failure) -> None:
    """Commits the batch."""
    staged = stage(root, _BATCH, write="w1", sync=False)
    install(failure)
    options = CommitOptions(new_topics={"U": 4}, clock=lambda: 1_700_000_200_000)
    commit(str(root), [staged], key=_KEY, options=options)


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_store(tmp_path_factory.mktemp("copied") / "store")
    append(root, numbered("T", 0, _FIRST), key=("job", 0))
    return root


def _of_before(root: Path, before: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(root / name)
        shutil.copytree(before / name, root / name)


_LACKING: dict[str, tuple[str, ...]] = {
    "all but the log": ("config", "consumequeue", "index"),
    "abort only": (),
    "config": ("config",),
    "queues and index": ("consumequeue", "index"),
}


def _variants(killed: Path, before: Path, directory: Path, count: int) -> Iterator[tuple[str, Path]]:
    """Copies of the store without `abort`, by what they lack more."""
    for name, lacking in [*_LACKING.items()][:count]:
        for behind in (False, True):
            root = Path(shutil.copytree(killed, directory / "variant"))
            (root / "abort").unlink(missing_ok=True)
            _of_before(root, before, *lacking)
            if behind:
                _write_behind(root)
            yield name + ", with a message behind" * behind, root
            shutil.rmtree(root)


def _write_behind(root: Path) -> None:
    """Gives the store the commitlog that another writer left which had completed the batch."""
    other = Path(shutil.copytree(root, root.parent / "other"))
    append(other, numbered("T", 900, 1))
    _of_before(root, other, "commitlog")
    shutil.rmtree(other)


def _check_whole(root: Path, expected: set[str]) -> None:
    assert bodies_in(root) == sorted(expected)
    messages = messages_of(root)
    assert sorted(m.body.decode().rstrip(".") for m in messages) == sorted(expected)
    files = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    assert files == build_index_files(tuple(messages), 50, 200)
    topics = read_topics(Opened(str(root)))
    assert topics is not None
    assert topics["U"].read_queue_nums == 4
    diagnosis = MessageStore.open(str(root)).diagnose()
    assert [str(problem) for problem in diagnosis if problem.severity != "info"] == []


def _interrupted(forks: ForkServer, before: Path, place: Path, whole: bool) -> Iterator[tuple[Path, Journal]]:
    """Stores in which the commit of the batch was killed, and its journal."""
    every = 1 if whole else _EVERY
    for _, root in killed_stores(forks, before, place, "kill", write_both, every=every):
        journal = Journal.read(Opened(str(root)))
        if journal is not None:
            yield root, journal


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_batch_without_abort_is_completed(
    before: Path, tmp_path: Path, forks: ForkServer, whole: bool
) -> None:
    expected = {m.body.decode().rstrip(".") for m in [*numbered("T", 0, _FIRST), *_BATCH]}
    states, checked = States(), 0
    for killed, journal in _interrupted(forks, before, tmp_path, whole):
        if not states.is_new(killed):
            continue
        for name, root in _variants(killed, before, tmp_path, 4 if whole else 1):
            state = State.of(Opened(str(root)), journal)
            assert state.abort is Abort.NONE
            if state.writing is Writing.CONCLUDE:
                continue
            again = commit(str(root), [stage(root, _BATCH, write="w2")], key=_KEY, options=CommitOptions())
            assert not again.committed, name
            more = {"message 900 of T"} if name.endswith("behind") else set()
            _check_whole(root, expected | more)
            checked += 1
    assert checked >= 4


@pytest.mark.process
@pytest.mark.timeout(300)
def test_no_batch_is_completed_behind_lost_bytes(
    before: Path, tmp_path: Path, forks: ForkServer, whole: bool
) -> None:
    """A copy can lack the message in front of the batch. A broker that starts ends the log there."""
    lost, cut = messages_of(before)[-1], Counter[bool]()
    for root, journal in _interrupted(forks, before, tmp_path, whole):
        if State.of(Opened(str(root)), journal).in_ledger:
            continue  # all of it is written already
        file = root / "commitlog" / "00000000000000000000"
        overwrite(file, lost.physical_offset, bytes(len(oracle.encode_message(lost))))
        refusal = ""
        try:
            append(root, numbered("T", 900, 1))
        except CorruptStoreError as error:
            refusal = str(error)
        if refusal:
            assert "rmqlog recover STORE --cut-after-damage --apply" in refusal
            MessageStore.open(str(root)).recover(cut_after_damage=True).apply()
            append(root, numbered("T", 900, 1))
        cut[bool(refusal)] += 1
        found = MessageStore.open(str(root)).diagnose()
        assert found.verdict.startswith("sound"), found
        assert "message 900 of T" in bodies_in(root)
    assert min(cut[True], cut[False]) > 0


def give_up(root: Path, failure: Failure) -> None:
    install(failure)
    MessageStore.open(str(root)).recover(cut_after_damage=True).apply()


def _begun_without_staged(
    forks: ForkServer, before: Path, place: Path, whole: bool, behind: bool = False
) -> Iterator[Path]:
    """Stores whose commit has begun, without its staged files. `behind`: another writer's message, too, and
    the batch is not in the ledger.
    """
    for root, journal in _interrupted(forks, before, place, whole):
        state = State.of(Opened(str(root)), journal)
        if state.reading is Reading.TO_BASE and not (behind and state.in_ledger):
            if behind:
                _write_behind(root)
            shutil.rmtree(root / ".rmqlog" / "staging")
            yield root


def _write_again(root: Path) -> None:
    options = CommitOptions(new_topics={"U": 4}, clock=lambda: 1_700_000_300_000)
    assert commit(str(root), [stage(root, _BATCH, write="w3")], key=_KEY, options=options).committed


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_commit_without_its_staged_files_is_given_up_and_done_again(
    before: Path, tmp_path: Path, forks: ForkServer, whole: bool
) -> None:
    """A copy can have the journal and not the staged files: nobody can complete the commit there."""
    expected, checked = {m.body.decode().rstrip(".") for m in [*numbered("T", 0, _FIRST), *_BATCH]}, 0
    for root in _begun_without_staged(forks, before, tmp_path, whole):
        with pytest.raises(StoreNotFoundError, match="rmqlog recover STORE --cut-after-damage --apply"):
            append(root, numbered("T", 900, 1))
        MessageStore.open(str(root)).recover(cut_after_damage=True).apply()
        _write_again(root)
        _check_whole(root, expected)
        checked += 1
    assert checked >= 2


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_commit_is_given_up_whatever_kills_the_recovery(
    before: Path, tmp_path: Path, forks: ForkServer, whole: bool
) -> None:
    expected = {m.body.decode().rstrip(".") for m in [*numbered("T", 0, _FIRST), *_BATCH]}
    *_, last = (
        shutil.copytree(root, tmp_path / f"begun-{i}")
        for i, root in enumerate(_begun_without_staged(forks, before, tmp_path, whole))
    )
    for _, root in killed_stores(forks, last, tmp_path, "kill", give_up, every=1 if whole else 5):
        MessageStore.open(str(root)).recover(cut_after_damage=True).apply()
        _write_again(root)
        _check_whole(root, expected)


@pytest.mark.process
@pytest.mark.timeout(300)
def test_no_message_of_another_writer_is_given_up_with_a_commit(
    before: Path, tmp_path: Path, forks: ForkServer, whole: bool
) -> None:
    """Behind the messages of the batch, which stay too: perhaps others have read them."""
    checked, batch = 0, {m.body.decode().rstrip(".") for m in _BATCH}
    for root in _begun_without_staged(forks, before, tmp_path, whole, behind=True):
        MessageStore.open(str(root)).recover(cut_after_damage=True).apply()
        _write_again(root)
        assert {"message 900 of T", *batch} <= set(bodies_in(root))
        checked += 1
    assert checked >= 2

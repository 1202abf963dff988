"""A writer that is killed, or whose disk fails, at every single change: nothing is lost, nothing there twice,
nothing seen early.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from store_format import kernels
from store_format.bookkeeping.journal import Abort, Journal
from store_format.commit.append import commit, recover
from store_format.commit.options import CommitOptions
from store_format.errors import StoreError
from store_format.metadata.read import BrokerConf, read_checkpoint
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.failing_writer import Failure, cut_small, install, write
from tests.support.fork_server import ForkServer
from tests.support.kills import States, kill_at, killed_stores
from tests.support.oracle import Message, build_index_files
from tests.support.staged import append, make_store, messages_of, numbered, prepare_stage, stage

pytestmark = pytest.mark.slow

# messages before, and in the batch: it fills queue files, index files and the log's second file
_FIRST, _BATCH = 40, 150
_WRITTEN = 1_700_000_200_000  # the store time of the batch
# Without --whole, every fifth change; of a commit with flush and without a thread, every second one. Of a
# smaller commit with flush, test_commit_states.py kills before every change.
_EVERY = 5
_OPTIONS = CommitOptions(clock=lambda: 1_700_000_300_000)


def _bodies(root: Path) -> list[str]:
    """Every message a reader sees, by queue and offset without gaps."""
    found = []
    for queue in MessageStore.open(str(root)).queues():
        expected = queue.min_offset
        for batch in queue.read(columns=["queueOffset", "body"]):
            offsets = batch["queueOffset"].to_pylist()
            assert offsets == list(range(expected, expected + len(offsets)))
            expected += len(offsets)
            found += [body.decode().rstrip(".") for body in batch["body"].to_pylist()]
        assert expected == queue.max_offset
    return sorted(found)


def _expected(count: int) -> list[str]:
    return sorted(f"message {i} of T" for i in range(count))


@lru_cache(8)  # most kills end in one of two commitlogs
def _index_files(messages: tuple[Message, ...]) -> list[bytes]:
    return build_index_files(messages, 50, 200)


def _check_index(root: Path, messages: list[Message]) -> None:
    """Index files are those of a broker that wrote this log."""
    files = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    assert files == _index_files(tuple(messages))


def _check_whole(root: Path, count: int) -> None:
    """Rows as expected, the log's units the same, index files those of a broker that wrote this log, and
    nothing left over.
    """
    assert _bodies(root) == _expected(count)
    messages = messages_of(root)
    assert sorted(m.body.decode().rstrip(".") for m in messages) == _expected(count)
    _check_index(root, messages)
    names = {path.name for path in (root / ".rmqlog").iterdir()}
    own = {
        "store.json",
        "broker.conf",
        "ledger.json",
        "ledger.json.bak.new",
        "staging",
        "queues.json",
        "queues.json.new",
        "doorbell",
    }
    assert names <= own
    assert not (root / "abort").exists()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_store(tmp_path_factory.mktemp("append") / "store")
    append(root, numbered("T", 0, _FIRST), key=("q", 0))
    return root


@pytest.fixture(scope="module", autouse=True)
def _prepared(forks: ForkServer) -> None:
    forks.prepare(prepare_stage, numbered("T", _FIRST, _BATCH))


_PARTS = [pytest.param((k, 2), id=f"part {k}") for k in (1, 2)]


@pytest.mark.process
@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", _PARTS)
@pytest.mark.parametrize("mode", ["sync", "async", "sync beside"])
def test_killed_at_each_change(
    before: Path, tmp_path: Path, forks: ForkServer, mode: str, part: tuple[int, int], whole: bool
) -> None:
    every = 1 if whole else 2 if mode == "sync" else _EVERY
    _check_each_kill(before, tmp_path, forks, mode, part, every)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", _PARTS)
def test_killed_at_each_change_with_kernels(
    before: Path, tmp_path: Path, part: tuple[int, int], whole: bool
) -> None:
    with ForkServer(kernels.load) as forks:
        forks.prepare(prepare_stage, numbered("T", _FIRST, _BATCH))
        mode = "sync beside kernels"
        _check_each_kill(before, tmp_path, forks, mode, part, 1 if whole else _EVERY)


def _check_each_kill(
    before: Path, tmp_path: Path, forks: ForkServer, mode: str, part: tuple[int, int], every: int
) -> None:
    kills = checked = slots = 0
    states = States()
    arguments = (_FIRST, _BATCH, 1, mode)
    for at, root in killed_stores(forks, before, tmp_path, "both", write, *arguments, every=every, part=part):
        kills += 1
        slots += _check_new_index_files(before, root, at)
        if states.is_new(root):
            checked += 1
            _check_killed(root)
    assert kills >= (60 if mode == "async" else 90 if every == 1 else 80) // every
    assert checked >= 30 // every
    assert slots > 5 // every or part[0] < part[1]


def _check_killed(root: Path) -> None:
    seen = _bodies(root)
    assert seen in (_expected(_FIRST), _expected(_FIRST + _BATCH))
    # The job runs again with the same key; then another batch.
    staged = stage(root, numbered("T", _FIRST, _BATCH), write="again")
    commit(str(root), [staged], key=("q", 1), options=_OPTIONS)
    append(root, numbered("T", _FIRST + _BATCH, 7), key=("q", 2), options=_OPTIONS)
    _check_whole(root, _FIRST + _BATCH + 7)


def _check_new_index_files(before: Path, root: Path, at: int) -> int:
    """A broker deletes each new index file that a kill left with slots; returns how many have no end time.

    A broker that recovers keeps a file whose end time is not behind the checkpoint's (IndexService.load), and
    links its own entries to what is in the slots.
    """
    unfinished = 0
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    assert checkpoint is not None
    for path in sorted((root / "index").iterdir()):
        if (before / "index" / path.name).exists() or path.stat().st_size < 40 + 50 * 4:
            continue
        data = path.read_bytes()
        end_time = int.from_bytes(data[8:16], "big")
        unfinished += not end_time
        is_kept = end_time <= checkpoint.index_msg_timestamp
        is_published = checkpoint.index_msg_timestamp == _WRITTEN
        assert not is_kept or is_published or not any(data[40 : 40 + 50 * 4]), f"change {at}: {path.name}"
    return unfinished


@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/T/1"])
def test_killed_while_lost_queues_are_rebuilt(
    before: Path, tmp_path: Path, forks: ForkServer, lost: str, whole: bool
) -> None:
    """Every reader and the next writer see all messages, and the store does not look crashed to a broker."""
    damaged = shutil.copytree(before, tmp_path / "damaged")
    shutil.rmtree(damaged / lost)
    during = 0
    states = States()
    every = 1 if whole else _EVERY
    for _, root in killed_stores(forks, damaged, tmp_path, "torn", write, _FIRST, _BATCH, every=every):
        if (root / ".rmqlog" / "rebuild").exists():
            during += 1
            assert not (root / "abort").exists()
        if states.is_new(root):
            assert _bodies(root) in (_expected(_FIRST), _expected(_FIRST + _BATCH))
            _check_again(root)
    assert during >= 5 // every


def _fail(root: Path, what: str, at: int) -> tuple[Failure, Exception | None]:
    """Commits in this process with a failing disk; what was raised."""
    staged = stage(root, numbered("T", _FIRST, _BATCH), write="w1", sync=False)
    failure = Failure(what, at)
    originals = install(failure)
    try:
        commit(str(root), [staged], key=("q", 1), options=_OPTIONS)
    except StoreError as error:
        return failure, error
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
    return failure, None


@pytest.mark.parametrize(
    ("what", "beside"), [("ENOSPC:once", False), ("EIO:once", False), ("EIO:once", True)]
)
def test_a_disk_that_fails_once(
    before: Path, tmp_path: Path, what: str, beside: bool, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    if beside:
        cut_small(monkeypatch.setattr)
    counted, raised = _fail(shutil.copytree(before, tmp_path / "whole"), what, 0)
    assert raised is None
    changes = counted.count
    assert changes >= 50
    outcomes = set()
    states = States()
    for at in range(1, changes + 1, 1 if whole else _EVERY):
        root = shutil.copytree(before, tmp_path / f"store-{at}")
        _, raised = _fail(root, what, at)
        seen = _bodies(root)
        if raised is None:
            assert seen == _expected(_FIRST + _BATCH)
        else:
            assert str(root) in str(raised)
            assert seen == _expected(_FIRST)
            assert not (root / "abort").exists()
            assert not (root / ".rmqlog" / "journal.json").exists()
            assert len(messages_of(root)) == _FIRST
        outcomes.add(raised is None)
        if states.is_new(root):  # most of what was undone is the same
            _check_again(root)
        shutil.rmtree(root)
    assert outcomes == {True, False}


def _check_again(root: Path) -> None:
    staged = stage(root, numbered("T", _FIRST, _BATCH), write="again")
    commit(str(root), [staged], key=("q", 1), options=_OPTIONS)
    _check_whole(root, _FIRST + _BATCH)


@pytest.mark.process
def test_a_disk_that_fails_for_good(before: Path, tmp_path: Path) -> None:
    """Neither complete nor undone: the error says so, readers see nothing of the batch, the next writer
    completes it.
    """
    whole, _ = _fail(shutil.copytree(before, tmp_path / "whole"), "EIO:on", 0)
    unfinished = 0
    for at in range(1, whole.count + 1, 3):
        root = shutil.copytree(before, tmp_path / f"store-{at}")
        _, raised = _fail(root, "EIO:on", at)
        if raised is None:
            assert _bodies(root) == _expected(_FIRST + _BATCH)
            continue
        if (root / ".rmqlog" / "journal.json").exists():
            unfinished += 1
            assert "the next writer completes it" in str(raised)
            assert _bodies(root) in (_expected(_FIRST), _expected(_FIRST + _BATCH))
            recover(str(root), options=_OPTIONS)
            _check_whole(root, _FIRST + _BATCH)
        else:
            assert _bodies(root) == _expected(_FIRST)
        _check_again(root)
        shutil.rmtree(root)
    assert unfinished > 5


# ---- a broker in between -----------------------------------------------------------------------------------


def _broker_ran(root: Path, *, leaves_abort: str | None) -> None:
    """What a broker does that starts on the store as the kill left it: recovery, 30 messages of its own, and
    a clean end or a crash.

    It knows nothing of `.rmqlog`. A 5.x broker writes its own process id into `abort`, a 4.9 one leaves ours.
    """
    kept = {name: (root / ".rmqlog" / name).read_bytes() for name in ("journal.json", "ledger.json")}
    mark = (root / "abort").read_bytes() if (root / "abort").exists() else None
    (root / ".rmqlog" / "journal.json").unlink()
    if mark is not None:
        (root / "abort").write_bytes(b"12345")
    append(root, numbered("B", 0, 30), options=_OPTIONS)
    for name, data in kept.items():
        (root / ".rmqlog" / name).write_bytes(data)
    if leaves_abort == "its own":
        (root / "abort").write_bytes(b"12345")
    elif leaves_abort == "ours" and mark is not None:
        (root / "abort").write_bytes(mark)


def _check_behind_broker(root: Path) -> None:
    staged = stage(root, numbered("T", _FIRST, _BATCH), write="again")
    commit(str(root), [staged], key=("q", 1), options=_OPTIONS)
    append(root, numbered("T", _FIRST + _BATCH, 7), key=("q", 2), options=_OPTIONS)
    messages = messages_of(root)
    broker = sorted(f"message {i} of B" for i in range(30))
    assert sorted(m.body.decode().rstrip(".") for m in messages) == sorted(
        _expected(_FIRST + _BATCH + 7) + broker
    )
    assert _bodies(root) == sorted(_expected(_FIRST + _BATCH + 7) + broker)
    assert MessageStore.open(str(root)).diagnose().of("damage", "warning") == []
    assert not (root / "abort").exists()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [pytest.param((k, 3), id=f"part {k}") for k in (1, 2, 3)])
def test_a_broker_ran_between_each_kill_and_the_next_commit(
    before: Path, tmp_path: Path, forks: ForkServer, part: tuple[int, int], whole: bool
) -> None:
    done = checked = 0
    states = States()
    every = 1 if whole else _EVERY
    for _, root in killed_stores(
        forks, before, tmp_path, "torn", write, _FIRST, _BATCH, every=every, part=part
    ):
        if not (root / ".rmqlog" / "journal.json").exists():
            continue
        done += 1
        if not states.is_new(root):
            continue
        checked += 1
        killed = root.rename(tmp_path / "killed")
        for leaves_abort in (None, "its own", "ours"):
            shutil.copytree(killed, root)
            _broker_ran(root, leaves_abort=leaves_abort)
            _check_behind_broker(root)
            shutil.rmtree(root)
        shutil.rmtree(killed)
    assert done > 80 // 3 // every
    assert checked >= 20 // every


class _Interference(Failure):
    """Does something to the store before the change numbered `at`, and lets that happen."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        super().__init__("interfere", at)
        self._act = act

    def fail(self, original: Any, name: str, args: tuple[Any, ...]) -> None:
        self._act()


@pytest.mark.parametrize("directory", ["index", "commitlog"])
def test_files_that_a_loading_broker_removes_under_a_commit(
    before: Path, tmp_path: Path, directory: str
) -> None:
    """It recovers the store before it asks for the lock. What is missing then is noticed before the batch
    counts, and made again.
    """
    counted, _ = _fail(shutil.copytree(before, tmp_path / "whole"), "EIO:once", 0)
    removed = 0
    for at in range(10, counted.count - 10, 5):
        root = shutil.copytree(before, tmp_path / f"store-{at}")
        staged = stage(root, numbered("T", _FIRST, _BATCH), write="w1", sync=False)
        remove = os.unlink

        def act(root: Path = root, remove: Callable[[Path], None] = remove) -> None:
            nonlocal removed
            files = sorted((root / directory).iterdir())
            if (root / "abort").exists() and len(files) > (directory == "commitlog"):
                remove(files[-1])
                removed += 1

        originals = install(_Interference(at, act))
        try:
            commit(str(root), [staged], key=("q", 1), options=_OPTIONS)
        finally:
            for name, original in originals.items():
                setattr(os, name, original)
        assert _bodies(root) == _expected(_FIRST + _BATCH)
        assert not (root / "abort").exists()
        _check_index(root, messages_of(root))
        store = MessageStore.open(str(root))
        assert store.find(key=f"k{_FIRST + _BATCH - 1}", topic="T").table.num_rows == 1
        assert store.diagnose().of("damage", "warning") == []
        shutil.rmtree(root)
    assert removed > 10


@pytest.mark.process
@pytest.mark.parametrize(("at", "mode"), [(30, "sync"), (20, "async")])
def test_services_flush_as_the_commit_that_was_broken_off(
    tmp_path: Path, forks: ForkServer, at: int, mode: str
) -> None:
    """`abort` is there in both cases; only the journal tells them apart."""
    root = make_store(tmp_path / "s")
    append(root, numbered("T", 0, 3))
    kill_at(forks, root, "kill", at, write, 3, 3, 1, mode)
    assert Journal.read(Opened(str(root))) is not None
    assert Abort.read_mark(Opened(str(root)))
    assert Journal.is_sync(Opened(str(root)), BrokerConf()) == (mode == "sync")

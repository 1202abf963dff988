"""A writer that is killed, or whose disk fails, at every single change: nothing is lost, nothing there twice,
nothing seen early.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from store_format.bookkeeping.journal import abort_mark, read_journal
from store_format.commit.append import commit, recover
from store_format.commit.prepare_store import CommitOptions, is_sync
from store_format.errors import StoreError
from store_format.metadata.broker_conf import BrokerConf
from store_format.store import MessageStore
from tests.support import failing_writer
from tests.support.failing_writer import Failure, cut_small, install
from tests.support.oracle import build_index_files
from tests.support.staged import append, make_store, messages_of, numbered, stage

_ROOT = Path(__file__).resolve().parents[3]
# messages before, and in the batch: it fills queue files, index files and the log's second file
_FIRST, _BATCH = 40, 150
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


def _check_whole(root: Path, count: int) -> None:
    """Rows as expected, the log's units the same, index files those of a broker that wrote this log, and
    nothing left over.
    """
    assert _bodies(root) == _expected(count)
    messages = messages_of(root)
    assert sorted(m.body.decode().rstrip(".") for m in messages) == _expected(count)
    made = build_index_files(messages, 50, 200)
    assert [path.read_bytes() for path in sorted((root / "index").iterdir())] == made
    names = {path.name for path in (root / ".rmqlog").iterdir()}
    own = {
        "store.json",
        "broker.conf",
        "ledger.json",
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


def _run(root: Path, what: str, at: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = failing_writer.command(root, _FIRST, _BATCH, what, at, *more)
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(1400)
@pytest.mark.parametrize("what", [pytest.param("kill", marks=pytest.mark.whole), "torn"])
@pytest.mark.parametrize("mode", ["sync", "async", "sync beside", "sync beside kernels"])
def test_killed_at_many_changes(before: Path, tmp_path: Path, what: str, mode: str, whole: bool) -> None:
    copy = shutil.copytree(before, tmp_path / "whole")
    counted = _run(copy, what, 0, *mode.split())
    assert counted.returncode == 0, counted.stderr
    changes = int(counted.stdout)
    assert changes >= (25 if mode == "async" else 50)
    step = 17 if "kernels" in mode else 4 if "beside" in mode else 3

    def kill(at: int) -> str | None:
        root = shutil.copytree(before, tmp_path / f"{what}-{at}")
        done = _run(root, what, at, *mode.split())
        assert done.returncode == -signal.SIGKILL, done.stderr
        _check_killed(root)
        shutil.rmtree(root)
        return None

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(kill, range(1, changes + 1, 1 if whole else step)))


def _check_killed(root: Path) -> None:
    seen = _bodies(root)
    assert seen in (_expected(_FIRST), _expected(_FIRST + _BATCH))
    # The job runs again with the same key; then another batch.
    staged = stage(root, numbered("T", _FIRST, _BATCH), write="again")
    commit(str(root), [staged], key=("q", 1), options=_OPTIONS)
    append(root, numbered("T", _FIRST + _BATCH, 7), key=("q", 2), options=_OPTIONS)
    _check_whole(root, _FIRST + _BATCH + 7)


@pytest.mark.process
def test_killed_at_some_changes(before: Path, tmp_path: Path) -> None:
    """A quick look at what the slow test does everywhere."""
    for at in (3, 9, 14, 21, 30, 45):
        root = shutil.copytree(before, tmp_path / str(at))
        assert _run(root, "torn", at).returncode == -signal.SIGKILL
        _check_killed(root)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/T/1"])
def test_killed_while_lost_queues_are_rebuilt(before: Path, tmp_path: Path, lost: str) -> None:
    """Every reader and the next writer see all messages, and the store does not look crashed to a broker."""
    during = 0
    for at in range(1, 30, 3):
        root = shutil.copytree(before, tmp_path / str(at))
        shutil.rmtree(root / lost)
        assert _run(root, "torn", at).returncode == -signal.SIGKILL
        if (root / ".rmqlog" / "rebuild").exists():
            during += 1
            assert not (root / "abort").exists()
        assert _bodies(root) in (_expected(_FIRST), _expected(_FIRST + _BATCH))
        staged = stage(root, numbered("T", _FIRST, _BATCH), write="again")
        commit(str(root), [staged], key=("q", 1), options=_OPTIONS)
        _check_whole(root, _FIRST + _BATCH)
        shutil.rmtree(root)
    assert during >= 2


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "beside"), [("ENOSPC:once", False), ("EIO:once", False), ("EIO:once", True)]
)
def test_a_disk_that_fails_once(
    before: Path, tmp_path: Path, what: str, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if beside:
        cut_small(monkeypatch.setattr)
    counted, raised = _fail(shutil.copytree(before, tmp_path / "whole"), what, 0)
    assert raised is None
    changes = counted.count
    assert changes >= 50
    outcomes = set()
    for at in range(1, changes + 1):
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


def _kill_and_let_a_broker_run(
    before: Path, root: Path, what: str, at: int, leaves_abort: str | None
) -> bool:
    shutil.copytree(before, root)
    assert _run(root, what, at).returncode == -signal.SIGKILL
    if not (root / ".rmqlog" / "journal.json").exists():
        return False
    _broker_ran(root, leaves_abort=leaves_abort)
    _check_behind_broker(root)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("leaves_abort", [None, "its own", "ours"])
def test_a_broker_ran_between_the_kill_and_the_next_commit(
    before: Path, tmp_path: Path, leaves_abort: str | None
) -> None:
    points = (16, 20, 26, 40, 90)
    done = [_kill_and_let_a_broker_run(before, tmp_path / str(at), "torn", at, leaves_abort) for at in points]
    assert any(done)


@pytest.mark.slow
@pytest.mark.timeout(1400)
@pytest.mark.parametrize("leaves_abort", [None, "its own", "ours"])
def test_a_broker_ran_after_a_kill_at_many_changes(
    before: Path, tmp_path: Path, leaves_abort: str | None, whole: bool
) -> None:
    copy = shutil.copytree(before, tmp_path / "whole")
    changes = int(_run(copy, "torn", 0).stdout)
    points = range(1, changes + 1, 2 if whole else 6)
    with ThreadPoolExecutor(2) as pool:
        done = list(
            pool.map(
                lambda at: _kill_and_let_a_broker_run(before, tmp_path / str(at), "torn", at, leaves_abort),
                points,
            )
        )
    assert sum(done) > (40 if whole else 10)


class _Interference(Failure):
    """Does something to the store before the change numbered `at`, and lets that happen."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        super().__init__("interfere", at)
        self._act = act

    def fail(self, original: Any, name: str, args: tuple[Any, ...]) -> None:
        self._act()


@pytest.mark.slow
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
        store = MessageStore.open(str(root))
        assert all(
            store.find(key=f"k{number}", topic="T").table.num_rows == 1
            for number in range(0, _FIRST + _BATCH, 7)
        )
        assert store.diagnose().of("damage", "warning") == []
        shutil.rmtree(root)
    assert removed > 10


@pytest.mark.process
@pytest.mark.parametrize(("at", "more"), [(30, ()), (20, ("async",))])
def test_services_flush_as_the_commit_that_was_broken_off(
    tmp_path: Path, at: int, more: tuple[str, ...]
) -> None:
    """`abort` is there in both cases; only the journal tells them apart."""
    root = make_store(tmp_path / "s")
    append(root, numbered("T", 0, 3))
    subprocess.run(failing_writer.command(root, 3, 3, "kill", at, *more), cwd=_ROOT, check=False)
    assert read_journal(str(root)) is not None
    assert abort_mark(str(root))
    assert is_sync(str(root), BrokerConf()) == (not more)

"""Commits seen from outside: what readers get, keys, locks, flushing, topics, clocks, and what is refused."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from store_format.bookkeeping.identity import StagedFile
from store_format.bookkeeping.journal import Abort
from store_format.bookkeeping.ledger import Ledger
from store_format.commit import staged_units
from store_format.commit.append import commit, flush, recover
from store_format.commit.options import CommitOptions
from store_format.commit.staged_units import read_staged
from store_format.commitlog.log import CommitLog
from store_format.errors import (
    CorruptStoreError,
    IllegalMessageError,
    OptionError,
    StoreInUseError,
    StoreNotFoundError,
    StoreWriteError,
    UnsupportedFormatError,
)
from store_format.files.background import RemovedFiles
from store_format.files.lock import StoreLock
from store_format.files.read import FileCache
from store_format.message.encode import MessageColumns
from store_format.metadata.read import Checkpoint, read_checkpoint, read_topics
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.file_edits import overwrite
from tests.support.staged import append, messages_of, numbered, stage
from tests.support.stored_rows import bodies_in
from tests.support.writes import held

_REPOSITORY = Path(__file__).resolve().parents[3]
_ASYNC = CommitOptions(sync=False, clock=lambda: 1_700_000_200_000)


def _expected(count: int) -> list[str]:
    return sorted(f"message {i} of T" for i in range(count))


# ---- the Python way in -------------------------------------------------------------------------------------


def test_a_new_store_written_and_read(tmp_path: Path) -> None:
    store = MessageStore.create(
        str(tmp_path / "orders"), broker_name="broker-x", mapped_file_size_commit_log=1 << 16
    )
    messages = MessageColumns(
        topic="Orders",
        body=pa.array([b"one", b"two", b"three"]),
        properties=pa.array(
            [b"UNIQ_KEY\x01A\x02TAGS\x01new\x02", b"UNIQ_KEY\x01B\x02KEYS\x01k1 k2\x02", b""]
        ),
        queue_id=np.array([0, 1, 0]),
    )
    result = store.append(messages, key=("job", 7), store_timestamps=1_700_000_000_000)
    assert result.committed
    assert result.queues == {("Orders", 0): (0, 2), ("Orders", 1): (0, 1)}
    assert not store.append(messages, key=("job", 7)).committed
    again = MessageStore.open(str(tmp_path / "orders"))
    assert (again.broker_name, again.state) == ("broker-x", "clean")
    rows = pa.Table.from_batches(
        again.queue("Orders", 0).read(columns=["body", "tags", "storeTimestampMs"])
    ).to_pylist()
    assert rows == [
        {"body": b"one", "tags": "new", "storeTimestampMs": 1_700_000_000_000},
        {"body": b"three", "tags": None, "storeTimestampMs": 1_700_000_000_000},
    ]
    assert again.find(key="k2", topic="Orders").table["body"].to_pylist() == [b"two"]
    assert again.configured_topics() == {"Orders", "rmq_sys_SYNC_BROKER_MEMBER_broker-x"}
    conf = (tmp_path / "orders" / ".rmqlog" / "broker.conf").read_text()
    assert conf.splitlines()[:2] == ["brokerName=broker-x", "mappedFileSizeCommitLog=65536"]


def test_a_directory_with_something_in_it_is_no_place_for_a_store(tmp_path: Path, root: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "report.csv").touch()
    with pytest.raises(OptionError) as caught:
        MessageStore.create(str(tmp_path / "other"))
    assert "report.csv" in str(caught.value)
    with pytest.raises(OptionError) as caught:
        MessageStore.create(str(root))
    assert "a store exists there" in str(caught.value)


# ---- keys, order, clock ------------------------------------------------------------------------------------


def test_a_key_counts_once_and_the_ledger_does_not_grow(root: Path) -> None:
    for number in range(5):
        assert append(root, numbered("T", 10 * number, 10), key=("q", number)).committed
    size = (root / ".rmqlog" / "ledger.json").stat().st_size
    for number in (0, 3):
        assert not append(root, numbered("T", 900, 10), key=("q", number)).committed
    assert not append(root, numbered("T", 40, 10), key=("q", 4)).committed
    assert append(root, numbered("T", 50, 10), key=("other", 0)).committed
    append(root, numbered("T", 60, 10), key=("q", 5))
    assert bodies_in(root) == _expected(70)
    assert (root / ".rmqlog" / "ledger.json").stat().st_size < 3 * size
    assert not any((root / ".rmqlog" / "staging").iterdir())


def test_a_batch_without_messages_notes_its_key(root: Path) -> None:
    append(root, numbered("T", 0, 3), key=("q", 0))
    assert commit(str(root), [], key=("q", 1)).committed
    assert not commit(str(root), [], key=("q", 1)).committed
    assert append(root, numbered("T", 3, 3), key=("q", 2)).committed
    assert bodies_in(root) == _expected(6)


def test_store_times_do_not_go_back(root: Path) -> None:
    times = [1_700_000_000_000, 1_699_999_999_000, 1_700_000_000_500]
    for first, now in enumerate(times):
        append(root, numbered("T", first, 1), options=CommitOptions(clock=lambda now=now: now))  # type: ignore[misc]
    assert [m.store_timestamp for m in messages_of(root)] == [times[0], times[0], times[2]]
    # years, not seconds: the clock was wrong
    append(root, numbered("T", 3, 1), options=CommitOptions(clock=lambda: 1_600_000_000_000))
    assert messages_of(root)[-1].store_timestamp == 1_600_000_000_000


def test_one_store_time_for_each_message_must_be_one_for_each(root: Path) -> None:
    staged = stage(root, numbered("T", 0, 3))
    with pytest.raises(OptionError) as caught:
        commit(str(root), [staged], store_timestamps=np.arange(2))
    assert str(caught.value) == f"{root}: expected 3 store timestamps, one for each message, found 2"


def test_several_staged_files_keep_their_order(root: Path) -> None:
    staged = [stage(root, numbered("T", first, 20, queues=1), write="w", part=7) for first in (40, 0, 20)]
    commit(str(root), staged)
    bodies = [m.body.decode().rstrip(".") for m in messages_of(root)]
    assert bodies == [f"message {i} of T" for i in [*range(40, 60), *range(20), *range(20, 40)]]


# ---- flushing ----------------------------------------------------------------------------------------------


def test_a_commit_without_flush_leaves_abort_with_our_mark_until_a_flush(root: Path) -> None:
    append(root, numbered("T", 0, 10), key=("q", 0), options=_ASYNC)
    checkpoint = read_checkpoint(str(root / "checkpoint"))
    assert checkpoint is not None
    assert checkpoint.physic_msg_timestamp == 0  # nothing is known to be flushed
    assert Abort.read_mark(Opened(str(root)))
    assert MessageStore.open(str(root)).state == "clean"
    assert bodies_in(root) == _expected(10)
    flush(str(root))
    assert Abort.read_mark(Opened(str(root))) is None
    checkpoint = read_checkpoint(str(root / "checkpoint"))
    assert checkpoint is not None
    last = messages_of(root)[-1].physical_offset
    assert (checkpoint.physic_msg_timestamp, checkpoint.logics_physical_offset) == (1_700_000_200_000, last)


def test_a_flushed_commit_says_what_is_flushed(root: Path) -> None:
    result = append(root, numbered("T", 0, 300), key=("q", 0))
    last = messages_of(root)[-1]
    index = sorted((root / "index").iterdir())
    assert len(index) > 1
    # a broker that finds a crash behind the end of the last index file keeps all of them
    index_end = int.from_bytes(index[-1].read_bytes()[8:16], "big")
    at, place = last.store_timestamp, last.physical_offset
    assert read_checkpoint(str(root / "checkpoint")) == Checkpoint(at, at, index_end, 0, place, place)
    assert result.sync_seconds > 0
    assert not (root / "abort").exists()


# ---- topics ------------------------------------------------------------------------------------------------


def test_new_topics_are_added_as_a_broker_does(root: Path) -> None:
    """Also a topic without a queue in the batch: that of a message which waits elsewhere until it is due."""
    topics = {"T": 8, "Later": 5}
    append(root, numbered("T", 0, 3), options=CommitOptions(new_topics=topics, clock=lambda: 5))
    for now in (6, 7):
        append(root, numbered("U", 0, 9, queues=6), options=CommitOptions(clock=lambda now=now: now))  # type: ignore[misc]
    found = read_topics(Opened(str(root)))
    assert found is not None
    nums = {name: (each.read_queue_nums, each.write_queue_nums) for name, each in found.items()}
    assert {name: nums[name] for name in ("T", "Later", "U")} == {"T": (8, 8), "Later": (5, 5), "U": (6, 6)}
    assert found.data_version is not None
    assert (found.data_version.counter, found.data_version.timestamp) == (3, 6)
    backup = json.loads((root / "config" / "topics.json.bak").read_bytes())
    assert "U" not in backup["topicConfigTable"]


def test_topics_json_lost_in_a_crash_comes_back_from_its_backup(root: Path) -> None:
    append(root, numbered("T", 0, 3))
    append(root, numbered("U", 0, 3))
    (root / "config" / "topics.json").write_bytes(b"")  # between the rename and the write
    append(root, numbered("V", 0, 3))
    assert {"T", "V"} <= set(read_topics(Opened(str(root))) or ())
    assert (root / "config" / "topics.json.bak").stat().st_size > 0


@pytest.mark.parametrize(
    ("name", "value"), [("queue.type", "BatchCQ"), ("cleanup.policy", "COMPACTION"), ("message.type", "LITE")]
)
def test_topics_with_rules_of_their_own_are_refused(root: Path, name: str, value: str) -> None:
    path = root / "config" / "topics.json"
    topics = json.loads(path.read_bytes())
    topics["topicConfigTable"]["T"] = {"topicName": "T", "attributes": {name: value}}
    path.write_bytes(json.dumps(topics).encode())
    staged = stage(root, numbered("T", 0, 3))
    with pytest.raises(UnsupportedFormatError, match=f"topic T.*{value}"):
        commit(str(root), [staged])
    assert not (root / "abort").exists()


@pytest.mark.parametrize("topic", ["../etc", "..", "a/b"])
def test_a_topic_that_would_leave_the_store_is_refused(root: Path, topic: str) -> None:
    staged = stage(root, numbered(topic, 0, 1))
    with pytest.raises(IllegalMessageError):
        commit(str(root), [staged])
    assert list((root / "consumequeue").iterdir()) == []


def test_a_light_queue_is_refused(root: Path) -> None:
    staged = stage(root, numbered("%LMQ%x", 0, 1))
    with pytest.raises(UnsupportedFormatError):
        commit(str(root), [staged])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("consumequeue/CURRENT", "storeType=defaultRocksDB"),
        ("config/rdb/CURRENT", "configManagerVersion=v2"),
        ("epochFileCheckpoint", "enableControllerMode"),
        ("dledger-n0/data", "enableDLegerCommitLog"),
    ],
)
def test_stores_of_other_kinds_are_refused(root: Path, path: str, said: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).touch()
    with pytest.raises(UnsupportedFormatError) as caught:
        commit(str(root), [], key=("q", 0))
    assert said in str(caught.value)


def test_a_message_larger_than_a_file_is_refused_and_leaves_the_store_as_it_was(root: Path) -> None:
    append(root, numbered("T", 0, 5), key=("q", 0))
    staged = stage(root, [*numbered("T", 5, 5), *numbered("T", 10, 1, body_size=1 << 14)])
    with pytest.raises(UnsupportedFormatError) as caught:
        commit(str(root), [staged], key=("q", 1))
    assert "mappedFileSizeCommitLog" in str(caught.value)
    assert bodies_in(root) == _expected(5)
    assert not (root / "abort").exists()
    assert len(messages_of(root)) == 5


# ---- staging -----------------------------------------------------------------------------------------------


def test_large_staged_files_are_gone_before_a_thread_frees_them(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[list[str]] = []
    freed: list[int] = []

    def free(removed: RemovedFiles) -> None:
        left.append(os.listdir(root / ".rmqlog" / "staging"))
        freed.extend(os.fstat(each).st_size for each in removed.descriptors)
        for each in removed.descriptors:
            os.close(each)

    monkeypatch.setattr(RemovedFiles, "free", free)
    monkeypatch.setattr(staged_units, "_FREED_LATER_MIN", 20_000)
    monkeypatch.setattr(staged_units, "_HELD_MIN", 10_000)
    append(root, numbered("T", 0, 3))
    assert (left, freed) == ([[]], [])
    append(root, numbered("T", 3, 3, body_size=9_000))
    assert left == [[], []]
    assert len(freed) == 1
    assert freed[0] > 27_000


def test_a_staged_file_travels_and_a_damaged_one_is_refused(root: Path) -> None:
    staged = stage(root, numbered("T", 0, 50))
    assert pickle.loads(pickle.dumps(staged)) == staged
    assert StagedFile.from_json(json.loads(json.dumps(staged.as_json()))) == staged
    path = Path(staged.records_path(Opened(str(root))))
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptStoreError) as caught:
        commit(str(root), [staged])
    assert str(path) in str(caught.value)
    path.write_bytes(data[:-1])
    with pytest.raises(CorruptStoreError) as caught:
        commit(str(root), [staged])
    assert "as the task wrote" in str(caught.value)
    path.unlink()
    with pytest.raises(StoreNotFoundError) as caught_missing:
        commit(str(root), [staged])
    assert "see the same directory" in str(caught_missing.value)
    assert MessageStore.open(str(root)).queues() == []


@pytest.mark.parametrize("skip", [0, 1, 33, 34, 99, 100])
def test_staged_units_come_in_runs_of_bounded_size(root: Path, skip: int) -> None:
    staged = stage(root, numbered("T", 0, 100), part=33)
    runs = list(read_staged(Opened(str(root)), staged, chunk_size=1000, units_max=8, skip=skip))
    sizes = np.concatenate([run.sizes for run in runs]) if runs else np.empty(0, np.int32)
    whole = np.concatenate(
        [run.sizes for run in read_staged(Opened(str(root)), staged, chunk_size=1 << 30, units_max=1 << 30)]
    )
    assert sizes.tolist() == whole[skip:].tolist()
    assert all(len(run) <= 8 and int(run.sizes.sum()) <= 1000 for run in runs)
    starts = np.concatenate([[0], np.cumsum(whole)])
    numbers = np.cumsum([skip, *[len(run) for run in runs]])[:-1]
    assert [run.position for run in runs] == starts[numbers.astype(int)].tolist()
    assert all((run.key_ends[0], run.key_ends[-1]) == (0, len(run.key_hashes)) for run in runs)
    assert all(len(run.key_ends) == len(run) + 1 for run in runs)


# ---- one writer at a time ----------------------------------------------------------------------------------


@contextmanager
def _other_process(code: str, root: Path) -> Iterator[int]:
    """Runs `code` with the descriptor `lock` of the store's lock file; gives the number of the process."""
    begin = "import fcntl, os, signal, sys; lock = os.open(sys.argv[1], os.O_RDWR)"
    code = f"{begin}; {code}; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", code, str(root / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"\n"
            yield process.pid
        finally:
            process.communicate()


def test_a_store_that_a_broker_holds_is_refused_by_name(root: Path) -> None:
    staged = stage(root, numbered("T", 0, 3))
    with held(root) as pid:
        with pytest.raises(StoreInUseError, match=f"process {pid}.*python"):
            # it is not waited for: it does not let go
            commit(str(root), [staged], options=CommitOptions(lock_timeout=600.0))
        assert StoreLock.holder(str(root / "lock")) == StoreLock.foreign_holder(str(root / "lock")) == pid
    assert commit(str(root), [staged]).committed


def test_another_writer_is_waited_for_and_no_broker(root: Path) -> None:
    with held(root, kind="writer") as pid:
        assert StoreLock.holder(str(root / "lock")) == pid
        assert StoreLock.foreign_holder(str(root / "lock")) is None
        with (
            pytest.raises(StoreInUseError, match=rf"held by process {pid}\b.*waited 0.1 s"),
            StoreLock(str(root), timeout=0.1),
        ):
            pass


def test_a_broker_that_is_still_loading_is_seen(root: Path) -> None:
    """It has the file open, and no lock yet."""
    staged = stage(root, numbered("T", 0, 3))
    with _other_process("pass", root) as pid, pytest.raises(StoreInUseError, match=f"process {pid}"):
        commit(str(root), [staged])
    assert commit(str(root), [staged]).committed


def test_asking_who_holds_the_lock_does_not_lose_it(root: Path) -> None:
    path = str(root / "lock")
    ask = [
        sys.executable,
        "-c",
        f"from store_format.files.lock import StoreLock; print(StoreLock.holder({path!r}))",
    ]
    with StoreLock(str(root)):
        assert StoreLock.holder(path) is None  # it is we
        told = subprocess.run(ask, cwd=_REPOSITORY, capture_output=True, text=True, check=True)
        assert told.stdout == f"{os.getpid()}\n"
    told = subprocess.run(ask, cwd=_REPOSITORY, capture_output=True, text=True, check=True)
    assert told.stdout == "None\n"
    assert (root / "lock").read_bytes() == b"lock"


def test_threads_wait_for_each_other(root: Path) -> None:
    staged = [stage(root, numbered("T", 10 * i, 10), write=f"w{i}") for i in range(8)]
    failures: list[BaseException] = []

    def work(i: int) -> None:
        try:
            commit(str(root), [staged[i]], options=CommitOptions(sync=False, lock_timeout=30))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert bodies_in(root) == _expected(80)
    for i in range(8):  # never interleaved
        places = [j for j, m in enumerate(messages_of(root)) if int(m.body.split()[1]) // 10 == i]
        assert places == list(range(places[0], places[0] + 10))


@pytest.mark.process
def test_a_reader_sees_whole_batches_only(root: Path) -> None:
    """Commits follow one another while a reader looks: every count is that of whole batches, and none goes
    back.
    """
    append(root, numbered("T", 0, 20), key=("q", 0), options=_ASYNC)
    staged = [stage(root, numbered("T", 20 * i, 20), write=f"w{i}", sync=False) for i in range(1, 40)]
    looked, done = threading.Event(), threading.Event()
    counts: list[int] = []
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not done.is_set():
                store = MessageStore.open(str(root))
                snapshot = store.snapshot(lambda topic: topic == "T")
                counts.append(sum(queue.max_offset for queue in snapshot.queues.values()))
                counts.append(
                    sum(queue.max_offset - queue.min_offset for queue in store.survey().queues.values())
                )
                looked.set()
        except BaseException as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    looked.wait(30)  # its first look may load the kernels
    for i, each in enumerate(staged, 1):
        commit(str(root), [each], key=("q", i), options=_ASYNC)
    done.set()
    reader.join()
    assert failures == []
    assert [count for count in counts if count % 20] == []
    assert counts == sorted(counts)
    assert len(counts) > 4


# ---- what happened to earlier batches ----------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.skipif(sys.platform != "linux", reason="who has the lock open is seen in /proc")
def test_a_batch_is_looked_through_if_somebody_had_the_store_open_meanwhile(
    root: Path, tmp_path: Path
) -> None:
    """A broker that begins to write where our batch begins leaves the last unit of the batch as it was."""
    with ExitStack() as opened:

        def clock() -> int:  # asked once the store was seen to be ours alone
            opened.enter_context(_other_process("pass", root))
            return 1_700_000_000_000

        options = CommitOptions(new_topics={"T": 4}, clock=clock)
        result = append(root, numbered("T", 0, 20), key=("q", 0), options=options)
    assert len(result.reports) == 1
    assert "while this batch was committed" in result.reports[0]
    other = tmp_path / "other"
    MessageStore.create(str(other), mapped_file_size_commit_log=1 << 14)
    append(other, numbered("Another", 100, 3))
    log, last = "commitlog/00000000000000000000", messages_of(other)[-1]
    written = (other / log).read_bytes()[: last.physical_offset + last.total_size]
    assert append(root, numbered("T", 20, 1), key=("p", 0)).reports == ()  # the batch stands
    overwrite(root / log, 0, written)
    (report,) = append(root, numbered("T", 21, 1), key=("p", 1)).reports
    assert "batch 0 of q" in report
    assert "was overwritten" in report


def test_a_batch_of_the_right_end_and_the_wrong_number_of_messages_was_overwritten(root: Path) -> None:
    append(root, numbered("T", 0, 20), key=("q", 0))
    log = CommitLog.open([str(root / "commitlog")], FileCache())
    entry = Ledger.read(Opened(str(root))).keys["q"]
    assert entry.units == 20
    assert replace(entry, suspect=True).damage(log) is None
    wrong = replace(entry, units=21)
    assert wrong.damage(log) is None
    assert (
        replace(wrong, suspect=True).damage(log) == "was overwritten: 20 messages found where 21 were written"
    )


def test_the_disk_error_is_an_oserror_too(root: Path) -> None:
    (root / "config" / "topics.json.bak").mkdir()
    staged = stage(root, numbered("T", 0, 3))
    with pytest.raises(StoreWriteError) as caught:
        commit(str(root), [staged])
    assert isinstance(caught.value, OSError)
    assert "topics.json" in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args
    (root / "config" / "topics.json.bak").rmdir()
    recover(str(root))
    assert commit(str(root), [staged]).committed


def test_diagnose_finds_nothing_in_what_was_appended_and_tells_of_a_cut_batch(root: Path) -> None:
    append(root, numbered("T", 0, 300), key=("q", 0), options=_ASYNC)
    (unflushed,) = MessageStore.open(str(root)).diagnose()
    assert (unflushed.severity, unflushed.file) == ("info", str(root / "abort"))
    assert unflushed.advice.startswith(
        "Before a broker starts, call MessageStore.open(path).flush() or make one commit with SYNC_FLUSH"
    )
    append(root, numbered("T", 300, 300), key=("q", 1))
    store = MessageStore.open(str(root))
    assert list(store.diagnose()) == []
    last = messages_of(root)[-1]
    path = root / "commitlog" / f"{last.physical_offset // (1 << 14) * (1 << 14):020d}"
    overwrite(path, last.physical_offset % (1 << 14) + 100, b"other")
    found = [
        problem for problem in MessageStore.open(str(root)).diagnose() if problem.file.endswith("ledger.json")
    ]
    assert len(found) == 1
    assert "batch 1 of q" in found[0].found


_LEASE = "signal.signal(signal.SIGIO, signal.SIG_IGN); fcntl.fcntl(lock, fcntl.F_SETLEASE, fcntl.F_WRLCK)"


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")
def test_a_writer_that_looks_who_has_the_store_open_is_waited_for(root: Path) -> None:
    with (
        _other_process(_LEASE, root),
        pytest.raises(StoreInUseError, match="another writer"),
        StoreLock(str(root), timeout=0.1),
    ):
        pass
    append(root, numbered("T", 0, 1))


# ---- many small ones ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_many_small_commits_leave_no_debris(root: Path, whole: bool) -> None:
    """A thousand with --whole, else 200."""
    commits = 1000 if whole else 200
    for number in range(commits):
        staged = stage(root, numbered("T", 10 * number, 10), write=f"w{number}", sync=False)
        commit(str(root), [staged], key=("q", number), options=_ASYNC)
    flush(str(root))
    assert bodies_in(root) == _expected(10 * commits)
    assert {path.name for path in root.iterdir()} == {
        ".rmqlog", "checkpoint", "commitlog", "config", "consumequeue", "index", "lock"
    }  # fmt: skip
    own = {"broker.conf", "doorbell", "ledger.json", "staging", "store.json"}
    assert {path.name for path in (root / ".rmqlog").iterdir()} == own
    assert not any((root / ".rmqlog" / "staging").iterdir())

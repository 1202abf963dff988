"""Writes to one store: refused before any task runs, made with the first commit, and gone without a trace
when they fail.
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.write.stage_and_commit import abort_write, begin_write, commit_write, stage_rows
from rmq_spark.write.target import _full
from store_format import MessageStore
from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.create_store import StoreDirectory
from store_format.commit.staged_units import read_staged
from store_format.errors import (
    IllegalMessageError,
    OptionError,
    StoreError,
    StoreInUseError,
    StoreNotFoundError,
    StoreWriteError,
    UnsupportedFormatError,
)
from store_format.files.read import files_at
from store_format.metadata.read import BrokerConf, read_topics
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.failing_writer import Failure, install
from tests.support.staged import append, numbered
from tests.support.writes import SMALL, bodies, held, numbered_rows, target_of, write

_ILLEGAL = pa.RecordBatch.from_pydict({"topic": ["T"], "body": [""]})


@pytest.fixture(params=["missing", "empty"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where a store is to be made: a directory that is not there, or one with nothing in it."""
    root = tmp_path / "store"
    if request.param == "empty":
        root.mkdir()
    return root


def _looks(root: Path) -> list[str] | None:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*")) if root.exists() else None


# ---- before any task runs ----------------------------------------------------------------------------------


def test_looking_at_the_target_makes_nothing(place: Path) -> None:
    before = _looks(place)
    target = target_of(place)
    assert [(store.settings.broker_name, store.is_new, store.was_missing) for store in target.stores] == [
        ("store", True, before is None)
    ]
    assert _looks(place) == before
    assert pickle.loads(pickle.dumps(target)) == target


def test_a_broker_that_runs_is_named_at_once(root: Path) -> None:
    begun = time.monotonic()
    with (
        held(root),
        pytest.raises(
            StoreInUseError,
            match=r"store is in use by process \d+ \(.*python.*\); stop the broker, or write to ",
        ),
    ):
        target_of(root, writerLockTimeout="10m")
    assert time.monotonic() - begun < 60
    with held(root, kind="writer"):  # a writer of ours that commits: commits wait for each other
        assert target_of(root).stores[0].closed is None


def test_a_disk_that_is_fuller_than_the_limit_is_an_error(tmp_path: Path, place: Path) -> None:
    disk = files_at(str(tmp_path / "not" / "there" / "yet")).disk_space(
        str(tmp_path / "not" / "there" / "yet")
    )
    mount, used = disk.mount, disk.used_percent
    assert os.path.ismount(mount)
    status = os.statvfs(tmp_path)
    assert (
        used - 1
        <= 100 * (status.f_blocks - status.f_bfree) / (status.f_blocks - status.f_bfree + status.f_bavail)
        <= used + 1
    )
    before = _looks(place)
    with pytest.raises(StoreWriteError) as caught:
        target_of(place, diskSpaceWarningLevelRatio="0")
    told = re.fullmatch(  # other tests fill the same disk meanwhile
        rf"{re.escape(f'{place}: the file system {mount}')} is ([1-9]\d*) % full, above the limit of 0 % for "
        r"writes; free some space \(rmqlog clean\), or raise diskSpaceWarningLevelRatio",
        str(caught.value),
    )
    assert told is not None
    seen = sorted((used, files_at(str(tmp_path)).disk_space(str(tmp_path)).used_percent))
    assert seen[0] - 1 <= int(told[1]) <= seen[1] + 1
    assert isinstance(caught.value, OSError)
    assert _looks(place) == before
    assert target_of(place, diskSpaceWarningLevelRatio="100").stores[0].closed is None


def test_the_limit_of_the_disk_is_that_of_the_brokers_settings(tmp_path: Path) -> None:
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("diskSpaceWarningLevelRatio=80\nmessageDelayLevel=1s 2s\n")
    target = target_of(root, brokerConf=str(conf), diskSpaceWarningLevelRatio="100")
    assert target.stores[0].conf.message_delay_levels_ms == (1000, 2000)
    assert _full(str(root), target.options, BrokerConf(disk_space_warning_level_ratio=0)) is None
    unset = replace(target.options, disk_used_percent_max=None)
    used = files_at(str(tmp_path)).disk_space(str(tmp_path)).used_percent
    low = _full(str(root), unset, BrokerConf(disk_space_warning_level_ratio=0))
    assert (low is None) == (used <= 35), "a broker's limit is at least 35 %"
    assert "above the limit of 35 %" in (low or "above the limit of 35 %")
    write(root, numbered_rows(0, 4), diskSpaceWarningLevelRatio="100")
    (root / ".rmqlog" / "broker.conf").write_text("messageDelayLevel=9s\n")
    assert target_of(root, diskSpaceWarningLevelRatio="100").stores[0].conf.message_delay_levels_ms == (9000,)
    (root / ".rmqlog" / "broker.conf").write_text("messageDelayLevel=9 s\n")
    with pytest.raises(OptionError, match=r"store/\.rmqlog/broker\.conf: messageDelayLevel: expected delays"):
        target_of(root)


def test_a_commitlog_that_is_not_where_it_was_is_refused_before_any_task_runs(place: Path) -> None:
    write(place, numbered_rows(0, 4))
    shutil.move(place / "commitlog", place.parent / "not mounted")
    (place / "commitlog").mkdir()
    staged = sorted((place / ".rmqlog" / "staging").iterdir())
    with pytest.raises(
        StoreNotFoundError, match=r"has no message, but .*ledger\.json has commits up to physical offset"
    ):
        target_of(place)
    assert sorted((place / ".rmqlog" / "staging").iterdir()) == staged


@pytest.mark.golden
def test_a_lost_consume_queue_needs_its_file_size(tmp_path: Path) -> None:
    """The default of a new store is no answer for a broker's."""
    root = goldens.unpack("basic-5.5.0", tmp_path / "store")
    shutil.rmtree(root / "consumequeue")
    with pytest.raises(OptionError, match="Give mappedFileSizeConsumeQueue"):
        write(root, numbered_rows(0, 4))
    write(root, numbered_rows(0, 4), mappedFileSizeConsumeQueue="2000")
    snapshot = MessageStore.open(str(root)).snapshot()
    assert sum(queue.max_offset - queue.min_offset for queue in snapshot.queues.values()) == 2014


@pytest.mark.parametrize(("lost", "count"), [("read", 12), ("skip", 4)])
def test_a_topic_without_queue_files_needs_an_answer(tmp_path: Path, lost: str, count: int) -> None:
    root = tmp_path / "store"
    write(root, numbered_rows(0, 8))
    append(root, numbered("Other", 0, 4))
    topic = next(queue.topic for queue in MessageStore.open(str(root)).queues() if queue.topic != "Other")
    shutil.rmtree(root / "consumequeue" / topic)
    with pytest.raises(OptionError, match="unfiledQueues"):
        write(root, numbered_rows(8, 12))
    write(root, numbered_rows(8, 12), unfiledQueues=lost)
    snapshot = MessageStore.open(str(root)).snapshot(topic.__eq__)
    assert sum(queue.max_offset - queue.min_offset for queue in snapshot.queues.values()) == count


def test_what_can_be_no_store_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.csv").touch()
    with pytest.raises(OptionError, match=r"expected a store or an empty directory, found report\.csv"):
        target_of(tmp_path)
    with pytest.raises(OptionError, match=r"stor/a: cannot create the store, because .*stor does not exist"):
        target_of(tmp_path / "stor" / "a")
    (tmp_path / "raft" / "dledger-commitlog").mkdir(parents=True)
    with pytest.raises(UnsupportedFormatError, match="DLedger"):
        target_of(tmp_path / "raft")


# ---- a new store -------------------------------------------------------------------------------------------


def test_a_new_store_is_made_with_the_first_commit(place: Path) -> None:
    target = target_of(place, **SMALL, brokerName="broker-x")
    staged = stage_rows(target, [numbered_rows(0, 100)])
    assert not (place / "commitlog").exists()
    commit_write(target, [staged], ("q", 0))
    write(place, numbered_rows(100, 150))
    assert bodies(place) == dict.fromkeys(range(150), 1)
    assert (place / ".rmqlog" / "broker.conf").read_text().splitlines()[:2] == [
        "brokerName=broker-x",
        "mappedFileSizeCommitLog=16384",
    ]


def test_directories_are_on_the_disk_before_a_journal_refers_to_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every directory of a SYNC_FLUSH write: its entry is synced, which is its parent directory's fsync."""
    made: list[str] = []
    unsynced: dict[str, set[str]] = {}  # parent -> names made in it since its last fsync
    mkdir, fsync, rename = os.mkdir, os.fsync, os.rename

    def counted_mkdir(path: str, mode: int) -> None:
        mkdir(path, mode)
        made.append(path)
        unsynced.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))

    def counted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        unsynced.pop(os.readlink(f"/proc/self/fd/{descriptor}"), None)

    def counted_rename(source: str, target: str) -> None:
        if target == Journal.path(Opened(str(place))):
            assert unsynced == {}
        rename(source, target)

    monkeypatch.setattr(os, "mkdir", counted_mkdir)
    monkeypatch.setattr(os, "fsync", counted_fsync)
    monkeypatch.setattr(os, "rename", counted_rename)
    target = begin_write(target_of(place, **SMALL))
    commit_write(target, [stage_rows(target, [numbered_rows(0, 10)])], None)
    assert f"{place}/.rmqlog/staging/{target.write}" in made
    assert unsynced == {}


def test_a_write_of_no_rows_makes_an_empty_store(place: Path) -> None:
    write(place, numbered_rows(0, 0))
    assert bodies(place) == {}
    assert (place / "commitlog").is_dir()


def test_a_new_topic_gets_the_queues_that_any_task_needs(place: Path) -> None:
    """A delayed message waits in another topic, so that no queue of its own shows the number."""
    tasks = [
        numbered_rows(i, i + 1, queueId=[number], delayTimeLevel=[1]) for i, number in enumerate((10, 0))
    ]
    write(place, *tasks)
    topics = read_topics(Opened(str(place)))
    assert topics is not None
    assert topics["T"].write_queue_nums == 11


def test_a_first_write_that_fails_in_a_task_leaves_the_place_as_it_was(place: Path) -> None:
    before = _looks(place)
    with pytest.raises(IllegalMessageError):
        write(place, _ILLEGAL)
    assert _looks(place) == before
    with pytest.raises(IllegalMessageError):  # one task had staged
        write(place, numbered_rows(0, 10), _ILLEGAL)
    assert _looks(place) == before
    target = target_of(place)  # an attempt that was killed is none of those that Spark tells of
    stage_rows(target, [numbered_rows(0, 10)])
    abort_write(target)
    assert _looks(place) == before


def test_a_task_that_runs_on_after_its_write_was_given_up_stages_nothing(place: Path) -> None:
    """Spark does not wait for the tasks it kills."""
    before = _looks(place)
    target = begin_write(target_of(place))
    abort_write(target)
    with pytest.raises(
        StoreNotFoundError,
        match="the write was given up, or driver and executors do not see the same directory",
    ):
        stage_rows(target, [numbered_rows(0, 10)])
    assert _looks(place) == before


def test_a_stream_has_no_directory_made_for_its_tasks(place: Path) -> None:
    """Spark makes a stream's writer anew to commit or abort, and then tells of the tasks that were successful
    only.
    """
    before = _looks(place)
    target = target_of(place)
    with pytest.raises(IllegalMessageError):
        stage_rows(target, [numbered_rows(0, 10), _ILLEGAL])
    assert _looks(place) == before
    commit_write(target, [stage_rows(target, [numbered_rows(0, 10)])], ("q", 0))
    assert bodies(place) == dict.fromkeys(range(10), 1)


def test_small_batches_of_equal_columns_are_staged_as_one(place: Path) -> None:
    target = target_of(place)
    large = numbered_rows(20, 23, properties=pa.array([[("p", "x")]] * 3, pa.map_(pa.string(), pa.string())))
    large = large.set_column(1, "body", pa.array(["x" * (3 << 20)] * 3))
    small = [numbered_rows(first, first + 10) for first in (0, 10, 20)]
    batches = [numbered_rows(0, 0), *small, numbered_rows(0, 0), large, large]
    file = stage_rows(target, batches).files[str(place)]
    parts = read_staged(Opened(str(place)), file, chunk_size=1 << 30, units_max=1 << 20)
    assert [len(part) for part in parts] == [10, 20, 3, 3]
    illegal = numbered_rows(30, 32).set_column(1, "body", pa.array(["30", ""]))
    with pytest.raises(IllegalMessageError, match="row 31 of partition 4 "):
        stage_rows(target, [*small, illegal], partition=4)


def test_the_first_batch_is_staged_before_the_next_one_comes(place: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield numbered_rows(0, 10)
        (records,) = place.glob(".rmqlog/staging/*/*.records")
        assert records.stat().st_size
        yield numbered_rows(10, 20)

    target = target_of(place)
    commit_write(target, [stage_rows(target, rows())], None)
    assert bodies(place) == dict.fromkeys(range(20), 1)


def test_a_failed_write_beside_another_one_leaves_what_that_needs(place: Path) -> None:
    other = target_of(place)
    staged = stage_rows(other, [numbered_rows(0, 10)])
    with pytest.raises(IllegalMessageError):
        write(place, numbered_rows(10, 20), _ILLEGAL)
    commit_write(other, [staged], None)
    assert bodies(place) == dict.fromkeys(range(10), 1)
    with pytest.raises(IllegalMessageError):
        write(place, numbered_rows(10, 20), _ILLEGAL)
    assert bodies(place) == dict.fromkeys(range(10), 1)


def test_two_first_writes_both_count(place: Path) -> None:
    targets = [target_of(place) for _ in range(2)]
    staged = [stage_rows(target, [numbered_rows(10 * i, 10 * i + 10)]) for i, target in enumerate(targets)]
    for target, each in zip(targets, staged, strict=True):
        commit_write(target, [each], None)
    assert bodies(place) == dict.fromkeys(range(20), 1)


def _fail(root: Path, at: int) -> tuple[Failure, StoreError | None]:
    """A first commit whose disk fails at one change, and what Spark does then."""
    target = target_of(root, **SMALL)
    staged = stage_rows(target, [numbered_rows(0, 40)])
    failure = Failure("ENOSPC:once", at)
    originals = install(failure)
    try:
        commit_write(target, [staged], ("q", 1))
    except StoreError as error:
        for name, original in originals.items():
            setattr(os, name, original)
        abort_write(target)
        return failure, error
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
    return failure, None


@pytest.mark.process
def test_a_first_commit_whose_disk_fails_leaves_the_place_as_it_was_or_is_complete(
    place: Path, whole: bool
) -> None:
    """At every change with --whole, else at every third one."""
    before, outcomes = _looks(place), set()
    changes = _fail(place.parent / "whole", 0)[0].count
    assert changes > 60
    for at in range(1, changes + 1, 1 if whole else 3):
        _, error = _fail(place, at)
        if error is None:
            assert bodies(place) == dict.fromkeys(range(40), 1)
        else:
            assert str(place) in str(error)
            assert _looks(place) == before, (at, str(error))
        outcomes.add(error is None)
        write(place, numbered_rows(0, 40), key=("q", 1), **SMALL)
        assert bodies(place) == dict.fromkeys(range(40), 1)
        place.rename(place.parent / f"done-{at}")
        if before is not None:
            place.mkdir()
    assert outcomes == {True, False}


# ---- leftovers of others -----------------------------------------------------------------------------------


def _old_staging(root: Path, name: str) -> Path:
    directory = root / ".rmqlog" / "staging" / name
    (directory / "report").mkdir(parents=True)
    (directory / "report" / "page").touch()
    os.utime(directory / "report", (1_000, 1_000))
    os.utime(directory, (1_000, 1_000))
    return directory


def test_what_cannot_be_collected_does_not_fail_a_batch_that_is_published(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd = _old_staging(root, "dead")
    result = write(root, numbered_rows(0, 10), stagingRetention="1h")[str(root)]
    assert result.committed
    assert any("staging/dead/report: cannot remove" in record.getMessage() for record in caplog.records)
    caplog.clear()
    (root / ".rmqlog" / "staging" / "linked").symlink_to(odd)
    assert write(root, numbered_rows(10, 20))[str(root)].committed
    assert any(
        "staged files of dead tasks could not be removed; the next write tries again: " in record.getMessage()
        for record in caplog.records
    )
    assert bodies(root) == dict.fromkeys(range(20), 1)
    assert (odd / "report" / "page").exists()


def test_attempts_that_lost_or_died_leave_nothing_behind_a_commit(root: Path) -> None:
    target = target_of(root)
    stage_rows(target, [numbered_rows(0, 10)])  # a speculative loser: Spark tells of the winner only
    commit_write(target, [stage_rows(target, [numbered_rows(0, 10)])], None)
    assert bodies(root) == dict.fromkeys(range(10), 1)
    assert not any((root / ".rmqlog" / "staging").iterdir())


def test_what_a_standing_journal_needs_is_not_removed_when_spark_gives_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "store"
    StoreDirectory(str(root)).create(
        StoreSettings("store", 1 << 14, 400, 50, 200), timestamp=1_700_000_000_000
    )
    target = target_of(root)
    staged = stage_rows(target, [numbered_rows(0, 40)])
    failure = Failure("EIO:on", 25)
    originals = install(failure)
    try:
        with pytest.raises(StoreError, match="the next writer completes it"):
            commit_write(target, [staged], None)
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
    assert Path(Journal.path(Opened(str(root)))).exists()
    abort_write(target)
    assert "do not repeat this write unless it has a key" in caplog.text
    write(root, numbered_rows(40, 50))
    assert bodies(root) == dict.fromkeys(range(50), 1)


def test_one_line_tells_of_each_batch(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "rmq_spark"):
        results = [write(root, numbered_rows(0, 10), numbered_rows(10, 15), key=("q", 3)) for _ in range(2)]
        write(root, numbered_rows(15, 20))
    told = [record.getMessage() for record in caplog.records if "batch" in record.getMessage()]
    result = results[0][str(root)]
    milliseconds = r"(\d+\.\d) ms, of which (\d+\.\d) ms waiting for the disk"
    line = re.fullmatch(
        rf"batch \('q', 3\): 15 messages into {root} 0 to {result.stop}; committed in {milliseconds}", told[0]
    )
    assert line is not None, told[0]
    assert float(line[1]) > float(line[2]) == round(result.sync_seconds * 1000, 1) > 0
    assert told[1] == f"{root}: batch 3 of q is not written, 15 messages: it is committed already"
    assert re.fullmatch(
        rf"batch without a key: 5 messages into {root} {result.stop} to \d+; committed in {milliseconds}",
        told[2],
    )
    assert len(told) == 3

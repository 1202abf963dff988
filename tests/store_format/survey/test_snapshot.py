"""Where queues begin and end: clean, while a broker writes, after a crash; and which of them only the
commitlog can serve.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.cli.exit_codes import PARTIAL
from rmq_spark.cli.main import main
from rmq_spark.options.option import BATCH, STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.units import list_queues
from store_format.diagnose import diagnose
from store_format.diagnose.problems import NextStep, verdict
from store_format.errors import StoreNotFoundError
from store_format.files.read import FileCache
from store_format.opened.store import Opened
from store_format.survey.gone import LostLog
from store_format.survey.snapshot import Snapshot
from tests.support import oracle
from tests.support.fixtures import Golden
from tests.support.rows import ALL, BROKER, table_rows
from tests.support.small_store import SmallStore, write_small_store
from tests.support.staged import append, numbered


@pytest.fixture
def small(tmp_path: Path) -> SmallStore:
    return write_small_store(tmp_path / "store")


def taken(
    small: SmallStore, state: StoreState, select: Callable[[str], bool] = lambda topic: True
) -> Snapshot:
    return Snapshot.take(
        Opened(str(small.root)), CommitLog.open((str(small.root / "commitlog"),), FileCache()), state, select
    )


def bounds(snapshot: Snapshot) -> dict[tuple[str, int], tuple[int, int]]:
    return {key: (queue.min_offset, queue.max_offset) for key, queue in snapshot.queues.items()}


def right_bounds(small: SmallStore) -> dict[tuple[str, int], tuple[int, int]]:
    return {key: (rows[0]["queueOffset"], rows[-1]["queueOffset"] + 1) for key, rows in small.rows.items()}


def queue_file(small: SmallStore, start: int, topic: str = "Orders", queue_id: int = 0) -> Path:
    return small.root / "consumequeue" / topic / str(queue_id) / oracle.file_name(start)


def test_listing(small: SmallStore) -> None:
    (small.root / "consumequeue" / "Orders" / "notes").mkdir()
    (small.root / "consumequeue" / "Orders" / "10").mkdir()
    listed = [
        (topic, queue_id, kind)
        for topic, queue_id, _, kind in list_queues(
            Opened(str(small.root)), lambda topic: topic in ("Orders", "Batches")
        )
    ]
    assert listed == [
        ("Orders", 0, "simple"),
        ("Orders", 1, "simple"),
        ("Orders", 10, "simple"),
        ("Batches", 0, "batch"),
    ]


@pytest.mark.parametrize("state", StoreState)
def test_a_whole_store_is_the_same_in_every_state(small: SmallStore, state: StoreState) -> None:
    snapshot = taken(small, state)
    assert bounds(snapshot) == right_bounds(small)
    assert snapshot.damaged == {}
    end = small.messages["crc property"].physical_offset + small.messages["crc property"].total_size
    assert snapshot.log_end == (end if state is StoreState.CRASHED else None)


@pytest.mark.parametrize("state", StoreState)
def test_only_selected_topics_are_looked_at(small: SmallStore, state: StoreState) -> None:
    queue_file(small, 0, "Parent").write_bytes(b"no multiple of twenty")
    snapshot = taken(small, state, "Orders".__eq__)
    assert set(snapshot.queues) == {("Orders", 0), ("Orders", 1)}
    assert snapshot.damaged == {}


# ---- damaged queues ----------------------------------------------------------------------------------------


def damage(small: SmallStore, how: str) -> tuple[str, str]:
    """What is done to Orders-0, of five entries in files of three; (start of the error, its end)."""
    first, last = queue_file(small, 0), queue_file(small, 60)
    match how:
        case "odd length":
            os.truncate(last, 59)
            return f"{last} at byte 59: expected 60 bytes as in {first}", "59 bytes"
        case "whole units cut":
            os.truncate(last, 40)
            return f"{last} at byte 40: expected 60 bytes as in {first}", "40 bytes"
        case "all files cut alike":
            os.unlink(last)
            os.truncate(first, 40)
            return f"{first} at byte 40: expected a file of 60 bytes, as in other queues", "40 bytes"
        case "empty":
            os.truncate(last, 0)
            return f"{last} at byte 0: expected a file of units", "an empty file"
        case "last entry":
            last.write_bytes(last.read_bytes()[:20] + b"\x80" + last.read_bytes()[21:])
            return (
                f"{last} at byte 20: expected zeros behind the queue's last entry, unit 3",
                "other bytes",
            )
        case "first entry":
            first.write_bytes(first.read_bytes()[:8] + b"\xff" + first.read_bytes()[9:])
            return (
                f"{first} at byte 8: expected zeros behind the queue's last entry, unit -1",
                "other bytes",
            )
        case "gap":
            last.rename(queue_file(small, 120))
            return (
                f"{queue_file(small, 120)} at byte 0: expected a file that begins at 60",
                "this file begins at 120",
            )
    raise AssertionError(how)


DAMAGES = [
    "odd length",
    "whole units cut",
    "all files cut alike",
    "empty",
    "last entry",
    "first entry",
    "gap",
]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_queue_is_named_and_served_by_the_commitlog(small: SmallStore, how: str) -> None:
    start, end = damage(small, how)
    snapshot = taken(small, StoreState.CLEAN)
    error = str(snapshot.damaged["Orders", 0])
    assert error.startswith(start)
    assert error.endswith(end)
    assert set(snapshot.queues) == small.rows.keys() - {("Orders", 0)}
    store = MessageStore.open(str(small.root), broker_name=BROKER)
    assert table_rows(store.queue("Orders", 0).read(columns=ALL)) == small.rows["Orders", 0]
    assert {(queue.topic, queue.queue_id) for queue in store.queues()} == small.rows.keys()


@pytest.mark.parametrize("how", ["empty", "last entry"])
def test_in_a_live_store_the_same_is_not_yet(small: SmallStore, how: str) -> None:
    damage(small, how)
    snapshot = taken(small, StoreState.LIVE)
    assert snapshot.damaged == {}
    assert snapshot.queues["Orders", 0].max_offset == {"empty": 3, "last entry": 4}[how]


@pytest.mark.parametrize("how", ["empty", "last entry"])
def test_after_a_crash_what_the_queue_lacks_is_made_again(small: SmallStore, how: str) -> None:
    damage(small, how)
    (small.root / "abort").touch()
    snapshot = taken(small, StoreState.CRASHED)
    assert bounds(snapshot) == right_bounds(small)
    store = MessageStore.open(str(small.root), broker_name=BROKER)
    assert store.state is StoreState.CRASHED
    assert table_rows(store.queue("Orders", 0).read(columns=ALL)) == small.rows["Orders", 0]


def test_a_queue_directory_without_files_is_an_empty_queue(small: SmallStore) -> None:
    (small.root / "consumequeue" / "Fresh" / "0").mkdir(parents=True)
    queue = taken(small, StoreState.CLEAN).queues["Fresh", 0]
    assert (queue.min_offset, queue.max_offset, queue.bounds) == (0, 0, None)


# ---- while a broker writes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "settles"),
    [
        ("whole", True),
        ("of the next file", False),
        ("with half a tags code", False),
        ("of another size", False),
        ("of another message", False),
    ],
)
def test_the_newest_entries_count_once_the_log_agrees(small: SmallStore, entry: str, settles: bool) -> None:
    message = small.messages["crc property"]  # offset 4 of Orders-0, the last unit of the log
    physical, size, code = message.physical_offset, message.total_size, oracle.tags_code(message)
    unit = {
        "whole": oracle.cq_unit(physical, size, code),
        "of the next file": oracle.cq_unit(4096, size, code),
        "with half a tags code": oracle.cq_unit(physical, size, code & 0xFFFF0000),
        "of another size": oracle.cq_unit(physical, size + 1, code),
        "of another message": oracle.cq_unit(
            small.messages["commit"].physical_offset, small.messages["commit"].total_size, code
        ),
    }[entry]
    path = queue_file(small, 60)
    path.write_bytes(path.read_bytes()[:20] + unit + bytes(20))
    assert taken(small, StoreState.LIVE).queues["Orders", 0].max_offset == (5 if settles else 4)


# ---- after a crash -----------------------------------------------------------------------------------------


# ---- a commitlog that is not there, although other files know of it ----------------------------------------


_SAID = r"has no message, but .* Mount the commitlog's disk, or give the commitlog's directories"
_FILE_SIZE = 262144


@pytest.fixture(params=["empty directory", "empty file", "only zeros"])
def lost(request: pytest.FixtureRequest, copy_of: Golden) -> Path:
    """A store whose commitlog's disk is not mounted, in three ways."""
    root = copy_of("basic-5.5.0")
    _unmount(root, request.param)
    return root


def _unmount(root: Path, how: str) -> None:
    (root / "commitlog").rename(root.parent / "disk")
    (root / "commitlog").mkdir()
    if how != "empty directory":
        size = _FILE_SIZE if how == "only zeros" else 0
        (root / "commitlog" / f"{0:020d}").write_bytes(bytes(size))


def _plan(root: Path, **options: str) -> object:
    return plan(parse_read_options({"path": str(root), **options}, where=BATCH))


READERS: dict[str, Callable[[Path], object]] = {
    "queues": lambda root: MessageStore.open(str(root)).queues(),
    "scan": lambda root: list(MessageStore.open(str(root)).scan()),
    "find": lambda root: MessageStore.open(str(root)).find(key="k1", topic="Orders"),
    "plan by queue": lambda root: _plan(root, splitBy="queue"),
    "plan by commitlog": lambda root: _plan(root, splitBy="commitlog"),
    "plan without loss": lambda root: _plan(root, failOnDataLoss="false"),
}


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_takes_the_store_for_an_empty_one(lost: Path, reader: str) -> None:
    with pytest.raises(StoreNotFoundError, match=_SAID):
        READERS[reader](lost)


@pytest.mark.parametrize("verb", ["info", "ls", "lag", "head", "recover"])
def test_no_command_counts_what_nobody_can_read(
    lost: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, str(lost)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "Mount the commitlog's disk" in said.err


def test_a_store_of_a_cluster_is_named(
    copy_of: Golden,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = copy_of("cluster-5.5.0")
    _unmount(root / "broker-b", "empty directory")
    for split in ("queue", "commitlog", "wholeQueue"):
        with pytest.raises(StoreNotFoundError, match=f"{root}/broker-b: the commitlog .*{_SAID}"):
            _plan(root, splitBy=split)
    _plan(root, failOnDataLoss="false")
    assert f"{root}/broker-b: the commitlog" in caplog.text
    assert main(["ls", str(root)]) == PARTIAL
    assert "broker-a" in capsys.readouterr().out
    assert caplog.text.count(f"{root}/broker-b: the commitlog") == 2


@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_stream_waits_for_the_disk_with_an_error(copy_of: Golden, fail_on_data_loss: str) -> None:
    root = copy_of("basic-5.5.0")
    given = {"path": str(root), "startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss}
    positions = StreamPositions(StreamStores(parse_read_options(given, where=STREAM)))
    start = positions.initial()
    before = positions.latest(start)
    _unmount(root, "empty directory")
    with pytest.raises(StoreNotFoundError, match=_SAID):
        positions.latest(start)
    (root / "commitlog").rmdir()
    (root.parent / "disk").rename(root / "commitlog")
    assert positions.latest(start) == before


def test_verify_says_so_and_checks_nothing_else(lost: Path) -> None:
    found = diagnose(str(lost))
    assert [problem.file for problem in found.of("damage")] == [f"{lost}/commitlog"]
    assert found.of("damage")[0].expected.startswith("messages, because consume queue ")
    text, step = verdict(found)
    assert text.startswith("the commitlog is missing: no message can be read or checked, but consume queue ")
    assert step is NextStep.AGAIN


def test_a_log_that_was_begun_since_it_was_listed(root: Path) -> None:
    listed = CommitLog.open((f"{root}/commitlog",), FileCache())
    assert not listed.files
    append(root, numbered("T", 0, 5))
    assert LostLog.find(Opened(str(root)), listed) is None


def test_a_new_store_and_a_store_of_dledger_are_not_refused(root: Path) -> None:
    assert MessageStore.open(str(root)).queues() == []
    append(root, numbered("T", 0, 5))
    (root / "commitlog").rename(root / "dledger-broker-a")
    (root / "commitlog").mkdir()
    assert LostLog.find(Opened(str(root)), CommitLog.open((f"{root}/commitlog",), FileCache())) is None

"""A configured queue without its directory: its messages are read from the commitlog, and a warning names it
once.
"""

from __future__ import annotations

import json
import logging
import shutil
import struct
from pathlib import Path

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.commit.publication import save_checkpoint
from store_format.commitlog import log
from store_format.errors import OptionError
from store_format.files.write import FileWrites
from store_format.follow.follower import StoreFollower
from store_format.layouts import CQ_UNIT
from store_format.metadata.read import Checkpoint
from store_format.opened.store import Opened
from store_format.read.choice import MessageChoice
from store_format.survey import unfiled_queues
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.staged import append, make_store, numbered
from tests.support.store_files import write_files
from tests.support.stored_rows import rows_in

_STORES = ("basic-5.5.0", "cleaned-5.5.0", "defaults-5.5.0", "basic-4.9.7", "crash-5.5.0", "batchcq-5.5.0")
_Row = tuple[str, int, int, int]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: goldens.unpack(name, tmp_path_factory.mktemp("goldens") / name) for name in _STORES}


def rows(store: MessageStore) -> list[_Row]:
    found = rows_in(store, "topic", "queueId", "queueOffset", "physicalOffset")
    return sorted(tuple(row.values()) for row in found)


def copied(pristine: Path, root: Path) -> Path:
    shutil.copytree(pristine, root, copy_function=_linked)
    return root


def _linked(source: str, target: str) -> None:
    Path(target).hardlink_to(source)  # the commitlog of `defaults` has a length of 1 GiB


def damaged(root: Path, how: str) -> list[tuple[str, int]]:
    """Removes consume queues; the queues that had messages in them."""
    for folder in ("consumequeue", "batchconsumequeue"):
        topics = [
            path
            for path in sorted((root / folder).glob("*"))
            if how == "all" or path.name in ("Orders", "Batches", "Inner")
        ]
        for topic in topics:
            gone = sorted(topic.iterdir())[:1] if how == "one" else [topic]
            for path in gone:
                shutil.rmtree(path)
        if how == "all":
            shutil.rmtree(root / folder, ignore_errors=True)
    return [queue for queue in _messages(root) if not _has_files(root, *queue)]


def _messages(root: Path) -> list[tuple[str, int]]:
    return sorted(MessageStore.open(str(root)).survey().queues)


def _has_files(root: Path, topic: str, queue_id: int) -> bool:
    return any(
        (root / folder / topic / str(queue_id)).is_dir() for folder in ("consumequeue", "batchconsumequeue")
    )


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.process
@pytest.mark.parametrize("how", ["one", "topic", "all"])
@pytest.mark.parametrize("name", [*_STORES, "basic-5.5.0 killed"])
def test_every_row_is_read(
    pristine: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, how: str
) -> None:
    root = copied(pristine[name.removesuffix(" killed")], tmp_path / "store")
    if name.endswith(" killed"):
        (root / "abort").touch()  # recovery begins in the last file, behind the first messages of each queue
        last = max(int(path.name) for path in (root / "commitlog").iterdir())
        save_checkpoint(Opened(str(root)), Checkpoint(logics_physical_offset=last), FileWrites(sync=False))
    before = rows(MessageStore.open(str(root)))
    assert warnings(caplog) == []  # queues without a message have no directory, and that is normal
    lost = damaged(root, how)
    store = MessageStore.open(str(root))
    if (name, how) == ("basic-4.9.7", "topic"):  # its consumer offsets are not those of a 5.x broker
        with pytest.raises(OptionError, match=r"unfiledQueues=skip.* unfiledQueues=read"):
            store.queues()
        store = MessageStore.open(str(root), unfiled_queues="read")
    assert rows(store) == before
    told = [text for text in warnings(caplog) if "no consume queue files" in text]
    if name.startswith("crash") and how != "all":
        assert told == []  # recovery gives such a queue all its entries, and so does a broker's
    else:
        assert len(told) == 1
        assert how == "all" or all(f"{topic}-{queue_id}" in told[0] for topic, queue_id in lost[:8])
    caplog.clear()
    assert rows(store) == before
    assert warnings(caplog) == []


# ---- who else reads ----------------------------------------------------------------------------------------


@pytest.fixture
def basic(pristine: dict[str, Path], tmp_path: Path) -> Path:
    """The golden store without the queue Orders-2."""
    root = copied(pristine["basic-5.5.0"], tmp_path / "basic")
    shutil.rmtree(root / "consumequeue" / "Orders" / "2")
    return root


def _planned(root: Path, **more: str) -> int:
    planned = plan(parse_read_options({"path": str(root), "subscribe": "Orders", **more}), cores=2)
    pieces = [piece for split in planned.splits for share in split.shares for piece in share.slices]
    return sum({(piece.topic, piece.queue_id): piece.stop - piece.start for piece in pieces}.values())


def test_a_stream_keeps_its_offsets_when_the_directory_comes_back(
    basic: Path, caplog: pytest.LogCaptureFixture
) -> None:
    follower = StoreFollower(MessageStore.open(str(basic)), MessageChoice(names=("Orders",)))
    follower.look()
    before = {key: (queue.min_offset, queue.max_offset) for key, queue in follower.queues.items()}
    assert before["Orders", 2] == (0, 365)
    message = next(
        row for row in goldens.expected_rows("basic-5.5.0") if (row["topic"], row["queueId"]) == ("Orders", 2)
    )
    entry = [(0, 0x7FFFFFFF, 0)] * 364 + [
        (message["physicalOffset"], message["storeSize"], message["tagsCode"])
    ]
    size = next((basic / "consumequeue" / "Orders" / "1").iterdir()).stat().st_size
    units = size // CQ_UNIT.itemsize
    start = 364 // units * units
    data = b"".join(struct.pack(">qiq", *unit) for unit in entry[start:])
    # as a broker whose recovery began late
    write_files(basic / "consumequeue" / "Orders" / "2", data, size, start * CQ_UNIT.itemsize)
    follower.look(anew=True)
    assert {key: (queue.min_offset, queue.max_offset) for key, queue in follower.queues.items()} == before
    assert len(warnings(caplog)) == 1


# ---- large logs --------------------------------------------------------------------------------------------


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A log of which only the first and the last 2 KiB are looked at; Middle-0 has messages in the middle
    only.
    """
    root = make_store(tmp_path / "large")
    for topic in ("First", "Middle", "Last"):
        append(root, numbered(topic, 0, 40, queues=1), options=CommitOptions(new_topics={topic: 1}))
    monkeypatch.setattr(unfiled_queues, "_WINDOW_SIZE", 2 << 10)
    for module, name, size in (
        (log, "BLOCK_SIZE", 1 << 10),
        (log, "_LOOK_SIZE", 1 << 8),
    ):
        monkeypatch.setattr(module, name, size)
    return root


def test_a_lost_first_file_in_the_middle_of_a_large_log(
    large: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = rows(MessageStore.open(str(large)))
    (large / "consumequeue/Middle/0" / f"{0:020d}").unlink()
    assert rows(MessageStore.open(str(large))) == before
    told = "consume queue files of 1 queues lack entries of messages in the commitlog: Middle-0."
    assert [told in text for text in warnings(caplog)] == [True]


@pytest.mark.parametrize(("topic", "is_seen"), [("First", True), ("Middle", False), ("Last", True)])
def test_only_the_ends_of_a_large_log_are_looked_at(
    large: Path, caplog: pytest.LogCaptureFixture, topic: str, is_seen: bool
) -> None:
    shutil.rmtree(large / "consumequeue" / topic)
    store = MessageStore.open(str(large), unfiled_queues="read")
    assert len(rows(store)) == (120 if is_seen else 80)
    rows(store)
    told = warnings(caplog)
    assert len(told) == 1
    assert f"{topic}-0" in told[0]
    assert ("These queues are read by a scan of the commitlog" in told[0]) == is_seen
    assert ("`rmqlog verify` checks the whole commitlog" in told[0]) != is_seen


def test_a_committed_offset_says_that_there_were_messages(
    large: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(large / "consumequeue" / "Middle")
    (large / "config" / "consumerOffset.json").write_text(
        json.dumps({"dataVersion": {"timestamp": 1}, "offsetTable": {"Middle@group": {"0": 7}}})
    )
    assert len(rows(MessageStore.open(str(large)))) == 120
    assert [
        "Middle-0. These queues are read by a scan of the commitlog" in text for text in warnings(caplog)
    ] == [True]


# ---- beside a broker ---------------------------------------------------------------------------------------


def test_a_queue_whose_messages_a_broker_has_passed_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It dispatches in the order of the log: what lies behind the newest entry is not dispatched yet, and may
    be a moment later.
    """
    monkeypatch.setattr(
        "store_format.files.lock.StoreLock.holder", lambda path: 4711 if "/live" in path else None
    )
    root = make_store(tmp_path / "live")
    append(root, numbered("T", 0, 4) + numbered("U", 0, 4))
    later = tmp_path / "later"
    shutil.copytree(root / "consumequeue", later)
    shutil.rmtree(root / "consumequeue" / "T" / "1")
    shutil.rmtree(root / "consumequeue" / "U")
    store = MessageStore.open(str(root), unfiled_queues="read")
    assert {(topic, queue) for topic, queue, *_ in rows(store)} == {("T", 0), ("T", 1), ("T", 2), ("T", 3)}
    shutil.copytree(later / "U" / "2", root / "consumequeue" / "U" / "2")
    assert {queue for topic, queue, *_ in rows(store) if topic == "U"} == {0, 1, 2}
    shutil.copytree(later / "U" / "3", root / "consumequeue" / "U" / "3")
    assert len(rows(store)) == 8
    told = warnings(caplog)
    assert ["T-1" in told[0], "U-0, U-1" in told[1], len(told)] == [True, True, 2]
    assert "Once the broker has stopped, writing to these topics with rmqlog" in told[0]


def test_messages_that_a_broker_does_not_dispatch_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("store_format.files.lock.StoreLock.holder", lambda path: 4711)
    root = make_store(tmp_path / "live")
    append(root, numbered("T", 0, 4), options=CommitOptions(clock=lambda: 1_700_000_100_000))
    append(root, numbered("T", 4, 4), options=CommitOptions(clock=lambda: 1_700_000_105_000))
    for queue in (root / "consumequeue" / "T").iterdir():
        shutil.rmtree(queue)
    store = MessageStore.open(str(root))
    assert rows(store) == []
    assert rows(store) == []
    assert len(warnings(caplog)) == 1
    assert (
        "4 queues have messages in the commitlog and no consume queue files: T-0, T-1, T-2, T-3"
        in warnings(caplog)[0]
    )


# ---- queues with a part of their files ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def filed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """T-0 has 60 entries in three full files, U-0 60 messages between its own and two behind them."""
    root = make_store(tmp_path_factory.mktemp("filed") / "store")
    messages = [
        message for i in range(60) for topic in ("T", "U") for message in numbered(topic, i, 1, queues=1)
    ]
    append(
        root, messages + numbered("U", 60, 2, queues=1), options=CommitOptions(new_topics={"T": 1, "U": 1})
    )
    return root


def zeroed(root: Path, first: int, stop: int) -> None:
    """Entries of T-0 as on pages that never reached the disk."""
    for number in range(first, stop):
        path = root / "consumequeue" / "T" / "0" / f"{number // 20 * 400:020d}"
        overwrite(path, number % 20 * 20, bytes(20))


@pytest.mark.parametrize(("first", "stop"), [(0, 60), (0, 5), (25, 35), (25, 60), (19, 20)])
def test_entries_lost_before_the_part_of_the_log_that_recovery_scans(
    filed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int, stop: int
) -> None:
    root = tmp_path / "store"
    shutil.copytree(filed, root)
    before = rows(MessageStore.open(str(root)))
    last = max(int(path.name) for path in (root / "commitlog").iterdir())
    assert last > 0
    (root / "abort").touch()
    save_checkpoint(Opened(str(root)), Checkpoint(logics_physical_offset=last), FileWrites(sync=False))
    zeroed(root, first, stop)
    store = MessageStore.open(str(root))
    assert rows(store) == before
    assert set(store.snapshot().damaged) == {("T", 0)}
    caplog.clear()
    assert _planned(root, subscribe="T") == 60
    assert [
        "1 consume queues cannot be used, scanning the commitlog for them; T-0: " in text
        for text in warnings(caplog)
    ] == [True]


@pytest.mark.parametrize("known_by", ["another light queue", "the offsets of groups"])
def test_a_lost_light_queue_is_read_from_the_log(
    tmp_path: Path, known_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """topics.json names no light queue, only messages do."""
    root = goldens.unpack("edge-5.5.0", tmp_path / "store")
    before = rows(MessageStore.open(str(root)))
    directories = sorted((root / "consumequeue").glob("%LMQ%*"))
    for directory in directories if known_by == "the offsets of groups" else directories[:1]:
        shutil.rmtree(directory)
    if known_by == "the offsets of groups":
        (root / "config").mkdir()
        (root / "config/lmqConsumerOffset.json").write_text('{"offsetTable":{}}')
    with caplog.at_level(logging.WARNING):
        assert rows(MessageStore.open(str(root))) == before
        assert MessageStore.open(str(root)).queue(directories[0].name, 0).max_offset == 8
        follower = StoreFollower(MessageStore.open(str(root)), MessageChoice(names=(directories[0].name,)))
        follower.look()
        assert [queue.max_offset for queue in follower.queues.values()] == [8]
    assert all("`rmqlog recover` rebuilds the files" in text for text in warnings(caplog))
    problems = MessageStore.open(str(root)).diagnose().of("damage")
    assert {problem.file.split("/")[-2] for problem in problems} >= {directories[0].name}
    MessageStore.open(str(root)).recover().apply()
    assert rows(MessageStore.open(str(root))) == before
    assert MessageStore.open(str(root)).diagnose().of("damage") == []

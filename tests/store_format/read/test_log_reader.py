"""Queues out of the commitlog alone: what a survey finds, which of repeated offsets count, and what no queue
can have.
"""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given

from store_format import MessageStore
from store_format.commitlog.log import CommitLog
from store_format.errors import CorruptStoreError
from store_format.files.read import FileCache
from store_format.message.columns import DecodeOptions
from store_format.read.log_reader import LogReader
from store_format.read.tolerance import Tolerance
from store_format.survey.scan import LogQueues
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.rows import ALL, BROKER, table_rows
from tests.support.small_store import SmallStore, write_small_store
from tests.support.store_files import write_files, write_log
from tests.support.strategies import StoredLog, commit_logs


def store_of(root: Path, messages: list[Message], file_size: int = 4096) -> MessageStore:
    write_log(root, messages, file_size)
    return MessageStore.open(str(root), broker_name=BROKER)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SmallStore:
    return write_small_store(tmp_path_factory.mktemp("log") / "store")


def log_of(small: SmallStore) -> CommitLog:
    return CommitLog.open((str(small.root / "commitlog"),), FileCache())


def test_a_survey_finds_the_queues_that_dispatch_would_make(small: SmallStore) -> None:
    found = LogQueues.of(log_of(small), lambda topic: True)
    assert {key: (queue.min_offset, queue.max_offset) for key, queue in found.queues.items()} == {
        key: (rows[0]["queueOffset"], rows[-1]["queueOffset"] + 1) for key, rows in small.rows.items()
    }
    assert [key for key, queue in found.queues.items() if queue.is_batch] == [("Batches", 0)]
    assert not found.damage
    assert LogQueues.of(log_of(small), "Orders".__eq__).queues.keys() == {("Orders", 0), ("Orders", 1)}


@pytest.mark.parametrize("cut_bytes", [1, 500, 1 << 20])
def test_a_read_in_parts_is_the_read_of_the_whole(small: SmallStore, cut_bytes: int) -> None:
    log = log_of(small)
    found = LogQueues.of(log, lambda topic: True, cut_bytes=cut_bytes)
    store = MessageStore.open(str(small.root), broker_name=BROKER)
    queues, cuts = store.scanned_queues(lambda topic: True, cut_bytes)
    assert cuts == found.cuts
    reader = store.reader(DecodeOptions(ALL), Tolerance())
    pieces = [queue.piece() for queue in queues]
    rows = []
    for start, stop in pairwise(cuts):
        rows += table_rows(LogReader(reader, pieces, {}).read(start, stop))
    for key, right in small.rows.items():
        assert [row for row in rows if (row["topic"], row["queueId"]) == key] == right
    assert len(rows) == sum(map(len, small.rows.values()))


@given(commit_logs())
def test_any_log_gives_its_queues(tmp_path_factory: pytest.TempPathFactory, log: StoredLog) -> None:
    root = tmp_path_factory.mktemp("any")
    log.write(root)
    found = LogQueues.of(CommitLog.open((str(root / "commitlog"),), FileCache()), lambda topic: True)
    dispatched = {
        key: (messages[0].queue_offset, messages[-1].queue_offset + 1) for key, messages in log.queues.items()
    }
    light = {key for key in found.queues if key[0].startswith("%LMQ%")}
    assert {
        key: (queue.min_offset, queue.max_offset) for key, queue in found.queues.items() if key not in light
    } == dispatched


# ---- offsets that begin anew -------------------------------------------------------------------------------


def bodies(store: MessageStore, topic: str = "T") -> list[tuple[int, bytes]]:
    return [
        (row["queueOffset"], row["body"])
        for row in table_rows(store.queue(topic, 0).read(columns=["queueOffset", "body"]))
    ]


def test_of_a_topic_created_again_the_later_messages_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = [Message(b"T", b"old %d" % i, queue_offset=i) for i in range(5)]
    second = [Message(b"T", b"new %d" % i, queue_offset=i) for i in range(3)]
    store = store_of(tmp_path, first + second)
    # a broker files the first ones of a store without queue files
    assert bodies(store) == [(number, b"old %d" % number) for number in range(5)]
    (tmp_path / "consumequeue_rocksdb").mkdir()
    (tmp_path / "consumequeue_rocksdb/CURRENT").touch()
    caplog.clear()
    queue = store.queue("T", 0)
    assert (queue.min_offset, queue.max_offset) == (0, 3)
    assert bodies(store) == [(0, b"new 0"), (1, b"new 1"), (2, b"new 2")]
    told = [record.getMessage() for record in caplog.records if "restart at 0" in record.getMessage()]
    assert [text.partition(": ")[2] for text in told] == [
        (
            "the offsets of 1 queues restart at 0 (topics deleted and created again?): T-0. "
            "Their earlier messages are not read; the consume queues do not hold them either"
        )
    ]


@pytest.mark.timeout(30)
def test_offsets_that_never_rise_are_refused_and_cost_no_hour(tmp_path: Path) -> None:
    count = 3000
    units = [Message(b"T", queue_offset=count - i) for i in range(count)]
    store = store_of(tmp_path, units, 4 << 20)
    with pytest.raises(CorruptStoreError, match="at most 1000 restarts of the queue offsets of T-0"):
        store.queues()


# ---- what no queue can have --------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [-1, -(2**63), 2**63 - 1])
def test_an_offset_that_no_queue_can_have_is_told(tmp_path: Path, offset: int) -> None:
    store = store_of(
        tmp_path,
        [Message(b"T", b"a"), Message(b"T", b"b", queue_offset=offset), Message(b"T", b"c", queue_offset=1)],
    )
    with pytest.raises(CorruptStoreError) as caught:
        bodies(store)
    assert caught.value.args[1:] == (93 + 20, f"a queueOffset from 0 to {2**63 - 1 - 2**15}", str(offset))
    queue = store.queue("T", 0)
    assert queue.scanned is not None
    tolerance = Tolerance("DROPMALFORMED")
    reader = LogReader(store.reader(DecodeOptions(("body",)), tolerance), [queue.piece()], {})
    assert [row["body"] for row in table_rows(reader.read(0, queue.scanned.physical_stop))] == [b"a", b"c"]
    assert tolerance.dropped == 1


@pytest.mark.parametrize("queue_id", [-1, -(2**31), 2**31 - 1])
def test_queue_ids_are_signed(tmp_path: Path, queue_id: int) -> None:
    store = store_of(tmp_path, [Message(b"T", b"a", queue_id=queue_id)])
    (queue,) = store.queues()
    assert queue.queue_id == queue_id
    assert table_rows(queue.read(columns=["queueId", "body"])) == [{"queueId": queue_id, "body": b"a"}]


@pytest.mark.parametrize(
    ("names", "offsets", "queues"),
    [
        ("%LMQ%a,%LMQ%b", "3,4", {"%LMQ%a": 3, "%LMQ%b": 4}),
        ("%LMQ%a,plain", "3,", {}),  # as a broker writes it: the lists then have different lengths
        ("%LMQ%a", "x", {}),
        ("%LMQ%a", "-3", {}),
        ("%LMQ%a", "99999999999999999999", {}),
        ("%LMQ%a/b", "3", {}),
        ("", "", {}),
    ],
)
def test_light_queues(tmp_path: Path, names: str, offsets: str, queues: dict[str, int]) -> None:
    properties = oracle.encode_properties(
        [("INNER_MULTI_DISPATCH", names), ("INNER_MULTI_QUEUE_OFFSET", offsets)]
    )
    store = store_of(tmp_path, [Message(b"T", b"a", properties)])
    assert {queue.topic: queue.min_offset for queue in store.queues() if queue.topic != "T"} == queues
    for topic, offset in queues.items():
        assert bodies(store, topic) == [(offset, b"a")]


# ---- damage ------------------------------------------------------------------------------------------------


def test_damage_is_told_by_scan_and_read_and_stepped_over_on_request(tmp_path: Path) -> None:
    store = store_of(tmp_path, [Message(b"T", b"%d" % i, queue_offset=i) for i in range(3)])
    path = tmp_path / "commitlog" / oracle.file_name(0)
    data = bytearray(path.read_bytes())
    data[93 + 4] ^= 0xFF
    path.write_bytes(data)
    store = MessageStore.open(str(tmp_path))
    with pytest.raises(CorruptStoreError) as caught:
        list(store.scan())
    assert (caught.value.file, caught.value.position) == (str(path), 93)
    with pytest.raises(CorruptStoreError):
        bodies(store)
    assert [row["body"] for row in table_rows(store.scan(["body"], on_damage="DROPMALFORMED"))] == [
        b"0",
        b"2",
    ]
    assert len(store.survey().damage) == 1


def test_random_bytes_between_units_end_in_rows_or_an_error(tmp_path: Path) -> None:
    noise = random.Random(7)
    for i in range(30):
        units = [
            oracle.encode_message(
                Message(b"T", b"x" * noise.randrange(50), physical_offset=0, queue_offset=n)
            )
            for n in range(3)
        ]
        data = b"".join(unit + noise.randbytes(noise.randrange(60)) for unit in units)
        root = tmp_path / str(i)
        write_files(root / "commitlog", data, 1024)
        rows = table_rows(MessageStore.open(str(root)).scan(ALL, on_damage="DROPMALFORMED"))
        assert [row["queueOffset"] for row in rows] == [0]  # the others say that they stand elsewhere

"""Writes to a store as it is: what a broker would truncate, lose or never deliver is refused, or written so
that it does not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.write.stage_and_commit import abort_write, commit_write, stage_rows
from store_format.bookkeeping.settings import StoreSettings
from store_format.errors import IllegalMessageError, OptionError, UnsupportedFormatError
from store_format.message.columns import DEFAULT_COLUMNS
from store_format.metadata.read import read_topics
from store_format.metadata.values import TopicConfig
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.fixtures import Golden
from tests.support.staged import make_store, messages_of
from tests.support.writes import SMALL, bodies, numbered_rows, target_of, write

# ---- the CRC property --------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("name", ["propcrc-5.5.0", "basic-5.5.0"])
def test_messages_get_the_crc_property_where_the_last_message_has_it(copy_of: Golden, name: str) -> None:
    root, expected = copy_of(name), name.startswith("propcrc")
    before = len(messages_of(root))
    for first in (0, 30):
        assert target_of(root).stores[0].crc_property == expected
        write(root, numbered_rows(first, first + 15, "Orders"), numbered_rows(first + 15, first + 30, "New"))
    messages = messages_of(root)[before:]
    assert [message.properties_bytes[-20:].startswith(b"__CRC32#\x01") for message in messages] == [
        expected
    ] * 60


# ---- queues that no consumer reads -------------------------------------------------------------------------


def _delayed(first: int, stop: int) -> pa.RecordBatch:
    return numbered_rows(first, stop, delayTimeLevel=[1] * (stop - first))


@pytest.mark.parametrize("rows", [numbered_rows, _delayed])
def test_two_first_writers_with_other_queue_numbers(
    tmp_path: Path, rows: Callable[[int, int], pa.RecordBatch]
) -> None:
    """The second to commit chose queues that the topic did not get; the same batch run again uses those that
    there are.
    """
    root = tmp_path / "store"
    late = target_of(root, defaultTopicQueueNums="8")
    staged = stage_rows(late, [rows(0, 17)])
    write(root, numbered_rows(17, 21), defaultTopicQueueNums="2")
    with pytest.raises(
        IllegalMessageError,
        match=r"T has readQueueNums=2 and writeQueueNums=2 .* queue \d, .*Nothing was written.*run it",
    ):
        commit_write(late, [staged], ("q", 1))
    abort_write(late)
    assert bodies(root) == dict.fromkeys(range(17, 21), 1)
    assert all(
        result.committed
        for result in write(root, rows(0, 17), key=("q", 1), defaultTopicQueueNums="8").values()
    )
    assert bodies(root) == dict.fromkeys(range(21), 1)
    assert {queue.queue_id for queue in MessageStore.open(str(root)).queues() if queue.topic == "T"} == {0, 1}
    assert MessageStore.open(str(root)).diagnose() == []


def test_a_new_topic_gets_the_queues_that_its_rows_name(tmp_path: Path) -> None:
    root = tmp_path / "store"
    tasks = [
        numbered_rows(0, 4, "Orders", queueId=[0, 3, 7, 1]),
        numbered_rows(4, 8, "Orders", queueId=[10, 0, 0, 0]),
        numbered_rows(8, 12, "Audit", queueId=[0] * 4),
        numbered_rows(12, 16, "Free"),
    ]
    write(root, *tasks, defaultTopicQueueNums="1")
    topics: Mapping[str, TopicConfig] = read_topics(Opened(str(root))) or {}
    names = ("Orders", "Audit", "Free")
    queues = {name: (topics[name].write_queue_nums, topics[name].read_queue_nums) for name in names}
    assert queues == {"Orders": (11, 11), "Audit": (1, 1), "Free": (1, 1)}
    assert bodies(root) == dict.fromkeys(range(16), 1)


# ---- messages that no broker delivers ----------------------------------------------------------------------


def _timed(count: int) -> pa.RecordBatch:
    return numbered_rows(0, count, "Orders", deliverTimestamp=[time.time_ns() // 1_000_000 + 600_000] * count)


def test_timer_messages_into_the_store_of_a_broker_without_a_timer_are_refused(
    copy_of: Golden,
) -> None:
    root = copy_of("basic-4.9.7")
    before = len(messages_of(root))
    with pytest.raises(
        UnsupportedFormatError,
        match=r"deliverTimestamp.*no rmq_sys_wheel_timer.*timerWheelEnable=false.*delayTimeLevel",
    ):
        write(root, _timed(2))
    write(root, numbered_rows(0, 2, "Orders", delayTimeLevel=[1, 2]))
    assert len(messages_of(root)) == before + 2


@pytest.mark.process
def test_timer_messages_go_into_stores_of_5_and_into_new_ones(copy_of: Golden, tmp_path: Path) -> None:
    root = copy_of("basic-5.5.0")
    before = len(messages_of(root))
    write(root, _timed(2))
    write(tmp_path / "new", _timed(2))
    assert len(messages_of(root)) == before + 2
    assert len(messages_of(tmp_path / "new")) == 2


# ---- a batch that is committed already ---------------------------------------------------------------------


def test_a_replay_with_compressed_bodies_in_other_partitions_and_stores(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Over a cluster the counts of all stores together are compared."""
    for name in ("broker-a", "broker-b"):
        make_store(tmp_path / name, StoreSettings(name, 1 << 16, 400, 50, 200))
    big = {"compressMsgBodyOverHowmuch": "1"}
    write(tmp_path, numbered_rows(0, 30), numbered_rows(30, 40), key=("q", 1), compressType="ZLIB", **big)
    for options in ({}, {"compressType": "LZ4"} | big):
        results = write(tmp_path, numbered_rows(25, 40), numbered_rows(0, 25), key=("q", 1), **options)
        assert not any(result.committed for result in results.values())
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert (
        told
        == [f"{tmp_path}/broker-a: batch 1 of q is not written, 40 messages: it is committed already"] * 2
    )
    with pytest.raises(OptionError, match="has 40 messages and is committed already, with other bodies"):
        write(tmp_path, numbered_rows(1, 41), key=("q", 1))
    assert bodies(tmp_path / "broker-a", tmp_path / "broker-b") == dict.fromkeys(range(40), 1)


# ---- settings that contradict the store --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "other"),
    [
        ("mappedFileSizeCommitLog", "32768"),
        ("mappedFileSizeConsumeQueue", "420"),
        ("maxHashSlotNum", "51"),
        ("maxIndexNum", "201"),
        ("brokerName", "broker-x"),
    ],
)
def test_a_setting_of_a_new_store_that_contradicts_the_store_is_refused(
    root: Path, option: str, other: str
) -> None:
    same = SMALL | {"brokerName": "broker-a", "mappedFileSizeConsumeQueue": "395"}  # made a multiple of 20
    write(root, numbered_rows(0, 3), key=None, **same)
    own = {"brokerName": "broker-a", **SMALL}[option]
    with pytest.raises(
        OptionError,
        match=f"{option}={other}, but {root} has {own}: the option applies to new stores only; leave it out",
    ):
        write(root, numbered_rows(3, 6), key=None, **{option: other})
    assert bodies(root) == dict.fromkeys(range(3), 1)


def test_an_index_file_that_a_broker_made_longer_is_not_written_to(root: Path, tmp_path: Path) -> None:
    """It was started with its default index sizes: no program finds all entries of the file any more."""
    write(root, numbered_rows(0, 3))
    (path,) = (root / "index").iterdir()
    with path.open("r+b") as file:
        file.truncate(StoreSettings("x").geometry.file_size)
    with pytest.raises(
        OptionError, match=r"has 420000040 bytes, and with maxHashSlotNum=50 .* it has 4240: .*broker.conf"
    ):
        write(root, numbered_rows(3, 6))
    path.rename(tmp_path / path.name)
    write(root, numbered_rows(3, 6))
    assert bodies(root) == dict.fromkeys(range(6), 1)


def test_an_index_file_that_a_broker_made_counts_more_than_what_the_store_remembers(tmp_path: Path) -> None:
    root, other = (
        make_store(tmp_path / "store"),
        make_store(tmp_path / "other", StoreSettings("other", 1 << 14, 400)),
    )
    write(root, numbered_rows(0, 3))
    write(other, numbered_rows(0, 3))
    (mine,), (theirs,) = (root / "index").iterdir(), (other / "index").iterdir()
    mine.unlink()
    theirs.rename(root / "index" / theirs.name)
    write(root, numbered_rows(3, 6))
    assert MessageStore.open(str(root)).find(key="k4", topic="T").table["body"].to_pylist() == [b"4"]
    assert len(list((root / "index").iterdir())) == 1


# ---- what a read gives can be written ----------------------------------------------------------------------


@pytest.mark.process
def test_properties_that_a_read_made_columns_are_written_as_they_were(golden: Golden, tmp_path: Path) -> None:
    source, names = golden("basic-5.5.0"), ["a", "UNIQ_KEY", "WAIT", "none"]
    table = pa.Table.from_batches(
        batch
        for queue in MessageStore.open(str(source)).queues()
        if queue.topic in ("Orders", "Audit", "Metrics")
        for batch in queue.read(columns=DEFAULT_COLUMNS)
    )
    maps = [dict(row) for row in table["properties"].to_pylist()]
    columns = {name: pa.array([row.get(name) for row in maps], pa.string()) for name in names}
    (rows,) = table.combine_chunks().to_batches()
    with_columns = pa.RecordBatch.from_pydict(
        {**dict(zip(rows.schema.names, rows.columns, strict=True)), **columns}
    )
    with pytest.raises(OptionError, match=r"unknown column 'a'.*propertyColumns"):
        write(tmp_path / "refused", with_columns)
    for root, batch in (
        (tmp_path / "a", rows),
        (tmp_path / "b", with_columns),
        (tmp_path / "c", with_columns.drop_columns(["properties"])),
    ):
        write(root, batch, defaultTopicQueueNums="1", propertyColumns=",".join(names))
    stored = [[m.properties_bytes for m in messages_of(tmp_path / name)] for name in "ab"]
    assert stored[0] == stored[1]
    for message, row in zip(messages_of(tmp_path / "c"), maps, strict=True):
        expected = {name: row[name] for name in row if name in {*names, "TAGS"}} | {
            "WAIT": row.get("WAIT", "true")
        }
        # spaces are one there
        assert {name: value for name, value in message.properties.items() if name != "KEYS"} == expected
    topics: Mapping[str, TopicConfig] = read_topics(Opened(str(tmp_path / "a"))) or {}
    own: Mapping[str, TopicConfig] = read_topics(Opened(str(source))) or {}
    assert {name: topics[name].write_queue_nums for name in ("Orders", "Audit")} == {
        name: own[name].write_queue_nums for name in ("Orders", "Audit")
    }


def test_a_message_that_clients_do_not_take_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for size in (1 << 20, 16 << 20):
        caplog.clear()
        rows = pa.RecordBatch.from_pydict({"topic": ["T"], "body": [b"x" * size]})
        write(tmp_path / "store", rows, maxMessageSize="20m", mappedFileSizeCommitLog="32m")
        told = [record.getMessage() for record in caplog.records if "frameMaxLength" in record.getMessage()]
        assert len(told) == (size >= 16 << 20)

"""Tiered storage in files, with the store that has the newest messages: one queue, as brokers serve it."""

from __future__ import annotations

import os
import random
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

import rmq_spark
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.errors import (
    CorruptStoreError,
    FileReplacedError,
    OptionError,
    StoreError,
    StoreNotFoundError,
)
from tests.support import goldens
from tests.support.conformance import NAMES, differences, expected, rows_of
from tests.support.file_edits import edited_json, flip, overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.object_server import ObjectServer
from tests.support.reads import Place, Row, read, told_places

NAME = goldens.TIERED
DAMAGES = 150  # 2,000 were tried once
IN_BOTH = {"physicalOffset", "offsetMsgId"}  # of a message in both places a broker may show either


@pytest.fixture
def root(golden: Golden, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden(NAME), tmp_path / "store"))


def _store(root: Path) -> MessageStore:
    return MessageStore.open(str(root), tiered_path=str(root / "tiered"))


def _other_than_in_both(found: list[Row], told: list[Row]) -> list[str]:
    return [line for line in differences(found, told) if not IN_BOTH & {line.split(") ")[1].split(":")[0]}]


def _segments(root: Path, kind: str = "*", queue: str = "Orders/0") -> list[Path]:
    return sorted((root / "tiered").glob(f"*/*/{queue}/{kind}/*"), key=lambda path: path.name[-20:])


# ---- the same answers as the broker's ----------------------------------------------------------------------


def test_every_row_and_column(golden: Golden, unchanged: Unchanged) -> None:
    root = golden(NAME)
    told = expected(NAME, root)
    with unchanged(root):
        store = _store(root)
        found = [row for queue in store.queues() for row in rows_of(queue.to_table(columns=NAMES))]
        batch = rows_of(
            read(
                root, tieredStoreFilePath=root / "tiered", includeSystemTopics=True, columns=",".join(NAMES)
            ).table()
        )
        alone = MessageStore.open(str(root)).queues()
    assert _other_than_in_both(found, told) == []
    assert _other_than_in_both(batch, told) == []
    assert len(batch) == len(found) == len(told) == 510
    assert sum(queue.messages for queue in alone) == 144
    only_there = set(told_places(told)) - {
        (queue.topic, queue.queue_id, offset)
        for queue in alone
        for offset in range(queue.min_offset, queue.max_offset)
    }
    rows = [row for row in found if (row["topic"], row["queueId"], row["queueOffset"]) in only_there]
    mine = [row for row in told if (row["topic"], row["queueId"], row["queueOffset"]) in only_there]
    assert differences(rows, mine) == []
    assert len(rows) == 366


def test_bounds_and_offsets_by_time(golden: Golden) -> None:
    store, answers = _store(golden(NAME)), goldens.expected(NAME)
    queues = {queue.key: queue for queue in store.queues()}
    assert {key: (queue.min_offset, queue.max_offset) for key, queue in queues.items()} == {
        (each["topic"], each["queueId"]): (each["minOffset"], each["maxOffset"]) for each in answers["queues"]
    }
    for probe in answers["offsetsByTime"]:
        queue = queues[probe["topic"], probe["queueId"]]
        assert queue.offset_at(probe["timestamp"], probe["boundary"]) == probe["offset"], probe
    assert len(answers["offsetsByTime"]) == 172


def test_a_queue_that_a_scan_reads_says_what_it_lacks(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The directory has its older messages, and no consume queue the place where they end."""
    path = min((root / "consumequeue/Orders/0").iterdir())
    overwrite(path, 8 + 20 * (path.stat().st_size // 40), bytes(4))
    queue = _store(root).queue("Orders", 0)
    assert queue.scanned is not None
    assert queue.min_offset > 0
    assert "messages that only tiered storage has are left out of Orders-0: " in caplog.text


def test_every_key_is_found(golden: Golden) -> None:
    store, by_key = _store(golden(NAME)), defaultdict[tuple[str, str], list[Row]](list)
    for row in goldens.expected_rows(NAME):
        for key in {*row["properties"].get("KEYS", "").split(), row["properties"].get("UNIQ_KEY")} - {None}:
            by_key[row["topic"], key].append(row)
    for topic, key in sorted(by_key)[::60]:
        found = store.find(key=key, topic=topic).table.to_pylist()
        assert told_places(found) == told_places(by_key[topic, key]), (topic, key)
    row = goldens.expected_rows(NAME)[40]
    assert row["topic"] == "Audit"
    (found,) = store.find(message_id=row["msgId"]).table.to_pylist()
    assert (found["topic"], found["queueOffset"]) == ("Audit", row["queueOffset"])


def test_object_storage_gives_the_same(golden: Golden, server: ObjectServer) -> None:
    root = Path(shutil.copytree(golden(NAME), server.bucket / NAME))
    columns = "topic,queueId,queueOffset,body,physicalOffset,tagsCode"
    found, told = (
        sorted(
            read(path, columns=columns, tieredStoreFilePath=tiered).rows(),
            key=lambda row: [*row.values()][:3],
        )
        for path, tiered in ((server.url_of(root), server.url_of(root / "tiered")), (root, root / "tiered"))
    )
    assert found == told
    assert len(found) == 504
    # the store on a disk, its tiered storage in a bucket
    mixed = read(root, columns=columns, tieredStoreFilePath=server.url_of(root / "tiered")).rows()
    assert sorted(mixed, key=lambda row: [*row.values()][:3]) == told


# ---- where it is -------------------------------------------------------------------------------------------


def test_the_directory_is_that_of_the_broker(root: Path) -> None:
    with pytest.raises(
        StoreNotFoundError, match="with a directory broker-a in it, found no directory of a cluster"
    ):
        MessageStore.open(str(root), tiered_path=str(root / "config")).queues()
    shutil.copytree(next((root / "tiered").iterdir()), root / "tiered/00000000_Other")
    with pytest.raises(OptionError, match="expected one cluster with a broker broker-a"):
        _store(root).queues()


def test_the_metadata_are_not_needed(root: Path) -> None:
    for path in (root / "config").glob("tieredStoreMetadata.json*"):
        path.unlink()
    assert sum(queue.messages for queue in _store(root).queues()) == 510


def test_a_group_loses_nothing_that_is_still_served(root: Path) -> None:
    rows = [row for row in _store(root).view("lag", now_ms=0).to_pylist() if row["topic"] == "Orders"]
    assert {row["lostMessages"] for row in rows} == {0}
    assert sum(row["lagMessages"] for row in rows if row["group"] == "CG_tags") == 279
    alone = MessageStore.open(str(root)).view("lag", now_ms=0).to_pylist()
    assert None in {row["lostMessages"] for row in alone if row["topic"] == "Orders"}
    opened = rmq_spark.open(root, tiered_path=str(root / "tiered"))
    assert isinstance(opened, MessageStore)
    assert opened.queue("Orders", 0).min_offset == 0


# ---- one queue ---------------------------------------------------------------------------------------------


def test_a_queue_of_which_the_store_has_nothing(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/Audit")
    with edited_json(root / "config/topics.json") as value:
        del value["topicConfigTable"]["Audit"]
    queue = _store(root).queue("Audit", 0)
    assert (queue.min_offset, queue.max_offset) == (0, 94)
    assert queue.to_table(columns=["queueOffset"])["queueOffset"].to_pylist() == [*range(94)]


def test_messages_between_both_are_named(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    for path in (root / "config").glob("tieredStoreMetadata.json*"):
        path.unlink()
    for path in _segments(root, "CONSUME_QUEUE")[1:]:
        path.unlink()
    os.truncate(_segments(root, "CONSUME_QUEUE")[0], 40 * 20)
    assert len(_store(root).queue("Orders", 0).to_table(columns=["queueOffset"])) == 65 - 6
    assert (
        "Orders-0: 6 messages from offset 40 on are neither in tiered storage nor in the store" in caplog.text
    )


def test_a_segment_that_has_expired_takes_its_messages(root: Path) -> None:
    first, *others = _segments(root, "COMMIT_LOG")
    size = first.stat().st_size
    assert [int(path.name[-20:]) for path in others] == [size]
    first.unlink()
    queue = _store(root).queue("Orders", 0)
    assert queue.min_offset == queue.to_table(columns=["queueOffset"])["queueOffset"][0].as_py() > 0
    assert len(queue.to_table(columns=["body"])) == queue.messages


def test_a_stream_reads_the_store_alone(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    stream = StreamStores(parse_read_options({"path": str(root), "subscribe": "Audit"}, where="stream"))
    stream.look()
    assert [queue.min_offset for queue in stream.queues.values()] == [65]
    assert "the broker also keeps messages in tiered storage" in caplog.text


# ---- damage ------------------------------------------------------------------------------------------------


def test_a_segment_that_was_replaced_is_noticed(root: Path) -> None:
    planned = read(root, subscribe="Orders", tieredStoreFilePath=root / "tiered")
    assert planned.splits
    for path in _segments(root, "COMMIT_LOG"):
        Path(shutil.copy(path, path.with_name("new"))).replace(path)
    with pytest.raises(FileReplacedError, match="another file took this name"):
        planned.rows()


def test_damage_is_named(root: Path) -> None:
    log, queue = _segments(root, "COMMIT_LOG")[0], _segments(root, "CONSUME_QUEUE")[0]
    entry = queue.read_bytes()[60:80]
    overwrite(queue, 60, (2**40).to_bytes(8))
    with pytest.raises(CorruptStoreError) as caught:
        _store(root).queue("Orders", 0).to_table()
    assert (caught.value.file, caught.value.position) == (str(queue), 60)
    overwrite(queue, 60, entry)
    flip(log, 88)  # the first byte of a body
    with pytest.raises(CorruptStoreError) as caught:
        _store(root).queue("Orders", 0).to_table(0, 1)
    assert caught.value.file == str(log)
    os.truncate(log, 1000)
    with pytest.raises(CorruptStoreError, match="expected at least 16290 bytes of the segment 0"):
        _store(root).queue("Orders", 0).to_table()
    with pytest.raises(CorruptStoreError):
        read(root, subscribe="Orders", tieredStoreFilePath=root / "tiered").rows()
    rows = {row["topic"]: row["messages"] for row in _store(root).view("topics").to_pylist()}
    assert rows["Audit"] == len(_store(root).queue("Audit", 0).to_table(columns=["body"])) == 94


def test_hostile_segments_give_an_error_or_the_right_rows(golden: Golden, tmp_path: Path) -> None:
    chance, whole, rows = random.Random(29), golden(NAME), 0
    ignored = shutil.ignore_patterns("rocksdbstore", "timerwheel")
    root = Path(shutil.copytree(whole, tmp_path / "store", ignore=ignored))

    def bodies() -> dict[Place, object]:
        table = _store(root).queue("Audit", 0).to_table(columns=["topic", "queueId", "queueOffset", "body"])
        return {(row["topic"], row["queueId"], row["queueOffset"]): row["body"] for row in table.to_pylist()}

    told, files = bodies(), _segments(root, queue="Audit/0")
    for _ in range(DAMAGES):
        path = chance.choice(files)
        size = path.stat().st_size
        match chance.randrange(3):
            case 0:
                flip(path, chance.randrange(size), 1 << chance.randrange(8))
            case 1:
                length = min(chance.randrange(1, 40), size)
                overwrite(path, chance.randrange(size - length + 1), chance.randbytes(length))
            case _:
                os.truncate(path, chance.randrange(size))
        try:
            found = bodies()
        except StoreError as error:
            assert str(root) in str(error) or "Audit-0" in str(error)  # noqa: PT017 # or the right rows
        else:
            assert found == told
            rows += 1
        shutil.copy(whole / path.relative_to(root), path)
    assert 0 < rows < DAMAGES

"""A group's offsets between this project and RocketMQ: each goes on where the other one stopped, and reads
the other one's files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.offset_store import LocalOffsets
from rmq_spark.consume.reset import copy_offsets, group_place, reset_by_time, reset_to
from store_format import MessageStore
from store_format.metadata.group_offsets import read_group_offsets
from store_format.opened.store import Opened
from tests.interop.harness import RocketMQ
from tests.interop.programs import Line
from tests.interop.versions import NEW, OLD
from tests.support import goldens
from tests.support.fixtures import Golden, SparkSession

TOPIC = "Orders"


@pytest.mark.parametrize("version", OLD)
def test_a_java_consumer_goes_on_where_we_stopped_and_we_where_it_did(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, version: str
) -> None:
    path = copy_of(f"basic-{version}")
    store = MessageStore.open(str(path))
    queues = {q.queue_id: q for q in store.queues(lambda topic: topic == TOPIC)}
    ours = group_place("from_spark", [store])
    others = {name: read_group_offsets(Opened(str(path)), name) for name in ("CG_some", "CG_all", "CG_tags2")}
    # Half way through each queue, but for one at its very beginning and one at its end.
    at = {queue_id: (queue.min_offset + queue.max_offset) // 2 for queue_id, queue in queues.items()}
    first, *_, last = sorted(queues)
    at |= {first: 0, last: queues[last].max_offset}
    assert ours.offsets.save(
        {MessageQueue(TOPIC, store.broker_name, queue_id): offset for queue_id, offset in at.items()}
    )
    expected = {
        (queue_id, offset)
        for queue_id, queue in queues.items()
        for offset in range(at[queue_id], queue.max_offset)
    }
    with rocketmq(version).broker(path, goldens.config(f"basic-{version}")) as broker:
        client = broker.client()
        # Not asked of "from_spark" yet: whoever asks is a member of the group for a while, and would be given
        # queues.
        assert client.group_offsets("CG_some", TOPIC) == {
            key: n for key, n in others["CG_some"].items() if key[0] == TOPIC
        }
        got = client.push_consume("from_spark", TOPIC, expected)
    assert {(line["queueId"], line["queueOffset"]) for line in got} == expected
    assert len(got) == len(expected) > 0
    # And where it stopped is where we begin.
    after = {queue.queue_id: offset for queue, offset in ours.offsets.read().items() if queue.topic == TOPIC}
    assert after == {queue_id: queue.max_offset for queue_id, queue in queues.items()}
    for name, offsets in others.items():
        assert read_group_offsets(Opened(str(path)), name).items() >= offsets.items()


@pytest.mark.parametrize("version", OLD)
def test_a_query_and_a_java_consumer_of_one_group(
    spark: SparkSession,
    rocketmq: Callable[[str], RocketMQ],
    copy_of: Golden,
    tmp_path: Path,
    version: str,
) -> None:
    path = copy_of(f"basic-{version}")
    queues = {q.queue_id: q for q in MessageStore.open(str(path)).queues(lambda topic: topic == TOPIC)}
    there = {
        (queue_id, offset)
        for queue_id, queue in queues.items()
        for offset in range(queue.min_offset, queue.max_offset)
    }
    assert _stream(spark, path, tmp_path / "first") == sorted(there)
    with rocketmq(version).broker(path, goldens.config(f"basic-{version}")) as broker:
        client = broker.client()
        sent = _places(client.send(TOPIC, 20, seed=1))
        assert _places(client.push_consume(_GROUP, TOPIC, sent)) == sent
        later = _places(client.send(TOPIC, 30, seed=2))
    assert len({*there, *sent, *later}) == len(there) + 50
    # A checkpoint that knows nothing: the group's offsets, as the consumer left them in the broker, say where
    # to begin.
    assert _stream(spark, path, tmp_path / "second") == later


@pytest.mark.parametrize("version", OLD)
def test_offsets_that_were_set_back_on_a_broker_count_for_the_next_query(
    spark: SparkSession,
    rocketmq: Callable[[str], RocketMQ],
    copy_of: Golden,
    tmp_path: Path,
    version: str,
) -> None:
    path = copy_of(f"basic-{version}")
    queues = {q.queue_id: q for q in MessageStore.open(str(path)).queues(lambda topic: topic == TOPIC)}
    assert len(_stream(spark, path, tmp_path / "first")) == sum(
        queue.max_offset - queue.min_offset for queue in queues.values()
    )
    back = {0: 0, 1: 7}
    with rocketmq(version).broker(path, goldens.config(f"basic-{version}")) as broker:
        client = broker.client()
        for queue_id, offset in back.items():
            client.ask("commit-offset", _GROUP, TOPIC, queue_id, offset)
        assert (
            client.group_offsets(_GROUP, TOPIC).items()
            >= {(TOPIC, queue_id): offset for queue_id, offset in back.items()}.items()
        )
    expected = [
        (queue_id, offset)
        for queue_id, begin in back.items()
        for offset in range(begin, queues[queue_id].max_offset)
    ]
    assert _stream(spark, path, tmp_path / "second") == expected
    committed = read_group_offsets(Opened(str(path)), _GROUP)
    assert {queue_id: committed[TOPIC, queue_id] for queue_id in queues} == {
        number: queue.max_offset for number, queue in queues.items()
    }


_GROUP = "spark_and_java"


def _stream(spark: SparkSession, store: Path, base: Path) -> list[tuple[int, int]]:
    """(queue, offset) of all rows that a stream of the group gives until it has come to the end, sorted."""
    options = {
        "subscribe": TOPIC,
        "group": _GROUP,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "maxOffsetsPerTrigger": "37",
    }
    frame = (
        spark.readStream.format("rmqlog").options(**options, columns="queueId,queueOffset").load(str(store))
    )
    writer = (
        frame.writeStream.format("parquet")
        .option("path", str(base / "rows"))
        .option("checkpointLocation", str(base / "checkpoint"))
    )
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    return sorted((row.queueId, row.queueOffset) for row in spark.read.parquet(str(base / "rows")).collect())


def _places(lines: list[Line]) -> list[tuple[int, int]]:
    return sorted((line["queueId"], line["queueOffset"]) for line in lines)


@pytest.mark.parametrize("version", NEW)
def test_a_broker_takes_over_what_the_tools_have_set(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, version: str
) -> None:
    path = copy_of(f"basic-{version}")
    store = MessageStore.open(str(path))
    some, copied, timed = (group_place(name, [store]) for name in ("CG_some", "copied", "timed"))
    [moment] = next(iter(store.queue(TOPIC, 0).read(5, 6, columns=["storeTimestampMs"])))[
        "storeTimestampMs"
    ].to_pylist()
    reset_to(some, [store], {MessageQueue(TOPIC, store.broker_name, 0): 2}).apply()
    copy_offsets(some, copied, [store], [TOPIC]).apply()
    by_time = reset_by_time(timed, [store], moment, [TOPIC])
    by_time.apply()
    expected = {queue.queue_id: offset for queue, offset in by_time.targets.items()}
    with rocketmq(version).broker(path, goldens.config(f"basic-{version}")) as broker:
        client = broker.client()
        assert client.group_offsets("CG_some", TOPIC)[TOPIC, 0] == 2
        assert client.group_offsets("copied", TOPIC) == client.group_offsets("CG_some", TOPIC)
        assert client.group_offsets("timed", TOPIC) == {
            (TOPIC, queue_id): offset for queue_id, offset in expected.items()
        }
        # 4.9 chooses the file by its modification time, and in it the nearest message
        if version.startswith("5"):
            assert expected == {
                queue_id: client.offset_at(TOPIC, queue_id, moment, "LOWER") for queue_id in expected
            }


@pytest.mark.parametrize("version", OLD)
def test_a_broadcasting_clients_file(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, version: str
) -> None:
    path = copy_of(f"basic-{version}")
    file = path / "client" / "offsets.json"
    queues = {
        MessageQueue("T", "broker-a", 0): 12,
        MessageQueue("%RETRY%g", "b|1", 2**31 - 1): 2**62,
        MessageQueue("é\u4e2d", "x", 1): 0,
    }
    expected = {(queue.topic, queue.broker_name, queue.queue_id): offset for queue, offset in queues.items()}
    with rocketmq(version).broker(path, goldens.config(f"basic-{version}")) as broker:
        client = broker.client()
        LocalOffsets(str(file)).save(queues)
        for _ in range(2):  # ours, and then what it wrote itself
            lines = client.ask("local-offsets", file)
            assert {
                (line["topic"], line["brokerName"], line["queueId"]): line["offset"] for line in lines
            } == expected
            assert LocalOffsets(str(file)).read() == queues
        java = file.read_text()
        assert LocalOffsets(str(file)).save({MessageQueue("T", "broker-a", 0): 13})
        assert file.read_text() == java.replace(":12", ":13")  # nothing but the number is another one

"""Consumer groups through Spark: where a group begins and goes on, whose each queue is, and what stands in
the offset stores afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from rmq_spark.consume.group.state import read_state
from rmq_spark.consume.message_queue import MessageQueue, sort_clients
from rmq_spark.consume.offset_store import LocalOffsets, StoreOffsets
from rmq_spark.consume.reset import group_place, reset_to, reset_to_latest
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.starts import subscribe_set
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.read.choice import MessageChoice
from tests.rmq_spark.stream.test_positions import expected
from tests.support.ownership import double_ownership, read_events
from tests.support.reads import Place, copy_of, told, told_places
from tests.support.spark.frames import places, read
from tests.support.staged import append, make_store, numbered
from tests.support.writes import held

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Golden = Callable[[str], Path]
Unchanged = Callable[[Path], AbstractContextManager[None]]

_TIMEOUT_S = 120
FIRST = "CONSUME_FROM_FIRST_OFFSET"
BROKER = "broker-a"


@dataclass
class Run:
    """What one bounded run read: places in the order of batches, and by partition the queues."""

    rows: list[Place] = field(default_factory=list)
    readers: dict[int, set[tuple[str, str, int]]] = field(default_factory=dict)
    partitions: set[int] = field(default_factory=set)
    kept: list[dict[str, Any]] = field(default_factory=list)

    @property
    def places(self) -> list[Place]:
        return sorted(self.rows)


class Group:
    """Queries of the group `g` over one path. Each run is a new process with the checkpoint that it names,
    and reads what is there.
    """

    def __init__(self, spark: SparkSession, path: Path, directory: Path, **options: str) -> None:
        self.spark, self.path, self.directory = spark, path, directory
        self.options = {"group": "g", "consumeFromWhere": FIRST, **options}

    def run(self, checkpoint: str = "c", **more: str) -> Run:
        from pyspark.sql.functions import spark_partition_id

        run = Run()

        def take(frame: DataFrame, batch: int) -> None:
            run.partitions.add(frame.rdd.getNumPartitions())
            for row in frame.withColumn("partition", spark_partition_id()).collect():
                stored = row.storedTopic
                run.rows.append((stored, row.queueId, row.queueOffset))
                run.readers.setdefault(row.partition, set()).add((stored, row.brokerName, row.queueId))
                run.kept.append(row.asDict())

        reader = self.spark.readStream.format("rmqlog").options(**self.options | more).load(str(self.path))
        writer = reader.writeStream.foreachBatch(take).option(
            "checkpointLocation", str(self.directory / checkpoint)
        )
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(_TIMEOUT_S)
        finally:
            query.stop()
        return run

    def committed(self, topic: str = "T") -> dict[int, int]:
        """What the broker's file says of the group."""
        found = StoreOffsets("g", {BROKER: str(self.path)}).read()
        return {queue.queue_id: offset for queue, offset in found.items() if queue.topic == topic}

    def offsets(self, checkpoint: str = "c") -> str:
        """The newest entry of Spark's offset log."""
        log = self.directory / checkpoint / "offsets"
        newest = max((path for path in log.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))
        return newest.read_text().splitlines()[-1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 20))
    return root


@pytest.fixture
def group(spark: SparkSession, root: Path, tmp_path: Path) -> Group:
    return Group(spark, root, tmp_path)


# ---- where it begins and goes on ---------------------------------------------------------------------------


def test_a_group_goes_on_with_its_checkpoint_and_without(group: Group, root: Path) -> None:
    assert group.run().places == expected("T", *[(0, 5)] * 4)
    assert group.committed() == dict.fromkeys(range(4), 5)
    append(root, numbered("T", 20, 6))
    assert group.run(maxOffsetsPerTrigger="2").places == expected("T", (5, 7), (5, 7), (5, 6), (5, 6))
    assert group.run().rows == []
    append(root, numbered("T", 26, 2))
    assert group.run("another").places == [("T", 2, 6), ("T", 3, 6)]
    assert group.committed() == dict.fromkeys(range(4), 7)
    # The first query's own checkpoint is behind now: the group is not.
    append(root, numbered("T", 28, 1))
    assert group.run().rows == [("T", 0, 7)]
    assert '"$from": {"T": {"broker-a": {"2": 7, "3": 7}}}' in group.offsets()


def test_a_new_group_begins_where_consume_from_where_says(group: Group, root: Path) -> None:
    last = {"consumeFromWhere": "CONSUME_FROM_LAST_OFFSET"}
    assert group.run("one", **last).rows == []
    assert group.committed() == dict.fromkeys(range(4), 5)  # it stands at the end now, checkpoint or not
    append(root, numbered("T", 20, 2))
    assert group.run("two", **last).places == [("T", 0, 5), ("T", 1, 5)]
    assert group.run("three", consumeYoungQueueFromZero="true", group="young", **last).places == expected(
        "T", (0, 6), (0, 6), (0, 5), (0, 5)
    )


def test_a_reset_moves_a_group_that_has_a_checkpoint(group: Group, root: Path) -> None:
    group.run()
    stores = [MessageStore.open(str(root))]
    place = group_place("g", stores)
    assert reset_to(place, stores, {MessageQueue("T", BROKER, 1): 2}).apply() == 1
    assert group.run().places == expected("T", (0, 0), (2, 5))
    assert group.offsets().endswith('"$from": {"T": {"broker-a": {"1": 2}}}, "$reset": 1}')
    assert group.run().rows == []
    append(root, numbered("T", 20, 4))
    assert reset_to_latest(place, [MessageStore.open(str(root))]).apply() == 2
    assert group.run().rows == []
    append(root, numbered("T", 24, 1))
    assert group.run().rows == [("T", 0, 6)]
    assert group.committed() == {0: 7, 1: 6, 2: 6, 3: 6}


def test_what_failed_comes_again_under_its_own_topic_and_unfiltered(
    spark: SparkSession, golden: Golden, tmp_path: Path
) -> None:
    root = copy_of(golden, "retry-dlq-5.5.0", tmp_path)
    options = {"group": "CG_fail", "subscribe": "Jobs", "subExpression": "TagA"}
    group = Group(spark, root, tmp_path, **options)
    stores = [MessageStore.open(str(root))]
    place = group_place("CG_fail", stores)
    broker = stores[0].broker_name
    jobs = {MessageQueue("Jobs", broker, queue): 0 for queue in range(4)}
    assert group.run().rows == []  # all of it is read: a Java consumer committed it
    reset_to(place, stores, jobs | {MessageQueue("%RETRY%CG_fail", broker, 0): 0}).apply()
    found = group.run()
    again = told("retry-dlq-5.5.0", lambda row: row["topic"] == "%RETRY%CG_fail")
    first = told(
        "retry-dlq-5.5.0", lambda row: row["topic"] == "Jobs" and row["properties"].get("TAGS") == "TagA"
    )
    assert found.places == told_places([*again, *first])
    assert {row["topic"] for row in found.kept} == {"Jobs"}
    assert len(again) == 20
    assert {row["tags"] for row in found.kept if row["storedTopic"] == "%RETRY%CG_fail"} > {"TagA"}


def test_a_group_reads_what_it_popped_before(spark: SparkSession, golden: Golden, tmp_path: Path) -> None:
    """A broker popped for the group: what nobody acknowledged waits in the group's retry topic of pop."""
    root, retry = copy_of(golden, "pop-5.5.0", tmp_path), "%RETRY%CG_pop_PopWork"
    group = Group(spark, root, tmp_path, group="CG_pop", subscribe="PopWork", subExpression="TagA || TagB")
    topics = ("PopWork", retry)
    rest = read(spark, root, group="CG_pop", subscribe="PopWork").collect()
    assert sorted((row.storedTopic, row.queueOffset) for row in rest if row.storedTopic == retry) == [
        (retry, offset) for offset in range(24)
    ]
    assert {row.topic for row in rest} == {"PopWork"}  # a broker answers a pop with the topic itself
    run = group.run()
    popped = [row for row in run.kept if row["storedTopic"] == retry]
    assert {row["tags"] for row in popped} == {"TagA", "TagB"}
    assert len(run.places) == len(set(run.places))
    assert run.places == sorted(
        (row.storedTopic, row.queueId, row.queueOffset) for row in rest if row.tags in ("TagA", "TagB")
    )
    store = MessageStore.open(str(root))
    stored = StoreOffsets("CG_pop", {store.broker_name: str(root)}).read()
    assert stored == {MessageQueue.of(queue): queue.max_offset for queue in store.queues(topics.__contains__)}


def test_a_batch_begins_at_the_groups_offset_and_writes_nothing(
    group: Group, root: Path, unchanged: Unchanged
) -> None:
    group.run()
    append(root, numbered("T", 20, 3))
    with unchanged(root):
        frame = read(group.spark, root, group="g")
        assert places(frame) == [("T", 0, 5), ("T", 1, 5), ("T", 2, 5)]
        assert frame.columns[-1] == "storedTopic"
        assert places(read(group.spark, root, group="new", consumeFromWhere=FIRST)) == expected(
            "T", (0, 6), (0, 6), (0, 6), (0, 5)
        )
        assert places(read(group.spark, root, group="new")) == []


# ---- offset stores -----------------------------------------------------------------------------------------


def test_a_local_store_leaves_the_brokers_files_alone(
    spark: SparkSession, root: Path, tmp_path: Path, unchanged: Unchanged
) -> None:
    local = {"offsetStore": "local", "offsetStorePath": str(tmp_path / "offsets")}
    with unchanged(root):
        assert len(Group(spark, root, tmp_path, **local).run("one").rows) == 20
        assert Group(spark, root, tmp_path, **local).run("two").rows == []
    found = LocalOffsets(str(tmp_path / "offsets" / "g" / "offsets.json")).read()
    assert {queue.queue_id: offset for queue, offset in found.items() if queue.topic == "T"} == dict.fromkeys(
        range(4), 5
    )


def test_with_none_only_the_checkpoint_knows(
    spark: SparkSession, root: Path, tmp_path: Path, unchanged: Unchanged
) -> None:
    group = Group(spark, root, tmp_path, offsetStore="none", consumers="2")
    with unchanged(root):
        found = group.run("one")
        assert found.places == expected("T", *[(0, 5)] * 4)
        assert found.readers == {
            0: {("T", BROKER, 0), ("T", BROKER, 1)},
            1: {("T", BROKER, 2), ("T", BROKER, 3)},
        }
        assert group.run("one").rows == []
        assert len(group.run("two").rows) == 20


def test_each_client_reads_everything_when_broadcasting(
    spark: SparkSession, root: Path, tmp_path: Path, unchanged: Unchanged
) -> None:
    options = {"messageModel": "BROADCASTING", "offsetStorePath": str(tmp_path / "offsets")}
    group = Group(spark, root, tmp_path, **options)
    with unchanged(root):
        for client in ("a", "b"):
            assert len(group.run(client, clientId=client).rows) == 20
            assert group.run(f"{client} again", clientId=client).rows == []
    assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == ["a", "b"]


def test_beside_a_broker_offsets_are_kept_elsewhere(group: Group, root: Path, tmp_path: Path) -> None:
    with held(root):
        with pytest.raises(PySparkException, match="stop it, or set offsetStore to local or none"):
            group.run("store")
        assert len(group.run("local", offsetStore="local", offsetStorePath=str(tmp_path / "o")).rows) == 20


# ---- who reads what ----------------------------------------------------------------------------------------

STRATEGIES: dict[str, dict[str, str]] = {
    "AVG": {},
    "AVG_BY_CIRCLE": {},
    "CONSISTENT_HASH": {"virtualNodeCount": "20"},
    "MACHINE_ROOM": {"consumerIdcs": "room1"},
    "MACHINE_ROOM_NEARBY": {"machineRoomNearbyInner": "AVG_BY_CIRCLE"},
    "CONFIG": {
        "allocateConfig": '[{"T":{"room1@a":[0,1,2]}},{"T":[3]},{"T":{"room2@b":[0,1,2,4,5,6]},"U":[0,1]}]'
    },
}


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Two brokers in two rooms; topic T with seven queues in each, U with two."""
    (tmp_path / "cluster").mkdir()
    for name in ("room1@a", "room2@b"):
        root = make_store(tmp_path / "cluster" / name, StoreSettings(name, 1 << 14, 20 * 20, 50, 200))
        append(root, numbered("T", 0, 14, queues=7))
        append(root, numbered("U", 0, 4, queues=2), options=CommitOptions(new_topics={"U": 2}))
    return tmp_path / "cluster"


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("CONSISTENT_HASH", "CONFIG")
        else pytest.param(name, marks=(pytest.mark.whole, pytest.mark.slow))
        for name in STRATEGIES  # test_partitions_of_queues.py has all, without Spark
    ],
)
def test_the_strategy_decides_which_partition_reads_which_queue(
    spark: SparkSession, cluster: Path, tmp_path: Path, name: str
) -> None:
    options = {
        "consumers": "3", "clientId": "room1-c", "allocateMessageQueueStrategy": name, **STRATEGIES[name],
        "offsetStore": "local", "offsetStorePath": str(tmp_path / "offsets"),
    }  # fmt: skip
    found = Group(spark, cluster, tmp_path, **options).run()
    parsed = parse_read_options({"group": "g", **options, "path": str(cluster)}, where="stream").group
    assert parsed is not None
    clients = parsed.make_client_ids()
    stores = [MessageStore.open(str(path)) for path in sorted(cluster.iterdir())]
    strategy = parsed.make_strategy(clients, [store.broker_name for store in stores])
    queues = subscribe_set(stores, MessageChoice(), "g")
    assert len(queues) == 18
    wanted: dict[int, set[tuple[str, str, int]]] = {}
    for number, client in enumerate(clients):
        for topic in ("T", "U"):
            of_topic = [queue for queue in queues if queue.topic == topic]
            there = {
                queue
                for queue in strategy.allocate("g", client, of_topic, sort_clients(clients))
                if queue in of_topic
            }
            wanted.setdefault(number, set()).update(there)
    assert found.readers == {number: mine for number, mine in wanted.items() if mine}
    assert found.partitions == {3}
    assert len(found.rows) == 2 * sum(map(len, wanted.values()))


def test_the_ownership_log_tells_who_had_what(group: Group, root: Path) -> None:
    group.run(clientId="me")
    directory = f"{root}/.rmqlog/groups/g"
    events = read_events(directory)
    assert [(each.event, each.queue) for each in events if each.topic == "T"] == [
        *(("gain", queue) for queue in range(4)), *(("release", queue) for queue in range(4))
    ]  # fmt: skip
    assert {each.client for each in events} == {"me"}
    assert double_ownership(events) == []
    assert read_state(directory).members == {}

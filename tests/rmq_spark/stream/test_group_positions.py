"""Offsets of streams in a group, without Spark: queues that change hands, repeated batches, and losses."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.directory import GroupState, QueueEntry, read_state, write_state
from rmq_spark.consume.offset_store import LocalOffsets
from rmq_spark.consume.reset import group_place, reset_to
from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.plan.splits import Split
from rmq_spark.stream.group_positions import GroupPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.errors import OffsetOutOfRangeError, OptionError, StoreInUseError
from store_format.files.polling import Clocks
from store_format.files.write import FileWrites
from tests.rmq_spark.stream.test_positions import Stream, expected
from tests.support.file_edits import edited_json
from tests.support.fixtures import Golden, Unchanged
from tests.support.ownership import double_ownership, read_events
from tests.support.reads import read
from tests.support.staged import append, make_store, numbered, rows_by_queue, update_topic
from tests.support.writes import held

BROKER = "broker-a"
LEASE_S = 30.0


@dataclass
class Clock:
    """One for all members, in the test's hand."""

    now: float = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def clocks(self) -> Clocks:
        return Clocks(lambda: self.now, lambda: int(self.now * 1000), lambda seconds: self.sleep(seconds))


class Query(Stream):
    """A query of group g."""

    defaults: ClassVar[dict[str, Any]] = {
        "group": "g", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "offsetStore": "local",
        "persistConsumerOffsetInterval": "0s",
    }  # fmt: skip

    def __init__(self, root: Path, base: Path, clock: Clock, name: str, **options: Any) -> None:
        self.clock = clock
        own: dict[str, Any] = {"clientId": name, "offsetStorePath": base / "offsets"}
        super().__init__(root, **own | options)

    def positions_of(self, stores: StreamStores) -> GroupPositions:
        assert self.options.group is not None
        return GroupPositions(stores, self.options.group, clocks=self.clock.clocks())

    def splits(self) -> list[Split]:
        return self.positions.plan(*self.log[-1]).splits

    @property
    def end(self) -> dict[str, Any]:
        """The offset that Spark stored, without the places of the messages."""
        return {name: value for name, value in self.log[-1][1].items() if name != "$at"}

    def member(self) -> Any:
        """Any: what is inside of it."""
        return self.group()._part

    def group(self) -> Any:
        assert isinstance(self.positions, GroupPositions)
        return self.positions._group

    def leave(self) -> None:
        self.group().leave(StreamOffset.from_json(self.log[-1][1]))

    def die(self) -> None:
        """Its process ended: others see at once that nobody holds the lease."""
        self.member()._lease.end()

    def stand_still(self) -> None:
        """As a process that is stopped or gone: no beat any more."""
        self.member()._lease._thread.stop()


@dataclass
class World:
    """A store, a clock, and queries of one group that are ended with the test."""

    root: Path
    base: Path
    clock: Clock = field(default_factory=Clock)
    queries: list[Query] = field(default_factory=list)

    def query(self, name: str, **options: str) -> Query:
        self.queries.append(Query(self.root, self.base, self.clock, name, **options))
        return self.queries[-1]

    def recorded(self) -> dict[int, int | None]:
        state = read_state(self.directory)
        return {queue.queue_id: entry.position for queue, entry in state.queues.items() if queue.topic == "T"}

    def offsets(self, client: str = "g") -> LocalOffsets:
        return LocalOffsets(str(self.base / "offsets" / client / "offsets.json"))

    def committed(self) -> dict[int, int]:
        found = self.offsets().read()
        return {queue.queue_id: offset for queue, offset in found.items() if queue.topic == "T"}

    @property
    def directory(self) -> str:
        return str(self.base / "offsets" / "g" / "members")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Topic T, four queues of 5 messages."""
    world = World(make_store(tmp_path / "store"), tmp_path)
    append(world.root, numbered("T", 0, 20))
    yield world
    for query in world.queries:
        if getattr(query.member(), "_lease", None) is not None:
            query.member()._lease.end()
    if read_events(world.directory):
        assert double_ownership(read_events(world.directory)) == []


def _json(**queues: int) -> dict[str, dict[str, dict[str, int]]]:
    """`q0=5` for queue 0 of T."""
    return {"T": {BROKER: {name[1:]: offset for name, offset in queues.items()}}}


# ---- going on ----------------------------------------------------------------------------------------------


def test_the_first_offset_says_where_each_queue_began(world: World) -> None:
    query = world.query("a")
    assert query.positions.initial() == {}
    assert query.step() == expected("T", *[(0, 5)] * 4)
    assert query.end == _json(q0=5, q1=5, q2=5, q3=5) | {"$from": _json(q0=0, q1=0, q2=0, q3=0)}
    assert query.step() is None
    append(world.root, numbered("T", 20, 1))
    assert query.step() == [("T", 0, 5)]
    assert query.end == _json(q0=6, q1=5, q2=5, q3=5)
    assert query.step() is None
    assert world.recorded() == world.committed() == {0: 6, 1: 5, 2: 5, 3: 5}


def test_what_nothing_is_read_of_makes_no_batch(world: World) -> None:
    query = world.query("a", consumeFromWhere="CONSUME_FROM_LAST_OFFSET")
    assert query.step() is None
    assert world.recorded() == {0: 5, 1: 5, 2: 5, 3: 5}
    append(world.root, numbered("T", 20, 1) + numbered("New", 0, 4, queues=2))
    # A topic that is created while the query runs is read from its first message.
    assert query.step() == [*expected("New", (0, 2), (0, 2)), ("T", 0, 5)]
    assert query.end["$from"]["T"] == _json(q0=5, q1=5, q2=5, q3=5)["T"]


def test_offsets_are_recorded_every_interval_also_when_nothing_comes(world: World) -> None:
    query = world.query("a", persistConsumerOffsetInterval="5s")
    query.step()
    query.step()
    assert world.committed() == dict.fromkeys(range(4), 0)
    world.clock.now += 5
    assert query.step() is None
    assert world.committed() == dict.fromkeys(range(4), 5)


# ---- members -----------------------------------------------------------------------------------------------


def test_queues_change_hands_at_a_boundary_and_nothing_is_read_twice(world: World) -> None:
    one, two = world.query("a"), world.query("b")
    assert one.step() == expected("T", *[(0, 5)] * 4)
    assert two.step() is None  # everything is the other's still
    assert one.step() == []
    assert one.end == _json(q0=5, q1=5)
    assert two.step() is None
    append(world.root, numbered("T", 20, 4))
    assert one.step() == [("T", 0, 5), ("T", 1, 5)]
    assert two.step() == [("T", 2, 5), ("T", 3, 5)]
    assert two.end == _json(q2=6, q3=6) | {"$from": _json(q2=5, q3=5)}
    two.step()
    two.member().leave({MessageQueue("T", BROKER, queue): 6 for queue in (2, 3)})
    append(world.root, numbered("T", 24, 4))
    assert one.step() == expected("T", (6, 7), (6, 7), (6, 7), (6, 7))
    assert one.end["$from"] == _json(q2=6, q3=6)


def test_a_batch_that_spark_repeats_has_the_same_rows_and_is_marked(world: World) -> None:
    one, two = world.query("a"), world.query("b")
    one.step()
    append(world.root, numbered("T", 20, 4))
    assert one.begin()
    in_flight = one.read()
    one.stand_still()
    two.step()
    world.clock.now += LEASE_S + 1
    assert two.step() == in_flight == expected("T", (5, 6), (5, 6), (5, 6), (5, 6))
    append(world.root, numbered("T", 24, 4))
    one.restart()
    assert one.read() == in_flight
    assert [event.queue for event in read_events(world.directory) if event.event == "replay"] == [0, 1, 2, 3]
    assert one.step() == []  # nothing is its own
    assert one.end == {}
    assert two.step() == expected("T", (0, 0), (0, 0), (6, 7), (6, 7))
    assert one.step() == expected("T", (6, 7), (6, 7))
    assert one.end == _json(q0=7, q1=7) | {"$from": _json(q0=6, q1=6)}


def test_a_query_that_was_stopped_reads_on_nothing_that_it_lost(world: World) -> None:
    one, two = world.query("a"), world.query("b")
    one.step()
    append(world.root, numbered("T", 20, 4))
    assert one.begin()
    one.stand_still()
    two.step()
    world.clock.now += LEASE_S + 1
    assert two.step() == expected("T", *[(5, 6)] * 4)
    append(world.root, numbered("T", 24, 4))
    assert two.step() == expected("T", *[(6, 7)] * 4)
    two.step()
    one.read()  # goes on: what was in flight is a duplicate
    assert world.recorded() == dict.fromkeys(range(4), 7)
    assert one.step() == []
    assert world.recorded() == dict.fromkeys(range(4), 7)
    two.step()
    append(world.root, numbered("T", 28, 4))
    assert one.step() == expected("T", (7, 8), (7, 8))
    assert two.step() == expected("T", (0, 0), (0, 0), (7, 8), (7, 8))


def test_a_member_with_another_subscription_is_refused(world: World) -> None:
    world.query("a", subscribe="T").step()
    with pytest.raises(
        OptionError, match=r"group g: expected the subscription of its members, T TAG \*; found T TAG T1"
    ) as caught:
        world.query("b", subscribe="T", subExpression="T1").step()
    assert "Use the same options in all queries of the group, or another group" in str(caught.value)


def test_beside_a_broker_a_group_reads_for_itself_and_says_so_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with held(world.root), caplog.at_level(logging.WARNING):
        query = world.query("a")
        assert query.step() == expected("T", *[(0, 5)] * 4)
        assert query.step() is None
        with pytest.raises(StoreInUseError, match="stop it, or set offsetStore to local or none"):
            world.query("b", offsetStore="store").step()
    said = (
        "group g: a broker runs on the store. Its consumers and this query do not share queues: both read "
        "every message"
    )
    assert [message for message in caplog.messages if "broker runs" in message] == [said]


# ---- partitions --------------------------------------------------------------------------------------------


def _owners(query: Query) -> list[set[int]]:
    return [{piece.queue_id for share in split.shares for piece in share.slices} for split in query.splits()]


def test_each_client_is_a_partition_in_a_repeated_batch_too(world: World) -> None:
    query = world.query("a", consumers="3", allocateMessageQueueStrategy="AVG_BY_CIRCLE")
    assert query.begin()
    assert _owners(query) == [{0, 3}, {1}, {2}]
    query.die()
    query.restart()
    assert _owners(query) == [{0, 3}, {1}, {2}]
    assert query.read() == expected("T", *[(0, 5)] * 4)


def test_a_repeated_batch_has_each_queue_once_though_nobody_is_configured_for_it(world: World) -> None:
    query = world.query("a")
    assert query.begin()
    query.die()
    config = {"allocateMessageQueueStrategy": "CONFIG", "allocateConfig": '[{"T":[1]},{"T":[2]}]'}
    query.restart(consumers="2", group="other", **config)
    one, other = _owners(query)
    assert one | other == {0, 1, 2, 3}
    assert one & other == set()
    assert 1 in one
    assert 2 in other


# ---- loss --------------------------------------------------------------------------------------------------


def test_offsets_that_went_back_are_told_and_what_comes_then_is_read(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    older = shutil.copytree(world.root, world.base / "older")
    query = world.query("a")
    append(world.root, numbered("T", 20, 40))
    query.step()
    assert query.step() is None
    shutil.rmtree(world.root)
    older.rename(world.root)
    with pytest.raises(
        OffsetOutOfRangeError, match="is 15 and the queue holds 0 to 5: its offsets went back"
    ):
        query.step()
    query.die()
    query.restart(failOnDataLoss="false")
    assert query.step() == []
    append(world.root, numbered("T", 20, 8))
    assert query.step() == expected("T", *[(5, 7)] * 4)
    assert sum("went back" in message for message in caplog.messages) == 4


_T2 = MessageQueue("T", BROKER, 2)


def test_a_committed_offset_beyond_the_end_is_an_error_that_names_the_queue(world: World) -> None:
    world.offsets().write({_T2: 1000})
    with pytest.raises(OffsetOutOfRangeError) as caught:
        world.query("a").step()
    said = str(caught.value)
    assert said.startswith(
        "T-2 of broker-a: the next offset is 1000 and the queue holds 0 to 5: its offsets went back by 995"
    )
    assert "move group g with rmqlog offsets, or set failOnDataLoss=false to move it back to the end" in said
    assert world.committed()[2] == 1000


@pytest.mark.parametrize("model", [{}, {"messageModel": "BROADCASTING"}])
def test_a_committed_offset_beyond_the_end_is_corrected_for_every_query(
    world: World, caplog: pytest.LogCaptureFixture, model: dict[str, str]
) -> None:
    options = {"failOnDataLoss": "false"} | model
    file = world.offsets("a/g" if model else "g")
    file.write({_T2: 1000})
    first = world.query("a", **options)
    with caplog.at_level(logging.WARNING):
        assert first.step() == expected("T", (0, 5), (0, 5), (0, 0), (0, 5))
    assert (
        "group g is moved back from offset 1000 to 5, by 995: T-2 of broker-a: the next offset is 1000"
        in caplog.text
    )
    assert "0 messages lost" not in caplog.text
    assert file.read()[_T2] == 5
    append(world.root, numbered("T", 20, 4))
    assert first.step() == expected("T", *[(5, 6)] * 4)
    first.step()
    first.leave()
    append(world.root, numbered("T", 24, 4))
    assert world.query("a", **options).step() == expected("T", *[(6, 7)] * 4)  # a new checkpoint
    assert caplog.text.count("is moved back") == 1
    assert file.read()[_T2] == 6


def test_a_corrected_offset_goes_to_another_member(world: World) -> None:
    world.offsets().write({_T2: 1000})
    one = world.query("a", failOnDataLoss="false")
    assert one.begin()
    one.read()
    two = world.query("b")  # its failOnDataLoss is true: nothing is wrong any more
    assert two.step() is None
    one.step()
    append(world.root, numbered("T", 20, 4))
    assert two.step() == [("T", 2, 5), ("T", 3, 5)]


def test_what_another_member_recorded_since_the_last_look_is_not_beyond_the_end(world: World) -> None:
    one, two = world.query("a"), world.query("b")
    one.step()
    real = two.group().settle

    def settle(*arguments: Any, **options: Any) -> Any:
        append(world.root, numbered("T", 20, 4))  # right after the look of `two`
        assert one.step() == expected("T", *[(5, 6)] * 4)
        real(*arguments, **options)
        one.step()  # gives back
        return real(*arguments, **options)

    two.group().settle = settle  # for one boundary
    assert two.begin() is False
    two.group().settle = real
    append(world.root, numbered("T", 24, 4))
    assert two.step() == [("T", 2, 6), ("T", 3, 6)]


def test_a_topic_that_was_created_again_and_has_no_message_yet(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The group's offset is of the deleted topic: kept, it would skip the first messages of the new one."""
    with edited_json(world.root / "config" / "topics.json") as topics:
        topics["topicConfigTable"]["Again"] = topics["topicConfigTable"]["T"] | {"topicName": "Again"}
    update_topic(world.root, "Again", 1)
    world.offsets().write({MessageQueue("Again", BROKER, 0): 5})
    query = world.query("a", failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        assert query.step() == expected("T", *[(0, 5)] * 4)
    said = (
        "is moved back from offset 5 to 0, by 5: Again-0 of broker-a: the next offset is 5 and the "
        "store no longer has the queue"
    )
    assert said in caplog.text
    assert world.offsets().read()[MessageQueue("Again", BROKER, 0)] == 0
    append(world.root, numbered("Again", 0, 3, queues=1))
    assert query.step() == expected("Again", (0, 3))


# ---- stores of a cluster -----------------------------------------------------------------------------------


def _broker(cluster: Path, name: str) -> Path:
    """Topic T, four queues of 5 messages."""
    root = make_store(cluster / name, StoreSettings(name, 1 << 14, 20 * 20, 50, 200))
    append(root, numbered("T", 0, 20))
    return root


@pytest.fixture
def cluster(tmp_path: Path, world: World) -> Path:
    """A directory with the store of broker-b."""
    world.root = tmp_path / "cluster"
    world.root.mkdir()
    _broker(world.root, "broker-b")
    return world.root


def test_a_broker_that_is_added_and_sorts_first_does_not_split_the_group(
    world: World, cluster: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = world.query("a", offsetStore="store")
    assert one.step() == expected("T", *[(0, 5)] * 4)
    _broker(cluster, "broker-a")
    two = world.query("b", offsetStore="store")
    with caplog.at_level(logging.WARNING):
        # the new broker's: the other query does not know it
        assert two.step() == expected("T", *[(0, 5)] * 4)
    assert "its query a started before broker broker-a was added and reads nothing from it" in caplog.text
    assert one.step() == []  # gives half of broker-b back
    two.step()
    append(cluster / "broker-b", numbered("T", 20, 20))
    assert one.step() == expected("T", (5, 10), (5, 10))
    assert two.step() == expected("T", (0, 0), (0, 0), (5, 10), (5, 10))
    state = read_state(f"{cluster}/.rmqlog/groups/g")
    assert len(state.members) == 2
    for each in (one, two):
        each.member().leave({})
    three = world.query("c", offsetStore="store")
    three.step()
    assert list(three.member()._now.owned) == [
        MessageQueue("T", b, n) for b in ("broker-a", "broker-b") for n in range(4)
    ]


def test_what_members_recorded_in_the_first_store_is_taken_over(world: World, cluster: Path) -> None:
    """Nothing of it had come into the offset file."""
    _broker(cluster, "broker-c")
    old = cluster / "broker-b" / ".rmqlog" / "groups" / "g"
    old.mkdir(parents=True)
    queues = {
        MessageQueue("T", name, 1): QueueEntry(epoch=4, position=3, reset=2)
        for name in ("broker-b", "broker-c")
    }
    write_state(str(old), GroupState(7, 2, 0, queues=queues), FileWrites(sync=False))
    query = world.query("a", offsetStore="store")
    assert query.step() == sorted(expected("T", (0, 5), (3, 5), (0, 5), (0, 5)) * 2)
    assert query.end["$reset"] == 2
    assert read_state(f"{cluster}/.rmqlog/groups/g").queues[MessageQueue("T", "broker-c", 1)].epoch == 5


def test_a_query_is_refused_while_members_of_the_group_meet_in_another_place(
    world: World, cluster: Path
) -> None:
    one = world.query("a", path=str(cluster / "broker-b"), offsetStore="store")
    assert one.step() == expected("T", *[(0, 5)] * 4)
    sleep = world.clock.sleep

    def beat(seconds: float) -> None:
        sleep(seconds)
        one.member()._lease.renew()

    world.clock.sleep = beat  # type: ignore[method-assign] # its thread goes by the real time
    two = world.query("b", offsetStore="store")
    with pytest.raises(OptionError) as caught:
        two.step()
    assert f"found the query a in {cluster}/broker-b/.rmqlog/groups/g while this query would meet" in str(
        caught.value
    )
    assert "Load the same path in all queries of the group" in str(caught.value)
    assert not (cluster / ".rmqlog").exists()
    one.step()
    one.stand_still()
    world.clock.sleep = sleep  # type: ignore[method-assign]
    assert two.step() is None  # after a lease time without a beat
    append(cluster / "broker-b", numbered("T", 20, 4))
    assert two.step() == expected("T", *[(5, 6)] * 4)


def test_a_reset_of_one_store_reaches_the_members_of_the_cluster(world: World, cluster: Path) -> None:
    query = world.query("a", offsetStore="store")
    query.step()
    query.step()
    store = MessageStore.open(str(cluster / "broker-b"))
    queue = MessageQueue("T", "broker-b", 2)
    assert reset_to(group_place("g", [store]), [store], {queue: 1}).apply() == 1
    assert query.step() == expected("T", (0, 0), (0, 0), (1, 5))
    assert not (cluster / "broker-b" / ".rmqlog" / "groups").exists()


# ---- offset stores -----------------------------------------------------------------------------------------


def test_each_client_reads_everything_when_broadcasting(world: World, unchanged: Unchanged) -> None:
    with unchanged(world.root):
        for client in ("a", "b"):
            query = world.query(client, messageModel="BROADCASTING")
            assert query.step() == expected("T", *[(0, 5)] * 4)
            assert query.step() is None
            assert world.query(client, messageModel="BROADCASTING").step() is None
    assert sorted(path.name for path in (world.base / "offsets").iterdir()) == ["a", "b"]


# ---- rows --------------------------------------------------------------------------------------------------


def test_what_waits_for_its_time_shows_the_topic_it_was_sent_to(golden: Golden) -> None:
    root = golden("retry-dlq-5.5.0")
    options = {"group": "g", "offsetStore": "none", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    found = read(root, **options, subscribe="SCHEDULE_TOPIC_XXXX", columns="topic,storedTopic").rows()
    assert found == [{"topic": "Jobs", "storedTopic": "SCHEDULE_TOPIC_XXXX"}] * 20


def test_a_group_goes_on_behind_messages_that_wait_in_the_last_file(world: World) -> None:
    """Another member has read them before: they are neither lost nor read again."""
    first = world.query("one", includeLastFile="true")
    assert len(first.step() or ()) == 20
    assert first.step() is None
    first.die()
    second = world.query("two", includeLastFile="false", groupPath=world.directory)
    assert not second.step()
    append(world.root, numbered("T", 20, 200))
    found = second.step() or []
    last = MessageStore.open(str(world.root)).log.files[-1].start
    rows = [(*key, *row) for key, rows in rows_by_queue(world.root).items() for row in rows]
    assert found == sorted(row[:3] for row in rows if row[2] >= 5 and row[3] < last)

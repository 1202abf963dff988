"""What an orderly query leaves behind for its next micro-batch, and what a stream reads meanwhile."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_spark.broker.services.orderly import OrderlyGroup
from rmq_spark.consume.group.directory import read_state
from rmq_spark.consume.offset_store import StoreOffsets
from rmq_spark.consume.orderly import DeadLetter, OrderlyRun, QueueReport, Stop
from rmq_spark.consume.reset import group_place, reset_to
from rmq_spark.consume.stream_offset import StreamOffset
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.stream.group_positions import GroupPositions
from rmq_spark.stream.plan import ranges
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.errors import OptionError
from store_format.files.polling import Clocks
from tests.support.orderly_rows import BROKER, handled, queue
from tests.support.ownership import read_events
from tests.support.staged import append, numbered, update_topic

PAUSE_MS = 1000
Read = dict[int, tuple[int, int]]


# ---- a query, its group and its handler --------------------------------------------------------------------


@dataclass
class World:
    """A store with two queues of 4 messages, a query of group g, a clock. Spark is the list of offsets."""

    root: Path
    now_ms: int = 1_700_000_200_000

    def __post_init__(self) -> None:
        self.options = {
            "path": str(self.root), "group": "g", "splitBy": "wholeQueue",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "persistConsumerOffsetInterval": "0s",
        }  # fmt: skip
        self.log: list[dict[str, object]] = [{}]
        self.orderly = OrderlyGroup(self.options, 2, PAUSE_MS, clock_ms=lambda: self.now_ms)
        self.start()

    def start(self, *, bounded: bool = False) -> None:
        parsed = parse_read_options(self.options, where=STREAM)
        assert parsed.group is not None
        clocks = Clocks(lambda: self.now_ms / 1000, lambda: self.now_ms, lambda seconds: None)
        self.positions = GroupPositions(StreamStores(parsed), parsed.group, clocks=clocks)
        if bounded:
            self.positions.bound_now()

    def end(self) -> None:
        part = self.positions._group._part
        if part is not None and getattr(part, "_lease", None) is not None:
            part._lease.end()  # type: ignore[union-attr]  # a GroupMember

    def batch(self, *bad: tuple[int, int], commits: bool = True) -> Read | None:
        """One micro-batch: the offsets that it reads by queue, None without one."""
        start = self.log[-1]
        end = self.positions.latest(start)
        if end == start:
            return None
        read = ranges(StreamOffset.from_json(start), StreamOffset.from_json(end))
        stops = self.orderly.stops()
        run = OrderlyRun(stops, 2)
        rows = [(name.queue_id, offset) for name, bounds in read.items() for offset in range(*bounds)]
        self.calls = handled(run, rows, *bad)
        self.orderly.finish(run.reports(), stops)
        if commits:
            self.log.append(end)
        return {name.queue_id: bounds for name, bounds in sorted(read.items())}

    def stop_of(self, number: int) -> Stop | None:
        return read_state(self.directory).queues[queue(number)].stop

    def committed(self) -> dict[int, int]:
        found = StoreOffsets("g", {BROKER: str(self.root)}).read()
        return {each.queue_id: offset for each, offset in found.items() if each.topic == "T"}

    @property
    def directory(self) -> str:
        return f"{self.root}/.rmqlog/groups/g"


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    append(root, numbered("T", 0, 8, queues=2))
    update_topic(root, "T", 2)
    world = World(root)
    yield world
    world.end()


def test_a_failed_queue_waits_for_its_pause_while_others_go_on(world: World) -> None:
    assert world.batch((0, 1)) == {0: (0, 4), 1: (0, 4)}
    assert world.stop_of(0) == Stop(1, 1, world.now_ms + PAUSE_MS)
    append(world.root, numbered("T", 8, 2, queues=2))
    assert world.batch() == {1: (4, 5)}  # the offset of queue 0 is back at 1, and nothing is read there
    assert world.batch() is None
    assert world.committed() == {0: 1, 1: 5}
    world.now_ms += PAUSE_MS
    assert world.batch((0, 1)) == {0: (1, 5)}
    assert world.calls == [(0, 1, 1)]
    world.now_ms += PAUSE_MS
    assert world.batch() == {0: (1, 5)}
    assert world.calls == [(0, 1, 2), (0, 2, 0), (0, 3, 0), (0, 4, 0)]
    assert world.batch() is None
    assert (world.stop_of(0), world.committed()) == (None, {0: 5, 1: 5})
    events = [(each.queue, each.position) for each in read_events(world.directory) if each.event == "stop"]
    assert events == [(0, 1), (0, 1)]


def test_the_dead_letter_is_the_brokers_and_the_queue_goes_on(world: World) -> None:
    world.batch((0, 1))
    for _ in range(2):
        world.now_ms += PAUSE_MS
        assert world.batch((0, 1)) == {0: (1, 4)}
    assert world.calls == [(0, 1, 2), (0, 2, 0), (0, 3, 0)]
    store = MessageStore.open(str(world.root))
    columns = ["body", "properties", "reconsumeTimes", "queueOffset", "msgId"]
    (dead,) = store.queue("%DLQ%g", 0).read(columns=columns)
    (origin,) = store.queue("T", 0).read(1, 2, columns=columns)
    assert dead["body"] == origin["body"]
    assert dead["reconsumeTimes"].to_pylist() == [3]
    properties = dict(dead["properties"].to_pylist()[0])
    assert properties | dict(origin["properties"].to_pylist()[0]) == properties
    expected = {
        "RETRY_TOPIC": "T", "RECONSUME_TIME": "3", "MAX_RECONSUME_TIMES": "2", "DELAY": "-1",
        "ORIGIN_MESSAGE_ID": origin["msgId"].to_pylist()[0], "MIN_OFFSET": "0", "MAX_OFFSET": "4",
    }  # fmt: skip
    assert {name: properties[name] for name in expected} == expected
    world.now_ms += PAUSE_MS
    world.batch()
    assert (world.stop_of(0), world.committed()) == (None, {0: 4, 1: 4})


def test_a_dead_letter_is_written_once_unless_somebody_resets_the_group(world: World) -> None:
    world.batch(commits=False)
    report = QueueReport(queue(0), 2, [DeadLetter(1, 2)])

    def dead_letters() -> int:
        return MessageStore.open(str(world.root)).queue("%DLQ%g", 0).max_offset

    for _ in range(2):  # the second time as after a crash before the place was stored
        world.orderly.finish([report], {})
        assert dead_letters() == 1
    stores = [MessageStore.open(str(world.root))]
    reset_to(group_place("g", stores), stores, {queue(0): 1}).apply()
    world.orderly.finish([report], {})
    assert dead_letters() == 2


def test_without_sparks_offset_the_group_begins_at_the_stop(world: World) -> None:
    world.batch((0, 2), commits=False)
    world.end()
    world.start()
    assert world.batch() == {1: (0, 4)}  # Spark has not stored the offset, and asks for another
    world.now_ms += PAUSE_MS
    assert world.batch() == {0: (2, 4)}
    assert world.calls == [(0, 2, 1), (0, 3, 0)]


def test_a_repeated_batch_that_succeeds_is_not_handled_again(world: World) -> None:
    end = world.positions.latest({})
    for bad, calls in (
        (((0, 2),), [*((0, offset, 0) for offset in range(3)), *((1, offset, 0) for offset in range(4))]),
        (
            (),
            [(0, 2, 1), (0, 3, 0), *((1, offset, 0) for offset in range(4))],
        ),
    ):
        stops = world.orderly.stops()
        run = OrderlyRun(stops, 2)
        assert handled(run, [(number, offset) for number in range(2) for offset in range(4)], *bad) == calls
        world.orderly.finish(run.reports(), stops)
    assert world.stop_of(0) == Stop(4)
    world.log.append(end)
    assert world.batch() == {0: (2, 4)}  # the reset of the first try counts, but all of it is handled
    assert world.calls == []
    assert world.batch() is None
    assert (world.stop_of(0), world.committed()) == (None, {0: 4, 1: 4})


def test_a_bounded_run_leaves_a_failed_queue_to_the_next_run(world: World) -> None:
    world.start(bounded=True)
    assert world.batch((0, 1)) == {0: (0, 4), 1: (0, 4)}
    world.now_ms += PAUSE_MS * 100
    assert world.batch() == {}
    assert world.batch() is None
    world.end()
    world.start(bounded=True)
    assert world.batch() == {0: (1, 4)}
    assert world.batch() is None
    assert world.committed() == {0: 4, 1: 4}


def test_a_reset_by_hand_forgets_the_stop(world: World) -> None:
    world.batch((0, 2))
    stores = [MessageStore.open(str(world.root))]
    reset_to(group_place("g", stores), stores, {queue(0): 1}).apply()
    assert world.stop_of(0) is None
    assert world.batch() == {0: (1, 4)}
    assert [offset for _, offset, _ in world.calls] == [1, 2, 3]


def test_what_another_member_has_read_further_is_left_alone(world: World) -> None:
    world.batch()
    world.batch()
    stops = {queue(0): Stop(1, 1)}
    world.orderly.finish([QueueReport(queue(0), 2, times=1, error="late")], stops)
    assert world.stop_of(0) is None
    assert world.batch() is None


# ---- options -----------------------------------------------------------------------------------------------


def test_options_of_a_query_without_a_group_or_without_whole_queues_are_refused(tmp_path: Path) -> None:
    path, group = {"path": str(tmp_path)}, {"group": "g"}
    whole = {"splitBy": "wholeQueue"}
    for options, said in (
        (path | whole, "expected the option group"),
        (path | group, "set splitBy=wholeQueue"),
        (path | group | whole | {"messageModel": "BROADCASTING"}, "expected a group that keeps its offsets"),
        (path | group | whole | {"offsetStore": "none"}, "expected a group that keeps its offsets"),
        (path | group | whole | {"spltBy": "x"}, "unknown option 'spltBy'; did you mean splitBy?"),
    ):
        with pytest.raises(OptionError) as caught:
            OrderlyGroup(options)
        assert said in str(caught.value)
    with pytest.raises(OptionError, match="max_reconsume_times=-2: expected -1"):
        OrderlyGroup(path | group | whole, -2)
    assert (
        pickle.loads(pickle.dumps(OrderlyGroup(path | group | {"consumers": 2}, 3))).max_reconsume_times == 3
    )


def test_a_group_without_a_query_is_named(root: Path) -> None:
    orderly = OrderlyGroup({"path": str(root), "group": "g", "splitBy": "wholeQueue"})
    with pytest.raises(
        OptionError, match=r"expected a running query of group g in .*/\.rmqlog/groups/g, found none"
    ):
        orderly.stops()


def test_a_queue_in_two_partitions_is_refused(world: World) -> None:
    with pytest.raises(OptionError, match="T-0 of broker-a: expected the rows of the queue in one partition"):
        world.orderly.finish([QueueReport(queue(0), 1), QueueReport(queue(0), 3)], {})

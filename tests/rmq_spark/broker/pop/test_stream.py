"""The offsets of a stream that pops, without Spark: what a batch takes, repeats and acknowledges."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from rmq_spark.broker.pop.stream import PopPositions
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.directory import live_topics
from rmq_spark.consume.stream_offset import PopOffset, PoppedRange
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.pop import SimpleConsumer
from rmq_spark.stream.group_positions import GroupPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.errors import OffsetOutOfRangeError, OptionError
from store_format.metadata.group_offsets import read_group_offsets
from store_format.names import pop_retry_topic
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from store_format.pop.state import RETRY, PopState
from tests.rmq_spark.stream.test_positions import Stream
from tests.support.popped import Clock
from tests.support.staged import append, make_store, numbered, update_topic

Place = tuple[int, int]
Begin = Callable[..., "Query"]
INVISIBLE_MS = 60_000


class Query(Stream):
    """A query that pops: what its sink has, and how many batches Spark noted as done."""

    defaults: ClassVar[dict[str, Any]] = {
        "group": "g", "subscribe": "T", "consumeMode": "pop",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "columns": "queueId,queueOffset,body",
    }  # fmt: skip

    def __init__(self, root: Path, clock: Clock, **options: str) -> None:
        self.commits = 0
        self.rows: dict[int, list[Place]] = {}
        self.bodies: list[bytes] = []
        self.kept: dict[int, list[bytes]] = {}  # the bodies by batch
        super().__init__(root, clock_ms=clock, **options)

    def positions_of(self, stores: StreamStores) -> PopPositions:
        assert self.options.pop is not None
        return PopPositions(stores, self.scan, self.options.pop, clock_ms=self.clock_ms)

    def restart(self, *, bounded: bool = False, **options: str) -> None:
        self.stop()
        super().restart(**options)
        if bounded:
            self.positions.bound_now()
        if self.commits < len(self.log):
            self.run()

    def stop(self) -> None:
        """As a kill: nothing is written, and nothing is renewed from now on."""
        positions = getattr(self, "positions", None)
        if positions is not None and positions._opened is not None:
            positions._opened[1].stop()

    def run(self) -> None:
        """Runs the last stored batch; its commit is noted."""
        rows = [row for batch in self.batches() for row in batch.to_pylist()]
        bodies = [row["body"] for row in rows]
        number = len(self.log) - 1
        assert self.kept.setdefault(number, bodies) == bodies  # a repeated batch has the same messages
        self.bodies += bodies
        self.rows[number] = [(row["queueId"], row["queueOffset"]) for row in rows]
        self.commits = len(self.log)

    def advance(self) -> bool:
        if not self.begin():
            return False
        self.run()
        return True

    def seen(self) -> Counter[Place]:
        return Counter(place for rows in self.rows.values() for place in rows)


@pytest.fixture
def clock() -> Clock:
    return Clock(1_700_000_200_000)


@pytest.fixture
def store(root: Path) -> Path:
    append(root, numbered("T", 0, 40, queues=2))
    return root


@pytest.fixture
def query(store: Path, clock: Clock) -> Iterator[Begin]:
    """Begins a query of the store."""
    made: list[Query] = []

    def begin(**options: str) -> Query:
        made.append(Query(store, clock, **options))
        return made[-1]

    yield begin
    for each in made:
        each.stop()


def run_all(*queries: Query) -> None:
    """Each makes a batch in turn, until none has messages."""
    while sum(each.advance() for each in queries):
        pass


def places(count: int) -> Counter[Place]:
    """The places of so many messages in two queues, each once."""
    return Counter((number % 2, number // 2) for number in range(count))


def bodies(first: int, count: int) -> list[bytes]:
    return [message.body for message in numbered("T", first, count, queues=2)]


def state(store: Path) -> PopState:
    found = read_in_flight(in_flight_directory(Opened(str(store)), "g", "T"))
    assert found is not None
    return found


@pytest.mark.parametrize("killed", ["before Spark stored the offset", "in the batch", "after its commit"])
def test_a_query_that_comes_back_in_time_reads_each_message_once(
    store: Path, clock: Clock, query: Begin, killed: str
) -> None:
    one, two = (query(maxOffsetsPerTrigger="8") for _ in range(2))
    assert one.advance()
    if killed == "before Spark stored the offset":
        lost = one.positions.latest(one.start())
    else:
        assert one.begin()
        lost = one.log[-1][1]
        one.run()
        one.commits -= killed == "in the batch"
    before = dict(one.rows)
    clock.ms += INVISIBLE_MS - 1
    assert two.advance()  # another member reads on, and takes nothing of the first
    one.restart()
    clock.ms += INVISIBLE_MS - 1  # the time has begun again
    assert one.begin()
    if killed == "before Spark stored the offset":
        assert one.log[-1][1] == lost
    one.run()
    assert {number: one.rows[number] for number in before} == before
    run_all(one, two)
    assert one.seen() + two.seen() == places(40)
    assert state(store).in_flight == 0


def test_a_query_that_comes_back_late_repeats_what_another_got(
    clock: Clock, query: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = (query(maxOffsetsPerTrigger="8") for _ in range(2))
    assert one.begin()
    one.stop()
    clock.ms += INVISIBLE_MS + 1
    run_all(two)
    two.positions._opened[0].keep()
    run_all(two)
    # the other member has all, some of it from the retry topic: copies with the same bodies
    assert sorted(two.bodies) == sorted(bodies(0, 40))
    one.restart()
    said = [record.levelname for record in caplog.records if "delivered twice" in record.message]
    assert said == ["WARNING", "WARNING"]
    assert len(one.bodies) == 8  # the whole batch again: at least once
    assert not one.advance()


def test_a_bounded_run_ends_with_what_was_ready(store: Path, query: Begin) -> None:
    one = query(maxOffsetsPerTrigger="16")
    one.positions.bound_now()
    assert one.advance()
    append(store, numbered("T", 40, 10, queues=2))
    run_all(one)
    assert len(one.seen()) == 40
    assert not one.advance()
    assert live_topics(str(store), "g") == []  # the member has left


def test_a_late_bounded_run_repeats_its_own_batch_first(clock: Clock, query: Begin) -> None:
    one = query(maxOffsetsPerTrigger="16")
    assert one.begin()
    one.stop()
    clock.ms += 2 * INVISIBLE_MS
    one.restart(bounded=True)
    run_all(one)
    # nobody else was there to make its messages visible: each comes once
    assert sorted(one.bodies) == sorted(bodies(0, 40))


def test_filters_take_only_what_matches(store: Path, query: Begin) -> None:
    tags = query(subExpression="T0 || T2", maxOffsetsPerTrigger="10")
    price = query(group="h", expressionType="SQL92", subExpression="TAGS = 'T1'")
    assert tags.begin()
    assert price.begin()
    assert state(store).in_flight == 7  # of 10
    for each in (tags, price):
        each.run()
        run_all(each)
    of_tag = {i: (i % 2, i // 2) for i in range(40)}
    assert tags.seen() == Counter(place for i, place in of_tag.items() if i % 3 != 1)
    assert price.seen() == Counter(place for i, place in of_tag.items() if i % 3 == 1)
    # passed over, not in flight: nothing of it ever comes back
    assert [each.next_offset for each in state(store).queues.values()] == [20, 20, 0, 0]


def test_without_a_match_the_next_messages_are_looked_at(store: Path, query: Begin) -> None:
    one = query(subExpression="none", maxOffsetsPerTrigger="4")
    one.positions.bound_now()
    assert not one.advance()
    # as from a broker, queues without a message have an offset too
    assert read_group_offsets(Opened(str(store)), "g") == {
        ("T", 0): 20,
        ("T", 1): 20,
        ("T", 2): 0,
        ("T", 3): 0,
    }


def test_members_divide_what_waits(tmp_path: Path, query: Begin) -> None:
    store = make_store(tmp_path / "long", StoreSettings("broker-a", 1 << 20, 20 * 4_000, 50, 200))
    append(store, numbered("T", 0, 4_000, queues=1))
    one, two = query(path=str(store), maxOffsetsPerTrigger="1000"), query(path=str(store))
    assert one.begin()
    assert two.begin()
    ((_, start, stop, _),) = PopOffset.from_json(two.log[0][1]).ranges
    assert (start, stop) == (1_000, 2_500)  # half of the rest: the first member is alive
    assert two.scan.options.max_offsets_per_trigger == 10_000


def test_the_lease_renews_what_is_in_flight(store: Path, clock: Clock, query: Begin) -> None:
    one = query(invisibleDuration="12h")
    assert one.begin()
    taken = state(store).next_visible
    assert taken == clock.ms + 12 * 3600 * 1000
    clock.ms += 6 * 3600 * 1000
    one.positions._opened[1]._turn()
    assert state(store).next_visible == taken + 6 * 3600 * 1000
    one.run()
    assert not one.advance()
    clock.ms += 6 * 3600 * 1000
    one.positions._opened[1]._turn()
    assert state(store).next_visible is None


def test_what_retention_deleted_is_a_loss(store: Path, query: Begin) -> None:
    one = query(maxOffsetsPerTrigger="4")
    assert one.advance()
    for part in sorted((store / "commitlog").iterdir())[:-1]:
        part.unlink()
    append(store, numbered("T", 40, 400, queues=2, body_size=200))
    for part in sorted((store / "commitlog").iterdir())[:-1]:
        part.unlink()
    with pytest.raises(OffsetOutOfRangeError, match=r"retention deleted .* set failOnDataLoss=false"):
        one.begin()
    one.restart(failOnDataLoss="false")
    assert one.advance()
    assert min(offset for _, offset in one.rows[1]) > 2


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_member_that_is_faster_than_the_look_of_a_query_is_no_loss(
    store: Path,
    query: Begin,
    fails: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = query(failOnDataLoss=fails)
    assert one.advance()
    look = StreamStores.look
    with SimpleConsumer(str(store), "g", {"T": "*"}, await_duration=0) as consumer:

        def look_and_fall_behind(stores: StreamStores) -> int:
            version = look(stores)
            monkeypatch.undo()
            append(store, numbered("T", 40, 10, queues=2))
            consumer.ack(consumer.receive(32) + consumer.receive(32))
            return version

        monkeypatch.setattr(StreamStores, "look", look_and_fall_behind)
        assert not one.begin()
        assert consumer.metrics().acked == 10
        append(store, numbered("T", 50, 4, queues=2))
        assert one.advance()
    assert one.bodies[40:] == bodies(50, 4)
    assert "lost" not in caplog.text


def test_offsets_behind_the_end_of_a_queue_are_a_loss(store: Path, query: Begin) -> None:
    one = query()
    assert one.advance()
    one.positions._opened[0]._shares["T", "broker-a"].run(lambda state: state.set_offset(0, 0, 25))
    append(store, numbered("T", 40, 2, queues=2))
    with pytest.raises(
        OffsetOutOfRangeError, match=r"its offsets went back by 4 .*\); set failOnDataLoss=fa"
    ):
        one.begin()
    one.restart(failOnDataLoss="false")
    assert one.advance()
    assert one.rows[1] == [(1, 20)]


def test_what_was_delivered_too_often_becomes_a_dead_letter(
    store: Path, clock: Clock, query: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    configure(store, retryMaxTimes=1)
    for _ in range(2):  # two queries take everything, and die
        one = query()
        assert one.begin()
        one.stop()
        clock.ms += INVISIBLE_MS
        one.positions._opened[0].revive()
    append(store, numbered("T", 40, 1, queues=2))
    last = query()
    assert last.advance()
    assert last.bodies == bodies(40, 1)
    assert "group g: 40 messages became dead letters" in caplog.text
    dead = list(MessageStore.open(str(store)).queue("%DLQ%g", 0).read(columns=["body"]))
    assert sorted(body for batch in dead for body in batch["body"].to_pylist()) == sorted(bodies(0, 40))
    assert not last.advance()
    assert state(store).in_flight == 0
    (retries,) = MessageStore.open(str(store)).queues("%RETRY%g_T".__eq__)
    *_, newest = retries.read(columns=["queueOffset", "physicalOffset"])
    assert state(store).queues[RETRY, 0].witness == tuple(newest.to_pylist()[-1].values())


@pytest.mark.parametrize("bounded", [False, True])
def test_a_damaged_message_that_a_dead_query_had_comes_again_in_place(
    store: Path, clock: Clock, query: Begin, bounded: bool
) -> None:
    append(store, numbered("T", 40, 2, queues=2))
    log = sorted((store / "commitlog").iterdir())[0]
    log.write_bytes(log.read_bytes().replace(b"message 4 of", b"message 4 of".upper()))
    one, two = (query(mode="DROPMALFORMED", maxOffsetsPerTrigger="9") for _ in range(2))
    assert one.begin()
    one.stop()
    two.restart(bounded=bounded)
    if not bounded:
        run_all(two)
        assert (0, 2) not in two.seen()
    clock.ms += INVISIBLE_MS
    if not bounded:
        two.positions._opened[1]._turn()
    run_all(two)
    taken = [each for _, end in two.log for each in PopOffset.from_json(end).ranges]
    (again,) = [each for each in taken if (each.queue.topic, each.queue.queue_id, each.start) == ("T", 0, 2)]
    assert again.stop == 3
    assert len(two.bodies) == len(set(two.bodies)) == 41
    assert state(store).in_flight == 0


def test_the_stored_topic_is_a_default_column(store: Path) -> None:
    given = {"path": str(store), "group": "g", "subscribe": "T", "consumeMode": "pop"}
    fields = fields_from_options(parse_read_options(given, where=STREAM))
    assert fields.fields[-1].name == "storedTopic"


def configure(store: Path, **group: object) -> None:
    """As mqadmin updateSubGroup does for the group `g`."""
    table = {"g": {"groupName": "g", **group}}
    (store / "config" / "subscriptionGroup.json").write_text(json.dumps({"subscriptionGroupTable": table}))


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ({"consumeEnable": False}, "expected a group that may consume, found consumeEnable=false"),
        ({"consumeMessageOrderly": True}, "expected a group without order, found consumeMessageOrderly=true"),
    ],
)
def test_a_group_that_must_not_pop(store: Path, query: Begin, group: dict[str, object], said: str) -> None:
    configure(store, **group)
    with pytest.raises(OptionError, match=said):
        query().begin()


# ---- offsets and options -----------------------------------------------------------------------------------


def test_an_offset_has_one_text() -> None:
    ranges = [
        PoppedRange(MessageQueue(topic, "b", queue_id), 5, 9, 1_700_000_000_000)
        for topic in ("T", "%RETRY%g_T")
        for queue_id in (10, 9)
    ]
    offset = PopOffset("spark-1", tuple(sorted(ranges)))
    text = json.dumps(offset.to_json())
    assert text == json.dumps(PopOffset("spark-1", tuple(reversed(ranges))).to_json())
    assert text.index('"9"') < text.index('"10"')
    assert PopOffset.from_json(json.loads(text)) == offset
    assert PopOffset.from_json(PopOffset().to_json()) == PopOffset()


def test_a_group_either_pops_or_pulls(store: Path, query: Begin) -> None:
    one = query()
    assert one.begin()
    pull = parse_read_options({"path": str(store), "group": "g", "subscribe": "T"}, where=STREAM)
    assert pull.group is not None
    with pytest.raises(
        OptionError, match=r"found consumers that pop topic T in .*: a message would go to bot"
    ):
        GroupPositions(StreamStores(pull), pull.group).latest({})


@pytest.mark.parametrize("killed", ["before Spark stored the offset", "in the batch"])
def test_a_range_that_was_handed_over_to_a_broker_is_known_again(
    store: Path, clock: Clock, query: Begin, killed: str
) -> None:
    """The last member closes: what the dead query has in flight becomes check points of 32 messages."""
    append(store, numbered("T", 40, 260, queues=2))
    one, two = query(maxOffsetsPerTrigger="120"), query()
    assert one.advance()
    lost = one.positions.latest(one.start()) if killed == "before Spark stored the offset" else None
    assert two.advance()
    one.positions._opened[0].close()  # as if it were killed
    two.positions.bound_now()
    assert not two.advance()
    assert state(store).is_closed
    one.commits -= killed == "in the batch"
    before = one.rows[0]
    one.restart()
    assert one.rows[0] == before
    if lost:
        assert one.begin()
    assert state(store).in_flight == 120
    assert state(store).next_visible == clock.ms + INVISIBLE_MS
    if lost:
        one.run()
    assert not one.advance()
    assert state(store).in_flight == 0
    assert one.seen() + two.seen() == places(300)


# ---- queues ------------------------------------------------------------------------------------------------


def test_a_new_group_begins_at_the_last_message_and_new_queues_at_the_first(
    store: Path, query: Begin
) -> None:
    one = query(consumeFromWhere="CONSUME_FROM_LAST_OFFSET")
    assert one.advance()
    assert one.seen() == Counter([(0, 19), (1, 19)])  # unlike a pull: RocketMQ's pop begins at the last one
    one.stop()  # queues 2 and 3 are empty, and 4 and 5 do not exist yet
    update_topic(store, "T", 6)
    append(store, numbered("T", 60, 12, queues=6))
    one.restart()
    run_all(one)
    assert one.seen() == Counter(
        [(0, 19), (1, 19), *((queue, 20 + n) for queue in (0, 1) for n in range(2))]
        + [(queue, n) for queue in range(2, 6) for n in range(2)]
    )


def test_only_readable_queues_are_shared(store: Path, query: Begin) -> None:
    update_topic(store, "T", 1)
    one = query()
    assert one.advance()
    assert {queue for queue, _ in one.seen()} == {0}


# ---- random lives ------------------------------------------------------------------------------------------


class Lives:
    """Three queries, each alive or killed, and a clock that the living ones keep up with."""

    def __init__(self, store: Path, clock: Clock, query: Begin, choose: random.Random) -> None:
        self.store, self.clock, self.choose = store, clock, choose
        self.queries = [query(maxOffsetsPerTrigger="7") for _ in range(3)]
        self.dead: set[Query] = set()
        self.total = 40
        self.late: set[bytes] = set()  # what was in flight for too long

    def turn(self) -> None:
        query = self.choose.choice(self.queries)
        if self.choose.random() < 0.1:
            self.pass_time(INVISIBLE_MS * self.choose.choice([0.3, 0.3, 1.1]))
        elif self.choose.random() < 0.1:
            append(self.store, numbered("T", self.total, 10, queues=2))
            self.total += 10
        elif query in self.dead:
            self.dead.discard(query)
            query.restart()
        else:
            self.live(query)

    def live(self, query: Query) -> None:
        """One batch, with a chance to be killed behind each step that Spark or the query writes."""
        kills = self.choose.choice(["", "", "", "asked", "stored", "written", "committed"])
        start = query.start()
        if kills == "asked":
            query.positions.latest(start)
        elif query.begin() and kills != "stored":
            query.run()
            query.commits -= kills == "written"
        if kills:
            query.stop()
            self.dead.add(query)

    def pass_time(self, ms: float) -> None:
        for _ in range(10):
            now = self.clock.ms + int(ms / 10)
            self.late |= self.expired(now)
            self.clock.ms = now
            for query in self.queries:
                if query not in self.dead and query.positions._opened is not None:
                    query.positions._opened[1]._turn()

    def expired(self, now: int) -> set[bytes]:
        """The bodies of what nobody has acknowledged or renewed until `now`."""
        known = read_in_flight(in_flight_directory(Opened(str(self.store)), "g", "T")) or PopState()
        points = [each for each in known.check_points() if each.visible_at <= now]
        found: set[bytes] = set()
        for point in points:
            topic = pop_retry_topic("g", "T") if point.flag else "T"
            queue = MessageStore.open(str(self.store)).queue(topic, point.queue_id)
            for batch in queue.read(point.start, point.offsets[-1] + 1, columns=["body"]):
                found.update(batch["body"].to_pylist())
        return found


def test_random_lives_lose_nothing(store: Path, clock: Clock, whole: bool, query: Begin) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    lives = Lives(store, clock, query, random.Random(seed))
    for _ in range(1_000 if whole else 60):
        lives.turn()
    for each in sorted(lives.dead, key=lives.queries.index):
        each.restart()
    lives.dead.clear()
    run_all(*lives.queries)
    lives.pass_time(1.1 * INVISIBLE_MS)  # what was killed before its first offset was stored has no owner
    run_all(*lives.queries)
    counts = Counter(body for each in lives.queries for rows in each.kept.values() for body in rows)
    assert counts.keys() == set(bodies(0, lives.total))
    assert {body for body, count in counts.items() if count > 1} <= lives.late
    assert state(store).in_flight == 0

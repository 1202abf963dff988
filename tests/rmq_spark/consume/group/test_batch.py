"""A batch read as a group, without Spark: where it begins, what it says, and what a stream of the group says
of the same offsets.
"""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.consume.allocate import strategy
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.directory import PopLease, live_topics
from rmq_spark.consume.group.member import Membership, SoleMember
from rmq_spark.consume.offset_store import LocalOffsets, OffsetStore, StoreOffsets
from rmq_spark.options.option import BATCH, STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.stream.group_positions import GroupPositions
from rmq_spark.stream.stores import StreamStores
from store_format.errors import CorruptStoreError, OffsetOutOfRangeError, OptionError, StoreInUseError
from store_format.files.polling import Clocks
from store_format.metadata.group_offsets import write_group_offsets
from store_format.opened.store import Opened
from store_format.pop.log import InFlightLog, in_flight_directory
from store_format.pop.state import PopState
from tests.support.fixtures import Golden, Unchanged
from tests.support.ownership import begins, queues_by_client
from tests.support.reads import copy_of, read, told, told_places
from tests.support.staged import append, deleted_topic, numbered
from tests.support.writes import held

FIRST = "CONSUME_FROM_FIRST_OFFSET"


@pytest.fixture
def root(root: Path) -> Path:
    """Topic T, four queues of 5 messages."""
    append(root, numbered("T", 0, 20))
    return root


def _commit(root: Path, group: str = "audit", **queues: int) -> None:
    offsets = {("T", int(name[1:])): offset for name, offset in queues.items()}
    write_group_offsets(Opened(str(root)), group, offsets, timestamp=1, is_reset=True)


def _batch(root: Path, **options: str) -> dict[int, tuple[int, int]]:
    """The range of each queue that has something to read."""
    parsed = parse_read_options({"path": str(root), "group": "audit", **options}, where=BATCH)
    pieces = [piece for split in plan(parsed).splits for share in split.shares for piece in share.slices]
    return {piece.queue_id: (piece.start, piece.stop) for piece in pieces}


def _stream(root: Path, **options: str) -> dict[str, int]:
    """What the first offset of a stream says of T; it leaves the group."""
    parsed = parse_read_options({"path": str(root), "group": "audit", **options}, where=STREAM)
    assert parsed.group is not None
    positions = GroupPositions(StreamStores(parsed), parsed.group, clocks=Clocks())
    positions.bound_now()
    try:
        positions.latest(positions.initial())
        return {
            str(queue.queue_id): offset
            for queue, offset in positions._now.starts.items()
            if queue.topic == "T"
        }
    finally:
        if positions._group._part is not None:
            positions._group._part.leave({})


@pytest.mark.parametrize("read", [_batch, _stream])
@pytest.mark.parametrize(
    ("config", "model", "found"),
    [
        ({"consumeEnable": False}, "CLUSTERING", "that may consume, found consumeEnable=false .* -s true"),
        ({"consumeEnable": False}, "BROADCASTING", "that may consume, found consumeEnable=false .* -s true"),
        (
            {"consumeBroadcastEnable": False},
            "BROADCASTING",
            "that may consume BROADCASTING, found consumeBroadcastEnable=false .* -d true",
        ),
    ],
)
def test_a_group_that_may_not_consume(
    root: Path, read: Callable[..., object], config: dict[str, bool], model: str, found: str
) -> None:
    """A broker answers NO_PERMISSION."""
    path = root / "config" / "subscriptionGroup.json"
    table = {"audit": {"groupName": "audit", **config}}
    path.write_text(json.dumps({"subscriptionGroupTable": table}))
    options = {"messageModel": model, "offsetStore": "none"}
    with pytest.raises(OptionError, match=f"store: group audit: expected a group {found}"):
        read(root, **options)


@pytest.mark.parametrize("read", [_batch, _stream])
def test_a_group_that_may_not_consume_broadcasting_may_consume(
    root: Path, read: Callable[..., object]
) -> None:
    path = root / "config" / "subscriptionGroup.json"
    table = {"audit": {"consumeBroadcastEnable": False}, "other": {"consumeEnable": False}}
    path.write_text(json.dumps({"subscriptionGroupTable": table}))
    assert read(root, offsetStore="none", consumeFromWhere="CONSUME_FROM_FIRST_OFFSET")


def test_a_batch_begins_at_the_groups_offset_and_writes_nothing(root: Path, unchanged: Unchanged) -> None:
    _commit(root, q0=5, q1=4, q2=5, q3=3)
    with unchanged(root):
        frame = read(root, group="audit")
        assert frame.places() == [("T", 1, 4), ("T", 3, 3), ("T", 3, 4)]
        assert frame.columns[-1] == "storedTopic"
        assert len(read(root, group="new", consumeFromWhere=FIRST).rows()) == 20
        assert read(root, group="new").rows() == []
        assert len(read(root, group="new", consumeYoungQueueFromZero=True).rows()) == 20


def test_what_failed_comes_again_under_its_own_topic_and_unfiltered(golden: Golden, tmp_path: Path) -> None:
    root = copy_of(golden, "retry-dlq-5.5.0", tmp_path)
    options = {"group": "CG_fail", "subscribe": "Jobs", "subExpression": "TagA", "consumeFromWhere": FIRST}
    assert read(root, **options).rows() == []  # a Java consumer has read everything
    for offsets in (root / "config").glob("consumerOffset.json*"):
        offsets.unlink()
    found = read(root, **options).rows()
    rows = told("retry-dlq-5.5.0")
    again = [row for row in rows if row["topic"] == "%RETRY%CG_fail"]
    first = [row for row in rows if row["topic"] == "Jobs" and row["properties"].get("TAGS") == "TagA"]
    assert sorted((row["storedTopic"], row["queueId"], row["queueOffset"]) for row in found) == told_places(
        [*again, *first]
    )
    assert {row["topic"] for row in found} == {"Jobs"}
    assert len(again) == 20
    assert {row["tags"] for row in found if row["storedTopic"] == "%RETRY%CG_fail"} > {"TagA"}


def test_a_group_reads_what_it_popped_before(golden: Golden) -> None:
    """A broker popped for the group: what nobody acknowledged waits in the group's retry topic of pop."""
    retry = "%RETRY%CG_pop_PopWork"
    options = {"group": "CG_pop", "subscribe": "PopWork"}
    found = read(golden("pop-5.5.0"), **options).rows()
    assert sorted(row["queueOffset"] for row in found if row["storedTopic"] == retry) == list(range(24))
    assert {row["topic"] for row in found} == {"PopWork"}  # a broker answers a pop with the topic itself
    tagged = read(golden("pop-5.5.0"), subExpression="TagA || TagB", **options).rows()
    assert tagged == [row for row in found if row["tags"] in ("TagA", "TagB")]
    assert {row["tags"] for row in tagged if row["storedTopic"] == retry} == {"TagA", "TagB"}


def test_a_queue_that_is_consumed_beyond_the_end_gives_nothing(root: Path) -> None:
    """What has the group not consumed of the first three messages of each queue?"""
    _commit(root, q0=1, q1=3, q2=4, q3=0)
    assert _batch(root, endingOffsets='{"T":{"0":3,"1":3,"2":3,"3":3}}') == {0: (1, 3), 3: (0, 3)}
    assert _batch(root, endingTimestamp="2000-01-01T00:00:00Z") == {}


def test_the_offset_of_a_topic_that_was_created_again_is_an_error(root: Path) -> None:
    """With the sentence of a stream: where, what was expected, what was found, what to do."""
    append(root, numbered("Other", 0, 1))  # the end of the queues: the next write fills no queue from the log
    deleted_topic(root, "T")
    append(root, numbered("T", 100, 20))
    _commit(root, q0=9)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        _batch(root)
    assert str(caught.value) == (
        "T-0 of broker-a: the committed offset of group audit 9 is not in the queue, which holds 0 to 5: its "
        "offsets went back by 4 (is the store an older copy, or was the topic deleted and created again?); "
        "move group audit with rmqlog offsets, or set failOnDataLoss=false to read the offsets that exist"
    )
    assert _batch(root, failOnDataLoss="false") == {}


@pytest.mark.parametrize("read", [_batch, _stream])
def test_a_negative_offset_is_an_error_with_its_queue(root: Path, read: Callable[[Path], object]) -> None:
    _commit(root, q0=2, q2=-5)
    with pytest.raises(OffsetOutOfRangeError) as caught:
        read(root)
    assert str(caught.value) == (
        "T-2 of broker-a: the committed offset of group audit is -5, expected 0 or more, or -1 for none; "
        "reset the group on this queue "
        "(rmqlog offsets), or set failOnDataLoss=false to begin where consumeFromWhere says"
    )


def test_a_negative_offset_counts_as_none_without_fail_on_data_loss(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _commit(root, q0=2, q1=-1, q2=-5, q3=4)
    options = {"failOnDataLoss": "false", "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    with caplog.at_level(logging.WARNING):
        assert _batch(root, **options) == {0: (2, 5), 1: (0, 5), 2: (0, 5), 3: (4, 5)}
        assert _stream(root, **options) == {"0": 2, "1": 0, "2": 0, "3": 4}
    said = (
        "T-2 of broker-a: the committed offset of group audit is -5, expected 0 or more, or -1 for "
        "none; beginning where consumeFromWhere"
    )
    assert caplog.text.count(said) >= 2


def test_a_misspelt_group_is_warned_about(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    _commit(root, q0=2)
    with caplog.at_level(logging.WARNING):
        assert _batch(root) == {0: (2, 5)}
        assert caplog.text == ""
        assert _batch(root, group="adit", consumeFromWhere="CONSUME_FROM_FIRST_OFFSET") != {}
        assert caplog.text == ""
        assert _batch(root, group="adit") == {}
    assert (
        "group adit has no committed offset in the queues read, so a batch read begins at their ends and "
        "returns no rows; "
        "did you mean audit? To read the messages of a new group, set "
        "consumeFromWhere=CONSUME_FROM_FIRST_OFFSET"
    ) in caplog.text
    caplog.clear()
    assert _batch(root, group="another") == {}
    assert "the groups are audit" in caplog.text


@pytest.mark.parametrize("read", [_batch, _stream])
def test_offsets_that_cannot_be_read_and_have_no_backup_are_left_alone(
    root: Path, read: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    """Other groups' offsets are in the same file."""
    _commit(root, q0=2)
    _commit(root, "other", q0=3)
    path = root / "config" / "consumerOffset.json"
    path.with_name("consumerOffset.json.bak").unlink(missing_ok=True)
    damaged = path.read_bytes()[:-3] + b"\x00"
    path.write_bytes(damaged)
    calls: list[Callable[[], object]] = [lambda: read(root), lambda: _commit(root, q0=4)]
    for call in calls:
        with pytest.raises(CorruptStoreError) as caught:
            call()
        assert str(caught.value).startswith(f"{path} at byte ")
        assert "there is no .bak to read instead" in str(caught.value)
        assert "Replace the file by a good copy, or move the file away: then its content is lost" in str(
            caught.value
        )
    assert path.read_bytes() == damaged
    assert ".bak instead" not in caplog.text
    assert not path.with_name("consumerOffset.json.bak").exists()
    path.unlink()
    _commit(root, q0=4)
    assert json.loads(path.read_text().replace("0:4", '"0":4'))["offsetTable"]["T@audit"] == {"0": 4}


# ---- the lease that consumers of an in-flight log share ----------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> str:
    directory = in_flight_directory(Opened(str(tmp_path)), "g", "T")
    InFlightLog(directory).run(PopState.open)
    return directory


def member(directory: str) -> PopLease:
    made = PopLease(directory)
    made.begin(0.1)
    return made


def test_only_the_last_of_the_consumers_is_the_last(directory: str) -> None:
    first, second = member(directory), member(directory)
    assert not first.is_last()
    first.end()
    assert second.is_last()
    second.end()


def test_nobody_joins_while_the_last_consumer_hands_over(directory: str) -> None:
    last = member(directory)
    assert last.is_last()
    with pytest.raises(StoreInUseError, match="the last consumer ends"):
        member(directory)
    last.end()
    member(directory).end()


@pytest.mark.process
def test_a_consumer_that_is_killed_is_not_alive(tmp_path: Path, directory: str) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            member(directory)
            os.write(writer, b"1")
            signal.pause()
        finally:
            os._exit(1)
    os.read(reader, 1)
    assert live_topics(str(tmp_path), "g") == ["T"]
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert live_topics(str(tmp_path), "g") == []
    os.close(reader)
    os.close(writer)


def test_to_ask_disturbs_nobody(tmp_path: Path, directory: str) -> None:
    assert live_topics(str(tmp_path), "g") == []
    assert not Path(directory, "members").exists()
    one = member(directory)
    assert live_topics(str(tmp_path), "g") == ["T"]
    assert live_topics(str(tmp_path), "h") == []
    assert one.is_last()
    one.end()


# ---- a query that shares its queues with nobody ------------------------------------------------------------


QUEUES = [MessageQueue("T", "b", queue_id) for queue_id in range(4)]


class Time:
    """In the test's hand."""

    now = 100.0


@pytest.fixture
def offsets(tmp_path: Path) -> LocalOffsets:
    return LocalOffsets(str(tmp_path / "g" / "offsets.json"))


def _alone(
    offsets: OffsetStore, *clients: str, shares: bool = True, persist_seconds: float = 5.0
) -> SoleMember:
    Time.now = 100.0
    spec = Membership("g", clients or ("a",), strategy("AVG"), "T *", persist_seconds=persist_seconds)
    return SoleMember(spec, offsets, shares=shares, clocks=Clocks(lambda: Time.now))


def _begin(queue: MessageQueue) -> int:
    return 7


def test_a_queue_begins_at_its_checkpoint_else_at_the_groups_offset_else_by_the_rule(
    offsets: LocalOffsets,
) -> None:
    offsets.write({QUEUES[0]: 9, QUEUES[1]: 3})
    alone = _alone(offsets)
    found = alone.settle(QUEUES, {QUEUES[0]: 2}, begin=_begin)
    assert found.starts == {QUEUES[1]: 3, QUEUES[2]: 7, QUEUES[3]: 7}
    assert begins(found, {QUEUES[0]: 2}) == {QUEUES[0]: 2, QUEUES[1]: 3, QUEUES[2]: 7, QUEUES[3]: 7}
    assert found.is_settled
    assert alone.settle(QUEUES, dict.fromkeys(QUEUES, 8), begin=_begin).starts == {}


def test_a_start_is_decided_once(offsets: LocalOffsets) -> None:
    alone, positions = _alone(offsets), dict[MessageQueue, int]()
    assert alone.settle(QUEUES, positions, begin=_begin).starts[QUEUES[0]] == 7
    assert alone.settle(list(QUEUES), {QUEUES[1]: 8}, begin=lambda queue: 99).starts[QUEUES[0]] == 7


@pytest.mark.parametrize("shares", [True, False])
def test_the_strategy_shares_among_the_own_clients_unless_broadcasting(
    offsets: LocalOffsets, shares: bool
) -> None:
    found = queues_by_client(_alone(offsets, "a", "b", shares=shares).settle(QUEUES, {}, begin=_begin))
    assert found == ({"a": QUEUES[:2], "b": QUEUES[2:]} if shares else {"a": QUEUES})


def test_it_records_every_interval_when_forced_and_when_it_leaves(offsets: LocalOffsets) -> None:
    alone = _alone(offsets)
    alone.settle(QUEUES, {}, begin=_begin)
    alone.settle(QUEUES, {QUEUES[0]: 1}, begin=_begin)
    assert offsets.read() == {}
    Time.now += 5
    alone.settle(QUEUES, {QUEUES[0]: 2}, begin=_begin)
    assert offsets.read() == {QUEUES[0]: 2}
    alone.settle(QUEUES, {QUEUES[0]: 3}, begin=_begin, force=True)
    assert offsets.read() == {QUEUES[0]: 3}
    alone.leave({QUEUES[0]: 4})
    assert offsets.read() == {QUEUES[0]: 4}


def test_what_could_not_be_saved_is_tried_again_but_not_at_each_look(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "lock").write_bytes(b"lock")
    offsets, positions = StoreOffsets("g", {"b": str(tmp_path)}, lock_timeout=0.1), {QUEUES[0]: 1}
    alone = _alone(offsets, persist_seconds=0.0)
    with held(tmp_path):
        alone.settle(QUEUES, positions, begin=_begin)
    alone.settle(QUEUES, positions, begin=_begin)
    assert offsets.read() == {}
    Time.now += 1
    alone.settle(QUEUES, positions, begin=_begin)
    assert offsets.read() == positions

"""A topic that was deleted and created again: what a group had in flight before does not count."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.pop import SimpleConsumer
from store_format import MessageStore
from store_format.metadata.group_offsets import read_group_offsets, write_group_offsets
from store_format.opened.store import Opened
from store_format.pop.log import is_of_new_topic, physical_offset_at, witness_before
from store_format.pop.records import WitnessEntry
from store_format.read.store import Store
from tests.rmq_spark.broker.pop.test_again import damage
from tests.support.fixtures import Golden
from tests.support.popped import GROUP, TOPIC, Clock, append_numbered, drain, popped_store
from tests.support.staged import deleted_topic

_EARLIER_MS = 10_000  # the consumers of the deleted topic popped so long ago


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return popped_store(tmp_path / "s", 60)


def _consumer(root: Path, *, earlier_ms: int = 0, **options: Any) -> SimpleConsumer:
    return SimpleConsumer(
        str(root), GROUP, {TOPIC: "*"}, 0.0, init_mode="MIN",
        clock_ms=lambda: time.time_ns() // 1_000_000 - earlier_ms, **options,
    )  # fmt: skip


def _kill(consumer: SimpleConsumer) -> None:
    """Nothing is handed over, and the in-flight log stays open."""
    consumer._stores.leave()
    consumer._is_closed = True


def _create_again(root: Path, count: int, *, offset: int | None = None) -> None:
    """What a broker does. It deletes the topic's offsets; `offset` is what the group has afterwards."""
    append_numbered(root, 1, topic="Other")  # the end of the consume queues, so that nobody dispatches again
    deleted_topic(root, TOPIC)
    path = root / "config" / "consumerOffset.json"
    path.write_text(re.sub(rf'"{TOPIC}@{GROUP}":\{{[^}}]*\}}', '"Other@group":{0:1}', path.read_text()))
    append_numbered(root, count, first=1000)
    if offset is not None:
        write_group_offsets(Opened(str(root)), GROUP, {(TOPIC, 0): offset}, timestamp=1)


def _read_all(consumer: SimpleConsumer) -> list[int]:
    return sorted(int(each.body) for each in drain(consumer))


def _popped(root: Path, **options: Any) -> SimpleConsumer:
    """A consumer with 32 messages popped and 20 acknowledged."""
    consumer = _consumer(root, earlier_ms=_EARLIER_MS, **options)
    messages = consumer.receive(32, 120)
    consumer.ack(messages[:20])
    consumer._stores.keep()
    assert len(messages) == 32
    return consumer


@pytest.mark.parametrize("count", [100, 32, 25, 10])
@pytest.mark.parametrize("fifo", [False, True])
def test_after_a_kill_every_message_of_the_new_topic_comes(
    root: Path, count: int, fifo: bool, caplog: pytest.LogCaptureFixture
) -> None:
    _kill(_popped(root, fifo=fifo))
    _create_again(root, count)
    with _consumer(root, fifo=fifo) as consumer:
        assert _read_all(consumer) == list(range(1000, 1000 + count))
        assert consumer.metrics().lost == 0
        consumer._stores.keep()
        assert read_group_offsets(Opened(str(root)), GROUP)[TOPIC, 0] == count
    (warning,) = [message for message in caplog.messages if "created again" in message]
    assert "topic Orders was deleted and created again; 12 messages of the deleted topic" in warning
    assert "continues at Orders-0 at 0" in warning


def test_the_old_offset_in_the_file_does_not_count(root: Path) -> None:
    """Brokers up to 4.9 leave the offsets of a deleted topic."""
    _kill(_popped(root))
    _create_again(root, 100, offset=20)
    with _consumer(root) as consumer:
        assert _read_all(consumer) == list(range(1000, 1100))


def test_an_offset_that_a_broker_has_committed_since_counts(root: Path) -> None:
    _kill(_popped(root))
    _create_again(root, 100, offset=40)
    with _consumer(root) as consumer:
        assert _read_all(consumer) == list(range(1040, 1100))


def test_a_consumer_that_was_given_no_message_knows_its_topic(root: Path) -> None:
    write_group_offsets(Opened(str(root)), GROUP, {(TOPIC, 0): 60}, timestamp=1)
    consumer = _consumer(root)
    assert not consumer.receive(32)
    _kill(consumer)
    _create_again(root, 100)
    with _consumer(root) as consumer:
        assert _read_all(consumer) == list(range(1000, 1100))


def test_a_consumer_that_was_stopped_meanwhile_reads_the_new_topic(root: Path) -> None:
    """It has read ahead entries of the deleted topic."""
    with _popped(root) as consumer:
        _create_again(root, 100)
        consumer._stores.keep()
        assert _read_all(consumer) == list(range(1000, 1100))


@pytest.mark.parametrize("count", [100, 32, 25, 10])
@pytest.mark.parametrize("earlier_ms", [_EARLIER_MS, 0])
def test_after_a_hand_over_every_message_of_the_new_topic_comes(
    root: Path, count: int, earlier_ms: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The pop time decides. If the topic is created again at once, messages may come twice, and all come."""
    with _consumer(root, earlier_ms=earlier_ms) as consumer:
        consumer.ack(consumer.receive(32, 120)[:20])
    _create_again(root, count)
    with _consumer(root) as consumer:
        assert _read_all(consumer) == list(range(1000, 1000 + count))
        assert consumer.metrics().lost == 0
        if earlier_ms:
            assert "12 messages that were in flight at a broker are forgotten" in caplog.text
            assert consumer._stores._pops[0].share.run(lambda state: state.in_flight) == 0


@pytest.mark.parametrize("count", [100, 10])
@pytest.mark.parametrize("ends", ["killed", "stopped", "closed"])
def test_a_message_that_is_delivered_from_its_own_place_is_of_its_topic(
    tmp_path: Path, ends: str, count: int
) -> None:
    """A damaged message of the deleted topic waits at offset 1. The new topic has another one there."""
    root = popped_store(tmp_path / "s", 40, file_size=1 << 20)
    damage(root, 1)
    clock = Clock()
    consumer = _damaged_in_flight(root, clock)
    if ends == "killed":
        _kill(consumer)
    elif ends == "closed":
        consumer.close()
    clock.ms += _EARLIER_MS
    _create_again(root, count)
    if ends == "stopped":
        consumer._stores.keep()
    else:
        consumer = _consumer(root)
    with consumer:
        found = drain(consumer)
        assert [int(each.body) for each in found] == list(range(1000, 1000 + count))
        assert {each.delivery_attempt for each in found} == {1}
        assert consumer._stores._pops[0].share.run(lambda state: state.in_flight) == 0


def _damaged_in_flight(root: Path, clock: Clock) -> SimpleConsumer:
    """A consumer to which the damaged message at offset 1 was delivered twice."""
    clock.ms = time.time_ns() // 1_000_000 - 3 * _EARLIER_MS
    consumer = SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, 0.0, init_mode="MIN", clock_ms=clock)
    consumer._stores.keeper.stop()
    consumer.ack([each for each in consumer.receive(32, 10) if each.error is None])
    clock.ms += 10_000
    consumer._stores.keep()
    while (message := consumer.receive(1, 10)[0]).error is None:
        consumer.ack(message)
    clock.ms += 10_000
    consumer._stores.keep()
    return consumer


def test_messages_that_came_later_are_no_new_topic(root: Path) -> None:
    """Also if the clock of the pop was wrong: nothing is forgotten that is still in flight."""
    with _popped(root) as consumer:
        pass
    append_numbered(root, 40, first=60)
    consumer = _consumer(root)
    assert _read_all(consumer) == list(range(32, 100))
    state = consumer._stores._pops[0].share.run(lambda state: (state.in_flight, state.renewals))
    assert state == (12, 0)
    _kill(consumer)
    with _consumer(root) as consumer:
        assert _read_all(consumer) == []
        assert consumer._stores._pops[0].share.run(lambda state: state.in_flight) == 12


def test_where_retention_has_deleted_the_message_nothing_tells(golden: Golden) -> None:
    queues = Store.open(str(golden("cleaned-5.5.0"))).queues()
    queue = next(each.range for each in queues if each.min_offset > 1 and each.max_offset > each.min_offset)
    last = witness_before(queue, queue.max_offset)
    assert last is not None
    assert last.physical_offset == physical_offset_at(queue, queue.max_offset - 1)
    assert not is_of_new_topic(queue, last)
    assert is_of_new_topic(queue, last._replace(physical_offset=last.physical_offset - 1))
    assert not is_of_new_topic(queue, WitnessEntry(queue.min_offset - 1, 12345))
    # behind the end: an older copy of the store, or a new topic with fewer messages
    assert not is_of_new_topic(queue, WitnessEntry(queue.max_offset, last.physical_offset + 1))
    assert is_of_new_topic(queue, WitnessEntry(queue.max_offset, last.physical_offset - 1))


@pytest.mark.parametrize("offset", [None, 20, 40], ids=["deleted", "left by 4.9", "committed since"])
@pytest.mark.parametrize("fifo", [False, True])
def test_the_views_count_nothing_of_the_deleted_topic(root: Path, fifo: bool, offset: int | None) -> None:
    """Before a consumer opens: as it then finds the topic."""
    _kill(_popped(root, fifo=fifo))
    assert _views(root) == (12, (28, 12))
    _create_again(root, 100, offset=offset)
    ready = 60 if offset == 40 else 100
    assert _views(root) == (0, (ready, 0))
    with _consumer(root, fifo=fifo):
        assert _views(root) == (0, (ready, 0))


@pytest.mark.parametrize("fifo", [False, True])
@pytest.mark.parametrize("is_killed", [False, True])
def test_the_views_count_nothing_of_a_topic_that_is_deleted(root: Path, fifo: bool, is_killed: bool) -> None:
    """A consumer that was closed has handed its messages over: they are as a broker leaves them."""
    consumer = _popped(root, fifo=fifo)
    if is_killed:
        _kill(consumer)
    else:
        consumer.close()
    append_numbered(root, 1, topic="Other")
    assert _in_flight(root) == (12, 12)
    deleted_topic(root, TOPIC)
    assert _in_flight(root) == (0, 0)
    _create_again(root, 100)
    assert _in_flight(root) == (0, 0)
    with _consumer(root, fifo=fifo) as consumer:
        assert _in_flight(root) == (0, 0)
        assert _read_all(consumer) == list(range(1000, 1100))


def _in_flight(root: Path) -> tuple[int, int]:
    """The messages in flight by the views inFlight and lag."""
    store = MessageStore.open(str(root))
    lag = [row["inFlightMessages"] or 0 for row in store.view("lag").to_pylist() if row["topic"] == TOPIC]
    return len(store.view("inFlight")), sum(lag)


def _views(root: Path) -> tuple[int, tuple[int, int]]:
    """(the messages of the view inFlight, the messages of the view lag: ready, in flight)."""
    store = MessageStore.open(str(root))
    (row,) = (row for row in store.view("lag").to_pylist() if (row["group"], row["topic"]) == (GROUP, TOPIC))
    return len(store.view("inFlight")), (row["readyMessages"], row["inFlightMessages"])

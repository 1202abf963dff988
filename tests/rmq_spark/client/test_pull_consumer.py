"""A pull consumer: what a poll gives, when it counts as handled, and where seek, pause and assign lead."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consumer import PullConsumer
from store_format.errors import OptionError
from tests.rmq_spark.client.conftest import Consumers, Heard, wait_until
from tests.rmq_spark.client.test_push_consumer import committed
from tests.rmq_spark.stream.test_positions import expected

_ALL = expected("T", *[(0, 5)] * 4)
_QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(4)]


def polled(consumer: PullConsumer, count: int) -> list[tuple[str, int, int]]:
    """The places of so many messages."""
    found: list[tuple[str, int, int]] = []
    while len(found) < count:
        messages = consumer.poll(10)
        assert messages, found
        assert len({each.queue_id for each in messages}) == 1
        found += [(each.topic, each.queue_id, each.offset) for each in messages]
    return found


@pytest.fixture
def consumer(consumers: Consumers) -> PullConsumer:
    """Subscribed to T."""
    made = consumers.pull()
    made.subscribe("T")
    return made


def test_what_was_polled_counts_at_the_next_poll(consumer: PullConsumer, root: Path) -> None:
    assert sorted(polled(consumer, 20)) == _ALL
    assert consumer.poll(0) == []
    consumer.shutdown()
    assert committed(root) == dict.fromkeys(range(4), 5)
    with pytest.raises(OptionError, match="this consumer is closed"):
        consumer.poll(0)


def test_without_auto_commit_only_commit_counts(consumers: Consumers, root: Path) -> None:
    consumer = consumers.pull(auto_commit=False, pull_batch_size=2)
    consumer.subscribe("T")
    first = polled(consumer, 4)
    consumer.commit()
    polled(consumer, 4)
    done = Counter(queue for _, queue, _ in first)
    assert {queue: consumer.committed(_QUEUES[queue]) for queue in done} == dict(done)
    consumer.shutdown()
    assert committed(root) == dict.fromkeys(range(4), 0) | dict(done)
    again = consumers.pull()
    again.subscribe("T")
    assert sorted([*first, *polled(again, 16)]) == _ALL


def test_seek_goes_back_and_forth(consumer: PullConsumer, consumers: Consumers) -> None:
    polled(consumer, 20)
    assert consumer.poll(0) == []
    consumer.seek(_QUEUES[1], 3)
    consumer.seek_to_begin(_QUEUES[2])
    assert sorted(polled(consumer, 7)) == expected("T", (0, 0), (3, 5), (0, 5))
    consumer.seek_to_begin(_QUEUES[0])
    consumer.seek_to_end(_QUEUES[0])
    assert consumer.poll(0) == []
    with pytest.raises(OptionError, match="expected an offset from 0 to 5, found 6"):
        consumer.seek(_QUEUES[0], 6)
    for other in (MessageQueue("U", "broker-a", 0), ("U", "broker-a", 0)):
        with pytest.raises(OptionError, match="U-0 of broker-a: expected a queue that this consumer has now"):
            consumer.seek(other, 0)  # type: ignore[arg-type] # as a plain tuple
    with pytest.raises(OptionError, match=r"\(topic, broker name, queue id\), found \('', 1\)"):
        consumer.seek(("", 1), 0)  # type: ignore[arg-type] # wrong on purpose
    consumer.shutdown()
    again = consumers.pull()
    again.subscribe("T")
    assert again.poll(0.1) == []


def test_paused_queues_are_not_polled(consumer: PullConsumer) -> None:
    consumer.start()
    consumer.pause(_QUEUES[:3])
    assert polled(consumer, 5) == expected("T", (0, 0), (0, 0), (0, 0), (0, 5))
    assert consumer.poll(0) == []
    consumer.resume(_QUEUES[:1])
    assert polled(consumer, 5) == expected("T", (0, 5))


def test_assigned_queues_are_read_whatever_members_have(consumers: Consumers, root: Path) -> None:
    heard = Heard()
    consumers.push(heard, offset_store="none")
    heard.wait(20)
    alone = consumers.pull(auto_commit_interval=0)
    alone.assign([("T", "broker-a", 1), ("T", "broker-a", 3)])
    assert sorted(polled(alone, 10)) == expected("T", (0, 0), (0, 5), (0, 0), (0, 5))
    assert alone.message_queues == (_QUEUES[1], _QUEUES[3])
    assert alone.poll(0) == []
    alone.shutdown()
    assert committed(root) == {1: 5, 3: 5}


def test_queues_and_times(consumer: PullConsumer, root: Path) -> None:
    assert consumer.fetch_message_queues("T") == _QUEUES
    (first, *_) = consumer.poll(5)
    before = first.store_timestamp
    assert consumer.offset_for_timestamp(_QUEUES[0], before + 1) == 5
    assert consumer.offset_for_timestamp(_QUEUES[0], 0) == 0


def test_a_consumer_that_does_not_poll_gives_its_queues_away(
    consumer: PullConsumer, consumers: Consumers
) -> None:
    polled(consumer, 20)
    heard = Heard()
    other = consumers.push(heard)
    wait_until(lambda: len(other.message_queues) > 0 and len(consumer.message_queues) < 5)


def test_subscribe_and_assign_exclude_each_other(consumers: Consumers) -> None:
    consumer = consumers.pull()
    consumer.subscribe("T")
    with pytest.raises(OptionError, match="use one of them"):
        consumer.assign(_QUEUES)
    other = consumers.pull()
    other.assign(_QUEUES)
    with pytest.raises(OptionError, match="use one of them"):
        other.subscribe("T")
    consumer.start()
    with pytest.raises(OptionError, match="before the first poll"):
        consumer.subscribe("U")

"""Messages that cannot be stored again: they are delivered again from their own place."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from random import Random

import pytest

import rmq_spark
from rmq_spark.pop import MessageView, SimpleConsumer
from store_format.errors import ChecksumError, InvalidReceiptHandleError
from store_format.metadata.group_offsets import read_group_offsets
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.rmq_spark.broker.pop.test_deliveries import _consumer
from tests.support.popped import GROUP, TOPIC, Clock, append_numbered, popped_store

RETRY_TOPIC = "%RETRY%billing_Orders"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def damage(root: Path, number: int, topic: str = TOPIC) -> None:
    """Changes one byte of the body of the message at this offset of queue 0."""
    queue = MessageStore.open(str(root)).queue(topic, 0)
    (row,) = [
        row
        for batch in queue.read(number, number + 1, columns=["physicalOffset", "body"])
        for row in batch.to_pylist()
    ]
    (log,) = (root / "commitlog").iterdir()
    data = bytearray(log.read_bytes())
    data[data.index(row["body"], row["physicalOffset"] + 88)] ^= 1
    log.write_bytes(data)


def damaged_store(root: Path, messages: int = 3) -> Path:
    popped_store(root, messages, file_size=1 << 20)
    damage(root, 1)
    return root


def later(consumer: SimpleConsumer, clock: Clock, ms: int = 10_000) -> None:
    clock.ms += ms
    consumer._stores.keep()


def test_a_damaged_message_comes_again_until_somebody_acknowledges_it(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    root = damaged_store(tmp_path / "s")
    with _consumer(root, clock, max_attempts=2) as consumer:
        first = consumer.receive(3, 10)
        consumer.ack([first[0], first[2]])
        before = first[1]
        for attempt in (2, 3, 4):
            assert consumer.receive(3, 10) == []
            later(consumer, clock)
            (again,) = consumer.receive(3, 10)
            assert isinstance(again.error, ChecksumError)
            assert (again.topic, again.queue_id, again.offset) == (TOPIC, 0, 1)
            assert again.delivery_attempt == attempt  # no dead letter after two
            with pytest.raises(InvalidReceiptHandleError):
                consumer.ack(before)
            before = again
        assert read_group_offsets(Opened(str(root)), GROUP) == {(TOPIC, 0): 1}
        consumer.ack(before)
        metrics = consumer.metrics()
        assert (metrics.damaged, metrics.redelivered, metrics.dead_letters) == (4, 3, 0)
        later(consumer, clock, 100_000)
        assert consumer.receive(3, 10) == []
        assert read_group_offsets(Opened(str(root)), GROUP) == {(TOPIC, 0): 3}
    assert caplog.text.count("cannot be stored again, and are delivered again from their own place") == 1


def test_its_invisible_time_can_be_changed(tmp_path: Path, clock: Clock) -> None:
    root = damaged_store(tmp_path / "s")
    with _consumer(root, clock) as consumer:
        first = consumer.receive(3, 10)
        consumer.ack([first[0], first[2]])
        later(consumer, clock)
        (message,) = consumer.receive(2, 10)
        clock.ms += 1
        consumer.change_invisible_duration(message, 60)
        later(consumer, clock, 59_999)
        assert consumer.receive(2, 10) == []
        clock.ms += 1
        (message,) = consumer.receive(2, 10)
        clock.ms += 1
        consumer.change_invisible_duration(message, 0)
        (message,) = consumer.receive(2, 10)
        assert message.delivery_attempt == 4
        consumer.ack(message)


@pytest.mark.parametrize("ends", ["killed", "closed"])
def test_the_next_consumer_gets_it(tmp_path: Path, clock: Clock, ends: str) -> None:
    root = damaged_store(tmp_path / "s")
    before = _consumer(root, clock)
    before.ack(before.receive(3, 10)[0])
    if ends == "closed":
        before.close()
    else:
        later(before, clock)
        assert len(before.receive(3, 10) + before.receive(3, 10)) == 2
        before._stores.leave()
    clock.ms += 10_000
    with _consumer(root, clock) as consumer:
        later(consumer, clock)
        found = consumer.receive(3, 10) + consumer.receive(3, 10)
        assert sorted(each.error is not None for each in found) == [False, True]
        consumer.ack(found)
        later(consumer, clock, 100_000)
        assert consumer.receive(3, 10) == []
    assert read_group_offsets(Opened(str(root)), GROUP)[TOPIC, 0] == 3


def test_a_damaged_copy_in_the_retry_topic_comes_again_too(tmp_path: Path, clock: Clock) -> None:
    root = popped_store(tmp_path / "s", 2, file_size=1 << 20)
    with _consumer(root, clock) as consumer:
        consumer.receive(2, 10)
        later(consumer, clock)
        damage(root, 1, RETRY_TOPIC)
        for _ in range(3):
            found = consumer.receive(2, 10)
            consumer.ack([each for each in found if each.error is None])
            (again,) = (each for each in found if each.error is not None)
            assert again.receipt_handle.split(" ")[4] == "1"
            later(consumer, clock)
        (again,) = consumer.receive(2, 10)
        consumer.ack(again)
        later(consumer, clock)
        assert read_group_offsets(Opened(str(root)), GROUP)[RETRY_TOPIC, 0] == 2


def test_it_does_not_keep_back_other_messages(tmp_path: Path, clock: Clock) -> None:
    """Damaged messages come first in a fifth of the receives, and then behind the others."""
    root = popped_store(tmp_path / "s", 20, file_size=1 << 20)
    append_numbered(root, 80, first=20)
    for number in range(20):
        damage(root, number)
    with _consumer(root, clock) as consumer:
        assert len(consumer.receive(20, 10)) == 20
        later(consumer, clock)
        found = [consumer.receive(1, 3600)[0].error is None for _ in range(60)]
        assert 40 <= sum(found) <= 55
        while batch := consumer.receive(32, 3600):
            found += [each.error is None for each in batch]
        assert (sum(found), len(found)) == (80, 100)


def test_a_consumer_that_does_not_want_it_passes_over(tmp_path: Path, clock: Clock) -> None:
    root = damaged_store(tmp_path / "s", 3)
    with _consumer(root, clock) as consumer:
        consumer.ack([each for each in consumer.receive(3, 10) if each.error is None])
        later(consumer, clock)
    with SimpleConsumer(str(root), GROUP, {TOPIC: "Tag3"}, 0, clock_ms=clock, random=Random(1)) as other:
        other._stores.keeper.stop()
        later(other, clock)
        assert other.receive(3, 10) == []
        later(other, clock)
        assert read_group_offsets(Opened(str(root)), GROUP)[TOPIC, 0] == 3


def test_a_waiting_consumer_gets_it(tmp_path: Path) -> None:
    root = damaged_store(tmp_path / "s", 2)
    with (
        SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, 0, min_invisible_duration=0) as one,
        SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, 60, min_invisible_duration=0) as other,
    ):
        one.ack(one.receive(2, 0.2)[0])
        found: list[MessageView] = []
        thread = threading.Thread(target=lambda: found.extend(other.receive(1, 30)))
        began = time.monotonic()
        thread.start()
        thread.join(30)
        assert time.monotonic() - began < 20
        assert [each.offset for each in found] == [1]
        other.ack(found)


def test_views_show_its_deliveries(tmp_path: Path, clock: Clock) -> None:
    root = damaged_store(tmp_path / "s", 2)
    consumer = _consumer(root, clock)
    consumer.ack(consumer.receive(2, 10)[0])
    later(consumer, clock)
    store = rmq_spark.open(str(root))
    assert [row["queueOffset"] for row in store.view("inFlight").to_pylist()] == [1]
    (message,) = consumer.receive(2, 10)
    assert [row["inFlightMessages"] for row in store.view("lag").to_pylist()] == [1]
    consumer.ack(message)
    assert store.view("inFlight").to_pylist() == []
    consumer.close()

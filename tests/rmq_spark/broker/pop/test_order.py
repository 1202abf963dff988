"""Pop in order: one batch of a queue at a time, redelivered from the first message not acknowledged."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.pop import MessageView, SimpleConsumer
from store_format import MessageStore
from store_format.errors import InvalidReceiptHandleError
from store_format.metadata.group_offsets import read_group_offsets
from store_format.opened.store import Opened
from tests.support.popped import GROUP, TOPIC, Clock, popped_store


def _consumer(root: Path, clock: Clock, expression: str = "*", *, fifo: bool = True) -> SimpleConsumer:
    return SimpleConsumer(str(root), GROUP, {TOPIC: expression}, await_duration=0, clock_ms=clock, fifo=fifo)


def _offsets(messages: list[MessageView]) -> list[int]:
    return [message.offset for message in messages]


def test_a_queue_waits_for_its_batch(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 10), Clock()
    with _consumer(root, clock) as one, _consumer(root, clock) as other:
        batch = one.receive(3)
        assert _offsets(batch) == [0, 1, 2]
        assert [message.receipt_handle.split(" ")[3] for message in batch] == ["999"] * 3
        assert other.receive(3) == one.receive(3) == []
        one.ack([batch[2], batch[0]])
        assert other.receive(3) == []
        other.ack(batch[1].receipt_handle)
        assert _offsets(other.receive(4)) == [3, 4, 5, 6]


def test_redelivery_begins_at_the_first_message_not_acknowledged(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 10), Clock()
    with _consumer(root, clock) as consumer:
        batch = consumer.receive(4, 30)
        consumer.ack([batch[0], batch[2]])
        clock.ms += 29_999
        assert consumer.receive(4) == []
        clock.ms += 1
        again = consumer.receive(4, 30)
        assert _offsets(again) == [1, 2, 3, 4]  # 2 too: the broker reads the queue from 1
        assert [message.delivery_attempt for message in again] == [2, 2, 2, 1]
        with pytest.raises(InvalidReceiptHandleError, match="names no message that is in flight"):
            consumer.ack(batch[1])
        consumer.ack(again)
        assert _offsets(consumer.receive(32)) == [5, 6, 7, 8, 9]


def test_a_message_is_acknowledged_late_until_its_queue_is_read_again(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 3), Clock()
    with _consumer(root, clock) as consumer:
        (first,) = consumer.receive(1, 30)
        clock.ms += 60_000
        consumer.ack(first)
        assert _offsets(consumer.receive(1)) == [1]


def test_an_invisible_time_holds_the_queue(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 5), Clock()
    with _consumer(root, clock) as consumer:
        first, second = consumer.receive(2, 30)
        before = first.receipt_handle
        clock.ms += 10_000
        consumer.change_invisible_duration(second, 60)
        assert second.receipt_handle.split(" ")[2] == "70000"  # from the pop time on
        consumer.change_invisible_duration(first, 0)
        clock.ms += 59_999
        assert consumer.receive(2) == []
        clock.ms += 1
        assert _offsets(consumer.receive(2, 30)) == [0, 1]
        with pytest.raises(InvalidReceiptHandleError):
            consumer.ack(before)


def test_a_repeated_attempt_gets_its_messages_again(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 5), Clock()
    with _consumer(root, clock) as consumer:
        first = consumer.receive(2, attempt_id="a")
        assert consumer.receive(2, attempt_id="b") == []
        again = consumer.receive(2, attempt_id="a")
        assert _offsets(again) == _offsets(first) == [0, 1]
        assert [message.delivery_attempt for message in again] == [1, 1]
        consumer.ack(again)


def test_filtered_messages_do_not_hold_the_queue(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 40), Clock()
    found = []
    with _consumer(root, clock, "Tag1") as consumer:
        while batch := consumer.receive(3):
            assert consumer.receive(1) == []
            found += _offsets(batch)
            consumer.ack(batch)
    assert found == list(range(1, 40, 4))


def test_queues_are_independent(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 12, queues=3), Clock()
    with _consumer(root, clock) as consumer:
        found = [consumer.receive(2) for _ in range(3)]
        assert sorted((each[0].queue_id, _offsets(each)) for each in found) == [
            (queue, [0, 1]) for queue in range(3)
        ]
        consumer.ack(found[1])
        assert [(m.queue_id, m.offset) for m in consumer.receive(2)] == [
            (found[1][0].queue_id, offset) for offset in (2, 3)
        ]


def test_the_group_s_configuration_decides(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 4), Clock()
    (root / "config" / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"billing":{"groupName":"billing","consumeMessageOrderly":true}}}'
    )
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0, clock_ms=clock) as consumer:
        assert _offsets(consumer.receive(1)) == [0]
        assert consumer.receive(1) == []


def test_a_message_that_fails_too_often_lets_the_queue_go_on(tmp_path: Path) -> None:
    """It is stored as a dead letter when it would be delivered again, and the queue continues behind it."""
    root, clock = popped_store(tmp_path / "s", 4), Clock()
    with SimpleConsumer(
        str(root), GROUP, {TOPIC: "*"}, await_duration=0, clock_ms=clock, fifo=True, max_attempts=2
    ) as consumer:
        for _ in range(2):
            batch = consumer.receive(2, 30)
            assert _offsets(batch) == [0, 1]
            consumer.ack(batch[1])
            clock.ms += 30_000
        # 1 was acknowledged behind 0, which was not: both came again
        assert _offsets(consumer.receive(3, 30)) == [2]
        assert consumer.metrics().dead_letters == 2
        (queue,) = MessageStore.open(str(root)).queues(f"%DLQ%{GROUP}".__eq__)
        assert queue.max_offset == 2
    assert read_group_offsets(Opened(str(root)), GROUP)[TOPIC, 0] == 2


def test_a_waiting_consumer_is_woken_by_an_acknowledgement_and_by_time(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 3)
    options: dict[str, Any] = {"fifo": True, "min_invisible_duration": 0}
    with (
        SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=20, **options) as one,
        SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=20, **options) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        (first,) = one.receive(1, 60)
        waiting = threads.submit(other.receive, 1, 0.3)
        time.sleep(0.2)
        assert not waiting.done()
        begin = time.monotonic()
        one.ack(first)
        assert _offsets(waiting.result()) == [1]
        assert time.monotonic() - begin < 0.5  # milliseconds on an idle machine
        assert _offsets(one.receive(1, 60)) == [1]  # 0.3 s later: it was not acknowledged
        assert time.monotonic() - begin < 1.5

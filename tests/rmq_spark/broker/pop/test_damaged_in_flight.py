"""Damage of the in-flight log while one consumer lives and another one opens it, at the consumers."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from rmq_spark.broker.pop.message import MessageView
from rmq_spark.pop import SimpleConsumer
from store_format.errors import InvalidReceiptHandleError
from store_format.metadata.group_offsets import read_group_offsets
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory
from tests.store_format.pop.test_damaged_log import DAMAGE
from tests.support.popped import GROUP, TOPIC, popped_store

_COUNT = 240


def _consumer(root: Path) -> SimpleConsumer:
    return SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, 0.0)


def _ack(consumer: SimpleConsumer, messages: list[MessageView]) -> None:
    """A message whose hand-out was damaged is delivered again, and its handle is not valid."""
    for each in messages:
        with suppress(InvalidReceiptHandleError):
            consumer.ack(each)


def _numbers(messages: list[MessageView]) -> list[int]:
    return [int(each.body) for each in messages]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_leads_to_few_deliveries_and_no_loss(tmp_path: Path, kind: str) -> None:
    """What is below the offsets in consumerOffset.json never comes again, other messages once or twice."""
    root = popped_store(tmp_path / "s", _COUNT, queues=2)
    log = Path(in_flight_directory(Opened(str(root)), GROUP, TOPIC), "in-flight.log")
    live = _consumer(root)
    first = [message for _ in range(4) for message in live.receive(20, 60)]
    live.ack(first[:40])
    live._stores.keep()
    old = log.read_bytes()
    offsets = [read_group_offsets(Opened(str(root)), GROUP)]
    held = live.receive(30, 60)
    live.ack(held[:10])
    before = Counter(_numbers([*first, *held]))

    DAMAGE[kind](log, old)
    opener, after = _consumer(root), Counter[int]()
    opener.open()
    for _ in range(12):
        for consumer in (opener, live):
            messages = consumer.receive(32, 60)
            after.update(_numbers(messages))
            _ack(consumer, messages)
            consumer._stores.keep()
            offsets.append(read_group_offsets(Opened(str(root)), GROUP))
    _ack(live, [*first[40:], *held[10:]])

    assert (before | after).keys() == set(range(_COUNT))
    assert max(after.values()) <= 2
    settled = {message.queue_id: offsets[0][TOPIC, message.queue_id] for message in first}
    again = [each for each in first if int(each.body) in after and each.offset < settled[each.queue_id]]
    assert not again
    for key in settled:
        course = [each[TOPIC, key] for each in offsets]
        assert course == sorted(course), "an offset went back"
    assert not live.receive(32, 60)
    for each in (live, opener):
        each.close()
    assert os.path.getsize(log) > 0

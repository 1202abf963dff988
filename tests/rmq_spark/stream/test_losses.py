"""Losses of a stream: each is reported once, until a micro-batch begins behind it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.stream.stores import Losses
from store_format import MessageStore
from store_format.follow.log_tail import Replaced
from tests.support.staged import append, numbered


def test_a_queue_replaced_twice_in_the_same_way_is_reported_twice(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    append(root, numbered("T", 0, 8, queues=1))
    queue = MessageStore.open(str(root)).queue("T", 0)
    name, losses = MessageQueue.of(queue), Losses(fail_on_data_loss=False)
    with caplog.at_level(logging.WARNING, "rmq_spark"):
        for position in (5, 6):  # two looks before the micro-batch begins
            assert losses.replaced(name, position, queue, Replaced(stop=8, begin=0)) == 0
            losses.report()
        assert len(caplog.messages) == 1
        losses.forget_replaced()
        assert losses.replaced(name, 7, queue, Replaced(stop=8, begin=0)) == 0
        losses.report()
    assert [message.split(":")[0] for message in caplog.messages] == ["3 messages lost", "1 messages lost"]

"""The services beside Spark's writes in one process: both get the store's lock, and the delays fire."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rmq_spark.broker.services import schedule
from rmq_spark.broker.services.turn import TurnReport
from rmq_spark.services import Services
from store_format import MessageStore
from store_format.metadata.read import read_delay_offsets
from store_format.names import SCHEDULE_TOPIC
from store_format.opened.store import Opened
from tests.support.waiting import bodies

_ROWS = 200
_ENOUGH_SECONDS = 60.0  # for a backlog of a second, on a machine full of tests


@pytest.mark.slow
def test_delays_fire_beside_writes_of_the_same_process(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A level above the highest of `brokerConf` is lowered to the highest, here 2."""
    monkeypatch.setattr(schedule, "TURN_MESSAGES_MAX", 30)
    root, conf = tmp_path / "store", tmp_path / "broker.conf"
    conf.write_text("messageDelayLevel = 1s 2h\n")
    turns: list[TurnReport] = []
    # Turns of 30 messages: the backlog lasts longer than the writes.
    ahead_ms = 60_000
    with Services(
        str(root), 0.01, only=["schedule"], broker_conf=str(conf), on_turn=turns.extend,
        clock_ms=lambda: time.time_ns() // 1_000_000 + ahead_ms, apply=True,
    ):  # fmt: skip
        for first in (0, _ROWS):
            rows = spark.range(first, first + _ROWS).selectExpr(
                "'T' AS topic", "cast(id AS string) AS body", "if(id % 100 = 99, 18, 1) AS delayTimeLevel"
            )
            rows.write.format("rmqlog").option("brokerConf", str(conf)).mode("append").save(str(root))
        deadline = time.monotonic() + _ENOUGH_SECONDS
        while bodies(root, "T").total() < 2 * _ROWS * 99 // 100:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert [each.errors for each in turns if each.errors] == []
    assert bodies(root, "T") == Counter(str(n).encode() for n in range(2 * _ROWS) if n % 100 != 99)
    waiting = MessageStore.open(str(root)).queue(SCHEDULE_TOPIC, 1)
    assert waiting.max_offset == 4
    assert read_delay_offsets(Opened(str(root))) == {1: 396, 2: 0}
    assert MessageStore.open(str(root)).diagnose().of("damage", "warning") == []

"""The lag of a group while its consumers work, after they have closed, and when they come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmq_spark.cli.main import main
from rmq_spark.consume.lag import group_lag
from rmq_spark.pop import SimpleConsumer
from store_format.store import MessageStore
from tests.support.popped import GROUP, TOPIC, popped_store


def _lag(root: Path) -> tuple[object, ...]:
    [row] = group_lag([MessageStore.open(str(root))], GROUP).to_pylist()
    names = ("lagMessages", "readyMessages", "inFlightMessages", "oldestPopTimestamp", "lagBytes")
    return tuple(row[name] for name in names)


def _in_flight(root: Path) -> dict[int, Any]:
    rows = MessageStore.open(str(root)).view("inFlight").to_pylist()
    return {row["queueOffset"]: (row["popTimestamp"], row["visibleTimestamp"]) for row in rows}


@pytest.mark.process
def test_a_hand_over_changes_no_number(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "store", 20)
    with SimpleConsumer(str(root), GROUP, {TOPIC: "Tag0 || Tag1"}, await_duration=1) as consumer:
        messages = consumer.receive(max_message_num=5, invisible_duration=60)
        assert [message.offset for message in messages] == [0, 1, 4, 5, 8]
        assert _lag(root)[:3] == (16, 11, 5)  # what no subscription matches is consumed
        consumer.ack(messages[:2])
        consumer.change_invisible_duration(messages[2], 120)
        lag, in_flight = _lag(root), _in_flight(root)
        assert lag[:3] == (14, 11, 3)
        assert list(in_flight) == [4, 5, 8]
        assert lag[3] == in_flight[5][0] < in_flight[4][0]
    assert (_lag(root), _in_flight(root)) == (lag, in_flight)  # by the records for a broker
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=1) as consumer:
        assert (_lag(root), _in_flight(root)) == (lag, in_flight)  # taken over from them
        consumer.ack(consumer.receive(max_message_num=32, invisible_duration=60))
        assert _lag(root)[:3] == (3, 0, 3)
    assert list(_in_flight(root)) == [4, 5, 8]


@pytest.mark.process
def test_the_table_of_lag_has_the_columns_of_pop_only_with_messages_in_flight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = popped_store(tmp_path / "store", 20)
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=1) as consumer:
        messages = consumer.receive(max_message_num=5, invisible_duration=60)
        assert main(["lag", str(root)]) == 0
        names = capsys.readouterr().out.split("\n")[0].split()
        assert names[2:6] == ["lagMessages", "readyMessages", "inFlightMessages", "oldestPopTimestamp"]
        assert main(["lag", str(root), "-l"]) == 0
        names = capsys.readouterr().out.split("\n")[0].split()
        assert names[5:9] == ["lagMessages", "readyMessages", "inFlightMessages", "oldestPopTimestamp"]
        consumer.ack(messages)
        assert main(["lag", str(root)]) == 0
        names = capsys.readouterr().out.split("\n")[0].split()
        assert names[2:4] == ["lagMessages", "lagBytes"]
        assert main(["lag", str(root), "-l"]) == 0
        assert "oldestPopTimestamp" not in capsys.readouterr().out

"""Lag wherever a group's offsets are, from Spark's progress, and what follows from two tables: unknown stays
apart from 0.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.lag import (
    CatchUp,
    catch_up,
    catch_up_table,
    group_lag,
    lag_from_progress,
    nodes_needed,
    threads_per_node,
)
from rmq_spark.consume.offset_store import LocalOffsets
from store_format import MessageStore
from store_format.display.columns import batch_of, schema_of
from store_format.errors import OptionError
from store_format.views.lag import LAG_COLUMNS, lag_table
from tests.support import goldens
from tests.support.fixtures import Golden

NOW = 1_800_000_000_000


def test_the_brokers_own_offsets(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    found = group_lag([store], "CG_some", now_ms=NOW)
    assert found.equals(lag_table(store, "CG_some", now_ms=NOW))
    committed = goldens.expected("basic-5.5.0")["consumerOffset"]["offsetTable"]["Orders@CG_some"]
    rows = {row["queueId"]: row for row in found.to_pylist() if row["topic"] == "Orders"}
    assert {queue: row["committedOffset"] for queue, row in rows.items()} == {
        int(queue): n for queue, n in committed.items()
    }
    for row in rows.values():
        queue = store.queue("Orders", row["queueId"])
        assert row["lagMessages"] == queue.max_offset - row["committedOffset"] > 0
        messages = pa.Table.from_batches(
            queue.read(row["committedOffset"], columns=["storeSize", "storeTimestampMs"])
        ).to_pylist()
        assert row["lagBytes"] == sum(message["storeSize"] for message in messages)
        assert row["lagMs"] == NOW - messages[0]["storeTimestampMs"]


def test_a_group_whose_offsets_are_local_and_on_a_cluster(golden: Golden, tmp_path: Path) -> None:
    roots = [Path(root) for root, _ in goldens.brokers("cluster-5.5.0", golden("cluster-5.5.0")).values()]
    stores = [MessageStore.open(str(root)) for root in roots]
    offsets = LocalOffsets(str(tmp_path / "offsets.json"))
    queue = max(
        stores[1].queues(lambda topic: not topic.startswith(("%", "rmq_sys"))),
        key=lambda queue: queue.max_offset,
    )
    at = MessageQueue(queue.topic, stores[1].broker_name, queue.queue_id)
    assert queue.max_offset > 1
    offsets.save({at: 1})
    found = group_lag(stores, "mine", offsets, now_ms=NOW).to_pylist()
    own = [row for row in found if row["committedOffset"] is not None]
    assert [(row["brokerName"], row["topic"], row["queueId"]) for row in own] == [
        (at.broker_name, at.topic, at.queue_id)
    ]
    assert own[0]["lagMessages"] == queue.max_offset - 1
    # Other queues of the topic: nobody knows where the group stands there.
    assert all(
        (row["lagMessages"], row["lagBytes"], row["lagMs"]) == (None, None, None)
        for row in found
        if row not in own
    )
    assert group_lag([], "mine").schema == schema_of(LAG_COLUMNS)


# ---- progress ----------------------------------------------------------------------------------------------

END = {"T": {"b": {"0": 5, "1": 7, "10": 3}}, "$from": {"T": {"b": {"1": 6}}}}
LATEST = {"T": {"b": {"0": 9, "1": 7, "2": 4}}}


@pytest.mark.parametrize("as_text", [False, True])
def test_spark_progress_is_the_same_table(as_text: bool) -> None:
    source = {
        "description": "rmqlog",
        "endOffset": json.dumps(END) if as_text else END,
        "latestOffset": LATEST,
    }
    kafka = {"description": "kafka", "endOffset": {"other": {"0": 23}}, "latestOffset": None}
    rate = {"description": "rate", "endOffset": 5, "latestOffset": None}
    table = lag_from_progress(json.dumps({"id": "x", "sources": [source, kafka, rate]}), group="g")
    assert table.schema == schema_of(LAG_COLUMNS)
    shown = [
        (row["queueId"], row["committedOffset"], row["maxOffset"], row["lagMessages"])
        for row in table.to_pylist()
    ]
    assert shown == [(0, 5, 9, 4), (1, 7, 7, 0), (2, None, 4, None), (10, 3, None, None)]
    assert {
        (row["brokerName"], row["group"], row["topic"], row["lagBytes"], row["lagMs"])
        for row in table.to_pylist()
    } == {("b", "g", "T", None, None)}


def test_a_query_that_has_not_begun_has_no_rows() -> None:
    assert lag_from_progress({"sources": [{"endOffset": None, "latestOffset": None}]}).num_rows == 0


@pytest.mark.parametrize("text", ["", "[]", "5", "{}", '{"sources":5}', '{"sources":[5]}', "[" * 100_000])
def test_what_is_no_progress(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        lag_from_progress(text)
    assert "expected the JSON of a StreamingQueryProgress" in str(caught.value)


# ---- catching up -------------------------------------------------------------------------------------------


def test_when_a_group_has_caught_up() -> None:
    assert catch_up(6000, 300.0, 100.0) == CatchUp(6000, 300.0, 100.0, 30.0)
    assert (
        str(catch_up(6000, 100.0, 100.0))
        == "6,000 messages behind, 100.0 read and 100.0 written a second: it never catches up"
    )
    assert catch_up(6000, None, 100.0).seconds is None
    assert "the rates are unknown" in str(catch_up(6000, None, 100.0))
    assert catch_up(0, 0.0, 100.0).seconds == 0.0
    assert str(catch_up(0, None, None)) == "no backlog"


@given(st.integers(0, 10**12), st.integers(0, 10**6), st.integers(0, 10**6))
def test_after_that_time_nothing_is_left(backlog: int, consumption: int, production: int) -> None:
    found = catch_up(backlog, consumption, production)
    if found.seconds is None:
        assert backlog > 0
        assert consumption <= production
    else:
        assert (consumption - production) * found.seconds == pytest.approx(backlog)


def test_a_rate_that_is_next_to_nothing_never_gets_there() -> None:
    assert catch_up(2, 1e-308, 0.0).seconds is None


def _lag(*rows: tuple[str, int, int | None, int | None]) -> pa.Table:
    """(group, queue, committed, max)."""
    names = [column.name for column in LAG_COLUMNS]
    values = []
    for group, queue_id, committed, high in rows:
        lag = None if committed is None or high is None else high - committed
        known = {
            "brokerName": "b", "group": group, "topic": "T", "queueId": queue_id,
            "committedOffset": committed,
        }  # fmt: skip
        known |= {"maxOffset": high, "lagMessages": lag}
        values.append([known.get(name) for name in names])
    return pa.Table.from_batches([batch_of(LAG_COLUMNS, values)])


def test_two_tables_tell_rates_and_the_moment() -> None:
    before = _lag(
        ("fast", 0, 100, 200), ("fast", 1, 0, 50), ("slow", 0, 10, 200), ("done", 0, 5, 5),
        ("blind", 0, None, 9), ("new", 0, 1, 2),
    )  # fmt: skip
    after = _lag(
        ("fast", 0, 150, 210), ("fast", 1, 50, 50), ("slow", 0, 15, 210), ("done", 0, 5, 5),
        ("blind", 0, None, 9), ("new", 0, 1, 2), ("new", 1, 4, 9),
    )  # fmt: skip
    found = {row["group"]: row for row in catch_up_table(before, after, 10.0, now_ms=NOW).to_pylist()}
    shown = {name: tuple(row.values())[1:6] for name, row in found.items()}
    assert shown == {
        "fast": (60, 10.0, 1.0, True, pytest.approx(60 / 9)),
        "slow": (195, 0.5, 1.0, False, None),
        "done": (0, 0.0, 0.0, True, 0.0),
        "blind": (None, None, 0.0, None, None),
        "new": (6, None, None, None, None),
    }
    assert found["fast"]["caughtUpAt"].timestamp() * 1000 == NOW + round(60_000 / 9)
    assert found["slow"]["caughtUpAt"] is None
    with pytest.raises(OptionError):
        catch_up_table(before, after, 0)


# ---- sizing ------------------------------------------------------------------------------------------------


def test_the_sizing_formula() -> None:
    assert threads_per_node(4, 5, 45) == 40
    assert threads_per_node(8, 10, 0) == 8
    assert threads_per_node(1, 100, 1) == 1
    assert nodes_needed(10_000, 3_000) == 4
    assert nodes_needed(0, 3_000) == 1
    for arguments in [(0, 1, 1), (1, 0, 1), (1, 1, -1), (1, float("nan"), 1), (1, 1, float("inf"))]:
        with pytest.raises(OptionError):
            threads_per_node(*arguments)
    for rates in [(1.0, 0.0), (-1.0, 1.0), (float("inf"), 1.0)]:
        with pytest.raises(OptionError):
            nodes_needed(*rates)

"""Cells that read: batches, SQL, views, all stores, and the errors of a read."""

from __future__ import annotations

from functools import partial
from typing import Any

import rmq_spark
from rmq_spark.plan.output_fields import COLUMN_TABLE
from store_format import MessageStore
from store_format.views.registry import VIEWS
from tests.sparks.cells import STORE, TOPIC, Case, Seen, cell, digest, of_topic, refusal, told_places, works
from tests.support import goldens
from tests.support.conformance import NAMES, differences, expected, rows_of

_VIEW_STORE = "delay-tx-5.5.0"
_AGES = {"lagMs", "ageMs", "dueInMs", "expiresInMs", "state"}  # depend on the moment


@cell("Spark finds the format without `register`, and `register` works twice")
def register(case: Case) -> Seen:
    found = case.read(case.golden(STORE), subscribe=TOPIC).count()
    rmq_spark.register(case.spark)
    rmq_spark.register(case.spark)
    count = case.read(case.golden(STORE), subscribe=TOPIC).count()
    assert found == count == len(told_places(of_topic))
    return works(rows=count)


@cell("batch read")
def batch(case: Case) -> Seen:
    frame = case.read(case.golden(STORE), subscribe=TOPIC)
    rows = [tuple(row) for row in frame.select("topic", "queueId", "queueOffset").collect()]
    places = told_places(of_topic)
    assert sorted(rows) == places
    one = frame.where("queueId = 1 AND tags = 'BB'").count()
    told = goldens.expected_rows(STORE)
    assert one == sum(
        of_topic(row) and row["queueId"] == 1 and row["properties"].get("TAGS") == "BB" for row in told
    )
    return works(rows=len(rows), digest=digest(sorted(rows)), filtered=one)


@cell("types of all columns", brief=True)
def types(case: Case) -> Seen:
    root = case.golden(STORE)
    names = [column.name for column in COLUMN_TABLE]
    frame = case.read(root, columns=",".join(names), mode="PERMISSIVE", includeSystemTopics="true")
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == {
        column.name: column.ddl.lower() for column in COLUMN_TABLE
    }
    rows = [_as_told(row.asDict()) for row in frame.collect()]
    assert {row.pop("_corrupt_record") for row in rows} == {None}
    told = expected(STORE, root)
    assert differences(rows, told) == []
    return works(rows=len(rows), columns=len(names), schema=digest([frame.schema.simpleString()]))


def _as_told(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `collect()` with the types of the broker's row: times as microseconds, bytes as bytes."""
    from datetime import datetime, timedelta

    for name, value in row.items():
        if isinstance(value, datetime):
            row[name] = (value - datetime(1970, 1, 1)) // timedelta(microseconds=1)
        elif isinstance(value, bytearray):
            row[name] = bytes(value)
    return row


@cell("rows of every store of a broker, all columns")
def stores(case: Case) -> Seen:
    digests = {}
    for name in goldens.NAMES:
        root = case.golden(name)
        frame = case.read(root, includeSystemTopics="true", columns=",".join(NAMES))
        rows, told = rows_of(frame.toArrow()), expected(name, root)
        assert differences(rows, told) == [], name
        assert len(rows) == len(told) > 0
        digests[name] = f"{len(rows)} rows, {digest(rows)}"
    return works(**digests)


@cell("SQL table with options")
def table(case: Case) -> Seen:
    path = case.golden(STORE)
    case.spark.sql(f"CREATE TABLE orders USING rmqlog OPTIONS (path '{path}', subscribe '{TOPIC}')")
    return _counted(case, "orders")


@cell("SQL temporary view with options")
def temporary_view(case: Case) -> Seen:
    path = case.golden(STORE)
    case.spark.sql(
        f"CREATE TEMPORARY VIEW orders_view USING rmqlog OPTIONS (path '{path}', subscribe '{TOPIC}')"
    )
    return _counted(case, "orders_view")


def _counted(case: Case, name: str) -> Seen:
    rows = case.spark.sql(
        f"SELECT queueId, count(*), sum(queueOffset) FROM {name} GROUP BY queueId"
    ).collect()
    found = sorted(tuple(row) for row in rows)
    places = told_places(of_topic)
    queues = sorted({queue for _, queue, _ in places})
    of_queue = {queue: [offset for _, at, offset in places if at == queue] for queue in queues}
    assert found == [(queue, len(of_queue[queue]), sum(of_queue[queue])) for queue in queues]
    return works(rows=len(places), digest=digest(found))


@cell('views (`option("view", …)`), each kind')
def views(case: Case) -> Seen:
    root = case.golden(_VIEW_STORE)
    store = MessageStore.open(str(root))
    counts = {}
    for view in VIEWS:
        frame = case.read(root, view=view.name)
        told = store.view(view.name)
        assert frame.columns == told.schema.names, view.name
        rows = [row.asDict() for row in frame.collect()]
        assert _without_ages(rows) == _without_ages(told.to_pylist()), view.name
        counts[view.name] = len(rows)
    return works(**counts)


def _without_ages(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Times as Spark returns them in a session in UTC."""
    return [
        {
            name: value.replace(tzinfo=None) if hasattr(value, "tzinfo") else value
            for name, value in row.items()
            if name not in _AGES
        }
        for row in rows
    ]


@cell("errors of a read: one sentence at `load()`, no traceback")
def errors(case: Case) -> Seen:
    root = case.golden(STORE)
    wrong = {
        "option": {"subscripe": TOPIC},
        "value": {"failOnDataLoss": "no"},
        "together": {"subscribe": TOPIC, "subscribePattern": "O.*"},
        "view": {"view": "lags"},
        "column": {"columns": "queueOfset"},
    }
    found = {name: refusal(partial(case.read, root, **given)) for name, given in wrong.items()}
    assert found["option"] == "unknown option 'subscripe'; did you mean subscribe?"
    assert found["value"] == "failOnDataLoss: expected true or false, found 'no'"
    assert found["column"].startswith("columns: unknown column 'queueOfset'; did you mean queueOffset?")
    topic = refusal(lambda: case.read(root, subscribe="Order").collect())
    assert topic == "no store has a topic 'Order'; did you mean Orders?"
    missing = case.base / "missing"
    store = refusal(lambda: case.read(missing).collect(), "StoreNotFoundError")
    assert str(missing) in store
    return works(**found, topic=topic)

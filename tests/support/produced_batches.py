"""Batches and producers for the tests of `produce`: one place for clock, hosts and routes."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa

from rmq_spark.produce.messages import ProducedMessages, Producer, ProducerSettings
from rmq_spark.produce.queues import ROUNDROBIN, QueueSelector, Routes, StoreTopics
from rmq_spark.produce.unique_ids import UniqueIds
from store_format.message.encode import EncodedUnits, encode
from store_format.metadata.values import TopicConfig
from tests.support import oracle
from tests.support.oracle import Message

NOW_MS = 1_700_000_000_123
BORN_HOST = (bytes([127, 0, 0, 1]), 4711)
STORE_HOST = (bytes([127, 0, 0, 1]), 10911)
MAP = pa.map_(pa.string(), pa.string())


def batch_of(**columns: Any) -> pa.RecordBatch:
    """Lists become arrays, maps are lists of dicts; everything else is an array already."""
    arrays = {
        name: values if isinstance(values, pa.Array) else _array(name, values)
        for name, values in columns.items()
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), list(arrays))


def _array(name: str, values: list[Any]) -> pa.Array:
    if name == "properties":
        return pa.array([None if value is None else list(value.items()) for value in values], MAP)
    if name == "body":
        return pa.array(values, pa.binary())
    return pa.array(values)


def routes_of(*topics: TopicConfig, **settings: Any) -> Routes:
    return Routes.of([StoreTopics("broker-a", {config.topic_name: config for config in topics})], **settings)


def producer(
    routes: Routes | None = None,
    *,
    selector: str = ROUNDROBIN,
    seed: int = 7,
    partition: int | None = None,
    **settings: Any,
) -> Producer:
    ids = UniqueIds(bytes([127, 0, 0, 1]), 1, instance=b"\x01\x4a\xe5\xa5")
    queues = QueueSelector(routes or routes_of(), selector, seed=seed)
    return Producer(ProducerSettings(BORN_HOST, **settings), queues, ids, partition=partition)


def produce(batch: pa.RecordBatch, routes: Routes | None = None, **settings: Any) -> ProducedMessages:
    return producer(routes, **settings).produce(batch, NOW_MS)


def decoded(messages: ProducedMessages) -> list[Message]:
    """As the oracle reads the encoded units."""
    units: EncodedUnits = encode(messages.columns(STORE_HOST))
    return [oracle.decode_message(unit, 0, 0) for unit in units]


def message_of(**columns: Any) -> Message:
    """The one message of one row with these values; topic and body are given when they are not."""
    row = {"topic": "TopicTest", "body": b"hello"} | columns
    (message,) = decoded(
        produce(
            batch_of(
                **{name: value if isinstance(value, pa.Array) else [value] for name, value in row.items()}
            )
        )
    )
    return message


def unplaced(error: BaseException) -> str:
    """What an error about a row says, without the row's number and content, which have tests of their own."""
    return re.sub(r"^(topic \S+), row \d+(?: \((?:keys|body) b?(['\"]).*?\2…?\))?:", r"\1:", str(error))

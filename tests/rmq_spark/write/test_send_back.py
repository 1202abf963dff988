"""Rows of the write option sendBack: their places, the stores that they name, and the commit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rmq_spark.options.write_options import parse_write_options
from rmq_spark.write.send_back import check_place_columns, collect_places, commit_send_back
from rmq_spark.write.target import WriteTarget, open_target
from store_format import MessageStore
from store_format.arrays.sql_types import type_name
from store_format.errors import (
    IllegalMessageError,
    OffsetOutOfRangeError,
    OptionError,
    StoreError,
    StoreInUseError,
    StoreNotFoundError,
)
from tests.support import goldens
from tests.support.stored_rows import rows_in

DELAYED = "SCHEDULE_TOPIC_XXXX"
PLACE = {"storedTopic": "Jobs", "queueId": 1, "queueOffset": 3}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return goldens.unpack("retry-dlq-5.5.0", tmp_path / "store")


def target_of(path: Path, **options: str) -> WriteTarget:
    return open_target(parse_write_options({"path": str(path), "sendBack": "CG", **options}))


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(rows))


def check(target: WriteTarget, batch: pa.RecordBatch) -> None:
    check_place_columns([(field.name, type_name(field.type)) for field in batch.schema], target)


def send(path: Path, *batches: pa.RecordBatch, key: tuple[str, int] | None = None, **options: str) -> None:
    target = target_of(path, **options)
    commit_send_back(target, [collect_places(target, batches)], key)


def waiting(path: Path) -> list[tuple[bytes, int]]:
    """(body, reconsumeTimes) of the messages that wait for their retry."""
    rows = rows_in(path, "body", "reconsumeTimes", topic=DELAYED)
    return [(row["body"], row["reconsumeTimes"]) for row in rows]


def test_places_in_any_case_and_beside_other_columns(path: Path) -> None:
    before = len(waiting(path))
    rows = batch_of(
        {"STOREDTOPIC": None, "Topic": "Jobs", "queueid": 1, "queueOffset": 3, "error": [1]},
        {"STOREDTOPIC": "%RETRY%CG_fail", "Topic": "Jobs", "queueid": 0, "queueOffset": 2, "error": [2]},
    )
    check(target_of(path), rows)
    send(path, rows, rows)
    # A row that is there twice counts once. The second message waits at level 4, after level 3.
    assert [times for _, times in waiting(path)[before:]] == [1, 2]


def test_no_failed_row_is_no_message(path: Path) -> None:
    before = waiting(path)
    send(path)
    send(path, batch_of(PLACE).slice(0, 0), key=("job", 1))
    assert waiting(path) == before
    with pytest.raises(OptionError, match="is committed already"):
        send(path, batch_of(PLACE), key=("job", 1))


@pytest.mark.parametrize(
    ("row", "error", "what"),
    [
        ({"queueId": None}, IllegalMessageError, "row 1 of partition 7: expected the queueId .* found null"),
        ({"queueOffset": None}, IllegalMessageError, "row 1 of partition 7: expected the queueOffset"),
        ({"storedTopic": None}, IllegalMessageError, "row 1 of partition 7: expected the storedTopic"),
        ({"brokerName": "other"}, IllegalMessageError,
         "row 1 of partition 7: expected a message of the broker 'broker-a', found 'other'"),
    ],
)  # fmt: skip
def test_a_row_without_a_place(path: Path, row: dict[str, Any], error: type[StoreError], what: str) -> None:
    target = target_of(path)
    batches = [batch_of(PLACE | {"brokerName": None}), batch_of(PLACE | {"brokerName": None} | row)]
    with pytest.raises(error, match=what):
        collect_places(target, batches, partition=7)


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"storedTopic": "T", "queueOffset": 1}, "expected the column queueId of the message, found no such"),
        ({"queueId": 1, "queueOffset": 1}, "expected the column storedTopic or topic"),
        ({"topic": 3, "queueId": 1, "queueOffset": 1}, "column topic: expected string, found bigint"),
        ({"topic": "T", "queueId": "1", "queueOffset": 1}, "column queueId: expected bigint, found string"),
        ({"topic": "T", "TOPIC": "T", "queueId": 1, "queueOffset": 1}, "expected the column topic once"),
    ],
)
def test_wrong_columns(path: Path, row: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        check(target_of(path), batch_of(row))


def test_there_must_be_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match="expected the store of the messages to send back"):
        check(target_of(tmp_path / "none"), batch_of(PLACE))


def test_a_committed_batch_is_not_sent_back_again(path: Path) -> None:
    """Also if retention has deleted its messages meanwhile."""
    before = len(waiting(path))
    send(path, batch_of(PLACE), key=("job", 4))
    send(path, batch_of(PLACE), key=("job", 4))
    send(path, batch_of(PLACE | {"queueOffset": 99}), key=("job", 4))
    assert len(waiting(path)) == before + 1
    assert list(Path(path, ".rmqlog", "staging").glob("*/*")) == []
    with pytest.raises(OffsetOutOfRangeError, match="topic Jobs, queue 1, offset 99"):
        send(path, batch_of(PLACE | {"queueOffset": 99}), key=("job", 5))
    with pytest.raises(OptionError, match="is committed already, with 1 messages"):
        send(path, batch_of(PLACE, PLACE | {"queueOffset": 4}), key=("job", 4))


def test_a_stream_may_repeat_a_batch_with_other_failures(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the committed batch each message succeeded or was sent back, so the query must go on."""
    before = len(waiting(path))
    target = target_of(path)
    for offsets in ([3], [3, 4], []):
        rows = [batch_of(PLACE | {"queueOffset": offset}) for offset in offsets]
        commit_send_back(target, [collect_places(target, rows)], ("query", 4), keeps_key=True)
    assert len(waiting(path)) == before + 1
    assert "2 failed messages are not sent back: batch ('query', 4) is committed already" in caplog.text


def test_each_row_goes_back_to_its_broker(tmp_path: Path) -> None:
    path = goldens.unpack("cluster-5.5.0", tmp_path / "cluster")
    brokers = [store for store in sorted(path.iterdir()) if store.is_dir()]
    rows: list[dict[str, Any]] = []
    for root in brokers:
        store = MessageStore.open(str(root))
        queue = next(
            queue for queue in store.queues() if not queue.topic.startswith(("%", "SCHEDULE", "rmq"))
        )
        rows.append(
            {
                "brokerName": store.broker_name,
                "topic": queue.topic,
                "queueId": queue.queue_id,
                "queueOffset": 0,
            }
        )
    before = [len(waiting(root)) for root in brokers]
    with pytest.raises(IllegalMessageError, match="row 0: expected the brokerName of a stored message"):
        send(path, batch_of(rows[0] | {"brokerName": None}))
    with pytest.raises(OptionError, match="expected the column brokerName"):
        check(target_of(path), batch_of({"topic": "T", "queueId": 0, "queueOffset": 0}))
    send(path, batch_of(*rows))
    assert [len(waiting(root)) - count for root, count in zip(brokers, before, strict=True)] == [1, 1]
    target = target_of(path)
    closed = replace(target, stores=(target.stores[0], replace(target.stores[1], closed="in use")))
    assert collect_places(closed, [batch_of(rows[0])]).num_rows == 1
    with pytest.raises(StoreInUseError, match="takes no messages now: in use"):
        collect_places(closed, [batch_of(*rows)])

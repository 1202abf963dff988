"""Spark's writers, batch and stream. Tasks stage, the driver commits; both only pass on to `writing`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from rmq_spark.plan.garbage import modules_frozen
from rmq_spark.spark.compat import DataSourceStreamArrowWriter
from rmq_spark.spark.short_errors import short_errors
from rmq_spark.write.send_back import collect_places, commit_send_back
from rmq_spark.write.stage_and_commit import Staged, abort_write, commit_write, stage_rows
from rmq_spark.write.target import WriteTarget
from store_format.errors import OptionError

_QUERY_ID = "sql.streaming.queryId"


@dataclass
class StagedMessage(WriterCommitMessage):
    """A task's message to the driver. It holds all that a commit needs: Spark commits with a new writer."""

    target: WriteTarget
    staged: Staged | pa.Table  # with sendBack and decisions: what the rows name
    query_id: str | None = None


class RmqLogWriter(DataSourceArrowWriter):
    """The writer of `df.write.format("rmqlog").mode("append")`: all messages are written, or none.

    With `txnAppId` and `txnVersion` they are written once, also if the write is repeated. Inside foreachBatch
    Spark shows the ids of the stream; they are no key, because the second of two writes in one batch
    would be skipped.
    """

    def __init__(self, target: WriteTarget) -> None:
        self._target = target  # plain values only

    @short_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        options = self._target.options
        option = (
            "sendBack" if options.send_back else "transaction" if options.transaction is not None else None
        )
        if option is not None and options.txn is None and _query_id() is not None:
            raise OptionError(
                f"{option} inside foreachBatch: expected txnAppId and txnVersion, found neither. Spark may "
                "repeat a batch, and would send its messages twice: give the query a txnAppId, and the batch "
                "id as txnVersion"
            )
        return _staged_rows(self._target, iterator)

    @short_errors
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        found = _staged(messages)
        in_stream = any(message.query_id is not None for message in found)  # inside foreachBatch
        _commit(self._target, found, self._target.options.txn, keeps_key=in_stream)

    @short_errors
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_write(self._target)


class RmqLogStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream.format("rmqlog")`.

    Each (query id, batch id) is written once: a batch that Spark repeats is found in the store's ledger.
    """

    def __init__(self, target: WriteTarget) -> None:
        self._target = target

    @short_errors
    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return _staged_rows(self._target, iterator)

    @short_errors
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = _staged(messages)
        if not found:
            return  # an empty batch: Spark runs no task, and a repetition is empty too
        query_id = found[0].query_id
        assert query_id is not None
        _commit(found[0].target, found, (query_id, batchId), keeps_key=True)

    @short_errors
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = _staged(messages)
        abort_write(found[0].target if found else self._target)


def _staged_rows(target: WriteTarget, rows: Iterator[pa.RecordBatch]) -> StagedMessage:
    """Runs in a task."""
    task = TaskContext.get()
    assert task is not None
    if target.options.send_back is not None:
        stage = collect_places
    elif target.options.decides:
        from rmq_spark.broker import collect_names

        stage = collect_names
    else:
        stage = stage_rows
    with modules_frozen():
        staged = stage(target, rows, partition=task.partitionId())
    return StagedMessage(target, staged, _query_id())


def _query_id() -> str | None:
    """The id of the stream, in a task; also inside foreachBatch. None in a batch job."""
    task = TaskContext.get()
    return None if task is None else task.getLocalProperty(_QUERY_ID)


def _commit(
    target: WriteTarget, messages: list[StagedMessage], key: tuple[str, int] | None, *, keeps_key: bool
) -> None:
    staged = [message.staged for message in messages]
    if target.options.send_back is not None:
        commit_send_back(target, staged, key, keeps_key=keeps_key)
    elif target.options.decides:
        from rmq_spark.broker import commit_decisions

        commit_decisions(target, staged, key, keeps_key=keeps_key)
    else:
        commit_write(target, staged, key, keeps_key=keeps_key)


def _staged(messages: list[WriterCommitMessage | None]) -> list[StagedMessage]:
    return [message for message in messages if isinstance(message, StagedMessage)]

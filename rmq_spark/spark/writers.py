"""Spark's writers, batch and stream. Tasks stage, the driver commits; both only pass on to `writing`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from rmq_spark.write.stage_and_commit import Staged, abort_write, commit_write, stage_rows
from rmq_spark.write.target import WriteTarget

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


@dataclass
class StagedMessage(WriterCommitMessage):
    """What a task tells the driver. For stream commits Spark makes a new writer, so everything is in here."""

    target: WriteTarget
    staged: Staged
    query_id: str | None = None


class RmqLogWriter(DataSourceArrowWriter):
    """`df.write.format("rmqlog").mode("append")`. All or nothing; once only with `txnAppId` and `txnVersion`.

    The stream's ids that Spark shows inside foreachBatch are not a key here: two writes of one batch would
    swallow each other.
    """

    def __init__(self, target: WriteTarget) -> None:
        self._target = target  # plain values only

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return _staged_rows(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        found = _staged(messages)
        in_stream = any(message.query_id is not None for message in found)  # in foreachBatch
        commit_write(
            self._target, [message.staged for message in found], self._target.options.txn, keeps_key=in_stream
        )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort_write(self._target)


class RmqLogStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("rmqlog")`. Each batch once for each (query id, batch id): a replay finds it in
    the ledger.
    """

    def __init__(self, target: WriteTarget) -> None:
        self._target = target

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedMessage:
        return _staged_rows(self._target, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = _staged(messages)
        if not found:
            return  # an empty batch: Spark runs no task, and a replay is as empty
        query_id = found[0].query_id
        assert query_id is not None
        commit_write(
            found[0].target, [message.staged for message in found], (query_id, batchId), keeps_key=True
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        found = _staged(messages)
        abort_write(found[0].target if found else self._target)


def _staged_rows(target: WriteTarget, rows: Iterator[pa.RecordBatch]) -> StagedMessage:
    """In a task. The query id is that of the stream which the task is a part of, also in foreachBatch; None
    in a batch job.
    """
    task = TaskContext.get()
    assert task is not None
    return StagedMessage(
        target, stage_rows(target, rows, partition=task.partitionId()), task.getLocalProperty(_QUERY_ID)
    )


def _staged(messages: list[WriterCommitMessage | None]) -> list[StagedMessage]:
    return [message for message in messages if isinstance(message, StagedMessage)]

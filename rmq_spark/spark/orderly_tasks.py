"""The tasks of an orderly query: each gives the rows of its partition to the handler, and reports.

A module of its own, because every Python worker imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter

import pyarrow as pa
from pyspark.errors import PySparkAttributeError, PySparkNotImplementedError
from pyspark.sql import DataFrame, Row
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.types import StructType

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.orderly import DeadLetter, OrderlyRun, QueueReport
from store_format.errors import OptionError

_QUEUE = ("storedTopic", "brokerName", "queueId")
_OFFSET, _TIMES = "queueOffset", "reconsumeTimes"
_REPORT = pa.schema(
    [
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queue", pa.int32()),
        ("next", pa.int64()),
        ("dead", pa.list_(pa.int64())),  # offset and times of each dead letter, one after the other
        ("times", pa.int32()),
        ("error", pa.string()),
    ]
)
_REPORT_DDL = "topic string, broker string, queue int, next long, dead array<long>, times int, error string"

_Handler = Callable[[Row], object]
_Handle = Callable[[Iterable[Row]], list[QueueReport]]


def handle_rows(frame: DataFrame, handler: _Handler, begin: Callable[[], OrderlyRun]) -> list[QueueReport]:
    """Gives each partition of the frame to the handler, in a task; returns the reports of all queues.

    Spark Connect has no RDD. In a classic session mapInArrow would need pandas, as Connect does anyway.
    Raises OptionError if the frame lacks a column that names the queue or the offset.
    """
    names = frame.columns
    for name in (*_QUEUE, _OFFSET):
        if name not in names:
            raise OptionError(
                f"Orderly: expected the columns {', '.join((*_QUEUE, _OFFSET))}, found none of the name "
                f"{name}; keep them in the DataFrame"
            )
    places = [names.index(name) for name in (*_QUEUE, _OFFSET)]
    times = names.index(_TIMES) if _TIMES in names else None
    handle = partial(_handle, handler, begin, places, times)
    try:
        rdd = frame.rdd
    except (PySparkAttributeError, PySparkNotImplementedError):
        found = frame.mapInArrow(_by_arrow(frame.schema, handle), _REPORT_DDL).collect()
        return [_report(row) for row in found]
    reports: list[QueueReport] = rdd.mapPartitions(handle).collect()
    return reports


def _handle(
    handler: _Handler,
    begin: Callable[[], OrderlyRun],
    places: Sequence[int],
    times: int | None,
    rows: Iterable[Row],
) -> list[QueueReport]:
    """Gives the rows of one partition to the handler. Runs in a task.

    `places` are the positions of the queue's three columns and of the offset in a row, `times` that of
    reconsumeTimes, which the handler gets with the deliveries that the stored message does not know of.
    """
    run, place_of = begin(), itemgetter(*places)
    for row in rows:
        *name, offset = place_of(row)
        queue = MessageQueue(*name)
        if not run.takes(queue, offset):
            continue
        if times is None:
            run.handle(queue, offset, 0, partial(_call_only, handler, row))
        else:
            run.handle(queue, offset, row[times], partial(_call, handler, row))
    return run.reports()


def _call_only(handler: _Handler, row: Row, times: int) -> None:
    handler(row)


def _call(handler: _Handler, row: Row, times: int) -> None:
    handler(row if row[_TIMES] == times else Row(**{**row.asDict(), _TIMES: times}))


def _by_arrow(
    schema: StructType, handle: _Handle
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        rows = chain.from_iterable(ArrowTableToRowsConversion.convert(table, schema) for table in tables)
        reports = [_report_members(report) for report in handle(rows)]
        if reports:
            yield pa.RecordBatch.from_pylist(reports, _REPORT)

    return run


def _report_members(report: QueueReport) -> dict[str, object]:
    topic, broker, queue_id = report.queue
    dead = [number for each in report.dead for number in (each.offset, each.times)]
    return dict(
        zip(
            _REPORT.names,
            (topic, broker, queue_id, report.next_offset, dead, report.times, report.error),
            strict=True,
        )
    )


def _report(row: Row) -> QueueReport:
    numbers = list(row.dead)
    dead = [DeadLetter(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
    return QueueReport(MessageQueue(row.topic, row.broker, row.queue), row.next, dead, row.times, row.error)

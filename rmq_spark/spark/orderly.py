"""`Orderly`: a handler for each message, called in the order of its queue, by `foreachBatch`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkAttributeError, PySparkNotImplementedError
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.services.orderly import FOREVER, DeadLetter, OrderlyGroup, OrderlyRun, QueueReport
from store_format.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

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


class Orderly:
    """Calls `handler(row)` for each message, the messages of a queue one after the other in their order.

    For `foreachBatch` of a stream with `group` and `splitBy=wholeQueue` (or `consumers`); queues are handled
    in parallel, each by the task of its partition. `options` are the options of the query, `path` included. A
    handler fails by raising an exception. Then its queue stops, the other queues go on, and after
    `suspend_current_queue_time_millis` (10 to 30000) the queue is tried again at the message that failed; a
    run with Trigger.AvailableNow leaves the queue to the next run. A message that was delivered again
    `max_reconsume_times` times becomes a dead letter in `%DLQ%group` when it fails once more, and its queue
    goes on; -1, RocketMQ's default, is never. `row.reconsumeTimes` is the number of earlier deliveries, if
    the query reads this column.

    The count of failures and the place are in the group's directory, so they survive a restart. A message may
    be handled again after a crash: at least once, as with RocketMQ's MessageListenerOrderly.

    Raises OptionError for options without a group or without whole queues.

    Example::

        options = {"path": "/data/store", "group": "billing", "splitBy": "wholeQueue"}
        stream = spark.readStream.format("rmqlog").options(**options).load()
        stream.writeStream.foreachBatch(Orderly(handle, options, max_reconsume_times=16)).start()
    """

    def __init__(
        self,
        handler: Callable[[Row], object],
        options: Mapping[str, object],
        *,
        max_reconsume_times: int = FOREVER,
        suspend_current_queue_time_millis: int = 1000,
    ) -> None:
        self._handler = handler
        self._group = OrderlyGroup(options, max_reconsume_times, suspend_current_queue_time_millis)

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Handles a micro-batch. Spark calls it; a second call with the batch repeats what is not done."""
        missing = [name for name in (*_QUEUE, _OFFSET) if name not in frame.columns]
        if missing:
            raise OptionError(
                f"Orderly: expected the columns {', '.join((*_QUEUE, _OFFSET))}, found none of the name "
                f"{missing[0]}; keep them in the DataFrame"
            )
        stops = self._group.stops()
        names = frame.columns
        places = [names.index(name) for name in (*_QUEUE, _OFFSET)]
        times = names.index(_TIMES) if _TIMES in names else None
        run = partial(OrderlyRun, stops, self._group.max_reconsume_times)
        handle = partial(_handle, self._handler, run, places, times)
        self._group.finish(_in_tasks(frame, handle), stops)


_Handle = Callable[[Iterable[Row]], list[QueueReport]]


def _handle(
    handler: Callable[[Row], object],
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


def _call_only(handler: Callable[[Row], object], row: Row, times: int) -> None:
    handler(row)


def _call(handler: Callable[[Row], object], row: Row, times: int) -> None:
    handler(row if row[_TIMES] == times else Row(**{**row.asDict(), _TIMES: times}))


def _in_tasks(frame: DataFrame, handle: _Handle) -> list[QueueReport]:
    """The reports of all partitions. Spark Connect has no RDD; mapInArrow needs pandas, as Connect does."""
    try:
        rdd = frame.rdd
    except (PySparkAttributeError, PySparkNotImplementedError):
        return [
            _report(row) for row in frame.mapInArrow(_by_arrow(frame.schema, handle), _REPORT_DDL).collect()
        ]
    reports: list[QueueReport] = rdd.mapPartitions(handle).collect()
    return reports


def _by_arrow(
    schema: StructType, handle: _Handle
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tables = (pa.Table.from_batches([batch]) for batch in batches)
        rows = chain.from_iterable(ArrowTableToRowsConversion.convert(table, schema) for table in tables)
        reports = [_members(report) for report in handle(rows)]
        if reports:
            yield pa.RecordBatch.from_pylist(reports, _REPORT)

    return run


def _members(report: QueueReport) -> dict[str, object]:
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

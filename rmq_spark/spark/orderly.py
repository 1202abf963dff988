"""`Orderly`: a handler for each message, called in the order of its queue, by `foreachBatch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.conversion import ArrowTableToRowsConversion

from rmq_spark.consume.group.state import Stop
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
        run = _in_tasks(self._handler, frame.schema, stops, self._group.max_reconsume_times)
        rows = frame.mapInArrow(run, _REPORT_DDL).collect()
        self._group.finish([_report(row) for row in rows], stops)


def _in_tasks(
    handler: Callable[[Row], object],
    schema: StructType,
    stops: Mapping[MessageQueue, Stop],
    max_reconsume_times: int,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        done = OrderlyRun(stops, max_reconsume_times)
        for batch in batches:
            _handle(batch, handler, schema, done)
        if done.reports():
            yield pa.RecordBatch.from_pylist([_members(each) for each in done.reports()], _REPORT)

    return run


def _handle(
    batch: pa.RecordBatch, handler: Callable[[Row], object], schema: StructType, done: OrderlyRun
) -> None:
    names = [MessageQueue(*key) for key in zip(*(batch[name].to_pylist() for name in _QUEUE), strict=True)]
    offsets = batch[_OFFSET].to_pylist()
    wanted = [done.takes(queue, offset) for queue, offset in zip(names, offsets, strict=True)]
    kept = [place for place, is_wanted in enumerate(wanted) if is_wanted]
    if not kept:
        return
    table = pa.Table.from_batches([batch.take(pa.array(kept))])
    has_times = _TIMES in table.column_names
    for place, row in zip(kept, ArrowTableToRowsConversion.convert(table, schema), strict=True):
        queue = names[place]
        if done.goes_on(queue):
            stored = row[_TIMES] if has_times else 0
            done.handle(queue, offsets[place], stored, partial(_call, handler, row, has_times))


def _call(handler: Callable[[Row], object], row: Row, has_times: bool, times: int) -> None:
    """Calls the handler with the row, and with the deliveries that the stored message does not know of."""
    if has_times and row[_TIMES] != times:
        row = Row(**{**row.asDict(), _TIMES: times})
    handler(row)


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

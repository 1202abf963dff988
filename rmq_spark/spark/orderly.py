"""`Orderly`: a handler for each message, called in the order of its queue, by `foreachBatch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Row

from rmq_spark.consume.orderly import FOREVER, OrderlyRun
from rmq_spark.services.orderly import OrderlyGroup
from rmq_spark.spark.orderly_tasks import handle_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    be handled again after a crash: at least once, as with RocketMQ's MessageListenerOrderly. The workers need
    this package: `register(by_value=True)` does not carry the handler.
    With `spark.speculation` two tasks could handle a queue at the same time: leave it off, as Spark does.

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
        stops = self._group.stops()
        run = partial(OrderlyRun, stops, self._group.max_reconsume_times)
        self._group.finish(handle_rows(frame, self._handler, run), stops)

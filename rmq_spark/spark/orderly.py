"""`Orderly`: a handler for each message, called in the order of its queue, by `foreachBatch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import DataFrame, Row

from rmq_spark.broker import OrderlyGroup
from rmq_spark.consume.orderly import FOREVER, OrderlyRun
from rmq_spark.spark.orderly_tasks import handle_rows


class Orderly:
    """Calls `handler(row)` for each message; the messages of a queue follow one another in their order.

    Pass it to `foreachBatch` of a stream with `group` and `splitBy=wholeQueue` (or `consumers`). `options`
    are the options of the query, including `path`. The queues are handled in parallel, each by the task of
    its partition.

    If the handler raises an exception, its queue stops and the other queues continue. After
    `suspend_current_queue_time_millis` (10 to 30000 ms), the queue is tried again from the failed message;
    with Trigger.AvailableNow, the next run tries again. If a message fails after `max_reconsume_times`
    further deliveries, it becomes a dead letter in `%DLQ%group` and its queue continues. -1, RocketMQ's
    default, means no limit here, as for orderly consumers of RocketMQ; for concurrent ones it means 16.
    `row.reconsumeTimes` is the number of earlier deliveries, if the query reads this column.

    The number of failures and the position are stored in the group's directory, so they survive a restart.
    After a crash, a message may be handled again (at least once, as with RocketMQ's MessageListenerOrderly).
    Install this package on the workers, because `register(by_value=True)` does not send the handler. Do not
    use `spark.speculation`: two tasks could handle one queue at the same time.

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

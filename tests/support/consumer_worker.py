"""A consumer or a query in a process of its own: `python -m tests.support.consumer_worker OPTIONS`.

It writes a JSON object a line to the file `log`, each in one write: `hand` before a listener has messages,
`done` when it has handled them. A message whose body begins with `poison` always fails in a push consumer.
A line on standard input ends the process. Times are in ms since 1970.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmq_spark.consumer import ConsumeContext, MessageExt, PullConsumer, PushConsumer

if TYPE_CHECKING:
    from pyspark.sql import Row


_NO_EPOCH = -1  # of a query's micro-batch


class _Log:
    """What this process hands out, with the epochs of its queues."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._file = os.open(options["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._pause, self._name = options["pause"], options["name"]
        self.consumer: PushConsumer | PullConsumer
        self.success = "SUCCESS" if options["kind"] == "orderly" else "CONSUME_SUCCESS"

    def write(self, what: str, messages: Sequence[MessageExt]) -> None:
        queue = messages[0].message_queue
        member = self.consumer._member
        held = None if member is None else member.queues.get(queue)
        epoch = None if held is None else held.epoch
        self._line(what, queue.topic, queue.queue_id, epoch, {each.offset: each.body for each in messages})

    def write_rows(self, what: str, rows: Sequence[Row]) -> None:
        """The rows of a micro-batch, a line for each queue. Spark ends it even if the query lost one."""
        bodies = defaultdict[tuple[str, int], dict[int, bytes]](dict)
        for row in rows:
            bodies[row.topic, row.queueId][row.queueOffset] = bytes(row.body)
        for queue, of_queue in bodies.items():
            self._line(what, *queue, _NO_EPOCH, of_queue)

    def _line(
        self, what: str, topic: str, queue_id: int, epoch: int | None, bodies: Mapping[int, bytes]
    ) -> None:
        line = {
            "what": what,
            "name": self._name,
            "thread": [os.getpid(), threading.get_ident()],
            "at": time.time_ns() // 1_000_000,
            "queue": [topic, queue_id],
            "epoch": epoch,
            "offsets": list(bodies),
            "bodies": [body.rstrip(b".").decode() for body in bodies.values()],
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def listen(self, messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        self.write("hand", messages)
        time.sleep(self._pause)
        if any(each.body.startswith(b"poison") for each in messages):
            return "RECONSUME_LATER"
        self.write("done", messages)
        return self.success


def _is_asked_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _query(options: dict[str, Any], log: _Log) -> None:
    """A query of Spark until the process is asked to end; one that is started again goes on."""
    from pyspark.sql import DataFrame, SparkSession

    import rmq_spark

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    rmq_spark.register(spark)

    def handle(batch: DataFrame, _: int) -> None:
        rows = batch.collect()
        log.write_rows("hand", rows)
        time.sleep(options["pause"])
        log.write_rows("done", rows)

    given = {
        "subscribe": "T", "group": "g", "clientId": options["name"], "maxOffsetsPerTrigger": "64",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "leaseTime": f"{options['lease']:g}s",
        "persistConsumerOffsetInterval": "0s", "failOnDataLoss": "false",
    }  # fmt: skip
    source = spark.readStream.format("rmqlog").options(**given).load(options["root"])
    writer = source.writeStream.option("checkpointLocation", options["checkpoint"]).foreachBatch(handle)
    query = writer.start()
    while query.isActive and not _is_asked_to_end():
        time.sleep(0.05)
    query.stop()
    assert query.exception() is None, query.exception()
    spark.stop()


def _common(options: dict[str, Any]) -> dict[str, Any]:
    return {
        "instance_name": options["name"],
        "consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
        "lease_time": options["lease"],
    }


def _pull(options: dict[str, Any], log: _Log) -> None:
    """A pull consumer, which commits what it has polled when it polls again."""
    pulling = PullConsumer(
        options["root"], "g", auto_commit_interval=0, pull_batch_size=4, **_common(options)
    )
    log.consumer = pulling
    pulling.subscribe("T")
    while not _is_asked_to_end():
        messages = pulling.poll(0.1)
        if messages:
            log.write("hand", messages)
            time.sleep(options["pause"])
            log.write("done", messages)
    pulling.shutdown()


def _push(options: dict[str, Any], log: _Log) -> None:
    """A push consumer of four threads; of a concurrent one, failed messages are dead letters at once."""
    pushing = PushConsumer(
        options["root"], "g", consume_message_batch_max_size=1, consume_thread_number=4,
        pull_threshold_for_queue=16, max_reconsume_times=0, persist_consumer_offset_interval=0,
        **_common(options),
    )  # fmt: skip
    log.consumer = pushing
    pushing.subscribe("T")
    pushing.register_message_listener(log.listen, options["kind"] == "orderly")
    pushing.start()
    while not _is_asked_to_end():
        time.sleep(0.05)
    pushing.shutdown()


def _main(options: dict[str, Any]) -> None:
    run = {"push": _push, "orderly": _push, "pull": _pull, "query": _query}[options["kind"]]
    run(options, _Log(options))


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

"""A push or pull consumer in a process of its own: `python -m tests.support.consumer_worker OPTIONS`.

It writes a JSON object a line to the file `log`, each in one write: `hand` before a listener has messages,
`done` when it has handled them. A message whose body begins with `poison` always fails. A line on standard
input ends the process. Times are in ms since 1970.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from rmq_spark.consumer import ConsumeContext, MessageExt, PullConsumer, PushConsumer


class _Log:
    """What this process hands out, with the epochs of its queues."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._file = os.open(options["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._pause = options["pause"]
        self.consumer: PushConsumer | PullConsumer

    def write(self, what: str, messages: Sequence[MessageExt]) -> None:
        queue = messages[0].message_queue
        member = self.consumer._member
        held = None if member is None else member.queues.get(queue)
        line = {
            "what": what,
            "thread": [os.getpid(), threading.get_ident()],
            "at": time.time_ns() // 1_000_000,
            "queue": [queue.topic, queue.queue_id],
            "epoch": None if held is None else held.epoch,
            "offsets": [each.offset for each in messages],
            "bodies": [each.body.rstrip(b".").decode() for each in messages],
        }
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def listen(self, messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        self.write("hand", messages)
        time.sleep(self._pause)
        if any(each.body.startswith(b"poison") for each in messages):
            return "RECONSUME_LATER"
        self.write("done", messages)
        return "CONSUME_SUCCESS"


def _is_asked_to_end() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0])


def _run(options: dict[str, Any]) -> None:
    log = _Log(options)
    common: dict[str, Any] = {
        "instance_name": options["name"],
        "consume_from_where": "CONSUME_FROM_FIRST_OFFSET",
        "lease_time": options["lease"],
    }
    if options["kind"] == "pull":
        pulling = PullConsumer(options["root"], "g", auto_commit_interval=0, pull_batch_size=4, **common)
        log.consumer = pulling
        pulling.subscribe("T")
        while not _is_asked_to_end():
            messages = pulling.poll(0.1)
            if messages:
                log.write("hand", messages)
                time.sleep(options["pause"])
                log.write("done", messages)
        pulling.shutdown()
        return
    common |= {
        "consume_message_batch_max_size": 1,
        "consume_thread_number": 4,
        "pull_threshold_for_queue": 16,
    }
    common |= {"max_reconsume_times": 0, "persist_consumer_offset_interval": 0}
    pushing = PushConsumer(options["root"], "g", **common)
    log.consumer = pushing
    pushing.subscribe("T")
    pushing.register_message_listener(log.listen)
    pushing.start()
    while not _is_asked_to_end():
        time.sleep(0.05)
    pushing.shutdown()


if __name__ == "__main__":
    _run(json.loads(sys.argv[1]))

"""Rows of a topic T, given to an orderly handler that fails where a test says."""

from __future__ import annotations

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.orderly import OrderlyRun

BROKER = "broker-a"


def queue(number: int) -> MessageQueue:
    return MessageQueue("T", BROKER, number)


def handled(
    run: OrderlyRun, rows: list[tuple[int, int]], *bad: tuple[int, int]
) -> list[tuple[int, int, int]]:
    """Gives rows (queue, offset) to a handler that fails at `bad`; returns its calls with reconsumeTimes."""
    calls: list[tuple[int, int, int]] = []

    for number, offset in rows:

        def call(times: int, at: tuple[int, int] = (number, offset)) -> None:
            calls.append((*at, times))
            if at in bad:
                raise ValueError("no")

        if run.takes(queue(number), offset):
            run.handle(queue(number), offset, 0, call)
    return calls

"""A process that pops: `python -m tests.support.pop_worker STORE RECORD INVISIBLE WORK GO STOP`.

INVISIBLE and WORK are seconds: of a receive, and of the work on a batch. The process makes the file RECORD,
and begins when the file GO exists. It writes what it receives to RECORD before it acknowledges, so that a
test can tell what became of each message, whenever the process is killed. It ends when nothing comes and the
file STOP exists.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rmq_spark.pop import SimpleConsumer
from store_format.errors import InvalidReceiptHandleError
from tests.support.popped import GROUP, TOPIC


@dataclass(frozen=True)
class Delivery:
    """A message in the hands of one consumer: its number, and from when until when it is invisible (ms).

    `attempt` is the message's delivery attempt. `acked_at` is when its acknowledgement had returned.
    """

    number: int
    pop_time: int
    visible_at: int
    attempt: int
    acked_at: int | None


def main(store: str, record: str, invisible: str, work: str, go: str, stop: str) -> None:
    seconds, work_seconds = float(invisible), float(work)
    with (
        SimpleConsumer(store, GROUP, {TOPIC: "*"}, 0.2, min_invisible_duration=0.0) as consumer,
        open(record, "a", buffering=1, encoding="ascii") as lines,
    ):
        while not Path(go).exists():
            time.sleep(0.005)
        while True:
            batch = consumer.receive(32, seconds)
            if not batch and Path(stop).exists():
                break
            if not batch:
                continue
            handles = [each.handle for each in batch]
            texts = [
                f"{int(each.body)},{handle.pop_time},{handle.visible_at},{each.delivery_attempt}"
                for each, handle in zip(batch, handles, strict=True)
            ]
            lines.write(f"R {' '.join(texts)}\n")
            time.sleep(work_seconds)
            try:
                consumer.ack(batch)
                lines.write(f"A {time.time_ns() // 1_000_000}\n")
            except InvalidReceiptHandleError:
                lines.write("E\n")


def deliveries(records: Iterable[Path]) -> Iterator[Delivery]:
    """What the processes have noted. A line that a kill has cut, and an error, acknowledge nothing."""
    for record in records:
        lines = record.read_text(encoding="ascii").splitlines()
        for line, after in zip(lines, [*lines[1:], ""][: len(lines)], strict=True):
            if not line.startswith("R "):
                continue
            acked_at = int(after[2:]) if after.startswith("A ") and after[2:] else None
            for text in line[2:].split(" "):
                values = [int(each) for each in text.split(",")]
                if len(values) == 4:
                    yield Delivery(*values, acked_at)  # type: ignore[call-arg] # four numbers


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A member of a group in a process of its own: run as `python -m tests.support.group_worker`. It reads
numbers instead of messages.

It does what a stream does: at each boundary it settles, then writes the next micro-batch to an offset log,
reads it, and commits it. A batch that was not committed is repeated whole by the next process with the same
name. The messages of every queue are the numbers from 0 on, and a batch takes as long as `pause` says, so
there is always more. Arguments: one JSON object. Standard output: a JSON object a line; a line on standard
input ends it. All times are of the monotonic clock, which processes of one machine share.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path
from typing import Any

from rmq_spark.consume.allocate import strategy
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.member import Membership, join
from rmq_spark.consume.offset_store import LocalOffsets
from tests.support.ownership import begins

QUEUES = [MessageQueue("T", broker, queue_id) for broker in ("room1@a", "room2@b") for queue_id in range(8)]


def spec_of(options: dict[str, Any]) -> Membership:
    """`config` has indexes of QUEUES."""
    named = dict(options.get("arguments", {}))
    if "config" in named:
        named["config"] = [QUEUES[i] for i in named["config"]]
    chosen = strategy(options["strategy"], **named)
    return Membership("g", tuple(options["clients"]), chosen, "T *", lease_seconds=options["lease"])


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


class _Checkpoint:
    """What Spark keeps: the batch it began, and the offsets that it committed last. Queues by their index."""

    def __init__(self, path: Path) -> None:
        self._begun, self._committed = path / "offsets", path / "commits"
        path.mkdir(exist_ok=True)

    def _read(self, path: Path) -> dict[str, Any]:
        return json.loads(path.read_text()) if path.exists() else {}

    def _write(self, path: Path, value: dict[str, Any]) -> None:
        path.with_suffix(".new").write_text(json.dumps(value))
        path.with_suffix(".new").rename(path)

    def begin(self, number: int, batch: dict[int, tuple[int, int]]) -> None:
        self._write(self._begun, {"number": number, "batch": batch})

    def commit(self, number: int, positions: dict[MessageQueue, int], reset: int) -> None:
        by_index = {QUEUES.index(queue): n for queue, n in positions.items()}
        self._write(self._committed, {"number": number, "positions": by_index, "reset": reset})

    def load(self) -> tuple[int, dict[MessageQueue, int], int, dict[int, tuple[int, int]]]:
        """The number of the next batch, the committed offsets and their reset number, and a batch that was
        begun only.
        """
        committed, begun = self._read(self._committed), self._read(self._begun)
        number = committed.get("number", -1)
        positions = {QUEUES[int(i)]: n for i, n in committed.get("positions", {}).items()}
        left = (
            {int(i): (a, b) for i, (a, b) in begun["batch"].items()}
            if begun.get("number", -1) > number
            else {}
        )
        return number + 1, positions, committed.get("reset", 0), left


def main(options: dict[str, Any]) -> None:
    checkpoint = _Checkpoint(Path(options["checkpoint"]))
    number, positions, reset, left = checkpoint.load()
    member = join(options["directory"], spec_of(options), LocalOffsets(options["offsets"]))
    _say(joined=member.id)

    def read(batch: dict[int, tuple[int, int]]) -> None:
        begun = time.monotonic()
        _say(begun=number, batch=batch)
        time.sleep(options["pause"])
        _say(read=number, batch=batch, at=[begun, time.monotonic()])

    if left:
        member.note_replay([QUEUES[i] for i in left])
        read(left)
        positions = {QUEUES[i]: stop for i, (_, stop) in left.items()}
        checkpoint.commit(number, positions, reset)
        number += 1
    while not select.select([sys.stdin], [], [], 0)[0]:
        found = member.settle(QUEUES, positions, begin=lambda queue: 0, reset=reset)
        if found.starts or found.lost:
            changed = (
                [QUEUES.index(queue) for queue in found.starts],
                [QUEUES.index(queue) for queue in found.lost],
            )
            _say(gained=changed[0], lost=changed[1], at=time.monotonic(), reset=found.reset)
        starts = begins(found, positions)
        if not starts:
            time.sleep(options["pause"])
            continue
        batch = {QUEUES.index(queue): (n, n + options["rate"]) for queue, n in starts.items()}
        reset = found.reset
        checkpoint.begin(number, batch)
        read(batch)
        positions = {QUEUES[i]: stop for i, (_, stop) in batch.items()}
        checkpoint.commit(number, positions, reset)
        number += 1
    member.leave(positions, reset)
    _say(left=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

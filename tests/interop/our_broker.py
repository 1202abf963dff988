"""What a broker and its clients do in `workload`, done by our services and by a few lines for each client.

The clock is an argument: a turn is as if it were that time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rmq_spark.services import retry, run_once
from store_format import MessageStore
from store_format.metadata.group_offsets import read_group_offsets, write_group_offsets
from tests.interop import workload
from tests.interop.programs import Line
from tests.interop.rows import COLUMNS, line_of
from tests.support.rows import rows_of

TURN_MS = 250


@dataclass
class OurBroker:
    """`conf` is the path of the broker.conf that a broker would have. `seen` is what the groups consumed."""

    store: Path
    conf: str
    seen: list[Line] = field(default_factory=list)

    def turn(self, now_ms: int) -> None:
        """Everything that is due, then the concurrent groups."""
        run_once(str(self.store), now_ms=now_ms, broker_conf=self.conf, apply=True)
        for group in (workload.RETRIED, workload.LIMITED):
            self.consume(group, now_ms)

    def turns(self, begin_ms: int, end_ms: int) -> None:
        """Turns at TURN_MS from each other."""
        for now in range(begin_ms, end_ms, TURN_MS):
            self.turn(now)

    def consume(self, group: str, now_ms: int) -> None:
        """What FailingConsumers does: all new messages of the group once, the failed ones sent back."""
        root, topics = str(self.store), (workload.TOPICS[group], f"%RETRY%{group}")
        offsets, read = read_group_offsets(root, group), {}
        failed: list[tuple[str, int, int]] = []
        for queue in MessageStore.open(root).queues():
            place = queue.topic, queue.queue_id
            if queue.topic in topics and queue.max_offset > offsets.get(place, 0):
                read[place] = queue.max_offset
                for batch in queue.read(offsets.get(place, 0), columns=COLUMNS):
                    for row in rows_of(batch):
                        failed += self._failed(group, line_of(row))
        if failed:
            times = workload.TIMES_MAX[group]
            retry.send_back(
                root, group, failed, max_reconsume_times=times, now_ms=now_ms, broker_conf=self.conf
            )
        if read:
            write_group_offsets(root, group, read, timestamp=now_ms)

    def _failed(self, group: str, line: Line) -> list[tuple[str, int, int]]:
        """Its place, if it fails."""
        fails = line["reconsumeTimes"] < int(line["properties"]["fail"])
        self.seen.append(line | {"group": group, "failed": fails})
        return [(line["topic"], line["queueId"], line["queueOffset"])] if fails else []

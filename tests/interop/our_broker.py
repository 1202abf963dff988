"""What a broker and its clients do in `workload`, done by our services and by a few lines for each client.

The clock is an argument: a turn is as if it were that time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rmq_spark.broker.services.decisions import HalfMessage
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.orderly import OrderlyRun, QueueReport, Stop
from rmq_spark.produce.send_back import give_up
from rmq_spark.services import retry, run_once, timer, transaction
from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.commit.session import write_session
from store_format.metadata.group_offsets import read_group_offsets, write_group_offsets
from store_format.opened.store import Opened
from store_format.read.store import Queue, Store
from store_format.read.stored_messages import read_stored_slice
from tests.interop import workload
from tests.interop.programs import Line
from tests.interop.rows import COLUMNS, line_of
from tests.support.rows import rows_of

TURN_MS = 250
CHECK_INTERVAL_MS = 2000  # transactionCheckInterval of the stores that `OurBroker` goes on with
_TURNS_MAX = 80


@dataclass
class OurBroker:
    """`conf` is the path of the broker.conf that a broker would have. `seen` is what the groups consumed."""

    store: Path
    conf: str
    retries_max: int = 1 << 30
    checks_max: int = 1 << 30
    seen: list[Line] = field(default_factory=list)
    checks: list[tuple[str, int]] = field(default_factory=list)  # UNIQ_KEY, which check
    # When the first half message had its last check. The others, which the broker may have stored some ms
    # later, have theirs before CHECK_INTERVAL_MS has passed.
    _last_check_ms: int = 1 << 62

    def turn(self, now_ms: int) -> None:
        """Everything that is due, then the concurrent groups. Some work stays when a maximum was reached."""
        root = str(self.store)
        run_once(root, now_ms=now_ms, broker_conf=self.conf, apply=True)
        if now_ms < self._last_check_ms + CHECK_INTERVAL_MS:
            checked = len(self.checks)
            transaction.check(root, self._answer, now_ms, broker_conf=self.conf).apply()
            if any(times >= self.checks_max for _, times in self.checks[checked:]):
                self._last_check_ms = min(self._last_check_ms, now_ms)
        if all(line["reconsumeTimes"] < self.retries_max for line in self.seen):
            for group in (workload.RETRIED, workload.LIMITED):
                self.consume(group, now_ms)

    def decide(self, left: workload.Left, now_ms: int) -> None:
        """What somebody does by hand: a timer is recalled, a half committed."""
        root = str(self.store)
        for key in left.recalled_by_us:
            timer.recall(root, topic="Timed", uniq_key=key, now_ms=now_ms, broker_conf=self.conf).apply()
        plan = transaction.decide(root, commit=left.committed_by_us, now_ms=now_ms, broker_conf=self.conf)
        assert plan.apply() == 1

    def _answer(self, half: HalfMessage) -> str | None:
        """What Transactions.checkLocalTransaction answers."""
        times = half.check_times + 1
        self.checks.append((half.msg_id or "", times))
        answer, _, first = half.properties["answer"].partition("@")
        return answer if first and times >= int(first) else None

    def turns(self, begin_ms: int, end_ms: int) -> None:
        """Turns at TURN_MS from each other, or as far as `_TURNS_MAX` of them need."""
        for now in range(begin_ms, end_ms, max(TURN_MS, (end_ms - begin_ms) // _TURNS_MAX)):
            self.turn(now)

    def consume(self, group: str, now_ms: int) -> None:
        """What FailingConsumers does: all new messages of the group once, the failed ones sent back."""
        root, topics = str(self.store), (workload.TOPICS[group], f"%RETRY%{group}")
        offsets, read = read_group_offsets(Opened(root), group), {}
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
            write_group_offsets(Opened(root), group, read, timestamp=now_ms)

    def _failed(self, group: str, line: Line) -> list[tuple[str, int, int]]:
        """Its place, if it fails."""
        fails = line["reconsumeTimes"] < int(line["properties"]["fail"])
        self.seen.append(line | {"group": group, "failed": fails})
        return [(line["topic"], line["queueId"], line["queueOffset"])] if fails else []

    def consume_in_order(self, now_ms: int, failures_max: int = 1 << 30) -> None:
        """What an orderly consumer does with all new messages, without its pauses after failures.

        A queue is left after `failures_max` failures.
        """
        root, group, most = str(self.store), workload.ORDERLY, workload.TIMES_MAX[workload.ORDERLY]
        store, offsets = Store.open(root), read_group_offsets(Opened(root), group)
        queues = {
            MessageQueue(each.topic, "broker-a", each.queue_id): each
            for each in store.queues()
            if each.topic == workload.TOPICS[group]
        }
        stops = {
            name: Stop(offsets.get((name.topic, name.queue_id), 0), 0, 0)
            for name, each in queues.items()
            if each.max_offset > offsets.get((name.topic, name.queue_id), 0)
        }
        read: dict[tuple[str, int], int] = {}
        while stops and failures_max:
            failures_max -= 1
            run = OrderlyRun(stops, most)
            for name, stop in stops.items():
                self._handle(run, name, queues[name], stop.offset)
            self._give_up(run.reports(), queues, now_ms)
            read |= {(each.queue.topic, each.queue.queue_id): each.next_offset for each in run.reports()}
            stops = {
                each.queue: Stop(each.next_offset, each.times, 0) for each in run.reports() if each.times
            }
        if read:
            write_group_offsets(Opened(root), group, read, timestamp=now_ms)

    def _handle(self, run: OrderlyRun, name: MessageQueue, queue: Queue, start: int) -> None:
        lines = [line_of(row) for batch in queue.read(start, columns=COLUMNS) for row in rows_of(batch)]
        for line in lines:

            def handler(times: int, line: Line = line) -> None:
                failed = times < int(line["properties"]["fail"])
                self.seen.append(
                    line | {"group": workload.ORDERLY, "failed": failed, "reconsumeTimes": times}
                )
                if failed:
                    raise ValueError("the rule in the message")

            if run.takes(name, line["queueOffset"]):
                run.handle(name, line["queueOffset"], line["reconsumeTimes"], handler)

    def _give_up(
        self, reports: Sequence[QueueReport], queues: Mapping[MessageQueue, Queue], now_ms: int
    ) -> None:
        """As OrderlyGroup does, which needs a query."""
        dead = [(queues[each.queue], letter) for each in reports for letter in each.dead]
        if dead:
            with write_session(str(self.store), CommitOptions(clock=lambda: now_ms)) as session:
                for queue, letter in dead:
                    messages, _, _ = read_stored_slice(
                        session.store().log, queue.piece(letter.offset, letter.offset + 1)
                    )
                    made = give_up(
                        messages,
                        workload.ORDERLY,
                        reconsume_times=letter.times,
                        max_reconsume_times=workload.TIMES_MAX[workload.ORDERLY],
                        now_ms=now_ms,
                        born_host=(b"\x7f\x00\x00\x01", 1),
                        offset_range=(queue.min_offset, queue.max_offset),
                    )
                    session.append(made.messages, new_topics=made.new_topics)

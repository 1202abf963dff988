"""What the driver of an orderly query writes after a micro-batch: dead letters, and where queues stopped.

RocketMQ counts the failures of an orderly handler in the memory of the client. Here the count and the place
are in `group.json`, together with a reset of the queue, so that they survive a restart of the query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from rmq_spark.consume.client_ids import BROADCASTING
from rmq_spark.consume.group.change import Change, write_change
from rmq_spark.consume.group.meeting import group_directory
from rmq_spark.consume.group.state import Stop, has_state, read_state
from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.orderly import FOREVER, QueueReport
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import ReadOptions, parse_read_options
from rmq_spark.options.read_table import WHOLE_QUEUE
from rmq_spark.plan.stores import open_stores
from rmq_spark.produce.send_back import give_up
from rmq_spark.produce.unique_ids import own_address
from store_format.commit.prepare_store import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.errors import OptionError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites
from store_format.read.stored_messages import read_stored_slice

_log = logging.getLogger(__name__)

_LOCK_SECONDS = 10.0
_PAUSE_MIN_MS, _PAUSE_MAX_MS = 10, 30_000  # ConsumeMessageOrderlyService.submitConsumeRequestLater


class OrderlyGroup:
    """The group of an orderly query, as the driver sees it. Holds plain values, so that it can be pickled."""

    def __init__(
        self,
        options: Mapping[str, object],
        max_reconsume_times: int = FOREVER,
        pause_ms: int = 1000,
        *,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        """Raises OptionError for options of a query that does not read whole queues as a group."""
        self._options = {name: _text(value) for name, value in options.items()}
        self._parsed()
        if max_reconsume_times < FOREVER:
            raise OptionError(
                f"max_reconsume_times={max_reconsume_times}: expected -1 (no limit) or a number from 0"
            )
        self.max_reconsume_times = max_reconsume_times
        self._pause_ms = min(max(pause_ms, _PAUSE_MIN_MS), _PAUSE_MAX_MS)
        self._clock_ms = clock_ms

    def stops(self) -> dict[MessageQueue, Stop]:
        """Where queues stopped in earlier micro-batches."""
        directory = self._directory(self._roots())
        return {queue: entry.stop for queue, entry in read_state(directory).queues.items() if entry.stop}

    def finish(self, reports: Sequence[QueueReport], stops: Mapping[MessageQueue, Stop]) -> None:
        """Writes the dead letters of a micro-batch, then where its queues stopped. `stops` are the old ones.

        After a crash before this the micro-batch is handled again; after a crash within it only dead letters
        may be written again, as by a RocketMQ client that dies before it commits.

        Raises OptionError if a queue was in two partitions, and StoreInUseError if a dead letter cannot be
        written because a broker has the store.
        """
        _refuse_cut_queues(reports)
        if not any(each.times or each.dead or each.queue in stops for each in reports):
            return
        group = self._parsed()[1]
        roots = self._roots()
        for broker, root in roots.items():
            of_broker = [each for each in reports if each.dead and each.queue.broker_name == broker]
            if of_broker:
                with write_session(
                    root, CommitOptions(lock_timeout=_LOCK_SECONDS, clock=self._now)
                ) as session:
                    self._write_dead(session, group.group, of_broker)
        new = {
            each.queue: Stop(each.next_offset, each.times, self._now() + self._pause_ms if each.times else 0)
            for each in reports
            if each.times or each.dead or each.queue in stops
        }
        directory = self._directory(roots)
        with StoreLock(directory, timeout=_LOCK_SECONDS):
            change = Change(read_state(directory), "", self._now())
            change.stop(new, why="the handler failed")
            if change.is_changed:
                write_change(directory, change, FileWrites(sync=True))
        for each in reports:
            if each.times:
                _log.warning(
                    "group %s: %s stops at offset %d, where the handler failed (%d): %s",
                    group.group, each.queue, each.next_offset, each.times, each.error,
                )  # fmt: skip

    def _write_dead(self, session: WriteSession, group: str, reports: Sequence[QueueReport]) -> None:
        store = session.store()
        for report in reports:
            queue = store.queue(report.queue.topic, report.queue.queue_id)
            for dead in report.dead:
                piece = queue.piece(dead.offset, dead.offset + 1)
                messages, _, damaged = read_stored_slice(queue.store.log, piece)
                if damaged:
                    raise damaged[0].error
                if not len(messages):
                    _log.warning(
                        "group %s: %s: the message at offset %d failed %d times and no longer exists: "
                        "no dead letter is written", group, report.queue, dead.offset, dead.times + 1,
                    )  # fmt: skip
                    continue
                made = give_up(
                    messages,
                    group,
                    reconsume_times=dead.times,
                    max_reconsume_times=self.max_reconsume_times,
                    now_ms=self._now(),
                    born_host=(own_address(), 0),
                    offset_range=(queue.min_offset, queue.max_offset),
                )
                session.append(made.messages, new_topics=made.new_topics)
                _log.warning(
                    "group %s: %s: the message at offset %d failed %d times and is a dead letter now",
                    group, report.queue, dead.offset, dead.times + 1,
                )  # fmt: skip

    def _parsed(self) -> tuple[ReadOptions, GroupOptions]:
        options = parse_read_options(self._options, where=STREAM)
        group = options.group
        if group is None:
            raise OptionError("Orderly: expected the option group among the options of the query")
        if options.split_by != WHOLE_QUEUE and group.consumers is None:
            raise OptionError(
                "Orderly: expected partitions of whole queues; set splitBy=wholeQueue (or consumers) in the "
                "options of the query, and pass the same options to Orderly"
            )
        if group.message_model == BROADCASTING or (group.offset_store == "none" and not group.group_path):
            raise OptionError(
                "Orderly: expected a group that keeps its offsets, found messageModel=BROADCASTING or "
                "offsetStore=none; the place of a failure would be lost"
            )
        return options, group

    def _roots(self) -> dict[str, str]:
        return {store.broker_name: store.path for store in open_stores(self._parsed()[0])}

    def _directory(self, roots: Mapping[str, str]) -> str:
        options, group = self._parsed()
        directory = group_directory(
            group.make_offset_store(roots),
            group=group.group,
            roots=roots,
            paths=options.paths,
            group_path=group.group_path,
        )
        if directory is None or not has_state(directory):
            raise OptionError(
                f"Orderly: expected a running query of group {group.group} in {directory}, found none; pass "
                "the options of the query to Orderly, the path included"
            )
        return directory

    def _now(self) -> int:
        return time.time_ns() // 1_000_000 if self._clock_ms is None else self._clock_ms()


def _text(value: object) -> str:
    """An option's value as `DataStreamReader.option` converts it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _refuse_cut_queues(reports: Sequence[QueueReport]) -> None:
    seen: set[MessageQueue] = set()
    for each in reports:
        if each.queue in seen:
            raise OptionError(
                f"{each.queue}: expected the rows of the queue in one partition, found them in two; set "
                "splitBy=wholeQueue in the query, and leave out joins and repartitions before foreachBatch"
            )
        seen.add(each.queue)

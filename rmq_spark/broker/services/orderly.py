"""What the driver of an orderly query writes after a micro-batch: dead letters, and where queues stopped.

RocketMQ counts the failures of an orderly handler in the memory of the client. Here the count and the place
are in `group.json`, together with a reset of the queue, so that they survive a restart of the query.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rmq_spark.consume.consumer import BROADCASTING, MessageQueue
from rmq_spark.consume.group.change import Change, write_change
from rmq_spark.consume.group.directory import group_directory, has_state, read_state
from rmq_spark.consume.orderly import FOREVER, DeadLetter, QueueReport, Stop
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import WHOLE_QUEUE, ReadOptions, parse_read_options
from rmq_spark.plan.starts import open_stores
from rmq_spark.produce.send_back import give_up
from rmq_spark.produce.unique_ids import own_address
from store_format.bookkeeping.ledger import ServiceTurn
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.display.text import shown
from store_format.errors import OptionError
from store_format.files.lock import StoreLock
from store_format.files.write import FileWrites
from store_format.message.encode import StoredMessages
from store_format.read.store import Queue
from store_format.read.stored_messages import read_stored

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
        self._options = {  # as `DataStreamReader.option` converts them
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in options.items()
        }
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

        After a crash before or within this the micro-batch is handled again; no dead letter is written twice.

        Raises OptionError if a queue was in two partitions, and StoreInUseError if a dead letter cannot be
        written because a broker has the store.
        """
        _refuse_cut_queues(reports)
        if not any(each.times or each.dead or each.queue in stops for each in reports):
            return
        group = self._parsed()[1]
        roots = self._roots()
        directory = self._directory(roots)
        entries = read_state(directory).queues
        resets = {each.queue: entries[each.queue].reset if each.queue in entries else 0 for each in reports}
        for broker, root in roots.items():
            of_broker = [each for each in reports if each.dead and each.queue.broker_name == broker]
            if of_broker:
                with write_session(
                    root, CommitOptions(lock_timeout=_LOCK_SECONDS, clock=self._now)
                ) as session:
                    self._write_dead(session, group.group, of_broker, resets)
        new = {
            each.queue: Stop(each.next_offset, each.times, self._now() + self._pause_ms if each.times else 0)
            for each in reports
            if each.times or each.dead or each.queue in stops
        }
        with StoreLock(directory, timeout=_LOCK_SECONDS):
            change = Change(read_state(directory), "", self._now())
            change.stop(new, why="the handler failed")
            if change.is_changed:
                write_change(directory, change, FileWrites(sync=True))
        for each in reports:
            if each.times:
                _log.warning(
                    "group %s: %s stops at offset %d, where the handler failed (%d): %s",
                    group.group, each.queue, each.next_offset, each.times, shown(each.error),
                )  # fmt: skip

    def _write_dead(
        self,
        session: WriteSession,
        group: str,
        reports: Sequence[QueueReport],
        resets: Mapping[MessageQueue, int],
    ) -> None:
        """Appends the dead letters of each queue, unless a run that was killed has done so already.

        The ledger has the physical offset behind the last dead letter's origin, and the reset number of the
        queue at that time, below 0: after a reset by hand, a message may become a dead letter again.
        """
        store = session.store()
        for report in reports:
            queue = store.queue(report.queue.topic, report.queue.queue_id)
            turn = ServiceTurn(
                f"orderly/{group}/{queue.topic}/{queue.queue_id}", 0, -1 - resets[report.queue]
            )
            done = session.ledger().resume(turn.part, turn.began, store.log)
            messages, times = _dead_messages(queue, report.dead, done if done != turn.began else 0)
            if not len(messages):
                continue
            made = give_up(
                messages,
                group,
                reconsume_times=times,
                max_reconsume_times=self.max_reconsume_times,
                now_ms=self._now(),
                born_host=(own_address(), 0),
                offset_range=(queue.min_offset, queue.max_offset),
            )
            turn = replace(turn, number=int(messages.physical_offsets[-1]) + 1)
            session.append(made.messages, turn=turn, new_topics=made.new_topics)
            _log.warning(
                "group %s: %s: dead letters now, after the last delivery failed too: %s",
                group, report.queue, ", ".join(f"offset {offset}" for offset in messages.queue_offsets),
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


def _dead_messages(
    queue: Queue, dead: Sequence[DeadLetter], first: int
) -> tuple[StoredMessages, NDArray[np.int64]]:
    """The stored messages that lie at or behind the physical offset `first`, and their reconsumeTimes.

    Messages that retention has deleted are left out, with a warning. Raises CorruptStoreError for damage.
    """
    units = [queue.piece(each.offset, each.offset + 1).read()[1] for each in dead]
    kept = [n for n, unit in enumerate(units) if len(unit) and int(unit["physical_offset"][0]) >= first]
    offsets, sizes = (
        np.array([int(units[n][name][0]) for n in kept], np.int64) for name in ("physical_offset", "size")
    )
    messages, places, damaged = read_stored(queue.store.log, offsets, sizes)
    if damaged:
        raise damaged[0].error
    gone = sum(not len(unit) for unit in units) + len(kept) - len(places)
    if gone:
        _log.warning(
            "%s: %d messages that failed no longer exist: no dead letters are written for them",
            MessageQueue.of(queue), gone,
        )  # fmt: skip
    return messages, np.array([dead[kept[place]].times for place in places.tolist()], np.int64)


def _refuse_cut_queues(reports: Sequence[QueueReport]) -> None:
    seen: set[MessageQueue] = set()
    for each in reports:
        if each.queue in seen:
            raise OptionError(
                f"{each.queue}: expected the rows of the queue in one partition, found them in two; set "
                "splitBy=wholeQueue in the query, and leave out joins and repartitions before foreachBatch"
            )
        seen.add(each.queue)

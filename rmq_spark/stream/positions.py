"""The offsets of a stream: the first one of a query, and from the offset that Spark committed the next one.

This module does not know Spark. Offsets hold everything that outlives a process. What is remembered here
only saves work: after a restart it is found again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.stream_offset import HELD, StreamOffset
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.garbage import collector_paused
from rmq_spark.plan.splits import Plan, Split
from rmq_spark.plan.starts import (
    refuse_unknown,
    refuse_unknown_names,
    start_by_options,
    warn_of_deleted_times,
    warn_of_no_match,
)
from rmq_spark.stream.plan import Limits, Pace, admit, plan_stream
from rmq_spark.stream.stores import Losses, StreamStores
from store_format import Queue
from store_format.display.text import shown
from store_format.errors import OptionError
from store_format.follow.log_tail import (
    offset_behind,
    physical_offset_of,
    place_at,
    place_before,
    replaced_since,
)

_log = logging.getLogger(__name__)

_WAITS = "The stream waits for a topic that matches"
_Json = dict[str, object]


@dataclass(slots=True)
class Step:
    """What the next micro-batch could read: [begin, stop) of each queue."""

    begins: dict[MessageQueue, int] = field(default_factory=dict)
    stops: dict[MessageQueue, int] = field(default_factory=dict)
    # those of `begins` that differ from the offset before
    moved: dict[MessageQueue, int] = field(default_factory=dict)
    # starts of empty queues: they alone make no batch
    waiting: dict[MessageQueue, int] = field(default_factory=dict)
    # positions of queues that the options do not choose now
    kept: dict[MessageQueue, int] = field(default_factory=dict)
    left_out: int = 0  # queues of the offset before that the next offset does not have


def _monotonic_ms() -> int:
    """A function with a name: readers are pickled to tasks, and a lambda cannot be pickled."""
    return time.monotonic_ns() // 1_000_000


class StreamPositions:
    """The offsets of one stream, as the JSON that Spark stores. Only `maxTriggerDelay` uses `clock_ms`, which
    is monotonic.
    """

    def __init__(
        self,
        stores: StreamStores,
        *,
        clock_ms: Callable[[], int] = _monotonic_ms,
    ) -> None:
        self.stores = stores
        self._clock_ms = clock_ms
        self._limits = Limits.of(stores.options)
        self._pace = Pace(self._limits)
        self._losses = Losses(stores.options.fail_on_data_loss)
        self._initial: _Json | None = None
        self._bound: dict[MessageQueue, int] | None = None
        self._resumed = False
        self._has_compared = False
        # (topic, broker) of the checkpoint that the stores no longer have
        self._deleted: frozenset[tuple[str, str]] = frozenset()
        # (version of the stores, offset): at this version there was nothing to read after the offset
        self._idle: tuple[int, StreamOffset] | None = None
        self._reported: tuple[int, _Json] | None = None
        # the last answer, so that it need not be parsed again
        self._last: tuple[_Json, StreamOffset] | None = None
        # the last question, for the same reason
        self._begun: tuple[_Json, StreamOffset] = ({}, StreamOffset())

    @collector_paused()
    def initial(self) -> _Json:
        """The first offset of a new query. Spark asks more than once, and always gets the same answer.

        It has `at`, because the topic may be deleted and created again before the first micro-batch, and
        `starts`, because Spark repeats an empty first micro-batch from the answer of a later process.
        """
        if self._initial is None:
            self.stores.look(anew=True)
            starts = _first_starts(self.stores)
            at = self._places(starts, Step(), StreamOffset())
            self._initial = StreamOffset(starts, starts, at=at).to_json()
        return self._initial

    def bound_now(self) -> None:
        """From now on the stream ends where the queues end at this moment (Trigger.AvailableNow)."""
        # not a fresh look, which reads much of the log: the first offset has just made one
        self.stores.look()
        self._bound = {key: queue.max_offset for key, queue in self.stores.queues.items()}
        self._idle = None

    def report(self) -> _Json | None:
        """Where the queues ended at the last look, for Spark's progress; with `$held`, the bytes of the
        commitlog files of each broker that are not read yet.
        """
        version = self.stores.version
        if not version:
            return None
        if self._reported is None or self._reported[0] != version:
            positions = {key: queue.max_offset for key, queue in self.stores.queues.items()}
            logs = {store.broker_name: store.log for store in self.stores.stores}
            held = {broker: log.held_bytes for broker, log in logs.items() if log.growing_files is not None}
            self._reported = version, StreamOffset(positions).to_json() | ({HELD: held} if held else {})
        return self._reported[1]

    @collector_paused()
    def latest(self, start: _Json) -> _Json:
        """The end of the micro-batch that begins at `start`; `start` itself if there is nothing to read.

        Raises OffsetOutOfRangeError for messages that no longer exist, unless failOnDataLoss is false.
        """
        version = self.stores.look()
        previous = self._read(start)
        self._compare(previous)
        self._at_boundary(previous)
        if self._idle == (version, previous):
            return start
        is_first = start == self._initial
        if self._initial is None and not self._resumed:
            self._resume(previous)
        step = self._step(previous, is_first=is_first)
        total = sum(step.stops.values()) - sum(step.begins.values())
        if not total and not step.moved and not step.left_out:
            self._idle = version, previous
            self._forget_replaced()
            return start
        if self._bound is None and total and self._pace.waits(total, self._clock_ms()):
            return start
        self._forget_replaced()  # not earlier: the offset has to say where the batch begins
        offset = self._end(step, previous, is_first=is_first)
        if offset == previous:
            offset = replace(offset, again=True)
        end = offset.to_json()
        self._last = end, offset
        if not step.waiting and (not self._limits.has_maximum or offset.positions == step.stops | step.kept):
            self._idle = version, offset
        return end

    def _forget_replaced(self) -> None:
        self.stores.replaced.clear()
        self._losses.forget_replaced()

    def _compare(self, previous: StreamOffset) -> None:
        """Adds to `stores.replaced` the queues whose message before the position is another one now.

        Once after a restart, and for queues that were gone for a while. While a queue is known, the looks at
        its store find out.
        """
        names = self.stores.gone & previous.at.keys() if self._has_compared else previous.at.keys()
        self._has_compared, self.stores.gone = True, set()
        for key in names:
            queue = self.stores.queues.get(key)
            position = previous.positions.get(key)
            if queue is None:
                self.stores.gone.add(key)  # Spark may ask from here again when the topic is back
            elif position is not None and key not in self.stores.replaced:
                replaced = replaced_since(queue, position, previous.at[key])
                if replaced is not None:
                    self.stores.replaced[key] = replaced

    def _resume(self, previous: StreamOffset) -> None:
        """Checks the names in the options against the stores and the checkpoint, once after a restart.

        Without the check a misspelt topic would look like a topic without new messages. A chosen topic that
        was deleted is a loss, which `_step` reports.
        """
        self._resumed = True
        _log.info("continuing from the checkpoint; the starting… options apply to new queries only")
        stores = self.stores
        kept = [key for key in previous.positions if not stores.chooses(key)]
        queues = [*stores.queues, *previous.positions.keys() - set(kept)]
        refuse_unknown_names(stores.stores, stores.options, queues)
        warn_of_no_match(stores.stores, stores.options, queues, _WAITS)
        self._deleted = stores.deleted_topics({(topic, broker) for topic, broker, _ in kept})
        for topic, broker in sorted(self._deleted):
            _log.warning(
                "topic %s of %s was deleted: its positions are removed from the checkpoint",
                shown(topic),
                shown(broker),
            )

    def _read(self, start: _Json) -> StreamOffset:
        """`start` as an offset. Parsed once, since Spark passes the same JSON at every poll."""
        if self._begun[0] != start:
            is_last = self._last is not None and self._last[0] == start
            self._begun = (
                start,
                self._last[1] if is_last and self._last is not None else StreamOffset.from_json(start),
            )
        return self._begun[1]

    @collector_paused()
    def plan(self, start: _Json, end: _Json) -> Plan:
        """The splits of the micro-batch between two offsets, which Spark may repeat.

        Raises OffsetOutOfRangeError for messages that no longer exist, unless failOnDataLoss is false.
        """
        begun, ended = StreamOffset.from_json(start), StreamOffset.from_json(end)
        self.begin_batch(begun, ended)
        clients = self.clients_of(begun, ended)
        if begun == ended and clients is None:
            # Spark plans the newest offset of the checkpoint at each restart. Its `$from` is of a batch that
            # was read already, whose messages may be deleted since.
            return Plan([Split()])
        return plan_stream(
            self.stores.options,
            self.stores,
            begun,
            ended,
            clients=clients,
            deleted=frozenset() if self._is_own(ended) else self._deleted_since(ended),
        )

    def _is_own(self, end: StreamOffset) -> bool:
        """Whether this process has made the offset; else Spark repeats a batch of an earlier one."""
        return self._last is not None and self._last[1] == end

    def _deleted_since(self, end: StreamOffset) -> frozenset[MessageQueue]:
        """The queues of a repeated batch whose topic was deleted and created again.

        Their messages no longer exist, and the new topic is read from its first message by the next batch.
        """
        if end.at:
            self.stores.look()
        replaced = {
            key: replaced_since(self.stores.queues[key], end.positions[key], at)
            for key, at in end.at.items()
            if key in self.stores.queues and key in end.positions
        }
        return frozenset(key for key, each in replaced.items() if each is not None and each.begin is not None)

    def begin_batch(self, start: StreamOffset, end: StreamOffset) -> None:
        """Called before a micro-batch is planned, also before one that Spark repeats."""

    def clients_of(self, start: StreamOffset, end: StreamOffset) -> Sequence[frozenset[MessageQueue]] | None:
        """The queues of each partition of the micro-batch; None if the planning decides."""
        return None

    def _at_boundary(self, previous: StreamOffset) -> None:
        """Called between micro-batches, before new messages are looked for."""

    def _end(self, step: Step, previous: StreamOffset, *, is_first: bool) -> StreamOffset:
        stops = step.stops
        if self._limits.has_maximum:
            counts = admit(self.stores, step.begins, stops, self._limits)
            stops = {key: begin + counts.get(key, 0) for key, begin in step.begins.items()}
        positions = step.kept | step.waiting | stops
        starts = step.begins if is_first else step.moved
        at = self._gone(positions, previous) | self._places(positions, step, previous)
        return StreamOffset(positions, step.waiting | starts, at=at)

    def _gone(self, positions: Mapping[MessageQueue, int], previous: StreamOffset) -> dict[MessageQueue, int]:
        """The place of the last message that was read from each queue that is gone.

        As long as the commitlog has that message: if the queue comes back, the message may come back with it.
        If the log ends before it now, all later messages are behind that end.
        """
        logs = {each.store.broker_name: (each.store.log, each.log_end) for each in self.stores.followers}
        found = {}
        for key, place in previous.at.items():
            if key in positions:
                continue
            log, end = logs.get(key.broker_name, (None, 0))
            if log is not None and physical_offset_of(place) >= end > 0 and not log.has_message_at(end):
                place = place_at(end - 1, 0)
            if log is None or physical_offset_of(place) >= log.min_offset:
                found[key] = place
        return found

    def _places(
        self, positions: Mapping[MessageQueue, int], step: Step, previous: StreamOffset
    ) -> dict[MessageQueue, int]:
        """The place of the message before each position: at most two reads, for a moved position."""
        found = {}
        before, queues = previous.positions.get, self.stores.queues.get
        for key, position in positions.items():
            place = None
            if before(key) == position and key not in step.moved:
                place = previous.at.get(key)
            if place is None and (queue := queues(key)) is not None:
                place = place_before(queue, position)
            if place is not None:
                found[key] = place
        return found

    def _step(self, previous: StreamOffset, *, is_first: bool) -> Step:
        self._refuse_other_brokers(previous)
        step = Step()
        queues, replaced, begins, stops = self.stores.queues, self.stores.replaced, step.begins, step.stops
        for key, position in previous.positions.items():
            queue = queues.get(key)
            if queue is None:
                if self.stores.chooses(key):
                    step.left_out += 1
                    self._losses.vanished(key, position)
                elif key[:2] in self._deleted:
                    step.left_out += 1
                else:
                    step.kept[key] = position
                continue
            begin = position
            if key in replaced:
                begin = self._losses.replaced(key, position, queue, replaced[key])
            elif not queue.min_offset <= position <= queue.max_offset:
                begin = self._losses.begin(key, position, queue)
            if begin != position:
                step.moved[key] = begin
            begins[key], stops[key] = begin, self._stop(key, begin, queue)
        for key in queues.keys() - previous.positions.keys():
            begin = queues[key].min_offset  # a queue that appeared while the query runs
            if key in previous.at:  # or one that was gone: its earlier messages are not read a second time
                begin = max(begin, offset_behind(queues[key], previous.at[key]))
            stop = self._stop(key, begin, queues[key])
            if begin < stop:  # an empty queue would make an empty micro-batch
                step.begins[key], step.stops[key] = begin, stop
                step.moved[key] = begin
        self._losses.report()
        return step

    def _stop(self, key: MessageQueue, begin: int, queue: Queue) -> int:
        stop = queue.max_offset
        if self._bound is not None:
            stop = min(stop, self._bound.get(key, begin))
        return stop if stop > begin else begin

    def _refuse_other_brokers(self, previous: StreamOffset) -> None:
        """A renamed store would look as if all its queues were deleted and others created."""
        known = {store.broker_name for store in self.stores.stores}
        others = sorted({broker for _, broker, _ in previous.positions} - known)
        if others:
            raise OptionError(
                f"the checkpoint reads broker {others[0]} and the path has "
                f"{', '.join(sorted(known)) or 'none'}; set brokerName={others[0]} if it is the same store, "
                "or start with a new checkpoint"
            )


def _first_starts(stores: StreamStores) -> dict[MessageQueue, int]:
    """The start of each queue in a new query, by the `starting…` options.

    Raises OptionError for options that name no queue of the stores.
    """
    refuse_unknown(stores.stores, stores.options, stores.queues.keys())
    warn_of_no_match(stores.stores, stores.options, stores.queues.keys(), _WAITS)
    starts = {key: _first_start(key, queue, stores.options) for key, queue in stores.queues.items()}
    warn_of_deleted_times(((stores.queues[key], start) for key, start in starts.items()), stores.options)
    return starts


def _first_start(key: MessageQueue, queue: Queue, options: ReadOptions) -> int:
    offset = start_by_options(queue, options)
    low, high = queue.min_offset, queue.max_offset
    if low <= offset <= high or high < offset <= queue.held_max_offset:
        return offset
    message = f"{options.starting.option} {offset} is not in the queue, which holds {low} to {high}"
    losses = Losses(options.fail_on_data_loss)
    advice = "correct it, or set failOnDataLoss=false to read the offsets that exist"
    losses.add(key, max(low - offset, 0), message, advice)
    losses.report()
    return min(max(offset, low), high)

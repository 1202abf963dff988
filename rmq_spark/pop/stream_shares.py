"""What the members of a group share, as one stream sees it: each topic in each store has an in-flight log."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.pop_offset import PoppedRange
from rmq_spark.options.pop_options import PopOptions
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.unknown_names import refuse_unknown_names
from rmq_spark.stream.admission import admit
from rmq_spark.stream.losses import Losses
from rmq_spark.stream.rates import Limits
from rmq_spark.stream.stores import StreamStores
from store_format.pop.log import InFlightLog, in_flight_directory
from store_format.pop.records import PointKey
from store_format.pop.state import PopState

_log = logging.getLogger(__name__)

# Fewer messages are not divided among members: a micro-batch costs Spark 0.3 s, whatever its size.
_UNDIVIDED = 1_000

_ShareKey = tuple[str, str]  # topic and broker name


@dataclass(frozen=True, slots=True)
class Ready:
    """The messages that nobody has taken: [begin, stop) of each queue. `members` share them."""

    begins: Mapping[MessageQueue, int]
    stops: Mapping[MessageQueue, int]
    members: int = 1

    @property
    def total(self) -> int:
        return sum(stop - self.begins[key] for key, stop in self.stops.items())


class StreamShares:
    """The group's shares of the subscribed topics in all stores. Its methods may be called by two threads."""

    def __init__(
        self,
        stores: StreamStores,
        scan: Scan,
        options: PopOptions,
        owner: str,
        *,
        clock_ms: Callable[[], int],
    ) -> None:
        self.now_ms = clock_ms
        self._stores = stores
        self._scan = scan
        self._options = options
        self._owner = owner
        self._losses = Losses(stores.options.fail_on_data_loss)
        self._logs: dict[_ShareKey, InFlightLog] = {}
        topics = stores.options.topics.names
        # name of the topic, or of a retry topic -> the topic, and the flag of receipt handles
        self._flags = {topic: (topic, 0) for topic in topics} | options.retry_topics(topics)

    def open(self) -> None:
        """Joins the group. Raises OptionError for a topic that no store has."""
        options = self._stores.options
        refuse_unknown_names(self._stores.stores, options, list(self._stores.queues))
        for store in self._stores.stores:
            for topic in options.topics.names:
                directory = in_flight_directory(store.path, self._options.group, topic)
                log = self._logs[topic, store.broker_name] = InFlightLog(directory)
                log.run(lambda state: state.open() if state.is_closed else None)

    def close(self) -> None:
        """Leaves the group."""
        for log in self._logs.values():
            log.close()

    # ---- between micro-batches -----------------------------------------------------------------------------

    def acknowledge(self, ranges: Sequence[PoppedRange]) -> None:
        """Acknowledges the ranges of a micro-batch that Spark has committed."""
        for log, parts in self._by_log(ranges):

            def change(state: PopState, parts: Sequence[PoppedRange] = parts) -> None:
                for key in self._keys(state, parts):
                    state.ack(key)

            log.run(change)

    def orphans(self, ranges: Sequence[PoppedRange]) -> list[PoppedRange]:
        """What this query took for an offset that Spark never stored: its check points beside `ranges`.

        Their invisible time begins again.
        """
        known = frozenset(ranges)
        found: list[PoppedRange] = []
        for share, log in self._logs.items():

            def change(state: PopState, share: _ShareKey = share) -> list[PoppedRange]:
                now, renewed = self.now_ms(), []
                for point in [each for each in state.check_points() if each.owner == self._owner]:
                    queue = self._queue(share, point.flag, point.queue_id)
                    each = PoppedRange(queue, point.start, point.offsets[-1] + 1, point.pop_time)
                    until = now - point.pop_time + self._options.invisible_ms
                    if each not in known and state.renew(point.key, until):
                        renewed.append(each)
                return renewed

            found += log.run(change)
        return found

    def ready(self) -> Ready:
        """The messages that nobody has taken, as of the last look at the stores."""
        queues = self._queues()
        begins: dict[MessageQueue, int] = {}
        members: set[str] = set()
        for share, log in self._logs.items():

            def change(
                state: PopState, queues: Sequence[MessageQueue] = queues.get(share, ())
            ) -> tuple[dict[MessageQueue, int], set[str]]:
                return {key: self._begin(state, key) for key in queues}, _owners(state)

            found, owners = log.run(change)
            begins |= found
            members |= owners
        self._losses.report()
        stops = {key: max(self._stores.queues[key].max_offset, begin) for key, begin in begins.items()}
        return Ready(begins, stops, len(members | {self._owner}))

    def take(self, ready: Ready, limits: Limits) -> list[PoppedRange]:
        """Takes messages within the limits. May return nothing: if none matches, or others were faster."""
        share = max(_UNDIVIDED, math.ceil(ready.total / ready.members))
        limit = share if limits.max_offsets is None else min(limits.max_offsets, share)
        counts = admit(self._stores, ready.begins, ready.stops, replace(limits, max_offsets=limit))
        wanted: dict[_ShareKey, list[tuple[MessageQueue, int, int, Sequence[int]]]] = {}
        for key, count in counts.items():
            if count:
                start, stop = ready.begins[key], ready.begins[key] + count
                matching = self._matching(key, start, stop)
                wanted.setdefault(self._share(key), []).append((key, start, stop, matching))
        found = []
        for share_key, parts in wanted.items():

            def change(
                state: PopState, parts: Sequence[tuple[MessageQueue, int, int, Sequence[int]]] = parts
            ) -> list[PoppedRange]:
                return [each for part in parts for each in self._hand_out(state, *part)]

            found += self._logs[share_key].run(change)
        return found

    # ---- while a micro-batch runs --------------------------------------------------------------------------

    def renew(self, ranges: Sequence[PoppedRange], invisible_ms: int) -> list[PoppedRange]:
        """Makes the ranges invisible for that time from now on. Returns those that are taken no longer."""
        lost: list[PoppedRange] = []
        for log, parts in self._by_log(ranges):

            def change(state: PopState, parts: Sequence[PoppedRange] = parts) -> list[PoppedRange]:
                now = self.now_ms()
                return [
                    part
                    for part in parts
                    if not all(
                        [state.renew(key, now - key[3] + invisible_ms) for key in self._keys(state, [part])]
                        or [False]
                    )
                ]

            lost += log.run(change)
        return lost

    def revive(self) -> None:
        """Makes what dead members had taken visible again, once its invisible time has passed."""

    # ---- one share -----------------------------------------------------------------------------------------

    def _share(self, key: MessageQueue) -> _ShareKey:
        return self._flags[key.topic][0], key.broker_name

    def _queue(self, share: _ShareKey, flag: int, queue_id: int) -> MessageQueue:
        name = next(name for name, known in self._flags.items() if known == (share[0], flag))
        return MessageQueue(name, share[1], queue_id)

    def _queues(self) -> dict[_ShareKey, list[MessageQueue]]:
        found: dict[_ShareKey, list[MessageQueue]] = {}
        for key in self._stores.queues:
            if key.topic in self._flags:
                found.setdefault(self._share(key), []).append(key)
        return found

    def _by_log(self, ranges: Sequence[PoppedRange]) -> list[tuple[InFlightLog, list[PoppedRange]]]:
        """The ranges of each log. Ranges of topics that are subscribed no longer are left out."""
        found: dict[_ShareKey, list[PoppedRange]] = {}
        for each in ranges:
            if each.queue.topic in self._flags and self._share(each.queue) in self._logs:
                found.setdefault(self._share(each.queue), []).append(each)
        return [(self._logs[key], parts) for key, parts in found.items()]

    def _keys(self, state: PopState, ranges: Sequence[PoppedRange]) -> list[PointKey]:
        """The check points of the ranges: one each, or several small ones if a broker had them meanwhile."""
        found: list[PointKey] = []
        for queue, start, stop, pop_time in ranges:
            flag = self._flags[queue.topic][1]
            key = flag, queue.queue_id, start, pop_time
            point = state.check_point(key)
            if point is not None and point.offsets[-1] + 1 >= stop:
                found.append(key)
                continue
            known = state.queues.get((flag, queue.queue_id))
            found += [
                (flag, queue.queue_id, *place)
                for place in (known.check_points if known is not None else ())
                if place[1] == pop_time and start <= place[0] < stop
            ]
        return found

    def _begin(self, state: PopState, key: MessageQueue) -> int:
        """The next offset of a queue. A queue that the group has not read yet gets its first one."""
        flag = self._flags[key.topic][1]
        queue, known = self._stores.queues[key], state.queues.get((flag, key.queue_id))
        if known is None:
            first = flag or self._options.from_first
            offset = queue.min_offset if first else max(queue.max_offset - 1, queue.min_offset)
            state.set_offset(flag, key.queue_id, offset)
            return offset
        offset = self._losses.begin(key, known.next_offset, queue)
        if offset < known.next_offset and not self._stores.options.fail_on_data_loss:
            state.set_offset(flag, key.queue_id, offset)
        return offset

    def _matching(self, key: MessageQueue, start: int, stop: int) -> Sequence[int]:
        queue = self._stores.queues[key]
        return self._scan.matching_offsets(queue.store, queue.piece(start, stop))

    def _hand_out(
        self, state: PopState, key: MessageQueue, start: int, stop: int, matching: Sequence[int]
    ) -> list[PoppedRange]:
        """Takes what other members have left of [start, stop) since `ready`. One range, or none."""
        flag = self._flags[key.topic][1]
        known = state.queues[flag, key.queue_id]
        if not known.next_offset < stop:
            return []
        if known.next_offset > start:
            matching = matching[
                next((i for i, at in enumerate(matching) if at >= known.next_offset), len(matching)) :
            ]
        if not matching:
            state.skip(flag, key.queue_id, stop)
            return []
        point = state.hand_out(
            flag,
            key.queue_id,
            matching,
            stop,
            self.now_ms(),
            self._options.invisible_ms,
            self._owner,
        )
        return [PoppedRange(key, point.start, matching[-1] + 1, point.pop_time)]


def _owners(state: PopState) -> set[str]:
    return {point.owner for point in state.check_points() if point.owner}

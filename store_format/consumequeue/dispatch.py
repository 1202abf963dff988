"""The consume queue entries of messages, as the broker would write them.

Which entries a message has follows from its stored unit alone (spec 3.2, 3.5, 3.6). This is the rule of
DefaultMessageStore.CommitLogDispatcherBuildConsumeQueue. A writer that rebuilds queues and a reader that does
without them both call `find_entries`.

Entries become units, so that those which a crash kept from being written can be added. `kernels/dispatch.py`
looks the queues of messages up by number.

Brokers have stored two messages that claim one place, which is a topic, a queue id and a queue offset: in
batches, in light queues, after a change of the master. The first counts
(ConsumeQueue.putMessagePositionInfo): a broker files the messages one after the other, and leaves out one
whose offset is before the end of the queue, so that it is in no queue. A message whose offset is behind the
end gets the next entry, which is another one's: such a message counts until the entries come to its offset. A
flipped bit makes both of a message.

The offsets of a queue begin at 0 again if its topic was deleted and created again: 1 follows then. A 0 that
no 1 follows, or that follows the queue's only message, is the second of two messages with offset 0. So is
each 0 that a broker files which makes the queue: no file shows a deletion.

A broker that starts after a stop in order files the messages behind the greatest end of a message that any
queue has (CommitLog.recoverNormally), and that at the end only if no other follows: of two messages of which
it files only the second, that one counts.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import distinct_values
from store_format.consumequeue.files import QUEUE_OFFSET_MAX, QueueBounds
from store_format.java.numbers import parse_long
from store_format.java.text import decode_utf8
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, OFFSET_MAX
from store_format.message import sysflag
from store_format.message.locate import UnitRefs, Units, inner_batches, locate
from store_format.message.properties import PropertyTable, tags_codes
from store_format.names import (
    DELAY,
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    QueueKey,
    is_light_queue,
)

# ---- which message counts ----------------------------------------------------------------------------------

# what a message claims: `batch_size` queue offsets from `offset` on
CLAIM = np.dtype([("physical", "i8"), ("offset", "i8"), ("batch_size", "i8")])

LOST_MAX = 1 << 22  # queue offsets in a row without a message: more are damage
_LOST_FILES_MAX = 256  # the same in files of the queue
_RUNS_MAX = 1 << 16  # of one queue: gaps behind them count as claimed

_Range = tuple[int, int]
_Rows = NDArray[np.void]


def lost_max(per_file: int) -> int:
    """How many queue offsets in a row may have no message, in a queue with `per_file` units a file."""
    return min(LOST_MAX, _LOST_FILES_MAX * per_file)


def _none_known() -> int:
    return -1


@dataclass(slots=True)
class Claims:
    """The queue offsets that the messages of one queue claim, taken in by `add` in the order of the log.

    The `runs` are ranges [first, stop) of claimed offsets, in ascending order. The queue begins with the
    message at the physical offset `begin`. `left` are the messages that do not count: those at physical
    offsets [low, high) with queue offsets [start, stop). `repeated` counts those of them since `begin`.

    A broker that starts files the messages from the physical offset `start` on, behind the queue's `end`, the
    queue offset behind its last entry (-1: the queue has no files, and begins with the message's own offset).
    The queue begins again with the message at the physical offset that `first` returns alone, to which its
    first entry leads (-1: not known). Only a second message with offset 0 asks for it.
    """

    runs: list[_Range] = field(default_factory=list)
    begin: int = -1
    left: list[tuple[int, int, int, int]] = field(default_factory=list)
    repeated: int = 0
    start: int = OFFSET_MAX
    end: int = -1
    first: Callable[[], int] = field(default=_none_known, compare=False)
    _is_built: bool = False  # by the broker
    _filed: int = -1  # the offset of the next entry, as a broker counts; -1 before the first one
    # a last message with offset 0: what follows decides
    _zero: _Rows = field(default_factory=lambda: np.empty(0, CLAIM), compare=False)

    @property
    def gaps(self) -> list[_Range]:
        """The ranges between others that no message claims."""
        return [(one[1], other[0]) for one, other in pairwise(self.runs)]

    @property
    def has_more(self) -> bool:
        """Whether the queue had more than one message, of which the log may have lost the first ones: then a
        new 0 with a 1 behind it begins it again.
        """
        return bool(self.runs) and self.runs[-1][1] > 1

    def copy(self) -> Self:
        found = copy(self)  # a fifth of the time of `replace`
        found.runs, found.left, found.first = [*self.runs], [*self.left], self.first
        return found

    def __getstate__(self) -> tuple[None, dict[str, object]]:
        """Without `first`, which may look at files: tasks ask which messages count, and add none."""
        return None, {name: getattr(self, name) for name in self.__slots__} | {"first": _none_known}

    def count(self, start: int = 0, stop: int = OFFSET_MAX) -> int:
        """How many of the queue offsets [start, stop) are claimed."""
        return sum(max(min(high, stop) - max(low, start), 0) for low, high in self.runs)

    def add(self, rows: _Rows) -> Iterator[tuple[bool, _Rows]]:
        """Takes in messages, records with the fields of `CLAIM`. Yields those that count, in runs of
        consecutive offsets, each with whether the queue begins again with it.
        """
        if len(self._zero) and rows["offset"][0] == self._zero["batch_size"][0]:
            rows = np.concatenate([self._zero, rows])
        self._zero = rows[:0]
        offsets, physical = rows["offset"], rows["physical"]
        stops = offsets + rows["batch_size"]
        edges = self._edges(physical, offsets, stops)
        for low, high in zip([0, *edges], [*edges, len(rows)], strict=True):
            first, stop, begin = int(offsets[low]), int(stops[high - 1]), int(physical[low])
            has_next = low + 1 < len(rows) and offsets[low + 1] == stops[low]
            may_begin = self.has_more and not first and self.first() < 0
            is_new = (may_begin and has_next) or (bool(self.runs) and not first and begin == self.first())
            is_new &= not self._is_built
            if may_begin and high == low + 1 == len(rows):
                self._zero = rows[low:]
            if is_new:
                self.runs, self.repeated, self._filed = [], 0, -1
                self.left = [(-1, begin, 0, OFFSET_MAX)]
            self.begin = self.begin if self.runs else begin
            if begin >= self.start:
                self._is_built = self.end <= 0
                self._filed, self.start = self.end, OFFSET_MAX
            done, behind = first, int(physical[high - 1]) + 1
            taken = self.take(first, stop, begin)
            if taken == [(first, stop)]:
                yield is_new, rows[low:high]
                continue
            for start, end in [*taken, (stop, stop)]:
                if done < start:
                    self._leave(begin, behind, done, start)
                if start < end:
                    inside = (offsets[low:high] >= start) & (stops[low:high] <= end)
                    if inside.any():  # not only a part of a batch
                        yield is_new, rows[low:high][inside]
                done = end

    def _edges(self, physical: _Ints, offsets: _Ints, stops: _Ints) -> list[int]:
        """Where the messages of the next run of consecutive offsets begin, of which a broker that starts
        files all or none; usually all are one run.
        """
        has_one_start = not physical[0] < self.start <= physical[-1]  # they are in the order of the log
        if has_one_start and (len(offsets) == 1 or (offsets[1:] == stops[:-1]).all()):
            return []
        starts = physical >= self.start
        cuts = (offsets[1:] != stops[:-1]) | (starts[1:] != starts[:-1])
        edges: list[int] = (np.flatnonzero(cuts) + 1).tolist()
        return edges

    def leave_far(self, first: int) -> int:
        """Leaves out the messages that are far behind all others, which are not fewer: their queue offsets
        are damaged. Returns how many messages there are. If the `first` offset in the log is among them, a
        broker begins the queue with it: they stay.
        """
        for number, (start, stop) in enumerate(self.gaps, 1):
            if first < stop > start + LOST_MAX and (far := self.count(stop)) <= self.count(0, start):
                self.left.append((0, OFFSET_MAX, stop, OFFSET_MAX))
                del self.runs[number:]
                return far
        return 0

    def take(self, first: int, stop: int, physical: int = -1) -> list[_Range]:
        """Takes in messages with the queue offsets [first, stop), the first of them at the physical offset.
        Returns those that they get, ranges in ascending order.
        """
        runs, counted, done = self.runs, list[_Range](), first
        # putMessagePositionInfo files each 0
        self._filed = first if self._filed < 0 else self._filed + (first == 0 < self._filed)
        is_behind = first > self._filed
        filed = stop if is_behind else min(max(first, self._filed), stop)
        self._filed = self._filed + stop - first if is_behind else max(self._filed, stop)
        low = bisect_left(runs, first, key=lambda run: run[1])
        high = bisect_right(runs, stop, key=lambda run: run[0])
        for start, end in [*runs[low:high], (stop, stop)]:
            if done < start:
                counted.append((done, min(start, stop)))
            over = max(start, filed), min(end, stop)  # a broker files these after all
            if over[0] < over[1]:
                self._leave(self.begin, physical, *over)
                counted.append(over)
            done = max(done, end)
        if low == high == len(runs) >= _RUNS_MAX:
            low, first = low - 1, runs[-1][0]
        both = [*runs[low:high], (first, stop)]
        runs[low:high] = [(min(both)[0], max(end for _, end in both))]
        return counted

    def _leave(self, low: int, high: int, start: int, stop: int) -> None:
        self.repeated += stop - start
        if len(self.left) < _RUNS_MAX:
            self.left.append((low, high, start, stop))


class Filing(NamedTuple):
    """What a broker that starts files: the messages from the physical offset `start` on, each behind the
    `ends` of its queue: the queue offset, and the physical offset behind the last message. By default nothing
    is known of that. `first_of` returns the physical offset to which the entry of queue offset 0 of a queue
    leads, -1 if that is not known.
    """

    start: int = OFFSET_MAX
    ends: Mapping[QueueKey, tuple[int, int]] = MappingProxyType({})
    first_of: Callable[[QueueKey], int] = lambda queue: -1

    @staticmethod
    def behind(queues: Collection[QueueBounds], start: int | None = None, *, is_old: bool = False) -> Filing:
        """That behind all queues of a store, after a crash from `start` on. After a stop in order a 4.9
        broker (`is_old`) begins at the end of all queues, another one behind it.
        """
        ends = {
            (queue.topic, queue.queue_id): (queue.max_offset, queue.last_physical_offset + queue.last_size)
            for queue in queues
        }
        simple = (ends[queue.topic, queue.queue_id][1] for queue in queues if queue.kind == "simple")
        last = max(simple, default=-1) + (not is_old)
        return Filing(last if start is None else start, ends)

    def claims(self, queue: QueueKey) -> Claims:
        """Those of one queue, without a message yet."""
        end, stop = self.ends.get(queue, (-1, -1))
        return Claims(start=max(self.start, stop), end=end, first=partial(self.first_of, queue))


NO_FILING = Filing()


def counted(rows: _Rows, claims: Claims | None = None) -> _Rows:
    """The messages of one queue that count, by their queue offsets, of all those in the order of the log."""
    parts = list[_Rows]()
    for is_new, part in (claims or Claims()).add(rows):
        parts = [part] if is_new else [*parts, part]
    later = np.concatenate(parts[::-1])  # of one offset the last that was given counts
    return later[np.unique(later["offset"], return_index=True)[1]]


# ---- the entries of messages -------------------------------------------------------------------------------

_NO_COMPACTED_OFFSET = -1

_Ints = NDArray[np.int64]

_QUEUES = 64
_NAMES_SIZE = 1 << 14

_LIGHT_QUEUE_ID = 0
_NOT_MULTI_DISPATCHED = (RETRY_PREFIX, SYSTEM_PREFIX)  # MultiDispatchUtils.isNeedHandleMultiDispatch
_MULTI_DISPATCH = INNER_MULTI_DISPATCH.encode() + b"\x01"
_BATCH_SIZE_MAX = 0x7FFF  # INNER_NUM is a Java short


# ---- which entries a message has ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundEntries:
    """Queue entries, one element each: the queue is `keys[key]`, the message is unit number `unit`.

    `offset` is the first queue offset of the entry, `count` how many it covers. The entries of a queue are in
    the order of the units.
    """

    keys: list[QueueKey]
    key: _Ints
    unit: _Ints
    offset: _Ints
    count: _Ints
    physical: _Ints
    size: _Ints

    def claims(self, rows: NDArray[Any]) -> NDArray[np.void]:
        """The chosen entries as `CLAIM` records."""
        claims = np.empty(len(self.key[rows]), CLAIM)
        claims["physical"], claims["offset"] = self.physical[rows], self.offset[rows]
        claims["batch_size"] = self.count[rows]
        return claims


def find_entries(
    units: Units,
    select: Callable[[str], bool] = lambda topic: True,
    batch_topics: Collection[str] | None = None,
) -> FoundEntries:
    """The queue entries that a broker would make of these units, in the queues of the selected topics.

    Messages of the transaction types prepared and rollback have none. `batch_topics` are the topics with
    queue.type=BatchCQ; None means that nobody knows them, and then the system flag of an inner batch, which a
    broker accepts in such topics alone, says that an entry covers several queue offsets.
    """
    kind = units.sys_flag & sysflag.TRANSACTION_MASK
    queued = np.flatnonzero((kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT))
    chosen = units if len(queued) == len(units) else units.select(queued)
    topics, topic_index = distinct_values(chosen.stored_topics())
    names = [decode_utf8(topic) for topic in topics]
    keys, key, offset, count = _own_entries(chosen, names, topic_index, batch_topics)
    is_selected = np.array([select(name) for name in names], bool)[topic_index]
    unit = np.flatnonzero(is_selected & has_queue_offset(offset))
    key, offset, count = key[unit], offset[unit], count[unit]
    light = _light_entries(chosen, names, topic_index, select)
    if light:
        numbers: dict[QueueKey, int] = {}
        light_key = [numbers.setdefault((name, _LIGHT_QUEUE_ID), len(numbers)) for name, _, _ in light]
        key = np.append(key, np.array(light_key) + len(keys))
        offset = np.append(offset, [number for _, number, _ in light])
        count = np.append(count, np.ones(len(light), np.int64))
        unit = np.append(unit, [i for _, _, i in light])
        keys += numbers
    physical = chosen.physical_offsets[unit]
    return FoundEntries(keys, key, queued[unit], offset, count, physical, chosen.refs.sizes[unit])


def has_queue_offset(offsets: _Ints) -> NDArray[np.bool_]:
    """True for numbers that can be queue offsets, together with those of a batch behind them."""
    return (offsets >= 0) & (offsets <= QUEUE_OFFSET_MAX)


def _own_entries(
    units: Units, names: list[str], topic_index: NDArray[np.int32], batch_topics: Collection[str] | None
) -> tuple[list[QueueKey], _Ints, _Ints, _Ints]:
    """(queues, and of each unit the queue, the queue offset and how many offsets the entry covers)."""
    combined = topic_index.astype(np.int64) << 32 | units.integers("queue_id").astype(np.int64) & 0xFFFFFFFF
    distinct, key = np.unique(combined, return_inverse=True)
    keys = [
        (names[topic], queue_id)
        for topic, queue_id in zip((distinct >> 32).tolist(), distinct.astype(np.int32).tolist(), strict=True)
    ]
    offset, count = units.integers("queue_offset").astype(np.int64), np.ones(len(units), np.int64)
    if batch_topics is None:
        batches = np.flatnonzero(inner_batches(units))
    else:
        batches = np.flatnonzero(np.array([name in batch_topics for name in names], bool)[topic_index])
    if len(batches):
        _set_batches(units, batches, offset, count)
    return keys, key, offset, count


def _set_batches(units: Units, rows: NDArray[np.intp], offset: _Ints, count: _Ints) -> None:
    """INNER_BASE and INNER_NUM count only together (CommitLog.checkMessageAndReturnSize)."""
    table = PropertyTable(units.select(rows).raw_properties())
    bases, sizes = table.values(INNER_BASE).to_pylist(), table.values(INNER_NUM).to_pylist()
    for row, base_text, size_text in zip(rows.tolist(), bases, sizes, strict=True):
        base, size = parse_long(base_text), parse_long(size_text)
        if base is not None and size is not None and base >= 0 and 0 < size <= _BATCH_SIZE_MAX:
            offset[row], count[row] = base, size


def _light_entries(
    units: Units, names: list[str], topic_index: NDArray[np.int32], select: Callable[[str], bool]
) -> list[tuple[str, int, int]]:
    """(light queue, queue offset, unit) of the light queues that messages name in their properties.

    The rules are those of MultiDispatchUtils and ConsumeQueue.multiDispatchLmqQueue.
    """
    if not len(units):
        return []
    properties = units.raw_properties().buffers()[2]
    if properties is None or _MULTI_DISPATCH not in properties.to_pybytes():
        return []
    is_dispatched = [name != SCHEDULE_TOPIC and not name.startswith(_NOT_MULTI_DISPATCHED) for name in names]
    table = PropertyTable(units.raw_properties())
    queues = table.values(INNER_MULTI_DISPATCH).to_pylist()
    offsets = table.values(INNER_MULTI_QUEUE_OFFSET).to_pylist()
    return [
        (queue, offset, unit)
        for unit, topic in enumerate(topic_index.tolist())
        if is_dispatched[topic] and queues[unit] and offsets[unit]
        for queue, offset in _light_queues(queues[unit], offsets[unit])
        if 0 <= offset <= QUEUE_OFFSET_MAX and select(queue)
    ]


def _light_queues(names: str, offsets: str) -> Iterator[tuple[str, int]]:
    """Names and offsets pair by pair; nothing when their numbers differ, as in the broker.

    Names that would leave the directory are skipped, and so are names without %LMQ%: a 5.x broker gives them
    no offset (LmqDispatch.wrapLmqDispatch), so an offset is a producer's own property, in the name of any
    topic. (A 4.9 broker with enableMultiDispatch does dispatch to them; those entries are neither read nor
    rebuilt.)
    """
    name_list, offset_list = _split(names), _split(offsets)
    if len(name_list) != len(offset_list):
        return
    for name, text in zip(name_list, offset_list, strict=True):
        offset = parse_long(text)
        if is_light_queue(name) and "/" not in name and offset is not None:
            yield name, offset


def _split(text: str) -> list[str]:
    """String.split(","): empty parts at the end are dropped."""
    return text.rstrip(",").split(",")


# ---- entries that become units -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class MadeEntries:
    """Entries of one queue, ascending: `units[i]` belongs at `queue_offsets[i]`.

    Units are CQ_UNIT records, or BATCH_CQ_UNIT in a batch queue. Offsets have gaps where messages are lost.
    `has_two_first`: two messages have offset 0.
    """

    queue_offsets: NDArray[np.int64]
    units: NDArray[np.void]
    has_two_first: bool = False

    @staticmethod
    def of(key: QueueKey, rows: _Rows, filing: Callable[[], Filing], *, batch: bool) -> MadeEntries:
        """The entries of those messages of one queue that count. `rows` are ENTRY_ROW records of all of them,
        in the order of the log; the `filing` decides if two claim one offset.
        """
        offsets = rows["offset"]
        has_two_first = bool(np.count_nonzero(offsets == 0) > 1)
        if (offsets[1:] < (offsets + rows["batch_size"])[:-1]).any():
            rows = counted(rows, filing().claims(key))
        return MadeEntries(rows["offset"].copy(), pack_entries(rows, batch=batch), has_two_first)

    @property
    def max_offset(self) -> int:
        """The queue offset behind the last of these entries."""
        is_batch = self.units.dtype == BATCH_CQ_UNIT
        return int(self.queue_offsets[-1]) + (int(self.units["batch_size"][-1]) if is_batch else 1)


ENTRY_ROW = np.dtype(
    [
        ("queue", "i8"),
        ("offset", "i8"),
        ("physical", "i8"),
        ("size", "i8"),
        ("tags", "i8"),
        ("store_timestamp", "i8"),
        ("batch_size", "i8"),
    ]
)


class Dispatch:
    """Collects the entries of messages, which must come in the order of the log."""

    def __init__(
        self,
        batch_topics: frozenset[str] | None,
        delay_levels_ms: tuple[int, ...],
        floor: Callable[[QueueKey], tuple[int, int]] = lambda _: (0, -1),
        places_only: bool = False,
    ) -> None:
        """`batch_topics` as for `find_entries`. `floor` gives a queue offset and a physical offset for each
        queue: entries of lower queue offsets, and of messages that are not behind the physical offset, are
        left out. With `places_only`, tags codes and times may be 0.
        """
        self._batch_topics, self._knows_batches = batch_topics or frozenset(), batch_topics is not None
        self._delay_levels_ms, self._floor, self._places_only = delay_levels_ms, floor, places_only
        self.count = 0  # entries collected since the last `take_rows`
        self.levels: set[tuple[QueueKey, int]] = set()  # of delayed messages: the queue, and what DELAY says
        self._queues: dict[QueueKey, int] = {}  # every queue of a message so far, and its number in `_names`
        self._names: list[QueueKey] = []
        self._floors: list[tuple[int, int]] = []  # by number
        self._rows: list[NDArray[np.void]] = []
        self._table: QueueTable | None = None

    def add(self, refs: UnitRefs) -> None:
        """Adds the entries of units. A message whose queue or offset is impossible adds none."""
        if kernels.ready(len(refs)):
            self._table = self._table or QueueTable(self._rules)
            entries, odd = self._table.entries(refs)
            if len(entries):
                self.count += len(entries)
                self._rows.append(entries.view(ENTRY_ROW).reshape(-1))
            if not len(odd):
                return
            refs = refs.select(odd)
        units, _ = locate(refs, verify_crc=False)
        found = find_entries(units, batch_topics=self._batch_topics if self._knows_batches else None)
        if not len(found.key):
            return
        queues = np.array([self._number(queue) for queue in found.keys], np.int64)[found.key]
        floors = np.array(self._floors, np.int64)[queues]
        chosen = np.flatnonzero((found.offset >= floors[:, 0]) & (found.physical > floors[:, 1]))
        if len(chosen):
            self.count += len(chosen)
            self._rows.append(self._entry_rows(units, found, chosen, queues[chosen]))

    def _rules(self, queue: QueueKey) -> QueueRules:
        is_odd = queue[0] == SCHEDULE_TOPIC or queue[0] in self._batch_topics
        number = self._number(queue)
        return QueueRules(number, *self._floors[number], 1 if is_odd else 2 * (not self._knows_batches))

    def _number(self, queue: QueueKey) -> int:
        number = self._queues.get(queue)
        if number is None:
            number = self._queues[queue] = len(self._names)
            self._names.append(queue)
            self._floors.append(self._floor(queue))
        return number

    def _entry_rows(
        self, units: Units, found: FoundEntries, entries: _Ints, queues: _Ints
    ) -> NDArray[np.void]:
        """The chosen `entries` as ENTRY_ROW; `queues` are the numbers of their queues."""
        rows = np.zeros(len(entries), ENTRY_ROW)
        rows["queue"] = queues
        rows["offset"], rows["batch_size"] = found.offset[entries], found.count[entries]
        rows["physical"], rows["size"] = found.physical[entries], found.size[entries]
        if self._places_only:
            return rows
        chosen, place = np.unique(found.unit[entries], return_inverse=True)
        if len(chosen) < len(units):
            units = units.select(chosen)
        of_schedule = np.array([topic == SCHEDULE_TOPIC for topic, _ in found.keys], bool)
        scheduled = np.zeros(len(units), bool)
        scheduled[place] = of_schedule[found.key[entries]]  # such a message has no entry in a light queue
        store_timestamps = units.integers("store_timestamp").astype(np.int64)
        table = PropertyTable(units.raw_properties())
        tags = tags_codes(table, scheduled, store_timestamps, self._delay_levels_ms)
        if scheduled.any():
            levels = [parse_long(text) or 0 for text in table.values(DELAY).to_pylist()]
            named = zip(queues.tolist(), place.tolist(), strict=True)
            self.levels |= {(self._names[queue], levels[i]) for queue, i in named if scheduled[i]}
        rows["tags"], rows["store_timestamp"] = tags[place], store_timestamps[place]
        return rows

    def take_rows(self) -> tuple[list[QueueKey], NDArray[np.void]]:
        """(queues, the entries since the last take as ENTRY_ROW in the order of the log, with repetitions).

        The entries of one run are in the order of their messages, those of unusual messages behind them.
        """
        rows = np.concatenate(self._rows) if self._rows else np.empty(0, ENTRY_ROW)
        self._rows, self.count = [], 0
        return list(self._names), rows


def pack_entries(rows: NDArray[np.void], *, batch: bool) -> NDArray[np.void]:
    """ENTRY_ROW records as units: BATCH_CQ_UNIT with `batch`, else CQ_UNIT."""
    units = np.zeros(len(rows), BATCH_CQ_UNIT if batch else CQ_UNIT)
    for name, row in ("physical_offset", "physical"), ("size", "size"), ("tags_code", "tags"):
        units[name] = rows[row]
    if batch:
        units["store_timestamp"], units["base_offset"], units["batch_size"] = (
            rows["store_timestamp"],
            rows["offset"],
            rows["batch_size"],
        )
        units["compacted_offset"] = _NO_COMPACTED_OFFSET
    return units


# ---- queues by number --------------------------------------------------------------------------------------


class QueueRules(NamedTuple):
    """What is known of a queue: its number in entries, and which entries count.

    These are the entries with an offset of at least `offset` whose message lies behind the physical offset
    `physical`. `odd` says what the kernel does not know: 1 the rules of the queue, 2 those of its
    inner batches, 0 nothing.
    """

    number: int
    offset: int
    physical: int
    odd: int


class QueueTable:
    """Computes the entries of messages in queues with plain rules; asks for the `rules` of a queue once."""

    def __init__(self, rules: Callable[[QueueKey], QueueRules]) -> None:
        self._rules = rules
        self._keys: list[QueueKey] = []
        self._rows = np.empty((_QUEUES, kernels.dispatch.QUEUE_WIDTH), np.int64)
        self._slots = np.zeros(4 * _QUEUES, np.int64)
        self._names = np.empty(_NAMES_SIZE, np.uint8)
        self._names_size = 0

    def entries(self, refs: UnitRefs) -> tuple[_Ints, _Ints]:
        """Returns (entries of `ENTRY_WIDTH` numbers each, the numbers of units that the kernel leaves)."""
        entries = np.empty((len(refs), kernels.dispatch.ENTRY_WIDTH), np.int64)
        odd = np.empty(len(refs), np.int64)
        why, unit, count, odd_count = kernels.dispatch.NEW_QUEUE, 0, 0, 0
        while why != kernels.dispatch.DONE:
            why, unit, count, odd_count = kernels.dispatch.dispatch(
                refs.buffer, refs.positions, refs.physical_offsets, refs.sizes, unit,
                self._slots, self._rows.reshape(-1), self._names, len(self._keys), self._names_size,
                entries.reshape(-1), count, odd, odd_count,
            )  # fmt: skip
            if why == kernels.dispatch.NEW_QUEUE:
                self._add()
            elif why == kernels.dispatch.FULL:
                self._grow()
        return entries[:count], odd[:odd_count]

    def _add(self) -> None:
        row = self._rows[len(self._keys)]
        start, length, queue_id = row[:3].tolist()
        key = decode_utf8(self._names[start : start + length].tobytes()), queue_id
        row[3:] = self._rules(key)
        self._keys.append(key)
        self._names_size += length

    def _grow(self) -> None:
        self._rows = np.concatenate([self._rows, np.empty_like(self._rows)])
        self._names = np.concatenate([self._names, np.empty(len(self._names) + _NAMES_SIZE, np.uint8)])
        self._slots = np.zeros(2 * len(self._slots), np.int64)
        kernels.dispatch.fill_slots(self._slots, self._rows.reshape(-1), self._names, len(self._keys))

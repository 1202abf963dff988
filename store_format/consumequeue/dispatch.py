"""From message units to the consume queue entries the broker would make of them
(CommitLogDispatcherBuildConsumeQueue).

Which queue, which offset in it and which tags code follow from the stored unit alone (spec 3.2, 3.5, 3.6), so
that entries which a crash kept from being written can be made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.java.hashes import tags_code_many
from store_format.java.text import decode_utf8
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT
from store_format.message import sysflag
from store_format.message.locate import UnitRefs, Units, locate
from store_format.message.property_table import PropertyTable
from store_format.message.tags_code import parse_long, tags_codes
from store_format.names import (
    INNER_BASE,
    INNER_MULTI_DISPATCH,
    INNER_MULTI_QUEUE_OFFSET,
    INNER_NUM,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_PREFIX,
    TAGS,
    is_light_queue,
)

__all__ = ["Dispatch", "MissingEntries", "light_queues"]

_NOT_MULTI_DISPATCHED = (RETRY_PREFIX, SYSTEM_PREFIX)  # MultiDispatchUtils.isNeedHandleMultiDispatch
_MULTI_DISPATCH_BYTES = INNER_MULTI_DISPATCH.encode() + b"\x01"
_NO_COMPACTED_OFFSET = -1

_Queue = tuple[str, int]  # topic and queue id


@dataclass(frozen=True, eq=False, slots=True)
class MissingEntries:
    """Entries of one queue, ascending: `units[i]` belongs at `queue_offsets[i]`.

    CQ_UNIT records, or BATCH_CQ_UNIT in a batch queue. Offsets may have gaps, where the message itself is
    lost.
    """

    queue_offsets: NDArray[np.int64]
    units: NDArray[np.void]

    @property
    def max_offset(self) -> int:
        """The queue's end with these entries: behind the last one."""
        names = self.units.dtype.names or ()
        return int(self.queue_offsets[-1]) + (
            int(self.units["batch_size"][-1]) if "batch_size" in names else 1
        )


_ROW = np.dtype(
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
    """Collects the missing entries of runs of units, which come in the order of the log."""

    def __init__(
        self,
        max_offsets: Mapping[_Queue, int],
        last_physical_offsets: Mapping[_Queue, int],
        batch_topics: frozenset[str],
        delay_levels_ms: tuple[int, ...],
        floor: Callable[[_Queue], int] = lambda _: -1,
    ) -> None:
        """`floor` gives the last physical offset of queues that `last_physical_offsets` does not name."""
        self._max_offsets = max_offsets
        self._last_physical_offsets = last_physical_offsets
        self._batch_topics = batch_topics
        self._delay_levels_ms = delay_levels_ms
        self._floor = floor
        self.count = 0  # of entries collected since the last `take`
        self._queues: dict[_Queue, int] = {}  # every queue met, and its number in `_names`
        self._names: list[_Queue] = []
        self._floors: list[tuple[int, int]] = []  # per number: max offset and last physical offset on disk
        self._rows: list[NDArray[np.void]] = []

    def add(self, run: UnitRun, commit_log: CommitLog) -> None:
        """Raises nothing for what the units say: a unit that names no queue sensibly adds no entry."""
        if run.buffer is None:
            # One unit longer than a window. Mapping it costs no memory, and no broker has a crashed store
            # open.
            buffer, start = commit_log.view(run.file).map(), 0
        else:
            buffer, start = run.buffer, run.buffer_start
        tags_codes = np.zeros(len(run.positions), np.int64)
        refs = UnitRefs(
            run.file.path, buffer, run.file.start + start, run.positions - start, run.sizes, tags_codes
        )
        units, _ = locate(refs, verify_crc=False)
        kind = units.sys_flag & sysflag.TRANSACTION_MASK
        dispatched = (kind == sysflag.TRANSACTION_NONE) | (kind == sysflag.TRANSACTION_COMMIT)
        if not dispatched.all():
            units = units.select(dispatched)
        if not len(units):
            return
        topics = units.stored_topics().dictionary_encode()
        names = [decode_utf8(topic) for topic in topics.dictionary.to_pylist()]
        topic_index = topics.indices.to_numpy()
        queues = self._queue_numbers(names, topic_index, units.integers("queue_id").astype(np.int64))
        floors = np.array(self._floors, np.int64)[queues]
        physical = units.refs.positions + units.refs.base
        missing = np.flatnonzero(
            (units.integers("queue_offset").astype(np.int64) >= floors[:, 0]) & (physical > floors[:, 1])
        )
        if len(missing):
            self.count += len(missing)
            self._rows.append(
                self._entry_rows(
                    units.select(missing), [names[i] for i in topic_index[missing].tolist()], queues[missing]
                )
            )
        if run.buffer is None or _MULTI_DISPATCH_BYTES in run.buffer.tobytes():
            self._add_light(units, [names[i] for i in topic_index.tolist()])

    # ---- queues --------------------------------------------------------------------------------------------

    def _number(self, queue: _Queue) -> int:
        number = self._queues.get(queue)
        if number is None:
            number = self._queues[queue] = len(self._names)
            self._names.append(queue)
            self._floors.append(
                (self._max_offsets.get(queue, 0), self._last_physical_offsets.get(queue, self._floor(queue)))
            )
        return number

    def _queue_numbers(
        self, names: list[str], topic_index: NDArray[np.int32], queue_ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        combined = topic_index.astype(np.int64) << 32 | queue_ids & 0xFFFFFFFF
        values, inverse = np.unique(combined, return_inverse=True)
        numbers = []
        for value in values.tolist():
            queue_id = value & 0xFFFFFFFF
            numbers.append(
                self._number((names[value >> 32], queue_id - (1 << 32) if queue_id >> 31 else queue_id))
            )
        return np.array(numbers, np.int64)[inverse]

    # ---- entries -------------------------------------------------------------------------------------------

    def _entry_rows(self, units: Units, topics: list[str], queues: NDArray[np.int64]) -> NDArray[np.void]:
        table = PropertyTable(units.raw_properties())
        rows = _common_rows(units, table)
        distinct = set(topics)
        scheduled = np.array([topic == SCHEDULE_TOPIC for topic in topics], bool)
        rows["tags"] = tags_codes(table, scheduled, rows["store_timestamp"], self._delay_levels_ms)
        rows["queue"] = queues
        rows["offset"] = units.integers("queue_offset")
        rows["batch_size"] = 1
        if not distinct.isdisjoint(self._batch_topics):
            self._set_batches(rows, table, topics)
        return rows

    def _set_batches(self, rows: NDArray[np.void], table: PropertyTable, topics: list[str]) -> None:
        """INNER_BASE and INNER_NUM count only together (CommitLog.checkMessageAndReturnSize)."""
        pairs = zip(table.values(INNER_BASE).to_pylist(), table.values(INNER_NUM).to_pylist(), strict=True)
        for i, (base_text, count_text) in enumerate(pairs):
            base, count = parse_long(base_text), parse_long(count_text)
            if (
                topics[i] in self._batch_topics
                and base is not None
                and count is not None
                and base >= 0
                and 0 < count <= 0x7FFF
            ):
                rows["offset"][i], rows["batch_size"][i] = base, count

    def _add_light(self, units: Units, topics: list[str]) -> None:
        """Entries of the light queues that a message names in its properties (MultiDispatchUtils,
        ConsumeQueue.multiDispatchLmqQueue).
        """
        table = PropertyTable(units.raw_properties())
        names, offsets = (
            table.values(INNER_MULTI_DISPATCH).to_pylist(),
            table.values(INNER_MULTI_QUEUE_OFFSET).to_pylist(),
        )
        common: NDArray[np.void] | None = None
        queue_ids = units.integers("queue_id").tolist()
        for i, topic in enumerate(topics):
            if (
                not (names[i] and offsets[i])
                or topic == SCHEDULE_TOPIC
                or topic.startswith(_NOT_MULTI_DISPATCHED)
            ):
                continue
            for name, offset in light_queues(names[i], offsets[i]):
                number = self._number((name, 0 if is_light_queue(name) else queue_ids[i]))
                common = _common_rows(units, table) if common is None else common
                floor, last_physical = self._floors[number]
                if offset >= floor and common["physical"][i] > last_physical:
                    row = common[i : i + 1].copy()
                    row["queue"], row["offset"], row["batch_size"] = number, offset, 1
                    self._rows.append(row)
                    self.count += 1

    @property
    def met(self) -> list[_Queue]:
        """The queues of all messages so far, whether they had their entries or not."""
        return self._names

    def take(self) -> dict[_Queue, MissingEntries]:
        """`entries` of what was added since the last `take`; what is added from now on goes on behind it."""
        found = self.entries()
        for queue, each in found.items():
            self._floors[self._queues[queue]] = (each.max_offset, int(each.units["physical_offset"][-1]))
        self._rows, self.count = [], 0
        return found

    def entries(self) -> dict[_Queue, MissingEntries]:
        """What was collected, by queue, each in queue order. Of two messages with one queue offset the later
        one counts.
        """
        if not self._rows:
            return {}
        rows = np.concatenate(self._rows)
        rows = rows[np.lexsort((rows["physical"], rows["offset"], rows["queue"]))]
        last = np.ones(len(rows), bool)
        last[:-1] = (rows["queue"][1:] != rows["queue"][:-1]) | (rows["offset"][1:] != rows["offset"][:-1])
        rows = rows[last]
        found = {}
        firsts = np.flatnonzero(np.diff(rows["queue"], prepend=-1)).tolist()
        for first, stop in zip(firsts, [*firsts[1:], len(rows)], strict=True):
            queue = self._names[int(rows["queue"][first])]
            mine = rows[first:stop]
            found[queue] = MissingEntries(
                mine["offset"].copy(), _pack(mine, batch=queue[0] in self._batch_topics)
            )
        return found


def _common_rows(units: Units, table: PropertyTable) -> NDArray[np.void]:
    rows = np.zeros(len(units), _ROW)
    rows["physical"] = units.refs.positions + units.refs.base
    rows["size"] = units.refs.sizes
    rows["tags"] = tags_code_many(table.values(TAGS))
    rows["store_timestamp"] = units.integers("store_timestamp")
    return rows


def _pack(rows: NDArray[np.void], *, batch: bool) -> NDArray[np.void]:
    units = np.zeros(len(rows), BATCH_CQ_UNIT if batch else CQ_UNIT)
    units["physical_offset"], units["size"], units["tags_code"] = rows["physical"], rows["size"], rows["tags"]
    if batch:
        units["store_timestamp"], units["base_offset"], units["batch_size"] = (
            rows["store_timestamp"],
            rows["offset"],
            rows["batch_size"],
        )
        units["compacted_offset"] = _NO_COMPACTED_OFFSET
    return units


def light_queues(names: str, offsets: str) -> Iterator[tuple[str, int]]:
    """Names and offsets pair by pair; nothing when their numbers differ. Names that would leave the directory
    are skipped.
    """
    name_list, offset_list = _split(names), _split(offsets)
    if len(name_list) != len(offset_list):
        return
    for name, text in zip(name_list, offset_list, strict=True):
        offset = parse_long(text)
        if name.strip() and "/" not in name and offset is not None:
            yield name, offset


def _split(text: str) -> list[str]:
    """String.split(","): empty parts at the end are dropped."""
    return text.rstrip(",").split(",")

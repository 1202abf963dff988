"""Reads the messages that a command's filters choose: all as a stream, the first, the last, or by key.

Queues are read together, in the order of the commitlog. Without consume queues, the commitlog is scanned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.cli.output import Output
from rmq_spark.cli.remarks import Progress
from store_format.display.text import first_names
from store_format.message.columns import COLUMNS, LOGICAL_COLUMNS, arrow_schema
from store_format.names import is_light_queue
from store_format.read.choice import MessageChoice
from store_format.read.chosen_messages import chosen_queues, ranges_in_time, read_chosen
from store_format.read.tolerance import Tolerance

if TYPE_CHECKING:
    from store_format import MessageStore, Queue
    from store_format.read.store import Store
    from store_format.search.look_up import Found

_Range = tuple["Queue", int, int]

# The body comes last, and gets the rest of the line.
TABLE_COLUMNS = (
    "storeTimestamp",
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "tags",
    "keys",
    "msgId",
    "body",
)

# All but the compressed body, the reason of a corrupt row, and what only static topics have.
_ON_REQUEST = ("rawBody", "_corrupt_record", *LOGICAL_COLUMNS)
ALL_COLUMNS = tuple(name for name in COLUMNS if name not in _ON_REQUEST)
SIZE = "storeSize"  # the column with a message's bytes in the commitlog
_ORDER = "physicalOffset"
_HELPERS = ("storeTimestampMs", _ORDER, "queueOffset")

# offsets of the first read of a queue from its end backwards; each further read takes twice as many
_WINDOW = 256
_LOOKS = 32  # messages of a queue, to see whether its store times ascend
_QUEUES_LOOKED_AT = 100
_WINDOW_MAX = 1 << 18
_OFFSET_ID = re.compile("(?:[0-9A-Fa-f]{32}|[0-9A-Fa-f]{56})")


# ---- which columns -----------------------------------------------------------------------------------------


def message_columns(output: Output) -> tuple[str, ...]:
    """The columns to read and show, in order."""
    if output.form == "raw":
        return ("body",)
    if output.columns:
        from rmq_spark.cli.view_rows import column_named

        named = (column_named(name, tuple(COLUMNS), TABLE_COLUMNS) for name in output.columns)
        return tuple(dict.fromkeys(named))
    if output.form != "table":
        return ALL_COLUMNS
    return ("brokerName", *TABLE_COLUMNS) if output.several_stores else TABLE_COLUMNS


# ---- which messages ----------------------------------------------------------------------------------------


def clock_hint(stores: Sequence[MessageStore], filters: MessageChoice) -> str:
    """The end of the sentence that no message matches, if store times of a queue do not ascend; else "".

    A range of times is found by bisection, as by a broker, and misses messages where the broker's clock was
    set back. Looks at some messages of each of the first queues, if the filters have a range of times.
    """
    from store_format.views.measure import look

    if filters.since_ms is None and filters.until_ms is None:
        return ""
    queues = [queue for store in stores for queue in chosen_queues(store, filters) if queue.scanned is None]
    back = []
    for queue in queues[:_QUEUES_LOOKED_AT]:
        step = max((queue.max_offset - queue.min_offset) // _LOOKS, 1)
        looks = (look(queue, offset)[0] for offset in range(queue.min_offset, queue.max_offset, step))
        times = [time for time in looks if time is not None]
        if times != sorted(times):
            back.append(f"{queue.topic}-{queue.queue_id}")
    if not back:
        return ""
    return (
        f"; store times of {first_names(back)} do not ascend, because the broker's clock was set back: there "
        "a range of times can miss messages; leave out --since and --until"
    )


def bytes_to_read(stores: Sequence[MessageStore], filters: MessageChoice) -> int:
    """Bytes of the commitlog that `read_messages` will read; 0 if a filter makes that unknown."""
    if (
        filters.looks_at_messages
        or filters.limit
        or filters.since_ms is not None
        or filters.until_ms is not None
    ):
        return 0
    return sum(
        row["bytes"] or 0
        for store in stores
        for row in store.view("queues").select(["topic", "queueId", "bytes"]).to_pylist()
        if filters.chooses_topic(row["topic"])
        and filters.chooses_queue(row["topic"], store.broker_name, row["queueId"])
    )


def read_range(
    ranges: Sequence[tuple[Queue, int, int]],
    filters: MessageChoice,
    names: Sequence[str],
    tolerance: Tolerance,
) -> Iterator[pa.RecordBatch]:
    """The messages of these ranges of queues, with the columns `names` and the columns for sorting."""
    return read_chosen(ranges, (*names, *_HELPERS), tolerance, filters)


def read_messages(
    store: MessageStore,
    filters: MessageChoice,
    names: Sequence[str],
    tolerance: Tolerance,
    *,
    without_light: bool = False,
) -> Iterator[pa.RecordBatch]:
    """All chosen messages. Memory: one batch, and the entries of some queues.

    Without light queues, no message is shown twice: their entries point to messages of other queues.
    """
    queues = (
        queue
        for queue in chosen_queues(store, filters)
        if not (without_light and is_light_queue(queue.topic))
    )
    ranges = ranges_in_time(queues, filters, on_damage=tolerance.mode)
    yield from (batch for batch in read_range(ranges, filters, names, tolerance) if batch.num_rows)


# ---- the first and the last --------------------------------------------------------------------------------


class _FirstOrLast:
    """Keeps `count` of the messages that are added: the first or the last of the commitlog."""

    def __init__(self, names: Sequence[str], count: int, *, last: bool) -> None:
        self._count, self._last = count, last
        self.table = pa.Table.from_batches([], arrow_schema(tuple(dict.fromkeys((*names, *_HELPERS)))))

    def add(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        table = pa.concat_tables([self.table, pa.Table.from_batches([batch])])
        # the parts of a batch share their place
        order = pc.sort_indices(table, [(_ORDER, "ascending"), ("queueOffset", "ascending")])
        table = table.take(order[max(len(order) - self._count, 0) :] if self._last else order[: self._count])
        self.table = table.combine_chunks()

    def edge(self) -> int | None:
        """The physical offset that a message must precede (`last`: follow) to be kept; None: no limit."""
        if self.table.num_rows < self._count:
            return None
        return int(self.table[_ORDER][0 if self._last else -1].as_py())


def _plain_and_scanned(
    queues: Sequence[Queue], filters: MessageChoice, tolerance: Tolerance
) -> tuple[list[_Range], list[_Range]]:
    """Ranges of queues with files, and ranges of queues known only from the commitlog, read in one pass."""
    ranges = ranges_in_time(queues, filters, on_damage=tolerance.mode)
    return [each for each in ranges if each[0].scanned is None], [
        each for each in ranges if each[0].scanned is not None
    ]


def first_messages(
    store: Store, filters: MessageChoice, names: Sequence[str], count: int, tolerance: Tolerance
) -> pa.Table:
    """The first `count` messages in the order of the log."""
    kept = _FirstOrLast(names, count, last=False)
    if not count:
        return kept.table
    ranges, scanned = _plain_and_scanned(chosen_queues(store, filters), filters, tolerance)
    at_once = [(queue, start, min(stop, start + count)) for queue, start, stop in ranges]
    for batch in read_range(
        scanned if filters.looks_at_messages else at_once + scanned, filters, names, tolerance
    ):
        kept.add(batch)
    for one in ranges if filters.looks_at_messages else ():
        found = 0
        for batch in read_range([one], filters, names, tolerance):
            edge = kept.edge()
            kept.add(batch)
            found += batch.num_rows
            if found >= count or (edge is not None and batch.num_rows and batch[_ORDER][0].as_py() > edge):
                break
    return kept.table


def last_messages(
    store: Store,
    queues: Sequence[Queue],
    filters: MessageChoice,
    names: Sequence[str],
    count: int,
    tolerance: Tolerance,
) -> pa.Table:
    """The last `count` messages of `queues`, in the order of the log. Reads each queue backwards."""
    kept = _FirstOrLast(names, count, last=True)
    ranges, scanned = _plain_and_scanned(queues, filters, tolerance)
    for batch in read_range(scanned, filters, names, tolerance):
        kept.add(batch)
    for queue, start, stop in ranges:
        window, found = _WINDOW if filters.looks_at_messages else count, 0
        while start < stop and found < count:
            low, edge, newest = max(start, stop - window), kept.edge(), -1
            for batch in read_range([(queue, low, stop)], filters, names, tolerance):
                kept.add(batch)
                found += batch.num_rows
                newest = max(newest, batch[_ORDER][-1].as_py()) if batch.num_rows else newest
            if edge is not None and 0 <= newest < edge:
                break
            stop, window = low, min(2 * window, _WINDOW_MAX)
    return kept.table


def merged(tables: Sequence[pa.Table], names: Sequence[str], count: int, *, last: bool) -> pa.Table:
    """The first or last `count` messages of several stores, by store time, then broker and place in the log.

    `tables` are those of `first_messages` or `last_messages`. The clocks of brokers may differ by some ms.
    """
    if len(tables) == 1:
        return tables[0].select(names)
    wanted = tuple(dict.fromkeys((*names, *_HELPERS)))
    table = pa.concat_tables(
        [each.select(wanted).append_column("", pa.array([i] * len(each), pa.int32())) for i, each in
         enumerate(tables)]
    )  # fmt: skip
    keys = [
        ("storeTimestampMs", "ascending"),
        ("", "ascending"),
        (_ORDER, "ascending"),
        ("queueOffset", "ascending"),
    ]
    order = pc.sort_indices(table, keys)
    return table.take(order[max(len(order) - count, 0) :] if last else order[:count]).select(names)


# ---- by key ------------------------------------------------------------------------------------------------


def find_word(
    store: MessageStore, word: str, filters: MessageChoice, names: Sequence[str], *, use_index: bool
) -> Found:
    """The messages with this key, UNIQ_KEY or offset message id; see `find_in`."""
    # An offset message id ends with a physical offset. The same digits of a UNIQ_KEY are a far larger number.
    if _OFFSET_ID.fullmatch(word) and store.log.min_offset <= int(word[-16:], 16) < store.log.stop:
        found = find_in(store, replace(filters, message_id=word), names, use_index=use_index)
        if found.table.num_rows:
            return found
    return find_in(store, replace(filters, key=word), names, use_index=use_index)


def find_in(store: MessageStore, filters: MessageChoice, names: Sequence[str], *, use_index: bool) -> Found:
    """The messages with the key or the id of the filters, in the order of the log, and how they were found.

    The table has the columns `names` and others.
    """
    from store_format.search.look_up import How, look_up

    with Progress("find", 0) as progress:
        how = How(tuple(names), "DROPMALFORMED", use_index=use_index, on_scanned=progress.reach_of)
        return look_up(store, filters, how)


def find_by_time(
    store: MessageStore, filters: MessageChoice, names: Sequence[str], tolerance: Tolerance
) -> Found:
    """A search without key or id: reads the queues, with `--limit` only their first messages."""
    from store_format.search.look_up import Found, Searched

    if filters.limit is not None:
        table = first_messages(store, filters, names, filters.limit, tolerance)
    else:
        with Progress("find", 0) as progress:
            batches, size, total = [], 0, bytes_to_read([store], filters) if progress.is_shown else 0
            for batch in read_messages(store, filters, (*names, SIZE), tolerance):
                batches.append(batch)
                size += int(batch[SIZE].to_numpy().sum())
                progress.reach_of(size, total)
        table = pa.Table.from_batches(batches) if batches else arrow_schema(tuple(names)).empty_table()
        if batches:
            table = table.take(
                pc.sort_indices(table, [("physicalOffset", "ascending"), ("queueOffset", "ascending")])
            )
    topics = tuple(sorted({queue.topic for queue in chosen_queues(store, filters)}))
    return Found(table, "consume queue", Searched(topics, (), (), 0, (), 0, 0))

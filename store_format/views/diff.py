"""The view `diff`: the messages in which two stores, or two groups of stores, differ.

A message counts as a reader gets it: from the queues of all topics that are compared, with its body
decompressed and inner batches split. `message_digests.py` says when two messages are equal, and
`diff_parts.py` compares the digests. The messages of the differences are read again to describe them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format.display.columns import (
    INT,
    LONG,
    NAMES,
    TEXT,
    TIME,
    ViewColumn,
    batch_of,
    schema_of,
    time_us,
)
from store_format.errors import OptionError
from store_format.files.background import BackgroundCalls
from store_format.files.read import all_answered
from store_format.message.columns import DecodeOptions
from store_format.names import is_light_queue
from store_format.read.choice import MessageChoice
from store_format.read.store import Queue, Store, read_pieces
from store_format.read.tolerance import Tolerance
from store_format.views.diff_parts import CHANGED, DIFFERENCE, KINDS, MOVED, PART_BYTES, Parts, RecordParts
from store_format.views.message_digests import COMPARED, READ, MessageDigests, compared_properties
from store_format.views.view import View

_OF_STORE = (
    ("address", TEXT, "The place of the message in {}, as `rmqlog get` takes it."),
    ("brokerName", TEXT, "The broker of that store."),
    ("queueId", INT, "The queue there."),
    ("queueOffset", LONG, "The offset in that queue."),
    ("physicalOffset", LONG, "The physical offset in the commitlog."),
)
DIFF_COLUMNS = (
    ViewColumn("difference", TEXT, f"One of {', '.join(f'`{kind}`' for kind in KINDS)}."),
    ViewColumn(
        "fields", NAMES, "Of a changed message: the columns that differ; of a property `properties.NAME`."
    ),
    ViewColumn("topic", TEXT, "The topic, in A if the message is in A; `addressB` has that in B."),
    ViewColumn("msgId", TEXT, "The message id that clients show."),
    ViewColumn("keys", NAMES, "The keys."),
    ViewColumn("bornTimestamp", TIME, "When the producer created the message."),
    ViewColumn("copiesA", LONG, "How many equal messages A has."),
    ViewColumn("copiesB", LONG, "How many equal messages B has."),
    *(
        ViewColumn(f"{name}{store}", kind, about.format(store))
        for store in "AB"
        for name, kind, about in _OF_STORE
    ),
)

_DETAILS = (
    *("physicalOffset", "queueOffset", "msgId", "keys", "body", "flag", "bornTimestampMs", "bornHost"),
    *("reconsumeTimes", "properties"),
)
_LITTLE = 10_000  # messages, for which no thread is started
_DESCRIBED = 512  # differences that are read again at once

_Message = dict[str, Any]  # Any: values of columns
_Differences = NDArray[np.void]


@dataclass(slots=True)
class _Side:
    """The stores of one side, and what was read of them."""

    stores: Sequence[Store]
    messages: int = 0
    unread: int = 0  # damaged or deleted messages, and stretches of damaged bytes


class StoreDiff:
    """The differences between the messages of the stores A and those of the stores B.

    `counts` maps each kind of difference to its number: `onlyInA` and `onlyInB` are messages that one side
    lacks; `changed` are messages with the same id (UNIQ_KEY) on both sides that are not equal; `moreInA` and
    `moreInB` count the copies that one side has more of a message that both have. `moved` are equal messages
    with an id that are in another queue: no difference for `is_equal`.

    `messages` and `unread` are pairs of numbers, for A and for B: the compared messages, and the damaged
    or deleted ones that could not be read. `is_equal` is only as good as what could be read.

    Differences are kept in a temporary directory if they are many: use the object as a context manager, or
    call `close`, to remove it.
    """

    def __init__(self, a: _Side, b: _Side, topics: Sequence[str], found: Iterator[_Differences]) -> None:
        self._stores = [*a.stores, *b.stores]
        self._topics = topics
        self._starts = np.array([store.log.min_offset for store in self._stores])
        sizes = [max(store.log.relisted().stop - store.log.min_offset, 1) for store in self._stores]
        self._bases = np.cumsum([0, *sizes])
        self.messages, self.unread = (a.messages, b.messages), (a.unread, b.unread)
        self.counts = dict.fromkeys(KINDS, 0)
        self._parts = Parts(DIFFERENCE, sum(self.messages) * DIFFERENCE.itemsize // PART_BYTES)
        try:
            for differences in found:
                self._add(differences)
        except BaseException:
            self.close()
            raise

    def _add(self, found: _Differences) -> None:
        """Counts differences, and puts them into parts by their places, A before B."""
        more = np.abs(found["copies_a"] - found["copies_b"])
        weights = np.where(np.isin(found["kind"], (CHANGED, MOVED)), 1, more)
        for i, count in enumerate(np.bincount(found["kind"], weights, len(KINDS)).tolist()):
            self.counts[KINDS[i]] += int(count)
        width = -(-int(self._bases[-1]) // self._parts.count)
        positions = np.clip(self._positions(found), 0, self._bases[-1] - 1)
        self._parts.add(found, positions // width)

    def _positions(self, found: _Differences) -> NDArray[np.int64]:
        """Where a message is in all logs, one after the other."""
        place = np.where(found["a"]["store"] >= 0, found["a"], found["b"])
        store = place["store"]
        positions: NDArray[np.int64] = self._bases[store] + place["physical"] - self._starts[store]
        return positions

    @property
    def is_equal(self) -> bool:
        """Whether both sides have the same messages, in any queues."""
        return not any(count for kind, count in self.counts.items() if kind != KINDS[MOVED])

    def batches(self, *, moved: bool = True) -> Iterator[pa.RecordBatch]:
        """Yields a row for each difference, in the order of the logs of A and then of B; at least one batch.

        The columns are those of the view `diff`. Copies of a message on one side share a row. Without
        `moved`, messages that are only in another queue are left out.
        """
        yield batch_of(DIFF_COLUMNS, ())
        for part in range(self._parts.count):
            found = self._parts.all_of(part)
            found = found[np.lexsort((found["a"]["offset"], self._positions(found)))]
            if not moved:
                found = found[found["kind"] != MOVED]
            for start in range(0, len(found), _DESCRIBED):
                yield batch_of(DIFF_COLUMNS, self._rows(found[start : start + _DESCRIBED]))

    def to_table(self, *, moved: bool = True) -> pa.Table:
        """Returns what `batches` yields as one table in memory."""
        return pa.Table.from_batches(self.batches(moved=moved), schema_of(DIFF_COLUMNS))

    def _rows(self, found: _Differences) -> Iterator[tuple[object, ...]]:
        a = self._read(found["a"])
        b = self._read(found["b"][(found["kind"] == CHANGED) | (found["a"]["store"] < 0)])
        for each in found:
            one, two = (side.get(_key(each[name])) for side, name in ((a, "a"), (b, "b")))
            topics = [self._topics[each[name]["topic"]] for name in "ab" if each[name]["store"] >= 0]
            message = one or two or {}
            yield (
                KINDS[each["kind"]],
                _fields(one, two, topics) if each["kind"] == CHANGED else None,
                topics[0],
                message.get("msgId"), message.get("keys"), time_us(message.get("bornTimestampMs")),
                int(each["copies_a"]), int(each["copies_b"]),
                *self._place(each["a"]), *self._place(each["b"]),
            )  # fmt: skip

    def _place(self, place: np.void) -> tuple[object, ...]:
        if place["store"] < 0:
            return (None,) * len(_OF_STORE)
        topic, queue_id, offset = self._topics[place["topic"]], int(place["queue"]), int(place["offset"])
        name = self._stores[place["store"]].broker_name
        return f"{topic}/{queue_id}@{offset}", name, queue_id, offset, int(place["physical"])

    def _read(self, places: _Differences) -> dict[tuple[int, ...], _Message]:
        """(store, physical offset, queue offset) -> the message, if it can still be read."""
        from store_format.message.decode import decode_parts  # a process that only plans decodes nothing

        found: dict[tuple[int, ...], _Message] = {}
        for number, store in enumerate(self._stores):
            log = store.log.relisted()
            offsets = np.unique(places["physical"][places["store"] == number])
            files = [log.file_at(offset) for offset in offsets.tolist()]
            for file in dict.fromkeys(filter(None, files)):
                inside = np.array([each is not None and each.start == file.start for each in files])
                for _, refs in log.refs_at(file, offsets[inside]):
                    for _, batch, _ in decode_parts(refs, DecodeOptions(_DETAILS, False), ""):
                        for row in batch.to_pylist():
                            row["body"] = hashlib.sha256(
                                row["body"]
                            ).digest()  # one is compared, none is kept
                            found[number, row["physicalOffset"], row["queueOffset"]] = row
        return found

    def close(self) -> None:
        """Removes the temporary directory."""
        self._parts.close()

    def __enter__(self) -> StoreDiff:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        found = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)
        return f"<StoreDiff of {self.messages[0]:,} and {self.messages[1]:,} messages: {found or 'equal'}>"


def _key(place: np.void) -> tuple[int, ...]:
    return int(place["store"]), int(place["physical"]), int(place["offset"])


def _fields(one: _Message | None, two: _Message | None, topics: Sequence[str]) -> list[str] | None:
    """The columns in which two messages with one id differ; None if one cannot be read any more."""
    if one is None or two is None:
        return None
    found = ["topic"] if topics[0] != topics[-1] else []
    names = {"bornTimestampMs": "bornTimestamp"}
    found += [names.get(name, name) for name in COMPARED[1:] if one[name] != two[name]]
    ours, theirs = (compared_properties(each["properties"]) for each in (one, two))
    return found + [
        f"properties.{name}" for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)
    ]


# ---- the comparison ----------------------------------------------------------------------------------------


def stores_of(other: object, opener: str) -> tuple[Store, ...]:
    """The store, or the stores of the sequence. Raises OptionError for a path, and for anything else; the
    text says to open it with `opener`.
    """
    stores = tuple(other) if isinstance(other, Sequence) and not isinstance(other, str) else (other,)
    for each in stores:
        if not isinstance(each, Store):
            example = repr(os.fspath(each)) if isinstance(each, str | os.PathLike) else "path"
            raise OptionError(f"diff: expected an open store, found {each!r}; give {opener}({example})")
    return stores


def diff_stores(
    a: Sequence[Store],
    b: Sequence[Store],
    choice: MessageChoice | None = None,
    *,
    on_read: Callable[[int], None] = lambda size: None,
) -> StoreDiff:
    """Compares the messages of the stores A with those of the stores B, as of now.

    `choice` says which topics are compared; None: all that are no system topics. Light queues are left out:
    their entries lead to messages of other queues. `on_read` is called with the bytes of messages that were
    read. Damaged messages are left out with a warning. Memory is bounded, whatever the stores hold.
    """
    choice = choice or MessageChoice()
    with all_answered():
        queues = [
            [queue for queue in store.queues(choice.chooses_topic) if not is_light_queue(queue.topic)]
            for store in (*a, *b)
        ]
    count = sum(queue.messages for each in queues for queue in each)
    digests, parts = MessageDigests(count), RecordParts(count, len(a))
    sides = _Side(a), _Side(b)
    try:
        with BackgroundCalls(is_little=count < _LITTLE) as background:
            for side, number, batch in _in_turns(sides, (queues[: len(a)], queues[len(a) :])):
                background.call(partial(_put, parts, digests, batch, number))
                side.messages += batch.num_rows
                on_read(int(batch["storeSize"].to_numpy().sum()))
        return StoreDiff(*sides, digests.topics, parts.differences())
    finally:
        parts.close()


def _in_turns(
    sides: tuple[_Side, _Side], queues: Sequence[Sequence[Sequence[Queue]]]
) -> Iterator[tuple[_Side, int, pa.RecordBatch]]:
    """(side, number of the store, messages), always of the side of which less was read."""
    first_b = len(queues[0])
    readers = {0: _batches(sides[0], 0, queues[0]), 1: _batches(sides[1], first_b, queues[1])}
    while readers:
        number = min(readers, key=lambda each: sides[each].messages)
        found = next(readers[number], None)
        if found is None:
            del readers[number]
        else:
            yield sides[number], *found


def _batches(
    side: _Side, first: int, queues: Sequence[Sequence[Queue]]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    for number, each in enumerate(queues, first):
        tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
        pieces = [(queue, queue.piece()) for queue in each]
        for batch in read_pieces(pieces, DecodeOptions(READ), tolerance):
            yield number, batch
        side.unread += tolerance.dropped + tolerance.lost


def _put(parts: RecordParts, digests: MessageDigests, batch: pa.RecordBatch, store: int) -> None:
    parts.put(digests.records(batch, store), store)


def _of_two(a: Sequence[Store], b: Sequence[Store], choice: MessageChoice) -> Iterator[pa.RecordBatch]:
    with diff_stores(a, b, choice) as found:
        yield from found.batches()


VIEW = View(
    "diff",
    "The messages in which this store and another one differ. A is this store, B that of the option "
    "`otherPath`, each with all stores of its cluster.",
    DIFF_COLUMNS,
    of_two=_of_two,
)

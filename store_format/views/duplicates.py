"""The view `duplicates`: messages of a topic that were stored again with the same id or the same key.

The copies that a broker or a group makes of one message are no duplicates: retries, delayed and half messages
and dead letters are in topics of their own, and what was sent back names its first message
(ORIGIN_MESSAGE_ID). So does a dead letter that was stored again (RESENT_FROM).

Memory is bounded for any number of messages. The first pass over a topic counts ids and keys in slots of a
table by their hash. Only those in a slot with two or more can be duplicates. Further passes, each for a share
of the slots, compare the texts: two passes in all for each share, one for the first places, one for the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from store_format.display.columns import (
    BROKER,
    INT,
    LONG,
    TEXT,
    TIME,
    TIME_MS_MIN,
    TIME_MS_STOP,
    ViewColumn,
    batch_of,
    schema_of,
)
from store_format.java.text import java_hash_many
from store_format.names import ORIGIN_MESSAGE_ID, RESENT_FROM, UNIQ_KEY, is_system_topic
from store_format.read.store import Queue, Store
from store_format.views.view import View, read_queues

DUPLICATE_COLUMNS = (
    BROKER,
    ViewColumn("topic", TEXT, "The topic of both messages."),
    ViewColumn("by", TEXT, "What is the same: `msgId` (UNIQ_KEY: the producer sent it again) or `key`."),
    ViewColumn("value", TEXT, "The id or the key."),
    ViewColumn("copies", LONG, "How many messages of the topic have the value; each but the first is a row."),
    ViewColumn("firstQueueId", INT, "The queue of the message that was stored first."),
    ViewColumn("firstQueueOffset", LONG, "Its offset in that queue."),
    ViewColumn("firstStoreTimestamp", TIME, "When it was stored."),
    ViewColumn("queueId", INT, "The queue of the later message."),
    ViewColumn("queueOffset", LONG, "Its offset in that queue."),
    ViewColumn("storeTimestamp", TIME, "When it was stored."),
    ViewColumn("betweenMs", LONG, "The time between the two, in ms."),
    ViewColumn("firstPhysicalOffset", LONG, "The physical offset of the first message in the commitlog."),
    ViewColumn("physicalOffset", LONG, "The physical offset of the later message."),
)

_READ = (
    "queueId", "queueOffset", "physicalOffset", "storeTimestampMs", "keys", UNIQ_KEY, ORIGIN_MESSAGE_ID,
    RESENT_FROM,
)  # fmt: skip
_KINDS = {"U": "msgId", "K": "key"}  # first character of a text
_TABLE = ("text", "physical", "queue", "offset", "time", "unique")

# A slot is one byte. The number of texts that are compared at once bounds the memory of a pass.
_SLOTS_MIN, _SLOTS_MAX = 1 << 16, 1 << 26
_TEXTS_MAX = 1_000_000


def duplicates(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each later message with the id or a key of an earlier message of its topic.

    A message with the id of the first one is not also a row for their keys. Messages of one producer call in
    another store are not compared.
    """
    yield batch_of(DUPLICATE_COLUMNS, ())
    queues = store.queues(lambda topic: not is_system_topic(topic))
    for topic, of_topic in groupby(queues, lambda queue: queue.topic):
        yield from (_output_batch(store.broker_name, topic, rows) for rows in _of_topic(list(of_topic)))


def _of_topic(
    queues: Sequence[Queue], *, slots_max: int = _SLOTS_MAX, texts_max: int = _TEXTS_MAX
) -> Iterator[pa.Table]:
    """Tables with the columns of `_TABLE`, `copies`, and those of the first message as `first_…`."""
    messages = sum(queue.messages for queue in queues)
    slots = np.zeros(min(max(1 << (messages * 16).bit_length(), _SLOTS_MIN), slots_max), np.uint8)
    texts = 0
    for batch in read_queues(queues, _READ):
        found, counts = np.unique(_slots_of(_ids_and_keys(batch)["text"], slots), return_counts=True)
        slots[found] = np.minimum(slots[found] + counts, 2)
        texts += int(counts.sum())
    passes = -(-(texts - int(np.count_nonzero(slots == 1))) // texts_max)
    for number in range(passes):
        first = _first_places(queues, slots, (number, passes), texts_max)
        if not first.num_rows:
            continue
        for batch in read_queues(queues, _READ):
            later = _later(_candidates(batch, slots, (number, passes)), first)
            if later.num_rows:
                yield later


# ---- ids and keys ------------------------------------------------------------------------------------------


def _ids_and_keys(batch: pa.RecordBatch) -> pa.Table:
    """One row for the id of each message and one for each of its keys, with the columns of `_TABLE`.

    `text` is U and the id, or K and the key. Messages that were sent back or resent are left out.
    """
    batch = batch.filter(pc.and_(pc.is_null(batch[ORIGIN_MESSAGE_ID]), pc.is_null(batch[RESENT_FROM])))
    unique, keys = batch[UNIQ_KEY], batch["keys"]
    rows = np.concatenate([np.arange(len(batch)), pc.list_parent_indices(keys).to_numpy()])
    ids, words = (
        pc.binary_join_element_wise(pa.scalar(kind), values, pa.scalar(""))
        for kind, values in zip(_KINDS, (unique, pc.list_flatten(keys)), strict=True)
    )
    texts = pa.concat_arrays([ids, words])
    taken = batch.take(pa.array(rows))
    table = pa.table(
        [texts, *(taken[name] for name in ("physicalOffset", "queueId", "queueOffset", "storeTimestampMs")),
         taken[UNIQ_KEY]],
        names=_TABLE,
    )  # fmt: skip
    return table.filter(pc.fill_null(pc.greater(pc.utf8_length(texts), 1), False))


def _slots_of(texts: pa.ChunkedArray, slots: NDArray[np.uint8]) -> NDArray[np.int64]:
    hashes = java_hash_many(texts.combine_chunks()).view(np.uint32).astype(np.int64)
    # The hash of similar texts differs in its low bits only: spread it.
    return (hashes * 0x9E3779B1 >> 6) & (len(slots) - 1)


def _candidates(batch: pa.RecordBatch, slots: NDArray[np.uint8], share: tuple[int, int]) -> pa.Table:
    """The ids and keys in slots that have two or more, once for each message; of one share of the slots.

    `share` is (number, passes).
    """
    table = _ids_and_keys(batch)
    places = _slots_of(table["text"], slots)
    number, passes = share
    table = table.filter(pa.array((slots[places] == 2) & (places % passes == number)))
    codes = pc.dictionary_encode(table["text"].combine_chunks()).indices.to_numpy().astype(np.int64)
    _, rows = np.unique(np.stack([table["physical"].to_numpy(), codes]), axis=1, return_index=True)
    return table.take(pa.array(np.sort(rows)))


def _first_places(
    queues: Sequence[Queue], slots: NDArray[np.uint8], share: tuple[int, int], texts_max: int
) -> pa.Table:
    """The message that was stored first for each text that two messages have, with their number `copies`."""
    first: pa.Table | None = None
    waiting: list[pa.Table] = []
    count = 0
    for batch in read_queues(queues, _READ):
        found = _candidates(batch, slots, share)
        waiting.append(found.append_column("copies", pa.array(np.ones(found.num_rows, np.int64))))
        count += found.num_rows
        if count > texts_max // 4:
            first, waiting, count = _merged_tables(first, waiting), [], 0
    first = _merged_tables(first, waiting)
    return first.filter(pc.greater(first["copies"], 1))


def _merged_tables(first: pa.Table | None, waiting: Sequence[pa.Table]) -> pa.Table:
    """One row for each text: the first message, and the sum of `copies`."""
    tables = [*([] if first is None else [first]), *waiting]
    if not tables:
        return pa.table({name: pa.array([], pa.int64()) for name in (*_TABLE, "copies")})
    table = pa.concat_tables(tables).combine_chunks()
    table = table.take(pc.sort_indices(table, [("text", "ascending"), ("physical", "ascending")]))
    if not table.num_rows:
        return table
    codes = pc.dictionary_encode(table["text"].combine_chunks()).indices.to_numpy()
    starts = np.flatnonzero(np.diff(codes, prepend=-1))
    copies = np.add.reduceat(table["copies"].to_numpy(), starts)
    return table.take(pa.array(starts)).set_column(len(_TABLE), "copies", pa.array(copies))


def _later(found: pa.Table, first: pa.Table) -> pa.Table:
    """The candidates that are not the first message of their text."""
    places = pc.index_in(found["text"].combine_chunks(), first["text"].combine_chunks())
    found = found.filter(pc.is_valid(places))
    origin = first.take(places.drop_null())
    is_key = pc.starts_with(found["text"], "K")
    same_id = pc.fill_null(pc.equal(found["unique"], origin["unique"]), False)
    kept = pc.and_(pc.not_equal(found["physical"], origin["physical"]), pc.invert(pc.and_(is_key, same_id)))
    for name in ("copies", *_TABLE[1:5]):
        found = found.append_column(name if name == "copies" else f"first_{name}", origin[name])
    return found.filter(kept)


# ---- rows --------------------------------------------------------------------------------------------------


def _output_batch(broker: str, topic: str, rows: pa.Table) -> pa.RecordBatch:
    rows = rows.combine_chunks()
    arrays: dict[str, Any] = {name: rows[name].combine_chunks() for name in rows.column_names}
    count = rows.num_rows
    by = pc.if_else(pc.starts_with(arrays["text"], "K"), _KINDS["K"], _KINDS["U"])
    values = [
        pa.repeat(pa.scalar(broker, TEXT), count), pa.repeat(pa.scalar(topic, TEXT), count), by,
        pc.utf8_slice_codeunits(arrays["text"], 1), arrays["copies"],
        arrays["first_queue"], arrays["first_offset"], _times_us(arrays["first_time"]),
        arrays["queue"], arrays["offset"], _times_us(arrays["time"]),
        pc.subtract(arrays["time"], arrays["first_time"]),
        arrays["first_physical"], arrays["physical"],
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(values, schema=schema_of(DUPLICATE_COLUMNS))


def _times_us(times_ms: pa.Int64Array) -> pa.TimestampArray:
    known = pc.and_(pc.greater_equal(times_ms, TIME_MS_MIN), pc.less(times_ms, TIME_MS_STOP))
    return pc.multiply(pc.if_else(known, times_ms, pa.scalar(None, LONG)), 1000).cast(TIME)


VIEW = View(
    "duplicates",
    "Messages that were stored again with the id or a key of an earlier message.",
    DUPLICATE_COLUMNS,
    duplicates,
)

"""The view `inFlight`: messages that pop has handed out and that nobody has acknowledged, one row each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from store_format.display.columns import BROKER, INT, LONG, TEXT, TIME, ViewColumn, batches_of, time_us
from store_format.message.columns import DecodeOptions
from store_format.metadata.read import BrokerConf
from store_format.pop.in_flight import read_pop_progress
from store_format.read.store import Queue, Store, read_pieces
from store_format.read.tolerance import Tolerance
from store_format.views.view import View

IN_FLIGHT_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "The topic of the queue: the popped topic, or the group's pop retry topic."),
    ViewColumn("queueId", INT, "The queue."),
    ViewColumn("queueOffset", LONG, "The offset of the message in the queue."),
    ViewColumn("msgId", TEXT, "The message id that clients show; null if the message is deleted."),
    ViewColumn(
        "deliveryAttempt",
        INT,
        "Which delivery of the message this is, from 1; null if the message is deleted.",
    ),
    ViewColumn("popTimestamp", TIME, "When the message was popped, or its invisible time last changed."),
    ViewColumn(
        "visibleTimestamp",
        TIME,
        "When the message becomes visible to other consumers, if nobody acknowledges.",
    ),
    ViewColumn("owner", TEXT, "The consumer that has the message; null if a broker handed it out."),
    ViewColumn("source", TEXT, "Who has the message on record: `rmqlog`, or the records of a `broker`."),
)

_COLUMNS = ("queueOffset", "msgId", "reconsumeTimes")
_GAP_MAX = 256  # messages: to read these costs less than to begin another read


def in_flight(store: Store, now_ms: int, conf: BrokerConf | None = None) -> Iterator[pa.RecordBatch]:
    """One row for each message in flight, by group, topic, queue and offset."""
    return batches_of(IN_FLIGHT_COLUMNS, _rows(store, conf))


def _rows(store: Store, conf: BrokerConf | None) -> Iterator[tuple[object, ...]]:
    found = read_pop_progress(store, conf).in_flight
    topics = {topic for _, topic, _ in found}
    queues = {queue.key: queue for queue in store.queues(topics.__contains__)} if topics else {}
    for group, topic, queue_id in sorted(found):
        points = found[group, topic, queue_id]
        messages = _messages(
            queues.get((topic, queue_id)), [offset for point in points for offset in point.offsets]
        )
        handed_out = ((offset, point) for point in points for offset in point.offsets)
        for offset, each in sorted(handed_out, key=lambda pair: (pair[0], pair[1].pop_time)):
            row = messages.get(offset, {})
            yield (
                store.broker_name, group, topic, queue_id, offset, row.get("msgId"),
                row["reconsumeTimes"] + each.earlier + 1 if row else None,
                time_us(each.pop_time), time_us(each.visible_at),
                each.owner or None, each.source,
            )  # fmt: skip


def _messages(queue: Queue | None, offsets: Iterable[int]) -> dict[int, dict[str, Any]]:
    """The messages at these offsets that still exist."""
    if queue is None:
        return {}
    wanted = {offset for offset in offsets if queue.min_offset <= offset < queue.max_offset}
    pieces = [(queue, queue.piece(start, stop)) for start, stop in stretches(sorted(wanted))]
    tolerance = Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    batches = read_pieces(pieces, DecodeOptions(_COLUMNS, verify_crc=False), tolerance)
    rows = (row for batch in batches for row in batch.to_pylist())
    return {row["queueOffset"]: row for row in rows if row["queueOffset"] in wanted}


def stretches(offsets: Sequence[int], gap_max: int = _GAP_MAX) -> Iterator[tuple[int, int]]:
    """Half-open ranges that cover ascending offsets, with gaps of at most `gap_max` offsets.

    >>> list(stretches([1, 2, 4, 9], gap_max=1))
    [(1, 5), (9, 10)]
    """
    first = 0
    for i in range(1, len(offsets) + 1):
        if i == len(offsets) or offsets[i] - offsets[i - 1] > gap_max + 1:
            yield offsets[first], offsets[i - 1] + 1
            first = i


VIEW = View(
    "inFlight",
    "Messages that pop has handed out and that nobody has acknowledged.",
    IN_FLIGHT_COLUMNS,
    with_conf=in_flight,
)

"""`find` with all of the filters: what the store's own search does not know is decided on its answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from rmq_spark.cli.filters import Filters
from rmq_spark.cli.progress import Progress
from store_format.message.columns import arrow_schema

if TYPE_CHECKING:
    from store_format import MessageStore
    from store_format.search.found import Found

__all__ = ["find_in"]

_LOOKED_AT = ("topic", "queueId", "properties")


def find_in(
    store: MessageStore, filters: Filters, message_id: str | None, names: Sequence[str], *, use_index: bool
) -> Found:
    """The messages asked for, in the order of the log, with the columns `names` among others, and how they
    were found.
    """
    with Progress("find", 0) as progress:
        if filters.key is None and message_id is None:
            return _by_time(store, filters, names, progress)
        found = store.find(
            key=filters.key,
            message_id=message_id,
            topic=filters.one_topic,
            tags=filters.tags or None,
            begin_ms=filters.since_ms,
            end_ms=None if filters.until_ms is None else filters.until_ms - 1,
            columns=tuple(dict.fromkeys((*names, *_LOOKED_AT))),
            on_damage="DROPMALFORMED",
            use_index=use_index,
            on_scanned=progress.reach_of,
        )
        return replace(found, table=_chosen(found.table, filters))


def _chosen(table: pa.Table, filters: Filters) -> pa.Table:
    """A key or an id names its message, so RocketMQ's own topics are searched too, unless `--topic` says
    otherwise.
    """
    if filters.topic is not None:
        table = table.filter(
            pa.array([filters.chooses_topic(topic) for topic in table["topic"].to_pylist()], pa.bool_())
        )
    if filters.queue_ids:
        table = table.filter(pc.is_in(table["queueId"], value_set=pa.array(filters.queue_ids, pa.int32())))
    if filters.where is not None:
        table = table.filter(filters.where.mask_of_maps(table["properties"].combine_chunks()))
    return table


def _by_time(store: MessageStore, filters: Filters, names: Sequence[str], progress: Progress) -> Found:
    """Without key or id: the queues, from back to front no further than `--limit`."""
    from rmq_spark.cli.reading import SIZE, bytes_to_read, chosen_queues, first_messages, read_messages
    from store_format.read.tolerance import Tolerance
    from store_format.search.found import Found, Searched

    tolerance = Tolerance()
    if filters.limit is not None:
        table = first_messages(store, filters, names, filters.limit, tolerance)
    else:
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

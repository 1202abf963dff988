"""Shows tables, messages, views and the life of a message as HTML in notebooks.

Each function returns an object with `_repr_html_`. Stores, queues and the results of `find` and `diagnose`
show themselves without these functions. No extra is needed; charts are in `rmq_spark.charts`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from store_format import MessageStore
from store_format.display.page import LIMIT, Html
from store_format.display.rows import plain_rows
from store_format.notebook.cards import message_cards, table_card, timeline, view_card

__all__ = ["message", "table", "trace", "view"]

_MESSAGES_MAX = 10


# Any: also DataFrames, of Spark or Spark Connect
def table(rows: Any, *, limit: int = LIMIT, title: str = "rows") -> Html:
    """Shows the rows of an Arrow table or batch, of `messages`, or of a DataFrame of Spark, pandas or Polars;
    of Spark and of messages, fetches little more than `limit` rows.

    Raises TypeError for other objects. Example: `show.table(store.view("lag"), title="lag")`.
    """
    data, total = _arrow(rows, limit)
    return table_card(data.to_batches(), data.schema, title, limit=limit, total=total)


# Any: see table; a row is a mapping of columns, or Spark's Row
def message(row: Any, *, limit: int = _MESSAGES_MAX) -> Html:
    """Shows a card with all columns for each message: one row, or at most `limit` rows of a table.

    A row is a mapping of column names to values, or a Spark Row; a table is what `table` accepts. Example:
    `show.message(store.find(key="A-100017").table)`.
    """
    single = row.asDict() if hasattr(row, "asDict") else row
    if isinstance(single, Mapping):
        return message_cards([single])
    data, _ = _arrow(row, limit)
    return message_cards(_rows(data), limit=limit)


def view(store: MessageStore, name: str, *, limit: int = LIMIT, now_ms: int | None = None) -> Html:
    """Shows a view of the store, with the meaning of each column as a tooltip. See `store.view`.

    Ages are computed at `now_ms` (ms since 1970, default: now). Example: `show.view(store, "retention")`.
    """
    return view_card(store, name, limit=limit, now_ms=now_ms)


def trace(store: MessageStore, message_id: str) -> Html:
    """Shows the life of a message as a timeline. See `store.trace`.

    Example: `show.trace(store, "0A00051112672A139A4E7117B3AF7896")`.
    """
    return timeline(store.trace(message_id), message_id)


def _arrow(rows: Any, limit: int) -> tuple[pa.Table, int | None]:  # Any: see table
    """The rows as a table, and the number of all rows if it is known."""
    if isinstance(rows, pa.RecordBatch):
        rows = pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows, rows.num_rows
    if hasattr(rows, "toArrow"):
        found = rows.limit(limit + 1).toArrow()  # one more row shows whether there are more
    elif hasattr(rows, "__arrow_c_stream__"):
        found = _first_rows(pa.RecordBatchReader.from_stream(rows), limit + 1)
    else:
        raise TypeError(
            f"expected an Arrow table, a record batch or a DataFrame, found {type(rows).__name__}"
        )
    return found, None if found.num_rows > limit else found.num_rows


def _first_rows(reader: pa.RecordBatchReader, count: int) -> pa.Table:
    """At least `count` rows, if the reader has as many."""
    batches, rows = [], 0
    for batch in reader:
        batches.append(batch)
        rows += batch.num_rows
        if rows >= count:
            break
    return pa.Table.from_batches(batches, reader.schema)


def _rows(data: pa.Table) -> Iterable[Mapping[str, Any]]:  # Any: values of the columns
    for batch in data.to_batches():
        for start in range(batch.num_rows):
            yield from plain_rows(batch.slice(start, 1))  # bodies may be large

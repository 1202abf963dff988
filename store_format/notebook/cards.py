"""HTML cards of a store, a view, a message and any table.

A card is made when a notebook shows the object, from directory listings and a few reads. A card names files
that cannot be read; it does not fail. The card of a message has its queue and offset, times, ids, all
properties, and the start of the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime
from itertools import islice, starmap
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from store_format.bookkeeping.journal import StoreState
from store_format.display.columns import BROKER, INT, LONG, TEXT, ViewColumn, batch_of, schema_of
from store_format.display.page import (
    Html,
    PageSpace,
    body,
    card,
    fact,
    facts,
    note,
    problem_list,
    text,
    warning,
)
from store_format.display.table import LIMIT, cell, table, time_text
from store_format.display.units import size_text
from store_format.errors import StoreError
from store_format.views.registry import view_batches, view_named

if TYPE_CHECKING:
    from store_format.read.store import Queue, Store

_TOPICS_SHOWN = 30
_FINDINGS_SHOWN = 5
_MESSAGES_MAX = 10
_NEXT = {StoreState.CRASHED: ": the last writer was killed; store.diagnose() says what is left"}
_MESSAGE_FRAME_SIZE = 500  # bytes of HTML around the values of one message

_TOPIC_COLUMNS = (
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("queues", INT, "Number of queues that have or had messages."),
    ViewColumn("messages", LONG, "Number of messages that can be read."),
)

_BODY_BYTES = 1024
_PROPERTIES_MAX = 200
_FIRST = (
    "topic",
    "queueId",
    "queueOffset",
    "brokerName",
    "tags",
    "keys",
    "msgId",
    "storeTimestamp",
    "bornTimestamp",
)
_BELOW = ("properties", "body", "rawBody")


def table_card(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    title: str,
    *,
    limit: int = LIMIT,
    total: int | None = None,
) -> Html:
    """A card of any rows."""
    return card(title, "rows", [table(batches, schema, PageSpace(), limit=limit, total=total)])


def view_card(store: Store, name: str, *, limit: int = LIMIT, now_ms: int | None = None) -> Html:
    """A card of a view; reads only the rows that it shows."""
    view = view_named(name)
    if name == "problems":
        found = (row for batch in view_batches(store, name, now_ms=now_ms) for row in batch.to_pylist())
        listed = problem_list(found, PageSpace(), store.path, limit=limit) or [note("no problems")]
        lines = facts([fact("store", text(store.path, 500))])
        return card(f"{store.broker_name}: {name}", "view", [note(_plain(view.about)), lines, *listed])
    about = {column.name: _plain(column.about) for column in view.columns}
    columns = [column for column in view.schema.names if column != BROKER.name]  # the title names the broker
    batches = (batch.select(columns) for batch in view_batches(store, name, now_ms=now_ms))
    schema = pa.schema([view.schema.field(column) for column in columns])
    rows = table(batches, schema, PageSpace(), limit=limit, about=about, without_empty=True)
    return card(f"{store.broker_name}: {name}", "view", [note(_plain(view.about)), rows])


def _plain(markdown: str) -> str:
    """A sentence of the reference without the marks of code."""
    return markdown.replace("`", "")


# Any: values of columns
def message_cards(rows: Iterable[Mapping[str, Any]], *, limit: int = _MESSAGES_MAX) -> Html:
    """One page with a card for each row."""
    space, parts, title, shown = PageSpace(), [], "message", 0
    for row in rows:
        if shown == limit or space.is_full:
            why = ": the page is full" if space.is_full else "; more follow"
            parts.append(note(f"the first {shown:,} messages{why}"))
            break
        if shown:
            head = f'<div class="s">{text(_title_of(row))}</div>'
            space.spend(len(head.encode()) + _MESSAGE_FRAME_SIZE)
            parts.append(head)
        else:
            title = _title_of(row)
        parts += _message(row, space)
        shown += 1
    return card(title, "message" if shown < 2 else f"{shown:,} messages", parts or [note("no message")])


# ---- stores and queues -------------------------------------------------------------------------------------


def store_card(store: Store) -> Html:
    """A store: path, broker, commitlog, state, and the topics with the most messages."""
    log = store.log
    count = f"{len(log.files):,} file{'s' * (len(log.files) != 1)}"
    files = f"{count}, {size_text(log.size_bytes)}, from offset {log.min_offset}"
    lines = [("path", text(store.path, 500)), ("broker", text(store.broker_name)), ("commitlog", files)]
    parts: list[str] = []
    try:
        lines.append(("state", f"{store.state}{_NEXT.get(store.state, '')}"))
        if store.has_consume_queues:
            queues = store.queues()
            messages = sum(queue.max_offset - queue.min_offset for queue in queues)
            lines.append(("messages", f"{messages:,} in {len(queues):,} queues"))
            parts.append(_topic_table(queues))
        else:
            parts.append(
                note("no consume queue files; store.view('topics') reads the whole commitlog instead")
            )
    except (StoreError, OSError) as error:
        parts.append(warning(f"some files cannot be read: {error}"))
    parts = [*map(warning, _findings(store)), *parts]
    return card(store.broker_name, "message store", [facts(starmap(fact, lines)), *parts])


def _findings(store: Store) -> Iterator[str]:
    yield from (str(finding) for finding in store.log.findings[:_FINDINGS_SHOWN])
    if len(store.log.findings) > _FINDINGS_SHOWN:
        yield f"{len(store.log.findings):,} such problems in all; store.diagnose() lists them"


def _topic_table(queues: list[Queue]) -> str:
    sums: dict[str, tuple[int, int]] = {}
    for queue in queues:
        count, messages = sums.get(queue.topic, (0, 0))
        sums[queue.topic] = (count + 1, messages + queue.max_offset - queue.min_offset)
    rows = sorted(((topic, *counted) for topic, counted in sums.items()), key=lambda row: (-row[2], row[0]))
    batch = batch_of(_TOPIC_COLUMNS, rows[: _TOPICS_SHOWN + 1])
    about = {column.name: column.about for column in _TOPIC_COLUMNS}
    return table(
        [batch], schema_of(_TOPIC_COLUMNS), PageSpace(), limit=_TOPICS_SHOWN, total=len(rows), about=about
    )


# ---- a message ---------------------------------------------------------------------------------------------


def _title_of(row: Mapping[str, Any]) -> str:  # Any: values of columns
    """Topic, queue and offset of a message, as far as the row has them."""
    topic, queue, offset = (row.get(name) for name in ("topic", "queueId", "queueOffset"))
    place = "" if queue is None else f"-{queue}" if offset is None else f"-{queue} at {offset}"
    return f"{topic}{place}" if topic is not None else "message"


def _message(row: Mapping[str, Any], space: PageSpace) -> list[str]:
    """The parts of the message's card, as many as fit on the page."""
    values = {str(name): _plain_value(value, is_map=name == "properties") for name, value in row.items()}
    order = [name for name in _FIRST if name in values] + [
        name for name in values if name not in _FIRST + _BELOW
    ]
    lines, left_out = [], 0
    for name in order:
        line = fact(name, _value(name, values[name]))
        if space.takes(line):
            lines.append(line)
        else:
            left_out += 1
    parts = [facts(lines)]
    if left_out:
        parts.append(note(f"{left_out:,} more columns: the page is full"))
    if isinstance(values.get("properties"), Mapping):
        parts += _property_table(values["properties"], space)
    parts += [
        part
        for name in ("body", "rawBody")
        if isinstance(values.get(name), bytes)
        for part in _body_parts(name, values[name], space)
    ]
    return parts


def _value(name: str, value: Any) -> str:
    if name.endswith("Timestamp") and isinstance(value, str):
        return f"{text(time_text(value))} UTC"
    return cell(value, name)


def _property_table(properties: Mapping[str, Any], space: PageSpace) -> list[str]:
    rows = []
    for name, value in islice(properties.items(), _PROPERTIES_MAX):
        row = f"<tr><td>{text(str(name))}</td><td>{text(str(value))}</td></tr>"
        if not space.takes(row):
            break
        rows.append(row)
    heads = "<thead><tr><th>property</th><th>value</th></tr></thead>"
    parts = [f'<table class="r">{heads}<tbody>{"".join(rows)}</tbody></table>'] if rows else []
    if len(rows) < len(properties):
        parts.append(note(f"the first {len(rows):,} of {len(properties):,} properties"))
    return parts


def _body_parts(name: str, value: bytes, space: PageSpace) -> list[str]:
    head = f'<div class="s">{name}<span class="k">{len(value):,} bytes</span></div>'
    if not value:
        return [head]
    part = f'<pre class="b">{body(value, _BODY_BYTES, lines=True)}</pre>'
    return [head, part if space.takes(part) else note("not shown: the page is full")]


def _plain_value(value: Any, *, is_map: bool) -> Any:
    """A value of Arrow's `to_pylist` or of a Spark row in the form of `plain_rows`."""
    if isinstance(value, datetime):
        # Spark collects times in the time zone of this machine
        moment = value if value.tzinfo is not None else value.astimezone()
        return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if is_map and isinstance(value, list):
        return dict(value)
    return value

"""HTML cards of a store, a view, a message and any table; and the life of a message as a timeline.

A card is made when a notebook shows the object, from directory listings and a few reads. A card names files
that cannot be read; it does not fail. The card of a message has its queue and offset, times, ids, all
properties, and the start of the body. The timeline of `trace` has one line an event, then the position of
each group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from itertools import islice, starmap
from typing import Any

import pyarrow as pa

from store_format.bookkeeping.journal import StoreState
from store_format.display.columns import BROKER, INT, LONG, TEXT, ViewColumn, batch_of, schema_of
from store_format.display.page import (
    LIMIT,
    Html,
    PageSpace,
    body,
    card,
    cell,
    fact,
    facts,
    note,
    problem_list,
    table,
    text,
    time_text,
    warning,
)
from store_format.display.rows import plain_rows
from store_format.display.units import duration_text, size_text
from store_format.errors import StoreError
from store_format.read.store import Queue, Store
from store_format.views.registry import view_batches, view_named

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
            messages = sum(queue.messages for queue in queues)
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
        sums[queue.topic] = (count + 1, messages + queue.messages)
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
    return dict(value) if is_map and isinstance(value, list) else value


# ---- the life of a message ---------------------------------------------------------------------------------


_LINES_MAX = 500
_GREY, _BLUE, _GREEN, _AMBER, _RED = "#808080", "#3b82f6", "#16a34a", "#d97706", "#dc2626"

# How an event begins -> colour of its dot. Other events are grey.
_COLOURS = (
    ("waits for retry", _AMBER), ("retry", _AMBER), ("delayed", _AMBER), ("half message", _AMBER),
    ("recall", _AMBER),
    ("dead letter", _RED), ("discarded", _RED), ("transaction rolled", _RED), ("not reached", _GREY),
    ("stored", _BLUE), ("delivered", _BLUE), ("committed", _BLUE), ("transaction", _BLUE), ("born", _GREY),
    ("passed", _GREEN),
)  # fmt: skip

_TIME = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_DATE = 10  # characters of a date
_LINE = "display:grid;align-items:baseline"
_COLUMNS = "grid-template-columns:13.5em 5.5em 1.4em 1fr"
_WHEN = "white-space:nowrap;font-variant-numeric:tabular-nums"
_SINCE = "white-space:nowrap;text-align:right;padding-right:6px;opacity:.6;font-variant-numeric:tabular-nums"
_DOT = "display:inline-block;width:10px;height:10px;border-radius:5px;position:relative;z-index:1"
_TEXT = (
    "border-left:2px solid rgba(128,128,128,.35);padding:2px 0 4px 14px;margin-left:-13.5px;"
    "overflow-wrap:anywhere;overflow:hidden"
)

_Row = Mapping[str, Any]  # Any: values of TRACE_COLUMNS


def timeline(events: pa.Table, message_id: str) -> Html:
    """A page with the life of one message; `events` has the columns `trace.TRACE_COLUMNS`."""
    space, parts, shown = PageSpace(), [], 0
    before: str | None = None
    standing = False
    rows = [row for batch in events.slice(0, _LINES_MAX + 1).to_batches() for row in plain_rows(batch)]
    dates = {time_text(row["time"])[:_DATE] for row in rows if row["time"] is not None}
    date = dates.pop() if len(dates) == 1 else ""
    for row in rows:
        piece = _event_line(row, before, date)
        if row["time"] is None and not standing:
            piece, standing = '<div class="s">positions of the groups now</div>' + piece, True
        if shown == _LINES_MAX or not space.takes(piece):
            break
        parts.append(piece)
        shown, before = shown + 1, row["time"] or before
    if not events.num_rows:
        parts.append(note("the store has no message with this id"))
    elif shown < events.num_rows:
        parts.append(note(f"the first {shown:,} of {events.num_rows:,} events"))
    elif before is not None:
        parts.append(note(f"times: {date} UTC" if date else "times: UTC"))
    return card(message_id, "the life of a message", parts)


def _event_line(row: _Row, before: str | None, date: str) -> str:
    colour = next((colour for start, colour in _COLOURS if row["what"].startswith(start)), _GREY)
    what = f"<b>{text(row['what'])}</b>"
    group = "" if row["group"] is None else f"group {text(row['group'])}"
    parts = [part for part in (what, _queue_and_offset(row), group, _detail_text(row, date)) if part]
    time = time_text(row["time"] or "").removeprefix(f"{date} ")
    columns = "grid-template-columns:6.5em 5.5em 1.4em 1fr" if date else _COLUMNS
    return (
        f'<div style="{_LINE};{columns}"><span style="{_WHEN}">{time}</span>'
        f'<span style="{_SINCE}">{_since(before, row["time"])}</span>'
        f'<span style="{_DOT};background:{colour}"></span>'
        f'<span style="{_TEXT}">{" · ".join(parts)}</span></div>'
    )


def _queue_and_offset(row: _Row) -> str:
    if row["topic"] is None:
        return ""
    queue = "" if row["queueId"] is None else f"-{row['queueId']}"
    offset = "" if row["queueOffset"] is None else f" at {row['queueOffset']}"
    return f"{text(row['topic'])}{queue}{offset}"


def _detail_text(row: _Row, date: str) -> str:
    """The detail, with its times as in the column of times."""
    if not row["detail"]:
        return ""
    detail = _TIME.sub(lambda match: time_text(match[0]).removeprefix(f"{date} "), row["detail"])
    return f'<span class="o">{text(detail, 500)}</span>'


def _since(before: str | None, now: str | None) -> str:
    """The time since the previous event."""
    if before is None or now is None:
        return ""
    ms = (datetime.fromisoformat(now) - datetime.fromisoformat(before)) // timedelta(milliseconds=1)
    return f"{'+' * (ms >= 0)}{duration_text(ms)}"

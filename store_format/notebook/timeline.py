"""The result of `trace` as a timeline: one line an event, then the position of each group."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from store_format.display.page import Html, PageSpace, card, note, text
from store_format.display.rows import plain_rows
from store_format.display.table import time_text
from store_format.display.units import duration_text

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
    details = _detail_text(row, date)
    parts = [part for part in (what, _queue_and_offset(row), _group_text(row), details) if part]
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


def _group_text(row: _Row) -> str:
    return "" if row["group"] is None else f"group {text(row['group'])}"


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

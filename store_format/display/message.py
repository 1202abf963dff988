"""One message as a card: its queue and offset, times, ids, all properties, and the start of the body."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from itertools import islice
from typing import Any

from store_format.display.page import PageSpace, body, fact, facts, note, text
from store_format.display.table import cell, time_text

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


def title_of(row: Mapping[str, Any]) -> str:  # Any: values of columns
    """Topic, queue and offset of a message, as far as the row has them."""
    topic, queue, offset = (row.get(name) for name in ("topic", "queueId", "queueOffset"))
    place = "" if queue is None else f"-{queue}" if offset is None else f"-{queue} at {offset}"
    return f"{topic}{place}" if topic is not None else "message"


def message(row: Mapping[str, Any], space: PageSpace) -> list[str]:
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

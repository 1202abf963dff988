"""Values of `plain_rows` for JSON, for CSV, and for the cells of a table.

Bytes become base64, as in Spark's `to_json`, or text; maps become objects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from store_format.display.text import body_text, shown

BODY_CHARACTERS = 40  # with the note of the size, as many as fit a cell
_TEXT_CHARACTERS = 200  # a longer value is cut, with a note


def json_value(value: object, *, bodies_as_text: bool) -> object:
    """A value for JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace") if bodies_as_text else base64.b64encode(value).decode()
    return value


def csv_value(value: object, *, bodies_as_text: bool) -> object:
    """A value for CSV: null is empty, lists and maps are JSON."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return json_value(value, bodies_as_text=bodies_as_text)


def cell(value: object, characters_max: int = BODY_CHARACTERS) -> str:
    """A value as text for a terminal: one line, no control characters, cut with a note if it is long."""
    if value is None:
        return "-"
    if isinstance(value, bytes):
        return body_text(value, characters_max)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return _cut_text(" ".join(f"{name}={text}" for name, text in value.items()))
    if isinstance(value, list | tuple):
        return _cut_text(" ".join(map(str, value)))
    return _cut_text(str(value))


def _cut_text(text: str) -> str:
    if len(text) <= _TEXT_CHARACTERS:
        return shown(text)
    return f"{shown(text[:_TEXT_CHARACTERS])}… ({len(text):,} characters)"

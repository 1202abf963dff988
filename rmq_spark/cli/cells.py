"""Values of `plain_rows` as JSON and CSV have them and as a cell of a table shows them.

Bytes become base64 (as Spark's `to_json` does) or text, maps objects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping

from store_format.display.text import body_text, shown

BODY_CHARACTERS = 40  # with the note of its size, what a cell has room for
_TEXT_CHARACTERS = 200  # a cell is one look; a value beyond that is cut with a note


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
    """A value for people: on one line, harmless, and cut with a note where it is long."""
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
        return _long(" ".join(f"{name}={text}" for name, text in value.items()))
    if isinstance(value, list | tuple):
        return _long(" ".join(map(str, value)))
    return _long(str(value))


def _long(text: str) -> str:
    if len(text) <= _TEXT_CHARACTERS:
        return shown(text)
    return f"{shown(text[:_TEXT_CHARACTERS])}… ({len(text):,} characters)"

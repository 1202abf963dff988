"""Values of `plain_rows` for JSON, for CSV, and for the cells of a table.

Bytes become base64, as in Spark's `to_json`, or text, or the JSON value that they spell; maps become objects.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping

from store_format.display.text import body_text, shown

BODY_CHARACTERS = 40  # with the note of the size, as many as fit a cell
_TEXT_CHARACTERS = 200  # a longer value is cut, with a note
BODY_FORMS = ("base64", "text", "json")
_BRACKETS_MAX = 500  # opening brackets of a body that is nested: Python's json fails near 1000 levels


def json_value(value: object, *, bodies: str) -> object:
    """A value for JSON. `bodies`, of BODY_FORMS, is the form of bytes."""
    if not isinstance(value, bytes):
        return value
    if bodies == "json":
        return _nested(value)
    return value.decode("utf-8", "replace") if bodies == "text" else base64.b64encode(value).decode()


def _nested(body: bytes) -> object:
    """The value of a JSON body; another body as text, and one that is not UTF-8 as {"base64": …}."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
    try:
        if body.count(b"{") + body.count(b"[") > _BRACKETS_MAX and _depth(text) > _BRACKETS_MAX:
            return text
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except ValueError:
        return text


def _depth(text: str) -> int:
    """The largest number of open brackets; brackets within strings count, too."""
    depth = most = 0
    for character in text:
        if character in "{[":
            depth += 1
            most = max(most, depth)
        elif character in "}]":
            depth -= 1
    return most


def _finite(text: str) -> float:
    """A number of a body. NaN, Infinity and 1e999 are no JSON that another program reads: ValueError."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


def csv_value(value: object, *, bodies: str) -> object:
    """A value for CSV: null is empty, lists and maps are JSON."""
    value = json_value(value, bodies=bodies)
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    return value


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

"""Text of a store, safe for terminals and pages: control and format characters become escapes.

Errors and problems escape their own text, and `rmqlog` all that it prints; a log call passes each name of a
store through `shown` or `first_names`. Escaping a text twice is the same as escaping it once.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterable
from itertools import islice

_BODY_BYTES_A_CHARACTER = 4  # of UTF-8, at most


def shown(text: str) -> str:
    r"""The text with control characters, format characters and lone surrogates as escapes.

    >>> shown("a\x1b[2J\u202eb")
    'a\\x1b[2J\\u202eb'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else spelled(char) for char in text)


def first_names(names: Iterable[str], names_max: int = 8) -> str:
    r"""The first names, escaped, and `, …` if there are more.

    >>> first_names(["Orders-0", "a\x1b[2J-1", "Audit-0"], 2)
    'Orders-0, a\\x1b[2J-1, …'
    """
    first = list(islice(names, names_max + 1))
    more = ", …" if len(first) > names_max else ""
    return ", ".join(map(shown, first[:names_max])) + more


def spelled(char: str) -> str:
    """The escape of a character that is not printable, as in Python source."""
    return repr(char)[1:-1]


def json_text(value: object, *, ascii_only: bool = False, indent: int | None = None) -> str:
    r"""JSON as a person reads it: letters of all scripts as they are, what no terminal should get as \uXXXX.

    >>> json_text({"tags": "标签", "keys": "a\x1b[2J"})
    '{"tags": "标签", "keys": "a\\u001b[2J"}'
    """
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    if text.isprintable():
        return text
    lines = text.split("\n")  # of the indentation; a line feed in a text is an escape
    return "\n".join("".join(c if c.isprintable() else _json_escape(c) for c in line) for line in lines)


def _json_escape(char: str) -> str:
    return "\\u007f" if char == "\x7f" else json.dumps(char)[1:-1]


def body_text(body: bytes, characters_max: int) -> str:
    r"""A body for a cell of a terminal: UTF-8 as text, other bytes as \xNN, cut with the number of bytes."""
    part = body[: characters_max * _BODY_BYTES_A_CHARACTER]
    text = shown(part.decode("utf-8", "backslashreplace"))
    kept = cut(text, characters_max)
    if len(part) == len(body) and kept == text:
        return text
    return f"{kept.removesuffix('…')}… ({len(body):,} bytes)"


def cut(text: str, columns_max: int) -> str:
    """The text in at most `columns_max` columns of a terminal; `…` marks a cut."""
    if len(text) <= columns_max and (text.isascii() or width(text) <= columns_max):
        return text
    used, kept = 0, []
    for char in text:
        used += _columns(char)
        if used >= columns_max:
            break
        kept.append(char)
    return "".join(kept) + "…"


def width(text: str) -> int:
    """The columns of a terminal that a text takes: Chinese characters two, combining marks none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1

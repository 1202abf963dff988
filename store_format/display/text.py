"""Text of a store as a terminal or a page may show it: whatever could move the cursor, hide, or turn the
direction is spelled out.

`shown` is the one function for it; every cell, every error and every remark goes through it.
"""

from __future__ import annotations

import unicodedata

__all__ = ["body_text", "cut", "shown", "spelled", "width"]

_BODY_BYTES_A_CHARACTER = 4  # of UTF-8, at most


def shown(text: str) -> str:
    r"""Control characters, format characters (right-to-left overrides among them) and lone surrogates as escapes.

    >>> shown("a\x1b[2J\u202eb")
    'a\\x1b[2J\\u202eb'
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else spelled(char) for char in text)


def spelled(char: str) -> str:
    """A character by its code, as Python writes it."""
    names = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}
    code = ord(char)
    return names.get(char) or (
        f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    )


def body_text(body: bytes, characters_max: int) -> str:
    r"""A body for a cell: UTF-8 as text, other bytes as \xNN, in at most so many columns, and a note where it is cut."""
    part = body[: characters_max * _BODY_BYTES_A_CHARACTER]
    text = shown(part.decode("utf-8", "backslashreplace"))
    kept = cut(text, characters_max)
    if len(part) == len(body) and kept == text:
        return text
    return f"{kept.removesuffix('…')}… ({len(body):,} bytes)"


def cut(text: str, columns_max: int) -> str:
    """The text in so many columns of a terminal; a cut one ends with `…`."""
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
    """Columns of a terminal: Chinese characters take two, marks that combine take none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1

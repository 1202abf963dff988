r"""The pieces of a page, and the one place where text of a store becomes HTML.

Names, keys and bodies are hostile: `text` spells out what `shown_text.shown` does, in a span of its own so that `\x1b` in the data
is not taken for an escape character, and escapes the rest. Pages have an end: `Room` says whether another piece fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from itertools import groupby

from store_format.display.text import spelled

__all__ = [
    "SIZE_MAX",
    "TEXT_CHARACTERS",
    "Html",
    "Room",
    "body",
    "card",
    "fact",
    "facts",
    "note",
    "text",
    "warning",
]

SIZE_MAX = 1_000_000  # bytes of one page; a notebook keeps every one of them
TEXT_CHARACTERS = 200  # of one value; what is cut says so
_FRAME_SIZE = 100_000  # kept free for what stands in every page: style, title, facts, notes

# Colours are those of the notebook, light or dark: own ones are either transparent greys or readable on both.
_STYLE = """
.rmqlog{font:13px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans CJK SC",sans-serif;color:inherit;max-width:100%;
box-sizing:border-box;border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:10px 14px;margin:6px 0;overflow-x:auto}
.rmqlog .h{font-size:15px;font-weight:600;margin:0 0 6px}
.rmqlog .k{font-size:11px;font-weight:400;opacity:.65;margin-left:8px}
.rmqlog .s{font-weight:600;margin:12px 0 4px}
.rmqlog .f{display:grid;grid-template-columns:max-content 1fr;gap:1px 14px;margin:0 0 6px}
.rmqlog .f dt{opacity:.65;font-weight:400;margin:0;padding:0}
.rmqlog .f dd{margin:0;padding:0;overflow-wrap:anywhere;overflow:hidden;font-variant-numeric:tabular-nums}
.rmqlog table.r{border-collapse:collapse;border:0;margin:4px 0;font-size:12px;color:inherit;table-layout:auto}
.rmqlog table.r tr th,.rmqlog table.r tr td{border:0;padding:3px 10px;text-align:left;vertical-align:top;max-width:32em;overflow:hidden;
overflow-wrap:break-word;color:inherit;background:none}
.rmqlog table.r tr th{border-bottom:1px solid rgba(128,128,128,.6);font-weight:600;white-space:nowrap}
.rmqlog table.r tbody tr{border:0;border-bottom:1px solid rgba(128,128,128,.18);background:none}
.rmqlog table.r tbody tr:hover{background:rgba(128,128,128,.12)}
.rmqlog table.r tr .n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
.rmqlog table.r tr .t{white-space:nowrap;font-variant-numeric:tabular-nums}
.rmqlog table.r tr .z{opacity:.45}
.rmqlog .e{color:#ea580c;background:rgba(234,88,12,.14);border-radius:2px;font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.92em}
.rmqlog .c{font-size:11px;opacity:.7;font-style:italic;white-space:nowrap}
.rmqlog .o{font-size:12px;opacity:.75;margin:4px 0}
.rmqlog .w{font-size:12px;margin:4px 0;padding:4px 8px;border-left:3px solid #dc2626;background:rgba(220,38,38,.1);overflow-wrap:anywhere}
.rmqlog pre.b{font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;overflow-wrap:anywhere;overflow:hidden;margin:4px 0;
padding:6px 8px;border-radius:4px;color:inherit;background:rgba(128,128,128,.1)}
"""
_STYLE_LINE = _STYLE.replace("\n", "")


@dataclass(frozen=True, slots=True, repr=False)
class Html:
    """A finished page, which notebooks show by `_repr_html_`. Every text of a store in it is escaped."""

    source: str

    def _repr_html_(self) -> str:
        return self.source

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"<HTML of {len(self.source.encode()):,} bytes, which a notebook shows>"


class Room:
    """What is left of a page for its rows; a piece that does not fit is left out, and its table says so."""

    def __init__(self, size_max: int = SIZE_MAX) -> None:
        self._left = size_max - _FRAME_SIZE
        self.is_full = False

    def takes(self, piece: str) -> bool:
        """Whether the piece still fits; if so its place is taken."""
        size = len(piece.encode())
        if size > self._left:
            self.is_full = True
            return False
        self._left -= size
        return True

    def spend(self, size: int) -> None:
        """Books what is shown in any case, such as the frame of a card; what is kept free bears one too many."""
        self._left -= size
        self.is_full = self.is_full or self._left < 0


def text(value: str, characters_max: int = TEXT_CHARACTERS) -> str:
    """Text of a store: escaped, spelled out where it would be invisible or turn the line around, cut with a
    note where it is long.
    """
    kept = value[:characters_max]
    remark = f'<span class="c">… {len(value):,} characters</span>' if len(kept) < len(value) else ""
    # Names written from right to left are data too: isolated, they do not move what stands beside them.
    plain = _marked(kept)
    return f"<bdi>{plain}</bdi>{remark}" if not value.isascii() else plain + remark


def _marked(value: str) -> str:
    if value.isprintable():
        return escape(value)
    parts = ((plain, "".join(chars)) for plain, chars in groupby(value, str.isprintable))
    return "".join(
        escape(part) if plain else _escape_span("".join(map(spelled, part))) for plain, part in parts
    )


def _escape_span(spelled_out: str) -> str:
    return f'<span class="e">{escape(spelled_out)}</span>'


_UNDECODED = re.compile("[\udc80-\udcff]+")  # bytes that are no UTF-8, as `surrogateescape` gives them


def body(value: bytes, bytes_max: int, *, lines: bool = False) -> str:
    r"""Bytes as UTF-8, others as \xNN; cut with a note. With `lines` line breaks break lines."""
    decoded = value[:bytes_max].decode("utf-8", "surrogateescape")
    if len(value) > bytes_max:  # not a character's first half
        decoded = re.sub("[\udcc2-\udcf4][\udc80-\udcbf]{0,2}\\Z", "", decoded)
    pieces, at = [], 0
    for match in _UNDECODED.finditer(decoded):
        pieces.append(_lines(decoded[at : match.start()], lines))
        pieces.append(_escape_span("".join(f"\\x{ord(char) - 0xDC00:02x}" for char in match[0])))
        at = match.end()
    pieces.append(_lines(decoded[at:], lines))
    if len(value) > bytes_max:
        pieces.append(f'<span class="c">… {len(value):,} bytes, the first {bytes_max:,} shown</span>')
    return f"<bdi>{''.join(pieces)}</bdi>"


def _lines(value: str, lines: bool) -> str:
    return "\n".join(map(_marked, value.split("\n"))) if lines else _marked(value)


def card(title: str, kind: str, parts: Iterable[str]) -> Html:
    """A page: a title of the store's, what kind of thing it is, and parts made here."""
    head = f'<div class="h">{text(title)}<span class="k">{escape(kind)}</span></div>'
    return Html(f'<div class="rmqlog"><style>{_STYLE_LINE}</style>{head}{"".join(parts)}</div>')


def fact(name: str, value: str) -> str:
    """A name, which may be the store's (properties may be columns), and HTML made here; a piece of `facts`."""
    return f"<dt>{text(name, 100)}</dt><dd>{value}</dd>"


def facts(pieces: Iterable[str]) -> str:
    """Facts, one below the other."""
    return f'<dl class="f">{"".join(pieces)}</dl>'


def note(remark: str) -> str:
    """A remark below a table: how much is shown."""
    return f'<div class="o">{text(remark, 500)}</div>'


def warning(remark: str) -> str:
    """A remark that must not be overlooked: damage, or what could not be read."""
    return f'<div class="w">{text(remark, 1000)}</div>'

r"""The parts of an HTML page, and the only place where text of a store becomes HTML.

Names, keys and bodies may be hostile. `text` escapes them and writes control and format characters as codes,
as `display.text.shown` does, but in a span, so that the text `\x1b` differs from an escape character.
`PageSpace` limits the size of a page.

The problems of a store are listed one below the other: where, what was expected, what was found, what to do
(`problem_list`). Not a table: its last column, the advice, would lie outside a notebook's page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

from store_format.display.text import spelled

SIZE_MAX = 1_000_000  # bytes of one page; a notebook file stores every page
TEXT_CHARACTERS = 200  # of one value; a cut value gets a remark
_FRAME_SIZE = 100_000  # reserved for the parts of every page: style, title, facts, notes

# Text has the colour of the notebook, light or dark; other colours are transparent greys or fit both.
_STYLE = """
.rmqlog{font:13px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans CJK SC",sans-serif;
color:inherit;max-width:100%;
box-sizing:border-box;border:1px solid rgba(128,128,128,.4);border-radius:6px;padding:10px 14px;
margin:6px 0;overflow-x:auto}
.rmqlog .h{font-size:15px;font-weight:600;margin:0 0 6px}
.rmqlog .k{font-size:11px;font-weight:400;opacity:.65;margin-left:8px}
.rmqlog .s{font-weight:600;margin:12px 0 4px}
.rmqlog .f{display:grid;grid-template-columns:max-content 1fr;gap:1px 14px;margin:0 0 6px}
.rmqlog .f dt{opacity:.65;font-weight:400;margin:0;padding:0;width:auto;white-space:nowrap}
.rmqlog .f dd{margin:0;padding:0;width:auto;overflow-wrap:anywhere;overflow:hidden;
font-variant-numeric:tabular-nums}
.rmqlog table.r{border-collapse:collapse;border:0;margin:4px 0;font-size:12px;color:inherit;
table-layout:auto}
.rmqlog table.r tr th,.rmqlog table.r tr td{border:0;padding:3px 10px;text-align:left;vertical-align:top;
max-width:32em;overflow-wrap:break-word;color:inherit;background:none}
.rmqlog table.r tr th{border-bottom:1px solid rgba(128,128,128,.6);font-weight:600;vertical-align:bottom}
.rmqlog table.r tbody tr{border:0;border-bottom:1px solid rgba(128,128,128,.18);background:none}
.rmqlog table.r tbody tr:hover{background:rgba(128,128,128,.12)}
.rmqlog table.r tr .n{text-align:right;font-variant-numeric:tabular-nums}
.rmqlog table.r tr td.n{white-space:nowrap}
.rmqlog table.r tr .t{white-space:nowrap;font-variant-numeric:tabular-nums}
.rmqlog table.r tr .l{min-width:14em;overflow-wrap:anywhere}
.rmqlog table.r tr .m{min-width:9em;overflow-wrap:anywhere}
.rmqlog table.r tr .z{opacity:.45}
.rmqlog .e{color:#ea580c;background:rgba(234,88,12,.14);border-radius:2px;
font-family:ui-monospace,Menlo,Consolas,monospace;font-size:.92em}
.rmqlog .c{font-size:11px;opacity:.7;font-style:italic;white-space:nowrap}
.rmqlog .o{font-size:12px;opacity:.75;margin:4px 0}
.rmqlog .w{font-size:12px;margin:4px 0;padding:4px 8px;border-left:3px solid #dc2626;
background:rgba(220,38,38,.1);overflow-wrap:anywhere}
.rmqlog .p{margin:8px 0;padding:2px 0 2px 10px;border-left:3px solid rgba(128,128,128,.5)}
.rmqlog .q{font-weight:600;overflow-wrap:anywhere}
.rmqlog pre.b{font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;white-space:pre-wrap;
overflow-wrap:anywhere;overflow:hidden;margin:4px 0;
padding:6px 8px;border-radius:4px;color:inherit;background:rgba(128,128,128,.1)}
"""
_STYLE_LINE = _STYLE.replace("\n", "")
_UNDECODED = re.compile("[\udc80-\udcff]+")  # bytes that are not UTF-8, after `surrogateescape`

_PROBLEMS_MAX = 50
_SENTENCES = ("expected", "found", "advice")
_SENTENCE_CHARACTERS = 1000
_COLOURS = {"damage": "#e03131", "warning": "#c2680a"}  # readable on white and on black


@dataclass(frozen=True, slots=True, repr=False)
class Html:
    """A finished page, which notebooks show by `_repr_html_`. Every text of a store is escaped."""

    source: str

    def _repr_html_(self) -> str:
        return self.source

    def __str__(self) -> str:
        return self.source

    def __repr__(self) -> str:
        return f"<HTML of {len(self.source.encode()):,} bytes; a notebook shows it>"


class PageSpace:
    """The bytes of a page that are still free. A part that does not fit is left out, with a remark."""

    def __init__(self, size_max: int = SIZE_MAX) -> None:
        self._left = size_max - _FRAME_SIZE
        self.is_full = False

    def takes(self, piece: str) -> bool:
        """True, and deducts the size, if the part fits."""
        size = len(piece.encode())
        if size > self._left:
            self.is_full = True
            return False
        self._left -= size
        return True

    def spend(self, size: int) -> None:
        """Deducts a part that is always shown. May overdraw by one part; the reserve covers that."""
        self._left -= size
        self.is_full = self.is_full or self._left < 0


def text(value: str, characters_max: int = TEXT_CHARACTERS) -> str:
    """Text of a store as HTML: escaped, invisible characters as codes, long text cut with a remark."""
    kept = value[:characters_max]
    remark = f'<span class="c">… {len(value):,} characters</span>' if len(kept) < len(value) else ""
    # Right-to-left names are isolated, so that they do not reorder the text beside them.
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


def body(value: bytes, bytes_max: int, *, lines: bool = False) -> str:
    r"""Bytes as HTML: UTF-8 as text, other bytes as \xNN, cut with a remark. `lines` keeps line breaks."""
    decoded = value[:bytes_max].decode("utf-8", "surrogateescape")
    if len(value) > bytes_max:  # a character that the cut has split
        decoded = re.sub("[\udcc2-\udcf4][\udc80-\udcbf]{0,2}\\Z", "", decoded)
    pieces, at = [], 0
    for match in _UNDECODED.finditer(decoded):
        pieces.append(_marked_lines(decoded[at : match.start()], lines))
        pieces.append(_escape_span("".join(f"\\x{ord(char) - 0xDC00:02x}" for char in match[0])))
        at = match.end()
    pieces.append(_marked_lines(decoded[at:], lines))
    if len(value) > bytes_max:
        pieces.append(f'<span class="c">… {len(value):,} bytes, the first {bytes_max:,} shown</span>')
    return f"<bdi>{''.join(pieces)}</bdi>"


def _marked_lines(value: str, lines: bool) -> str:
    return "\n".join(map(_marked, value.split("\n"))) if lines else _marked(value)


def card(title: str, kind: str, parts: Iterable[str]) -> Html:
    """A page with a title from the store, the kind of the object, and HTML parts of this package."""
    head = f'<div class="h">{text(title)}<span class="k">{escape(kind)}</span></div>'
    return Html(f'<div class="rmqlog"><style>{_STYLE_LINE}</style>{head}{"".join(parts)}</div>')


def fact(name: str, value: str) -> str:
    """One line of `facts`: a name, which may come from the store, and HTML of this package."""
    return f"<dt>{text(name, 100)}</dt><dd>{value}</dd>"


def facts(pieces: Iterable[str]) -> str:
    """A list of facts, one a line."""
    return f'<dl class="f">{"".join(pieces)}</dl>'


def note(remark: str) -> str:
    """A remark, such as how many rows of a table are shown."""
    return f'<div class="o">{text(remark, 500)}</div>'


def warning(remark: str) -> str:
    """A highlighted remark: damage, or files that cannot be read."""
    return f'<div class="w">{text(remark, 1000)}</div>'


# ---- problems ----------------------------------------------------------------------------------------------


def problem_list(
    rows: Iterable[Mapping[str, Any]],  # Any: values of PROBLEM_COLUMNS
    space: PageSpace,
    root: str,
    total: int | None = None,
    *,
    limit: int = _PROBLEMS_MAX,
) -> list[str]:
    """The parts of a page. Files below the store's directory `root` are named without that directory."""
    parts: list[str] = []
    for number, row in enumerate(rows):
        piece = _problem(row, root.rstrip("/") + "/" if root else "")
        if number == limit or not space.takes(piece):
            of_all = "problems; more follow" if total is None else f"of {total:,} problems"
            parts.append(note(f"the first {number:,} {of_all}"))
            break
        parts.append(piece)
    return parts


def _problem(row: Mapping[str, Any], prefix: str) -> str:
    severity = str(row["severity"])
    place = f"{str(row['file']).removeprefix(prefix)} at byte {row['position']}"
    sentences = ((name, str(row[name]).replace(prefix, "")) for name in _SENTENCES)
    lines = [fact(name, text(value, _SENTENCE_CHARACTERS)) for name, value in sentences if value]
    colour = _COLOURS.get(severity, "#808080")
    word = f'<span style="color:{colour}">{severity}</span>'
    head = f'<div class="q">{word} {text(place, _SENTENCE_CHARACTERS)}</div>'
    return f'<div class="p" style="border-left-color:{colour}">{head}{facts(lines)}</div>'

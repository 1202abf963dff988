r"""The parts of an HTML page, and the only place where text of a store becomes HTML.

Names, keys and bodies may be hostile. `text` escapes them and writes control and format characters as codes,
as `display.text.shown` does, but in a span, so that the text `\x1b` differs from an escape character.
`PageSpace` limits the size of a page.

A table has numbers right-aligned with units, times in UTC, bodies and maps cut. Its rows end at a limit or
when the page is full; a line below says how many rows there are, and the date of the times where they have
one date.

The problems of a store are listed one below the other: where, what was expected, what was found, what to do
(`problem_list`). Not a table: its last column, the advice, would lie outside a notebook's page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any

import pyarrow as pa

from store_format.display.rows import plain_rows
from store_format.display.text import spelled
from store_format.display.units import number_text

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


# ---- Arrow batches as tables -------------------------------------------------------------------------------


LIMIT = 50
_COLUMNS_MAX = 60
_BODY_BYTES = 80
_CELL_CHARACTERS = 120
_SENTENCE_COLUMNS = frozenset(("advice", "evidence", "expected", "found", "detail", "reason", "meaning"))
_IDS = frozenset(("msgId", "offsetMsgId", "originMsgId", "id"))
_NAME_CHARACTERS = 40
_WIDE = ("properties", "body", "rawBody")
_ENTRIES_MAX = 8  # of a map or a list
_ROWS_AT_ONCE = 8  # bodies may be large
_TIME_CELL = re.compile(r'<td class="t">(\d{4}-\d\d-\d\d) ')
_WORD_START = re.compile("(?<=[a-z])(?=[A-Z])")
_NO_VALUE = ('<td class="z">', '<td class="n z">')
_COLUMN_MAX = 100  # characters of a column's name: properties may be columns


def table(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    space: PageSpace,
    *,
    limit: int = LIMIT,
    total: int | None = None,
    about: Mapping[str, str] | None = None,
    without_empty: bool = False,
) -> str:
    """An HTML table of the rows. `total`: the number of rows, if known; `about`: tooltips by column.

    `without_empty` leaves out columns without a value in any row, and names them below the table.
    """
    names = schema.names[:_COLUMNS_MAX]
    kinds = [schema.field(i).type for i in range(len(names))]
    times = [i for i, kind in enumerate(kinds) if pa.types.is_timestamp(kind)]
    shown: list[list[str]] = []
    more = full = False
    for row in _row_values(batches):
        if len(shown) == limit:
            more = True
            break
        cells = [_data_cell(*each) for each in zip(names, row[: len(names)], kinds, strict=True)]
        if not space.takes("<tr>" + "".join(cells) + "</tr>"):
            more = full = True
            break
        shown.append(cells)
    remarks = [_how_many(len(shown), more, full, total), *_common_date(shown, times)]
    heads = [_head_cell(*each, (about or {}).get(each[0], "")) for each in zip(names, kinds, strict=True)]
    kept = [
        i for i in range(len(names)) if not without_empty or any(map(_has_value, (row[i] for row in shown)))
    ]
    if len(kept) < len(names):
        empty = ", ".join(name for i, name in enumerate(names) if i not in kept)
        remarks.append(f"without a value: {empty}")
    if len(names) < len(schema.names):
        remarks.append(f"the first {len(names)} of {len(schema.names):,} columns")
    rows = "".join(f"<tr>{''.join(cells[i] for i in kept)}</tr>" for cells in shown)
    head = f"<thead><tr>{''.join(heads[i] for i in kept)}</tr></thead>"
    found = f'<table class="r">{head}<tbody>{rows}</tbody></table>' if rows else ""
    return found + note("; ".join(remarks))


def wide_last(names: Iterable[str]) -> list[str]:
    """The columns of messages with properties and bodies last: what identifies a message is seen first."""
    return sorted(names, key=lambda name: _WIDE.index(name) if name in _WIDE else -1)


def _has_value(cell: str) -> bool:
    return not cell.startswith(_NO_VALUE)


def _common_date(rows: list[list[str]], times: list[int]) -> list[str]:
    """Leaves the date out of the cells of the columns `times` if they have one date; returns the remark."""
    cells = [row[i] for row in rows for i in times if _has_value(row[i])]
    dates = {match[1] if match else "" for match in map(_TIME_CELL.match, cells)}
    if not dates:
        return []
    date = dates.pop() if len(dates) == 1 else ""
    if not date:
        return ["times: UTC"]
    for row in rows:
        for i in times:
            row[i] = row[i].replace(f">{date} ", ">", 1)
    return [f"times: {date} UTC"]


def time_text(iso: str) -> str:
    """A time of `plain_rows` for people, without its zone, which is UTC.

    >>> time_text("2023-11-14T22:13:20.123Z")
    '2023-11-14 22:13:20.123'
    """
    return iso[:-1].replace("T", " ") if iso.endswith("Z") else iso


def _row_values(batches: Iterable[pa.RecordBatch]) -> Iterator[list[object]]:
    for batch in batches:
        names = [str(i) for i in range(batch.num_columns)]  # names may occur twice
        batch = pa.RecordBatch.from_arrays(batch.columns, names)
        for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield from (list(row.values()) for row in plain_rows(batch.slice(start, _ROWS_AT_ONCE)))


def _how_many(shown: int, more: bool, full: bool, total: int | None) -> str:
    if not more:
        return f"{shown:,} row{'s' * (shown != 1)}" if shown else "no rows"
    of_all = (
        f"the first {shown:,} of {total:,} rows" if total is not None else f"the first {shown:,} rows of more"
    )
    return f"{of_all}: the page is full" if full else of_all


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _head_cell(name: str, kind: pa.DataType, about: str) -> str:
    side = ' class="n"' if _is_number(kind) else ""
    title = f' title="{escape(about)}"' if about else ""
    # a narrow page breaks long names between their words
    return f"<th{side}{title}>{_WORD_START.sub('<wbr>', text(name, _COLUMN_MAX))}</th>"


def _data_cell(name: str, value: object, kind: pa.DataType) -> str:
    if value is None:
        return f'<td class="{"n " if _is_number(kind) else ""}z">–</td>'
    if _is_number(kind):
        return f'<td class="n">{cell(value, name)}</td>'
    if pa.types.is_timestamp(kind):
        return f'<td class="t">{text(time_text(str(value)))}</td>'
    if name in _IDS and isinstance(value, str):
        return f'<td class="m">{cell(value)}</td>'
    if name in _SENTENCE_COLUMNS:
        return f'<td class="l">{text(str(value), _SENTENCE_CHARACTERS)}</td>'
    in_one_line = pa.types.is_temporal(kind) or _is_short(value)
    return f'<td class="t">{cell(value)}</td>' if in_one_line else f"<td>{cell(value)}</td>"


def _is_short(value: object) -> bool:
    """A name or a key, or a list of them: not broken at a hyphen. Text with spaces may be broken."""
    texts = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(each, str) and len(each) <= _NAME_CHARACTERS and " " not in each for each in texts)


def cell(value: object, name: str = "") -> str:
    """A value of a column as HTML, short enough for a table cell."""
    if value is None:
        return "–"
    if isinstance(value, bytes):
        return body(value, _BODY_BYTES)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return number_text(name, value)
    if isinstance(value, float):
        return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.1f}"
    if isinstance(value, Mapping):
        entries = [
            f"{text(str(name), 40)}={text(str(each), 60)}"
            for name, each in list(value.items())[:_ENTRIES_MAX]
        ]
        return _first_entries(entries, len(value))
    if isinstance(value, list | tuple):
        return _first_entries([text(str(each), 60) for each in value[:_ENTRIES_MAX]], len(value))
    return text(str(value), _CELL_CHARACTERS)


def _first_entries(entries: list[str], count: int) -> str:
    more = f' <span class="c">… {count:,} in all</span>' if count > len(entries) else ""
    return "<br>".join(entries) + more

"""Arrow batches as an HTML table: numbers right-aligned with units, times in UTC, bodies and maps cut.

The rows end at a limit or when the page is full; a line below says how many rows there are, and the date of
the times where they have one date.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from html import escape

import pyarrow as pa

from store_format.display.page import PageSpace, body, note, text
from store_format.display.rows import plain_rows
from store_format.display.units import number_text

LIMIT = 50
_COLUMNS_MAX = 60
_BODY_BYTES = 80
_CELL_CHARACTERS = 120
_SENTENCES = frozenset(("advice", "expected", "found", "detail", "reason", "meaning"))
_SENTENCE_CHARACTERS = 1000
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
        values = row[: len(names)]
        cells = [_data_cell(*each) for each in zip(names, values, kinds, strict=True)]
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
    matches = [_TIME_CELL.match(cell) for cell in cells]
    dates = {match[1] if match else "" for match in matches}
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
            for row in plain_rows(batch.slice(start, _ROWS_AT_ONCE)):
                yield list(row.values())


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
    if name in _SENTENCES:
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

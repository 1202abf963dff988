"""Arrow batches as an HTML table: numbers right-aligned with separators, times in UTC, bodies and maps cut.

The rows end at a limit or when the page is full; a line below says how many rows there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from html import escape

import pyarrow as pa

from store_format.display.page import PageSpace, body, note, text
from store_format.display.rows import plain_rows

LIMIT = 50
_COLUMNS_MAX = 60
_BODY_BYTES = 80
_CELL_CHARACTERS = 120
_ENTRIES_MAX = 8  # of a map or a list
_ROWS_AT_ONCE = 8  # bodies may be large
_COLUMN_MAX = 100  # characters of a column's name: properties may be columns


def table(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    space: PageSpace,
    *,
    limit: int = LIMIT,
    total: int | None = None,
    about: Mapping[str, str] | None = None,
) -> str:
    """An HTML table of the rows. `total`: the number of rows, if known; `about`: tooltips by column."""
    names = schema.names[:_COLUMNS_MAX]
    heads = "".join(
        _head_cell(name, schema.field(i).type, (about or {}).get(name, "")) for i, name in enumerate(names)
    )
    shown: list[str] = []
    more = full = False
    for row in _row_values(batches):
        if len(shown) == limit:
            more = True
            break
        piece = (
            "<tr>"
            + "".join(_data_cell(value, schema.field(i).type) for i, value in enumerate(row[:_COLUMNS_MAX]))
            + "</tr>"
        )
        if not space.takes(piece):
            more = full = True
            break
        shown.append(piece)
    remarks = [_how_many(len(shown), more, full, total)]
    if len(names) < len(schema.names):
        remarks.append(f"the first {len(names)} of {len(schema.names):,} columns")
    rows = (
        f'<table class="r"><thead><tr>{heads}</tr></thead><tbody>{"".join(shown)}</tbody></table>'
        if shown
        else ""
    )
    return rows + note("; ".join(remarks))


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
    return f"<th{side}{title}>{text(name, _COLUMN_MAX)}</th>"


def _data_cell(value: object, kind: pa.DataType) -> str:
    if value is None:
        return f'<td class="{"n " if _is_number(kind) else ""}z">–</td>'
    if _is_number(kind):
        return f'<td class="n">{cell(value)}</td>'
    return f'<td class="t">{cell(value)}</td>' if pa.types.is_temporal(kind) else f"<td>{cell(value)}</td>"


def cell(value: object) -> str:
    """A value as HTML, short enough for a table cell."""
    if value is None:
        return "–"
    if isinstance(value, bytes):
        return body(value, _BODY_BYTES)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
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

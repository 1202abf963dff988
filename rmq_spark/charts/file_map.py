"""A chart of a store's files: what the bytes of each commitlog file are, and how full queues and index files are.

`file_map_data` needs only Arrow; `file_map` draws it with altair.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import pyarrow as pa

from rmq_spark.charts.data import Drawn, harmless
from rmq_spark.charts.drawing import inline_rows, require_altair, titled
from store_format.errors import StoreError
from store_format.notebook.log_parts import CELLS, FileParts, LogParts, Part, read_log_parts
from store_format.notebook.queue_fill import Fill, index_fills, queue_fills

if TYPE_CHECKING:
    import altair as alt

    from store_format.read.store import Store

__all__ = ["READ_BYTES_MAX", "file_map", "file_map_data"]

READ_BYTES_MAX = 4 << 30  # takes some seconds

_FILES_MAX = 64
_FILLS_MAX = 32  # consume queues, and index files
_NOTE_MAX = 300
_WIDTH, _ROW = 560, 17
_NAMES = {
    Part.MESSAGES: "messages",
    Part.BLANK: "padding at a file's end",
    Part.DAMAGE: "damaged",
    Part.UNWRITTEN: "not written yet",
    Part.UNREAD: "not read",
}
_COLOURS = ("#4c78a8", "#eeca3b", "#e45756", "#dddddd", "#b3a2c7")  # in the order of _NAMES


@dataclass(frozen=True, slots=True)
class _Piece:
    """One part of one bar, from `low` to `high` of a file of full length, and the numbers of the whole bar."""

    kind: str
    name: str
    part: str
    low: float
    high: float
    numbers: str


_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("name", pa.string()),
        ("part", pa.string()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("numbers", pa.string()),
    ]
)


def file_map_data(store: Store, *, read_bytes_max: int = READ_BYTES_MAX) -> Drawn:
    """One row for each part of each file's bar. Reads the newest `read_bytes_max` bytes of the commitlog.

    `low` and `high` are shares of a file of full length. Whatever cannot be read becomes a note.
    """
    pieces: list[_Piece] = []
    notes: list[str] = []
    try:
        log = read_log_parts(store, files_max=_FILES_MAX, read_bytes_max=read_bytes_max)
        pieces += (piece for parts in log.files for piece in _log_pieces(parts))
        notes += _log_notes(log)
    except (StoreError, OSError) as error:
        notes.append(harmless(f"the commitlog cannot be drawn: {error}", _NOTE_MAX))
    for kind, read in (("consume queues", queue_fills), ("index files", index_fills)):
        try:
            fills = read(store)
        except (StoreError, OSError) as error:
            notes.append(harmless(f"{kind} cannot be drawn: {error}", _NOTE_MAX))
            continue
        pieces += (piece for fill in fills[:_FILLS_MAX] for piece in _fill_pieces(kind, fill))
        if not fills:
            notes.append(f"there are no {kind}")
        if len(fills) > _FILLS_MAX:
            notes.append(f"{kind}: the {_FILLS_MAX} with the most entries of {len(fills):,}")
    rows = [[getattr(piece, name) for piece in pieces] for name in _SCHEMA.names]
    return Drawn(
        pa.Table.from_arrays(
            [pa.array(row, field.type) for row, field in zip(rows, _SCHEMA, strict=True)], schema=_SCHEMA
        ),
        tuple(notes),
    )


def file_map(
    store: Store, *, read_bytes_max: int = READ_BYTES_MAX, title: str | None = None
) -> alt.FacetChart:
    """What of each commitlog file is messages, padding, damage or not written yet; how full queues and index files are.

    Reads at most the newest `read_bytes_max` bytes of the commitlog.
    """
    require_altair()
    import altair as alt

    drawn = file_map_data(store, read_bytes_max=read_bytes_max)
    name = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=260))
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X(
                "low:Q",
                title="share of a file's full length",
                scale=alt.Scale(domain=[0, 1]),
                axis=alt.Axis(format="%"),
            ),
            x2="high:Q",
            y=name,
            color=alt.Color(
                "part:N",
                title=None,
                scale=alt.Scale(domain=list(_NAMES.values()), range=list(_COLOURS)),
                legend=alt.Legend(orient="top"),
            ),
            tooltip=["name:N", "part:N", "numbers:N"],
        )
    )
    numbers = (
        alt.Chart()
        .transform_filter("datum.low == 0")
        .mark_text(align="left", dx=6, color="#333")
        .encode(x=alt.value(_WIDTH), y=name, text="numbers:N")
    )
    header = alt.Header(labelOrient="top", labelAnchor="start", labelFontWeight="bold", labelPadding=2)
    chart: alt.FacetChart = (
        alt.layer(bars, numbers, data=inline_rows(drawn.table))
        .properties(width=_WIDTH, height=alt.Step(_ROW))
        .facet(row=alt.Row("kind:N", title=None, sort=None, header=header))
        .resolve_scale(y="independent")
        .properties(title=titled(title or f"Files of {harmless(store.broker_name)}", drawn))
    )
    return chart


# ---- the commitlog -----------------------------------------------------------------------------------------


def _log_pieces(parts: FileParts) -> Iterator[_Piece]:
    """Neighbouring cells of one part are one piece."""
    name, numbers, at = harmless(os.path.basename(parts.file.path)), _log_numbers(parts), 0
    for part, run in groupby(parts.cells.tolist()):
        stop = at + len(list(run))
        yield _Piece("commitlog", name, _NAMES[Part(part)], at / CELLS, stop / CELLS, numbers)
        at = stop


def _log_numbers(parts: FileParts) -> str:
    if parts.is_missing:
        return f"missing: {parts.file.size:,} bytes"
    if (parts.cells == Part.UNREAD).all():
        return f"{parts.file.size:,} bytes, not read"
    if not parts.cells.any():
        return "nothing written yet"
    damage = f", {parts.damage_bytes:,} damaged" if parts.damage_bytes else ""
    return f"{parts.message_bytes:,} bytes{damage}"


def _log_notes(log: LogParts) -> Iterator[str]:
    if log.left_out:
        damaged = f", {log.damaged_left_out:,} of them with damage" if log.damaged_left_out else ""
        yield f"{log.left_out:,} older commitlog files are not drawn{damaged}"
    if log.unread_bytes:
        yield f"the oldest {log.unread_bytes:,} bytes of the commitlog were not read; read_bytes_max= reads more"


# ---- consume queues and index files ------------------------------------------------------------------------


def _fill_pieces(kind: str, fill: Fill) -> Sequence[_Piece]:
    used = max(fill.ratio, 1 / CELLS if fill.entries else 0.0)
    numbers = f"{fill.entries:,} entries, {fill.ratio:.1%} full"
    name = harmless(fill.name)
    parts = ((Part.MESSAGES, 0.0, used), (Part.UNWRITTEN, used, 1.0))
    return [_Piece(kind, name, _NAMES[part], low, high, numbers) for part, low, high in parts if low < high]

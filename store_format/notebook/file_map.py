"""A store's files as one picture: what the bytes of the commitlog are, and how full consume queues and index
files are.

The picture is SVG made here; every text in it goes through `page.svg_text`, and what is not drawn is counted
in a line below.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from store_format.display.page import Html, card, note, svg_text, warning
from store_format.errors import StoreError
from store_format.notebook.log_parts import CELLS, FileParts, LogParts, Part, read_log_parts
from store_format.notebook.queue_fill import Fill, index_fills, queue_fills

if TYPE_CHECKING:
    from store_format.read.store import Store

__all__ = ["READ_BYTES_MAX", "file_map"]

READ_BYTES_MAX = 4 << 30  # some seconds
_FILES_MAX = 64
_ROWS_MAX = 32  # queues, and index files
_BARS_X, _ROW, _BAR, _NUMBERS_X, _WIDTH = 230, 20, 13, 230 + CELLS + 12, 1030
_NAME_COLUMNS = 34

_COLOURS = {
    Part.MESSAGES: "#3b82c4", Part.BLANK: "#d6a72c", Part.DAMAGE: "#dc2626", Part.UNREAD: "#9a8fb0", Part.UNWRITTEN: "#8a8a8a",
}  # fmt: skip
_OPACITY = {Part.UNWRITTEN: ' fill-opacity="0.25"', Part.UNREAD: ' fill-opacity="0.55"'}
_NAMES = {
    Part.MESSAGES: "messages", Part.BLANK: "padding at a file's end", Part.DAMAGE: "torn or unreadable", Part.UNWRITTEN: "not written yet",
    Part.UNREAD: "not read",
}  # fmt: skip


def file_map(store: Store, *, read_bytes_max: int = READ_BYTES_MAX) -> Html:
    """Reads the newest `read_bytes_max` bytes of the commitlog; files before them are drawn as not read."""
    remarks: list[str] = []
    rows: list[str] = []
    log = None
    try:
        log = read_log_parts(store, files_max=_FILES_MAX, read_bytes_max=read_bytes_max)
    except (StoreError, OSError) as error:
        remarks.append(warning(f"the commitlog cannot be drawn: {error}"))
    if log is not None:
        rows += _log_rows(log)
        remarks += _log_remarks(log)
    for title, read in (("consume queues", queue_fills), ("index files", index_fills)):
        try:
            fills = read(store)
        except (StoreError, OSError) as error:
            remarks.append(warning(f"{title} cannot be drawn: {error}"))
            continue
        if not fills:
            remarks.append(note(f"there are no {title}"))
        rows += _fill_rows(title, fills[:_ROWS_MAX])
        if len(fills) > _ROWS_MAX:
            remarks.append(note(f"{title}: the {_ROWS_MAX} with the most entries of {len(fills):,}"))
    return card(f"{store.broker_name}: files", "file map", [_legend(), _picture(rows), *remarks])


def _picture(rows: Sequence[str]) -> str:
    height = len(rows) * _ROW + 4
    lines = "".join(f'<g transform="translate(0 {i * _ROW})">{row}</g>' for i, row in enumerate(rows))
    return (
        f'<svg role="img" aria-label="file map" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        f'font-size="11.5" fill="currentColor">{lines}</svg>'
    )


def _legend() -> str:
    items = (
        f'<svg width="11" height="11" viewBox="0 0 11 11"><rect width="11" height="11" fill="{_COLOURS[part]}"{_OPACITY.get(part, "")}>'
        f'</rect></svg> <span style="margin-right:16px">{name}</span>'
        for part, name in _NAMES.items()
    )
    return f'<div class="o">{"".join(items)}</div>'


def _label(x: int, value: str, columns_max: int = 40, *, bold: bool = False, at_end: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    anchor = ' text-anchor="end"' if at_end else ""
    return f'<text x="{x}" y="11"{weight}{anchor}>{svg_text(value, columns_max)}</text>'


def _title(value: str) -> str:
    return f"<title>{svg_text(value, 400)}</title>"


# ---- the commitlog -----------------------------------------------------------------------------------------


def _log_rows(log: LogParts) -> Iterator[str]:
    yield _label(0, "commitlog", bold=True)
    for parts in log.files:
        yield (
            _label(_BARS_X - 10, os.path.basename(parts.file.path), _NAME_COLUMNS, at_end=True)
            + _bar(parts)
            + _label(_NUMBERS_X, _sums(parts))
        )


def _bar(parts: FileParts) -> str:
    """A path for each kind of part, cells of one kind in a row being one rectangle of it."""
    shapes: dict[Part, list[str]] = {}
    at = 0
    for kind, run in groupby(parts.cells.tolist()):
        length = len(list(run))
        shapes.setdefault(Part(kind), []).append(f"M{_BARS_X + at} 1h{length}v{_BAR}h-{length}z")
        at += length
    paths = "".join(
        f'<path fill="{_COLOURS[kind]}"{_OPACITY.get(kind, "")} d="{"".join(d)}"></path>'
        for kind, d in shapes.items()
    )
    return f"<g>{_title(f'{parts.file.path}: offsets {parts.file.start:,} to {parts.file.stop:,}, {_sums(parts)}')}{paths}</g>"


def _sums(parts: FileParts) -> str:
    if parts.is_missing:
        return f"missing: {parts.file.size:,} bytes"
    if (parts.cells == Part.UNREAD).all():
        return f"{parts.file.size:,} bytes, not read"
    if not parts.cells.any():
        return "nothing written yet"
    damage = f", {parts.damage_bytes:,} damaged" if parts.damage_bytes else ""
    return f"{parts.message_bytes:,} bytes{damage}"


def _log_remarks(log: LogParts) -> Iterator[str]:
    if log.left_out:
        damaged = f", {log.damaged_left_out:,} of them with damage" if log.damaged_left_out else ""
        yield note(f"{log.left_out:,} older commitlog files are not drawn{damaged}")
    if log.unread_bytes:
        yield note(
            f"of the oldest {log.unread_bytes:,} bytes of the commitlog nothing was read; read_bytes_max= reads more"
        )


# ---- consume queues and index files ------------------------------------------------------------------------


def _fill_rows(title: str, fills: Sequence[Fill]) -> Iterator[str]:
    if not fills:
        return
    yield ""
    yield _label(0, title, bold=True)
    for fill in fills:
        used = min(max(round(CELLS * fill.ratio), 1 if fill.entries else 0), CELLS)
        bar = (
            f'<rect x="{_BARS_X}" y="1" width="{CELLS}" height="{_BAR}" fill="{_COLOURS[Part.UNWRITTEN]}" fill-opacity="0.25"></rect>'
            f'<rect x="{_BARS_X}" y="1" width="{used}" height="{_BAR}" fill="{_COLOURS[Part.MESSAGES]}"></rect>'
        )
        numbers = f"{fill.entries:,} entries, {fill.ratio:.1%} full"
        files = "" if fill.files == 1 else f" in {fill.files:,} files"
        label = _label(_BARS_X - 10, fill.name, _NAME_COLUMNS, at_end=True)
        yield f"{label}<g>{_title(f'{fill.name}: {numbers}{files}, {fill.size_bytes:,} bytes')}{bar}</g>{_label(_NUMBERS_X, numbers)}"

"""A map of a store's files: the parts of each commitlog file, and the fill of consume queues and index files.

`file_map_data` needs only Arrow; `file_map` draws the data with altair. The parts of a commitlog file are
cells: messages, padding, damage, not written, not read. One walk over the commitlog finds them. Only the
drawn files are kept in memory: the newest, and the first damaged files among the older ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmq_spark.charts.data import Drawn, harmless, refuse_path
from rmq_spark.charts.drawing import inline_rows, require_altair, titled
from store_format.bookkeeping.journal import StoreState
from store_format.commitlog.walk import Damage, EndKind, Walk
from store_format.display.units import size_text
from store_format.errors import StoreError
from store_format.files.paths import StoreFile
from store_format.read.store import Store
from store_format.views.files import index_files, queue_files

if TYPE_CHECKING:
    import altair as alt
else:
    from rmq_spark.charts.drawing import alt

READ_BYTES_MAX = 4 << 30  # takes some seconds
CELLS = 560  # cells of a file of full length
_DAMAGE_CELLS_MIN = 3
_FILES_MAX = 64
_FILLS_MAX = 32  # consume queues, and index files
_NOTE_MAX = 300
_WIDTH, _ROW = 560, 17
_RED = "#c92a2a"  # of the text of a damaged file
_COLOURS = ("#4c78a8", "#eeca3b", "#e45756", "#dddddd", "#b3a2c7")  # in the order of _NAMES
_SCHEMA = pa.schema(
    {
        "kind": pa.string(),
        "name": pa.string(),
        "part": pa.string(),
        "low": pa.float64(),
        "high": pa.float64(),
        "numbers": pa.string(),
    }
)

_Piece = dict[str, Any]  # Any: values of _SCHEMA


class Part(IntEnum):
    """The content of a cell; if a cell has several parts, the largest value counts."""

    UNWRITTEN = 0
    MESSAGES = 1
    BLANK = 2
    DAMAGE = 3
    UNREAD = 4


_NAMES = {
    Part.MESSAGES: "messages",
    Part.BLANK: "padding at a file's end",
    Part.DAMAGE: "damaged",
    Part.UNWRITTEN: "not written yet",
    Part.UNREAD: "not read",
}


# ---- the parts of the commitlog ----------------------------------------------------------------------------


@dataclass(slots=True)
class _FileParts:
    """One commitlog file: cells, bytes in messages, bytes in damage. `is_missing`: the file is lost."""

    file: StoreFile
    cells: NDArray[np.uint8]
    message_bytes: int = 0
    damage_bytes: int = 0
    is_missing: bool = False

    def mark(self, start: int, stop: int, part: Part) -> None:
        """Marks the bytes [start, stop) of the file: at least one cell, of damage three, to be visible."""
        count, size = len(self.cells), max(self.file.size, 1)
        first = min(start * count // size, count - 1)
        least = _DAMAGE_CELLS_MIN if part is Part.DAMAGE else 1
        cells = self.cells[first : max(-(-stop * count // size), first + least)]
        np.maximum(cells, np.uint8(part), out=cells)

    def fill(self, part: Part) -> None:
        """Marks the cells that no part has."""
        self.cells[self.cells == Part.UNWRITTEN] = part


@dataclass(frozen=True, slots=True)
class LogParts:
    """The files to draw, in order; the numbers of files left out, and of bytes not read."""

    files: list[_FileParts]
    left_out: int
    damaged_left_out: int
    unread_bytes: int


def read_log_parts(store: Store, *, files_max: int, read_bytes_max: int) -> LogParts:
    """Walks the newest `read_bytes_max` bytes of the commitlog with CRC checks.

    Raises StoreError if a file is deleted meanwhile.
    """
    log = store.log
    first = len(log.files)
    left = read_bytes_max
    while first > 0 and (first == len(log.files) or log.files[first - 1].size <= left):
        first -= 1
        left -= log.files[first].size
    collected = _Collected(log.files, first, files_max, is_live=store.state is StoreState.LIVE)
    if first < len(log.files):
        collected.walk(log.walk(log.files[first].start, verify_crc=True, resync=True))
    return collected.parts()


class _Collected:
    """Collects the files while the walk passes them; `first` is the index of the first file of the walk."""

    def __init__(self, files: tuple[StoreFile, ...], first: int, files_max: int, *, is_live: bool) -> None:
        self._files, self._first, self._is_live = files, first, is_live
        self._usual = max((file.size for file in files), default=1)
        self._newest = {file.start for file in files[-files_max:]}
        self._older_max = files_max // 4  # older damaged files
        self._drawn: dict[int, _FileParts] = {}
        self._older_damaged = self._damaged_left_out = 0
        self._current: _FileParts | None = None

    def walk(self, walk: Walk) -> None:
        for step in walk:
            if isinstance(step, Damage) and step.at_tail and self._is_live:
                continue  # a message that a broker is writing
            parts = self._of(step.file)
            if isinstance(step, Damage):
                parts.mark(step.start, step.stop, Part.DAMAGE)
                parts.damage_bytes += step.stop - step.start
            else:
                parts.mark(step.buffer_start, step.stop, Part.MESSAGES)
                parts.message_bytes += step.stop - step.buffer_start
        self._leave()
        assert walk.end is not None  # the walk is exhausted
        self._end_offset, self._end_kind = walk.end.offset, walk.end.kind

    def _of(self, file: StoreFile) -> _FileParts:
        if self._current is None or self._current.file.start != file.start:
            self._leave()
            self._current = self._empty(file)
            self._current.is_missing = file not in self._files
        return self._current

    def _empty(self, file: StoreFile) -> _FileParts:
        return _FileParts(file, np.zeros(max(min(CELLS * file.size // self._usual, CELLS), 1), np.uint8))

    def _leave(self) -> None:
        """Keeps the file that the walk has passed, if the file will be drawn."""
        parts, self._current = self._current, None
        if parts is None:
            return
        if parts.file.start in self._newest or (parts.damage_bytes and self._older_damaged < self._older_max):
            self._older_damaged += parts.file.start not in self._newest
            self._drawn[parts.file.start] = parts
        else:
            self._damaged_left_out += bool(parts.damage_bytes)

    def parts(self) -> LogParts:
        for i, file in enumerate(self._files):
            if file.start in self._newest and file.start not in self._drawn:
                self._drawn[file.start] = self._empty(file)
            if file.start in self._drawn:
                self._fill(self._drawn[file.start], is_read=i >= self._first)
        unread = sum(file.size for file in self._files[: self._first])
        drawn = [self._drawn[start] for start in sorted(self._drawn)]
        missing = sum(parts.is_missing for parts in drawn)
        return LogParts(drawn, len(self._files) - len(drawn) + missing, self._damaged_left_out, unread)

    def _fill(self, parts: _FileParts, *, is_read: bool) -> None:
        """Marks the bytes that the walk does not report: padding before the log's end, and unread bytes."""
        if not is_read:
            parts.fill(Part.UNREAD)
        elif parts.file.stop <= self._end_offset or (
            parts.file.start <= self._end_offset and self._end_kind is EndKind.BLANK
        ):
            parts.fill(Part.BLANK)


# ---- the map -----------------------------------------------------------------------------------------------


class _Fill(NamedTuple):
    """A queue or an index file: its name, entries and used share. `damage` says why it cannot be read."""

    name: str
    entries: int
    share: float
    damage: str = ""


def file_map_data(store: Store, *, read_bytes_max: int = READ_BYTES_MAX) -> Drawn:
    """Returns one row for each part of each bar, from `low` to `high`, which are shares of a file's full
    length.

    Reads the newest `read_bytes_max` bytes of the commitlog. A file that cannot be read becomes a note.
    """
    refuse_path(store)
    pieces: list[_Piece] = []
    notes: list[str] = []
    try:
        log = read_log_parts(store, files_max=_FILES_MAX, read_bytes_max=read_bytes_max)
        pieces += (piece for parts in log.files for piece in _log_pieces(parts))
        notes += _log_notes(log)
    except (StoreError, OSError) as error:
        notes.append(harmless(f"the commitlog cannot be drawn: {error}", _NOTE_MAX))
    readers: tuple[tuple[str, Callable[[Store], Iterator[_Fill]]], ...] = (
        ("consume queues", _queue_fills),
        ("index files", _index_fills),
    )
    for kind, read in readers:
        try:
            fills = sorted(read(store), key=lambda fill: (not fill.damage, -fill.entries, fill.name))
        except (StoreError, OSError) as error:
            notes.append(harmless(f"{kind} cannot be drawn: {error}", _NOTE_MAX))
            continue
        pieces += (piece for fill in fills[:_FILLS_MAX] for piece in _fill_pieces(kind, fill))
        if not fills:
            notes.append(f"there are no {kind}")
        if len(fills) > _FILLS_MAX:
            notes.append(f"{kind}: the {_FILLS_MAX} with the most entries of {len(fills):,}")
    return Drawn(pa.Table.from_pylist(pieces, _SCHEMA), tuple(notes))


def file_map(
    store: Store, *, read_bytes_max: int = READ_BYTES_MAX, title: str | None = None
) -> alt.FacetChart:
    """Draws the parts of each commitlog file, and how full consume queues and index files are.

    The parts are messages, padding, damage, unwritten bytes and bytes that were not read. Reads at most the
    newest `read_bytes_max` bytes of the commitlog.

    Example: `charts.file_map(rmq_spark.open("/data/store"))`.
    """
    require_altair()
    drawn = file_map_data(store, read_bytes_max=read_bytes_max)
    header = alt.Header(labelOrient="top", labelAnchor="start", labelFontWeight="bold", labelPadding=2)
    chart: alt.FacetChart = (
        alt.layer(*_bars_and_numbers(), data=inline_rows(drawn.table))
        .properties(width=_WIDTH, height=alt.Step(_ROW))
        .facet(row=alt.Row("kind:N", title=None, sort=None, header=header))
        .resolve_scale(y="independent")
        .properties(title=titled(title or f"Files of {harmless(store.broker_name)}", drawn))
    )
    return chart


def _bars_and_numbers() -> tuple[alt.Chart, alt.Chart]:
    name = alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelLimit=260))
    share = alt.X(
        "low:Q",
        title="share of a file's full length",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format="%"),
    )
    part = alt.Color(
        "part:N",
        title=None,
        scale=alt.Scale(domain=list(_NAMES.values()), range=list(_COLOURS)),
        legend=alt.Legend(orient="top"),
    )
    tooltip = ["name:N", "part:N", "numbers:N"]
    bars = alt.Chart().mark_bar().encode(x=share, x2="high:Q", y=name, color=part, tooltip=tooltip)
    first = alt.Chart().transform_filter("datum.low == 0")
    red = alt.condition("test(/damaged|missing|no files/, datum.numbers)", alt.value(_RED), alt.value("#333"))
    numbers = first.mark_text(align="left", dx=6).encode(color=red)
    return bars, numbers.encode(x=alt.value(_WIDTH), y=name, text="numbers:N")


def _piece(kind: str, name: str, part: Part, low: float, high: float, numbers: str) -> _Piece:
    return dict(zip(_SCHEMA.names, (kind, harmless(name), _NAMES[part], low, high, numbers), strict=True))


# ---- the commitlog -----------------------------------------------------------------------------------------


def _log_pieces(parts: _FileParts) -> Iterator[_Piece]:
    """Neighbouring cells with the same part are one piece."""
    name, numbers, at = os.path.basename(parts.file.path), _log_numbers(parts), 0
    for part, run in groupby(parts.cells.tolist()):
        stop = at + len(list(run))
        yield _piece("commitlog", name, Part(part), at / CELLS, stop / CELLS, numbers)
        at = stop


def _log_numbers(parts: _FileParts) -> str:
    if parts.is_missing:
        return f"missing: {size_text(parts.file.size)}"
    if (parts.cells == Part.UNREAD).all():
        return f"{size_text(parts.file.size)}, not read"
    if not parts.cells.any():
        return "nothing written yet"
    damage = f", {size_text(parts.damage_bytes)} damaged" if parts.damage_bytes else ""
    return f"{size_text(parts.message_bytes)}{damage}"


def _log_notes(log: LogParts) -> Iterator[str]:
    if log.left_out:
        damaged = f", {log.damaged_left_out:,} of them with damage" if log.damaged_left_out else ""
        yield f"{log.left_out:,} older commitlog files are not drawn{damaged}"
    if log.unread_bytes:
        unread = f"{size_text(log.unread_bytes)} of the commitlog"
        yield f"the oldest {unread} were not read; read_bytes_max= reads more"


# ---- consume queues and index files ------------------------------------------------------------------------


def _queue_fills(store: Store) -> Iterator[_Fill]:
    """One fill for all files of a queue. None without consume queue files (RocksDB), and nothing is read.

    A queue whose files are damaged or lost counts as one damaged file of their length.
    """
    if not store.has_consume_queues:
        return
    taken = store.snapshot()
    sums: dict[str, tuple[int, int, int]] = {}
    lengths = dict.fromkeys(taken.damaged, 0)
    for _, _, size, fill in queue_files(store, taken.queues):
        key = (fill.topic, fill.queue_id)
        if key in lengths:
            lengths[key] += size
        elif fill.entries is not None and fill.used is not None:
            name = f"{fill.topic}-{fill.queue_id}"
            entries, used, total = sums.get(name, (0, 0, 0))
            sums[name] = (entries + fill.entries, used + fill.used, total + size)
    yield from (
        _Fill(f"{topic}-{queue_id}", 0, 1.0, f"{size_text(length)}, damaged" if length else "no files")
        for (topic, queue_id), length in lengths.items()
    )
    for name, (entries, used, total) in sums.items():
        yield _Fill(name, entries, used / total if total else 0.0)


def _index_fills(store: Store) -> Iterator[_Fill]:
    """An index file whose entries do not prove its capacity counts as full of its entries."""
    for _, path, _, fill in index_files(store):
        entries = fill.entries or 0
        share = float(entries > 0) if fill.fill is None else min(fill.fill, 1.0)
        yield _Fill(os.path.basename(path), entries, share)


def _fill_pieces(kind: str, fill: _Fill) -> Iterator[_Piece]:
    if fill.damage:
        yield _piece(kind, fill.name, Part.DAMAGE, 0.0, 1.0, fill.damage)
        return
    used = max(fill.share, 1 / CELLS if fill.entries else 0.0)
    numbers = f"{fill.entries:,} entries, {fill.share:.1%} full"
    yield from (
        _piece(kind, fill.name, part, low, high, numbers)
        for part, low, high in ((Part.MESSAGES, 0.0, used), (Part.UNWRITTEN, used, 1.0))
        if low < high
    )

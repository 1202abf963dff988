"""Rows as a table, which is fitted to a terminal in steps. No step cuts what identifies a row: topics,
groups, offsets, and the end of an id.

The steps: leave out columns that have one value in all rows; print the common date once; cut free text; leave
out the middle of ids and the zeros of file names, then the milliseconds; leave out columns, the least useful
first. Where that is not enough, each row becomes a record.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, islice

from rmq_spark.cli.cells import cell
from rmq_spark.cli.column_look import (
    BOLD,
    CONSTANT,
    DIM,
    FILES,
    FLEXIBLE,
    IDS,
    LEFT_OUT_FIRST,
    LEFT_OUT_LAST,
    TITLES,
    are_told_apart,
    colour_of,
    painted,
    short_file,
    short_id,
)
from rmq_spark.cli.look import TableLook
from rmq_spark.cli.records import write_record
from store_format.display.rows import Row
from store_format.display.text import cut, width
from store_format.display.units import unit_of

_TEXT_COLUMNS_MAX = 60  # of a cell that may be cut
_ROOMY = 2  # free text keeps this multiple of its least width while other columns can give way
_GAP = "  "


def write_table(
    look: TableLook, rows: Iterable[Row], names: Sequence[str], times: Set[str], measured_rows: int
) -> None:
    """Writes a table whose widths fit the first rows; without rows, nothing. `times` are columns with times.

    Later rows keep the widths; a cell that needs more room moves the rest of its line.
    """
    left = iter(rows)
    measured = list(islice(left, measured_rows))
    if not measured:
        return
    fitted = (
        _fit_terminal(look, measured, names, times, len(measured) < measured_rows)
        if look.terminal_columns is not None and not look.wide
        else _Layout.measure(look, measured, list(names), times, None)
    )
    if fitted is None:
        for i, row in enumerate(chain(measured, left)):
            sys.stdout.write("\n" if i else "")
            write_record(look, row, names, times)
        return
    for line in fitted.head():
        sys.stdout.write(line + "\n")
    for row in chain(measured, left):
        sys.stdout.write(fitted.line(row) + "\n")
    if fitted.left_out:
        remark = f"left out: {', '.join(fitted.left_out)}; --wide shows all columns"
        sys.stdout.write(painted(remark, DIM if look.colour else "") + "\n")


@dataclass(frozen=True, slots=True)
class _Times:
    """How much of a time is shown: `date` if it is common, else ""; `digits` of the seconds' fraction."""

    date: str
    milliseconds: bool = True


@dataclass(slots=True)
class _Layout:
    """The columns that are shown, and their widths. `short` is None for a table that is not fitted."""

    look: TableLook
    names: list[str]
    times: Set[str]
    short: _Times | None
    shortened: frozenset[str]
    titles: list[str]
    numeric: list[bool]
    widths: list[int]
    zone_label: str = ""
    left_out: tuple[str, ...] = ()

    @classmethod
    def measure(
        cls,
        look: TableLook,
        measured: Sequence[Row],
        names: list[str],
        times: Set[str],
        short: _Times | None,
        shortened: frozenset[str] = frozenset(),
    ) -> _Layout:
        """The layout with the widths that the rows need; free text takes at most 60 columns."""
        titles = names if short is None or look.chosen else _titles(names)
        numeric = [all(_is_number(row[name]) for row in measured) for name in names]
        layout = cls(look, names, times, short, shortened, titles, numeric, [])
        cells = [layout.cells(row) for row in measured]
        for i, name in enumerate(names):
            longest = max(width(line[i]) for line in cells)
            limit = _TEXT_COLUMNS_MAX if name in FLEXIBLE else longest
            layout.widths.append(max(width(titles[i]), min(limit, longest)))
        return layout

    def cells(self, row: Row) -> list[str]:
        return [self._cell(name, row[name]) for name in self.names]

    def _cell(self, name: str, value: object) -> str:
        if isinstance(value, str):
            if name in self.times:
                return self._time(value)
            if name in self.shortened:
                return cell(short_file(value) if name in FILES else short_id(value))
        elif isinstance(value, int) and not isinstance(value, bool):
            unit = unit_of(name)
            return str(value) if unit is None else unit(value)
        return cell(value)

    def _time(self, iso: str) -> str:
        if self.short is None:
            return self.look.zone.full(iso)
        moment = self.look.zone.moment(iso)
        if moment is None:
            return cell(iso)
        clock = moment.replace(tzinfo=None).isoformat(
            " ", "milliseconds" if self.short.milliseconds else "seconds"
        )
        return clock.removeprefix(f"{self.short.date} ") if self.short.date else clock

    @property
    def width(self) -> int:
        return sum(self.widths) + len(_GAP) * (len(self.widths) - 1)

    def narrow(self, columns: int, room: int) -> bool:
        """Narrows free text, the widest column first, until the table fits. Returns whether it does.

        No column gets narrower than `room` times its least width.
        """
        least = [
            min(have, max(room * FLEXIBLE[name], width(title))) if name in FLEXIBLE else have
            for name, title, have in zip(self.names, self.titles, self.widths, strict=True)
        ]
        while self.width > columns:
            can_give = [i for i in range(len(least)) if self.widths[i] > least[i]]
            if not can_give:
                return False
            self.widths[max(can_give, key=self.widths.__getitem__)] -= 1
        return True

    def head(self) -> Iterator[str]:
        """The line of titles; before it, where times are short, their date and zone."""
        colour = self.look.colour
        shown = self.times & set(self.names)
        if self.short is not None and shown and self.zone_label:
            label = f"{self.short.date} {self.zone_label}".strip()
            yield painted(f"times: {label}", DIM if colour else "")
        yield painted(self._joined(self.titles, [""] * len(self.titles)), BOLD if colour else "")

    def line(self, row: Row) -> str:
        colours = [colour_of(name, row[name]) if self.look.colour else "" for name in self.names]
        return self._joined(self.cells(row), colours)

    def _joined(self, cells: Sequence[str], colours: Sequence[str]) -> str:
        parts: list[str] = []
        for i, text in enumerate(cells):
            kept = cut(text, self.widths[i]) if self.names[i] in FLEXIBLE else text
            space = " " * max(self.widths[i] - width(kept), 0)
            kept = painted(kept, colours[i])
            parts.append(space + kept if self.numeric[i] else kept + space)
        return _GAP.join(parts).rstrip()


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and value is not True and value is not False)


def _fit_terminal(
    look: TableLook, measured: Sequence[Row], names: Sequence[str], times: Set[str], all_measured: bool
) -> _Layout | None:
    """The first layout that fits the terminal; None if only records do."""
    assert look.terminal_columns is not None
    moments = [
        moment
        for row in measured
        for name in times & set(names)
        if row[name] is not None and (moment := look.zone.moment(row[name])) is not None
    ]
    shown = list(names)
    if all_measured and not look.chosen:
        shown = [name for name in names if not _says_nothing(look, measured, name)]
    ids = FILES | {
        name
        for name in IDS.intersection(names)
        if are_told_apart([row[name] for row in measured if row[name] is not None])
    }
    for kept, short, shortened, room in _steps(look, shown, _common_date(moments), ids):
        layout = _Layout.measure(look, measured, kept, times, short, shortened)
        if layout.narrow(look.terminal_columns, room):
            layout.zone_label = look.zone.label(moments[0]) if moments else ""
            layout.left_out = tuple(name for name in shown if name not in kept)
            return layout
    return None


def _steps(
    look: TableLook, shown: list[str], date: str, ids: frozenset[str]
) -> Iterator[tuple[list[str], _Times, frozenset[str], int]]:
    """(columns, times, columns to shorten, multiple of the least room for free text), the best first."""
    yield shown, _Times(date), frozenset(), _ROOMY
    for room, names in ((_ROOMY, LEFT_OUT_FIRST), (1, LEFT_OUT_LAST)):
        for name in ("", *names):
            if not name or (name in shown and not look.chosen):
                shown = [other for other in shown if other != name]
                yield shown, _Times(date), ids, room
                yield shown, _Times(date, milliseconds=False), ids, room


def _says_nothing(look: TableLook, measured: Sequence[Row], name: str) -> bool:
    """Whether all rows have one value, which says nothing. Of a cluster, each row names its broker."""
    if name == "brokerName":
        return not look.several_stores
    return name in CONSTANT and len(measured) > 1 and all(row[name] == measured[0][name] for row in measured)


def _titles(names: Sequence[str]) -> list[str]:
    """Short titles; the full names where two columns would have one title."""
    titles = [TITLES.get(name, name) for name in names]
    return [title if titles.count(title) == 1 else name for name, title in zip(names, titles, strict=True)]


def _common_date(moments: Sequence[datetime]) -> str:
    dates = {moment.date() for moment in moments}
    return dates.pop().isoformat() if len(dates) == 1 else ""

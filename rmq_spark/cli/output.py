"""Rows on stdout (a table, records, JSON, JSON lines, CSV, or bare bodies), and the last lines of a report.

Everything streams: memory is bounded by one batch and by the rows that set the widths of a table's columns.
Output that is longer than the terminal goes through a pager: $RMQLOG_PAGER, else $PAGER, else less, as git
does.

A table is fitted to a terminal in steps. No step cuts what identifies a row: topics, groups, offsets, and the
end of an id. The steps: leave out columns that have one value in all rows; print the common date once; cut
free text; leave out the middle of ids and the zeros of file names, then the milliseconds; leave out columns,
the least useful first. Where that is not enough, each row becomes a record: one line per column, one line per
entry of a map.
"""

from __future__ import annotations

import csv
import io
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from io import TextIOBase
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import click

from rmq_spark.cli.cells import (
    BODY_CHARACTERS,
    BODY_FORMS,
    BOLD,
    CONSTANT,
    DIM,
    FILES,
    FLEXIBLE,
    IDS,
    LEFT_OUT_FIRST,
    LEFT_OUT_LAST,
    RED,
    TITLES,
    UTC_ZONE,
    Zone,
    are_told_apart,
    cell,
    colour_of,
    csv_value,
    json_value,
    painted,
    short_file,
    short_id,
    time_columns,
    zone_of,
    zoned_rows,
)
from rmq_spark.cli.completion import complete_column
from rmq_spark.cli.options import Command, standing_for
from rmq_spark.cli.remarks import remark, terminal_columns, wrapped
from store_format.display.rows import Row, plain_rows
from store_format.display.text import body_text, cut, json_text, shown, width
from store_format.display.units import size_text, unit_of

if TYPE_CHECKING:
    import subprocess

    import pyarrow as pa


FORMATS = ("table", "json", "jsonl", "csv", "raw")
_QUOTED = "\r\n\0"  # a CSV field with any of these characters is quoted (RFC 4180)

_MEASURED_ROWS = 1000  # a table's columns are as wide as these rows need

_TEXT_COLUMNS_MAX = 60  # of a cell that may be cut
_ROOMY = 2  # free text keeps this multiple of its least width while other columns can give way
_GAP = "  "

_BODY_CHARACTERS = 2000
_BODY_NOTE = len("… (1,234,567 bytes)")
_PROPERTIES_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableLook:
    """The look of a table.

    `terminal_columns` is the width of the terminal, else None; with `wide` the table is not fitted to it.
    With `chosen` the user named the columns: all are shown, with their full names. With `several_stores` each
    row names its broker. `zone` is for times.

    `searched` are columns that a search was for, or that tell its rows apart: on a narrow terminal the body
    and the id are left out before them. The text of the column `below` is never cut: it gets a line of its
    own below its row if it does not fit beside the row. Times keep their milliseconds with `milliseconds`, so
    that the tables of one output agree, and where times of messages differ in them only.
    """

    colour: bool = False
    terminal_columns: int | None = None
    wide: bool = False
    chosen: bool = False
    several_stores: bool = False
    searched: frozenset[str] = frozenset()
    below: str = ""
    milliseconds: bool = False
    zone: Zone = UTC_ZONE


@dataclass(frozen=True, slots=True)
class Output(_TableLook):
    """How rows are written. `columns` are those of `--columns`, () for the command's own choice."""

    form: str
    columns: tuple[str, ...] = ()
    bodies: str = "base64"
    to_terminal: bool = False


# ---- the options -------------------------------------------------------------------------------------------


columns_option = click.option(
    "--columns",
    metavar="NAMES",
    shell_complete=complete_column,
    help="Columns, separated by commas: names, or the heads of the table.",
)


class _BodyForm(click.Choice):  # type: ignore[type-arg] # generic from click 8.2 on
    """A form of bodies. The error for another text names the command that searches in bodies."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in BODY_FORMS:
            search = f"rmqlog find --body {shlex.quote(str(value))} searches in bodies"
            self.fail(f"{value!r} is not one of {', '.join(BODY_FORMS)}; {search}", param, ctx)
        return str(value)


def body_form_option(*, searches: bool = False) -> Callable[[Command], Command]:
    """The form of bodies in JSON and CSV, as `body_form`.

    It is `--body-form`, and also `--body` where --body does not search (`searches`).
    """
    return click.option(
        "--body-form",
        *(() if searches else ("--body",)),
        "body_form",
        type=_BodyForm(BODY_FORMS),
        default="base64",
        show_default=True,
        help="The form of a body in JSON and CSV. text: bytes that are not UTF-8 become U+FFFD. json: JSON "
        "bodies are nested unless a number would lose digits, others are text, or base64 in an object if "
        "they are not UTF-8. To search in "
        "bodies, use rmqlog find --body TEXT.",
    )


_wide_option = click.option("--wide", is_flag=True, help="Do not fit tables to the width of the terminal.")


tz_option = click.option(
    "--tz",
    metavar="ZONE",
    help="Time zone: local, UTC, or such as Asia/Shanghai. By default, typed times and times on a terminal "
    "are local, and other output, such as JSON and CSV, is in UTC.",
)


def column_names(columns: str | None) -> tuple[str, ...]:
    """The names of `--columns`; () without the option."""
    return tuple(name.strip() for name in (columns or "").split(",") if name.strip())


def output_options(*, raw: bool = False, searches: bool = False) -> Callable[[Command], Command]:
    """The options --output and --columns, as `output`; with `raw` also --body-form and the format `raw`.

    `searches` is for a command whose --body searches in bodies.
    """
    forms = FORMATS if raw else FORMATS[:-1]

    def decorate(command: Command) -> Command:
        def called(
            output: str,
            columns: str | None,
            wide: bool,
            tz: str | None,
            body_form: str = "base64",
            **others: Any,
        ) -> Any:
            look = _output(output, column_names(columns), body_form, wide, tz)
            look = replace(look, several_stores=len(others.get("stores", others.get("roots", ()))) > 1)
            return command(output=look, **others)

        called = standing_for(command, called)
        called = _wide_option(tz_option(called))
        called = columns_option(body_form_option(searches=searches)(called) if raw else called)
        about = "Output format; JSON and CSV have the DataFrame's columns."
        return click.option(
            "-o", "--output", type=click.Choice(forms), default="table", show_default=True, help=about
        )(called)

    return decorate


def table_output(tz: str | None) -> Output:
    """The look of the tables of a command without --output."""
    return _output("table", (), "base64", False, tz)


def _output(form: str, columns: tuple[str, ...], bodies: str, wide: bool, tz: str | None) -> Output:
    to_terminal = sys.stdout.isatty()
    return Output(
        form,
        columns,
        bodies,
        to_terminal,
        colour=to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        terminal_columns=terminal_columns(sys.stdout),
        wide=wide,
        chosen=bool(columns),
        zone=zone_of(tz, to_terminal=to_terminal and form == "table"),
    )


# ---- rows in the chosen form -------------------------------------------------------------------------------


def write_rows(
    output: Output, batches: Iterable[pa.RecordBatch], names: Sequence[str], *, following: int | None = None
) -> int:
    """Writes the columns `names` of the rows, and returns the number of rows.

    `following` is for batches that come without end: the number of rows that are there already. Each batch is
    then flushed.
    """
    times: set[str] = set()
    count = 0

    def rows() -> Iterator[Row]:
        nonlocal count
        for batch in batches:
            times.update(time_columns(batch))
            for row in plain_rows(batch) if output.form == "table" else zoned_rows(batch, output.zone):
                count += 1
                yield row
            if following is not None:
                sys.stdout.flush()

    with _paged(wanted=output.to_terminal and following is None):
        if output.form == "table":
            measured = _MEASURED_ROWS if following is None else min(max(following, 1), _MEASURED_ROWS)
            _write_table(output, rows(), list(names), times, measured)
        else:
            writers = {"json": _write_json, "jsonl": _write_jsonl, "csv": _write_csv, "raw": _write_raw}
            writers[output.form](output, rows(), list(names))
        sys.stdout.flush()
    if count and output.form not in ("table", "raw"):
        say_base64(names)
    return count


# ---- for programs ------------------------------------------------------------------------------------------


def chose_body_form() -> bool:
    """Whether --body-form was typed."""
    from click.core import ParameterSource

    context = click.get_current_context(silent=True)
    return context is not None and context.get_parameter_source("body_form") is not ParameterSource.DEFAULT


def say_base64(names: Sequence[str]) -> None:
    """Says that bodies among the columns `names` are in base64, if nobody chose a form."""
    if "body" in names and click.get_current_context(silent=True) and not chose_body_form():
        remark("the bodies are in base64; --body-form text writes text, --body-form json nests JSON")


def print_json(value: object) -> None:
    """Prints a document."""
    print(json_text(value, ascii_only=_ascii_only(), indent=2))


def _ascii_only() -> bool:
    """Whether standard output takes other characters only in a spelling that no JSON reader knows."""
    return (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"


def _json(row: Row, names: Sequence[str], bodies: str, ascii_only: bool = False) -> str:
    values = {name: row[name] for name in names}
    for name, value in values.items():
        if isinstance(value, bytes):  # a call for every value takes a tenth of the time of an export
            values[name] = json_value(value, bodies=bodies)
    return json_text(values, ascii_only=ascii_only)


def _write_json(output: Output, rows: Iterable[Row], names: Sequence[str]) -> None:
    first, ascii_only = True, _ascii_only()
    for row in rows:
        sys.stdout.write(("[\n" if first else ",\n") + _json(row, names, output.bodies, ascii_only))
        first = False
    sys.stdout.write("[]\n" if first else "\n]\n")


def _write_jsonl(output: Output, rows: Iterable[Row], names: Sequence[str]) -> None:
    write_jsonl(sys.stdout.write, rows, names, bodies=output.bodies, ascii_only=_ascii_only())


def write_jsonl(
    write: Callable[[str], object],
    rows: Iterable[Row],
    names: Sequence[str],
    *,
    bodies: str,
    ascii_only: bool = False,
) -> None:
    """Writes one JSON object per line."""
    for row in rows:
        write(_json(row, names, bodies, ascii_only) + "\n")


def _write_csv(output: Output, rows: Iterable[Row], names: Sequence[str]) -> None:
    write_csv(sys.stdout.write, rows, names, bodies=output.bodies, harmless=output.to_terminal)


def write_csv(
    write: Callable[[str], object],
    rows: Iterable[Row],
    names: Sequence[str],
    *,
    bodies: str,
    harmless: bool = False,
) -> None:
    """Writes a line of names, then the rows; with `harmless` without control characters, for a terminal."""
    line = io.StringIO()
    # Before Python 3.13, csv quotes only line breaks that are in the terminator, and never NUL.
    writer = csv.writer(line, lineterminator=_QUOTED)
    for values in chain([names], ([csv_value(row[name], bodies=bodies) for name in names] for row in rows)):
        writer.writerow([shown(value) if harmless and isinstance(value, str) else value for value in values])
        write(line.getvalue().removesuffix(_QUOTED) + "\n")
        line.seek(0)
        line.truncate()


def _write_raw(output: Output, rows: Iterable[Row], names: Sequence[str]) -> None:
    """Writes the bodies, separated by line breaks."""
    for i, row in enumerate(rows):
        write_bytes(output, (b"\n" if i else b"") + (row["body"] or b""))
    if output.to_terminal:
        sys.stdout.write("\n")


def write_bytes(output: Output, data: bytes) -> None:
    """Writes bytes unchanged; to a terminal as text without control characters."""
    binary: BinaryIO | None = getattr(sys.stdout, "buffer", None)
    if output.to_terminal or binary is None:
        sys.stdout.write("\n".join(map(shown, data.decode("utf-8", "backslashreplace").split("\n"))))
        return
    sys.stdout.flush()
    binary.write(data)


# ---- for people --------------------------------------------------------------------------------------------


def write_records(output: Output, batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> int:
    """Writes rows as records and returns their number. An entry of a map takes a line."""

    count = 0
    with _paged(wanted=output.to_terminal):
        for batch in batches:
            times = time_columns(batch)
            for row in plain_rows(batch):
                sys.stdout.write("\n" if count else "")
                _write_record(output, row, names, times)
                count += 1
        sys.stdout.flush()
    return count


# ---- the pager ---------------------------------------------------------------------------------------------


class _Paged(TextIOBase):
    """Text for a terminal: held until it is longer than the screen, then sent to the pager."""

    def __init__(self, command: list[str], lines_max: int, terminal: IO[str]) -> None:
        self._command, self._left, self._terminal = command, lines_max, terminal
        self._held: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def write(self, text: str) -> int:
        if self._process is not None:
            assert self._process.stdin is not None
            return self._process.stdin.write(text)
        self._held.append(text)
        self._left -= text.count("\n")
        if self._left < 0:
            self._start()
        return len(text)

    def _start(self) -> None:
        """Starts the pager and sends what is held; without a pager, text goes to the terminal."""
        import subprocess  # 5 ms that only long output needs

        environment = {"LESS": "FRX", "LV": "-c", **os.environ}
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, text=True, errors="backslashreplace", env=environment
            )
        except OSError:
            self._left = sys.maxsize
            return
        assert self._process.stdin is not None
        self._process.stdin.writelines(self._held)

    def isatty(self) -> bool:
        return True

    def end(self) -> None:
        """Shows what is held, or waits until the reader leaves the pager."""
        if self._process is None:
            self._terminal.writelines(self._held)
            self._terminal.flush()
            return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the reader has left the pager
            self._process.stdin.close()
        while True:
            with suppress(KeyboardInterrupt):  # less uses Ctrl-C itself
                self._process.wait()
                return


@contextmanager
def _paged(*, wanted: bool) -> Iterator[None]:
    """Within it, text on stdout goes through a pager if it does not fit the terminal.

    The pager starts only where both stdin and stdout are terminals of known height. `PAGER=cat` turns it off.
    """
    command = _pager() if wanted else None
    if command is None:
        yield
        return
    pages = _Paged(command, os.get_terminal_size(sys.stdout.fileno()).lines - 2, sys.stdout)
    try:
        with redirect_stdout(pages), suppress(BrokenPipeError):
            yield
    finally:
        pages.end()


def _pager() -> list[str] | None:
    if os.environ.get("TERM", "dumb") == "dumb" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    command = os.environ.get("RMQLOG_PAGER", os.environ.get("PAGER", "less")).split()
    if not command or command[0] == "cat":
        return None
    return command if os.get_terminal_size(sys.stdout.fileno()).lines > 0 else None


# ---- tables ------------------------------------------------------------------------------------------------


def _write_table(
    look: _TableLook, rows: Iterable[Row], names: Sequence[str], times: Set[str], measured_rows: int
) -> None:
    """Writes a table whose widths fit the first rows; without rows, nothing. `times` are columns with times.

    Later rows keep the widths; a cell that needs more room moves the rest of its line.
    """
    left = iter(rows)
    measured = list(islice(left, measured_rows))
    if not measured:
        return
    layout = (
        _fit_terminal(look, measured, names, times, len(measured) < measured_rows)
        if look.terminal_columns is not None and not look.wide
        else _Layout.measure(look, measured, list(names), times, None)
    )
    if layout is None:
        for i, row in enumerate(chain(measured, left)):
            sys.stdout.write("\n" if i else "")
            _write_record(look, row, names, times)
        return
    for line in layout.head():
        sys.stdout.write(line + "\n")
    for row in chain(measured, left):
        sys.stdout.write(layout.line(row) + "\n")
    if layout.left_out:
        remark = f"left out: {', '.join(layout.left_out)}; --wide shows all columns"
        sys.stdout.write(painted(fitted(look, remark, indent=10), DIM if look.colour else "") + "\n")


@dataclass(frozen=True, slots=True)
class _Times:
    """How much of a time is shown: `date` if it is common, else ""; `digits` of the seconds' fraction."""

    date: str
    milliseconds: bool = True


@dataclass(slots=True)
class _Layout:
    """The columns that are shown, and their widths. `short` is None for a table that is not fitted."""

    look: _TableLook
    names: list[str]
    times: Set[str]
    short: _Times | None
    shortened: frozenset[str]
    titles: list[str]
    numeric: list[bool]
    widths: list[int]
    zone_label: str = ""
    left_out: tuple[str, ...] = ()
    below: str = ""

    @classmethod
    def measure(
        cls,
        look: _TableLook,
        measured: Sequence[Row],
        names: list[str],
        times: Set[str],
        short: _Times | None,
        shortened: frozenset[str] = frozenset(),
    ) -> _Layout:
        """The layout with the widths that the rows need. Free text takes at most 60 columns, unless it was
        asked for: with `--wide` and `--columns`.
        """
        titles = names if short is None or look.chosen else _titles(names)
        numeric = [all(_is_number(row[name]) for row in measured) for name in names]
        layout = cls(look, names, times, short, shortened, titles, numeric, [])
        cells = [layout.cells(row) for row in measured]
        for i, name in enumerate(names):
            longest = max(width(line[i]) for line in cells)
            is_cut = name in FLEXIBLE and name != look.below and not (look.wide or look.chosen)
            limit = _TEXT_COLUMNS_MAX if is_cut else longest
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
            if self.look.wide and name in FLEXIBLE:
                return shown(value)
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
            min(have, max(room * FLEXIBLE[name], width(title)))
            if name in FLEXIBLE and name != self.look.below
            else have
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
        if self.short is not None and (self.times & set(self.names)) and self.zone_label:
            label = f"{self.short.date} {self.zone_label}".strip()
            yield painted(f"times: {label}", DIM if colour else "")
        yield painted(self._joined(self.titles, [""] * len(self.titles)), BOLD if colour else "")

    def line(self, row: Row) -> str:
        colours = [colour_of(name, row[name]) if self.look.colour else "" for name in self.names]
        line = self._joined(self.cells(row), colours)
        indent = self.widths[0] + len(_GAP)
        room = (self.look.terminal_columns or 0) - indent - _BODY_NOTE
        text = cell(row[self.below], max(room, BODY_CHARACTERS)) if self.below and row[self.below] else ""
        return f"{line}\n{fitted(self.look, ' ' * indent + text, indent=indent)}" if text else line

    def _joined(self, cells: Sequence[str], colours: Sequence[str]) -> str:
        parts: list[str] = []
        for i, text in enumerate(cells):
            is_cut = self.names[i] in FLEXIBLE and not self.look.wide
            kept = cut(text, self.widths[i]) if is_cut else text
            space = " " * max(self.widths[i] - width(kept), 0)
            kept = painted(kept, colours[i])
            parts.append(space + kept if self.numeric[i] else kept + space)
        return _GAP.join(parts).rstrip()


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, int | float) and value is not True and value is not False)


def _fit_terminal(
    look: _TableLook, measured: Sequence[Row], names: Sequence[str], times: Set[str], all_measured: bool
) -> _Layout | None:
    """The first layout that fits the terminal; None if only records do."""
    columns = look.terminal_columns
    assert columns is not None
    moments_of = {
        name: [moment for row in measured if row[name] and (moment := look.zone.moment(row[name]))]
        for name in names
        if name in times
    }
    moments = [moment for found in moments_of.values() for moment in found]
    differ_in_ms = "queueOffset" in names and any(  # rows are messages
        len({moment.replace(microsecond=0) for moment in found}) < len(set(found))
        for found in moments_of.values()
    )
    look = replace(look, milliseconds=look.milliseconds or differ_in_ms)
    shown = list(names)
    if all_measured and not look.chosen:
        shown = [name for name in names if not _says_nothing(look, measured, name)]
    ids = FILES | {
        name
        for name in IDS.intersection(names)
        if are_told_apart([row[name] for row in measured if row[name] is not None])
    }
    date = _common_date(moments)
    steps = _steps(look, shown, date, ids)
    if look.below in shown and not look.chosen:
        beside = [step for step in steps if look.below in step[0]]
        steps = chain(beside, _steps(look, [name for name in shown if name != look.below], date, ids))
    for kept, short, shortened, room in steps:
        layout = _Layout.measure(look, measured, kept, times, short, shortened)
        if layout.narrow(columns, room):
            layout.zone_label = look.zone.label(moments[0]) if moments else ""
            layout.below = look.below if look.below in shown and look.below not in kept else ""
            layout.left_out = tuple(name for name in shown if name not in (*kept, layout.below))
            return layout
    return None


def _steps(
    look: _TableLook, shown: list[str], date: str, ids: frozenset[str]
) -> Iterator[tuple[list[str], _Times, frozenset[str], int]]:
    """(columns, times, columns to shorten, multiple of the least room for free text), the best first."""
    yield shown, _Times(date), frozenset(), _ROOMY
    last: tuple[str, ...] = LEFT_OUT_LAST
    if look.searched or {"body", "queueOffset"} <= set(shown):  # an id without its middle is no use
        last = ("msgId", *("body",) * bool(look.searched), *last)
    for room, names in ((_ROOMY, LEFT_OUT_FIRST), (1, last)):
        for name in ("", *names):
            if not name or (name in shown and not look.chosen and name not in look.searched):
                shown = [other for other in shown if other != name]
                yield shown, _Times(date), ids, room
                if not look.milliseconds:
                    yield shown, _Times(date, milliseconds=False), ids, room


def _says_nothing(look: _TableLook, measured: Sequence[Row], name: str) -> bool:
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


# ---- records -----------------------------------------------------------------------------------------------


def _write_record(look: _TableLook, row: Row, names: Sequence[str], times: Set[str]) -> None:
    """Writes one row as a record. `times` are the columns with times."""
    longest = max(map(len, names))
    for name in names:
        colour = colour_of(name, row[name]) if look.colour else ""
        value = row[name]
        if name in times and isinstance(value, str):
            value = look.zone.full(value)
        for label, text in _record_lines(name, value):
            label = painted(f"{label:<{longest}}", BOLD if look.colour else "")
            line = fitted(look, " " * (longest + len(_GAP)) + text, indent=longest + len(_GAP))
            text = line[longest + len(_GAP) :]
            sys.stdout.write(f"{label}{_GAP}{painted(text, colour)}\n")


def _record_lines(name: str, value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        entries = [f"{shown(key)} = {cell(text)}" for key, text in list(value.items())[:_PROPERTIES_MAX]]
        if len(value) > _PROPERTIES_MAX:
            entries.append(f"… ({len(value)} in all)")
        return [(name if not i else "", line) for i, line in enumerate(entries or ["-"])]
    if isinstance(value, bytes):
        return [(name, body_text(value, _BODY_CHARACTERS))]
    unit = unit_of(name) if isinstance(value, int) and not isinstance(value, bool) else None
    if unit is None:
        return [(name, cell(value))]
    assert isinstance(value, int)
    exact = f" ({value:,} bytes)" if unit is size_text and value >= 1024 else ""
    return [(name, unit(value) + exact)]


def fitted(look: _TableLook, line: str, *, indent: int) -> str:
    """An escaped line of a report, wrapped for the terminal; elsewhere, and with --wide, as it is."""
    return line if look.wide else wrapped(line, look.terminal_columns, indent)


# ---- the last lines of a report ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` is the sentence, `command` the next command, "" for none. `is_bad` makes the sentence red."""

    text: str
    command: str = ""
    is_bad: bool = False


def is_report(output: Output) -> bool:
    """Whether the output is for people: rows alone go to stdout in all other formats, and with --columns."""
    return output.form == "table" and not output.columns


def write_line(output: Output, label: str, text: str) -> None:
    """Writes one more line of a verdict, before it."""
    if is_report(output):
        print(fitted(output, shown(f"{label + ':':<9} {text}"), indent=10))
    else:
        remark(f"{label}: {text}")


def write_verdict(output: Output, verdict: Verdict) -> None:
    """Writes the verdict to stdout under a report; in the other formats to stderr."""
    lines = [("verdict", verdict.text), *([("next", verdict.command)] if verdict.command else [])]
    if not is_report(output):
        for label, text in lines:
            remark(f"{label}: {text}")
        return
    colour = (RED if verdict.is_bad else BOLD) if output.colour else ""
    for label, text in lines:
        line = shown(f"{label + ':':<9}{text}")
        if label == "verdict":
            line = fitted(output, line, indent=9)
        print(painted(line, colour if label == "verdict" else ""))

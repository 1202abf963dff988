"""Rows on stdout: a table, records, JSON, JSON lines, CSV, or the bare bodies.

Everything streams: memory is bounded by one batch and by the rows that set the widths of a table's columns.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from rmq_spark.cli.cells import BODY_FORMS, cell, csv_value, json_value
from rmq_spark.cli.options import Command, standing_for
from store_format.display.rows import Row, plain_rows
from store_format.display.text import body_text, cut, shown, width

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "json", "jsonl", "csv", "raw")

_MEASURED_ROWS = 1000  # a table's columns are as wide as these rows need
_CELL_COLUMNS_MAX = 60
_TEXT_COLUMNS_MIN = 8
_GAP = "  "


@dataclass(frozen=True, slots=True)
class Output:
    """How rows are written. `columns` are those of `--columns`, () for the command's own choice."""

    form: str
    columns: tuple[str, ...] = ()
    bodies: str = "base64"
    to_terminal: bool = False
    colour: bool = False
    terminal_columns: int | None = None


columns_option = click.option("--columns", metavar="NAMES", help="Columns, separated by commas.")
bodies_option = click.option(
    "--bodies",
    type=click.Choice(BODY_FORMS),
    default="base64",
    show_default=True,
    help="The form of a body in JSON and CSV. text: bytes that are not UTF-8 become U+FFFD. json: JSON "
    "bodies are nested, others are text, or base64 in an object if they are not UTF-8.",
)


def column_names(columns: str | None) -> tuple[str, ...]:
    """The names of `--columns`; () without the option."""
    return tuple(name.strip() for name in (columns or "").split(",") if name.strip())


def output_options(*, raw: bool = False) -> Callable[[Command], Command]:
    """The options --output and --columns, as `output`; with `raw` also --bodies and the format `raw`."""
    forms = FORMATS if raw else FORMATS[:-1]

    def decorate(command: Command) -> Command:
        def called(output: str, columns: str | None, bodies: str = "base64", **others: Any) -> Any:
            return command(output=_output(output, column_names(columns), bodies), **others)

        called = standing_for(command, called)
        called = columns_option(bodies_option(called) if raw else called)
        about = "Output format; JSON and CSV have the DataFrame's columns."
        return click.option(
            "-o", "--output", type=click.Choice(forms), default="table", show_default=True, help=about
        )(called)

    return decorate


def _output(form: str, columns: tuple[str, ...], bodies: str) -> Output:
    to_terminal = sys.stdout.isatty()
    colour = to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Output(form, columns, bodies, to_terminal, colour, _terminal_columns() if to_terminal else None)


def _terminal_columns() -> int | None:
    """The width of the terminal; None if it is unknown."""
    try:
        return int(os.environ.get("COLUMNS", "")) or None
    except ValueError:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None


def write_rows(
    output: Output, batches: Iterable[pa.RecordBatch], names: Sequence[str], *, following: int | None = None
) -> int:
    """Writes the columns `names` of the rows, and returns the number of rows.

    `following` is for batches that come without end: the number of rows that are there already. Each batch is
    then flushed.
    """
    counted = _Counted(
        row for batch in batches for row in _flushing(plain_rows(batch), following is not None)
    )
    if output.form == "table":
        _write_table(
            output,
            counted,
            list(names),
            _MEASURED_ROWS if following is None else min(max(following, 1), _MEASURED_ROWS),
        )
        sys.stdout.flush()
        return counted.count
    writer = {"json": _write_json, "jsonl": _write_jsonl, "csv": _write_csv, "raw": _write_raw}[output.form]
    writer(output, counted, list(names))
    sys.stdout.flush()
    return counted.count


def _flushing(rows: Iterator[Row], flush: bool) -> Iterator[Row]:
    yield from rows
    if flush:
        sys.stdout.flush()


class _Counted:
    """An iterable of rows that counts them."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = rows
        self.count = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._rows:
            self.count += 1
            yield row


# ---- for programs ------------------------------------------------------------------------------------------


def _json(row: Row, names: Sequence[str], bodies: str) -> str:
    # ASCII only: a name or key of a store must not send control sequences to a terminal.
    return json.dumps({name: json_value(row[name], bodies=bodies) for name in names})


def _write_json(output: Output, rows: Iterable[Row], names: Sequence[str]) -> None:
    first = True
    for row in rows:
        sys.stdout.write(("[\n" if first else ",\n") + _json(row, names, output.bodies))
        first = False
    sys.stdout.write("[]\n" if first else "\n]\n")


def _write_jsonl(output: Output, rows: Iterable[Row], names: Sequence[str]) -> None:
    write_jsonl(sys.stdout.write, rows, names, bodies=output.bodies)


def write_jsonl(
    write: Callable[[str], object], rows: Iterable[Row], names: Sequence[str], *, bodies: str
) -> None:
    """Writes one JSON object per line."""
    for row in rows:
        write(_json(row, names, bodies) + "\n")


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
    writer = csv.writer(line, lineterminator="\n")
    for values in chain([names], ([csv_value(row[name], bodies=bodies) for name in names] for row in rows)):
        writer.writerow([shown(value) if harmless and isinstance(value, str) else value for value in values])
        write(line.getvalue())
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


def _write_table(output: Output, rows: Iterable[Row], names: Sequence[str], measured_rows: int) -> None:
    """Writes a table with widths that fit the first rows, numbers to the right; without rows, nothing."""
    left = iter(rows)
    measured = list(islice(left, measured_rows))
    if not measured:
        return
    numeric = [
        all(
            row[name] is None or (isinstance(row[name], int | float) and row[name] is not True)
            for row in measured
        )
        for name in names
    ]
    cells = [[cell(row[name]) for name in names] for row in measured]
    widths = [
        min(_CELL_COLUMNS_MAX, max(width(line[i]) for line in [list(names), *cells]))
        for i in range(len(names))
    ]
    widths = _fit_terminal(
        widths,
        [widths[i] if numeric[i] else min(widths[i], _TEXT_COLUMNS_MIN) for i in range(len(names))],
        output.terminal_columns,
    )
    header = _table_line(names, widths, numeric)
    sys.stdout.write((f"\x1b[1m{header}\x1b[0m" if output.colour else header) + "\n")
    for line in chain(cells, ([cell(row[name]) for name in names] for row in left)):
        sys.stdout.write(_table_line(line, widths, numeric) + "\n")


def _fit_terminal(widths: list[int], least: list[int], columns: int | None) -> list[int]:
    """Narrows the widest columns until the table fits the terminal, none below its `least` width."""
    if columns is None:
        return widths
    fitted = list(widths)
    while sum(fitted) + len(_GAP) * (len(fitted) - 1) > columns:
        can_give = [i for i in range(len(fitted)) if fitted[i] > least[i]]
        if not can_give:
            break
        fitted[max(can_give, key=fitted.__getitem__)] -= 1
    return fitted


def _table_line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = []
    for text, columns, right in zip(cells, widths, numeric, strict=True):
        kept = cut(text, columns)
        space = " " * (columns - width(kept))
        parts.append(space + kept if right else kept + space)
    return _GAP.join(parts).rstrip()


_BODY_CHARACTERS = 2000
_PROPERTIES_MAX = 200


def write_records(output: Output, batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> int:
    """Writes rows as records and returns their number. An entry of a map takes a line."""
    count = 0
    for batch in batches:
        for row in plain_rows(batch):
            sys.stdout.write("\n" if count else "")
            for name in names:
                for label, text in _record_lines(name, row[name]):
                    label = f"{label:<{max(map(len, names))}}"
                    sys.stdout.write((f"\x1b[1m{label}\x1b[0m" if output.colour else label) + f"  {text}\n")
            count += 1
    sys.stdout.flush()
    return count


def _record_lines(name: str, value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        entries = [f"{shown(key)} = {cell(text)}" for key, text in list(value.items())[:_PROPERTIES_MAX]]
        if len(value) > _PROPERTIES_MAX:
            entries.append(f"… ({len(value)} in all)")
        return [(name if not i else "", line) for i, line in enumerate(entries or ["-"])]
    if isinstance(value, bytes):
        return [(name, body_text(value, _BODY_CHARACTERS))]
    return [(name, cell(value))]

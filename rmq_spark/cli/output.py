"""Rows on stdout: a table, records, JSON, JSON lines, CSV, or the bare bodies.

Everything streams: memory is bounded by one batch and by the rows that set the widths of a table's columns.
"""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from rmq_spark.cli.cells import BODY_FORMS, csv_value, json_value
from rmq_spark.cli.completion import complete_column
from rmq_spark.cli.look import TableLook
from rmq_spark.cli.options import Command, standing_for
from rmq_spark.cli.pager import paged
from rmq_spark.cli.table import write_table
from rmq_spark.cli.zones import zone_of
from store_format.display.rows import Row, plain_rows
from store_format.display.text import json_text, shown

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("table", "json", "jsonl", "csv", "raw")

_MEASURED_ROWS = 1000  # a table's columns are as wide as these rows need


@dataclass(frozen=True, slots=True)
class Output(TableLook):
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
    help="Columns, separated by commas.",
)


def body_form_option(spelling: str = "--body") -> Callable[[Command], Command]:
    """The form of bodies in JSON and CSV, as `body_form`."""
    return click.option(
        spelling,
        "body_form",
        type=click.Choice(BODY_FORMS),
        default="base64",
        show_default=True,
        help="The form of a body in JSON and CSV. text: bytes that are not UTF-8 become U+FFFD. json: JSON "
        "bodies are nested, others are text, or base64 in an object if they are not UTF-8. To search in "
        "bodies, use rmqlog find --body TEXT.",
    )


_wide_option = click.option("--wide", is_flag=True, help="Do not fit tables to the width of the terminal.")


_tz_option = click.option(
    "--tz",
    metavar="ZONE",
    help="Time zone of times in tables: local (the default on a terminal), UTC, or such as Asia/Shanghai.",
)


def column_names(columns: str | None) -> tuple[str, ...]:
    """The names of `--columns`; () without the option."""
    return tuple(name.strip() for name in (columns or "").split(",") if name.strip())


def output_options(*, raw: bool = False, body_form_as: str = "--body") -> Callable[[Command], Command]:
    """The options --output and --columns, as `output`; with `raw` also --body and the format `raw`.

    `body_form_as` is the spelling of --body, for a command that searches with --body.
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
        called = _wide_option(_tz_option(called))
        called = columns_option(body_form_option(body_form_as)(called) if raw else called)
        about = "Output format; JSON and CSV have the DataFrame's columns."
        return click.option(
            "-o", "--output", type=click.Choice(forms), default="table", show_default=True, help=about
        )(called)

    return decorate


def _output(form: str, columns: tuple[str, ...], bodies: str, wide: bool, tz: str | None) -> Output:
    to_terminal = sys.stdout.isatty()
    return Output(
        form,
        columns,
        bodies,
        to_terminal,
        colour=to_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb",
        terminal_columns=_terminal_columns() if to_terminal else None,
        wide=wide,
        chosen=bool(columns),
        zone=zone_of(tz, to_terminal=to_terminal),
    )


def _terminal_columns() -> int | None:
    """The width of the terminal; None if it is unknown."""
    try:
        return int(os.environ.get("COLUMNS", "")) or None
    except ValueError:
        return os.get_terminal_size(sys.stdout.fileno()).columns or None


# ---- rows in the chosen form -------------------------------------------------------------------------------


def write_rows(
    output: Output, batches: Iterable[pa.RecordBatch], names: Sequence[str], *, following: int | None = None
) -> int:
    """Writes the columns `names` of the rows, and returns the number of rows.

    `following` is for batches that come without end: the number of rows that are there already. Each batch is
    then flushed.
    """
    times: set[str] = set()
    counted = _Counted(
        row for batch in batches for row in _flushing(_rows(batch, times), following is not None)
    )
    with paged(wanted=output.to_terminal and following is None):
        if output.form == "table":
            measured = _MEASURED_ROWS if following is None else min(max(following, 1), _MEASURED_ROWS)
            write_table(output, counted, list(names), times, measured)
        else:
            writers = {"json": _write_json, "jsonl": _write_jsonl, "csv": _write_csv, "raw": _write_raw}
            writers[output.form](output, counted, list(names))
        sys.stdout.flush()
    return counted.count


def _rows(batch: pa.RecordBatch, times: set[str]) -> Iterator[Row]:
    """The rows of a batch; adds its columns with times to `times`."""
    times |= _time_columns(batch)
    return plain_rows(batch)


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


def print_json(value: object) -> None:
    """Prints a document."""
    print(json_text(value, ascii_only=_ascii_only(), indent=2))


def _ascii_only() -> bool:
    """Whether standard output takes other characters only in a spelling that no JSON reader knows."""
    return (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"


def _json(row: Row, names: Sequence[str], bodies: str, ascii_only: bool = False) -> str:
    return json_text({name: json_value(row[name], bodies=bodies) for name in names}, ascii_only=ascii_only)


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


def write_records(output: Output, batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> int:
    """Writes rows as records and returns their number. An entry of a map takes a line."""
    from rmq_spark.cli.records import write_record

    count = 0
    with paged(wanted=output.to_terminal):
        for batch in batches:
            times = _time_columns(batch)
            for row in plain_rows(batch):
                sys.stdout.write("\n" if count else "")
                write_record(output, row, names, times)
                count += 1
        sys.stdout.flush()
    return count


def _time_columns(batch: pa.RecordBatch) -> frozenset[str]:
    import pyarrow as pa

    return frozenset(field.name for field in batch.schema if pa.types.is_timestamp(field.type))

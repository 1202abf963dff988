"""The tables of options, columns, views and commands as Markdown, from the rows that the code itself uses.

`python -m rmq_spark.reference README.md README.zh-CN.md docs/write.md docs/reference.md` rewrites the text
between `<!-- options -->` and `<!-- /options -->`, and the other blocks of each page. A test fails if a page
is not current.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rmq_spark.options.option import Option
from rmq_spark.options.read_table import OPTIONS
from rmq_spark.options.write_table import WRITE_OPTIONS
from rmq_spark.plan.output_fields import COLUMN_TABLE
from rmq_spark.produce.columns import WRITE_COLUMNS
from store_format.arrays.sql_types import type_name
from store_format.views.registry import VIEWS

if TYPE_CHECKING:
    import click


def option_table() -> str:
    """The options of a read: one table per heading."""
    parts = []
    for heading, options in groupby(OPTIONS, key=lambda option: option.heading):
        rows = [
            (
                f"`{option.name}`",
                option.kind,
                _default(option),
                ", ".join(sorted(option.applies)),
                option.about,
            )
            for option in options
        ]
        parts.append(f"**{heading}**\n\n" + _table(("option", "type", "default", "for", "meaning"), rows))
    return "\n\n".join(parts)


def write_option_table() -> str:
    """The options of a write, for batches and streams."""
    rows = [(f"`{option.name}`", option.kind, _default(option), option.about) for option in WRITE_OPTIONS]
    return _table(("option", "type", "default", "meaning"), rows)


def write_column_table() -> str:
    """The columns that a write uses, then those that it accepts and ignores."""
    columns = sorted(WRITE_COLUMNS, key=lambda column: column.ignored)
    rows = [
        (f"`{column.name}`", " or ".join(f"`{kind}`" for kind in column.types) or "any", column.about)
        for column in columns
    ]
    return _table(("column", "type", "meaning"), rows)


def column_table() -> str:
    """The columns of a read."""
    rows = [
        (f"`{column.name}`", f"`{column.ddl}`", "yes" if column.default else "", column.about)
        for column in COLUMN_TABLE
    ]
    return _table(("column", "type", "default", "meaning"), rows)


def view_tables() -> str:
    """One heading and one table per view."""
    parts = []
    for view in VIEWS:
        rows = [(f"`{column.name}`", f"`{type_name(column.type)}`", column.about) for column in view.columns]
        parts.append(f"### {view.name}\n\n{view.about}\n\n" + _table(("column", "type", "meaning"), rows))
    return "\n\n".join(parts)


def command_tables() -> str:
    """One heading per command: its usage, its help text and its options, as in `--help`."""
    from rmq_spark.cli.main import COMMANDS, cli

    context = cli.make_context("rmqlog", [], resilient_parsing=True)
    return "\n\n".join(_command(cli.get_command(context, name), name, context) for name in COMMANDS)


def _command(command: click.Command | None, name: str, parent: click.Context) -> str:
    import click

    assert command is not None
    context = click.Context(command, parent, info_name=name)
    title, *more = inspect.cleandoc(command.help or "").split("\n\n")
    # After \b come examples, whose line breaks are kept.
    prose = [
        f"```text\n{part[1:].strip()}\n```" if part.startswith("\b") else " ".join(part.split())
        for part in more
    ]
    usage = f"`rmqlog {name} {' '.join(command.collect_usage_pieces(context))}`"
    records = [
        option.get_help_record(context) for option in command.params if isinstance(option, click.Option)
    ]
    table = _table(
        ("option", "meaning"), [(f"`{record[0]}`", record[1]) for record in records if record is not None]
    )
    return "\n\n".join((f"### {name}", title, usage, *prose, table))


_BLOCKS: dict[str, Callable[[], str]] = {
    "options": option_table,
    "columns": column_table,
    "write-options": write_option_table,
    "write-columns": write_column_table,
    "views": view_tables,
    "cli": command_tables,
}
_READ_BLOCKS = ("options", "columns")

# The blocks of each page. A page that is not named here has the blocks of a README.
PAGES: dict[str, Sequence[str]] = {
    "README.md": _READ_BLOCKS,
    "README.zh-CN.md": _READ_BLOCKS,
    "docs/write.md": ("write-columns", "write-options"),
    "docs/reference.md": ("options", "columns", "write-options", "write-columns", "views", "cli"),
}


def render(document: str, name: str) -> str:
    """The text of the page `name` with new blocks. Raises ValueError for a missing or repeated marker."""
    for block in next(
        (blocks for page, blocks in PAGES.items() if Path(name).as_posix().endswith(page)), _READ_BLOCKS
    ):
        make = _BLOCKS[block]
        begin, end = f"<!-- {block} -->", f"<!-- /{block} -->"
        if (
            document.count(begin) != 1
            or document.count(end) != 1
            or document.index(begin) > document.index(end)
        ):
            raise ValueError(f"{name}: expected {begin} and {end}, once each and in this order")
        before, rest = document.split(begin)
        after = rest.split(end)[1]
        document = f"{before}{begin}\n\n{make()}\n\n{end}{after}"
    return document


def main(paths: Sequence[str]) -> None:
    """Rewrites the blocks of each file."""
    for path in map(Path, paths):
        current = path.read_text(encoding="utf-8")
        new = render(current, str(path))
        if new != current:
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            beside.write_text(new, encoding="utf-8")
            beside.replace(path)


def _default(option: Option) -> str:
    default = option.otherwise if option.default is None else f"`{option.default}`"
    of_stream = option.stream[1] if option.stream is not None else None
    return default if of_stream is None else f"{default}, in a stream `{of_stream}`"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """A cell with its bars escaped: a bar ends a cell, also inside a code span."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)


if __name__ == "__main__":
    main(sys.argv[1:])

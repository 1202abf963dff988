"""The tables of options, columns, views and commands as Markdown, made from the rows the code itself uses.

`python -m rmq_spark.reference README.md README.zh-CN.md docs/write.md docs/reference.md` rewrites what stands
between `<!-- options -->` and `<!-- /options -->`, and the same for the other blocks of a page; a test fails
when a file is not current.
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
    """One table per heading."""
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
    """Those of a write, batch and stream alike."""
    rows = [(f"`{option.name}`", option.kind, _default(option), option.about) for option in WRITE_OPTIONS]
    return _table(("option", "type", "default", "meaning"), rows)


def write_column_table() -> str:
    """What a write looks at, then what it takes and does not look at."""
    columns = sorted(WRITE_COLUMNS, key=lambda column: column.ignored)
    rows = [
        (f"`{column.name}`", " or ".join(f"`{kind}`" for kind in column.types) or "any", column.about)
        for column in columns
    ]
    return _table(("column", "type", "meaning"), rows)


def column_table() -> str:
    """The default columns, then those on request."""
    rows = [
        (f"`{column.name}`", f"`{column.ddl}`", "yes" if column.default else "", column.about)
        for column in COLUMN_TABLE
    ]
    return _table(("column", "type", "default", "meaning"), rows)


def view_tables() -> str:
    """One heading and one table a view."""
    parts = []
    for view in VIEWS:
        rows = [(f"`{column.name}`", f"`{type_name(column.type)}`", column.about) for column in view.columns]
        parts.append(f"### {view.name}\n\n{view.about}\n\n" + _table(("column", "type", "meaning"), rows))
    return "\n\n".join(parts)


def command_tables() -> str:
    """One heading a command: how it is called, what it does, and its options, all as `--help` says them."""
    from rmq_spark.cli.main import COMMANDS, cli

    context = cli.make_context("rmqlog", [], resilient_parsing=True)
    return "\n\n".join(_command(cli.get_command(context, name), name, context) for name in COMMANDS)


def _command(command: click.Command | None, name: str, parent: click.Context) -> str:
    import click

    assert command is not None
    context = click.Context(command, parent, info_name=name)
    title, *more = inspect.cleandoc(command.help or "").split("\n\n")
    # Behind \b stand examples, whose lines are kept.
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

# The blocks of each page; one that is not named here is taken for a README.
PAGES: dict[str, Sequence[str]] = {
    "README.md": _READ_BLOCKS,
    "README.zh-CN.md": _READ_BLOCKS,
    "docs/write.md": ("write-columns", "write-options"),
    "docs/reference.md": ("options", "columns", "write-options", "write-columns", "views", "cli"),
}


def render(document: str, name: str) -> str:
    """`document`, the page `name`, with its blocks made anew. Raises ValueError, naming it, where a marker is
    missing or twice.
    """
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
    """Rewrite the blocks of each file, whole files at a time."""
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
    """A bar ends a cell, in code spans too."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)


if __name__ == "__main__":
    main(sys.argv[1:])

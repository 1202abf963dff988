"""The option and column tables as Markdown, made from the rows the code itself uses.

`python -m rmq_spark.reference README.md README.zh-CN.md docs/write.md` rewrites what stands between `<!-- options -->` and
`<!-- /options -->`, and the same for the other blocks of a page; a test fails when a file is not current.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path

from rmq_spark.option_table import OPTIONS, Option
from rmq_spark.produce.columns import WRITE_COLUMNS
from rmq_spark.schema import COLUMN_TABLE
from rmq_spark.write_option_table import WRITE_OPTIONS

__all__ = ["PAGES", "column_table", "main", "option_table", "render", "write_column_table", "write_option_table"]


def option_table() -> str:
    """One table per heading."""
    parts = []
    for heading, options in groupby(OPTIONS, key=lambda option: option.heading):
        rows = [(f"`{option.name}`", option.kind, _default(option), ", ".join(sorted(option.applies)), option.about) for option in options]
        parts.append(f"**{heading}**\n\n" + _table(("option", "type", "default", "for", "meaning"), rows))
    return "\n\n".join(parts)


def write_option_table() -> str:
    """Those of a write, batch and stream alike."""
    rows = [(f"`{option.name}`", option.kind, _default(option), option.about) for option in WRITE_OPTIONS]
    return _table(("option", "type", "default", "meaning"), rows)


def write_column_table() -> str:
    """What a write looks at, then what it takes and does not look at."""
    columns = sorted(WRITE_COLUMNS, key=lambda column: column.ignored)
    rows = [(f"`{column.name}`", " or ".join(f"`{kind}`" for kind in column.types) or "any", column.about) for column in columns]
    return _table(("column", "type", "meaning"), rows)


def column_table() -> str:
    """The default columns, then those on request."""
    rows = [(f"`{column.name}`", f"`{column.ddl}`", "yes" if column.default else "", column.about) for column in COLUMN_TABLE]
    return _table(("column", "type", "default", "meaning"), rows)


_BLOCKS: dict[str, Callable[[], str]] = {
    "options": option_table,
    "columns": column_table,
    "write-options": write_option_table,
    "write-columns": write_column_table,
}
_READ_BLOCKS = ("options", "columns")

# The blocks of each page; one that is not named here is taken for a README.
PAGES: dict[str, Sequence[str]] = {
    "README.md": _READ_BLOCKS,
    "README.zh-CN.md": _READ_BLOCKS,
    "docs/write.md": ("write-columns", "write-options"),
}


def render(document: str, name: str) -> str:
    """`document`, the page `name`, with its blocks made anew. Raises ValueError, naming it, where a marker is missing or twice."""
    for block in next((blocks for page, blocks in PAGES.items() if Path(name).as_posix().endswith(page)), _READ_BLOCKS):
        make = _BLOCKS[block]
        begin, end = f"<!-- {block} -->", f"<!-- /{block} -->"
        if document.count(begin) != 1 or document.count(end) != 1 or document.index(begin) > document.index(end):
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

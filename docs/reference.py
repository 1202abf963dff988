"""The tables of options, columns, views and commands as Markdown, from the rows that the code itself uses.

`python -m docs.reference`, at the root of the checkout, rewrites the text between `<!-- options -->` and
`<!-- /options -->`, and the other blocks of each page. A test fails if a page is not current.

A Chinese page, such as `docs/options.zh-CN.md`, gets its texts from `reference.zh-CN.txt`, which has pairs of
lines: the English text of the code, and below it the translation. A text without a pair is shown in English,
and the program prints such texts. A test fails if the code no longer has the text of a pair.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from rmq_spark.options.option import Option
from rmq_spark.options.read_options import OPTIONS
from rmq_spark.options.write_options import WRITE_OPTIONS
from rmq_spark.plan.output_fields import COLUMN_TABLE
from rmq_spark.produce.columns import WRITE_COLUMNS
from store_format.arrays.sql_types import type_name
from store_format.views.registry import ALL_VIEWS

if TYPE_CHECKING:
    import click

# From an English text to the text in the language of the page.
Say: TypeAlias = Callable[[str], str]


def option_table(say: Say = str) -> str:
    """The options of a read: one table per heading."""
    parts = []
    for heading, options in groupby(OPTIONS, key=lambda option: option.heading):
        rows = [
            (
                f"`{option.name}`",
                say(option.kind),
                _default(option, say),
                say(", ".join(sorted(option.applies))),
                say(option.about),
            )
            for option in options
        ]
        table = _table(("option", "type", "default", "for", "meaning"), rows, say)
        parts.append(f"**{say(heading)}**\n\n{table}")
    return "\n\n".join(parts)


def write_option_table(say: Say = str) -> str:
    """The options of a write, for batches and streams."""
    rows = [
        (f"`{option.name}`", say(option.kind), _default(option, say), say(option.about))
        for option in WRITE_OPTIONS
    ]
    return _table(("option", "type", "default", "meaning"), rows, say)


def write_column_table(say: Say = str) -> str:
    """The columns that a write uses, then those that it accepts and ignores."""
    columns = sorted(WRITE_COLUMNS, key=lambda column: column.ignored)
    rows = [
        (
            f"`{column.name}`",
            f" {say('or')} ".join(f"`{kind}`" for kind in column.types) or say("any"),
            say(column.about),
        )
        for column in columns
    ]
    return _table(("column", "type", "meaning"), rows, say)


def column_table(say: Say = str) -> str:
    """The columns of a read."""
    rows = [
        (f"`{column.name}`", f"`{column.ddl}`", say("yes") if column.default else "", say(column.about))
        for column in COLUMN_TABLE
    ]
    return _table(("column", "type", "by default", "meaning"), rows, say)


def view_tables(say: Say = str) -> str:
    """One heading and one table per view."""
    parts = []
    for view in ALL_VIEWS:
        rows = [
            (f"`{column.name}`", f"`{type_name(column.type)}`", say(column.about)) for column in view.columns
        ]
        table = _table(("column", "type", "meaning"), rows, say)
        parts.append(f"## {view.name}\n\n{say(view.about)}\n\n{table}")
    return "\n\n".join(parts)


def command_tables(say: Say = str) -> str:
    """One heading per command: its usage, its help text and its options, as in `--help`."""
    from rmq_spark.cli.main import COMMANDS, cli

    context = cli.make_context("rmqlog", [], resilient_parsing=True)
    return "\n\n".join(_command(cli.get_command(context, name), name, context, say) for name in COMMANDS)


def exit_code_table(say: Say = str) -> str:
    """The exit codes of `rmqlog`."""
    from rmq_spark.cli.exit_codes import EXIT_CODES

    rows = [(str(code), say(words), say(about)) for code, words, about in EXIT_CODES]
    return _table(("exit code", "in short", "meaning"), rows, say)


def foreign_table(say: Say = str) -> str:
    """The commands of other tools, and the command of rmqlog for the same question."""
    from rmq_spark.cli.elsewhere import BY_TOOL

    rows = []
    for tool, commands in BY_TOOL.items():
        by_ours: dict[str, list[str]] = {}
        for word, ours in commands.items():
            by_ours.setdefault(ours, []).append(f"`{word}`")
        rows += [(say(tool), ", ".join(words), f"`rmqlog {ours}`") for ours, words in by_ours.items()]
    return _table(("tool", "its command", "rmqlog"), rows, say)


def metrics_table(say: Say = str) -> str:
    """The metrics that `rmqlog metrics` exports."""
    from rmq_spark.metrics.families import FAMILIES

    rows = [
        (f"`{each.name}`", ", ".join(f"`{label}`" for label in each.labels), say(each.help))
        for each in FAMILIES
    ]
    return _table(("metric", "labels", "meaning"), rows, say)


def _command(command: click.Command | None, name: str, parent: click.Context, say: Say) -> str:
    import click

    assert command is not None
    context = click.Context(command, parent, info_name=name)
    title, *more = inspect.cleandoc(command.help or "").split("\n\n")
    # After \b come examples, whose line breaks are kept.
    prose = [
        f"```text\n{part[1:].strip()}\n```" if part.startswith("\b") else say(" ".join(part.split()))
        for part in more
    ]
    usage = f"`rmqlog {name} {' '.join(command.collect_usage_pieces(context))}`"
    records = [
        option.get_help_record(context) for option in command.params if isinstance(option, click.Option)
    ]
    rows = [(f"`{record[0]}`", _option_help(record[1], say)) for record in records if record is not None]
    return "\n\n".join((f"## {name}", say(title), usage, *prose, _table(("option", "meaning"), rows, say)))


def _option_help(text: str, say: Say) -> str:
    """The help of an option. Click appends the default and the range, in brackets behind two spaces."""
    about, *more = text.split("  [")
    brackets = (
        re.sub(r"default: ([^;\]]+)", lambda match: say("default: {}").format(match[1]), part)
        for part in more
    )
    return "  [".join((say(about), *brackets))


_BLOCKS: dict[str, Callable[[Say], str]] = {
    "options": option_table,
    "columns": column_table,
    "write-options": write_option_table,
    "write-columns": write_column_table,
    "views": view_tables,
    "exit-codes": exit_code_table,
    "cli": command_tables,
    "foreign": foreign_table,
    "metrics": metrics_table,
}
_READ_BLOCKS = ("options", "columns")

# The blocks of each page. A page that is not named here has the blocks of a read.
PAGES: dict[str, Sequence[str]] = {
    "docs/monitor.md": ("metrics",),
    "docs/write.md": ("write-columns", "write-options"),
    **{
        f"docs/{page}{language}.md": blocks
        for page, blocks in (
            ("options", ("options", "write-options")),
            ("columns", ("columns", "write-columns")),
            ("views", ("views",)),
            ("commands", ("exit-codes", "cli", "foreign")),
        )
        for language in ("", ".zh-CN")
    },
}


def translations(language: str) -> dict[str, str]:
    """The English texts and their translations. Raises ValueError for a line without its pair."""
    text = Path(__file__).with_name(f"reference.{language}.txt").read_text(encoding="utf-8")
    found: dict[str, str] = {}
    for part in re.split(r"\n{2,}", text.strip()):
        if part.startswith("#"):  # a heading
            continue
        pair = part.split("\n")
        if len(pair) != 2 or pair[0] in found:
            raise ValueError(f"reference.{language}.txt: expected two lines, and once, found {part!r}")
        found[pair[0]] = pair[1]
    return found


def render(document: str, name: str) -> str:
    """The text of the page `name` with new blocks. Raises ValueError for a missing or repeated marker.

    A text without a translation stays English.
    """
    language = _language(name)
    texts = {} if language is None else translations(language)

    def say(text: str) -> str:
        return texts.get(text, text)

    for block in _blocks(name):
        make = _BLOCKS[block]
        begin, end = f"<!-- {block} -->", f"<!-- /{block} -->"
        if (
            document.count(begin) != 1
            or document.count(end) != 1
            or document.index(begin) > document.index(end)
        ):
            raise ValueError(f"{name}: expected {begin} and {end}, once each and in this order")
        before, rest = document.split(begin)
        document = f"{before}{begin}\n\n{make(say)}\n\n{end}{rest.split(end)[1]}"
    return document


def texts_of(name: str) -> list[str]:
    """The English texts in the blocks of the page `name`, each once, in their order."""
    found: dict[str, None] = {}

    def say(text: str) -> str:
        found[text] = None
        return text

    for block in _blocks(name):
        _BLOCKS[block](say)
    return [text for text in found if text]


def untranslated(name: str) -> list[str]:
    """The texts of the page `name` that are shown in English because they have no translation."""
    language = _language(name)
    if language is None:
        return []
    translated = translations(language)
    return [text for text in texts_of(name) if text not in translated]


def main(paths: Sequence[str]) -> None:
    """Rewrites the blocks of each file; of all pages, if no file is named. Prints untranslated texts."""
    for path in map(Path, paths or PAGES):
        current = path.read_text(encoding="utf-8")
        new = render(current, str(path))
        if new != current:
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            beside.write_text(new, encoding="utf-8")
            beside.replace(path)
        missing = untranslated(str(path))
        if missing:
            print(f"{path}: texts without a translation, shown in English: {len(missing)}")
            print(*missing, sep="\n")


def _language(name: str) -> str | None:
    """`zh-CN` of a page such as options.zh-CN.md; None for an English page."""
    found = re.search(r"\.([a-z]+-[A-Z]+)\.md$", name)
    return None if found is None else found[1]


def _blocks(name: str) -> Sequence[str]:
    path = Path(name).as_posix()
    return next((blocks for page, blocks in PAGES.items() if path.endswith(page)), _READ_BLOCKS)


def _default(option: Option, say: Say) -> str:
    default = say(option.otherwise) if option.default is None else f"`{option.default}`"
    of_stream = option.stream[1] if option.stream is not None else None
    return default if of_stream is None else say("{}, in a stream {}").format(default, f"`{of_stream}`")


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], say: Say) -> str:
    lines = [[say(name) for name in header], ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(_cell, line)) + " |" for line in lines)


def _cell(text: str) -> str:
    """A cell with its bars escaped: a bar ends a cell, also inside a code span."""
    return re.sub(r"(?<!\\)\|", r"\\|", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m docs.reference", description=main.__doc__)
    parser.add_argument("page", nargs="*", help=f"by default {' '.join(PAGES)}")
    main(parser.parse_args().page)

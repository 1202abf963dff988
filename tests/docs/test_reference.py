"""The tables in the READMEs and in docs/ are those that the code makes."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from docs.reference import (
    PAGES,
    column_table,
    command_tables,
    main,
    option_table,
    render,
    view_tables,
    write_column_table,
    write_option_table,
)
from rmq_spark.cli.main import COMMANDS, cli
from rmq_spark.options.read_options import OPTIONS
from rmq_spark.options.write_options import WRITE_OPTIONS
from rmq_spark.plan.output_fields import COLUMN_TABLE
from rmq_spark.produce.columns import WRITE_COLUMNS
from store_format.views.registry import ALL_VIEWS

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = "a\n<!-- options -->\nstale\n<!-- /options -->\nb\n<!-- columns --><!-- /columns -->\nc\n"


@pytest.mark.parametrize("name", PAGES)
def test_the_tables_are_current(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert render(text, name) == text, f"run: python -m docs.reference {name}"


def test_every_option_and_column_has_one_row() -> None:
    rows = [line for line in option_table().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [option.name for option in OPTIONS]
    columns = [line for line in column_table().splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in columns] == [column.name for column in COLUMN_TABLE]
    # five cells each, whatever stands in them
    assert {row.replace("\\|", "").count("|") for row in rows} == {6}
    assert {row.replace("\\|", "").count("|") for row in columns} == {5}


def test_every_option_and_column_of_a_write_has_one_row() -> None:
    for table, names, bars in (
        (write_option_table(), [option.name for option in WRITE_OPTIONS], 5),
        (write_column_table(), None, 4),
    ):
        rows = [line for line in table.splitlines() if line.startswith("| `")]
        found = [row.split("`")[1] for row in rows]
        assert found == names if names else sorted(found) == sorted(column.name for column in WRITE_COLUMNS)
        assert {row.replace("\\|", "").count("|") for row in rows} == {bars}
    assert "| `topic` | text | the column `topic` | The topic of all rows. |" in write_option_table()
    assert write_column_table().index("| `deliverTimestamp` |") < write_column_table().index(
        "| `queueOffset` | any |"
    )


def test_every_view_and_its_columns_have_their_rows() -> None:
    tables = view_tables()
    assert re.findall(r"^## (\w+)$", tables, re.MULTILINE) == [view.name for view in ALL_VIEWS]
    columns = [column for view in ALL_VIEWS for column in view.columns]
    rows = [line for line in tables.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == [column.name for column in columns]
    assert {row.replace("\\|", "").count("|") for row in rows} == {4}
    assert "| `lagMs` | `bigint` | Age of the first unconsumed message; 0 if there is none. |" in tables


def test_every_command_and_its_options_have_their_rows() -> None:
    tables = command_tables()
    assert re.findall(r"^## (\w+)$", tables, re.MULTILINE) == list(COMMANDS)
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        section = tables.split(f"## {name}\n")[1].split("\n## ")[0]
        assert f"`rmqlog {name} [OPTIONS]" in section
        for option in command.params if command is not None else []:
            if isinstance(option, click.Option) and not option.hidden:
                assert re.search(rf"^\| `[^`]*{option.opts[-1]}\b[^`]*` \| \w", section, re.MULTILINE), (
                    option.opts
                )
    assert "```text\nrmqlog dump /data/store 1073741824\nrmqlog dump /data/store Orders/2@100\n```" in tables
    assert "\b" not in tables


def test_a_row_says_type_default_and_meaning() -> None:
    assert (
        "| `verifyCrc` | boolean | `true` | batch, stream | Check the CRC of every body. |" in option_table()
    )
    assert (
        "| `startingOffsets` | word or JSON | `earliest`, in a stream `latest` | batch, stream | First"
        in option_table()
    )
    assert "| `maxTriggerDelay` | time | `15m` | stream | The longest wait" in option_table()
    assert "`TagA \\|\\| TagB`" in option_table()
    assert "| `queueOffset` | `bigint` | yes | The offset in the message queue. |" in column_table()


def test_what_stands_around_a_block_stays() -> None:
    page = render(PAGE, "page")
    assert page.startswith("a\n<!-- options -->\n\n**Where**\n\n| option |")
    assert "stale" not in page
    assert page.endswith("<!-- /columns -->\nc\n")
    assert render(page, "page") == page


@pytest.mark.parametrize(
    "page",
    ["", PAGE.replace("<!-- /options -->", ""), PAGE + PAGE, PAGE.replace("-- options", "-- /options", 1)],
)
def test_a_missing_marker_is_named(page: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"^page: expected <!-- options --> and <!-- /options -->, once each and in this order$",
    ):
        render(page, "page")


def test_files_are_rewritten_whole(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    main([str(page)])
    assert page.read_text(encoding="utf-8") == render(PAGE, "page")
    written = page.stat().st_mtime_ns
    main([str(page)])
    assert page.stat().st_mtime_ns == written
    assert list(tmp_path.iterdir()) == [page]


def test_the_page_about_reading_names_every_view() -> None:
    page = (ROOT / "docs" / "read.md").read_text(encoding="utf-8")
    (paragraph,) = [each for each in page.split("\n\n") if each.startswith("**Views**")]
    assert {view.name for view in ALL_VIEWS} <= set(re.findall(r"`(\w+)`", paragraph))

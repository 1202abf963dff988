"""`doctor`: checks whether Spark finds the format `rmqlog` on this machine."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.completion import VARIABLE, default_store
from rmq_spark.cli.exit_codes import OK, PARTIAL
from rmq_spark.cli.options import open_all
from rmq_spark.cli.output import Output, output_options

if TYPE_CHECKING:
    from rmq_spark.cli.environment import Check


@click.command("doctor")
@click.argument("store", type=click.Path(readable=False), required=False)
@click.option("--start", is_flag=True, help="Also start Spark and look for the format; takes some seconds.")
@output_options()
def doctor_(store: str | None, start: bool, output: Output) -> int:
    """Check whether Spark finds the format rmqlog.

    Checks versions, the JDK, modules that break Spark's registration, and the Python of Spark's workers; with
    a STORE, also the store. The exit code is 4 if a check fails.
    """
    from rmq_spark.cli.environment import environment_checks, start_check
    from rmq_spark.cli.view_rows import show_batches
    from store_format.display.columns import TEXT, ViewColumn, batch_of

    checks = [*environment_checks(dict(os.environ), sys.executable), _default_store_check()]
    if start:
        checks.append(start_check(sys.executable))
    if store is not None:
        checks += _store_checks(store)
    columns = (
        ViewColumn("check", TEXT, "What was checked."),
        ViewColumn("state", TEXT, "`ok`, `warning` or `fails`."),
        ViewColumn("found", TEXT, "What was found."),
        ViewColumn("advice", TEXT, "What to do."),
    )
    batch = batch_of(columns, [(check.name, check.state, check.found, check.advice) for check in checks])
    if output.form == "table" and not output.columns:
        _print(output, checks)
    else:
        show_batches(output, [batch], [column.name for column in columns])
    return PARTIAL if any(check.state == "fails" for check in checks) else OK


def _print(output: Output, checks: list[Check]) -> None:
    from store_format.display.text import shown

    colours = {"ok": "32", "warning": "33", "fails": "31"}
    for check in checks:
        word = f"{check.state:<7}"
        word = f"\x1b[{colours[check.state]}m{word}\x1b[0m" if output.colour else word
        print(
            f"{word}  {check.name:<18}  {shown(check.found)}"
            + (f". {shown(check.advice)}" if check.advice else "")
        )


def _default_store_check() -> Check:
    from rmq_spark.cli.environment import Check

    default = default_store()
    if default is None:
        return Check(VARIABLE, "ok", "not set: commands need a STORE")
    return Check(VARIABLE, "ok", f"{default}, where a command names no STORE")


def _store_checks(path: str) -> list[Check]:
    from rmq_spark.cli.environment import Check
    from store_format.errors import StoreError

    try:
        stores = open_all(path)
    except (StoreError, OSError) as error:
        return [Check("store", "fails", str(error))]
    found = []
    for store in stores:
        queues = (
            ""
            if store.has_consume_queues
            else ", no consume queue files (RocksDB?): the commitlog is scanned"
        )
        found.append(
            Check(
                "store",
                "warning" if queues else "ok",
                f"{store.path}: broker {store.broker_name}, {store.state.value}{queues}",
            )
        )
    return found

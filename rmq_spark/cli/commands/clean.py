"""Deletes expired files by hand, by the rules of a broker: `clean`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.exit_codes import OK, PARTIAL
from rmq_spark.cli.options import (
    broker_confs_option,
    conf_of,
    file_reserved_time_option,
    named_roots,
    now_option,
    store_argument,
)
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import remark
from rmq_spark.cli.view_rows import show_batches
from store_format.display.units import size_text
from store_format.errors import StoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_spark.broker import clean
    from store_format.metadata.broker_confs import BrokerConfs

_FILES = ("kind", "file", "sizeBytes", "diskBytes", "modified", "reason")
_UNREAD = ("group", "topic", "queueId", "committedOffset", "messages")


@click.command("clean")
@store_argument(opened=False, tolerant=True)
@broker_confs_option
@file_reserved_time_option
@click.option("--unread", is_flag=True, help="Show instead the unread messages that would be deleted.")
@now_option
@click.option("--apply", "apply_", is_flag=True, help="Delete the files.")
@output_options()
def clean_(
    roots: list[str],
    left_out: list[StoreError],
    commit_log_paths: tuple[str, ...],
    broker_confs: BrokerConfs,
    hours: int | None,
    unread: bool,
    now_ms: int,
    apply_: bool,
    output: Output,
) -> int:
    """Delete the oldest files, as a broker does.

    The files are only shown; --apply deletes them, read by consumers or not, which cannot be undone. The
    broker of STORE must be stopped. A commitlog file goes when fileReservedTime is over since its last write;
    if the disk is more than 85 % full, files of any age go, at most ten. The hour of deleteWhen does not
    count. Queue, index and timer files follow. fileReservedTime must be given, here, in --broker-conf or in
    .rmqlog/broker.conf of STORE. In a cluster each store goes on by itself; if one fails, the exit code is 4.

    \b
    rmqlog clean /data/store --file-reserved-time 72
    rmqlog clean /data/store --file-reserved-time 72 --unread
    rmqlog clean /data/store --file-reserved-time 72 --apply
    """
    from rmq_spark.broker import clean
    from store_format.views.retention import UNREAD_COLUMNS

    errors = list(left_out)
    named: list[str] = []
    plans: list[clean.CleanPlan] = []
    for name, root in zip(named_roots(roots), roots, strict=True):
        try:
            found = clean.plan(
                root, now_ms, conf_of(broker_confs, root), file_reserved_hours=hours, is_manual=True,
                commit_log_paths=commit_log_paths,
            )  # fmt: skip
        except StoreError as error:
            errors.append(error)
        else:
            named.append(name)
            plans.append(found)
    if errors and not plans:
        raise errors[0]
    for each_error in errors:
        remark(f"a store is left out: {each_error}")
    lost = [_unread(each) for each in plans]
    columns, chosen = (UNREAD_COLUMNS, _UNREAD) if unread else (clean.CLEAN_COLUMNS, _FILES)
    tables = [table for table in lost if table is not None] if unread else [each.table() for each in plans]
    batches = [batch for table in tables for batch in table.to_batches()]
    show_batches(output, batches, [column.name for column in columns], chosen)
    counts = [None if table is None else sum(filter(None, table["messages"].to_pylist())) for table in lost]
    failed = _apply_all(plans, named, counts) if apply_ else 0
    if not apply_:
        for name, each, count in zip(named, plans, counts, strict=True):
            remark(f"{name}: {_summary(each, None, count)}")
    return PARTIAL if failed or errors or None in counts else OK


def _apply_all(plans: Sequence[clean.CleanPlan], named: Sequence[str], unread: Sequence[int | None]) -> int:
    """Applies each plan, also after one that fails. Returns how many failed; raises if none did anything."""
    from rmq_spark.broker import PartsFailedError

    errors: list[StoreError] = []
    for name, each, count in zip(named, plans, unread, strict=True):
        try:
            remark(f"{name}: {_summary(each, each.apply(), count)}")
        except PartsFailedError as error:
            errors.append(error)
            remark(f"{name}: {error.done} of {each.due} files deleted, then failed: {error}")
        except StoreError as error:
            errors.append(error)
            is_last = len(errors) == len(plans)
            if is_last and not any(isinstance(other, PartsFailedError) for other in errors):
                raise
            remark(f"{name}: nothing was deleted: {error}")
    return len(errors)


def _unread(plan: clean.CleanPlan) -> pa.Table | None:
    """The unread messages; None, with a remark on stderr, if the store does not say what is read."""
    try:
        return plan.unread()
    except StoreError as error:
        remark(f"{plan.store.path}: unread messages are not known: {error}")
        return None


def _summary(plan: clean.CleanPlan, done: int | None, unread: int | None) -> str:
    if not plan.due:
        return "no file has expired; nothing was deleted"
    lost = f"; {unread} messages in them were not read" if unread else ""
    if done is not None:
        return f"{done} files deleted ({size_text(plan.disk_bytes)} on the disk): {plan.gate.reason}{lost}"
    advice = ", --unread to see them by group" if unread else ""
    return (
        f"{plan.due} files ({size_text(plan.disk_bytes)} on the disk) can be deleted: "
        f"{plan.gate.reason}{lost}. Nothing was deleted; add --apply to delete them{advice}"
    )

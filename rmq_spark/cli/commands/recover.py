"""`recover`: completes what a crash left, and rebuilds lost consume queues and index files."""

from __future__ import annotations

import shlex

import click

from rmq_spark.cli.exit_codes import DAMAGE, OK
from rmq_spark.cli.options import broker_conf_option, store_argument
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import given_command, given_store, remark
from rmq_spark.cli.view_rows import show_batches
from store_format.display.text import shown

_SHOWN = ("part", "topic", "queueId", "action", "position", "entries", "byBroker")


@click.command("recover")
@store_argument(opened=False)
@click.option("--queues", is_flag=True, help="Only the consume queues; the index stays as it is.")
@click.option("--index", is_flag=True, help="Only the index files; consume queues stay as they are.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Only the queues of this topic, even if it may have been deleted; repeatable.",
)
@click.option(
    "--cut-after-damage",
    is_flag=True,
    help="Give up the messages behind damage, as a starting broker does.",
)
@click.option(
    "--ignore-missing-stores",
    is_flag=True,
    help="In a cluster: a store that is missing now does not come back. A recovery that needs to ask this "
    "store is then done without it; otherwise it is an error.",
)
@click.option(
    "--into",
    metavar="NEW",
    type=click.Path(readable=False),
    help="Recover a copy in this new directory; STORE is only read.",
)
@click.option(
    "--salvage", is_flag=True, help="With --into: keep the messages behind damage, with their offsets."
)
@click.option("--apply", "apply_", is_flag=True, help="Change the store; without --apply it is only shown.")
@broker_conf_option
@output_options()
def recover_(
    roots: list[str],
    commit_log_paths: tuple[str, ...],
    queues: bool,
    index: bool,
    topics: tuple[str, ...],
    cut_after_damage: bool,
    ignore_missing_stores: bool,
    into: str | None,
    salvage: bool,
    apply_: bool,
    broker_conf: str | None,
    output: Output,
) -> int:
    """Recover a store; rebuild lost queues and index.

    The broker must be stopped. Ends the log where a broker that starts would end it, and writes every missing
    entry of consume queues and index from the commitlog; byBroker counts those that a broker would write
    itself. Nothing is changed without --apply.

    \b
    rmqlog recover /data/store
    rmqlog recover /data/store --apply
    rmqlog recover /data/damaged --into /data/recovered --salvage --apply
    """
    from store_format.commit.recover import RECOVER_COLUMNS, recover

    if into is not None and len(roots) > 1:
        raise click.UsageError("--into takes one store, but STORE is a cluster: give one of its stores")
    both = queues == index
    plans = [
        recover(
            root,
            rebuild_queues=queues or both,
            rebuild_index=index or both,
            topics=topics or None,
            into=into,
            cut_after_damage=cut_after_damage,
            ignore_missing_stores=ignore_missing_stores,
            salvage=salvage,
            broker_conf=broker_conf,
            commit_log_paths=commit_log_paths,
        )
        for root in roots
    ]
    tables = [plan.apply() if apply_ else plan.table() for plan in plans]
    names = [column.name for column in RECOVER_COLUMNS]
    show_batches(output, (batch for table in tables for batch in table.to_batches()), names, _SHOWN)
    actions = {action for table in tables for action in table["action"].to_pylist()}
    changes = bool(actions - {"end", "keep", "left", "refused"})
    if "refused" in actions:
        for table in tables:
            refused = zip(table["action"].to_pylist(), table["reason"].to_pylist(), strict=True)
            for reason in [reason for action, reason in refused if action == "refused"]:
                remark(shown(reason))
    elif not changes:
        remark("nothing has to be changed")
    elif not apply_:
        remark(f"nothing was changed; to recover{'' if into else ' in place'}: {given_command('--apply')}")
    else:
        checked = given_store() if into is None else shlex.quote(shown(into))
        remark(f"the changes are written; check: rmqlog verify {checked}")
    return DAMAGE if "refused" in actions else OK

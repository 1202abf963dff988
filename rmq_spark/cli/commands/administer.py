"""Topics and groups of a store whose broker is stopped: `topic` and `group` show, create, change, delete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.completion import complete_group, complete_topic
from rmq_spark.cli.exit_codes import OK
from rmq_spark.cli.options import store_argument
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import remark
from rmq_spark.cli.view_rows import show_batches
from store_format.display.text import shown

if TYPE_CHECKING:
    from store_format.commit.administer import ConfigChange, GroupChange, TopicChange
    from store_format.commit.options import CommitOptions

_PERMS = {"2": 2, "4": 4, "6": 6, "W": 2, "R": 4, "RW": 6}
_apply = click.option(
    "--apply", "apply_", is_flag=True, help="Write the change; without --apply it is only shown."
)
_QUEUES = click.IntRange(1, 1 << 14)


@click.command("topic")
@store_argument(opened=False)
@click.argument("topic", shell_complete=complete_topic)
@click.option("--create", is_flag=True, help="Create the topic; without options 8 queues, perm RW.")
@click.option("--read-queues", type=_QUEUES, help="readQueueNums: consumers read the queues below it.")
@click.option("--write-queues", type=_QUEUES, help="writeQueueNums: producers write to the queues below it.")
@click.option("--perm", type=click.Choice(list(_PERMS)), help="Whether consumers read and producers write.")
@click.option(
    "--message-type",
    type=click.Choice(["NORMAL", "FIFO", "DELAY", "TRANSACTION"]),
    help="The attribute message.type, from 5.0 on.",
)
@click.option("--delete", is_flag=True, help="Delete the topic and its queues.")
@_apply
@output_options()
def topic_(
    roots: list[str],
    commit_log_paths: tuple[str, ...],
    topic: str,
    create: bool,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    message_type: str | None,
    delete: bool,
    apply_: bool,
    output: Output,
) -> int:
    """Show, create, change or delete a topic.

    The broker must be stopped. A change is only shown; --apply writes it, into the files of the broker's
    version. A deletion lists the messages that no consumer gets any more. With 5.x it includes the offsets of
    the topic and the retry topics of pop for it; with 4.9 the offsets stay. Of a cluster, each store changes.

    \b
    rmqlog topic /data/store Orders
    rmqlog topic /data/store Orders --read-queues 16 --write-queues 16 --apply
    rmqlog topic /data/store Payments --create --message-type FIFO --apply
    rmqlog topic /data/store Orders --delete
    """
    from store_format.commit.administer import change_topic, delete_topic

    values = {
        "read_queues": read_queues,
        "write_queues": write_queues,
        "perm": None if perm is None else _PERMS[perm],
        "message_type": message_type,
    }
    _refuse_both(create, delete, values)

    def changes(options: CommitOptions) -> list[TopicChange]:
        return [change_topic(root, topic, create=create, options=options, **values) for root in roots]  # type: ignore[arg-type] # of each name its own

    def deletions(options: CommitOptions) -> Sequence[ConfigChange]:
        return [delete_topic(root, topic, options=options) for root in roots]

    is_change = create or delete or any(value is not None for value in values.values())
    return _run(
        f"topic {topic}", deletions if delete else changes, commit_log_paths, is_change, apply_, output
    )


@click.command("group")
@store_argument(opened=False)
@click.argument("group", shell_complete=complete_group)
@click.option("--create", is_flag=True, help="Create the group, as mqadmin updateSubGroup does.")
@click.option(
    "--retry-max-times",
    type=click.IntRange(-1),
    help="retryMaxTimes: then a failed message is a dead letter.",
)
@click.option("--order/--no-order", default=None, help="consumeMessageOrderly, from 5.0 on.")
@click.option("--consume/--no-consume", default=None, help="consumeEnable: whether the group gets messages.")
@click.option("--broadcast/--no-broadcast", default=None, help="consumeBroadcastEnable; of a new group off.")
@click.option("--delete", is_flag=True, help="Delete the group; its topics %RETRY% and %DLQ% stay.")
@click.option("--remove-offset", is_flag=True, help="With --delete: the offsets of the group, too.")
@_apply
@output_options()
def group_(
    roots: list[str],
    commit_log_paths: tuple[str, ...],
    group: str,
    create: bool,
    retry_max_times: int | None,
    order: bool | None,
    consume: bool | None,
    broadcast: bool | None,
    delete: bool,
    remove_offset: bool,
    apply_: bool,
    output: Output,
) -> int:
    """Show, create, change or delete a group.

    The broker must be stopped. A change is only shown; --apply writes it, into the files of the broker's
    version. Of a cluster, each store changes. A broker creates a deleted group again when a consumer of it
    starts (autoCreateSubscriptionGroup).

    \b
    rmqlog group /data/store CG_orders
    rmqlog group /data/store CG_orders --retry-max-times 5 --apply
    rmqlog group /data/store CG_orders --no-consume --apply
    rmqlog group /data/store CG_orders --delete --remove-offset
    """
    from store_format.commit.administer import change_group, delete_group

    values = {
        "retry_max_times": retry_max_times,
        "order": order,
        "consume": consume,
        "broadcast": broadcast,
    }
    _refuse_both(create, delete, values)
    if remove_offset and not delete:
        raise click.UsageError("--remove-offset needs --delete")

    def changes(options: CommitOptions) -> list[GroupChange]:
        return [change_group(root, group, create=create, options=options, **values) for root in roots]  # type: ignore[arg-type] # of each name its own

    def deletions(options: CommitOptions) -> Sequence[ConfigChange]:
        return [delete_group(root, group, remove_offset=remove_offset, options=options) for root in roots]

    is_change = create or delete or any(value is not None for value in values.values())
    return _run(
        f"group {group}", deletions if delete else changes, commit_log_paths, is_change, apply_, output
    )


def _refuse_both(create: bool, delete: bool, values: dict[str, Any]) -> None:  # Any: values of options
    if delete and (create or any(value is not None for value in values.values())):
        raise click.UsageError("--delete takes no other change")


def _run(
    name: str,
    plan: Callable[[CommitOptions], Sequence[ConfigChange]],
    commit_log_paths: tuple[str, ...],
    is_change: bool,
    apply_: bool,
    output: Output,
) -> int:
    """Shows the stores' changes, or what they have stored, and with --apply writes them."""
    import pyarrow as pa

    from store_format.commit.administer import CHANGE_COLUMNS
    from store_format.commit.options import CommitOptions

    if apply_ and not is_change:
        raise click.UsageError("--apply needs a change, such as --create or --delete")
    changes = plan(CommitOptions(log_directories=commit_log_paths))
    if not is_change:
        rows = [
            {"field": field, "value": value} for each in changes for field, value in each.stored().items()
        ]
        show_batches(output, pa.Table.from_pylist(rows).to_batches(), ["field", "value"])
        return OK
    names = [column.name for column in CHANGE_COLUMNS]
    remarks = list(dict.fromkeys(text for each in changes for text in each.remarks()))
    tables = [each.table() for each in changes]  # all, before one is written
    if apply_:
        tables = [each.apply() for each in changes]
    show_batches(output, (batch for table in tables for batch in table.to_batches()), names)
    for text in remarks:
        remark(text)
    if not any(map(len, tables)):
        remark(f"{shown(name)} is so already; nothing was changed")
    elif apply_:
        remark(f"{shown(name)}: written")
    else:
        remark("nothing was changed; add --apply to write it")
    return OK

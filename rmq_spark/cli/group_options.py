"""Consumer groups on the command line: `--group` and `--all`, and what the stores do not say of groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.completion import complete_group
from rmq_spark.cli.exit_codes import OK, PARTIAL, NotFoundError
from rmq_spark.cli.options import Command
from rmq_spark.cli.remarks import nothing, remark
from rmq_spark.cli.view_rows import keep_where
from store_format.display.text import first_names
from store_format.names import did_you_mean

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore
    from store_format.errors import StoreError
    from store_format.views.lost_offsets import GroupsWithoutOffsets


def group_options(command: Command) -> Command:
    """The options `--group` and `--all`, as `group` and `all_groups`."""
    own = click.option(
        "-a",
        "--all",
        "all_groups",
        is_flag=True,
        help="Include RocketMQ's own groups, such as CID_RMQ_SYS_TRANS and TOOLS_CONSUMER.",
    )
    group = click.option(
        "-g",
        "--group",
        metavar="GLOB",
        shell_complete=complete_group,
        help="Groups, such as CG_orders or 'CG_*'.",
    )
    return group(own(command))


def what_is_unknown(stores: list[MessageStore], group: str | None = None) -> int:
    """The exit code: PARTIAL, with a remark on stderr, if the offsets of a store's groups are unknown, or
    were lost of one that `group` matches, or unread messages are lost with parts of the commitlog.
    """
    from store_format.errors import StoreError
    from store_format.metadata.group_offsets import groups_without_file, refuse_unknown_offsets

    code = OK
    for store in stores:
        left_out = sorted(groups_without_file(store.opened))
        if left_out:
            remark(
                f"{len(left_out)} groups of consumerOffset.json are not shown: {first_names(left_out)}. A "
                "broker with enableLmq has written lmqConsumerOffset.json later, and reads only that file"
            )
        try:
            refuse_unknown_offsets(store.opened)
        except StoreError as error:
            remark(unknown_lag(error))
            code = PARTIAL
        without = groups_without_offsets(store, group)
        if without.groups:
            remark(str(without))
            code = PARTIAL if without.evidence else code
        if lost := lost_with_log(store):
            remark(f"{lost}, and count as unread here where they were not read: rmqlog verify {store.path}")
            code = PARTIAL
    return code


def groups_without_offsets(store: MessageStore, group: str | None) -> GroupsWithoutOffsets:
    """The configured groups without a committed offset that `--group` matches, or all of them."""
    from store_format.errors import StoreError
    from store_format.views.lost_offsets import GroupsWithoutOffsets

    keep = keep_where(group=group)
    with suppress(StoreError):  # who needs the files has said so
        return GroupsWithoutOffsets.find(store, lambda name: keep is None or keep.matches(name))
    return GroupsWithoutOffsets()


def lost_with_log(store: MessageStore) -> str:
    """Says how many messages are lost with missing parts of the commitlog; empty for none."""
    count = lost_count(store)
    verb = "is" if count == "1 message" else "are"
    return f"{count} {verb} lost with missing parts of the commitlog" if count else ""


def lost_count(store: MessageStore) -> str:
    """How many messages are lost with missing parts of the commitlog, as `verify` counts them: "1 message" or
    "at least 8 messages"; empty for none.
    """
    from store_format.bookkeeping.journal import StoreState
    from store_format.survey.gone import QueueProofs

    proofs, is_least = QueueProofs(store.opened, store.log), False
    count = sum(each.count for each in proofs.find_gone(store.state))
    if not count:
        return ""
    # only then asks for the queues, of which some may need a scan
    if store.state is StoreState.CLEAN and proofs.lacks_ends(is_ahead=True, lacks_queues=True):
        is_least = any(queue.scanned is not None for queue in store.queues())
    return f"{'at least ' * is_least}{count:,} message{'s' * (count != 1)}"


def unknown_lag(error: StoreError) -> str:
    """The sentence about an error of `refuse_unknown_offsets`, without its advice to writers."""
    return f"the lag of all groups is unknown: {str(error).partition(';')[0]}"


def say_unknown_losses(batches: Iterable[pa.RecordBatch], when: str) -> None:
    """Says which groups lose an unknown number of unread messages next: those that have a value in the column
    `when`, and none in nextLostMessages.
    """
    names = sorted(
        {
            row["group"]
            for batch in batches
            for row in batch.select(["group", "nextLostMessages", when]).to_pylist()
            if row["nextLostMessages"] is None and row[when] is not None
        }
    )
    if names:
        remark(
            f"how many unread messages {first_names(names)} lose next is unknown, not 0: queues are read by "
            "a scan of the commitlog"
        )


def refuse_unknown_group(stores: list[MessageStore], group: str | None, others: Collection[str] = ()) -> None:
    """Raises NotFoundError if `--group` matches no group of the stores, and none of `others`."""
    if group is None:
        return
    keep = keep_where(group=group)
    known = {str(name) for store in stores for name in store.view("groups")["group"].to_pylist()} | {*others}
    if keep is not None and any(map(keep.matches, known)):
        return
    raise NotFoundError(f"no group is named {group!r}; {did_you_mean(group, sorted(known), 'groups')}")


def no_rows_of_groups(stores: list[MessageStore], group: str | None) -> int:
    """Says why there is no row about groups, and returns the exit code. Raises as `refuse_unknown_group`,
    unless offsets are unknown.
    """
    code = what_is_unknown(stores, group)
    if code != OK:
        return code
    refuse_unknown_group(stores, group)
    return nothing("no row about a consumer group matches; --all includes RocketMQ's own groups")

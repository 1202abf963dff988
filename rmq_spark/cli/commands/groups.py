"""Consumer groups: `groups`, and `offsets`, which also resets and copies offsets."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.completion import complete_group
from rmq_spark.cli.exit_codes import OK
from rmq_spark.cli.group_options import group_options, no_rows_of_groups, what_is_unknown
from rmq_spark.cli.options import (
    filter_options,
    from_one_look,
    known_topics,
    now_option,
    refuse_unknown_topic,
    store_argument,
    without_topic,
)
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import given_store, nothing, remark
from rmq_spark.cli.view_rows import keep_where, show_batches, show_view
from store_format.display.text import first_names, shown
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    from rmq_spark.consume.reset import OffsetPlan
    from store_format import MessageStore

_GROUPS = (
    "brokerName",
    "group",
    "configured",
    "consumeEnable",
    "topics",
    "queues",
    "lagMessages",
    "lagMs",
    "deadLetters",
)
_OFFSETS = (
    "brokerName",
    "group",
    "topic",
    "queueId",
    "committedOffset",
    "minOffset",
    "maxOffset",
    "lagMessages",
)


_ONE_MOMENT_MS = 1_000
_OWNERS = ("brokerName", "group", "client", "kind", "topic", "queueId", "since", "position", "lagMessages")


@click.command("groups")
@from_one_look
@store_argument()
@now_option
@group_options
@click.option("--members", is_flag=True, help="Who reads which queue: streaming queries and consumers.")
@filter_options("limit")
@output_options()
def groups_(
    stores: list[MessageStore],
    now_ms: int,
    group: str | None,
    all_groups: bool,
    members: bool,
    filters: MessageChoice,
    output: Output,
) -> int:
    """Consumer groups: settings, topics, lag, dead letters; members."""
    if not show_view(
        output,
        stores,
        "owners" if members else "groups",
        _OWNERS if members else _GROUPS,
        without_topic(filters),
        now_ms=now_ms,
        keep=keep_where(group=group, all_groups=all_groups),
    ):
        if members:
            return nothing("no query or consumer of a group runs on the store")
        return no_rows_of_groups(stores, group)
    return what_is_unknown(stores, group)


# ---- offsets -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Move:
    """The target of a reset or copy: at most one of the fields; none to show the offsets only."""

    earliest: bool
    latest: bool
    time: str | None
    offset: int | None
    copy_of: str | None

    def __post_init__(self) -> None:
        asked = [
            self.earliest,
            self.latest,
            self.time is not None,
            self.offset is not None,
            self.copy_of is not None,
        ]
        if sum(asked) > 1:
            raise click.UsageError(
                "--to-earliest, --to-latest, --to-time, --to-offset and --copy-from cannot be combined; "
                "use only one"
            )

    def __bool__(self) -> bool:
        return self != _Move(False, False, None, None, None)


def _move_options(command: Any) -> Any:  # Any: click's own
    for option in reversed(
        (
            click.option("--to-earliest", is_flag=True, help="To the first message of each queue."),
            click.option(
                "--to-latest", is_flag=True, help="To the end of each queue: skips all waiting messages."
            ),
            click.option(
                "--to-time",
                metavar="TIME",
                help="To the first message stored at or after: ISO 8601, ms since 1970, or -2h. Without a "
                "zone: in --tz, else in the zone of this machine.",
            ),
            click.option(
                "--to-offset",
                type=click.IntRange(0),
                help="To this offset, in the one queue given by --topic and --queue.",
            ),
            click.option(
                "--copy-from",
                metavar="GROUP",
                shell_complete=complete_group,
                help="To the offsets of this group.",
            ),
        )
    ):
        command = option(command)
    return command


@click.command("offsets")
@store_argument()
@click.argument("group", required=False, shell_complete=complete_group)
@_move_options
@click.option("--apply", "apply_", is_flag=True, help="Write the change; without --apply it is only shown.")
@click.option(
    "--offset-store",
    type=click.Choice(["store", "local"]),
    help="The option offsetStore of the group's queries.",
)
@click.option(
    "--offset-store-path",
    type=click.Path(readable=False),
    help="The option offsetStorePath of the group's queries.",
)
@click.option(
    "--group-path", type=click.Path(readable=False), help="The option groupPath of the group's queries."
)
@filter_options("topic", "queue", "limit")
@output_options()
def offsets_(
    stores: list[MessageStore],
    group: str | None,
    to_earliest: bool,
    to_latest: bool,
    to_time: str | None,
    to_offset: int | None,
    copy_from: str | None,
    apply_: bool,
    filters: MessageChoice,
    output: Output,
    **places: str | None,
) -> int:
    """Show, reset or copy the offsets of groups.

    A reset or copy is only shown; --apply writes it, which is refused while a broker runs on the store.
    Running queries of the group continue at the new offsets.

    \b
    rmqlog offsets /data/store CG_orders
    rmqlog offsets /data/store CG_orders --to-time -2h --topic Orders
    rmqlog offsets /data/store CG_orders --to-time -2h --topic Orders --apply
    """
    move = _Move(to_earliest, to_latest, to_time, to_offset, copy_from)
    if not move:
        if apply_:
            raise click.UsageError("--apply needs a target, such as --to-latest")
        if not show_view(
            output,
            stores,
            "lag",
            _OFFSETS,
            without_topic(filters),
            keep=keep_where(group=group, topic=filters.glob),
        ):
            return no_rows_of_groups(stores, group)
        return what_is_unknown(stores, group)
    if group is None:
        raise click.UsageError("a reset needs a group: rmqlog offsets STORE GROUP")
    if apply_ and to_time is not None:
        from rmq_spark.cli.typed_times import refuse_without_zone

        refuse_without_zone("--to-time", to_time)
    plan = _plan(stores, group, move, filters, places)
    show_batches(output, plan.table().to_batches(), plan.table().schema.names)
    if to_time is not None:
        _say_one_moment(stores, plan)
    for store in stores:
        if store.state.value == "crashed":
            remark(
                f"warning: {store.path} was not shut down: a broker that starts may cut the end of its "
                f"queues. Recover it first: rmqlog recover {given_store(store.path)}"
            )
    if not apply_ and (refusals := plan.refusals()):
        for each in refusals:
            remark(f"--apply writes nothing: {each}")
        return OK
    if not apply_:
        remark(f"{_effect(plan)}nothing was changed; add --apply to write the new offsets")
        return OK
    plan.apply()
    remark(f"{_effect(plan)}{len(plan.targets)} offsets of {shown(group)} written")
    remark(f"to check them: {_check_command(group, filters.glob)}")
    return OK


def _check_command(group: str, topic: str | None) -> str:
    """The command that shows where the moved group stands, with the times in the zone that was given."""
    given = {"-g": group, "-t": topic, "--tz": click.get_current_context().params.get("tz")}
    options = " ".join(f"{name} {shlex.quote(shown(value))}" for name, value in given.items() if value)
    columns = "topic,queueId,committedOffset,lastConsumedTimestamp,nextTimestamp"
    return f"rmqlog lag {given_store()} -l {options} --columns {columns}"


def _effect(plan: OffsetPlan) -> str:
    """How many messages the group does not read any more, and how many it reads again; of a group whose
    offset is unknown, behind how many it begins.
    """
    skipped = again = before = 0
    for queue, target in plan.targets.items():
        committed = plan.committed.get(queue, -1)
        low, _ = plan.limits.get(queue, (max(committed, 0), 0))
        if committed < 0:
            before += max(target - low, 0)
        else:
            skipped += max(target - max(committed, low), 0)
            again += max(committed - target, 0)
    said = [f"skips {_messages(skipped)} that the group has not read"] if skipped else []
    said += [f"reads {_messages(again)} again"] if again else []
    said += [f"begins behind {_messages(before)}"] if before else []
    return f"{' and '.join(said)}; " if said else ""


def _say_one_moment(stores: list[MessageStore], plan: OffsetPlan) -> None:
    """Warns of queues whose messages all were stored at once, as by a move: a time cannot divide them."""
    from store_format.views.measure import look

    topics, at_once = {each.topic for each in plan.targets}, []
    for store in stores:
        for queue in store.queues(topics.__contains__):
            if queue.scanned is None and queue.max_offset - queue.min_offset > 1:
                first, last = (look(queue, at)[0] for at in (queue.min_offset, queue.max_offset - 1))
                if first is not None and last is not None and last - first <= _ONE_MOMENT_MS:
                    at_once.append(f"{queue.topic}-{queue.queue_id}")
    if at_once:
        remark(
            f"warning: all messages of {first_names(at_once)} were stored within a second, as by a job that "
            "moved them: a time before it means all of them, and a later one none; give --to-offset for each "
            "queue"
        )


def _messages(count: int) -> str:
    return f"{count:,} message{'s' * (count != 1)}"


def _plan(
    stores: list[MessageStore], group: str, move: _Move, filters: MessageChoice, places: dict[str, str | None]
) -> OffsetPlan:
    import os

    from rmq_spark.cli.typed_times import typed_time_ms
    from rmq_spark.consume import reset
    from rmq_spark.consume.consumer import MessageQueue

    paths = {
        name: None if places[name] is None else os.path.abspath(str(places[name]))
        for name in ("offset_store_path", "group_path")
    }
    place = reset.group_place(group, stores, kind=places["offset_store"], **paths)
    topics = None if filters.glob is None else _chosen_topics(stores, filters)
    if move.offset is not None:
        if topics is None or len(topics) != 1 or len(filters.queue_ids) != 1:
            raise click.UsageError("--to-offset sets one queue: give it with --topic and --queue")
        if len(stores) > 1:
            raise click.UsageError(
                "--to-offset sets one queue of one store, but STORE is a cluster: give one of its stores"
            )
        return reset.reset_to(
            place, stores, {MessageQueue(topics[0], stores[0].broker_name, filters.queue_ids[0]): move.offset}
        )
    if filters.queue_ids:
        raise click.UsageError("--queue needs --to-offset; the other targets apply to whole topics")
    if move.copy_of is not None:
        return reset.copy_offsets(
            reset.group_place(move.copy_of, stores, kind=places["offset_store"], **paths),
            place,
            stores,
            topics,
        )
    if move.time is not None:
        return reset.reset_by_time(place, stores, typed_time_ms("--to-time", move.time), topics)
    return (reset.reset_to_earliest if move.earliest else reset.reset_to_latest)(place, stores, topics)


def _chosen_topics(stores: list[MessageStore], filters: MessageChoice) -> list[str]:
    known = known_topics(stores)
    refuse_unknown_topic(filters, known)
    return sorted(filter(filters.chooses_topic, known))

"""Consumer groups: `groups`, `lag`, and `offsets`, which also resets and copies offsets."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.completion import complete_group
from rmq_spark.cli.exit_codes import OK, PARTIAL, NotFoundError
from rmq_spark.cli.options import (
    Filters,
    broker_conf_option,
    filter_options,
    known_topics,
    now_option,
    store_argument,
)
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.view_rows import keep_where, show_batches, show_view
from store_format.display.text import shown
from store_format.names import did_you_mean

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
_LAG: tuple[str, ...] = (
    "group",
    "topic",
    "queueId",
    "committedOffset",
    "maxOffset",
    "lagMessages",
    "lagBytes",
    "lagMs",
    "lostMessages",
)
# Shown too if pop has messages in flight.
_LAG_OF_POP = (*_LAG[:6], "readyMessages", "inFlightMessages", "oldestPopTimestamp", *_LAG[6:])
_IN_FLIGHT = (
    "group",
    "topic",
    "queueId",
    "queueOffset",
    "deliveryAttempt",
    "popTimestamp",
    "visibleTimestamp",
    "owner",
    "source",
)
_LOST = (
    "group",
    "topic",
    "queueId",
    "committedOffset",
    "lostMessages",
    "nextLostMessages",
    "file",
    "expiresTimestamp",
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

_group_option = click.option(
    "-g",
    "--group",
    metavar="GLOB",
    shell_complete=complete_group,
    help="Groups, such as CG_orders or 'CG_*'.",
)


@click.command("groups")
@store_argument()
@now_option
@_group_option
@filter_options("limit")
@output_options()
def groups_(
    stores: list[MessageStore], now_ms: int, group: str | None, filters: Filters, output: Output
) -> int:
    """Consumer groups: settings, topics, lag, dead letters."""
    if not show_view(
        output,
        stores,
        "groups",
        _GROUPS,
        filters.without_topic(),
        now_ms=now_ms,
        keep=keep_where(group=group),
    ):
        _refuse_unknown(stores, group)
    return _what_is_unknown(stores)


@click.command("lag")
@store_argument()
@now_option
@broker_conf_option
@_group_option
@click.option(
    "--retention",
    is_flag=True,
    help="Show instead which unread messages retention deleted or will delete, and when.",
)
@click.option(
    "--in-flight",
    is_flag=True,
    help="Show instead each message that pop has handed out and that nobody has acknowledged.",
)
@filter_options("topic", "queue", "limit")
@output_options()
def lag_(
    stores: list[MessageStore],
    now_ms: int,
    broker_conf: str | None,
    group: str | None,
    retention: bool,
    in_flight: bool,
    filters: Filters,
    output: Output,
) -> int:
    """Consumer lag: messages, bytes, time.

    An unknown value is empty, never 0. --retention shows which groups lose messages before they read them,
    --in-flight which messages consumers that pop have, and when each becomes visible again.
    """
    if retention and in_flight:
        raise click.UsageError("--retention and --in-flight cannot be combined; use only one")
    view, columns = "lag", _LAG
    wider: tuple[str, tuple[str, ...]] | None = ("oldestPopTimestamp", _LAG_OF_POP)
    if retention:
        view, columns, wider = "retention", _LOST, None
    elif in_flight:
        view, columns, wider = "inFlight", _IN_FLIGHT, None
    keep = keep_where(group=group, topic=filters.topic)
    if not show_view(
        output,
        stores,
        view,
        columns,
        filters.without_topic(),
        now_ms=now_ms,
        broker_conf=broker_conf,
        keep=keep,
        wider=wider,
    ):
        _refuse_unknown(stores, group)
    return _what_is_unknown(stores)


def _what_is_unknown(stores: list[MessageStore]) -> int:
    """The exit code: PARTIAL, with a remark on stderr, if a store keeps offsets in RocksDB."""
    from store_format.errors import UnsupportedFormatError
    from store_format.metadata.group_offsets import refuse_foreign_offsets

    code = OK
    for store in stores:
        try:
            refuse_foreign_offsets(store.path)
        except UnsupportedFormatError as error:
            print(f"rmqlog: unknown: {shown(str(error).partition(';')[0])}", file=sys.stderr)
            code = PARTIAL
    return code


def _refuse_unknown(stores: list[MessageStore], group: str | None) -> None:
    """Raises NotFoundError if `--group` matches no group of the stores."""
    known = {str(name) for store in stores for name in store.view("groups")["group"].to_pylist()}
    keep = keep_where(group=group)
    if group is None or (keep is not None and any(keep.matches(name) for name in known)):
        return
    raise NotFoundError(f"no group is named {group!r}; {did_you_mean(group, sorted(known), 'groups')}")


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
                help="To the first message stored at or after: ISO 8601, ms since 1970, or -2h.",
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
    filters: Filters,
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
            filters.without_topic(),
            keep=keep_where(group=group, topic=filters.topic),
        ):
            _refuse_unknown(stores, group)
        return _what_is_unknown(stores)
    if group is None:
        raise click.UsageError("a reset needs a group: rmqlog offsets STORE GROUP")
    plan = _plan(stores, group, move, filters, places)
    show_batches(output, plan.table().to_batches(), plan.table().schema.names)
    if not apply_:
        print("rmqlog: nothing was changed; add --apply to write the new offsets", file=sys.stderr)
        return OK
    plan.apply()
    print(f"rmqlog: {len(plan.targets)} offsets of {shown(group)} written", file=sys.stderr)
    return OK


def _plan(
    stores: list[MessageStore], group: str, move: _Move, filters: Filters, places: dict[str, str | None]
) -> OffsetPlan:
    import os
    import time

    from rmq_spark.consume import reset
    from rmq_spark.consume.message_queue import MessageQueue
    from rmq_spark.options.parse import Given, timestamp_ms

    paths = {
        name: None if places[name] is None else os.path.abspath(str(places[name]))
        for name in ("offset_store_path", "group_path")
    }
    place = reset.group_place(group, stores, kind=places["offset_store"], **paths)
    topics = None if filters.topic is None else _chosen_topics(stores, filters)
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
        moment = timestamp_ms(Given("--to-time", move.time, time.time_ns() // 1_000_000))
        return reset.reset_by_time(place, stores, moment, topics)
    return (reset.reset_to_earliest if move.earliest else reset.reset_to_latest)(place, stores, topics)


def _chosen_topics(stores: list[MessageStore], filters: Filters) -> list[str]:
    known = known_topics(stores)
    filters.refuse_unknown_topic(known)
    return sorted(filter(filters.chooses_topic, known))

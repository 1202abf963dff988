"""Which consumer groups are behind: `lag`."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.cells import column_of
from rmq_spark.cli.completion import complete_column
from rmq_spark.cli.group_options import (
    group_options,
    no_rows_of_groups,
    refuse_unknown_group,
    say_unknown_losses,
    what_is_unknown,
)
from rmq_spark.cli.options import (
    broker_confs_option,
    filter_options,
    from_one_look,
    now_option,
    say_what_an_old_bak_lacks,
    store_argument,
    without_topic,
)
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import given_store, nothing, remark
from rmq_spark.cli.view_rows import (
    column_named,
    has_values,
    in_order,
    keep_where,
    show_batches,
    show_view,
    view_rows,
)
from store_format.display.text import shown
from store_format.display.units import size_text, unit_of, until_text
from store_format.errors import StoreError
from store_format.files import paths
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from store_format import MessageStore
    from store_format.metadata.broker_confs import BrokerConfs
    from store_format.metadata.values import TopicConfig

_LAG_OF_POP = ("lagMessages", "readyMessages", "inFlightMessages", "oldestPopTimestamp")
_BY_TOPIC: tuple[str, ...] = (
    "group",
    "topic",
    "lagMessages",
    "lagBytes",
    "lagMs",
    "lostMessages",
    "nextLostMessages",
    "expiresInMs",
)
_BY_QUEUE: tuple[str, ...] = (
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
_ORDERS: dict[str, tuple[tuple[str, str], ...]] = {
    "lag": (("lagMessages", "descending"),),
    "age": (("lagMs", "descending"),),
    "bytes": (("lagBytes", "descending"),),
    "lost": (("lostMessages", "descending"),),
    "loss": (
        ("", "ascending"),  # of `_with_deletions`
        ("nextLostMessages", "descending"),
        ("expiresTimestamp", "ascending"),
    ),
    "group": (("group", "ascending"), ("topic", "ascending")),
    "topic": (("topic", "ascending"), ("group", "ascending")),
}
# The order of rows that are equal in the column of --sort.
_THEN = (
    ("lagMessages", "descending"),
    ("lagMs", "descending"),
    ("group", "ascending"),
    ("topic", "ascending"),
    ("brokerName", "ascending"),
)


@click.command("lag")
@from_one_look
@store_argument()
@now_option
@broker_confs_option
@group_options
@click.option(
    "-l",
    "--queues",
    is_flag=True,
    help="One row for each queue instead of each topic; --queue and a column of queues imply it.",
)
@click.option(
    "--sort",
    metavar="NAME",
    default="lag",
    show_default=True,
    shell_complete=complete_column,
    help="The order: lag, age, bytes or lost, the worst first; loss, by the time of the next loss; group, "
    "topic or another column.",
)
@click.option(
    "--in-flight",
    is_flag=True,
    help="Show instead each message that pop has handed out and that nobody has acknowledged.",
)
@click.option("--retention", is_flag=True, hidden=True)
@filter_options("topic", "queue", "limit")
@output_options()
def lag_(
    stores: list[MessageStore],
    now_ms: int,
    broker_confs: BrokerConfs,
    group: str | None,
    all_groups: bool,
    queues: bool,
    sort: str,
    in_flight: bool,
    retention: bool,
    filters: MessageChoice,
    output: Output,
) -> int:
    """Consumer lag: which group is behind, and what it loses next.

    One row for each group and topic, the largest lag first: unread messages and their bytes, the age of the
    oldest, messages that retention has deleted unread, and those that it deletes next. An unknown value is
    empty, never 0. --in-flight shows the messages that consumers that pop have, and when each becomes visible
    again.

    \b
    rmqlog lag /data/store
    rmqlog lag /data/store --sort loss
    rmqlog lag /data/store -l -g CG_orders
    """
    if retention:
        raise click.UsageError("--retention is a command now: rmqlog retention STORE")
    keep = keep_where(group=group, topic=filters.glob, all_groups=all_groups)
    filters = without_topic(filters)
    if in_flight:
        if show_view(output, stores, "inFlight", _IN_FLIGHT, filters, now_ms=now_ms, keep=keep):
            return what_is_unknown(stores, group)
        refuse_unknown_group(stores, group)
        return what_is_unknown(stores, group) or nothing("no message is in flight with pop")
    queues = queues or bool(filters.queue_ids) or _names_queues((*output.columns, sort))
    if queues and sort.lower() == "loss":
        raise click.UsageError("--sort loss needs the rows of topics; leave out --queues and --queue")
    view, shown_columns = ("lag", _BY_QUEUE) if queues else ("lagByTopic", _BY_TOPIC)
    found = view_rows(stores, view, filters, now_ms=now_ms, broker_confs=broker_confs, keep=keep)
    first = _ORDERS.get(sort.lower()) or _order_of(
        column_named(sort, _names(view), shown_columns, option="--sort")
    )
    if sort.lower() == "loss":
        found = _with_deletions(found, stores, now_ms, broker_confs)
    order = dict([*first, *_THEN, *([("queueId", "ascending")] if queues else [])])
    batches = in_order(found, list(order.items()))
    if has_values(batches, "oldestPopTimestamp"):
        at = shown_columns.index("lagMessages")
        shown_columns = (*shown_columns[:at], *_LAG_OF_POP, *shown_columns[at + 1 :])
    if not show_batches(output, batches, _names(view), shown_columns, limit=filters.limit):
        return no_rows_of_groups(stores, group)
    _warn_of_lost_end(batches)
    _say_what_consumers_do_not_read(stores, {name for each in batches for name in each["topic"].to_pylist()})
    _say_what_streams_hold_back(stores)
    say_what_an_old_bak_lacks(stores)
    if not queues and output.form == "table":
        _warn_of_loss(batches)
    return what_is_unknown(stores, group)


def _with_deletions(
    batches: Iterable[pa.RecordBatch], stores: list[MessageStore], now_ms: int, broker_confs: BrokerConfs
) -> Iterator[pa.RecordBatch]:
    """The rows of topics with one column more, without a name: when the next loss is deleted, in ms."""
    import pyarrow as pa

    from store_format.bookkeeping.settings import broker_conf_of
    from store_format.views.retention import deletion_ms

    confs = {
        store.broker_name: broker_conf_of(store.opened, broker_confs.of(store.broker_name))
        for store in stores
    }
    for batch in batches:
        expiry = batch["expiresTimestamp"].cast(pa.int64()).to_pylist()
        deletions = [
            None
            if expires_us is None
            else deletion_ms(expires_us // 1_000, now_ms, confs[name], None, is_any_hour=False)
            for name, expires_us in zip(batch["brokerName"].to_pylist(), expiry, strict=True)
        ]
        yield batch.append_column("", pa.array(deletions, pa.int64()))


def _names(view: str) -> list[str]:
    from store_format.views.registry import view_named

    names: list[str] = view_named(view).schema.names
    return names


def _names_queues(named: Sequence[str]) -> bool:
    """Whether a name of `--columns` or `--sort` is that of a column that only the rows of queues have."""
    by_topic, by_queue = _names("lagByTopic"), _names("lag")
    return any(column_of(name, by_queue) and not column_of(name, by_topic) for name in named)


def _order_of(column: str) -> tuple[tuple[str, str], ...]:
    """Amounts and ages: the largest first. All other columns ascend, times and the time until them, too."""
    is_amount = unit_of(column) is not None and not column.endswith("InMs")
    return ((column, "descending" if is_amount else "ascending"),)


def _warn_of_lost_end(batches: list[pa.RecordBatch]) -> None:
    """Says which groups have read messages that the store does not have any more, at its end."""
    groups = {
        group
        for batch in batches
        for group, lag in zip(batch["group"].to_pylist(), batch["lagMessages"].to_pylist(), strict=True)
        if lag is not None and lag < 0
    }
    if groups:
        names = shown(", ".join(sorted(groups)))
        remark(
            f"committed offsets of {names} lie beyond the end of the queues (lag below 0): the store has "
            f"lost its last messages; check with rmqlog verify {given_store()}"
        )


def _say_what_consumers_do_not_read(stores: list[MessageStore], topics: set[str]) -> None:
    """Says which messages count as unread though no consumer asks for them."""
    from store_format.metadata.read import read_topics

    for store in stores:
        with suppress(StoreError):  # who needs the files raises the error
            configs: Mapping[str, TopicConfig] = read_topics(store.opened) or {}
            most: dict[str, int] = {}
            for queue in store.queues((topics & configs.keys()).__contains__):
                if queue.max_offset > queue.min_offset:
                    most[queue.topic] = max(most.get(queue.topic, 0), queue.queue_id + 1)
            for topic in sorted(most):
                readable = configs[topic].read_queue_nums
                if readable < most[topic]:
                    remark(
                        f"consumers do not read the queues {readable} to {most[topic] - 1} of {shown(topic)} "
                        f"(readQueueNums={readable} in topics.json): their messages count as unread here. To "
                        f"have them consumed: mqadmin updateTopic -r {most[topic]}"
                    )


def _say_what_streams_hold_back(stores: list[MessageStore]) -> None:
    """Says how many bytes of copies on object storage a stream leaves for later, as its progress does."""
    held = sum(store.log.held_bytes for store in stores if paths.is_remote(store.path))
    if held:
        remark(
            f"the last commitlog file still grows: {size_text(held)}, whose messages count here, and which a "
            "stream reads once another file follows ($held in its progress; includeLastFile=false)"
        )


def _warn_of_loss(batches: list[pa.RecordBatch]) -> None:
    """Says which group is the next to lose messages, and the command that shows more."""
    pairs = [
        pair
        for batch in batches
        for pair in zip(batch["expiresInMs"].to_pylist(), batch["group"].to_pylist(), strict=True)
        if pair[0] is not None
    ]
    if not pairs:
        return
    soonest, groups = min(pairs)[0], sorted({group for _, group in pairs})
    say_unknown_losses(batches, "expiresInMs")
    who = shown(groups[0]) if len(groups) == 1 else f"{len(groups)} groups"
    when = "have expired" if soonest <= 0 else f"expire {until_text(soonest)}"
    remark(
        f"unread messages of {who} {when}, and are deleted at the next deleteWhen: rmqlog retention "
        f"{given_store()}"
    )

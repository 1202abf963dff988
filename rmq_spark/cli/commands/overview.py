"""What is in a store: `info`, `ls`, `du`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.completion import complete_view
from rmq_spark.cli.exit_codes import OK
from rmq_spark.cli.group_options import lost_count
from rmq_spark.cli.options import (
    broker_confs_option,
    filter_options,
    from_one_look,
    known_topics,
    now_option,
    refuse_unknown_topic,
    refuse_what_no_store_has,
    say_compacted,
    say_what_an_old_bak_lacks,
    store_argument,
)
from rmq_spark.cli.output import Output, Verdict, output_options, write_records, write_verdict
from rmq_spark.cli.remarks import given_store, nothing, remark
from rmq_spark.cli.view_rows import filtered, show_batches, show_view
from store_format.display.text import shown
from store_format.display.units import count_text
from store_format.names import LMQ_PREFIX
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore
    from store_format.metadata.broker_confs import BrokerConfs

_LS_TOPICS = (
    "brokerName",
    "topic",
    "perm",
    "queueType",
    "queues",
    "messages",
    "bytes",
    "firstStoreTimestamp",
    "lastStoreTimestamp",
)
_LS_QUEUES = (
    "brokerName",
    "topic",
    "queueId",
    "minOffset",
    "maxOffset",
    "messages",
    "bytes",
    "firstStoreTimestamp",
    "lastStoreTimestamp",
)
_FILES = (
    "kind",
    "file",
    "start",
    "stop",
    "entries",
    "sizeBytes",
    "usedBytes",
    "diskBytes",
    "fill",
    "modified",
)


@click.command("info")
@from_one_look
@store_argument()
@click.option(
    "--view",
    metavar="NAME",
    shell_complete=complete_view,
    help="Show this view instead: files, index, checkpoint, retention, …",
)
@now_option
@broker_confs_option
@output_options()
def info_(
    stores: list[MessageStore], view: str | None, now_ms: int, broker_confs: BrokerConfs, output: Output
) -> int:
    """Summary of a store: broker, state, files, topics, messages.

    \b
    rmqlog info /data/store
    rmqlog info /data/store --view files

    The views retention and delayed use the settings of --broker-conf.
    """
    if view is not None:
        name = _view_name(view)
        if not show_view(output, stores, name, now_ms=now_ms, broker_confs=broker_confs):
            return nothing(f"the view {name} has no rows")
        return OK
    from store_format.display.columns import BROKER, INT, LONG, TEXT, TIME, ViewColumn, batch_of, schema_of

    columns = (
        BROKER,
        ViewColumn("path", TEXT, "The store root."),
        ViewColumn("state", TEXT, "`clean`, `live` (a process holds the lock) or `crashed`."),
        ViewColumn("kinds", TEXT, "Which kinds of files it has (docs/stores.md): `plain`, or `DLedger`, …"),
        ViewColumn("minPhysicalOffset", LONG, "First byte of the commitlog."),
        ViewColumn("commitLogFiles", INT, "Number of commitlog files."),
        ViewColumn("commitLogBytes", LONG, "Length of the commitlog files."),
        ViewColumn("topics", INT, "Topics with queues on disk."),
        ViewColumn("queues", INT, "Queues of these topics."),
        ViewColumn("messages", LONG, "Queue offsets with a message, not checked; with system topics."),
        ViewColumn("bytes", LONG, "Bytes of these messages in the commitlog."),
        ViewColumn(
            "groups",
            INT,
            "Consumer groups that are configured or have offsets; null if the broker keeps them in RocksDB.",
        ),
        ViewColumn("firstStoreTimestamp", TIME, "When the oldest message was stored."),
        ViewColumn("lastStoreTimestamp", TIME, "When the newest message was stored."),
    )
    batch = batch_of(columns, [_summary(store) for store in stores])
    if output.form == "table" and not output.columns:
        write_records(output, [batch], batch.schema.names)
        print()
        for store, messages in zip(stores, batch["messages"].to_pylist(), strict=True):
            write_verdict(output, _verdict(store, messages, is_one_of_several=output.several_stores))
    else:
        show_batches(output, [batch], schema_of(columns).names)
    say_compacted(stores)
    return OK


def _summary(store: MessageStore) -> Sequence[object]:
    import pyarrow.compute as pc

    from store_format.diagnose.files import kinds_of
    from store_format.errors import StorePermissionError
    from store_format.metadata.group_offsets import read_committed
    from store_format.metadata.read import read_subscription_groups

    queues = store.view("queues")
    try:
        configured, committed = (
            read_subscription_groups(store.opened),
            {group for group, _ in read_committed(store.opened).pairs()},
        )
    except StorePermissionError as error:
        store.pass_over([error])
        configured, committed = None, set()
    groups = None if configured is None and not committed else len(set(configured or ()) | committed)
    # the messages of light queues are stored, and counted, under other topics
    own = queues.filter(pc.invert(pc.starts_with(queues["topic"], LMQ_PREFIX)))
    times = [
        pc.min(queues["firstStoreTimestamp"].cast("int64")).as_py(),
        pc.max(queues["lastStoreTimestamp"].cast("int64")).as_py(),
    ]
    kinds = ", ".join(kinds_of(store)) or "plain"
    return (
        store.broker_name, store.path, store.state.value, kinds, store.log.min_offset, len(store.log.files),
        sum(file.size for file in store.log.files), len(set(queues["topic"].to_pylist())), queues.num_rows,
        pc.sum(queues["messages"]).as_py() or 0, pc.sum(own["bytes"]).as_py() or 0, groups, *times,
    )  # fmt: skip


def _verdict(store: MessageStore, messages: int, *, is_one_of_several: bool) -> Verdict:
    """How the store was left, and the next command. No file is checked: that is `verify`."""
    from store_format.bookkeeping.journal import StoreState
    from store_format.bookkeeping.ledger import GivenUp
    from store_format.commitlog.dledger import GROUP_RECOVERS
    from store_format.files.lock import StoreLock
    from store_format.survey.log_end import ReadableEnd

    path = shlex.quote(shown(store.path))
    broker = f"{shown(store.broker_name)}: " if is_one_of_several else ""
    readable = f"{count_text(messages)} messages (offsets, not checked)"
    if store.state is StoreState.LIVE:
        holder = StoreLock.holder(f"{store.path}/lock")
        return Verdict(f"{broker}in use by process {holder}: {readable}", f"rmqlog lag {path}")
    if store.state is StoreState.CLEAN:
        given_up = str(GivenUp.read(store.opened))
        before = f"; an earlier recovery gave up {given_up}" if given_up else ""
        lost = lost_count(store)
        if lost:
            readable += f", {lost} lost with missing parts of the commitlog"
        text = f"{broker}stopped in order: {readable}{before}"
        return Verdict(text, f"rmqlog verify {path}", is_bad=bool(lost))
    end = ReadableEnd.after_crash(store.opened, store.log)
    cut = f"a broker start will end the commitlog behind them, at {end.cut}"
    if store.log.has_heads:
        cut = GROUP_RECOVERS
    elif end.messages:
        whole = f"{count_text(end.messages)} whole messages"
        cut = f"a broker start will cut the commitlog at {end.cut}, with {whole} behind it"
        damaged = f"{count_text(end.damage_bytes)} damaged bytes"
        readable = f"{count_text(messages)} messages, less those in {damaged}"
    return Verdict(f"{broker}crashed: {readable}; {cut}", f"rmqlog verify {path}", is_bad=True)


def _view_name(name: str) -> str:
    from store_format.views.registry import VIEWS, view_named

    by_lower = {view.name.lower(): view.name for view in VIEWS}
    return view_named(by_lower.get(name.lower(), name)).name


@click.command("ls")
@from_one_look
@store_argument()
@click.option("-l", "--queues", is_flag=True, help="One row for each queue instead of each topic.")
@filter_options("topics", "all", "queue", "limit")
@output_options()
def ls_(stores: list[MessageStore], queues: bool, filters: MessageChoice, output: Output) -> int:
    """Topics, or queues with -l: messages, bytes, times.

    \b
    rmqlog ls /data/store
    rmqlog ls /data/store -l --topic 'Order*'
    """
    refuse_what_no_store_has(filters, stores)
    queues = queues or bool(filters.queue_ids)
    rows = show_view(
        output, stores, "queues" if queues else "topics", _LS_QUEUES if queues else _LS_TOPICS, filters
    )
    if not rows:
        return nothing(f"no {'queue' if queues else 'topic'} matches; --all includes system topics")
    say_what_an_old_bak_lacks(stores)
    say_compacted(stores)
    if output.form == "table":
        remark(f"messages: offsets, not checked; to check them: rmqlog verify {given_store()}")
    return OK


@click.command("du")
@from_one_look
@store_argument()
@click.option(
    "--by",
    type=click.Choice(["topic", "day", "both"]),
    default="topic",
    show_default=True,
    help="Group the bytes by this. Days are in UTC, whatever --tz is.",
)
@click.option("--files", is_flag=True, help="Show the files instead: length, fill level, size on disk.")
@filter_options("topics", "limit")
@output_options()
def du_(stores: list[MessageStore], by: str, files: bool, filters: MessageChoice, output: Output) -> int:
    """Disk usage: bytes by topic or day.

    The largest comes first; the sum is the written part of the commitlog.
    The row without a topic counts bytes of no queue: padding, deleted topics, undecided messages, damage.
    """
    if files:
        if filters.has_topics:
            raise click.UsageError(
                "--topic cannot be used with --files: most files hold messages of all topics"
            )
        if not show_view(output, stores, "files", _FILES, replace(filters, include_system_topics=True)):
            return nothing("the store has no files")
        return OK
    from store_format.views.registry import view_named

    batches: list[pa.RecordBatch] = [batch for store in stores for batch in store.view("usage").to_batches()]
    if filters.has_topics:
        refuse_unknown_topic(filters, known_topics(stores) | _topics_of(batches))
        batches = list(filtered(batches, filters, None))
    names = ("topic", "day") if by == "both" else (by,)
    table = _summed(batches, ("brokerName", *names), view_named("usage").schema)
    if not show_batches(output, table.to_batches(), table.schema.names, limit=filters.limit):
        return nothing("the store has no messages of such a topic; --topic '*' includes system topics")
    if "day" in names:
        remark("the days are in UTC")
    return OK


def _topics_of(batches: list[pa.RecordBatch]) -> set[str]:
    return {topic for batch in batches for topic in batch["topic"].to_pylist() if topic}


# Any: a schema of pyarrow, which has no types
def _summed(batches: list[pa.RecordBatch], by: Sequence[str], schema: Any) -> pa.Table:
    import pyarrow as pa

    table = (
        pa.Table.from_batches(batches, schema)
        .group_by(list(by), use_threads=False)
        .aggregate([("messages", "sum"), ("bytes", "sum")])
    )
    table = table.select([*by, "messages_sum", "bytes_sum"]).rename_columns([*by, "messages", "bytes"])
    return table.sort_by([("bytes", "descending"), *((name, "ascending") for name in by)])

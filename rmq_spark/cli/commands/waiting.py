"""The life of a message, and messages that wait: `trace`, `dlq`, `delay`, `half`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.exit_codes import NotFoundError
from rmq_spark.cli.options import Filters, broker_conf_option, filter_options, now_option, store_argument
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.view_rows import keep_where, show_batches, show_view

if TYPE_CHECKING:
    from store_format import MessageStore

_DLQ = (
    "group",
    "originTopic",
    "storeTimestamp",
    "reconsumeTimes",
    "tags",
    "keys",
    "msgId",
    "queueId",
    "queueOffset",
)
_DELAY = ("kind", "state", "dueTimestamp", "topic", "queueId", "delayLevel", "tags", "keys", "msgId")
_HALF = (
    "state",
    "topic",
    "queueId",
    "producerGroup",
    "ageMs",
    "checkTimes",
    "firstStoreTimestamp",
    "decidedTimestamp",
    "msgId",
)
_DECISIONS = ("decision", "state", "topic", "queueId", "producerGroup", "halfQueueOffset", "msgId")
_TRACE = ("time", "what", "topic", "queueId", "queueOffset", "physicalOffset", "group", "detail")
_STATES = ("pending", "committed", "rolled back", "discarded", "decided", "unknown")


@click.command("trace")
@store_argument()
@click.argument("id", metavar="ID")
@output_options()
def trace_(stores: list[MessageStore], id: str, output: Output) -> None:
    """The life of a message as a timeline.

    Shows its copies, retries, dead letter, delayed or half form, the clients' trace, and the groups whose
    offsets are past it.

    \b
    rmqlog trace /data/store 7F0000010A1B18B4AAC20000000A0001
    """
    from store_format.views.trace import TRACE_COLUMNS

    batches = [batch for store in stores for batch in store.trace(id).to_batches()]
    if not show_batches(output, batches, [column.name for column in TRACE_COLUMNS], _TRACE):
        raise NotFoundError(f"no message has the id {id!r}")


@click.command("dlq")
@store_argument()
@click.option("-g", "--group", metavar="GLOB", help="Dead letters of these groups, such as 'CG_*'.")
@filter_options("topic", "tag", "key", "since", "until", "limit")
@output_options()
def dlq_(stores: list[MessageStore], group: str | None, filters: Filters, output: Output) -> None:
    """Dead letters, with their original topics.

    --topic is the original topic; --since and --until are the time of becoming a dead letter.
    """
    keep = keep_where(group=group, topic_column="originTopic", topic=filters.topic)
    show_view(
        output, stores, "deadLetters", _DLQ, filters.without_topic(), time_column="storeTimestamp", keep=keep
    )


@click.command("delay")
@store_argument()
@now_option
@broker_conf_option
@filter_options("topic", "queue", "tag", "key", "since", "until", "limit")
@output_options()
def delay_(
    stores: list[MessageStore], now_ms: int, broker_conf: str | None, filters: Filters, output: Output
) -> None:
    """Delayed messages that wait for delivery.

    They wait at a delay level or in the timer. --topic is the topic of delivery; --since and --until are the
    time of delivery. If a consume queue is missing, the default delays (messageDelayLevel) are assumed.
    """
    keep = keep_where(topic=filters.topic)
    show_view(
        output,
        stores,
        "delayed",
        _DELAY,
        filters.without_topic(),
        now_ms=now_ms,
        broker_conf=broker_conf,
        time_column="dueTimestamp",
        keep=keep,
    )


@click.command("half")
@store_argument()
@now_option
@broker_conf_option
@click.option("--state", type=click.Choice(_STATES), help="Transactions in this state, such as pending.")
@click.option(
    "--commit", metavar="ID", multiple=True, help="Commit the half message with this msgId; repeatable."
)
@click.option(
    "--rollback", metavar="ID", multiple=True, help="Roll back the half message with this msgId; repeatable."
)
@click.option("--apply", "apply_", is_flag=True, help="Write the decisions; without --apply only show them.")
@filter_options("topic", "queue", "since", "until", "limit")
@output_options()
def half_(
    stores: list[MessageStore],
    now_ms: int,
    broker_conf: str | None,
    state: str | None,
    commit: tuple[str, ...],
    rollback: tuple[str, ...],
    apply_: bool,
    filters: Filters,
    output: Output,
) -> None:
    """Half messages: each transaction, its state and age; commit or roll back.

    --topic is the topic of the transaction; --since and --until are the time of the first half message.

    --commit and --rollback decide transactions. The decisions are only shown; --apply writes them, which is
    refused while a broker runs on the store.

    \b
    rmqlog half /data/store --state pending
    rmqlog half /data/store --commit 7F0000010A1B18B4AAC20000000A0001
    rmqlog half /data/store --commit 7F0000010A1B18B4AAC20000000A0001 --apply
    """
    if commit or rollback:
        if state is not None or filters != Filters(limit=filters.limit):
            raise click.UsageError(
                "--commit and --rollback name the half messages; leave out --state and the filters"
            )
        _decide(stores, broker_conf, (commit, rollback), apply_, output)
        return
    if apply_:
        raise click.UsageError("--apply needs a decision: --commit ID or --rollback ID")
    keep = keep_where(topic=filters.topic, state=state)
    show_view(
        output,
        stores,
        "transactions",
        _HALF,
        filters.without_topic(),
        now_ms=now_ms,
        time_column="firstStoreTimestamp",
        keep=keep,
    )


def _decide(
    stores: list[MessageStore],
    broker_conf: str | None,
    ids: tuple[tuple[str, ...], tuple[str, ...]],
    apply_: bool,
    output: Output,
) -> None:
    from rmq_spark.services.decisions import COMMIT, ROLLBACK, HalfName
    from rmq_spark.services.transaction import plan_decisions
    from rmq_spark.services.turn import now_of

    wanted = [
        (HalfName(msg_id=each), decision)
        for decision, names in zip((COMMIT, ROLLBACK), ids, strict=True)
        for each in names
    ]
    plan = plan_decisions(stores, wanted, now_of(stores[0].path, None, broker_conf))
    table = plan.table()
    show_batches(output, table.to_batches(), table.schema.names, _DECISIONS)
    if not apply_:
        print("rmqlog: nothing was changed; add --apply to write the decisions", file=sys.stderr)
        return
    print(f"rmqlog: {plan.apply()} decisions written", file=sys.stderr)

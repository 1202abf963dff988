"""Messages that wait, and those given up: `dlq`, `delay`, `half`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.completion import complete_group
from rmq_spark.cli.exit_codes import OK, PARTIAL, NotFoundError
from rmq_spark.cli.group_options import refuse_unknown_group
from rmq_spark.cli.options import (
    broker_confs_option,
    filter_options,
    from_one_look,
    now_option,
    store_argument,
    without_topic,
)
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import nothing, remark
from rmq_spark.cli.repeated import globs_of
from rmq_spark.cli.view_rows import (
    column_named,
    keep_where,
    show_batches,
    show_view,
    wants_bodies,
    with_body_option,
)
from store_format.display.text import shown
from store_format.errors import StoreError
from store_format.names import DLQ_PREFIX, dead_letter_topic, did_you_mean
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    from rmq_spark.broker import retry
    from store_format import MessageStore
    from store_format.metadata.broker_confs import BrokerConfs

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
_RESEND = (
    "group",
    "originTopic",
    "targetTopic",
    "resent",
    "storeTimestamp",
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
    "keys",
    "msgId",
)
_DECISIONS = ("decision", "state", "topic", "queueId", "producerGroup", "halfQueueOffset", "msgId")
_STATES = ("pending", "committed", "rolled back", "discarded", "decided", "unknown")


@click.command("dlq")
@from_one_look
@store_argument()
@click.option(
    "-g",
    "--group",
    metavar="GLOB",
    shell_complete=complete_group,
    help="Dead letters of these groups, such as 'CG_*'.",
)
@click.option("--resend", is_flag=True, help="Store the dead letters of one group again, as new messages.")
@click.option("--to", metavar="TOPIC", help="With --resend: the topic, by default the original topics.")
@click.option(
    "--apply", "apply_", is_flag=True, help="Write the messages; without --apply they are only shown."
)
@with_body_option
@filter_options("topics", "tag", "key", "since", "until", "limit")
@output_options(raw=True)
def dlq_(
    stores: list[MessageStore],
    group: str | None,
    resend: bool,
    to: str | None,
    apply_: bool,
    with_body: bool,
    filters: MessageChoice,
    output: Output,
) -> int:
    """Dead letters; with --resend, store them again.

    --topic is the original topic; --since and --until are the time of becoming a dead letter.

    With --resend, the dead letters go to their original topics, where every group reads them again; with --to
    %RETRY%GROUP, only the group reads them again. They are only shown; --apply writes them, which is refused
    while a broker runs on the store. Each dead letter is stored again once.

    \b
    rmqlog dlq /data/store -g CG_orders --with-body -o jsonl --body-form json
    rmqlog dlq /data/store -g CG_orders --key A-17 --resend
    rmqlog dlq /data/store -g CG_orders --key A-17 --resend --apply
    """
    body_at = "physicalOffset" if wants_bodies(output, with_body) else None
    if resend:
        if body_at is not None:
            raise click.UsageError("--resend shows no bodies; leave out --with-body and -o raw")
        return _resend(stores, group, to, apply_, filters, output)
    if to is not None or apply_:
        raise click.UsageError(f"{'--apply' if apply_ else '--to'} needs --resend")
    count = show_view(
        replace(output, searched=frozenset(("reconsumeTimes", "tags", "keys"))),
        stores,
        "deadLetters",
        _DLQ,
        without_topic(filters),
        time_column="storeTimestamp",
        keep=keep_where(group=group, topic_column="originTopic", topic=globs_of(filters)),
        body_at=body_at,
    )
    if not count:
        refuse_unknown_group(stores, group, _groups_with_dead_letters(stores))
        return nothing(f"no dead letters match{_hint(stores, filters)}")
    return OK


def _hint(stores: list[MessageStore], filters: MessageChoice) -> str:
    """The end of the sentence that no row has `--key`; see `hint_of_nothing`."""
    from rmq_spark.cli.hints import hint_of_nothing

    return "" if filters.key is None else hint_of_nothing(stores, MessageChoice(key=filters.key))


def _groups_with_dead_letters(stores: list[MessageStore]) -> set[str]:
    topics = {topic for store in stores for topic in store.topics()}
    return {topic.removeprefix(DLQ_PREFIX) for topic in topics if topic.startswith(DLQ_PREFIX)}


def _resend(
    stores: list[MessageStore],
    group: str | None,
    to: str | None,
    apply_: bool,
    filters: MessageChoice,
    output: Output,
) -> int:
    from rmq_spark.broker import retry

    if group is None:
        raise click.UsageError("--resend needs a group: rmqlog dlq STORE --group GROUP --resend")
    topic = dead_letter_topic(group)
    having = [store for store in stores if topic in store.topics()]
    if not having:
        groups = sorted(_groups_with_dead_letters(stores))
        raise NotFoundError(
            f"group {group!r} has no dead letters; {did_you_mean(group, groups, 'groups with dead letters')}"
        )
    if len(globs_of(filters)) > 1:
        raise click.UsageError("--resend takes one --topic; run the command for each topic")
    plans, left = [], filters.limit
    for store in having:
        where = retry.Where(
            keys=() if filters.key is None else (filters.key,),
            topic=filters.glob,
            tags=tuple(filters.tags or ()),
            since_ms=filters.since_ms,
            until_ms=filters.until_ms,
            limit=left,
        )
        plans.append(retry.resend(store, group, where=where, to=to))
        left = None if left is None else left - len(plans[-1].rows)
    left_out = [reason for plan in plans for reason in plan.left]
    for reason in left_out:
        remark(f"left out: {reason}")
    names = plans[0].table().schema.names
    for name in output.columns:
        column_named(name, names, _RESEND)  # an unknown column is an error before anything is written
    due, already = sum(plan.due for plan in plans), sum(len(plan.rows) - plan.due for plan in plans)
    done = f"nothing was written; add --apply to store {_letters(due)} of {shown(group)} again" + (
        f"; {already} were stored again before" if already else ""
    )
    code = OK
    if apply_ and due + already:
        code, done = _apply_all(plans, group)
        plans = [plan.with_progress() for plan in plans]
    batches = [batch for plan in plans for batch in plan.table().to_batches()]
    if not show_batches(output, batches, names, _RESEND):
        return PARTIAL if left_out else nothing(f"no dead letters match{_hint(stores, filters)}")
    remark(done)
    return max(code, PARTIAL if left_out else OK)


def _apply_all(plans: Sequence[retry.ResendPlan], group: str) -> tuple[int, str]:
    """Applies the plan of each store. Returns the exit code, and the sentence that says what was stored,
    before an error, too.
    """
    from rmq_spark.broker import PartsFailedError

    resent = already = 0
    try:
        for plan in plans:
            done = plan.apply()
            resent, already = resent + done.resent, already + done.already
    except StoreError as error:
        resent += error.done if isinstance(error, PartsFailedError) else 0
        if not resent:
            raise
        return PARTIAL, (
            f"{_letters(resent)} of {shown(group)} stored again, then failed: {error}; run the "
            "command again for the others"
        )
    return OK, f"{_letters(resent)} of {shown(group)} stored again, {already} were before"


def _letters(count: int) -> str:
    return f"{count} dead letter{'s' * (count != 1)}"


@click.command("delay")
@from_one_look
@store_argument()
@now_option
@broker_confs_option
@with_body_option
@filter_options("topics", "queue", "tag", "key", "since", "until", "limit")
@output_options(raw=True)
def delay_(
    stores: list[MessageStore],
    now_ms: int,
    broker_confs: BrokerConfs,
    with_body: bool,
    filters: MessageChoice,
    output: Output,
) -> int:
    """Delayed messages that wait for delivery.

    They wait at a delay level or in the timer. --topic is the topic of delivery; --since and --until are the
    time of delivery. If a consume queue is missing, the default delays (messageDelayLevel) are assumed.
    """
    count = show_view(
        output,
        stores,
        "delayed",
        _DELAY,
        without_topic(filters),
        now_ms=now_ms,
        broker_confs=broker_confs,
        time_column="dueTimestamp",
        keep=keep_where(topic=globs_of(filters)),
        body_at="physicalOffset" if wants_bodies(output, with_body) else None,
    )
    return OK if count else nothing(f"no delayed messages match{_hint(stores, filters)}")


@click.command("half")
@from_one_look
@store_argument()
@now_option
@broker_confs_option
@click.option("--state", type=click.Choice(_STATES), help="Transactions in this state, such as pending.")
@click.option(
    "--commit", metavar="ID", multiple=True, help="Commit the half message with this msgId; repeatable."
)
@click.option(
    "--rollback", metavar="ID", multiple=True, help="Roll back the half message with this msgId; repeatable."
)
@click.option("--apply", "apply_", is_flag=True, help="Write the decisions; without --apply only show them.")
@with_body_option
@filter_options("topics", "queue", "key", "since", "until", "limit")
@output_options(raw=True)
def half_(
    stores: list[MessageStore],
    now_ms: int,
    broker_confs: BrokerConfs,
    state: str | None,
    commit: tuple[str, ...],
    rollback: tuple[str, ...],
    apply_: bool,
    with_body: bool,
    filters: MessageChoice,
    output: Output,
) -> int:
    """Half messages of transactions; commit or roll back.

    --topic is the topic of the transaction; --since and --until are the time of the first half message.

    --commit and --rollback decide transactions. The decisions are only shown; --apply writes them, which is
    refused while a broker runs on the store.

    \b
    rmqlog half /data/store --state pending
    rmqlog half /data/store --commit 7F0000010A1B18B4AAC20000000A0001
    rmqlog half /data/store --commit 7F0000010A1B18B4AAC20000000A0001 --apply
    """
    body_at = "halfPhysicalOffset" if wants_bodies(output, with_body) else None
    if commit or rollback:
        if body_at is not None:
            raise click.UsageError("a decision shows no bodies; leave out --with-body and -o raw")
        if state is not None or filters != MessageChoice(limit=filters.limit):
            raise click.UsageError(
                "--commit and --rollback name the half messages; leave out --state and the filters"
            )
        return _decide(stores, broker_confs, commit, rollback, apply_, output)
    if apply_:
        raise click.UsageError("--apply needs a decision: --commit ID or --rollback ID")
    count = show_view(
        output,
        stores,
        "transactions",
        _HALF,
        without_topic(filters),
        now_ms=now_ms,
        time_column="firstStoreTimestamp",
        keep=keep_where(topic=globs_of(filters), state=state),
        body_at=body_at,
    )
    return OK if count else nothing("no half messages match")


def _decide(
    stores: list[MessageStore],
    broker_confs: BrokerConfs,
    commit: Sequence[str],
    rollback: Sequence[str],
    apply_: bool,
    output: Output,
) -> int:
    from rmq_spark.broker import PartsFailedError, transaction

    conf = broker_confs.of(stores[0].broker_name)
    plan = transaction.decide(stores, commit=commit, rollback=rollback, broker_conf=conf)
    table = plan.table()
    show_batches(output, table.to_batches(), table.schema.names, _DECISIONS)
    if not apply_:
        remark("nothing was changed; add --apply to write the decisions")
        return OK
    try:
        remark(f"{_decisions(plan.apply())} written")
    except PartsFailedError as error:
        remark(
            f"{_decisions(error.done)} written, then failed: {error}; run the command again for the others"
        )
        return PARTIAL
    return OK


def _decisions(count: int) -> str:
    return f"{count} decision{'s' * (count != 1)}"

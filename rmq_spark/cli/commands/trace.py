"""The life of a message, or of all messages with a key: `trace`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.address import parse_address, read_address, refuse_near_address
from rmq_spark.cli.cells import BOLD, painted
from rmq_spark.cli.exit_codes import NotFoundError
from rmq_spark.cli.options import (
    filter_options,
    from_one_look,
    known_topics,
    refuse_unknown_topic,
    store_argument,
)
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import given_store, remark
from rmq_spark.cli.view_rows import show_batches
from store_format.display.text import shown
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore

_TRACE = ("time", "what", "topic", "queueId", "queueOffset", "physicalOffset", "group", "detail")
_TRACED_MAX = 20


@click.command("trace")
@from_one_look
@store_argument()
@click.argument("id", metavar="[ID]", required=False)
@filter_options("topic", "key", "limit", limit=_TRACED_MAX)
@output_options()
def trace_(stores: list[MessageStore], id: str | None, filters: MessageChoice, output: Output) -> None:
    """The life of a message as a timeline.

    Shows its copies, retries, dead letter, delayed or half form, the clients' trace, and the groups whose
    offsets are past it. With --key, or a key in the place of ID, the timelines of all messages that have the
    key, one after the other; --topic and -n (20) choose among these messages.

    \b
    rmqlog trace /data/store 7F0000010A1B18B4AAC20000000A0001
    rmqlog trace /data/store Orders/2@100
    rmqlog trace /data/store --key order-1234
    """
    from store_format.views.trace import TRACE_COLUMNS

    names = [column.name for column in TRACE_COLUMNS]
    if (id is None) == (filters.key is None):
        raise click.UsageError("trace needs an id or --key KEY, and not both")
    if id is not None:
        if filters.glob is not None:
            raise click.UsageError("--topic needs --key")
        address = parse_address(id)
        if address is not None:
            id = read_address(stores, address, ("msgId",))[0]["msgId"][0].as_py()
        else:
            refuse_near_address(id, lambda: known_topics(stores))
        batches = [batch for store in stores for batch in store.trace(id).to_batches()]
        if not _is_only_a_key(batches):
            if not show_batches(output, batches, names, _TRACE):
                from rmq_spark.cli.hints import hint_of_nothing

                raise NotFoundError(
                    f"no message has the id or key {id!r}{hint_of_nothing(stores, filters, [id])}"
                )
            return
        filters = replace(filters, key=id)
    _trace_key(stores, filters, output, names)


def _is_only_a_key(batches: list[pa.RecordBatch]) -> bool:
    """Whether messages have the word as a key, and none as its id."""
    from store_format.views.trace import NAMED_AS_KEY

    return {what for batch in batches for what in batch["what"].to_pylist()} == {NAMED_AS_KEY}


def _trace_key(stores: list[MessageStore], filters: MessageChoice, output: Output, names: list[str]) -> None:
    """The timelines of the messages with `--key`: a table for each, or rows with the column `msgId`."""
    from rmq_spark.cli.hints import hint_of_nothing
    from rmq_spark.cli.reading import ids_of_key

    ids = ids_of_key(stores, filters)
    if not ids:
        refuse_unknown_topic(filters, known_topics(stores))
        of_topic = "" if filters.glob is None else f" of --topic {shown(filters.glob)}"
        hint = hint_of_nothing(stores, filters)
        raise NotFoundError(f"no message{of_topic} has the key {filters.key!r}{hint}")
    traced = ids[: filters.limit]
    events = {
        each: [batch for store in stores for batch in store.trace(each).to_batches()] for each in traced
    }
    if output.form == "table" and not output.columns:
        for i, (each, batches) in enumerate(events.items()):
            print("\n" * bool(i) + painted(f"message {shown(each)}", BOLD if output.colour else ""))
            show_batches(output, batches, names, _TRACE)
    else:
        rows = [_named(batch, each) for each, batches in events.items() for batch in batches]
        show_batches(output, rows, ["msgId", *names])
    kept = f"; the first {len(traced)} are shown" if len(traced) < len(ids) else ""
    key = shown(str(filters.key))
    remark(f"messages with the key {key}: {len(ids)}{kept}")
    for group in sorted({group for batches in events.values() for group in _buried_by(batches)}):
        command = f"rmqlog dlq {given_store()} -g {shlex.quote(shown(group))} --key {shlex.quote(key)}"
        remark(f"a dead letter of {shown(group)}: {command} --with-body")


def _buried_by(batches: list[pa.RecordBatch]) -> set[str]:
    """The groups that gave up the message of a timeline; none if the dead letter was stored again."""
    events = [event for batch in batches for event in batch.select(["what", "group"]).to_pylist()]
    if any(event["what"] == "resent" for event in events):
        return set()
    return {event["group"] for event in events if event["what"] == "dead letter" and event["group"]}


def _named(batch: pa.RecordBatch, message_id: str) -> pa.RecordBatch:
    """The batch with the column `msgId` in front."""
    import pyarrow as pa

    ids = pa.array([message_id] * batch.num_rows, pa.string())
    columns = {"msgId": ids, **dict(zip(batch.schema.names, batch.columns, strict=True))}
    return pa.RecordBatch.from_pydict(columns)

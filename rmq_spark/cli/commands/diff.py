"""`diff`: the messages in which two stores differ."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.exit_codes import NOT_FOUND, OK, PARTIAL
from rmq_spark.cli.options import filter_options, known_topics, open_all, refuse_unknown_topic, store_argument
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import Progress, remark
from store_format.names import is_light_queue
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from store_format import MessageStore
    from store_format.views.diff import StoreDiff

_SHOWN = ("difference", "addressA", "addressB", "fields", "msgId")
_WORDS = {
    "onlyInA": "only in A",
    "onlyInB": "only in B",
    "changed": "changed",
    "moreInA": "more copies in A",
    "moreInB": "more copies in B",
}


@click.command("diff")
@store_argument()
@click.argument("other", type=click.Path(readable=False))
@click.option("--moved", is_flag=True, help="Also show messages that are only in another queue.")
@filter_options("topics", "all", "limit")
@output_options()
def diff_(stores: list[MessageStore], other: str, moved: bool, filters: MessageChoice, output: Output) -> int:
    """The messages in which two stores differ.

    A is STORE, B is OTHER; each is a store, or a directory of the stores of several brokers. Two messages
    are equal if they have the same topic, body, flag, born time, born host, reconsumeTimes and properties.
    Places, store times, and what a broker adds to a message do not count. A message that has the id of
    another one, and is not equal, has changed. The exit code is 0 if the stores are equal, 1 if they differ,
    and 4 if a part could not be read.

    \b
    rmqlog diff /data/store /backup/store
    rmqlog diff /data/store /backup/store --topic Orders -o json
    """
    from rmq_spark.cli.reading import bytes_to_read
    from rmq_spark.cli.view_rows import column_named, show_batches
    from store_format.views.diff import DIFF_COLUMNS, diff_stores

    names = [column.name for column in DIFF_COLUMNS]
    for name in output.columns:  # before the work
        column_named(name, names, _SHOWN)
    others = open_all(other)
    both = [*stores, *others]
    refuse_unknown_topic(filters, known_topics(both))
    choice = replace(filters, limit=None)
    with Progress("diff", 0) as progress:
        if progress.is_shown:
            progress.reach_of(0, bytes_to_read(both, choice))
        found = diff_stores(stores, others, choice, on_read=progress.add)
    with found:
        rows = sum(found.counts.values()) - (0 if moved else found.counts["moved"])
        if rows or output.form != "table":
            show_batches(output, found.batches(moved=moved), names, _SHOWN, limit=filters.limit)
        remark(_verdict(found, moved))
        _say_what_was_not_compared(both, choice)
        return _code(found, others)


def _verdict(found: StoreDiff, moved: bool) -> str:
    a, b = (f"{count:,} message{'s' * (count != 1)}" for count in found.messages)
    if found.is_equal:
        text = f"equal: A and B have the same {a}"
    else:
        counts = [
            f"{count:,} {_WORDS[kind]}" for kind, count in found.counts.items() if count and kind in _WORDS
        ]
        text = f"different: {', '.join(counts)}; A has {a}, B has {b}"
    if found.counts["moved"]:
        text += f"; {found.counts['moved']:,} in another queue{'' if moved else ': --moved'}"
    return text


def _say_what_was_not_compared(stores: Sequence[MessageStore], choice: MessageChoice) -> None:
    hidden = (queue for store in stores for queue in store.queues(choice.hides))
    if any(queue.min_offset < queue.max_offset and not is_light_queue(queue.topic) for queue in hidden):
        remark("messages of system topics were not compared: -a")


def _code(found: StoreDiff, others: Sequence[MessageStore]) -> int:
    """The exit code. Says how many messages could not be read."""
    is_whole = not any(each.unreadable for each in others)
    for name, count in zip("AB", found.unread, strict=True):
        if count:
            what = "message" if count == 1 else "messages"
            left_out = "is left out" if count == 1 else "are left out"
            remark(f"{count:,} {what} of {name} could not be read, and {left_out}")
            is_whole = False
    if not is_whole:
        return PARTIAL
    return OK if found.is_equal else NOT_FOUND

"""The life of a message, or of all messages with a key: `trace`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.address import parse_address, read_address, refuse_near_address
from rmq_spark.cli.cells import BOLD, UTC_ZONE, Zone, painted
from rmq_spark.cli.exit_codes import OK, PARTIAL, NotFoundError
from rmq_spark.cli.options import (
    filter_options,
    from_one_look,
    keys_option,
    known_topics,
    refuse_what_no_store_has,
    store_argument,
)
from rmq_spark.cli.output import Output, output_options
from rmq_spark.cli.remarks import Progress, given_store, remark
from rmq_spark.cli.repeated import globs_of
from rmq_spark.cli.view_rows import show_batches
from store_format.display.text import first_names, shown
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore
    from store_format.views.trace import LifeSearch

_TRACE = ("time", "what", "topic", "queueId", "queueOffset", "physicalOffset", "group", "detail")
_OF_MESSAGE = ("key", "msgId")  # columns in front of the events, for programs
_TIME_IN_DETAIL = re.compile(r"\b(due|popped|visible from) (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")
_TRACED_MAX = 20
_NAMED_MAX = 3  # keys of dead letters in a sentence


@click.command("trace")
@from_one_look
@store_argument()
@click.argument("id", metavar="[ID]", required=False)
@keys_option
@filter_options("topics", "messages", limit=_TRACED_MAX)
@output_options()
def trace_(
    stores: list[MessageStore],
    id: str | None,
    keys: tuple[str, ...],
    filters: MessageChoice,
    output: Output,
) -> int:
    """The life of a message as a timeline.

    Shows its copies, retries, dead letter, delayed or half form, the clients' trace, and the groups whose
    offsets are past it. With --key, or a key in the place of ID, the timelines of all messages that have the
    key, one after the other; --topic and -n choose among these messages.

    \b
    rmqlog trace /data/store 7F0000010A1B18B4AAC20000000A0001
    rmqlog trace /data/store Orders/2@100
    rmqlog trace /data/store order-1234 --topic Orders
    rmqlog trace /data/store --key order-1234
    rmqlog trace /data/store --key order-1234 --key order-1235 -o csv > orders.csv
    """
    from store_format.views.trace import LifeSearch

    searches = [LifeSearch(store) for store in stores]
    names = _event_columns()
    output = replace(output, below="detail", milliseconds=True)
    if (id is None) == (not keys):
        raise click.UsageError("trace needs an id or --key KEY, and not both")
    if id is not None:
        address = parse_address(id)
        if address is not None:
            if filters.has_topics:
                raise click.UsageError(f"{id!r} names its topic; leave out --topic")
            id = read_address(stores, address, ("msgId",))[0]["msgId"][0].as_py()
        else:
            refuse_near_address(id, lambda: known_topics(stores))
        # --topic chooses among the messages with a key, which may be the id of a client
        batches = [] if filters.has_topics else _life_of(searches, id, output.zone)
        if not (filters.has_topics or _is_only_a_key(batches)):
            named = [_named(batch, id, None) for batch in batches]
            if not show_batches(output, named, [*_OF_MESSAGE, *names], _TRACE):
                from rmq_spark.cli.hints import hint_of_nothing

                return _end_of_nothing(
                    searches, f"has the id or key {id!r}{hint_of_nothing(stores, filters, [id])}"
                )
            _say_dead_letters([(id, batches)])
            return _say_missing_parts(searches)
        keys = (id,)
    return _trace_keys(stores, searches, tuple(dict.fromkeys(keys)), filters, output)


def _life_of(searches: Sequence[LifeSearch], message_id: str, zone: Zone) -> list[pa.RecordBatch]:
    """The events of a message in all stores; times within `detail` are in the zone, as those of columns."""
    found = []
    for search in searches:
        with _progress(search):
            found += search.life_of(message_id).to_batches()
    return found if zone == UTC_ZONE else [_in_zone(batch, zone) for batch in found]


def _in_zone(batch: pa.RecordBatch, zone: Zone) -> pa.RecordBatch:
    import pyarrow as pa

    details = [
        _TIME_IN_DETAIL.sub(lambda found: f"{found[1]} {zone.full(found[2])}", text)
        for text in batch["detail"].to_pylist()
    ]
    place = batch.schema.get_field_index("detail")
    return batch.set_column(place, batch.schema.field(place), pa.array(details, pa.string()))


def _progress(search: LifeSearch) -> Progress:
    progress = Progress("trace", 0)
    search.on_scanned = progress.reach_of
    return progress


def _end_of_nothing(searches: Sequence[LifeSearch], what: str) -> int:
    """Says that no message is `what`, with what may be missing. Raises NotFoundError if nothing is."""
    if not any(search.missing_parts() for search in searches):
        raise NotFoundError(f"no message {what}")
    remark(f"no whole message {what}")
    return _say_missing_parts(searches)


def _say_missing_parts(searches: Sequence[LifeSearch]) -> int:
    """Says what damage may hide, and returns the exit code."""
    code = OK
    for search in searches:
        if parts := search.missing_parts():
            label = f"{shown(search.store.broker_name)}: " if len(searches) > 1 else ""
            remark(label + "; ".join(parts))
            code = PARTIAL
    return code


def _event_columns() -> list[str]:
    from store_format.views.trace import TRACE_COLUMNS

    return [column.name for column in TRACE_COLUMNS]


def _is_only_a_key(batches: list[pa.RecordBatch]) -> bool:
    """Whether messages have the word as a key, and none as its id."""
    from store_format.views.trace import NAMED_AS_KEY

    return {what for batch in batches for what in batch["what"].to_pylist()} == {NAMED_AS_KEY}


def _trace_keys(
    stores: list[MessageStore],
    searches: Sequence[LifeSearch],
    keys: tuple[str, ...],
    filters: MessageChoice,
    output: Output,
) -> int:
    """The timelines of the messages with any of the keys: a table for each, or rows with `key` and `msgId`.

    A message that has several of the keys is shown with the first. Raises NotFoundError if no message has
    any of the keys.
    """
    names = _event_columns()
    refuse_what_no_store_has(filters, stores)
    ids = {key: _ids_of(searches, replace(filters, key=key)) for key in keys}
    missing = [_missing(stores, replace(filters, key=key)) for key, found in ids.items() if not found]
    if len(missing) == len(keys):
        return _end_of_nothing(searches, "; no message ".join(missing))
    key_of = {each: key for key, found in reversed(ids.items()) for each in found[: filters.limit]}
    traced = [each for key, found in ids.items() for each in found[: filters.limit] if key_of[each] == key]
    events = {each: _life_of(searches, each, output.zone) for each in traced}
    if output.form == "table" and not output.columns:
        for i, (each, batches) in enumerate(events.items()):
            of_key = f" (key {shown(key_of[each])})" if len(keys) > 1 else ""
            title = f"message {shown(each)}{of_key}"
            print("\n" * bool(i) + painted(title, BOLD if output.colour else ""))
            show_batches(output, batches, names, _TRACE)
    else:
        rows = [_named(batch, each, key_of[each]) for each, batches in events.items() for batch in batches]
        show_batches(output, rows, [*_OF_MESSAGE, *names])
    _say_counts(ids, filters.limit)
    for sentence in missing:
        remark(f"no message {sentence}")
    _say_dead_letters((key_of[each], batches) for each, batches in events.items())
    return _say_missing_parts(searches)


def _ids_of(searches: Sequence[LifeSearch], filters: MessageChoice) -> list[str]:
    """The ids of the messages with `--key` in all stores, each once."""
    found: list[str] = []
    for search in searches:
        with _progress(search):
            found += search.ids_of(filters)
    return list(dict.fromkeys(found))


def _missing(stores: list[MessageStore], filters: MessageChoice) -> str:
    """What no message is: one with `--key`; with a hint."""
    from rmq_spark.cli.hints import hint_of_nothing

    of_topic = f"of --topic {shown(' or '.join(globs_of(filters)))} " if filters.has_topics else ""
    return f"{of_topic}has the key {filters.key!r}{hint_of_nothing(stores, filters)}"


def _say_counts(ids: dict[str, list[str]], limit: int | None) -> None:
    for key, found in ids.items():
        kept = ""
        if limit is not None and len(found) > limit:
            kept = "; the first is shown" if limit == 1 else f"; the first {limit} are shown"
        if found:
            remark(f"messages with the key {shown(key)}: {len(found)}{kept}")


def _say_dead_letters(lives: Iterable[tuple[str, list[pa.RecordBatch]]]) -> None:
    """Says for each group that gave up messages how to read its dead letters. `lives` are the timelines, each
    with the key or id that it was found by.
    """
    keys_of: dict[str, list[str]] = {}
    for key, batches in lives:
        for group in sorted(_buried_by(batches)):
            keys_of.setdefault(group, []).append(key)
    for group, keys in sorted(keys_of.items()):
        options = [f"--key {shlex.quote(shown(key))}" for key in dict.fromkeys(keys)]
        more = f"; the same with {first_names(options[1:], _NAMED_MAX)}" if options[1:] else ""
        count = "a dead letter" if len(keys) == 1 else f"{len(keys)} dead letters"
        command = f"rmqlog dlq {given_store()} -g {shlex.quote(shown(group))} {options[0]} --with-body"
        remark(f"{count} of {shown(group)}: {command}{more}")


def _buried_by(batches: list[pa.RecordBatch]) -> set[str]:
    """The groups that gave up the message of a timeline; none if the dead letter was stored again."""
    events = [event for batch in batches for event in batch.select(["what", "group"]).to_pylist()]
    if any(event["what"] == "resent" for event in events):
        return set()
    return {event["group"] for event in events if event["what"] == "dead letter" and event["group"]}


def _named(batch: pa.RecordBatch, message_id: str, key: str | None) -> pa.RecordBatch:
    """The batch with the columns `key` and `msgId` in front: what the message was found by, and its id."""
    import pyarrow as pa

    own = {"key": pa.array([key] * batch.num_rows, pa.string())}
    own["msgId"] = pa.array([message_id] * batch.num_rows, pa.string())
    return pa.RecordBatch.from_pydict({**own, **dict(zip(batch.schema.names, batch.columns, strict=True))})

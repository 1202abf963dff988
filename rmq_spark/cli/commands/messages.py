"""Messages: the first (`head`), the last and the next (`tail`), by id (`get`), and by a search (`find`)."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.address import parse_address, read_address, refuse_near_address
from rmq_spark.cli.cells import BODY_FORMS
from rmq_spark.cli.exit_codes import OK, PARTIAL, DamagedMessageError, NotFoundError
from rmq_spark.cli.options import (
    HEAD_FILTERS,
    KEYLESS_FILTERS,
    Command,
    checked_keys,
    filter_options,
    from_one_look,
    keys_option,
    refuse_what_no_store_has,
    store_argument,
)
from rmq_spark.cli.output import Output, output_options, write_records, write_rows
from rmq_spark.cli.remarks import Progress, given_store, nothing, remark
from store_format.display.text import shown
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore
    from store_format.read.store import Store
    from store_format.read.tolerance import Tolerance
    from store_format.search.look_up import Found

_COUNT = 10
_ORDER = ("physicalOffset", "queueOffset")  # messages of an inner batch have one physical offset
_LIKE_A_REGEX = re.compile(r"\.[*+]|\[.+\]|\\[dws]|\w\||^\^|\$$|^/.+/i?$")


def skip_damage_option(command: Command) -> Command:
    """`--skip-damage`, as `skip_damage`."""
    about = "Leave damaged messages out and report their number; the exit code is then 4."
    return click.option("--skip-damage", is_flag=True, help=about)(command)


def tolerance_for(skip_damage: bool) -> Tolerance:
    from store_format.read.tolerance import Tolerance

    return Tolerance("DROPMALFORMED" if skip_damage else "FAILFAST")


@contextmanager
def naming_skip_damage(stores: Sequence[Store]) -> Iterator[None]:
    """Names `--skip-damage` at the end of an error for a damaged message, which ends the read within.

    Raises DamagedMessageError in its place.
    """
    from store_format.errors import CorruptStoreError

    try:
        yield
    except CorruptStoreError as error:
        logs = {file.path for store in stores for file in store.log.files}
        if error.file not in logs and not any(_is_queue_file(error.file, store) for store in stores):
            raise
        raise DamagedMessageError(f"{error}; --skip-damage leaves damaged messages out") from error


def _is_queue_file(path: str, store: Store) -> bool:
    return path.startswith(f"{store.path}/consumequeue/")


def warn_of_damage(tolerance: Tolerance) -> int:
    """Reports the number of damaged messages on stderr, and returns the exit code."""
    if not tolerance.dropped:
        return OK
    remark(f"{tolerance.dropped} damaged messages or stretches of the commitlog were left out")
    return PARTIAL


@click.command("head")
@from_one_look
@store_argument()
@skip_damage_option
@filter_options(*HEAD_FILTERS, "offset", limit=_COUNT)
@output_options(raw=True)
def head_(stores: list[MessageStore], skip_damage: bool, filters: MessageChoice, output: Output) -> int:
    """The first messages.

    -n sets how many; the default is 10. Of a cluster, the messages of all stores are merged by store time.

    \b
    rmqlog head /data/store --topic Orders --since 2024-05-01T12:00:00Z
    rmqlog head /data/store --topic Orders --queue 2 --offset 100 -n 5
    """
    from rmq_spark.cli.hints import hint_of_nothing, say_missing_tags, say_what_system_topics_have
    from rmq_spark.cli.reading import first_messages, merged, message_columns

    refuse_what_no_store_has(filters, stores)
    output = _searching(output, filters)
    names, tolerance = message_columns(output), tolerance_for(skip_damage)
    assert filters.limit is not None
    with naming_skip_damage(stores):
        tables = [first_messages(store, filters, names, filters.limit, tolerance) for store in stores]
    count = write_rows(output, merged(tables, names, filters.limit, last=False).to_batches(), names)
    if not count:
        _refuse_offset_after_all(stores, filters)
    say_what_system_topics_have(stores, filters)
    say_missing_tags(stores, filters)
    if not count and filters.limit:
        hint = hint_of_nothing(stores, filters)
        return warn_of_damage(tolerance) or nothing(f"no message matches{hint}")
    return warn_of_damage(tolerance)


def _refuse_offset_after_all(stores: list[MessageStore], filters: MessageChoice) -> None:
    """Raises NotFoundError if every chosen queue ends at or before `--offset`."""
    from store_format.read.chosen_messages import chosen_queues

    if filters.offset is None:
        return
    ends = [queue.max_offset for store in stores for queue in chosen_queues(store, filters)]
    if ends and max(ends) <= filters.offset:
        last = f"the last offset is {max(ends) - 1}" if max(ends) else "the queues are empty"
        raise NotFoundError(f"no message has the offset {filters.offset} or a later one; {last}")


@click.command("tail")
@store_argument()
@click.option(
    "-f", "--follow", is_flag=True, help="Then print new messages as they are written, until Ctrl-C."
)
@click.option(
    "--interval",
    type=click.FloatRange(0.01, 60),
    default=0.5,
    show_default=True,
    help="Seconds between two checks for new messages.",
)
@skip_damage_option
@filter_options(*HEAD_FILTERS, limit=_COUNT)
@output_options(raw=True)
def tail_(
    stores: list[MessageStore],
    follow: bool,
    interval: float,
    skip_damage: bool,
    filters: MessageChoice,
    output: Output,
) -> int:
    """The last messages; with -f also new ones.

    -n sets how many; the default is 10. Of a cluster, the messages of all stores are merged by store time.

    \b
    rmqlog tail -f /data/store --topic Orders --where "region = 'north'"
    """
    from rmq_spark.cli.hints import hint_of_nothing, say_missing_tags, say_what_system_topics_have
    from rmq_spark.cli.reading import last_messages, merged, message_columns
    from store_format.read.chosen_messages import chosen_queues

    output = _searching(output, filters)
    names, tolerance = message_columns(output), tolerance_for(skip_damage)
    assert filters.limit is not None
    if follow:
        if output.form == "json":
            raise click.UsageError(
                "--output json cannot be used with --follow: a JSON array must end; use --output jsonl"
            )
        from rmq_spark.cli.follow import Tail  # only `tail -f` follows stores

        tail = Tail(stores, filters, names, tolerance)
        last = tail.last(filters.limit)
        news = tail.news(partial(time.sleep, interval))
        write_rows(output, chain(last, news), names, following=sum(batch.num_rows for batch in last))
        return warn_of_damage(tolerance)
    refuse_what_no_store_has(filters, stores)
    with naming_skip_damage(stores):
        tables = [
            last_messages(store, chosen_queues(store, filters), filters, names, filters.limit, tolerance)
            for store in stores
        ]
    count = write_rows(output, merged(tables, names, filters.limit, last=True).to_batches(), names)
    say_what_system_topics_have(stores, filters)
    say_missing_tags(stores, filters)
    if not count and filters.limit:
        hint = hint_of_nothing(stores, filters)
        return warn_of_damage(tolerance) or nothing(f"no message matches{hint}")
    return warn_of_damage(tolerance)


@click.command("get")
@from_one_look
@store_argument()
@click.argument("id", metavar="ID")
@output_options(raw=True)
def get_(stores: list[MessageStore], id: str, output: Output) -> int:
    """One message by its id, or by topic, queue and offset.

    The id is the one that a client reports (UNIQ_KEY), or an offset message id. All copies of the message are
    shown. TOPIC/QUEUE@OFFSET names the message of a queue offset; @last is the newest of the queue, @-5 the
    fifth from its end.

    \b
    rmqlog get /data/store Orders/2@100
    rmqlog get /data/store Orders/2@last
    rmqlog get /data/store 7F0000010A1B18B4AAC20000000A0001
    rmqlog get /data/store 7F0000010A1B18B4AAC20000000A0001 -o raw > body
    """
    from rmq_spark.cli.reading import ALL_COLUMNS, message_columns

    names = message_columns(output)
    as_records = output.form == "table" and not output.columns
    names = ALL_COLUMNS if as_records else names
    write = write_records if as_records else write_rows
    address = parse_address(id)
    if address is not None:
        write(output, read_address(stores, address, names), names)
        return OK
    refuse_near_address(id)
    searches = []
    for store in stores:
        with Progress("get", 0) as progress:
            found = store.find(
                message_id=id, columns=names, on_damage="DROPMALFORMED", on_scanned=progress.reach_of
            )
            searches.append(_WordSearch(store, "", found))
    batches = (batch for each in searches for batch in each.found.table.select(names).to_batches())
    nothing = f"no message has the id {id!r}; rmqlog find searches keys, too"
    count = write(output, batches, names)
    _say_how_found(searches)
    return _end_of_search(searches, count, nothing)


@click.command("find")
@from_one_look
@store_argument()
@click.argument("words", metavar="[WORD]...", nargs=-1, callback=checked_keys)
@click.option("--id", "message_id", metavar="ID", help="The message with this UNIQ_KEY or offset message id.")
@click.option("--no-index", is_flag=True, help="Scan the commitlog even where index files cover it.")
@skip_damage_option
@keys_option
@filter_options(*KEYLESS_FILTERS, "body", "ignore_case", "regex")
@output_options(raw=True, searches=True)
def find_(
    stores: list[MessageStore],
    words: tuple[str, ...],
    message_id: str | None,
    no_index: bool,
    skip_damage: bool,
    keys: tuple[str, ...],
    filters: MessageChoice,
    output: Output,
) -> int:
    """Messages by key, id, tag, time, body or condition.

    Each WORD is a key or an id. Keys and ids are looked up in the index files; parts of the commitlog without
    an index are scanned. Each copy of a message is a row: as delayed, as a retry, as a dead letter. --body
    reads every message that the other filters choose; -i ignores case, and -E takes a regular expression.
    stderr reports how the messages were found and what was searched.

    \b
    rmqlog find /data/store order-1234
    rmqlog find /data/store order-1234 order-1235
    rmqlog find /data/store --topic Orders --tag 'paid || shipped' --since -2h
    rmqlog find /data/store --topic Orders --since -2h --body '"amount":0'
    """
    from rmq_spark.cli.hints import hint_of_nothing, say_missing_tags, say_what_system_topics_have
    from rmq_spark.cli.reading import message_columns

    given = [name for name, value in (("WORD", words), ("--key", keys), ("--id", message_id)) if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} are given together; use only one of them")
    if not given and replace(filters, include_system_topics=False, limit=None) == MessageChoice():
        raise click.UsageError(
            "find needs a condition: a key or id, or a filter such as --topic, --tag, --since or --body; "
            "rmqlog head and tail show messages without a condition, export writes all of them"
        )
    refuse_what_no_store_has(filters, stores)
    output = _searching(output, filters, words or keys)
    names, tolerance = message_columns(output), tolerance_for(skip_damage)
    find_one = partial(
        _found,
        filters=replace(filters, message_id=message_id),
        may_be_id=bool(words),
        names=tuple(dict.fromkeys((*names, *_ORDER))),
        use_index=not no_index,
        tolerance=tolerance,
    )
    with naming_skip_damage(stores):
        searches = [
            _WordSearch(store, word, find_one(store, word))
            for store in stores
            for word in dict.fromkeys(words or keys or ("",))
        ]
    tables = [_merged([each.found.table for each in searches if each.store is store]) for store in stores]
    batches = (batch for table in tables for batch in table.select(names).to_batches())
    count = write_rows(output, _limited(batches, filters), names)
    hint = ""
    _say_how_found(searches)
    # A search for keys finds all their messages; any other search ends at the limit.
    found = sum(table.num_rows for table in tables)
    if filters.limit and (found > count if given else count == filters.limit):
        remark("limit reached, more messages may match")
    elif not given:
        say_what_system_topics_have(stores, filters)
    if not count:
        hint = hint_of_nothing(stores, filters, words or keys)
    say_missing_tags(stores, filters)
    places = [word for word in words if parse_address(word) is not None]
    if places:
        hint = (
            f"; rmqlog get {given_store()} {shlex.quote(shown(places[0]))} shows the message at this offset"
        )
    elif filters.body in BODY_FORMS:
        hint = f"; --body searches bodies for the text {filters.body}, --body-form sets the form of bodies"
    elif isinstance(filters.body, str) and not hint and _LIKE_A_REGEX.search(filters.body):
        hint = "; --body is a text: -E takes it as a regular expression, -i ignores case"
    left_out = warn_of_damage(tolerance)
    code = left_out or _end_of_search(searches, count, f"no message matches{hint}")
    _hint_at_missing_words(stores, searches)
    return code


def _hint_at_missing_words(stores: list[MessageStore], searches: Sequence[_WordSearch]) -> None:
    """For each of several words that no store has: the key that was meant."""
    from rmq_spark.cli.hints import hint_of_key

    found = {each.word for each in searches if each.found.table.num_rows}
    for word in dict.fromkeys(each.word for each in searches if each.word not in found):
        hint = hint_of_key(stores, word)
        if hint:
            remark(f"{shown(word)}: {hint}")


def _searching(output: Output, filters: MessageChoice, keys: Sequence[str] = ()) -> Output:
    """The output that keeps what the search is for on a narrow terminal."""
    names = ("tags",) * bool(filters.tags) + ("tags", "keys") * bool(keys or filters.key)
    return replace(
        output, searched=frozenset((*names, *("body",) * (bool(names) and filters.body is not None)))
    )


@dataclass(frozen=True, slots=True)
class _WordSearch:
    """The search in one store for one word, "" for a search without keys."""

    store: MessageStore
    word: str
    found: Found


def _found(
    store: MessageStore,
    word: str,
    *,
    filters: MessageChoice,
    may_be_id: bool,
    names: Sequence[str],
    use_index: bool,
    tolerance: Tolerance,
) -> Found:
    from rmq_spark.cli.reading import find_by_time, find_in, find_word

    if not word and filters.message_id is None:
        return find_by_time(store, filters, names, tolerance)
    if not word:
        return find_in(store, filters, names, use_index=use_index)
    if may_be_id:
        return find_word(store, word, filters, names, use_index=use_index)
    return find_in(store, replace(filters, key=word), names, use_index=use_index)


def _merged(tables: Sequence[pa.Table]) -> pa.Table:
    """The messages of all tables in the order of the commitlog, each once."""
    if len(tables) == 1:
        return tables[0]
    import pyarrow as pa

    columns = tables[0].schema.names
    rows = pa.concat_tables([table.select(columns) for table in tables]).combine_chunks()
    seen = {
        place: i for i, place in enumerate(zip(*(rows[name].to_pylist() for name in _ORDER), strict=True))
    }
    return rows.take(pa.array([seen[place] for place in sorted(seen)], pa.int64()))


def _limited(batches: Iterator[pa.RecordBatch], filters: MessageChoice) -> Iterator[pa.RecordBatch]:
    from rmq_spark.cli.view_rows import first_rows

    return first_rows(batches, filters.limit)


def _say_how_found(searches: Sequence[_WordSearch]) -> None:
    """Says on stderr how the messages of each search were found."""
    is_cluster = len({id(each.store) for each in searches}) > 1
    has_words = len({each.word for each in searches}) > 1
    for each in searches:
        found, searched = each.found, each.found.searched
        labels = ([each.store.broker_name] if is_cluster else []) + ([each.word] if has_words else [])
        label = "".join(f"{shown(text)}: " for text in labels)
        is_told = searched.index_files or searched.scanned or searched.damaged_at
        looked = f": {shown(str(searched))}" if is_told else ""
        remark(f"{label}{_counted(found.table)} found by {found.how}{looked}")


def _counted(rows: pa.Table) -> str:
    """How many messages were found. Retries, delayed messages and dead letters are copies of a message, which
    `trace` counts once; without the column of the ids, only the rows are counted.
    """
    if "msgId" not in rows.schema.names:
        return str(rows.num_rows)
    ids = rows["msgId"].drop_null()
    messages = len(ids.unique()) + rows.num_rows - len(ids)
    if messages == rows.num_rows:
        return str(messages)
    return f"{rows.num_rows} copies of {messages} message{'s' * (messages != 1)}"


def _end_of_search(searches: Sequence[_WordSearch], count: int, nothing: str) -> int:
    """Returns the exit code. Raises NotFoundError with the text `nothing` if there is no message."""
    is_partial = any(each.found.searched.is_partial for each in searches)
    if not count and not is_partial:
        raise NotFoundError(nothing)
    return PARTIAL if is_partial else OK

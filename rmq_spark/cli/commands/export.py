"""`export`: messages to a Parquet, JSON lines or CSV file, in bounded memory."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

import click

from rmq_spark.cli.cells import Zone, zone_of, zoned_rows
from rmq_spark.cli.commands.messages import (
    naming_skip_damage,
    skip_damage_option,
    tolerance_for,
    warn_of_damage,
)
from rmq_spark.cli.options import (
    KEYLESS_FILTERS,
    filter_options,
    keys_option,
    refuse_what_no_store_has,
    store_argument,
)
from rmq_spark.cli.output import (
    Output,
    body_form_option,
    chose_body_form,
    column_names,
    columns_option,
    say_base64,
    write_csv,
    write_jsonl,
)
from rmq_spark.cli.output_file import new_file, refuse_inside_store
from rmq_spark.cli.remarks import Progress, nothing, remark
from store_format.display.text import shown
from store_format.display.units import size_text
from store_format.errors import OptionError
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore
    from store_format.read.tolerance import Tolerance

_FORMS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_ROW_GROUP_BYTES = 64 << 20


@click.command("export")
@store_argument()
@click.argument("out", type=click.Path())
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "jsonl", "csv"]),
    help="The file format; by default the suffix of OUT decides.",
)
@click.option("--force", is_flag=True, help="Replace OUT if it exists.")
@columns_option
@body_form_option()
@skip_damage_option
@keys_option
@filter_options(*KEYLESS_FILTERS)
@click.option(
    "--tz",
    metavar="ZONE",
    help="Time zone of --since and --until, by default local; of times in JSONL and CSV, by default UTC.",
)
def export_(
    stores: list[MessageStore],
    out: str,
    form: str | None,
    force: bool,
    columns: str | None,
    body_form: str,
    skip_damage: bool,
    keys: tuple[str, ...],
    filters: MessageChoice,
    tz: str | None,  # also for the times of `filters`
) -> int:
    """Write messages to a Parquet, JSONL or CSV file of any size.

    OUT appears only when the export is complete and has a message. `-` is stdout, for JSONL and CSV. Messages
    of one queue keep their order. With --key and without --topic, system topics are read, too, as by find:
    retries and dead letters.

    \b
    rmqlog export /data/store orders.parquet --topic Orders --since 2024-05-01
    rmqlog export /data/store order.csv --key order-1234 --body-form text
    """
    from rmq_spark.cli.hints import hint_of_nothing, say_missing_tags, say_what_system_topics_have
    from rmq_spark.cli.reading import bytes_to_read, message_columns

    form = form or _form_of(out)
    if form == "parquet" and chose_body_form():
        raise click.UsageError("Parquet has bodies as bytes; leave out --body-form, or write JSONL or CSV")
    zone = zone_of(tz, to_terminal=False)
    names = message_columns(Output(form, column_names(columns)))
    keys = tuple(dict.fromkeys(keys))
    if len(keys) == 1:
        filters = replace(filters, key=keys[0])
    in_all_topics = bool(keys) and not filters.has_topics and not filters.include_system_topics
    if in_all_topics:  # as find does: retries and dead letters belong to the story of a key
        filters = replace(filters, include_system_topics=True)
    tolerance = tolerance_for(skip_damage)
    refuse_what_no_store_has(filters, stores)
    if not skip_damage:
        stores = [replace(store, fail_on_unknown=True) for store in stores]
    with naming_skip_damage(stores), Progress("export", bytes_to_read(stores, filters)) as progress:
        source = _Source(stores, filters, names, tolerance, progress, keys, without_light=in_all_topics)
        if out == "-":
            if form == "parquet":
                raise click.UsageError(
                    "Parquet cannot be written to stdout; give a file name, or use --format jsonl"
                )
            _write_text(form, sys.stdout.write, source, body_form, zone)
            sys.stdout.flush()
        else:
            refuse_inside_store(
                out, (path for store in stores for path in (store.path, *store.commit_log_paths))
            )
            with new_file(os.path.abspath(out), replace=force, wanted=lambda: source.rows > 0) as file:
                _write_file(form, file, source, body_form, zone)
    count = f"{source.rows:,} message{'s' * (source.rows != 1)}"
    place = ", to stdout" if out == "-" else f", into {shown(out)}"
    if out != "-" and not source.rows:
        place = f"; {shown(out)} was not written"
    remark(f"{count}, {size_text(progress.done)} of the log{place}")
    if source.rows and form != "parquet":
        say_base64(names)
    say_what_system_topics_have(stores, filters, keys)
    say_missing_tags(stores, filters)
    for key in source.missing_keys() if source.rows else ():
        remark(
            f"no message that matches has the key {key!r}{hint_of_nothing(stores, replace(filters, key=key))}"
        )
    code = warn_of_damage(tolerance)
    if code or source.rows:
        return code
    return nothing(f"no message matches{hint_of_nothing(stores, filters, keys)}")


def _form_of(out: str) -> str:
    form = _FORMS.get(os.path.splitext(out)[1].lower())
    if form is None:
        raise click.UsageError(
            f"cannot tell the format from the name {out!r}: "
            "use the suffix .parquet, .jsonl or .csv, or give --format"
        )
    return form


class _Source:
    """The batches to write; counts their rows and reports the progress."""

    def __init__(
        self,
        stores: Sequence[MessageStore],
        filters: MessageChoice,
        names: Sequence[str],
        tolerance: Tolerance,
        progress: Progress,
        keys: Sequence[str],
        *,
        without_light: bool,
    ) -> None:
        self.names = names
        self.rows = 0
        self._stores, self._filters, self._tolerance, self._progress = stores, filters, tolerance, progress
        self._keys = keys if len(keys) > 1 else ()  # one key is among the filters
        self._missing: list[str] = []
        self._without_light = without_light

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        from rmq_spark.cli.reading import SIZE, read_messages
        from rmq_spark.cli.view_rows import first_rows
        from rmq_spark.python_search import AnyKey

        any_key = AnyKey(self._keys) if self._keys else None
        wanted = tuple(dict.fromkeys((*self.names, SIZE, *(any_key.NEEDS if any_key else ()))))
        read = (
            read_messages(store, self._filters, wanted, self._tolerance, without_light=self._without_light)
            for store in self._stores
        )
        batches = (batch for batches in read for batch in batches)
        chosen = map(any_key.messages_of, batches) if any_key else batches
        for batch in first_rows(chosen, self._filters.limit):
            yield batch.select(self.names)
            self.rows += batch.num_rows
            self._progress.add(int(batch[SIZE].to_numpy().sum()))
        self._missing = any_key.missing if any_key else []

    def missing_keys(self) -> list[str]:
        """Those of several keys that no message has. With `--limit`, not every message was looked at."""
        if self._filters.limit is not None and self.rows >= self._filters.limit:
            return []
        return self._missing


def _write_file(form: str, file: BinaryIO, source: _Source, bodies: str, zone: Zone) -> None:
    if form == "parquet":
        _write_parquet(file, source)
        return
    text = io.TextIOWrapper(file, encoding="utf-8", errors="replace", newline="")
    _write_text(form, text.write, source, bodies, zone)
    text.flush()
    text.detach()


def _write_text(form: str, write: Callable[[str], object], source: _Source, bodies: str, zone: Zone) -> None:
    rows = (row for batch in source for row in zoned_rows(batch, zone))
    (write_jsonl if form == "jsonl" else write_csv)(write, rows, source.names, bodies=bodies)


def _write_parquet(file: BinaryIO, source: _Source) -> None:
    """Row groups of about 64 MB, which bounds the memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from store_format.message.columns import arrow_schema

    schema = arrow_schema(source.names)
    try:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            held: list[pa.RecordBatch] = []
            size = 0
            for batch in source:
                held.append(batch)
                size += batch.nbytes
                if size >= _ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(held, schema))
                    held, size = [], 0
            if held:
                writer.write_table(pa.Table.from_batches(held, schema))
    except pa.ArrowException as error:
        raise OptionError(f"Parquet cannot be written: {error}") from error

"""Bodies for the rows of a view: read from the commitlog, only for the rows that are shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.options import Command
from rmq_spark.cli.output import Output

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore


def with_body_option(command: Command) -> Command:
    """`--with-body`, as `with_body`."""
    about = "Also show the bodies; --body sets their form in JSON and CSV."
    return click.option("--with-body", is_flag=True, help=about)(command)


def wants_bodies(output: Output, with_body: bool) -> bool:
    """Whether a row needs its body: by --with-body, by --columns, or for `-o raw`."""
    return with_body or output.form == "raw" or "body" in map(str.lower, output.columns)


def add_bodies(
    store: MessageStore, batches: Iterable[pa.RecordBatch], offset_column: str
) -> Iterator[pa.RecordBatch]:
    """The batches with the column `body`: that of the message at the physical offset in `offset_column`.

    The body is null, and a warning counts the message, if it is damaged or deleted.
    """
    import pyarrow as pa

    from store_format.message.columns import arrow_schema

    field = arrow_schema(("body",)).field("body")
    for batch in batches:
        found = _bodies_at(store, batch[offset_column].drop_null().unique().to_pylist())
        bodies = [found.get(offset) for offset in batch[offset_column].to_pylist()]
        yield batch.append_column(field, pa.array(bodies, field.type))


def _bodies_at(store: MessageStore, offsets: list[int]) -> dict[int, bytes]:
    """Physical offset -> body, for the messages that can be read."""
    import numpy as np

    from store_format.message.columns import BODY_SIZE_MAX, DecodeOptions
    from store_format.message.decode import decode
    from store_format.read.tolerance import Tolerance

    log, tolerance = store.log.relisted(), Tolerance("DROPMALFORMED", fail_on_data_loss=False)
    columns = DecodeOptions(("physicalOffset", "body"), True, BODY_SIZE_MAX)
    by_file: dict[int, list[int]] = {}
    for offset in sorted(offsets):
        file = log.file_at(offset)
        if file is not None:
            by_file.setdefault(file.start, []).append(offset)
    found: dict[int, bytes] = {}
    for start, inside in by_file.items():
        file = log.file_at(start)
        assert file is not None
        for _, refs in log.refs_at(file, np.array(inside, np.int64)):
            batch, bad = decode(refs, columns, store.broker_name)
            tolerance.drop(bad)
            found.update(zip(batch["physicalOffset"].to_pylist(), batch["body"].to_pylist(), strict=True))
    return found

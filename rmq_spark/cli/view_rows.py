"""Writes a view of all stores to stdout, filtered and limited: the work of most commands without messages.

Bodies of messages are read from the commitlog, only for the rows that are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.cells import TITLES, column_of
from rmq_spark.cli.options import Command
from rmq_spark.cli.output import Output, write_rows
from store_format.errors import OptionError
from store_format.names import did_you_mean, is_system_group, nearest
from store_format.read.choice import MessageChoice

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format import MessageStore
    from store_format.metadata.broker_confs import BrokerConfs


def show_view(
    output: Output,
    stores: Sequence[MessageStore],
    view: str,
    shown: Sequence[str] = (),
    filters: MessageChoice | None = None,
    *,
    now_ms: int | None = None,
    broker_confs: BrokerConfs | None = None,
    time_column: str | None = None,
    keep: KeepWhere | None = None,
    body_at: str | None = None,
) -> int:
    """Writes the view and returns the number of rows. `shown` are the columns of a table, () for all.

    With `body_at`, a column of physical offsets, the rows have the column `body`, too.
    """
    from store_format.views.registry import view_named

    names, shown = view_named(view).schema.names, list(shown)
    if body_at is not None:  # on a narrow terminal, the body that was asked for gets a line of its own
        names, shown, output = [*names, "body"], [*shown, "body"], replace(output, below="body")
    batches = view_rows(
        stores,
        view,
        filters,
        now_ms=now_ms,
        broker_confs=broker_confs,
        time_column=time_column,
        keep=keep,
        body_at=body_at,
    )
    return show_batches(output, batches, names, shown, limit=None if filters is None else filters.limit)


def view_rows(
    stores: Sequence[MessageStore],
    view: str,
    filters: MessageChoice | None = None,
    *,
    now_ms: int | None = None,
    broker_confs: BrokerConfs | None = None,
    time_column: str | None = None,
    keep: KeepWhere | None = None,
    body_at: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a view of all stores that pass the filters; at least one batch. No limit is applied."""
    from store_format.views.registry import view_batches

    def rows_of(store: MessageStore) -> Iterable[pa.RecordBatch]:
        conf = None if broker_confs is None else broker_confs.of(store.broker_name)
        batches: Iterable[pa.RecordBatch] = view_batches(store, view, now_ms=now_ms, broker_conf=conf)
        if filters is not None:
            batches = filtered(batches, filters, time_column)
        if keep is not None:
            batches = (batch.filter(keep(batch)) for batch in batches)
        return batches if body_at is None else add_bodies(store, batches, body_at)

    return chain.from_iterable(map(rows_of, stores))


def in_order(batches: Iterable[pa.RecordBatch], keys: Sequence[tuple[str, str]]) -> list[pa.RecordBatch]:
    """All rows, sorted by the keys: (column, `ascending` or `descending`). Unknown values come last."""
    import pyarrow as pa

    found = list(batches)
    return pa.Table.from_batches(found).sort_by(list(keys)).to_batches() if found else found


def has_values(batches: Iterable[pa.RecordBatch], column: str) -> bool:
    """Whether a row has a value in the column."""
    return any(batch[column].null_count < batch.num_rows for batch in batches)


def show_batches(
    output: Output,
    batches: Iterable[pa.RecordBatch],
    names: Sequence[str],
    shown: Sequence[str] = (),
    *,
    limit: int | None = None,
) -> int:
    """Writes rows and returns their number.

    The columns are those of `--columns`, else in a table those of `shown`, else all `names`. Of several
    stores, a table begins with the broker.
    """
    asked = [column_named(name, names, shown) for name in output.columns]
    if output.form == "raw":
        asked = ["body"]
    wanted = asked or (list(shown) if shown and output.form == "table" else list(names))
    if output.several_stores and not asked and "brokerName" in names and "brokerName" not in wanted:
        wanted.insert(0, "brokerName")
    return write_rows(output, (batch.select(wanted) for batch in first_rows(batches, limit)), wanted)


def column_named(
    name: str, known: Sequence[str], shown: Sequence[str] = (), *, option: str = "--columns"
) -> str:
    """The column that a person names by its name or its title; see `column_of`. `shown` are those of a table.

    Raises OptionError, with the nearest name or title, for an unknown name.
    """
    column = column_of(name, known, shown)
    if column is not None:
        return column
    titles = [TITLES[each] for each in known if each in TITLES]
    near = nearest(name, [*known, *titles])
    hint = did_you_mean(name, [near]) if near else did_you_mean(name, known, "columns", listed_max=len(known))
    raise OptionError(f"{option}: unknown column {name!r}; {hint}")


@dataclass(frozen=True, slots=True)
class KeepWhere:
    """Chooses rows whose columns match shell patterns: any of each column. A null matches like an empty text.

    With `hides_system_groups`, rows of RocketMQ's own groups are left out.
    """

    patterns: tuple[tuple[str, tuple[str, ...]], ...]
    hides_system_groups: bool = False

    def __call__(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        import pyarrow as pa

        columns = [(batch[name].to_pylist(), patterns) for name, patterns in self.patterns]
        groups = batch["group"].to_pylist() if self.hides_system_groups else [""] * batch.num_rows
        return pa.array(
            [
                all(_matches_any(values[i] or "", patterns) for values, patterns in columns)
                and not is_system_group(groups[i])
                for i in range(batch.num_rows)
            ],
            pa.bool_(),
        )

    def keeps(self, row: Mapping[str, Any]) -> bool:  # Any: values of columns
        """Whether a row passes."""
        return all(_matches_any(row[name] or "", patterns) for name, patterns in self.patterns) and not (
            self.hides_system_groups and is_system_group(row["group"])
        )

    def matches(self, name: str) -> bool:
        """Whether a name matches a pattern of the first column."""
        return _matches_any(name, self.patterns[0][1])


def _matches_any(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def keep_where(
    *,
    group: str | None = None,
    topic: str | Sequence[str] | None = None,
    state: str | None = None,
    topic_column: str = "topic",
    all_groups: bool = True,
) -> KeepWhere | None:
    """The filter of these patterns; None without a pattern.

    Without `all_groups`, RocketMQ's own groups are left out, unless `group` names them: a leading wildcard
    does not.
    """
    given = (("group", group), (topic_column, topic), ("state", state))
    patterns = tuple(
        (name, (texts,) if isinstance(texts, str) else tuple(texts)) for name, texts in given if texts
    )
    hides = not all_groups and (group is None or group[:1] in ("*", "?", "["))
    return KeepWhere(patterns, hides) if patterns or hides else None


def filtered(
    batches: Iterable[pa.RecordBatch], filters: MessageChoice, time_column: str | None
) -> Iterator[pa.RecordBatch]:
    """The rows that pass the filters, by the columns of a view for topic, queue, tags, keys and time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        if "topic" in batch.schema.names and (filters.has_topics or not filters.include_system_topics):
            topics = batch["topic"].to_pylist()
            batch = batch.filter(
                pa.array([topic is not None and filters.chooses_topic(topic) for topic in topics], pa.bool_())
            )
        if filters.queue_ids:
            batch = batch.filter(
                pc.is_in(batch["queueId"], value_set=pa.array(filters.queue_ids, batch["queueId"].type))
            )
        if filters.tags:
            batch = batch.filter(pc.is_in(batch["tags"], value_set=pa.array(list(filters.tags), pa.string())))
        if filters.key is not None:
            words = zip(batch["keys"].to_pylist(), batch["msgId"].to_pylist(), strict=True)
            batch = batch.filter(
                pa.array(
                    [filters.key in (keys or ()) or filters.key == id_ for keys, id_ in words], pa.bool_()
                )
            )
        for bound, compare in ((filters.since_ms, pc.greater_equal), (filters.until_ms, pc.less)):
            if bound is not None and time_column is not None:
                batch = batch.filter(
                    compare(batch[time_column].cast(pa.int64()), pa.scalar(bound * 1000, pa.int64()))
                )
        yield batch


def first_rows(batches: Iterable[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if limit is not None and batch.num_rows >= limit:
            yield batch.slice(0, limit)
            return
        limit = None if limit is None else limit - batch.num_rows
        yield batch


# ---- bodies for the rows of a view -------------------------------------------------------------------------


def with_body_option(command: Command) -> Command:
    """`--with-body`, as `with_body`."""
    about = "Also show the bodies; --body-form sets their form in JSON and CSV."
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

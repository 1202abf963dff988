"""The format `rmqlog` as Spark sees it: its name, its schema, and its readers and writers.

Each Python process of Spark imports this module: the one that plans, the tasks, and the source of each
stream. So what only some of them need is imported where it is used (`test_source_process.py` counts).

The options of a SQL table are kept in the metadata of its first column, because Spark forgets them.
`CREATE TABLE t USING rmqlog OPTIONS (…)` passes the options to `schema()` only. A later `SELECT` passes the
table's schema and the options of the statement to `reader()`. The catalog keeps the metadata in between.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from rmq_spark.options.option import BATCH, MESSAGES, STREAM, Given, path_list, paths_json, single_path
from rmq_spark.options.read_options import (
    CHOICES,
    OPTIONS,
    PRECEDENCE,
    ReadOptions,
    is_catalog,
    parse_read_options,
    user_options,
)
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.spark.compat import refuse_group
from rmq_spark.spark.short_errors import short_errors
from rmq_spark.spark.types import fields_from_schema, to_spark_schema
from store_format.errors import OptionError, StoreError

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from rmq_spark.write.target import WriteTarget

METADATA_KEY = "rmqlog.options"
_PATHS = CHOICES[0]


class RmqLogDataSource(DataSource):
    """The format of `spark.read.format("rmqlog")`, `readStream`, `write` and `writeStream`.

    The options are in `rmq_spark.options.read_options` and `write_table`, the columns in
    `rmq_spark.plan.output_fields`.
    """

    session: Mapping[str, str] | None = None  # settings of Spark that `register` adds
    strategies: Collection[str] | None = ()  # the user's own code that the session may name; None: any

    @classmethod
    def name(cls) -> str:
        return "rmqlog"

    @short_errors
    def schema(self) -> StructType:
        options = _option_dict(self.options)
        parsed = parse_read_options(options, where=None)  # a batch or a stream: Spark does not say which
        refuse_group(parsed, options)
        if parsed.view == MESSAGES:
            arrow_schema = fields_from_options(parsed).to_arrow_schema()
        else:
            from rmq_spark.spark.view_reader import view_from_options

            arrow_schema = view_from_options(parsed).to_arrow_schema()
        return remember_options(to_spark_schema(arrow_schema), options)

    @short_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read_options(schema)
        if options.view != MESSAGES:
            from rmq_spark.spark.view_reader import RmqLogViewReader, view_from_schema

            return RmqLogViewReader(view_from_schema(schema, options), options)
        from rmq_spark.spark.batch_reader import RmqLogReader

        return RmqLogReader(Scan(fields_from_schema(schema, options), options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from rmq_spark.spark.stream_reader import FailedStreamReader, RmqLogStreamReader

        try:
            options = self._read_options(schema, STREAM)
            refuse_group(options)
            return RmqLogStreamReader(Scan(fields_from_schema(schema, options), options))
        except StoreError as error:
            return FailedStreamReader(error)

    def _read_options(self, schema: StructType, where: str = BATCH) -> ReadOptions:
        options = parse_read_options(recall_options(schema, _option_dict(self.options), where), where=where)
        if options.group is not None and options.group.own_code:
            from rmq_spark.consume.own_code import refuse_unlisted

            refuse_unlisted(options.group.own_code, self.strategies)
        if self.session is None:
            return options
        from rmq_spark.spark.session_settings import SessionSettings

        return replace(options, session=SessionSettings(self.session))

    @short_errors
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise OptionError("a store can only be appended to: use mode('append'), or write to another path")
        from rmq_spark.spark.writers import RmqLogWriter
        from rmq_spark.write.stage_and_commit import begin_write

        return RmqLogWriter(begin_write(self._target(schema)))

    @short_errors
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """In output mode complete (`overwrite`), each whole result is appended, as in Kafka's sink."""
        from rmq_spark.spark.writers import RmqLogStreamWriter

        return RmqLogStreamWriter(self._target(schema))

    def _target(self, schema: StructType) -> WriteTarget:
        """Raises OptionError for wrong columns: here on the driver, and not in a task after a shuffle."""
        from rmq_spark.options.write_options import parse_write_options
        from rmq_spark.produce.columns import check_columns
        from rmq_spark.write.send_back import check_place_columns
        from rmq_spark.write.target import open_target

        options = parse_write_options(_option_dict(self.options))
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        if options.send_back is not None:
            target = open_target(options)
            check_place_columns(columns, target)
        elif options.decides:
            from rmq_spark.broker import check_name_columns

            target = open_target(options)
            check_name_columns(columns, target)
        else:
            check_columns(columns, options.topic, options.property_columns)
            target = open_target(options)
        return target


def _option_dict(options: Any) -> dict[str, str]:  # Any: Spark's CaseInsensitiveDict, which is no public type
    return dict(options)


# ---- the options of a SQL table ----------------------------------------------------------------------------


def remember_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """`schema` with the options in its metadata if a catalog asks (CREATE TABLE), else `schema` itself.

    Other reads pass their options to the reader, and the metadata would follow their columns into other
    tables.
    """
    from pyspark.sql.types import StructField, StructType

    if not is_catalog(options) or not schema.fields:
        return schema
    first, *others = schema.fields
    kept = {name: _lasting(name, text) for name, text in user_options(options, None).items()}
    metadata = {**first.metadata, METADATA_KEY: json.dumps(kept, ensure_ascii=False, sort_keys=True)}
    return StructType([StructField(first.name, first.dataType, first.nullable, metadata), *others])


def recall_options(schema: StructType, options: Mapping[str, str], where: str = BATCH) -> dict[str, str]:
    """The options of a read of `schema`: the remembered ones, overridden by the given ones (`WITH (…)`).

    With an explicit path, no remembered option applies. A given option also removes remembered options that
    exclude it or take precedence over it: `subscribePattern` removes `subscribe`, and `startingOffsets`
    removes `startingTimestamp`. Remembered options that do not apply to `where`, such as a stream's rate in a
    batch, are left out. Raises OptionError without any path.
    """
    given = user_options(options, where)
    if any(name in given for name in _PATHS):
        return given
    applicable = {option.name for option in OPTIONS if where in option.applies}
    remembered = {name: text for name, text in _remembered(schema).items() if name in applicable}
    if not any(name in remembered for name in _PATHS):
        raise OptionError(
            "path is not given; give the broker's store directory, as in load('/data/store'). Create a table "
            "without a column list, as in CREATE TABLE t USING rmqlog OPTIONS (path '/data/store'): with a "
            "column list, Spark does not keep the options"
        )
    for group in (*CHOICES, *PRECEDENCE):
        if any(name in given for name in group):
            remembered = {name: text for name, text in remembered.items() if name not in group}
    return {**remembered, **given}


def _lasting(name: str, text: str) -> str:
    """The option's text with absolute paths. Times stay relative: each query counts from its own start."""
    given = Given(name, text, 0)
    match name:
        case "path" | "otherPath":
            return single_path(given)[0]
        case "paths":
            return json.dumps(paths_json(given), ensure_ascii=False)
        case "storePathCommitLog":
            return ",".join(path_list(given))
    return text


def _remembered(schema: StructType) -> dict[str, str]:
    if not schema.fields:
        return {}
    text = schema.fields[0].metadata.get(METADATA_KEY)
    if text is None:
        return {}
    try:
        kept = json.loads(text)
    except (TypeError, ValueError) as error:
        raise _bad_metadata() from error
    if not isinstance(kept, dict) or not all(isinstance(value, str) for value in kept.values()):
        raise _bad_metadata()
    return user_options(kept, None)


def _bad_metadata() -> OptionError:
    return OptionError(
        f"expected the table's options as a JSON object in the metadata {METADATA_KEY} of its first column, "
        "found something else; create the table again"
    )

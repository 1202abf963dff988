"""The format `rmqlog` as Spark sees it: its name, its schema, and its readers and writers.

Each Python process of Spark imports this module: the one that plans, the tasks, and the source of each
stream. So what only some of them need is imported where it is used (`test_source_process.py` counts).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from rmq_spark.options.option import MESSAGES, STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.spark.compat import refuse_group
from rmq_spark.spark.message_schema import fields_from_schema
from rmq_spark.spark.short_errors import short_errors
from rmq_spark.spark.table_options import recall_options, remember_options
from rmq_spark.spark.types import to_spark_schema
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


class RmqLogDataSource(DataSource):
    """The format of `spark.read.format("rmqlog")`, `readStream`, `write` and `writeStream`.

    The options are in `rmq_spark.options.read_table` and `write_table`, the columns in
    `rmq_spark.plan.output_fields`.
    """

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
            from rmq_spark.spark.view_schema import view_from_options

            arrow_schema = view_from_options(parsed).to_arrow_schema()
        return remember_options(to_spark_schema(arrow_schema), options)

    @short_errors
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_read_options(recall_options(schema, _option_dict(self.options)))
        if options.view != MESSAGES:
            from rmq_spark.spark.view_reader import RmqLogViewReader
            from rmq_spark.spark.view_schema import view_from_schema

            return RmqLogViewReader(view_from_schema(schema, options), options)
        from rmq_spark.spark.batch_reader import RmqLogReader

        return RmqLogReader(Scan(fields_from_schema(schema, options), options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from rmq_spark.spark.stream_reader import FailedStreamReader, RmqLogStreamReader

        try:
            options = parse_read_options(
                recall_options(schema, _option_dict(self.options), STREAM), where=STREAM
            )
            refuse_group(options)
            return RmqLogStreamReader(Scan(fields_from_schema(schema, options), options))
        except StoreError as error:
            return FailedStreamReader(error)

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
        from rmq_spark.services.decision_rows import check_name_columns
        from rmq_spark.services.decisions import COMMIT, ROLLBACK
        from rmq_spark.write.send_back_rows import check_place_columns
        from rmq_spark.write.target import open_target

        options = parse_write_options(_option_dict(self.options))
        columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        if options.send_back is not None:
            target = open_target(options)
            check_place_columns(columns, target)
        elif options.transaction in (COMMIT, ROLLBACK):
            target = open_target(options)
            check_name_columns(columns, target)
        else:
            check_columns(columns, options.topic, options.property_columns)
            target = open_target(options)
        return target


def _option_dict(options: Any) -> dict[str, str]:  # Any: Spark's CaseInsensitiveDict, which is no public type
    return dict(options)

"""The format `rmqlog` as Spark sees it: name, schema, and a reader made from options and schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader

from rmq_spark.batch import RmqLogReader
from rmq_spark.options import parse_read_options
from rmq_spark.scan import Scan
from rmq_spark.schema import projection_from_options, projection_from_schema
from rmq_spark.sql_tables import recall_options, remember_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["RmqLogDataSource", "register"]


class RmqLogDataSource(DataSource):
    """`spark.read.format("rmqlog")`. Options are in `option_table`, columns in `schema`."""

    @classmethod
    def name(cls) -> str:
        return "rmqlog"

    def schema(self) -> StructType:
        options = _plain(self.options)
        projection = projection_from_options(parse_read_options(options))
        return remember_options(projection.to_spark_schema(), options)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_read_options(recall_options(schema, _plain(self.options)))
        return RmqLogReader(Scan(projection_from_schema(schema, options), options))


def register(spark: SparkSession, by_value: bool = False) -> None:
    """Make `rmqlog` known to a session, classic or Connect.

    `by_value` sends this package's code along, for clusters whose workers have numpy and pyarrow but not this package.
    """
    if by_value:
        from pyspark import cloudpickle

        import pyspark_rmqlog
        import rmq_spark
        import store_format

        for module in (store_format, rmq_spark, pyspark_rmqlog):
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # pyspark's copy has no types
    spark.dataSource.register(RmqLogDataSource)


def _plain(options: Any) -> dict[str, str]:  # Any: Spark's CaseInsensitiveDict, which is no public type
    return dict(options)

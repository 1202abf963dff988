"""Apache RocketMQ's store files as a Spark data source, and the client side of RocketMQ in Python.

Importing this package does not import pyspark; calling `register` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource

__all__ = ["register"]


def register(spark: SparkSession, by_value: bool = False) -> None:
    """Register the format `rmqlog` with a session, classic or Connect.

    With `by_value`, the source text of `rmq_spark` and `store_format` travels with each query, for clusters
    whose Python workers have numpy and pyarrow but not this package.

    Also makes the session the active session of the calling thread: call it in each thread that writes.
    """
    from rmq_spark.spark.data_source import RmqLogDataSource

    source: type[DataSource] = RmqLogDataSource
    if by_value:
        from rmq_spark.spark.by_value import carried_data_source

        source = carried_data_source(RmqLogDataSource.name())
    spark.dataSource.register(source)
    # Spark looks up the format of a write in the active session of the JVM's thread, and a new thread has
    # none. createDataFrame is the only public function that sets the active session.
    spark.createDataFrame([], "n int")

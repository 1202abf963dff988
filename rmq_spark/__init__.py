"""Apache RocketMQ's store files as a Spark data source, and the client side of RocketMQ in Python.

Importing this package imports no pyspark: `register` does, when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession, by_value: bool = False) -> None:
    """Make `format("rmqlog")` known to `spark`; with `by_value`, also on executors that do not have this
    package.

    A thread that writes calls it itself: Spark looks up the format of a write in the active session of the
    thread. By value means that the source of `rmq_spark` and `store_format` travels with each task; numpy and
    pyarrow must be there.
    """
    from rmq_spark.spark import data_source

    data_source.register(spark, by_value=by_value)

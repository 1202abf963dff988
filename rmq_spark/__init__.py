"""Apache RocketMQ's store files as a Spark data source, and the client side of RocketMQ in Python.

Importing this package does not import pyspark; calling its functions does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

    from rmq_spark.store import LogCluster, LogStore

__all__ = ["drop_duplicates", "open", "register"]


def open(path: str, *, commit_log_paths: Sequence[str] = ()) -> LogStore | LogCluster:
    """Opens a store, or the directory of a cluster with one store for each broker. Needs no Spark.

    Both have `topics()`, `queues()`, `view(name)`, `find(...)` and `messages(topic, since=, until=, where=)`;
    the charts of `rmq_spark.charts` take both. Reading changes no file and takes no lock.
    `commit_log_paths` are the directories of one store's commitlog files (`storePathCommitLog`), where they
    are not in the store.

    Raises StoreNotFoundError for a directory without a store, OptionError for two copies of one broker.

    Example::

        import rmq_spark

        store = rmq_spark.open("/data/store")
        store.messages("Orders", columns=["storeTimestamp", "keys", "body"], since="-2h").to_table()
        store.queue("Orders", 0).to_table()
        store.view("lag")
    """
    from rmq_spark.store import open_path

    return open_path(path, commit_log_paths)


def register(spark: SparkSession, by_value: bool = False) -> None:
    """Register the format `rmqlog` with a session, classic or Connect.

    With `by_value`, the source text of `rmq_spark` and `store_format` travels with each query, for clusters
    whose Python workers have numpy and pyarrow but not this package.

    Logs a warning if the Python of Spark's workers (PYSPARK_PYTHON) cannot import what a query needs.

    Also makes the session the active session of the calling thread: call it in each thread that writes.
    """
    from rmq_spark.spark.data_source import RmqLogDataSource
    from rmq_spark.spark.worker_python import warn_of_worker_python

    source: type[DataSource] = RmqLogDataSource
    if by_value:
        from rmq_spark.spark.by_value import carried_data_source

        source = carried_data_source(RmqLogDataSource.name())
    spark.dataSource.register(source)
    warn_of_worker_python(spark, by_value=by_value)
    # Spark looks up the format of a write in the active session of the JVM's thread, and a new thread has
    # none. createDataFrame is the only public function that sets the active session.
    spark.createDataFrame([], "n int")


def drop_duplicates(
    df: DataFrame, by: str | Column | Sequence[str | Column] = "msgId", within: str | None = None
) -> DataFrame:
    """The messages of `df`, batch or stream, each key once.

    `by` is a column or an expression, or several: `msgId` is the same for the messages that a producer sent
    again after a timeout; for a business key take `keys` (all words of KEYS together), a property column or
    `get_json_object(…)`. A message whose key is null is kept.

    In a batch the message that was stored first is kept; with `within` also one that was stored more than
    `within` after the message before with the same key. `df` needs the columns topic, brokerName, queueId,
    queueOffset and storeTimestamp.

    A stream needs `within`, for example `1 hour`: Spark keeps each key for so long after it was read, in the
    state of the query, and drops a later message with the key. A duplicate that is read later than that is
    not noticed, and a new checkpoint knows no keys. The time is that of reading, not the store time: Spark
    loses rows behind a watermark, and in store times a queue that lags behind the others would be lost.

    Raises OptionError for a missing column, or a stream without `within`.

    Example: `drop_duplicates(spark.read.format("rmqlog").load("/data/store"), by="keys")`.
    """
    from rmq_spark.spark.drop_duplicates import drop_duplicates

    return drop_duplicates(df, by, within)

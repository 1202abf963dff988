"""Reads and writes Apache RocketMQ's store files: in Python with `open`, in Spark with `register`.

Importing this package does not import pyspark. `open` does not need pyspark; `register` and `drop_duplicates`
do. See also `rmq_spark.charts`, `rmq_spark.pop` and `rmq_spark.services`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

    from rmq_spark.store import LogCluster, LogStore

__all__ = ["drop_duplicates", "open", "register"]


def open(
    path: str | PathLike[str],
    *,
    commit_log_paths: Sequence[str] = (),
    options: Mapping[str, str] | None = None,
    compacted: bool = True,
    tiered_path: str | None = None,
) -> LogStore | LogCluster:
    """Opens a store, or a directory that contains the stores of several brokers (a cluster). Needs no Spark.

    Returns a `LogStore` or a `LogCluster`. Both have `topics()`, `queues()`, `view(name)`, `find(...)` and
    `messages(topic, since=, until=, where=)`, and the charts of `rmq_spark.charts` accept both. Reading
    changes no file and takes no lock. `commit_log_paths` are the directories of the commitlog files of one
    store, if they are not in the store (`storePathCommitLog`). `~` in `path` is the home directory.
    `options` are the `fs.…` options of Spark for a path on object storage, such as `{"fs.endpoint": …}`: all
    stores of this process that are in the same bucket use them. Of topics with cleanup.policy=COMPACTION you
    get the messages that consumers get; with `compacted=False` those of the commitlog.
    With `tiered_path`, the broker's `tieredStoreFilePath`, queues begin with the messages that are only in
    tiered storage.

    Raises StoreNotFoundError for a directory without a store, and OptionError if the directory contains two
    stores of one broker, or for a wrong option.

    Example::

        import rmq_spark

        store = rmq_spark.open("/data/store")
        store.messages("Orders", columns=["storeTimestamp", "keys", "body"], since="-2h").to_table()
        store.queue("Orders", 0).to_table()
        store.view("lag")
    """
    from os import fspath
    from os.path import expanduser

    from rmq_spark.store import open_path

    return open_path(
        expanduser(fspath(path)), commit_log_paths, options, compacted=compacted, tiered_path=tiered_path
    )


def register(spark: SparkSession, by_value: bool = False) -> None:
    """Makes the format `rmqlog` known to a Spark session, classic or Connect.

    With `by_value`, the source code of `rmq_spark` and `store_format` is sent with each query. Use it for
    clusters whose Python workers have numpy, numba and pyarrow, but not this package.

    Logs a warning if the Python of Spark's workers (PYSPARK_PYTHON) cannot import the packages that a query
    needs. The session becomes the active session of the calling thread, which a write needs: call `register`
    in each thread that writes.

    Stores on S3 are reached as the settings `spark.hadoop.fs.s3a.…` say that the session has now: set them
    before.

    Example::

        rmq_spark.register(spark)
        spark.read.format("rmqlog").option("subscribe", "Orders").load("/data/store")
    """
    from rmq_spark.spark.compat import register_format
    from rmq_spark.spark.data_source import RmqLogDataSource
    from rmq_spark.spark.session_settings import with_settings
    from rmq_spark.spark.worker_python import warn_of_worker_python

    source: type[DataSource] = RmqLogDataSource
    if by_value:
        from rmq_spark.spark.by_value import carried_data_source

        source = carried_data_source(RmqLogDataSource.name())
    register_format(spark, with_settings(source, spark), by_value=by_value)
    warn_of_worker_python(spark, by_value=by_value)
    # Spark looks up the format of a write in the active session of the JVM's thread, and a new thread has
    # none. createDataFrame is the only public function that sets the active session.
    spark.createDataFrame([], "n int")


def drop_duplicates(
    df: DataFrame, by: str | Column | Sequence[str | Column] = "msgId", within: str | None = None
) -> DataFrame:
    """Returns the messages of `df`, a batch or a stream, without messages whose key occurred before.

    `by` is the key: a column, an expression, or several of them. `msgId` is the same for messages that a
    producer sent again after a timeout. For a business key use `keys` (all words of KEYS together), a
    property column or `get_json_object(…)`. A message whose key is null is kept.

    In a batch, the message that was stored first is kept. With `within`, for example `1 hour`, a message is
    also kept if it was stored more than `within` after the previous message with the same key. `df` needs the
    columns topic, brokerName, queueId, queueOffset and storeTimestamp.

    A stream needs `within`. Spark keeps each key in the state of the query for this time after it was read,
    and drops later messages with the key. A duplicate that is read after this time is not dropped, and a new
    checkpoint contains no keys. The time of reading counts, not the store time: Spark loses rows behind a
    watermark, and with store times it would lose the rows of a queue that lags behind the others.

    Raises OptionError for a missing column, and for a stream without `within`.

    Example: `drop_duplicates(spark.read.format("rmqlog").load("/data/store"), by="keys")`.
    """
    from rmq_spark.spark.drop_duplicates import drop_duplicates

    return drop_duplicates(df, by, within)

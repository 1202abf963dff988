"""Spark's automatic registration: Spark imports each top-level module `pyspark_*` for its `DefaultSource`.

If one such module fails to import, Spark registers no data source of any module. So a failure here only means
that there is no `DefaultSource`.
"""

import contextlib

# `rmq_spark.register` raises the error that is suppressed here
with contextlib.suppress(Exception):
    from rmq_spark.spark.data_source import RmqLogDataSource as DefaultSource

__all__ = ["DefaultSource"]

"""Spark's automatic registration: it imports every top-level module `pyspark_*` and registers its
`DefaultSource`.

One module that fails to import disables this for all data sources of the machine, so here a failure only
means no `DefaultSource`.
"""

import contextlib

# whatever is broken or missing is said by `rmq_spark.register`, which raises it
with contextlib.suppress(Exception):
    from rmq_spark.spark.data_source import RmqLogDataSource as DefaultSource

__all__ = ["DefaultSource"]

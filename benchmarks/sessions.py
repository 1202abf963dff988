"""The Spark session that every benchmark of Spark runs in: local[2], the settings of conf/, both sources and
the counting sink.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import rmq_spark
from benchmarks.ceiling import CeilingDataSource
from benchmarks.counting import CountingDataSource

_ROOT = Path(__file__).absolute().parent.parent  # not resolved: an older commit links to this directory


@contextmanager
def session(directory: Path, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """local[2] with the settings of conf/ and `settings`; workers find this checkout through PYTHONPATH.

    Within another `session` it is the same one: what was read before has then warmed it up.
    """
    if (running := SparkSession.getActiveSession()) is not None:
        yield running
        return
    os.environ.setdefault("SPARK_CONF_DIR", str(_ROOT / "conf"))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    builder = (
        SparkSession.builder.master("local[2]")
        .appName("rmqlog benchmarks")
        .config("spark.driver.memory", "3g")  # for what the writes read from, which is cached
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
    )
    for name, value in (settings or {}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rmq_spark.register(spark)
    spark.dataSource.register(CeilingDataSource)
    spark.dataSource.register(CountingDataSource)
    try:
        yield spark
    finally:
        spark.stop()

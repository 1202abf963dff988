"""A continuous query of a consumer group in a process of its own, to be killed: a batch goes to a directory
named after its id.

python -m tests.support.spark.group_process STORE CHECKPOINT OUTPUT [OPTION=VALUE …]. A batch begins each
second, and takes a little longer than it needs, so that one is in flight when the process is killed.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = "topic string, brokerName string, queueId int, queueOffset long"
_PAUSE_S, _TRIGGER = 0.3, "1 second"


def main(store: str, checkpoint: str, output: str, *options: str) -> None:
    """Streams until it is killed; prints a line when the query runs."""
    from pyspark.sql import SparkSession

    import rmq_spark

    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1").getOrCreate()
    rmq_spark.register(spark)

    def keep(frame: DataFrame, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{output}/batch={batch}")
        time.sleep(_PAUSE_S)

    reader = (
        spark.readStream.format("rmqlog")
        .schema(COLUMNS)
        .options(**dict(option.split("=", 1) for option in options))
    )
    writer = reader.load(store).writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime=_TRIGGER).start()
    print("running", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A job for `spark-submit`: counts the messages of a store, or of a directory of stores, by topic and broker.

spark-submit examples/count_messages.py /data/store
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession

import rmq_spark


def main(path: str) -> None:
    spark = SparkSession.builder.appName("count messages").getOrCreate()
    rmq_spark.register(spark)
    try:
        # `columns` is what the tasks decode: without it they would decode every body, to count rows
        messages = spark.read.format("rmqlog").option("columns", "topic,brokerName").load(path)
        messages.groupBy("topic", "brokerName").count().orderBy("topic", "brokerName").show(truncate=False)
    finally:
        spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

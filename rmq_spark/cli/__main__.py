"""`python -m rmq_spark.cli` is `rmqlog`."""

from __future__ import annotations

from rmq_spark.cli.main import run

run()

"""A RocketMQ broker's background work without a broker: delivery, retry, transactions, cleaning, recovery.

The store's broker must be stopped; rmqlog refuses a store in use. `run_once` runs one turn of the services,
`Services` runs them in a loop beside your queries, and `rmqlog services` is the same as a command. `Orderly`
handles the messages of a Spark stream in order. docs/services.md explains each service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_spark.broker import HalfMessage, Services, clean, retry, run_once, timer, transaction
from store_format.commit.recover import recover

if TYPE_CHECKING:
    from rmq_spark.spark.orderly import Orderly

__all__ = [
    "HalfMessage",
    "Orderly",
    "Services",
    "clean",
    "recover",
    "retry",
    "run_once",
    "timer",
    "transaction",
]


def __getattr__(name: str) -> Any:  # Any: mypy takes the name from the import above
    """`Orderly` is in the room of Spark: importing the services does not import pyspark."""
    if name == "Orderly":
        from rmq_spark.spark.orderly import Orderly

        return Orderly
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

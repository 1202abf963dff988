"""A RocketMQ broker's background work without a broker: delivery, retry, transactions, cleaning, recovery.

The store's broker must be stopped; rmqlog refuses a store in use. `run_once` runs one turn of the services,
`Services` runs them in a loop beside your queries, and `rmqlog services` is the same as a command. `Orderly`
handles the messages of a Spark stream in order. `change_topic`, `delete_topic`, `change_group` and
`delete_group` do what mqadmin asks of a broker. docs/services.md explains each service.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rmq_spark.broker import HalfMessage, Services, clean, retry, run_once, timer, transaction
from store_format.commit.administer import change_group, change_topic, delete_group, delete_topic
from store_format.commit.recover import recover

if TYPE_CHECKING:
    from rmq_spark.spark.orderly import Orderly

__all__ = [
    "HalfMessage",
    "Orderly",
    "Services",
    "change_group",
    "change_topic",
    "clean",
    "delete_group",
    "delete_topic",
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

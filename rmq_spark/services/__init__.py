"""RocketMQ's background work without a broker: delivery, retry, transactions, cleaning, recovery.

The services work on stores that no broker has open: stopped, copied, or written by Spark alone. A store in
use is refused. `run_once` is one turn, `Services` a loop beside queries, `rmqlog services` the command.
"""

from __future__ import annotations

from rmq_spark.services import retry
from rmq_spark.services.loop import Services
from rmq_spark.services.turn import run_once

__all__ = ["Services", "retry", "run_once"]

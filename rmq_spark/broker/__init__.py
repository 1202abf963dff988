"""A RocketMQ broker's work without a broker: pop, services, retries, and resending dead letters.

This module is the door: other rooms import the names below from here, and nothing from the rooms behind it. A
name is imported when it is used, so a command or a query pays only for its own part of the work.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rmq_spark.broker.pop.message import ConsumerMetrics as ConsumerMetrics
    from rmq_spark.broker.pop.message import MessageView as MessageView
    from rmq_spark.broker.pop.simple_consumer import FilterExpression as FilterExpression
    from rmq_spark.broker.pop.simple_consumer import SimpleConsumer as SimpleConsumer
    from rmq_spark.broker.pop.stream import PopPositions as PopPositions
    from rmq_spark.broker.services import clean as clean
    from rmq_spark.broker.services import timer as timer
    from rmq_spark.broker.services import transaction as transaction
    from rmq_spark.broker.services import turn as turn
    from rmq_spark.broker.services.clean import LOSS_COLUMNS as LOSS_COLUMNS
    from rmq_spark.broker.services.clean import Forecast as Forecast
    from rmq_spark.broker.services.clean import forecast as forecast
    from rmq_spark.broker.services.decision_rows import check_name_columns as check_name_columns
    from rmq_spark.broker.services.decision_rows import collect_names as collect_names
    from rmq_spark.broker.services.decision_rows import commit_decisions as commit_decisions
    from rmq_spark.broker.services.decisions import HalfMessage as HalfMessage
    from rmq_spark.broker.services.orderly import OrderlyGroup as OrderlyGroup
    from rmq_spark.broker.services.service import PartsFailedError as PartsFailedError
    from rmq_spark.broker.services.turn import Services as Services
    from rmq_spark.broker.services.turn import chosen_services as chosen_services
    from rmq_spark.broker.services.turn import run_once as run_once

_HOMES = {
    "ConsumerMetrics": "pop.message",
    "FilterExpression": "pop.simple_consumer",
    "Forecast": "services.clean",
    "LOSS_COLUMNS": "services.clean",
    "HalfMessage": "services.decisions",
    "MessageView": "pop.message",
    "OrderlyGroup": "services.orderly",
    "PartsFailedError": "services.service",
    "PopPositions": "pop.stream",
    "Services": "services.turn",
    "SimpleConsumer": "pop.simple_consumer",
    "check_name_columns": "services.decision_rows",
    "chosen_services": "services.turn",
    "collect_names": "services.decision_rows",
    "commit_decisions": "services.decision_rows",
    "forecast": "services.clean",
    "run_once": "services.turn",
}
_MODULES = ("clean", "timer", "transaction", "turn")


def __getattr__(name: str) -> Any:  # Any: whatever the name is
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name in _MODULES:
        return import_module(f"{__name__}.services.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

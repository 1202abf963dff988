"""Pop: consumers of a group share the messages of a queue, without a broker (RocketMQ 5's SimpleConsumer).

`SimpleConsumer` receives messages, acknowledges them, and changes how long they stay invisible. docs/pop.md
explains the rules.
"""

from __future__ import annotations

from rmq_spark.broker.pop.filters import FilterExpression
from rmq_spark.broker.pop.message import MessageView
from rmq_spark.broker.pop.metrics import ConsumerMetrics
from rmq_spark.broker.pop.simple_consumer import SimpleConsumer

__all__ = ["ConsumerMetrics", "FilterExpression", "MessageView", "SimpleConsumer"]

"""Pop: consumers of a group share the messages of a queue, without a broker (RocketMQ 5's SimpleConsumer).

`SimpleConsumer` receives messages, acknowledges them, and changes how long they stay invisible. docs/pop.md
explains the rules.
"""

from __future__ import annotations

from rmq_spark.broker import ConsumerMetrics, FilterExpression, MessageView, SimpleConsumer

__all__ = ["ConsumerMetrics", "FilterExpression", "MessageView", "SimpleConsumer"]

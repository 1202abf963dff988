"""Pop: messages of a store shared one by one, without a broker (RocketMQ 5's SimpleConsumer).

`SimpleConsumer` receives, acknowledges and delays messages; `topic_pop` is what happens under it, for one
topic of one store.
"""

from __future__ import annotations

from rmq_spark.pop.filters import FilterExpression
from rmq_spark.pop.message import MessageView
from rmq_spark.pop.metrics import ConsumerMetrics
from rmq_spark.pop.simple_consumer import SimpleConsumer

__all__ = ["ConsumerMetrics", "FilterExpression", "MessageView", "SimpleConsumer"]

"""Consumers that own whole queues of a group, in plain Python: RocketMQ's push consumer and pull consumer.

`PushConsumer` hands messages to a listener, `PullConsumer` gives them to a caller that polls. docs/consume.md
explains the rules.
"""

from __future__ import annotations

from rmq_spark.client.messages import MessageExt
from rmq_spark.client.pull_consumer import PullConsumer
from rmq_spark.client.push_consumer import ConsumeContext, ConsumeStatus, PushConsumer
from rmq_spark.consume.consumer import MessageQueue

__all__ = ["ConsumeContext", "ConsumeStatus", "MessageExt", "MessageQueue", "PullConsumer", "PushConsumer"]

"""Consumers in plain Python that own whole queues of a group: RocketMQ's push consumer and pull consumer."""

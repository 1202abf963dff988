"""The topics and queues of a read: `subscribe`, `subscribePattern`, `assign`, `includeSystemTopics`.

System topics are left out by default: RocketMQ keeps its bookkeeping there (TopicValidator), and topics with
`%RETRY%`, `%DLQ%` and `%LMQ%` hold messages that another topic has already.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property

from rmq_spark.options.offset_spec import QueueName
from rmq_spark.options.option import Given, found_json, json_object, names
from store_format.names import is_system_topic, normal_topic, retry_topic

_ASSIGN_EXAMPLE = '{"TopicTest":[0,1]} or {"TopicTest":{"broker-a":[0,1]}}'


@dataclass(frozen=True)
class TopicChoice:
    """The topics and queues of a read. At most one of `names`, `pattern` and `queues` is given.

    Named topics and queues are always read. Without a choice, and for a pattern, system topics are read only
    with `include_system_topics`; a pattern that begins with `%` also matches topics that begin with `%`.
    The retry topics of `group` are always read: its own, and those of pop for the topics that are read. A
    stream that pops has no `group` here, but `pop_retry_topics`.
    """

    names: tuple[str, ...] = ()
    pattern: str | None = None
    queues: tuple[QueueName, ...] = ()
    include_system_topics: bool = False
    group: str = ""
    pop_retry_topics: frozenset[str] = frozenset()

    @cached_property
    def _expression(self) -> re.Pattern[str]:
        return re.compile(self.pattern or "", re.ASCII)

    @cached_property
    def _topics(self) -> frozenset[str]:
        return frozenset(self.named_topics)

    @cached_property
    def _queues(self) -> frozenset[QueueName]:
        return frozenset(self.queues)

    @property
    def named_topics(self) -> tuple[str, ...]:
        """The topics given by name, in the caller's order: planning refuses topics that no store has."""
        return self.names or tuple(
            dict.fromkeys(queue.topic for queue in self.queues if queue.topic is not None)
        )

    @property
    def retry_topic(self) -> str:
        """The group's retry topic; empty without a group."""
        return retry_topic(self.group) if self.group else ""

    def chooses_topic(self, topic: str) -> bool:
        """Whether the topic is read. For a retry topic of pop its name decides, see `subscribe_set`."""
        return self.chooses_by_name(topic) or self._is_retry(topic)

    def _is_retry(self, topic: str) -> bool:
        if topic in self.pop_retry_topics:
            return True
        return bool(self.group) and (topic == self.retry_topic or self.chooses_popped(topic))

    def chooses_popped(self, topic: str) -> bool:
        """Whether the name is that of the group's retry topic of pop, for one of the topics that are read."""
        popped, version = normal_topic(topic, self.group)
        return bool(self.group and version) and not is_system_topic(popped) and self.chooses_by_name(popped)

    def chooses_by_name(self, topic: str) -> bool:
        """Whether the user chose the topic, with or without the group."""
        if self.names or self.queues:
            return topic in self._topics
        if self.pattern is not None and not self._expression.fullmatch(topic):
            return False
        return not self.hides(topic)

    def chooses_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        """Whether this queue of a topic that `chooses_topic` is read."""
        if not self.queues or self._is_retry(topic):
            return True
        return (
            QueueName(topic, broker, queue_id) in self._queues
            or QueueName(topic, None, queue_id) in self._queues
        )

    def hides(self, topic: str) -> bool:
        """Whether the topic is left out only because it is a system topic."""
        if self.names or self.queues or self.include_system_topics or not is_system_topic(topic):
            return False
        return not (topic.startswith("%") and (self.pattern or "").startswith("%"))


def subscription_text(choice: TopicChoice, expression_type: str, expression: str) -> str:
    """A subscription as text, by which members of a group compare theirs: sorted topics, and the filter.

    Two members of one group must have the same subscription, as in RocketMQ.
    """
    if choice.names:
        what = ",".join(sorted(set(choice.names)))
    elif choice.queues:
        what = ",".join(sorted({str(queue) for queue in choice.queues}))
    elif choice.pattern is not None:
        what = f"/{choice.pattern}/"
    else:
        what = "every topic" + (" and the system's" if choice.include_system_topics else "")
    return f"{what} {expression_type} {expression}"


def parse_subscribe(given: Given) -> tuple[str, ...]:
    """The topics, without duplicates."""
    topics = tuple(dict.fromkeys(names(given)))
    if "*" in topics:
        raise given.error(
            "names of topics", '"*"', "leave subscribe out to read every topic, or use subscribePattern"
        )
    return topics


def parse_assign(given: Given) -> tuple[QueueName, ...]:
    """Queues from Kafka's `{"topic":[0,1]}` or `{"topic":{"broker":[0,1]}}`. A duplicate is an error."""
    queues: list[QueueName] = []
    for topic, value in json_object(given, _ASSIGN_EXAMPLE).items():
        where = json.dumps(_given_name(given, topic, "a topic"), ensure_ascii=False)
        brokers = value if isinstance(value, dict) else {None: value}
        for broker, ids in brokers.items():
            place = (
                where
                if broker is None
                else f"{where} → {json.dumps(_given_name(given, broker, 'a broker'), ensure_ascii=False)}"
            )
            if not isinstance(ids, list) or not ids:
                raise given.error(
                    f"a list of queue ids at {place}", found_json(ids), f"write it as {_ASSIGN_EXAMPLE}"
                )
            queues += [QueueName(topic, broker, _assigned_id(given, place, queue_id)) for queue_id in ids]
    if not queues:
        raise given.error("at least one queue", advice=f"write it as {_ASSIGN_EXAMPLE}")
    if len(set(queues)) != len(queues):
        twice = next(queue for i, queue in enumerate(queues) if queue in queues[:i])
        raise given.error("each queue once", found_json(str(twice)))
    return tuple(queues)


def _assigned_id(given: Given, where: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise given.error(f"queue ids from 0 at {where}", found_json(value))
    return value


def _given_name(given: Given, name: str, what: str) -> str:
    if not name or name == "*":
        raise given.error(
            f"the name of {what}", found_json(name), "assign needs queues; use subscribe for whole topics"
        )
    return name

"""What a consumer subscribes to: topics, expressions, and the numbers of its receives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from rmq_spark.broker.pop.topic_pop import Subscription
from rmq_spark.broker.pop.waiting import WaiterLook
from rmq_spark.consume.sql92 import CountingFilter, parse_sql92
from rmq_spark.consume.tag_filter import parse_tags
from store_format.errors import OptionError
from store_format.metadata.read import read_topics
from store_format.names import did_you_mean
from store_format.pop.log import in_flight_directory
from store_format.read.store_root import store_roots


@dataclass(frozen=True, slots=True)
class FilterExpression:
    """Which messages of a topic a consumer receives: a TAG expression, or an SQL92 expression.

    >>> FilterExpression("price > 3", "SQL92").filter_type
    'SQL92'
    """

    expression: str = "*"
    filter_type: str = "TAG"

    def compile(self) -> Subscription:
        """Returns the compiled filter. Raises OptionError for an expression that RocketMQ refuses."""
        if self.filter_type == "TAG":
            return Subscription(parse_tags(self.expression))
        if self.filter_type == "SQL92":
            return Subscription(where=CountingFilter(parse_sql92(self.expression)))
        raise OptionError(
            f"FilterExpression: expected filter_type TAG or SQL92, found {self.filter_type!r:.40}"
        )


def compile_subscriptions(group: str, subscriptions: object) -> dict[str, Subscription]:
    """The compiled expressions by topic.

    Raises OptionError without a topic, for a name that RocketMQ does not allow, and for an expression that it
    refuses.
    """
    if not isinstance(subscriptions, Mapping) or not subscriptions:
        raise OptionError(
            'subscriptions: expected at least one topic such as {"Orders": "*"}, '
            f"found {repr(subscriptions)[:100] if subscriptions else 'none'}"
        )
    for topic, each in subscriptions.items():
        in_flight_directory("", group, topic)
        if not isinstance(each, str | FilterExpression):
            raise OptionError(
                f"subscriptions: topic {topic}: expected tags such as 'TagA || TagB', '*', or a "
                f"FilterExpression, found {repr(each)[:100]}"
            )
    return {
        topic: (FilterExpression(each) if isinstance(each, str) else each).compile()
        for topic, each in subscriptions.items()
    }


def refuse_unknown_topics(path: str, look: WaiterLook, topics: Iterable[str]) -> None:
    """Raises OptionError for a topic that no store at the path has."""
    known: set[str] = set()
    for root in store_roots(path):
        known |= (read_topics(root) or {}).keys()
    there = {topic for store in look.stores for topic, _ in store.queues}
    for topic in topics:
        if not known | there:
            raise OptionError(
                f"{path}: expected a store with topic {topic}, found no topic at all; give the "
                "broker's store directory (storePathRootDir), or the directory of a cluster"
            )
        if topic not in known | there:
            raise OptionError(
                f"topic {topic} is not in topics.json of {path}, and has no queue; "
                f"{did_you_mean(topic, sorted(known), 'topics')}"
            )


def check_seconds(name: str, value: object, low: float, high: float | None = None) -> float:
    """Returns the seconds, also of a timedelta. Raises OptionError for a value outside of the limits."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not isinstance(value, int | float) or not value >= low or (high is not None and value > high):
        limits = f"at least {low:g}" if high is None else f"{low:g} to {high:g}"
        raise OptionError(f"{name}: expected {limits} seconds, found {value!r}")
    return value


def check_max_attempts(max_attempts: object) -> int | None:
    """Returns the largest number of deliveries. Raises OptionError for a number below 1."""
    if max_attempts is None:
        return None
    if not isinstance(max_attempts, int) or max_attempts < 1:
        raise OptionError(
            "max_attempts: expected at least 1 delivery, or None for what the group allows, "
            f"found {max_attempts!r}"
        )
    return max_attempts

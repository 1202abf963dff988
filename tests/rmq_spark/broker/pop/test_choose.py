"""The order in which a pop visits queues: PopMessageProcessor.processRequest."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from rmq_spark.broker.pop.topic_pop import ShareRules, visits
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.pop.state import RETRY, TOPIC


class _Drawn(Random):
    """Always draws one number."""

    def __init__(self, number: int) -> None:
        super().__init__(0)
        self.number = number

    def randrange(self, *args: int) -> int:  # type: ignore[override] # one argument is enough here
        assert args == (100,)
        return self.number


def _visited(drawn: int, queues: int, rules: ShareRules, *, retries: int = 1) -> list[tuple[int, int]]:
    return list(visits(range(queues), [(RETRY, each) for each in range(retries)], rules, _Drawn(drawn)))


@pytest.mark.parametrize(
    ("drawn", "expected"),
    [
        # (randomQ + n - 1 - i) mod n, and the retry topic first below popFromRetryProbability
        (0, [(RETRY, 0), (TOPIC, 3), (TOPIC, 2), (TOPIC, 1), (TOPIC, 0)]),
        (19, [(RETRY, 0), (TOPIC, 2), (TOPIC, 1), (TOPIC, 0), (TOPIC, 3)]),
        (20, [(TOPIC, 3), (TOPIC, 2), (TOPIC, 1), (TOPIC, 0), (RETRY, 0)]),
        (97, [(TOPIC, 0), (TOPIC, 3), (TOPIC, 2), (TOPIC, 1), (RETRY, 0)]),
    ],
)
def test_order(drawn: int, expected: list[tuple[int, int]]) -> None:
    assert _visited(drawn, 4, ShareRules()) == expected


def test_priority_topics_are_read_from_the_highest_queue() -> None:
    topic = TopicConfig("T", attributes={"message.type": "PRIORITY"})
    highest_first = [(TOPIC, 2), (TOPIC, 1), (TOPIC, 0), (RETRY, 0)]
    assert _visited(50, 3, ShareRules.of(topic, None)) == highest_first
    half = ShareRules.of(topic, SubscriptionGroup("g", attributes={"priority.factor": "50"}))
    assert _visited(49, 3, half) == highest_first
    assert _visited(50, 3, half) != highest_first
    assert ShareRules.of(TopicConfig("T"), None) == ShareRules()


def test_the_first_queue_is_spread_and_retries_come_first_in_a_fifth() -> None:
    random = Random(5)
    first = Counter(next(iter(visits(range(5), [(RETRY, 0)], ShareRules(), random))) for _ in range(10_000))
    assert 1800 < first[RETRY, 0] < 2200
    assert all(1300 < first[TOPIC, queue] < 1900 for queue in range(5))


def test_without_queues() -> None:
    assert _visited(30, 0, ShareRules(), retries=0) == []

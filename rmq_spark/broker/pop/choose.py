"""Which queues a pop reads, and in which order (PopMessageProcessor.processRequest, spec 11.2).

The broker draws one number below 100 for each request. It decides whether the retry topic is read before the
topic, and at which queue the reading begins; both spread consumers over the queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from store_format.errors import OptionError
from store_format.metadata.values import SubscriptionGroup, TopicConfig
from store_format.pop.state import TOPIC, PopQueue

MESSAGES_MAX = 32  # of one receive
DRAWN_BELOW = 100

_T = TypeVar("_T")

_RETRY_PROBABILITY = 20  # popFromRetryProbability, in percent
_RETRY_PROBABILITY_FOR_PRIORITY = 0  # popFromRetryProbabilityForPriority
_PRIORITY_FACTOR = 100  # the default of the group's attribute priority.factor


@dataclass(frozen=True, slots=True)
class ShareRules:
    """What the choice depends on besides the number drawn; `priority_factor` is None for other topics."""

    retry_probability: int = _RETRY_PROBABILITY
    priority_factor: int | None = None

    @classmethod
    def of(cls, topic: TopicConfig | None, group: SubscriptionGroup | None) -> ShareRules:
        """The rules for a topic and a group as their broker has them configured."""
        if topic is None or topic.message_type != "PRIORITY":
            return cls()
        text = "" if group is None else group.attributes.get("priority.factor", "")
        return cls(priority_factor=int(text) if text.isdecimal() else _PRIORITY_FACTOR)


def visits(
    queue_ids: Sequence[int], retries: Sequence[PopQueue], rules: ShareRules, random: Random
) -> Iterator[PopQueue]:
    """The queues in the order in which one pop reads them, the retry queues before or after the topic's.

    `queue_ids` are the readable queues of the topic, ascending; `retries` those of its pop retry topics. The
    topic's queues come in descending order from a random one (RocketMQ 5.4 and later), in priority mode from
    the highest.

    >>> from random import Random
    >>> list(visits(range(4), [(1, 0)], ShareRules(0), Random(1)))
    [(0, 0), (0, 3), (0, 2), (0, 1), (1, 0)]
    """
    drawn = random.randrange(DRAWN_BELOW)
    retry_probability = rules.retry_probability
    if rules.priority_factor is not None and drawn < rules.priority_factor:
        drawn, retry_probability = 0, _RETRY_PROBABILITY_FOR_PRIORITY
    retry_first = drawn < retry_probability
    ordered = _from(retries, drawn)
    if retry_first:
        yield from ordered
    yield from ((TOPIC, queue_id) for queue_id in _from(queue_ids, drawn))
    if not retry_first:
        yield from ordered


def _from(values: Sequence[_T], drawn: int) -> Iterable[_T]:
    """All values, descending and around, from the one before place `drawn`."""
    count = len(values)
    return (values[(drawn + count - 1 - i) % count] for i in range(count))


def check_message_num(max_message_num: object) -> int:
    """Returns the number of messages of a receive. Raises OptionError unless it is 1 to 32."""
    if not isinstance(max_message_num, int) or not 1 <= max_message_num <= MESSAGES_MAX:
        raise OptionError(
            f"max_message_num: expected 1 to {MESSAGES_MAX}, as a broker allows, found {max_message_num!r}; "
            "receive in a loop for more"
        )
    return max_message_num

"""The options of a stream that pops (`consumeMode=pop`): its group shares messages one by one.

A query that pops owns no queue and has no offsets of its own, so most options of a group do not apply.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from rmq_spark.consume.consume_from_where import ConsumeFromWhere
from rmq_spark.options.option import BATCH
from store_format.errors import OptionError
from store_format.names import is_system_topic, pop_retry_topic

PULL, POP = "pull", "pop"  # values of consumeMode

# DefaultMQPushConsumer.popInvisibleTime
INVISIBLE_MS = 60_000
_INVISIBLE_MS_MIN, _INVISIBLE_MS_MAX = 1_000, 12 * 3600 * 1000  # the longest that a proxy accepts
# Spark pays about 0.3 s for a micro-batch of any size. This many messages hide most of that time, and a
# backlog of more is left to the other members. It is also a broker's popInflightMessageThreshold.
MAX_OFFSETS_PER_TRIGGER = 10_000

_OF_POP = ("invisibleDuration",)
# Options of a group that pop has too; all others are about owning queues and offsets.
_SHARED = frozenset({"group", "consumeMode", "consumeFromWhere", *_OF_POP})
_STARTS = (ConsumeFromWhere.FIRST, ConsumeFromWhere.LAST)
_REASONS = {
    "assign": "the members share all queues of a topic; name the topics with subscribe",
    "subscribePattern": "each topic has a log of its own that the members share; name the topics with "
    "subscribe",
    "includeSystemTopics": "pop reads no system topics; name the topics with subscribe",
    "key": "the group would never read the other messages; use it in a stream without group",
    "messageId": "the group would never read the other messages; use it in a stream without group",
    "brokerName": "the name is written into receipt handles; set brokerName in .rmqlog/broker.conf",
}


@dataclass(frozen=True, slots=True)
class PopOptions:
    """A stream that pops as `group`. Messages that it has taken are invisible for `invisible_ms`.

    `from_first`: a group without an offset begins at the first message, else at the last one (RocketMQ's
    initMode MIN and MAX).
    """

    group: str
    invisible_ms: int = INVISIBLE_MS
    from_first: bool = False

    def retry_topics(self, topics: Iterable[str]) -> dict[str, tuple[str, int]]:
        """The group's retry topics of pop for `topics`: name -> (topic, retry flag of receipt handles)."""
        return {
            pop_retry_topic(self.group, topic, is_v2=flag == 2): (topic, flag)
            for topic in topics
            for flag in (1, 2)
        }

    @staticmethod
    def from_read(
        read: Mapping[str, object],
        given: Collection[str],
        group_names: Collection[str],
        where: str | None,
    ) -> PopOptions | None:
        """The options from parsed values; None without `consumeMode=pop`.

        `given` are the names that the caller wrote, `group_names` all options of a group, `where` the kind
        of query. Raises OptionError for options that contradict pop.
        """
        if read["consumeMode"] != POP:
            alone = next((name for name in _OF_POP if name in given), None)
            if alone is not None:
                raise OptionError(f"{alone} is for consumeMode={POP}; set consumeMode={POP}, or leave it out")
            return None
        if where == BATCH:
            raise OptionError(
                f"consumeMode={POP} is for readStream: a batch read acknowledges nothing. Leave consumeMode "
                "out to read from the group's offsets, or use readStream with Trigger.AvailableNow"
            )
        group = read["group"]
        if group is None:
            raise OptionError(
                f"consumeMode={POP} is for consumer groups; name the group with the option group"
            )
        _refuse(given, group_names)
        subscribed = read["subscribe"]
        assert isinstance(subscribed, tuple)
        system = next((topic for topic in subscribed if is_system_topic(topic)), None)
        if system is not None:
            raise OptionError(
                f"subscribe: expected topics without system topics with consumeMode={POP}, found {system}; "
                "a query that pops reads the retry topics of its topics in any case"
            )
        invisible_ms, first = read["invisibleDuration"], read["consumeFromWhere"]
        assert isinstance(group, str)
        assert isinstance(invisible_ms, int)
        if not _INVISIBLE_MS_MIN <= invisible_ms <= _INVISIBLE_MS_MAX:
            raise OptionError(f"invisibleDuration: expected 1s to 12h, found {invisible_ms / 1000:g}s")
        if first not in _STARTS:
            raise OptionError(
                f"consumeFromWhere: expected {' or '.join(_STARTS)} with consumeMode={POP}, found {first}; "
                "move the group with rmqlog offsets to begin at a time"
            )
        return PopOptions(group, invisible_ms, first == ConsumeFromWhere.FIRST)


def _refuse(given: Collection[str], group_names: Collection[str]) -> None:
    for name in given:
        reason = _REASONS.get(name)
        if name.startswith("starting"):
            reason = "a group begins at its own offset; move it with rmqlog offsets"
        elif name in group_names and name not in _SHARED:
            reason = "members that pop own no queues and keep no offsets; set consumeMode=pull"
        if reason is not None:
            raise OptionError(
                f"consumeMode={POP} and {name} are given together: {reason}, or leave {name} out"
            )
    if "subscribe" not in given:
        raise OptionError(f"consumeMode={POP} needs subscribe: name the topics that the group shares")

"""The offset of a stream that pops, as Spark stores it: the ranges that the micro-batch has taken.

    {"$pop":{"owner":"spark-5f1c…","ranges":{"topic":{"broker":{"queue":[[start,stop,popTime],…]}}}}}

A range is the messages [start, stop) of a queue, taken at `popTime` (ms since 1970). Queue, start and
popTime name a check point in the group's in-flight log. Topics are the subscribed ones and the group's
retry topics of pop. `owner` is the query's name in that log; the first offset of a new query has neither.
Spark compares offsets as text, so their order is always the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.stream_offset import POPPED, json_object, json_text, queue_number, refusal
from store_format.errors import OptionError

_OWNER, _RANGES = "owner", "ranges"
_OWNER_LENGTH_MAX = 64


class PoppedRange(NamedTuple):
    """The messages [start, stop) of a queue that the query took at `pop_time` (ms)."""

    queue: MessageQueue
    start: int
    stop: int
    pop_time: int


@dataclass(frozen=True, slots=True)
class PopOffset:
    """What the micro-batch that ends here reads: `ranges`, sorted, and nothing else.

    >>> queue = MessageQueue("Orders", "broker-a", 0)
    >>> PopOffset("spark-1", (PoppedRange(queue, 0, 32, 1700000000000),)).to_json()
    {'$pop': {'owner': 'spark-1', 'ranges': {'Orders': {'broker-a': {'0': [[0, 32, 1700000000000]]}}}}}
    """

    owner: str = ""
    ranges: tuple[PoppedRange, ...] = ()

    @staticmethod
    def from_json(value: Mapping[str, object]) -> PopOffset:
        """Raises OptionError for JSON that a stream with `consumeMode=pop` did not write."""
        if value.keys() != {POPPED}:
            raise OptionError(
                "the checkpoint belongs to a query without consumeMode=pop; start with a new checkpoint, or "
                "leave consumeMode out"
            )
        members = json_object(value[POPPED], POPPED)
        unknown = next((name for name in members if name not in (_OWNER, _RANGES)), None)
        if unknown is not None:
            raise refusal(
                f"no key {json_text(unknown)} in {POPPED}; a later version wrote the checkpoint: use that "
                "version, or a new checkpoint"
            )
        owner = members.get(_OWNER, "")
        if not isinstance(owner, str) or len(owner) > _OWNER_LENGTH_MAX:
            raise refusal(f"a name at {POPPED}/{_OWNER}, found {json_text(owner)}")
        return PopOffset(owner, _ranges(members.get(_RANGES, {})))

    def to_json(self) -> dict[str, object]:
        """The value that Spark passes to `json.dumps`."""
        members: dict[str, object] = {}
        if self.owner:
            members[_OWNER] = self.owner
        topics: dict[str, dict[str, dict[str, list[list[int]]]]] = {}
        for (topic, broker, queue_id), start, stop, pop_time in sorted(self.ranges):
            queues = topics.setdefault(topic, {}).setdefault(broker, {})
            queues.setdefault(str(queue_id), []).append([start, stop, pop_time])
        if topics:
            members[_RANGES] = topics
        return {POPPED: members}


def _ranges(topics: object) -> tuple[PoppedRange, ...]:
    found = []
    for topic, brokers in json_object(topics, _RANGES).items():
        for broker, queues in json_object(brokers, f"{_RANGES}/{topic}").items():
            for queue, rows in json_object(queues, f"{_RANGES}/{topic}/{broker}").items():
                where = f"{_RANGES}/{topic}/{broker}"
                key = MessageQueue(topic, broker, queue_number(queue, where))
                if not isinstance(rows, list):
                    raise refusal(f"a list at {where}/{queue}, found {json_text(rows)}")
                found += [PoppedRange(key, *_row(row, f"{where}/{queue}")) for row in rows]
    return tuple(found)


def _row(row: object, where: str) -> tuple[int, int, int]:
    match row:
        case [int(start), int(stop), int(pop_time)] if 0 <= start < stop and pop_time >= 0:
            return start, stop, pop_time
    raise refusal(f"[start, stop, popTime] at {where}, found {json_text(row)}")

"""The offset of a stream as Spark stores it,
`{"topic":{"broker":{"queue":n}},"$from":{…},"$reset":n,"$again":true}`, always in one order.

Spark compares offsets by their JSON. Keys are strings; topics and brokers are sorted, queues are in the order
of their numbers, and `$from`, the starts that the previous offset does not tell, comes behind them; then
`$reset`, once a group's offsets were reset; and `$again` where all the rest is equal to the offset before: a
topic was created again, and is read to the same place as before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_spark.consume.message_queue import MessageQueue
from store_format.errors import OptionError

__all__ = ["AGAIN", "FROM", "MARK", "RESET", "StreamOffset"]

FROM = "$from"
RESET = "$reset"
AGAIN = "$again"
MARK = "$"  # of keys that are no topics
_QUEUE_ID = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next queue offset to read of each queue.

    `starts` has the queues whose start in the batch that ends here is not their value in the offset before:
    all of them in the first batch, later new ones, and those that were moved. `reset` is the number of the
    last reset of the group that it has seen. `again` tells the offset from the one before where nothing else
    does: Spark makes no batch of two equal ones.
    """

    positions: dict[MessageQueue, int] = field(default_factory=dict)
    starts: dict[MessageQueue, int] = field(default_factory=dict)
    reset: int = 0
    again: bool = False

    @staticmethod
    def from_json(value: Mapping[str, object]) -> StreamOffset:
        """Raises OptionError for what this project did not write: the fault is the checkpoint's."""
        starts: dict[MessageQueue, int] = {}
        reset = 0
        again = False
        topics: dict[str, object] = {}
        for name, members in value.items():
            if name == FROM:
                starts = _flat(members, FROM)
            elif name == RESET:
                reset = _number(members, RESET)
            elif name == AGAIN:
                again = _true(members, AGAIN)
            elif name.startswith(MARK):
                raise _refusal(
                    f"no key {name!r}: the checkpoint was written by a later version; use that, or a new checkpoint"
                )
            else:
                topics[name] = members
        return StreamOffset(_flat(topics, ""), starts, reset, again)

    def to_json(self) -> dict[str, object]:
        """What Spark's `json.dumps` is given."""
        value: dict[str, object] = dict(_nested(self.positions))
        if self.starts:
            value[FROM] = _nested(self.starts)
        if self.reset:
            value[RESET] = self.reset
        if self.again:
            value[AGAIN] = True
        return value


def _nested(positions: Mapping[MessageQueue, int]) -> dict[str, dict[str, dict[str, int]]]:
    topics: dict[str, dict[str, dict[str, int]]] = {}
    here: tuple[str, str] | None = None
    for (topic, broker, queue_id), position in sorted(positions.items()):
        if here != (topic, broker):
            here = topic, broker
            queues = topics.setdefault(topic, {}).setdefault(broker, {})
        queues[str(queue_id)] = position
    return topics


def _flat(topics: object, where: str) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for topic, brokers in _object(topics, where).items():
        for broker, queues in _object(brokers, f"{where}/{topic}").items():
            for queue, offset in _object(queues, f"{where}/{topic}/{broker}").items():
                if not _QUEUE_ID.fullmatch(queue):
                    raise _refusal(f"a queue id at {where}/{topic}/{broker}, found {_shown(queue)}")
                if type(offset) is not int or offset < 0:
                    raise _refusal(f"an offset at {where}/{topic}/{broker}/{queue}, found {_shown(offset)}")
                found[MessageQueue(topic, broker, int(queue))] = offset
    return found


def _number(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        raise _refusal(f"a number at {where}, found {_shown(value)}")
    return value


def _true(value: object, where: str) -> bool:
    if value is not True:
        raise _refusal(f"true at {where}, found {_shown(value)}")
    return value


def _object(value: object, where: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _refusal(f"an object at {where or 'the top'}, found {_shown(value)}")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "…"


def _refusal(expected: str) -> OptionError:
    return OptionError(f'an offset of this stream, {{"topic":{{"broker":{{"0":23}}}}}}: expected {expected}')

"""The offset of a stream as Spark stores it: JSON, always in the same order.

    {"topic":{"broker":{"queue":n}},"$at":{…},"$from":{…},"$reset":n,"$again":true}

Spark compares offsets by their JSON. Keys are strings: topics and brokers are sorted by code points, queues
by their numbers. After them come `$at`, the place (`follow.log_tail`) of the message before each position,
and of the last message that was read from each queue that is gone; `$from`, the starts that the previous
offset does not contain; `$reset`, if a group's offsets were ever reset; and `$again`, if everything else
equals the previous offset, because a topic was created again and is read up to the same offset as before.

No file of a store says that a topic was deleted and created again, and the queue offsets begin at 0 again. A
message before a position that lies elsewhere in the commitlog now, or is another one, shows it.

The offset of a stream that pops has the ranges that the micro-batch has taken:

    {"$pop":{"owner":"spark-5f1c…","ranges":{"topic":{"broker":{"queue":[[start,stop,popTime],…]}}}}}

A range is the messages [start, stop) of a queue, taken at `popTime` (ms since 1970). Queue, start and
popTime name a check point in the group's in-flight log. Topics are the subscribed ones and the group's
retry topics of pop. `owner` is the query's name in that log; the first offset of a new query has neither.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from rmq_spark.consume.consumer import MessageQueue
from store_format.errors import OptionError

FROM = "$from"
AT = "$at"
RESET = "$reset"
AGAIN = "$again"
HELD = "$held"  # in the progress only: bytes that includeLastFile=false leaves out
POPPED = "$pop"  # the only key of a stream that pops
MARK = "$"  # first character of keys that are not topics
_QUEUE_ID = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_JSON_SHOWN_MAX = 100

_OWNER, _RANGES = "owner", "ranges"
_OWNER_LENGTH_MAX = 64


# ---- a stream ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next queue offset to read of each queue.

    `starts` has the queues whose start, in the micro-batch that ends here, differs from the previous offset:
    all queues in the first micro-batch, later new and moved queues. `reset` is the number of the last reset
    of the group that the query has followed. `again` makes the offset differ from an otherwise equal previous
    one, because Spark runs no micro-batch between equal offsets. `at` has the place of the message before
    each position, for queues that have such a message, and that of the last message that was read from queues
    that are gone.
    """

    positions: dict[MessageQueue, int] = field(default_factory=dict)
    starts: dict[MessageQueue, int] = field(default_factory=dict)
    reset: int = 0
    again: bool = False
    at: dict[MessageQueue, int] = field(default_factory=dict)

    @staticmethod
    def from_json(value: Mapping[str, object]) -> StreamOffset:
        """Raises OptionError for JSON that this project did not write: the checkpoint is at fault."""
        starts: dict[MessageQueue, int] = {}
        at: dict[MessageQueue, int] = {}
        reset = 0
        again = False
        topics: dict[str, object] = {}
        for name, members in value.items():
            if name == FROM:
                starts = _flat(members, FROM)
            elif name == AT:
                at = _flat(members, AT)
            elif name == RESET:
                reset = _reset_number(members, RESET)
            elif name == AGAIN:
                again = _true(members, AGAIN)
            elif name == POPPED:
                raise OptionError(
                    "the checkpoint belongs to a query with consumeMode=pop; set consumeMode=pop, or start "
                    "with a new checkpoint"
                )
            elif name.startswith(MARK):
                raise refusal(
                    f"no key {name!r}; a later version wrote the checkpoint: use that version, or a new "
                    "checkpoint"
                )
            else:
                topics[name] = members
        return StreamOffset(_flat(topics, ""), starts, reset, again, at)

    def to_json(self) -> dict[str, object]:
        """The value that Spark passes to `json.dumps`."""
        names = sorted(self.positions)
        value: dict[str, object] = dict(_nested(self.positions, names))
        if self.at:
            is_same = self.at.keys() == self.positions.keys()
            value[AT] = _nested(self.at, names if is_same else sorted(self.at))
        if self.starts:
            value[FROM] = _nested(self.starts, sorted(self.starts))
        if self.reset:
            value[RESET] = self.reset
        if self.again:
            value[AGAIN] = True
        return value


def _nested(
    positions: Mapping[MessageQueue, int], names: Iterable[MessageQueue]
) -> dict[str, dict[str, dict[str, int]]]:
    """The values of these queues, in this order."""
    topics: dict[str, dict[str, dict[str, int]]] = {}
    of_topic = of_broker = ""
    queues: dict[str, int] = {}
    for name in names:
        topic, broker, queue_id = name
        if topic != of_topic or broker != of_broker or not queues:
            of_topic, of_broker = topic, broker
            queues = topics.setdefault(topic, {}).setdefault(broker, {})
        queues[str(queue_id)] = positions[name]
    return topics


def _flat(topics: object, where: str) -> dict[MessageQueue, int]:
    found: dict[MessageQueue, int] = {}
    for topic, brokers in json_object(topics, where).items():
        for broker, queues in json_object(brokers, f"{where}/{topic}").items():
            for queue, offset in json_object(queues, f"{where}/{topic}/{broker}").items():
                number = queue_number(queue, f"{where}/{topic}/{broker}")
                if type(offset) is not int or offset < 0:
                    raise refusal(f"an offset at {where}/{topic}/{broker}/{queue}, found {json_text(offset)}")
                found[MessageQueue(topic, broker, number)] = offset
    return found


def _reset_number(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        raise refusal(f"a number at {where}, found {json_text(value)}")
    return value


def _true(value: object, where: str) -> bool:
    if value is not True:
        raise refusal(f"true at {where}, found {json_text(value)}")
    return value


def queue_number(text: str, where: str) -> int:
    """A queue id, which is a key in JSON. Raises OptionError for any other text."""
    if not _QUEUE_ID.fullmatch(text):
        raise refusal(f"a queue id at {where}, found {json_text(text)}")
    return int(text)


def json_object(value: object, where: str) -> Mapping[str, object]:
    """`value` if it is an object. Raises OptionError for any other JSON."""
    if not isinstance(value, dict):
        raise refusal(f"an object at {where or 'the top'}, found {json_text(value)}")
    return value


def json_text(value: object) -> str:
    """A value of a damaged checkpoint as an error shows it: at most 100 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= _JSON_SHOWN_MAX else text[:_JSON_SHOWN_MAX] + "…"


def refusal(expected: str) -> OptionError:
    """The error for an offset that this project did not write."""
    return OptionError(f'offset in the checkpoint, {{"topic":{{"broker":{{"0":23}}}}}}: expected {expected}')


# ---- a stream that pops ------------------------------------------------------------------------------------


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

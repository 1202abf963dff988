"""The queues of a read: which of them it takes, and where it begins and ends in each.

`subscribe`, `subscribePattern`, `assign` and `includeSystemTopics` choose topics and queues. System topics
are left out by default: RocketMQ keeps its bookkeeping there (TopicValidator), and topics with `%RETRY%`,
`%DLQ%` and `%LMQ%` hold messages that another topic has already.

The JSON of `startingOffsets` and the related options is `{"topic":{"broker":{"0":23}}}` or
`{"topic":{"0":23}}`. -2 means earliest, -1 latest, and `"*"` any topic, broker or queue; a queue without an
entry has the default. The most specific entry decides: topic before broker before queue.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from rmq_spark.consume.stream_offset import AGAIN, AT, FROM, RESET
from rmq_spark.options.option import Given, found_json, json_object, names, timestamp_ms
from store_format.display.rows import iso_utc
from store_format.read.choice import MessageChoice, QueueName

_ANY = "*"
_EARLIEST_VALUE, _LATEST_VALUE = -2, -1  # KafkaOffsetRangeLimit
_LONG_MAX = (1 << 63) - 1
_QUEUE_ID = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_OFFSETS_EXAMPLE = '{"TopicTest":{"broker-a":{"0":23}}} or {"TopicTest":{"0":23}}'
_TIMES_EXAMPLE = '{"TopicTest":{"broker-a":{"0":"-2 hours"}}} or {"TopicTest":{"0":1700000000000}}'

_ASSIGN_EXAMPLE = '{"TopicTest":[0,1]} or {"TopicTest":{"broker-a":[0,1]}}'


# ---- which queues ------------------------------------------------------------------------------------------


def subscription_text(choice: MessageChoice, expression_type: str, expression: str) -> str:
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


# ---- from where to where -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Earliest:
    """The minimum offset of the queue."""

    def __str__(self) -> str:
        return "earliest"


@dataclass(frozen=True, slots=True)
class Latest:
    """The maximum offset of the queue: the offset of the next message."""

    def __str__(self) -> str:
        return "latest"


@dataclass(frozen=True, slots=True)
class Offset:
    """A queue offset."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Timestamp:
    """The first message stored at or after this time, in ms since the epoch."""

    ms: int

    def __str__(self) -> str:
        return f"{self.ms} ({iso_utc(self.ms)})"


Position = Earliest | Latest | Offset | Timestamp
EARLIEST, LATEST = Earliest(), Latest()


_Place = tuple[str | None, str | None, int | None]


@dataclass(frozen=True)
class OffsetSpec:
    """One end of a read. `option` names the deciding option, for errors; `entries` are its queues."""

    option: str
    default: Position
    entries: tuple[tuple[QueueName, Position], ...] = ()

    @cached_property
    def _by_name(self) -> dict[_Place, Position]:
        return dict(self.entries)

    def for_queue(self, topic: str, broker: str, queue_id: int) -> Position:
        if self.entries:
            for name in _names_of(topic, broker, queue_id):
                position = self._by_name.get(name)
                if position is not None:
                    return position
        return self.default

    def named_queues(self) -> tuple[QueueName, ...]:
        """The queues in the option's value; planning checks with `unread` that each queue is read."""
        return tuple(name for name, _ in self.entries)

    def unread(self, queues: Iterable[tuple[str, str, int]]) -> tuple[QueueName, ...]:
        """The entries that match no (topic, broker, queue id) of `queues`: typos, or topics not read."""
        missing: dict[_Place, QueueName] = {
            name: name for name in self.named_queues() if name != (None, None, None)
        }
        for queue in queues:
            if not missing:
                break
            for name in _names_of(*queue):
                missing.pop(name, None)
        return tuple(missing.values())

    def __str__(self) -> str:
        if not self.entries:
            return str(self.default)
        tree: dict[str, dict[str, dict[str, object]]] = {}
        for name, position in self.entries:
            topic, broker, queue = (
                str(name.topic or _ANY),
                str(name.broker or _ANY),
                _ANY if name.queue_id is None else str(name.queue_id),
            )
            tree.setdefault(topic, {}).setdefault(broker, {})[queue] = _json_value(position)
        return json.dumps(tree, ensure_ascii=False, separators=(",", ":"))


def _json_value(position: Position) -> object:
    match position:
        case Offset(value):
            return value
        case Timestamp(ms):
            return ms
        case Earliest():
            return _EARLIEST_VALUE
        case Latest():
            return _LATEST_VALUE


def _names_of(topic: str, broker: str, queue_id: int) -> tuple[_Place, ...]:
    """All names that match a queue, the most specific first.

    Plain tuples, which equal QueueNames and are faster: a store may have 128,000 queues.
    """
    return (
        (topic, broker, queue_id),
        (topic, broker, None),
        (topic, None, queue_id),
        (topic, None, None),
        (None, broker, queue_id),
        (None, broker, None),
        (None, None, queue_id),
        (None, None, None),
    )


def parse_offsets(given: Given, *, default: Position, refused: Position | None) -> OffsetSpec:
    """`earliest`, `latest` or JSON. `refused` is the end that makes no sense here, as in Kafka's batch reads.

    A batch that starts at latest or ends at earliest is empty whatever the store holds.
    """
    word = given.text.strip().lower()
    by_word: dict[str, Position] = {"earliest": EARLIEST, "latest": LATEST}
    if word in by_word:
        if by_word[word] == refused:
            raise given.error(
                f"{default} or JSON in a batch read",
                advice=f"a batch read with {given.name}={word} is always empty",
            )
        return OffsetSpec(given.name, by_word[word])
    if not word.startswith("{"):
        raise given.error("earliest, latest or JSON", advice=f"write JSON as {_OFFSETS_EXAMPLE}")
    entries = []
    for name, where, value in _walk(given, json_object(given, _OFFSETS_EXAMPLE), _OFFSETS_EXAMPLE):
        position = _offset(given, where, value)
        if position == refused:
            raise given.error(
                f"an offset or {_json_value(default)} ({default}) at {where} in a batch read",
                found_json(value),
            )
        entries.append((name, position))
    return OffsetSpec(given.name, default, _once(given, entries))


def parse_offsets_by_timestamp(given: Given, *, default: Position) -> OffsetSpec:
    """The JSON of `parse_offsets` with times for offsets: ms, or text as `timestamp_ms` reads it."""
    entries: list[tuple[QueueName, Position]] = []
    for name, where, value in _walk(given, json_object(given, _TIMES_EXAMPLE), _TIMES_EXAMPLE):
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            raise given.error(f"a time at {where}", found_json(value), f"write it as {_TIMES_EXAMPLE}")
        entries.append((name, Timestamp(timestamp_ms(given, f" at {where}", value))))
    return OffsetSpec(given.name, default, _once(given, entries))


def parse_timestamp(given: Given) -> OffsetSpec:
    """One time for all queues."""
    return OffsetSpec(given.name, Timestamp(timestamp_ms(given)))


def _walk(
    given: Given, topics: Mapping[str, object], example: str
) -> Iterator[tuple[QueueName, str, object]]:
    """(queue, where in the JSON, value) of every leaf. A value that is an object makes its name a broker,
    else a queue.
    """
    for topic, members in topics.items():
        if topic in (AT, FROM, RESET, AGAIN):
            continue  # of the offset of a stream, as its progress shows it: for its own query only
        at_topic = json.dumps(topic, ensure_ascii=False)
        if not isinstance(members, dict):
            raise given.error(
                f"an object of queues or brokers at {at_topic}", found_json(members), f"write it as {example}"
            )
        for name, value in members.items():
            where = f"{at_topic} → {json.dumps(name, ensure_ascii=False)}"
            if not isinstance(value, dict):
                yield _queue(given, topic, _ANY, name, where), where, value
                continue
            for queue, leaf in value.items():
                at_queue = f"{where} → {json.dumps(queue, ensure_ascii=False)}"
                yield _queue(given, topic, name, queue, at_queue), at_queue, leaf


def _queue(given: Given, topic: str, broker: str, queue: str, where: str) -> QueueName:
    if not topic or not broker:
        raise given.error(f"a name at {where}", '""')
    if queue != _ANY and (not _QUEUE_ID.fullmatch(queue) or int(queue) >= 1 << 31):
        raise given.error(
            f'a queue id or "*" at {where}', found_json(queue), f"write it as {_OFFSETS_EXAMPLE}"
        )
    return QueueName(
        None if topic == _ANY else topic,
        None if broker == _ANY else broker,
        None if queue == _ANY else int(queue),
    )


def _offset(given: Given, where: str, value: object) -> Position:
    if isinstance(value, bool) or not isinstance(value, int) or not _EARLIEST_VALUE <= value <= _LONG_MAX:
        advice = (
            "write the number without quotes"
            if isinstance(value, str) and value.lstrip("-").isdecimal()
            else ""
        )
        raise given.error(f"an offset, -1 (latest) or -2 (earliest) at {where}", found_json(value), advice)
    if value == _EARLIEST_VALUE:
        return EARLIEST
    return LATEST if value == _LATEST_VALUE else Offset(value)


def _once(given: Given, entries: list[tuple[QueueName, Position]]) -> tuple[tuple[QueueName, Position], ...]:
    """`{"t":{"0":1,"*":{"0":2}}}` names queue 0 of every broker twice."""
    named: dict[QueueName, Position] = {}
    for name, position in entries:
        if name in named:
            raise given.error("each queue once", found_json(str(name)))
        named[name] = position
    return tuple(entries)

"""The options of a consumer group, and what they build: the strategy, the offset store, the membership; also
those of a group that pops (`consumeMode=pop`), whose members share messages one by one.

`GROUP_OPTIONS` has one row for each, part of the options of a read; the parsers are here, too. A query that
pops owns no queue and has no offsets of its own, so most options of a group do not apply to it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rmq_spark.consume.consumer import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_FROM_WHERE,
    OFFSET_STORES,
    STRATEGIES,
    ConsumeFromWhere,
    MessageQueue,
    check_client_id,
    check_group,
    client_ids,
    consume_from_where,
    consume_timestamp_ms,
    default_client_id,
    is_own,
)
from rmq_spark.options import option as values
from rmq_spark.options.option import BATCH, STREAM, Given, Option, parse_assign, plain_fields
from store_format.errors import OptionError
from store_format.names import did_you_mean, is_system_topic, pop_retry_topic
from store_format.read.choice import QueueName

if TYPE_CHECKING:
    from rmq_spark.consume.allocate import AllocateMessageQueueStrategy
    from rmq_spark.consume.group.member import Membership
    from rmq_spark.consume.offset_store import OffsetStore

_CONFIG_EXAMPLE = '{"TopicTest":[0,1]}, or with consumers=2 [{"TopicTest":[0,1]},{"TopicTest":[2,3]}]'
_STARTING = "startingOffsets"
_LEASE_SECONDS_MIN = 1.0

_Config = tuple[tuple[QueueName, ...], ...]  # the queues of each logical client

PULL, POP = "pull", "pop"  # values of consumeMode
# DefaultMQPushConsumer.popInvisibleTime
INVISIBLE_MS = 60_000
_INVISIBLE_MS_MIN, _INVISIBLE_MS_MAX = 1_000, 12 * 3600 * 1000  # the longest that a proxy accepts
# Spark pays about 0.3 s for a micro-batch of any size. This many messages hide most of that time, and a
# backlog of more is left to the other members. It is also a broker's popInflightMessageThreshold.
MAX_OFFSETS_PER_TRIGGER = 10_000

_OF_POP = ("invisibleDuration",)
# Options of a group that pop has too; all others are about owning queues and offsets.
_ALSO_OF_POP = frozenset({"group", "consumeMode", "consumeFromWhere", *_OF_POP})
_STARTS = (ConsumeFromWhere.FIRST, ConsumeFromWhere.LAST)
_SHARED = "the members share every queue message by message; set maxOffsetsPerTrigger"
_NOT_WITH_POP = {
    "maxOffsetsPerQueue": _SHARED,
    "maxOffsetsPerTopic": _SHARED,
    "assign": "the members share all queues of a topic; name the topics with subscribe",
    "subscribePattern": "each topic has a log of its own that the members share; name the topics with "
    "subscribe",
    "includeSystemTopics": "pop reads no system topics; name the topics with subscribe",
    "key": "the group would never read the other messages; use it in a stream without group",
    "messageId": "the group would never read the other messages; use it in a stream without group",
    "brokerName": "the name is written into receipt handles; set brokerName in .rmqlog/broker.conf",
}

_VIRTUAL_NODES_MAX = 10_000


def parse_group(given: Given) -> str:
    return check_group(given.text)


def parse_client_id(given: Given) -> str:
    return check_client_id(given.text)


def parse_consume_from_where(given: Given) -> ConsumeFromWhere:
    if given.text.strip().upper() not in CONSUME_FROM_WHERE:
        raise given.error(
            f"one of {', '.join(ConsumeFromWhere)}", advice=did_you_mean(given.text, ConsumeFromWhere)
        )
    return consume_from_where(given.text)


def parse_consume_timestamp(given: Given) -> int:
    return consume_timestamp_ms(given.text)


def parse_strategy(given: Given) -> str:
    """A strategy name, MACHINE_ROOM_NEARBY-INNER as Java's getName() returns it, or `package.module:name`."""
    name, _, inner = given.text.strip().partition("-")
    if is_own(given.text.strip()):
        return given.text.strip()
    if name not in STRATEGIES or (inner and name != "MACHINE_ROOM_NEARBY"):
        names = f"one of {', '.join(STRATEGIES)}, or package.module:name of your own"
        raise given.error(names, advice=did_you_mean(given.text, STRATEGIES))
    return given.text.strip()


def parse_own(given: Given) -> str:
    if not is_own(given.text.strip()):
        raise given.error("package.module:name of an object that Python finds on the driver")
    return given.text.strip()


def parse_allocate_config(given: Given) -> _Config:
    """The queues of one client in the syntax of `assign`, or a list with the queues of each client."""
    try:
        value = json.loads(given.text)
    except (ValueError, RecursionError) as error:
        raise given.error("JSON", advice=f"write it as {_CONFIG_EXAMPLE}") from error
    if not isinstance(value, list):
        return (parse_assign(given),)
    if not value:
        raise given.error("the queues of at least one client", advice=f"write it as {_CONFIG_EXAMPLE}")
    return tuple(parse_assign(Given(given.name, json.dumps(each), given.now_ms)) for each in value)


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """The options of a consumer group.

    `consumers` None: one client, whose queues share partitions. `client_id` None: a new id for each start.
    """

    group: str
    consumers: int | None = None
    client_id: str | None = None
    strategy_name: str = "AVG"
    allocate_config: _Config | None = None
    consumer_idcs: tuple[str, ...] | None = None
    machine_room_nearby_inner: str = "AVG"
    virtual_node_count: int = 10
    machine_room_resolver: str | None = None
    hash_function: str | None = None
    message_model: str = CLUSTERING
    where: ConsumeFromWhere = ConsumeFromWhere.LAST
    consume_timestamp_ms: int = 0
    young_from_zero: bool = False
    offset_store: str | None = None
    offset_store_path: str | None = None
    group_path: str | None = None
    lease_seconds: float = 30.0
    persist_seconds: float = 5.0

    @staticmethod
    def from_read(read: Mapping[str, object], given: Collection[str], now_ms: int) -> GroupOptions | None:
        """The options of a consumer group, from the values of GROUP_OPTIONS; None without `group`.

        `given` are the names of the options that the caller wrote. Raises OptionError for options that
        contradict each other.
        """
        if read.get("group") is None:
            return None
        starting = next((name for name in given if name.startswith("starting")), None)
        if starting is not None:
            raise OptionError(
                f"group and {starting} are given together, but a group begins at its committed offsets. "
                "Reset the offsets (rmq_spark.consume.reset), "
                f"or leave {starting if starting == _STARTING else f'group or {starting}'} out"
            )
        values = plain_fields(GroupOptions, read) | {field: read[name] for name, field in _RENAMED.items()}
        values = {field: value for field, value in values.items() if value is not None}
        values.setdefault("consume_timestamp_ms", now_ms - 30 * 60_000)  # DefaultMQPushConsumer
        for name in ("lease_seconds", "persist_seconds"):
            if isinstance(values.get(name), int):
                values[name] /= 1000  # the rows give milliseconds
        made = GroupOptions(**values)
        made.check(given)
        return made

    def check(self, given: Collection[str]) -> None:
        count, configured = self.consumers or 1, self.allocate_config
        if configured is not None and len(configured) != count:
            raise OptionError(
                f"allocateConfig has the queues of {len(configured)} clients, but consumers is {count}: "
                f"write {_CONFIG_EXAMPLE}"
            )
        if self.lease_seconds < _LEASE_SECONDS_MIN:
            raise OptionError(
                f"leaseTime: expected at least {_LEASE_SECONDS_MIN:g}s, found {self.lease_seconds:g}s; "
                "a busy process would lose its queues"
            )
        if self.message_model == BROADCASTING and "consumers" in given:
            raise OptionError("consumers is for CLUSTERING: when BROADCASTING each query reads every queue")
        if not self.own_code:  # which is imported where queues are allocated
            self.make_strategy([f"{number}" for number in range(count)], ())

    @property
    def is_alone(self) -> bool:
        """Whether the reader takes the queues that it names, whatever other members of the group read."""
        return False

    @property
    def member_kind(self) -> str:
        """What the view `owners` calls the member."""
        return "query"

    @property
    def own_code(self) -> list[str]:
        """The names of the user's own code, which making the strategy imports."""
        names = self.strategy_name, self.machine_room_resolver, self.hash_function
        return [name for name in names if name is not None and is_own(name)]

    def make_client_ids(self) -> tuple[str, ...]:
        """The ids of the logical clients; with a new base for each start, unless `clientId` is given."""
        base = self.client_id or default_client_id(
            self.message_model, process_id=os.getpid(), now_ns=time.monotonic_ns()
        )
        return tuple(client_ids(base, self.consumers or 1))

    def make_strategy(self, clients: Sequence[str], brokers: Sequence[str]) -> AllocateMessageQueueStrategy:
        """The strategy. A queue of allocateConfig without a broker stands for that queue on all `brokers`."""
        from rmq_spark.consume.allocate import strategy

        name, _, inner = self.strategy_name.partition("-")
        config = None
        if self.allocate_config is not None:
            parts = zip(clients, self.allocate_config, strict=True)
            config = {
                client: [queue for each in queues for queue in _queues_of_brokers(each, brokers)]
                for client, queues in parts
            }
        return strategy(
            name,
            config=config,
            consumer_idcs=self.consumer_idcs,
            inner=inner or self.machine_room_nearby_inner,
            virtual_node_count=self.virtual_node_count,
            resolver=self.machine_room_resolver,
            hash_function=self.hash_function,
        )

    def make_membership(self, subscription: str, brokers: Sequence[str]) -> Membership:
        from rmq_spark.consume.group.member import Membership

        clients = self.make_client_ids()
        return Membership(
            self.group,
            clients,
            self.make_strategy(clients, brokers),
            subscription,
            self.lease_seconds,
            self.persist_seconds,
            tuple(brokers),
            self.member_kind,
        )

    def make_offset_store(self, roots: Mapping[str, str]) -> OffsetStore:
        """`roots` are the store roots by broker name."""
        from rmq_spark.consume.offset_store import offset_store

        return offset_store(
            self.offset_store,
            group=self.group,
            roots=roots,
            message_model=self.message_model,
            client_id=self.make_client_ids()[0],
            offset_store_path=self.offset_store_path,
        )


# Documented name -> field, where the field has another name than the option.
_RENAMED = {
    "allocateMessageQueueStrategy": "strategy_name",
    "consumeFromWhere": "where",
    "consumeTimestamp": "consume_timestamp_ms",
    "consumeYoungQueueFromZero": "young_from_zero",
    "leaseTime": "lease_seconds",
    "persistConsumerOffsetInterval": "persist_seconds",
}


def _queues_of_brokers(name: QueueName, brokers: Sequence[str]) -> list[MessageQueue]:
    topic, broker, queue_id = name
    assert topic is not None  # `assign` names it
    assert queue_id is not None
    return [MessageQueue(topic, each, queue_id) for each in (brokers if broker is None else (broker,))]


# ---- a stream that pops ------------------------------------------------------------------------------------


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
        _refuse_beside_pop(given, group_names)
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


def _refuse_beside_pop(given: Collection[str], group_names: Collection[str]) -> None:
    for name in given:
        reason = _NOT_WITH_POP.get(name)
        if name.startswith("starting"):
            reason = "a group begins at its own offset; move it with rmqlog offsets"
        elif name in group_names and name not in _ALSO_OF_POP:
            reason = "members that pop own no queues and keep no offsets; set consumeMode=pull"
        if reason is not None:
            raise OptionError(
                f"consumeMode={POP} and {name} are given together: {reason}, or leave {name} out"
            )
    if "subscribe" not in given:
        raise OptionError(f"consumeMode={POP} needs subscribe: name the topics that the group shares")


# ---- the table ---------------------------------------------------------------------------------------------

_row = Option
_stream_row = partial(Option, applies=frozenset({STREAM}))

GROUP_OPTIONS: tuple[Option, ...] = (
    _row(
        "group",
        "text",
        parse_group,
        "Read as this consumer group: from its committed offsets, with its `%RETRY%` topic.",
    ),
    _row(
        "consumeMode",
        "word",
        values.one_of(PULL, POP),
        "`pull`: the group's members divide the queues. `pop` (streams only): the members share every queue, "
        f"and each message goes to one of them; `maxOffsetsPerTrigger` is then {MAX_OFFSETS_PER_TRIGGER} by "
        "default. See docs/pop.md.",
        PULL,
    ),
    _stream_row(
        "invisibleDuration",
        "time",
        values.duration_ms,
        "For `pop`: how long after the death of a query the messages that it had taken stay invisible to the "
        "other members. A running query renews the time.",
        f"{INVISIBLE_MS // 1000}s",
    ),
    _row(
        "consumers",
        "number",
        values.whole_number,
        "Logical clients of this query. Each client is one partition, and reads the queues that the strategy "
        "assigns to it. A batch read allocates as if it were the only member of the group.",
        otherwise="one client, whose queues share partitions",
    ),
    _row(
        "clientId",
        "text",
        parse_client_id,
        "The client's name in the group.",
        otherwise="`ip@pid#time`",
    ),
    _row(
        "allocateMessageQueueStrategy",
        "word",
        parse_strategy,
        "The strategy that assigns queues to clients: `AVG`, `AVG_BY_CIRCLE`, `CONFIG`, `MACHINE_ROOM`, "
        "`MACHINE_ROOM_NEARBY` or `CONSISTENT_HASH`; or `package.module:name`, a strategy of your own.",
        "AVG",
    ),
    _row(
        "allocateConfig",
        "JSON",
        parse_allocate_config,
        "For `CONFIG`: queues in the syntax of `assign`, or a list with the queues of each client.",
    ),
    _row(
        "consumerIdcs",
        "list",
        values.names,
        "For `MACHINE_ROOM`: the machine rooms to read. The room of a queue is the part of its broker name "
        "before `@`.",
    ),
    _row(
        "machineRoomNearbyInner",
        "word",
        values.one_of("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"),
        "For `MACHINE_ROOM_NEARBY`: the strategy within a room. The room of a client is the part of its id "
        "before `-`.",
        "AVG",
    ),
    _row(
        "virtualNodeCount",
        "number",
        values.number(0, _VIRTUAL_NODES_MAX),
        "For `CONSISTENT_HASH`: virtual nodes of each client.",
        "10",
    ),
    _row(
        "machineRoomResolver",
        "name",
        parse_own,
        "For `MACHINE_ROOM_NEARBY`: your own rule, `package.module:name`, for the rooms of brokers and "
        "clients.",
        otherwise="the parts of names before `@` and `-`",
    ),
    _row(
        "hashFunction",
        "name",
        parse_own,
        "For `CONSISTENT_HASH`: your own function, `package.module:name`, from a text to a long.",
        otherwise="the first four bytes of MD5",
    ),
    _row(
        "messageModel",
        "word",
        values.one_of(CLUSTERING, BROADCASTING),
        "`CLUSTERING`: the members share the queues. `BROADCASTING`: each member reads all queues.",
        CLUSTERING,
    ),
    _row(
        "consumeFromWhere",
        "word",
        parse_consume_from_where,
        "Where a group without a committed offset begins: "
        f"{', '.join(f'`{each}`' for each in ConsumeFromWhere)}.",
        ConsumeFromWhere.LAST.value,
    ),
    _row(
        "consumeTimestamp",
        "yyyyMMddHHmmss",
        parse_consume_timestamp,
        "For `CONSUME_FROM_TIMESTAMP`, in this machine's time zone.",
        otherwise="half an hour ago",
    ),
    _row(
        "consumeYoungQueueFromZero",
        "boolean",
        values.boolean,
        "Without a committed offset, begin at 0 in a queue that still has its first message, as a broker "
        "does while that message is in memory.",
        "false",
    ),
    _row(
        "offsetStore",
        "word",
        values.one_of(*OFFSET_STORES),
        "Where offsets are kept: in the broker's file (`store`; the broker must be stopped), in a client's "
        "file (`local`), or `none`.",
        otherwise="`store`; `local` when BROADCASTING",
    ),
    _row(
        "offsetStorePath",
        "path",
        values.text,
        "For `local`: the directory of the offsets.",
        otherwise="`.rocketmq_offsets` in the home directory",
    ),
    _stream_row(
        "groupPath",
        "path",
        values.text,
        "The directory in which members of a group coordinate; shared by all of them.",
        otherwise="`.rmqlog/groups` in the path; `local`: beside the offsets",
    ),
    _stream_row(
        "leaseTime",
        "time",
        values.duration_ms,
        "How long a member on another host may be silent before other members get its queues.",
        "30s",
    ),
    _stream_row(
        "persistConsumerOffsetInterval",
        "time",
        values.duration_ms,
        "How often offsets are recorded; `0s` is after each micro-batch.",
        "5s",
    ),
)

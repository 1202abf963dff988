"""The options of a consumer group: one row each, part of the options of a read."""

from __future__ import annotations

from functools import partial

from rmq_spark.consume.client_ids import BROADCASTING, CLUSTERING, OFFSET_STORES
from rmq_spark.consume.consume_from_where import ConsumeFromWhere
from rmq_spark.options import group_options as parse
from rmq_spark.options import option as values
from rmq_spark.options.group_options import INVISIBLE_MS, MAX_OFFSETS_PER_TRIGGER, POP, PULL
from rmq_spark.options.option import STREAM, Option

_VIRTUAL_NODES_MAX = 10_000
_row = Option
_stream_row = partial(Option, applies=frozenset({STREAM}))

GROUP_OPTIONS: tuple[Option, ...] = (
    _row(
        "group",
        "text",
        parse.parse_group,
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
        parse.parse_client_id,
        "The client's name in the group.",
        otherwise="`ip@pid#time`",
    ),
    _row(
        "allocateMessageQueueStrategy",
        "word",
        parse.parse_strategy,
        "The strategy that assigns queues to clients: `AVG`, `AVG_BY_CIRCLE`, `CONFIG`, `MACHINE_ROOM`, "
        "`MACHINE_ROOM_NEARBY` or `CONSISTENT_HASH`.",
        "AVG",
    ),
    _row(
        "allocateConfig",
        "JSON",
        parse.parse_allocate_config,
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
        "messageModel",
        "word",
        values.one_of(CLUSTERING, BROADCASTING),
        "`CLUSTERING`: the members share the queues. `BROADCASTING`: each member reads all queues.",
        CLUSTERING,
    ),
    _row(
        "consumeFromWhere",
        "word",
        parse.parse_consume_from_where,
        "Where a group without a committed offset begins: "
        f"{', '.join(f'`{each}`' for each in ConsumeFromWhere)}.",
        ConsumeFromWhere.LAST.value,
    ),
    _row(
        "consumeTimestamp",
        "yyyyMMddHHmmss",
        parse.parse_consume_timestamp,
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

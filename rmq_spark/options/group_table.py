"""The options of a consumer group, each once, as `option_table` has the others of a read."""

from __future__ import annotations

from functools import partial

from rmq_spark.consume.client_ids import BROADCASTING, CLUSTERING
from rmq_spark.consume.consume_from_where import ConsumeFromWhere
from rmq_spark.consume.offset_store import OFFSET_STORES
from rmq_spark.options import group_options as parse
from rmq_spark.options import parse as values
from rmq_spark.options.option import STREAM, Option

_VIRTUAL_NODES_MAX = 10_000
_row = Option
_stream_row = partial(Option, applies=frozenset({STREAM}))

GROUP_OPTIONS: tuple[Option, ...] = (
    _row(
        "group",
        "text",
        parse.parse_group,
        "Read as this consumer group: from its committed offsets, and its `%RETRY%` topic too.",
    ),
    _stream_row(
        "consumers",
        "number",
        values.whole_number,
        "Logical clients of this query. Each is one partition, and reads the queues that the strategy gives it.",
        otherwise="one, whose queues are packed into partitions",
    ),
    _stream_row(
        "clientId",
        "text",
        parse.parse_client_id,
        "The client's name in the group.",
        otherwise="`ip@pid#time`",
    ),
    _stream_row(
        "allocateMessageQueueStrategy",
        "word",
        parse.parse_strategy,
        "Who reads which queue: `AVG`, `AVG_BY_CIRCLE`, `CONFIG`, `MACHINE_ROOM`, `MACHINE_ROOM_NEARBY` or `CONSISTENT_HASH`.",
        "AVG",
    ),
    _stream_row(
        "allocateConfig",
        "JSON",
        parse.parse_allocate_config,
        "For `CONFIG`: queues as `assign` has them, or a list with each client's.",
    ),
    _stream_row(
        "consumerIdcs",
        "list",
        values.names,
        "For `MACHINE_ROOM`: rooms whose queues are read. A queue's is before the `@` of its broker.",
    ),
    _stream_row(
        "machineRoomNearbyInner",
        "word",
        values.one_of("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"),
        "For `MACHINE_ROOM_NEARBY`: how a room's clients share its queues. A client's room is what stands before the `-` of its id.",
        "AVG",
    ),
    _stream_row(
        "virtualNodeCount",
        "number",
        values.number(0, _VIRTUAL_NODES_MAX),
        "For `CONSISTENT_HASH`: places of each client.",
        "10",
    ),
    _row(
        "messageModel",
        "word",
        values.one_of(CLUSTERING, BROADCASTING),
        "`CLUSTERING`: members share the queues. `BROADCASTING`: each reads all of them.",
        CLUSTERING,
    ),
    _row(
        "consumeFromWhere",
        "word",
        parse.parse_consume_from_where,
        f"Where a group without an offset begins: {', '.join(f'`{each}`' for each in ConsumeFromWhere)}.",
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
        "Without an offset, begin a queue from which nothing was deleted yet at 0, as a broker does while its first message is in memory.",
        "false",
    ),
    _row(
        "offsetStore",
        "word",
        values.one_of(*OFFSET_STORES),
        "Where offsets are kept: the broker's own file (`store`; the broker must be stopped), a client's (`local`), or `none`.",
        otherwise="`store`; `local` when BROADCASTING",
    ),
    _row(
        "offsetStorePath",
        "path",
        values.text,
        "For `local`: the directory.",
        otherwise="`.rocketmq_offsets` in the home directory",
    ),
    _stream_row(
        "groupPath",
        "path",
        values.text,
        "Where the members of groups meet, a directory all of them share.",
        otherwise="`.rmqlog/groups` in the path; `local`: beside the offsets",
    ),
    _stream_row(
        "leaseTime",
        "time",
        values.duration_ms,
        "How long a member on another host may be silent before its queues go to others.",
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

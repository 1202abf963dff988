"""The options of a read: one row each, with name, parser, default, queries and meaning.

No other module knows a default. The tables of docs/options.md are generated from the rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rmq_spark.options import option as values
from rmq_spark.options.group_table import GROUP_OPTIONS
from rmq_spark.options.option import (
    BATCH,
    MESSAGES,
    STREAM,
    Option,
    file_path,
    parse_view,
    path_list,
    paths_json,
    single_path,
)
from rmq_spark.options.queues import (
    EARLIEST,
    LATEST,
    parse_assign,
    parse_offsets,
    parse_offsets_by_timestamp,
    parse_subscribe,
    parse_timestamp,
)
from store_format.message.columns import BODY_SIZE_MAX

QUEUE, WHOLE_QUEUE, COMMITLOG = "queue", "wholeQueue", "commitlog"  # values of splitBy

_IN_BATCH, _IN_STREAM = frozenset({BATCH}), frozenset({STREAM})

_LONG_MAX = (1 << 63) - 1
_PARTITION_SIZE_MIN = 64 << 10  # less is a forgotten unit, and a task for each message
_MESSAGE_SIZE_LIMIT = 1 << 30  # the size of a default commitlog file: no unit is larger


_TIME = "ms, ISO 8601 (UTC without a zone) or a time back from now (`-2 hours`, `-30m`)"
_BY_TIME_FROM = partial(parse_offsets_by_timestamp, default=EARLIEST)
_BY_TIME_FROM_IN_STREAM = partial(parse_offsets_by_timestamp, default=LATEST)
_BY_TIME_TO = partial(parse_offsets_by_timestamp, default=LATEST)
_FROM_INDEX = "from an index file's size"

_WHERE = (
    Option(
        "path",
        "path",
        single_path,
        "A store root, or a directory of store roots: a cluster.",
        otherwise="required",
    ),
    Option("paths", "JSON list", paths_json, "Several store roots, as `load([path, path])` sets them."),
    Option(
        "brokerName",
        "text",
        values.text,
        "Name of the broker, for the column `brokerName`.",
        otherwise="the store's own, else the directory's name",
    ),
    Option(
        "storePathCommitLog",
        "paths",
        path_list,
        "The broker's setting of this name: the commitlog directories outside the store root, separated by "
        "commas.",
        otherwise="`commitlog` in the store root",
    ),
    Option(
        "maxHashSlotNum",
        "number",
        values.whole_number,
        "Hash slots of an index file: the broker's setting.",
        otherwise=_FROM_INDEX,
    ),
    Option(
        "maxIndexNum",
        "number",
        values.whole_number,
        "Entries of an index file: the broker's setting.",
        otherwise=_FROM_INDEX,
    ),
)

_WHAT = (
    Option(
        "subscribe",
        "list",
        parse_subscribe,
        "Topics, separated by commas. Only one of `subscribe`, `subscribePattern` and `assign`.",
        otherwise="every topic except system topics",
    ),
    Option(
        "subscribePattern",
        "regex",
        values.pattern,
        "Topics whose whole name matches. The syntax is Python's `re` with ASCII classes, without Java's "
        "`\\p{..}`, `\\Q..\\E` and `&&`. "
        "System topics match only with `includeSystemTopics`, names with `%` also if the pattern begins with "
        "`%`.",
    ),
    Option(
        "assign", "JSON", parse_assign, 'Queues: `{"TopicTest":[0,1]}` or `{"TopicTest":{"broker-a":[0,1]}}`.'
    ),
    Option(
        "includeSystemTopics",
        "boolean",
        values.boolean,
        "Without `subscribe` and `assign`: also read system topics, `%RETRY%`, `%DLQ%` and `%LMQ%`.",
        "false",
    ),
    Option(
        "subExpression",
        "text",
        lambda given: given.text,
        "Only messages with one of these tags: `TagA || TagB`; with `SQL92` only messages whose properties "
        "meet a condition: "
        "`price > 3 AND region = 'north'`.",
        "*",
    ),
    Option(
        "expressionType",
        "word",
        values.one_of("TAG", "SQL92"),
        "The language of `subExpression`: `TAG` or `SQL92`, with RocketMQ's rules.",
        "TAG",
    ),
    Option(
        "key",
        "text",
        values.text,
        "Only messages with this key: one word of KEYS, or the UNIQ_KEY. Index files are used where they "
        "cover the commitlog.",
    ),
    Option(
        "messageId",
        "text",
        values.text,
        "Only this message: the id that a client reports (UNIQ_KEY), or an offset message id. Not with "
        "`key`.",
    ),
    Option(
        "columns",
        "list",
        values.names,
        "Only these columns, in this order: `queueOffset,body`.",
        otherwise="the default columns",
    ),
    Option(
        "propertyColumns",
        "list",
        values.names,
        "Message properties as additional string columns, after the others; with a schema, the extra columns "
        "it may name.",
    ),
    Option(
        "view",
        "word",
        parse_view,
        "`messages`, or a view of the store: `topics`, `queues`, `groups`, `lag`, `files` and others.",
        MESSAGES,
        applies=frozenset({BATCH}),
    ),
    Option(
        "brokerConf",
        "path",
        file_path,
        "For a `view`: the broker.conf of the store's broker. The views `retention` and `delayed` use its "
        "settings.",
        otherwise="the store's own `.rmqlog/broker.conf`; else the broker's defaults",
        applies=frozenset({BATCH}),
    ),
)

_FROM_TO = (
    Option(
        "startingOffsets",
        "word or JSON",
        partial(parse_offsets, default=EARLIEST, refused=LATEST),
        'First offsets: `earliest`, or JSON `{"TopicTest":{"broker-a":{"0":23}}}` with or without broker, '
        "-2 for earliest, "
        '`"*"` for any. '
        "Queues without an entry start at the default. A stream also takes `latest` and -1; its later queues "
        "start at earliest, "
        "and its `starting…` options count only without a checkpoint.",
        "earliest",
        stream=(partial(parse_offsets, default=LATEST, refused=None), "latest"),
    ),
    Option(
        "endingOffsets",
        "word or JSON",
        partial(parse_offsets, default=LATEST, refused=EARLIEST),
        "Last offsets, exclusive: `latest`, or the same JSON with -1 for latest. Queues without an entry end "
        "at latest.",
        "latest",
        applies=_IN_BATCH,
    ),
    Option(
        "startingOffsetsByTimestamp",
        "JSON",
        _BY_TIME_FROM,
        f"The same JSON with times: {_TIME}. Overrides `startingOffsets`.",
        stream=(_BY_TIME_FROM_IN_STREAM, None),
    ),
    Option(
        "endingOffsetsByTimestamp",
        "JSON",
        _BY_TIME_TO,
        "The same, exclusive. Overrides `endingOffsets`.",
        applies=_IN_BATCH,
    ),
    Option(
        "startingTimestamp",
        "time",
        parse_timestamp,
        f"Messages stored at or after this time: {_TIME}. Overrides the other `starting…` options. A queue "
        "without a message since "
        "this time is an error unless `startingOffsetsByTimestampStrategy` is `latest`.",
    ),
    Option(
        "endingTimestamp",
        "time",
        parse_timestamp,
        "Messages stored before this time. Overrides the other `ending…` options.",
        applies=_IN_BATCH,
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "word",
        values.one_of("error", "latest"),
        "For a queue without a message at or after its starting time: `error`, or begin at `latest`.",
        "error",
    ),
)

_PARALLEL = (
    Option(
        "minPartitions",
        "number",
        values.whole_number,
        "The smallest number of partitions; queues are split for it.",
        otherwise="by size",
    ),
    Option(
        "maxBytesPerPartition",
        "size",
        values.sized(
            _PARTITION_SIZE_MIN, _LONG_MAX, "a number without a unit is bytes: write 64m for 64 MiB"
        ),
        "The largest partition, in bytes of the commitlog; queues are split for it. At least `64k`; at most "
        "100,000 partitions result.",
        "64m",
    ),
    Option(
        "splitBy",
        "word",
        values.one_of(QUEUE, WHOLE_QUEUE, COMMITLOG),
        "`queue`: a partition reads each of its queues in its order; large queues are split at the same "
        "places of the commitlog. `wholeQueue`: each queue is one partition, never split. `commitlog`: each "
        "partition is exactly one range of the commitlog, best on cold disks.",
        "queue",
    ),
)

_TRUST = (
    Option(
        "failOnDataLoss",
        "boolean",
        values.boolean,
        "Requested messages that the store no longer has, and queues without read permission, are an error; "
        "with `false` a warning "
        "with a count. In a stream, missing read permission is always an error.",
        "true",
    ),
    Option(
        "unfiledQueues",
        "word",
        values.one_of("read", "skip"),
        "For topics that have messages in the commitlog but no consume queue file, if nothing shows "
        "why. `read`: their directories were lost; the messages are read from the commitlog. `skip`: the "
        "topics were deleted and created again; the messages are left out.",
        otherwise="an error; with `failOnDataLoss=false` left out, with a warning",
    ),
    Option(
        "mode",
        "word",
        values.one_of("FAILFAST", "DROPMALFORMED", "PERMISSIVE"),
        "`FAILFAST`: a damaged message is an error. `DROPMALFORMED`: it is left out and counted. "
        "`PERMISSIVE`: it becomes a row with "
        "the reason in `_corrupt_record`.",
        "FAILFAST",
    ),
    Option("verifyCrc", "boolean", values.boolean, "Check the CRC of every body.", "true"),
    Option(
        "maxMessageSize",
        "size",
        values.sized(1, _MESSAGE_SIZE_LIMIT),
        "The largest decompressed body that is accepted. Raise it if the broker's setting is larger.",
        f"{BODY_SIZE_MAX >> 20}m",
    ),
)

_RATE = (
    Option(
        "maxOffsetsPerTrigger",
        "number",
        values.number(1, _LONG_MAX),
        "The most messages of a micro-batch, divided among the queues by their waiting messages; every queue "
        "gets its turn.",
        otherwise="no limit",
        applies=_IN_STREAM,
    ),
    Option(
        "maxBytesPerTrigger",
        "size",
        values.byte_size,
        "The most commitlog bytes of a micro-batch, but at least one message. With both limits, the smaller "
        "one counts.",
        otherwise="no limit",
        applies=_IN_STREAM,
    ),
    Option(
        "minOffsetsPerTrigger",
        "number",
        values.number(1, _LONG_MAX),
        "Wait until this many messages have come, at most `maxTriggerDelay`. No effect under AvailableNow.",
        otherwise="no waiting",
        applies=_IN_STREAM,
    ),
    Option(
        "maxTriggerDelay",
        "time",
        values.duration_ms,
        "The longest wait of `minOffsetsPerTrigger`.",
        "15m",
        applies=_IN_STREAM,
    ),
)


def _under(heading: str, rows: tuple[Option, ...]) -> tuple[Option, ...]:
    return tuple(replace(row, heading=heading) for row in rows)


OPTIONS: tuple[Option, ...] = (
    *_under("Where", _WHERE),
    *_under("What", _WHAT),
    *_under("From and to", _FROM_TO),
    *_under("Parallel", _PARALLEL),
    *_under("Rate", _RATE),
    *_under("Trust", _TRUST),
    *_under("Group", GROUP_OPTIONS),
)

# At most one option of each group may be given.
CHOICES = (("path", "paths"), ("subscribe", "subscribePattern", "assign"), ("key", "messageId"))

# The first given option of each group overrides the others (KafkaSourceProvider.getKafkaOffsetRangeLimit).
PRECEDENCE = (
    ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
)

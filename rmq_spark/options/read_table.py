"""Every option, once: a row says its name, how its text is read, its default, where it applies and what it is
for.

Nothing else in the project knows an option's default. The README's table is made from the rows.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rmq_spark.options import parse as values
from rmq_spark.options.group_table import GROUP_OPTIONS
from rmq_spark.options.offset_spec import (
    EARLIEST,
    LATEST,
    parse_offsets,
    parse_offsets_by_timestamp,
    parse_timestamp,
)
from rmq_spark.options.option import BATCH, STREAM, Option
from rmq_spark.options.paths import path_list, paths_json, single_path
from rmq_spark.options.topic_choice import parse_assign, parse_subscribe
from rmq_spark.options.view_name import MESSAGES, parse_view
from store_format.message.columns import BODY_SIZE_MAX

_IN_BATCH, _IN_STREAM = frozenset({BATCH}), frozenset({STREAM})

_LONG_MAX = (1 << 63) - 1
_PARTITION_SIZE_MIN = 64 << 10  # less is a forgotten unit, and a task for each message
_MESSAGE_SIZE_LIMIT = 1 << 30  # the size of a default commitlog file: no unit is larger


_TIME = "ms, ISO 8601 (UTC where it names no zone) or a time back from now (`-2 hours`, `-30m`)"
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
    Option("paths", "JSON list", paths_json, "Several of them, as `load([path, path])` sets it."),
    Option(
        "brokerName",
        "text",
        values.text,
        "Name of the broker, for the column.",
        otherwise="the store's own, else the directory's name",
    ),
    Option(
        "storePathCommitLog",
        "paths",
        path_list,
        "The broker's setting of that name: where commitlog files lie elsewhere, or on several disks (separated by commas).",
        otherwise="`commitlog` in the store root",
    ),
    Option(
        "maxHashSlotNum",
        "number",
        values.whole_number,
        "Hash slots of an index file, as the broker was set.",
        otherwise=_FROM_INDEX,
    ),
    Option(
        "maxIndexNum",
        "number",
        values.whole_number,
        "Entries of an index file, as the broker was set.",
        otherwise=_FROM_INDEX,
    ),
)

_WHAT = (
    Option(
        "subscribe",
        "list",
        parse_subscribe,
        "Topics, separated by commas. Only one of `subscribe`, `subscribePattern` and `assign`.",
        otherwise="every topic that is no system topic and does not begin with `%`",
    ),
    Option(
        "subscribePattern",
        "regex",
        values.pattern,
        "Topics whose whole name matches. Python's `re` with ASCII classes; Java's `\\p{..}`, `\\Q..\\E` and `&&` are not in it. "
        "System topics only with `includeSystemTopics`, or those with `%` if the pattern begins with `%`.",
    ),
    Option(
        "assign", "JSON", parse_assign, 'Queues: `{"TopicTest":[0,1]}` or `{"TopicTest":{"broker-a":[0,1]}}`.'
    ),
    Option(
        "includeSystemTopics",
        "boolean",
        values.boolean,
        "Without `subscribe` and `assign`: the broker's own topics and `%RETRY%`, `%DLQ%`, `%LMQ%` too.",
        "false",
    ),
    Option(
        "subExpression",
        "text",
        lambda given: given.text,
        "Only messages with one of these tags: `TagA || TagB`; with `SQL92` those whose properties fulfil a condition: "
        "`price > 3 AND region = 'north'`.",
        "*",
    ),
    Option(
        "expressionType",
        "word",
        values.one_of("TAG", "SQL92"),
        "The language of `subExpression`: `TAG` or `SQL92`, each with RocketMQ's own rules.",
        "TAG",
    ),
    Option(
        "key",
        "text",
        values.text,
        "Only messages with this key: one word of KEYS, or the UNIQ_KEY. Index files are used where they cover the log.",
    ),
    Option(
        "messageId",
        "text",
        values.text,
        "Only this message: the id a client shows (UNIQ_KEY), or an offset message id. Not with `key`.",
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
        "Properties as string columns of their own, after the others; with a schema, the extra columns it may name.",
    ),
    Option(
        "view",
        "word",
        parse_view,
        "What to show: `messages`, or what is in the store: `topics`, `queues`, `groups`, `lag`, `files` and the other views.",
        MESSAGES,
        applies=frozenset({BATCH}),
    ),
)

_FROM_TO = (
    Option(
        "startingOffsets",
        "word or JSON",
        partial(parse_offsets, default=EARLIEST, refused=LATEST),
        'First offsets: `earliest`, or JSON `{"TopicTest":{"broker-a":{"0":23}}}` with or without the broker, -2 for earliest, '
        '`"*"` for any. '
        "Queues that are not named start at the default. In a stream also `latest` and -1; queues that come later start at earliest, "
        "and with a checkpoint no `starting…` option counts.",
        "earliest",
        stream=(partial(parse_offsets, default=LATEST, refused=None), "latest"),
    ),
    Option(
        "endingOffsets",
        "word or JSON",
        partial(parse_offsets, default=LATEST, refused=EARLIEST),
        "Where to end, exclusive: `latest`, or the same JSON with -1 for latest. Queues that are not named end at latest.",
        "latest",
        applies=_IN_BATCH,
    ),
    Option(
        "startingOffsetsByTimestamp",
        "JSON",
        _BY_TIME_FROM,
        f"The same JSON with times: {_TIME}. Beats `startingOffsets`.",
        stream=(_BY_TIME_FROM_IN_STREAM, None),
    ),
    Option(
        "endingOffsetsByTimestamp",
        "JSON",
        _BY_TIME_TO,
        "The same, exclusive. Beats `endingOffsets`.",
        applies=_IN_BATCH,
    ),
    Option(
        "startingTimestamp",
        "time",
        parse_timestamp,
        f"Messages stored at or after it: {_TIME}. Beats the other `starting…` options. A queue without such a message, idle since "
        "then, is an error unless `startingOffsetsByTimestampStrategy` is `latest`.",
    ),
    Option(
        "endingTimestamp",
        "time",
        parse_timestamp,
        "Messages stored before it. Beats the other `ending…` options.",
        applies=_IN_BATCH,
    ),
    Option(
        "startingOffsetsByTimestampStrategy",
        "word",
        values.one_of("error", "latest"),
        "A queue without a message at or after its starting time: `error`, or begin at `latest`.",
        "error",
    ),
)

_PARALLEL = (
    Option(
        "minPartitions",
        "number",
        values.whole_number,
        "At least so many partitions, by cutting queues.",
        otherwise="by size",
    ),
    Option(
        "maxBytesPerPartition",
        "size",
        values.sized(
            _PARTITION_SIZE_MIN, _LONG_MAX, "a number without a unit is bytes: write 64m for 64 MiB"
        ),
        "Queues share a partition up to this size; a larger queue is cut. At least `64k`, and never more than 100,000 partitions.",
        "64m",
    ),
    Option(
        "splitBy",
        "word",
        values.one_of("queue", "commitlog"),
        "`queue`: each queue in its order. `commitlog`: one sequential pass over the files for all queues, best on cold disks.",
        "queue",
    ),
)

_TRUST = (
    Option(
        "failOnDataLoss",
        "boolean",
        values.boolean,
        "Messages asked for that the store no longer holds, and queues that may not be read, are an error; with `false` a counted warning. "
        "A stream never passes over what may not be read.",
        "true",
    ),
    Option(
        "mode",
        "word",
        values.one_of("FAILFAST", "DROPMALFORMED", "PERMISSIVE"),
        "A damaged message is an error. `DROPMALFORMED`: it is left out and counted. `PERMISSIVE`: a row that says in `_corrupt_record` "
        "what is wrong.",
        "FAILFAST",
    ),
    Option("verifyCrc", "boolean", values.boolean, "Check the CRC of every body.", "true"),
    Option(
        "maxMessageSize",
        "size",
        values.sized(1, _MESSAGE_SIZE_LIMIT),
        "The largest body, decompressed, that is believed. Raise it where the broker's own setting is larger.",
        f"{BODY_SIZE_MAX >> 20}m",
    ),
)

_RATE = (
    Option(
        "maxOffsetsPerTrigger",
        "number",
        values.number(1, _LONG_MAX),
        "At most so many messages a micro-batch, divided among the queues by what each has waiting; every queue gets its turn.",
        otherwise="no limit",
        applies=_IN_STREAM,
    ),
    Option(
        "maxBytesPerTrigger",
        "size",
        values.byte_size,
        "At most so many bytes of commitlog a micro-batch, but at least one message. With both limits the smaller part counts.",
        otherwise="no limit",
        applies=_IN_STREAM,
    ),
    Option(
        "minOffsetsPerTrigger",
        "number",
        values.number(1, _LONG_MAX),
        "Wait until so many messages are there, but not longer than `maxTriggerDelay`. Without effect under AvailableNow.",
        otherwise="no waiting",
        applies=_IN_STREAM,
    ),
    Option(
        "maxTriggerDelay",
        "time",
        values.duration_ms,
        "How long `minOffsetsPerTrigger` may wait.",
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

# At most one of each is a wish.
CHOICES = (("path", "paths"), ("subscribe", "subscribePattern", "assign"), ("key", "messageId"))

# The first one given decides and the others are silent (KafkaSourceProvider.getKafkaOffsetRangeLimit).
PRECEDENCE = (
    ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets"),
    ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets"),
)

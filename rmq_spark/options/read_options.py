"""The options of a read: a table with one row each (name, parser, default, queries and meaning), and
`ReadOptions`, the plain values that the rows parse.

No other module knows a default. The tables of docs/options.md are generated from the rows. Names match in any
case, because Spark lower-cases them; errors use the documented spelling. An unknown option or a contradiction
is an OptionError with the nearest valid answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rmq_spark.consume.consumer import CLUSTERING, Tags, parse_subscription
from rmq_spark.options import option as values
from rmq_spark.options.access_options import ACCESS_OPTIONS, combined_access, refuse_credential
from rmq_spark.options.group_options import GROUP_OPTIONS, MAX_OFFSETS_PER_TRIGGER, GroupOptions, PopOptions
from rmq_spark.options.option import (
    BATCH,
    EARLIEST,
    LATEST,
    MESSAGES,
    STREAM,
    WRITE,
    Given,
    OffsetSpec,
    Option,
    Timestamp,
    file_path,
    parse_assign,
    parse_offsets,
    parse_offsets_by_timestamp,
    parse_subscribe,
    parse_timestamp,
    parse_view,
    path_list,
    paths_json,
    place,
    plain_fields,
    refuse_beside_view,
    single_path,
    subscription_text,
    value_text,
)
from store_format.errors import OptionError
from store_format.files import paths
from store_format.files.client import Access
from store_format.files.source import place_of
from store_format.message.columns import BODY_SIZE_MAX
from store_format.names import did_you_mean
from store_format.read.choice import MessageChoice
from store_format.survey.fates import Unfiled

if TYPE_CHECKING:
    from rmq_spark.consume.sql92 import Sql92Filter
    from rmq_spark.options.s3a_options import Setting

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
        "tieredStoreFilePath",
        "path",
        place,
        "The broker's setting of this name: the directory of tiered storage in files (PosixFileSegment). "
        "Queues then begin with the messages that are only there. A stream reads the store alone.",
        otherwise="tiered storage is not read",
        applies=_IN_BATCH,
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
    *ACCESS_OPTIONS,
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
        "Only these columns, in this order: `queueOffset,body`; it may also name those of `propertyColumns`.",
        otherwise="the default columns",
    ),
    Option(
        "propertyColumns",
        "list",
        values.names,
        "Message properties as additional string columns, after the others if `columns` does not name them; "
        "with a schema, the extra columns it may name.",
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
        "otherPath",
        "path",
        single_path,
        "For the view `diff`: the store, or the cluster, that is compared with that of `path`.",
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
        "The same (UTC without a zone), exclusive. Overrides `endingOffsets`.",
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
        "Messages stored before this time (UTC without a zone). Overrides the other `ending…` options.",
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
        "with a count. In a stream, missing read permission is always an error. A starting time before "
        "deleted messages is only a warning.",
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
        "compacted",
        "boolean",
        values.boolean,
        "Of topics with `cleanup.policy=COMPACTION`, the messages that consumers get: the newest of each "
        "key, from `compaction/`. With `false` those of the commitlog. A stream reads the commitlog.",
        "true",
        applies=_IN_BATCH,
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
        "maxOffsetsPerQueue",
        "number",
        values.number(1, _LONG_MAX),
        "The most messages of each queue in a micro-batch. Of several limits, the smallest counts.",
        otherwise="no limit",
        applies=_IN_STREAM,
    ),
    Option(
        "maxOffsetsPerTopic",
        "number",
        values.number(1, _LONG_MAX),
        "The most messages of each topic in a micro-batch, divided among the queues of the topic, of all "
        "brokers.",
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
    Option(
        "includeLastFile",
        "boolean",
        values.boolean,
        "Also read the commitlog file that the broker writes. A program that copies the store of a running "
        "broker copies this file again and again; `false` reads its messages once another file follows. "
        "Batches always read it.",
        otherwise="`false` on object storage, else `true`",
        applies=_IN_STREAM,
    ),
)

# Options that Spark adds: TableCatalog's reserved properties, and a stream's checkpoint.
_SPARKS_OWN = frozenset(
    (
        "checkpointlocation",
        "owner",
        "provider",
        "location",
        "comment",
        "external",
        "is_managed_location",
        "collation",
    )
)
# CREATE TABLE adds this property, TBLPROPERTIES, and each option a second time as `option.<name>`
_CATALOG_MARK = "provider"
_CATALOG_PREFIX = "option."


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


# ---- the values --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a read as plain values, which are pickled to every task."""

    paths: tuple[str, ...]
    broker_name: str | None
    commit_log_paths: tuple[str, ...]  # () is `commitlog` in the store root
    tiered_store_file_path: str | None
    access: Access  # to those of the paths that are on object storage
    max_hash_slot_num: int | None
    max_index_num: int | None
    choice: MessageChoice
    columns: tuple[str, ...] | None  # as the caller spelled them; plan.output_fields checks them
    property_columns: tuple[str, ...]
    view: str
    other_path: tuple[str, ...] | None  # for the view `diff`
    broker_conf: str | None  # path of a file, for a view
    starting: OffsetSpec
    ending: OffsetSpec
    starting_offsets_by_timestamp_strategy: str  # error | latest
    min_partitions: int | None
    max_bytes_per_partition: int
    split_by: str  # queue | wholeQueue | commitlog
    fail_on_data_loss: bool
    unfiled_queues: Unfiled | None
    compacted: bool
    mode: str  # FAILFAST | DROPMALFORMED | PERMISSIVE
    verify_crc: bool
    max_message_size: int
    max_offsets_per_trigger: int | None
    max_offsets_per_queue: int | None
    max_offsets_per_topic: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    include_last_file: bool | None  # None for a stream: what the place of the store says
    group: GroupOptions | None  # None also for a stream that pops
    pop: PopOptions | None
    subscription: str  # topics and expression, as the members of a group compare them
    effective: tuple[tuple[str, str], ...]
    session: Setting | None = field(default=None, repr=False, compare=False)  # of Spark, for S3

    def access_to(self, place: str) -> Access:
        """How the bucket of a path is reached: by the `fs.…` options, then by the settings of the session.

        Raises OptionError for settings that cannot be honoured.
        """
        if self.session is None or not place.startswith("s3://"):
            return self.access
        from rmq_spark.options.s3a_options import access_by_session  # few sessions have such settings

        # not all of the environment: Spark can show the local names of a call that fails
        has_keys = "AWS_ACCESS_KEY_ID" in os.environ
        return access_by_session(self.access, self.session, place_of(place), has_keys=has_keys)

    @property
    def permissive(self) -> bool:
        return self.mode == "PERMISSIVE"

    def holds_last(self, path: str) -> bool:
        """Whether messages of the last commitlog file of a store wait until another file follows."""
        return paths.is_remote(path) if self.include_last_file is None else not self.include_last_file

    def resolved(self) -> list[tuple[str, str]]:
        """(documented name, value) of every option that has one, defaults too: logged once per read.

        Relative times are shown as absolute times. Options that another option overrides are left out.
        """
        return list(self.effective)


def parse_read_options(
    options: Mapping[str, str], *, where: str | None = BATCH, now_ms: int | None = None
) -> ReadOptions:
    """The options of a batch read or, with `where` = STREAM, of a stream. `where` None accepts both.

    Relative times count back from `now_ms`, by default the clock. Raises OptionError.
    """
    now = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    given = {name: Given(name, text, now) for name, text in user_options(options, where).items()}
    _refuse_contradictions(given)
    refuse_beside_view(given)
    read = {option.name: option.read(given, now, where or STREAM) for option in OPTIONS}
    _refuse_inverted_rate(read)
    _refuse_beside_whole_queue(read["splitBy"], given)
    starting, ending = (next((name for name in names if name in given), names[-1]) for names in PRECEDENCE)
    _refuse_empty_time(read[starting], read[ending])
    if len(read["paths"] or ()) > 1:
        _refuse_for_many(given)
    tags, condition = parse_subscription(
        read["expressionType"], read["subExpression"] if "subExpression" in given else None
    )
    _refuse_without_group(given)
    pop = PopOptions.from_read(read, given, frozenset(option.name for option in GROUP_OPTIONS), where)
    if pop is not None and read["maxOffsetsPerTrigger"] is None and read["maxBytesPerTrigger"] is None:
        read["maxOffsetsPerTrigger"] = max(MAX_OFFSETS_PER_TRIGGER, read["minOffsetsPerTrigger"] or 0)
    group = None if pop is not None else GroupOptions.from_read(read, given, now)
    _refuse_beside_consumers(group, given)
    _refuse_shared_by_none(read["paths"] or read["path"] or (), group, pop)
    choice = _choice(read, group, pop, tags, condition)
    places = read["paths"] or read["path"]
    tiered = [read["tieredStoreFilePath"]] if read["tieredStoreFilePath"] else []
    combined = {
        "paths": places,
        "commit_log_paths": read["storePathCommitLog"] or (),
        "access": _access(
            read, given, (*places, *(read["storePathCommitLog"] or ()), *tiered, *(read["otherPath"] or ()))
        ),
        "choice": choice,
        "property_columns": read["propertyColumns"] or (),
        "starting": read[starting],
        "ending": read[ending],
        "max_trigger_delay_ms": read["maxTriggerDelay"],
        "include_last_file": read["includeLastFile"] if where == STREAM else True,
        "group": group,
        "pop": pop,
        "subscription": subscription_text(choice, read["expressionType"], read["subExpression"]),
        "effective": _effective(read, {starting, ending}, where),
    }
    return ReadOptions(**(plain_fields(ReadOptions, read) | combined))


def user_options(
    options: Mapping[str, str], where: str | None = BATCH, table: Sequence[Option] = OPTIONS
) -> dict[str, str]:
    """The caller's options by their documented names in `table`, without those that Spark adds.

    Raises OptionError for an unknown name, a duplicate, or an option that does not apply to a `where` query;
    `where` None is any kind of query.
    """
    by_lower = {option.name.lower(): option for option in table}
    spelled: dict[str, str] = {}
    for name in options:
        if name.lower() in spelled:
            raise OptionError(
                f"{_spelling(name, by_lower)} is given twice, in upper and lower case; give it once"
            )
        spelled[name.lower()] = name
    in_catalog = is_catalog(options)
    found = {}
    for lower, name in spelled.items():
        if lower in _SPARKS_OWN or lower.startswith(_CATALOG_PREFIX):
            continue
        if in_catalog and lower not in by_lower and _CATALOG_PREFIX + lower not in spelled:
            continue  # from TBLPROPERTIES
        option = _known(name, by_lower, where)
        if where is not None and where not in option.applies:
            raise OptionError(
                f"{option.name} does not apply to a {where} query; "
                f"it is for {' and '.join(sorted(option.applies))} queries"
            )
        found[option.name] = options[name]
    return found


def is_catalog(options: Mapping[str, str]) -> bool:
    """Whether these are the properties of a catalog's table, which CREATE TABLE passes to get the schema."""
    return any(name.lower() == _CATALOG_MARK for name in options)


def _known(name: str, by_lower: Mapping[str, Option], where: str | None) -> Option:
    option = by_lower.get(name.lower())
    if option is not None:
        return option
    refuse_credential(name)
    from rmq_spark.options.foreign_names import column_hint, foreign_hint, foreign_name  # only errors need it

    known = [each.name for each in by_lower.values()]
    foreign = foreign_name(name)
    hint = column_hint(name) if where == WRITE else ""
    if foreign is not None:
        name = foreign.name
        applicable = [each.name for each in by_lower.values() if where is None or where in each.applies]
        hint = foreign_hint(foreign, known, applicable, where or BATCH)
    # A write knows the options of reads, too, to say that they do not apply; none of them is a neighbour.
    near = known if where != WRITE else [each.name for each in by_lower.values() if WRITE in each.applies]
    hint = hint or did_you_mean(name, near, "options", listed_max=len(near))
    raise OptionError(f"unknown option {name!r}; {hint}")


def _spelling(name: str, by_lower: Mapping[str, Option]) -> str:
    option = by_lower.get(name.lower())
    return option.name if option else name


def _refuse_contradictions(given: Mapping[str, Given]) -> None:
    for names in CHOICES:
        both = [name for name in names if name in given]
        if len(both) > 1:
            raise OptionError(f"{' and '.join(both)} are given together; use only one of {', '.join(names)}")
    if not any(name in given for name in CHOICES[0]):
        raise OptionError(
            "path is not given; give the broker's store directory, as in load('/data/store') "
            "or OPTIONS (path '/data/store')"
        )


def _refuse_for_many(given: Mapping[str, Given]) -> None:
    """Raises OptionError for options of one store beside several paths."""
    for name in ("brokerName", "storePathCommitLog"):
        if name in given:
            raise OptionError(
                f"{name} is for one store, but paths has several; load the stores one by one and union them"
            )


def _access(read: Mapping[str, Any], given: Mapping[str, Given], places: Sequence[str]) -> Access:
    is_given = any(option.name in given for option in ACCESS_OPTIONS)
    return combined_access(read, places) if is_given else Access()


def _refuse_empty_time(starting: OffsetSpec, ending: OffsetSpec) -> None:
    start, stop = starting.default, ending.default
    if isinstance(start, Timestamp) and isinstance(stop, Timestamp) and start.ms > stop.ms:
        raise OptionError(f"{starting.option} {start} is after {ending.option} {stop}; swap them")


def _choice(
    read: Mapping[str, Any],
    group: GroupOptions | None,
    pop: PopOptions | None,
    tags: Tags,
    where: Sql92Filter | None,
) -> MessageChoice:
    # When BROADCASTING nothing is sent back, and no retry topic is subscribed
    # (DefaultMQPushConsumerImpl.copySubscription).
    retried = group.group if group is not None and group.message_model == CLUSTERING else ""
    return MessageChoice(
        names=read["subscribe"] or (),
        pattern=read["subscribePattern"],
        queues=read["assign"] or (),
        include_system_topics=read["includeSystemTopics"],
        group=retried,
        pop_retry_topics=frozenset() if pop is None else frozenset(pop.retry_topics(read["subscribe"])),
        tags=tags,
        key=read["key"],
        message_id=read["messageId"],
        where=where,
    )


def _refuse_without_group(given: Mapping[str, Given]) -> None:
    alone = next((option.name for option in GROUP_OPTIONS if option.name in given), None)
    if alone is not None and "group" not in given:
        raise OptionError(f"{alone} is for consumer groups; name the group with the option group")


def _refuse_beside_consumers(group: GroupOptions | None, given: Mapping[str, Given]) -> None:
    """Raises OptionError: with `consumers`, the strategy decides which partition reads which queue."""
    if group is None or group.consumers is None:
        return
    for name in ("minPartitions", "maxBytesPerPartition", "splitBy"):
        if name in given:
            raise OptionError(
                f"consumers and {name} are given together, but each consumer is one partition; "
                f"leave out consumers or {name}"
            )


def _refuse_shared_by_none(stores: Sequence[str], group: GroupOptions | None, pop: PopOptions | None) -> None:
    """Raises OptionError: nothing can be written beside a store on object storage."""
    place = next(filter(paths.is_remote, stores), None)
    if place is None:
        return
    if pop is not None:
        raise OptionError(
            f"pop writes to the store, and {place} is on {paths.remote_kind(place)}, which is only read; "
            "use a store on a disk"
        )
    if group is None:
        return
    needed = {"groupPath": group.group_path}
    if group.offset_store != "none":
        needed["offsetStorePath"] = group.offset_store_path
    missing = [name for name, value in needed.items() if value is None]
    if missing or group.offset_store not in ("local", "none"):
        raise OptionError(
            f"group {group.group}: {place} is on {paths.remote_kind(place)}, where a group cannot keep its "
            "offsets; set offsetStore=local, and with offsetStorePath and groupPath two directories that the "
            "drivers of all queries of the group share"
        )


def _refuse_beside_whole_queue(split_by: str, given: Mapping[str, Given]) -> None:
    """Raises OptionError: with splitBy=wholeQueue the number of queues is the number of partitions."""
    for name in ("minPartitions", "maxBytesPerPartition"):
        if split_by == WHOLE_QUEUE and name in given:
            raise OptionError(
                f"splitBy={WHOLE_QUEUE} and {name} are given together, but each queue is one partition; "
                f"leave out {name}, or set splitBy={QUEUE}"
            )


def _refuse_inverted_rate(read: Mapping[str, Any]) -> None:
    least, most = read["minOffsetsPerTrigger"], read["maxOffsetsPerTrigger"]
    if least is not None and most is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger {least} is above maxOffsetsPerTrigger {most}; lower it")


def _effective(read: Mapping[str, Any], deciding: set[str], where: str | None) -> tuple[tuple[str, str], ...]:
    beaten = {name for names in PRECEDENCE for name in names} - deciding
    beaten |= {option.name for option in OPTIONS if where is not None and where not in option.applies}
    beaten |= {option.name for option in GROUP_OPTIONS} if read["group"] is None else set(PRECEDENCE[0])
    return tuple(
        (name, value_text(value)) for name, value in read.items() if value is not None and name not in beaten
    )

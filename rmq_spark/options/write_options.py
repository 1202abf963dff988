"""The options of a write: a table with one row each (name, parser, default and meaning), and `WriteOptions`,
the plain values that the rows parse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rmq_spark.options import option as values
from rmq_spark.options.group_options import parse_group
from rmq_spark.options.option import WRITE, Given, Option, file_path, plain_fields, value_text, written_path
from rmq_spark.options.read_options import OPTIONS, user_options
from rmq_spark.produce.columns import check_property_columns
from rmq_spark.produce.messages import Compression
from rmq_spark.produce.queues import DEFAULT_TOPIC_QUEUE_NUMS, SELECTORS
from store_format.bookkeeping.ledger import ServiceTurn
from store_format.commit.options import LostBatch
from store_format.errors import OptionError
from store_format.message.compression import COMPRESSION_TYPES
from store_format.message.encode import MESSAGE_SIZE_MAX
from store_format.message.hosts import parse_host
from store_format.survey.fates import Unfiled

_NO_COMPRESSION = "NONE"

_LONG_MAX = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1
_FILE_SIZE_MAX = (1 << 31) - 1  # a mapped file's size is a Java int
_LEVEL_MAX = 22  # of ZSTD; ZLIB has 9

_ZLIB_LEVEL_MAX = 9


# ---- the table ---------------------------------------------------------------------------------------------


def _host(given: Given) -> tuple[bytes, int]:
    try:
        return parse_host(given.text.strip())
    except ValueError as error:
        raise given.error("ip:port, IPv6 in brackets", advice="host names are not resolved") from error


_row = partial(Option, heading="Write", applies=frozenset({WRITE}))
_OWN = "the store's own; {} for a new one"

WRITE_OPTIONS: tuple[Option, ...] = (
    _row(
        "path",
        "path",
        written_path,
        "A store root, or a directory of store roots: a cluster. Created if missing.",
        otherwise="required",
    ),
    _row("topic", "text", values.text, "The topic of all rows.", otherwise="the column `topic`"),
    _row(
        "propertyColumns",
        "list",
        values.names,
        "String columns that become message properties, as in a read with this option. For a null or an "
        "empty string, the column "
        "`properties` decides.",
    ),
    _row(
        "messageQueueSelector",
        "word",
        values.one_of(*SELECTORS),
        "The queue of rows without `queueId`: `roundrobin`; `hash` of `shardingKey`, as "
        "SelectMessageQueueByHash; `messageGroup`, as RocketMQ's proxy for a FIFO message (both take turns "
        "without a key); `random`.",
        SELECTORS[0],
    ),
    _row(
        "autoCreateTopicEnable",
        "boolean",
        values.boolean,
        "Create topics that the store does not have. With `false` they are an error, except `%RETRY%…`.",
        "true",
    ),
    _row(
        "defaultTopicQueueNums",
        "number",
        values.whole_number,
        "The queues of a created topic; more if rows name a higher `queueId`.",
        str(DEFAULT_TOPIC_QUEUE_NUMS),
    ),
    _row(
        "flushDiskType",
        "word",
        values.one_of("SYNC_FLUSH", "ASYNC_FLUSH"),
        "`SYNC_FLUSH`: a commit survives power loss. `ASYNC_FLUSH`: a commit survives only the death of "
        "processes; call "
        "`MessageStore.flush()`, or run the service `flush`, before a broker starts.",
        "SYNC_FLUSH",
    ),
    _row(
        "messageIndexEnable",
        "boolean",
        values.boolean,
        "Index keys, UNIQ_KEY and tags, for queries by key.",
        "true",
    ),
    _row(
        "compressType",
        "word",
        values.one_of(_NO_COMPRESSION, *COMPRESSION_TYPES),
        "The compression of large bodies. A Java producer's default is `ZLIB`, to save network; here it "
        "makes files smaller and "
        "writing several times slower.",
        _NO_COMPRESSION,
    ),
    _row(
        "compressMsgBodyOverHowmuch",
        "size",
        values.byte_size,
        "Bodies of this size or larger are compressed.",
        "4096",
    ),
    _row(
        "compressLevel",
        "number",
        values.number(1, _LEVEL_MAX),
        "1 to 9 for `ZLIB`, 1 to 22 for `ZSTD`; `LZ4` has no levels.",
        "5",
    ),
    _row(
        "strictProperties",
        "boolean",
        values.boolean,
        "Reserved properties in the map (DELAY, REAL_TOPIC, TRAN_MSG …), which RocketMQ sets itself, are an "
        "error. With `false` they "
        "are left out, with a warning and a count.",
        "false",
    ),
    _row(
        "maxMessageSize",
        "size",
        values.sized(1, _FILE_SIZE_MAX),
        "The largest body, before compression. Consumers with default settings reject messages of 16m or "
        "more.",
        str(MESSAGE_SIZE_MAX),
    ),
    _row(
        "bornHost",
        "ip:port",
        _host,
        "The producer's address, if the column `bornHost` is null.",
        otherwise="this machine's address, port 0",
    ),
    _row(
        "storeHost",
        "ip:port",
        _host,
        "The broker's address in the messages and in their offset message ids.",
        otherwise="this machine's address, port 10911",
    ),
    _row(
        "txnAppId",
        "text",
        values.text,
        "With `txnVersion`: a batch with this name and version is written once, even if it runs again. Use "
        "one name for all runs of a job.",
    ),
    _row(
        "txnVersion",
        "number",
        values.number(0, _LONG_MAX),
        "With `txnAppId`: an increasing number. A batch whose number is not above the last one is skipped "
        "with a warning.",
    ),
    _row(
        "txnLostBatch",
        "word",
        values.one_of("again"),
        "For a batch with a committed `txnVersion` of which the commitlog lacks messages, as in a copy that "
        "was made during commits. `again`: write the whole batch again; a warning counts the messages that "
        "the store then has twice.",
        otherwise="an error that names the lost messages",
    ),
    _row(
        "sendBack",
        "text",
        parse_group,
        "Send stored messages back for this consumer group, which failed to consume them: as retries, later "
        "as dead letters. A row names a message by `brokerName`, `storedTopic` (else `topic`), `queueId` and "
        "`queueOffset`; `delayTimeLevel` is its delay level, negative for a dead letter; other columns are "
        "ignored. Inside foreachBatch `txnAppId` and `txnVersion` are required, with a `txnAppId` of its own "
        "for each write.",
    ),
    _row(
        "maxReconsumeTimes",
        "number",
        values.number(-1, _INT_MAX),
        "With `sendBack`: the retries of a message before it becomes a dead letter. -1, the default of "
        "RocketMQ's consumers, is 16.",
        otherwise="the group's `retryMaxTimes`, 16 by default",
    ),
    _row(
        "transaction",
        "word",
        values.one_of("half", "commit", "rollback"),
        "`half`: write the rows as half messages of transactions, which no consumer sees before their "
        "commit. Their ids are UNIQ_KEY in `properties`, else look at the view `transactions`. `commit`, "
        "`rollback`: decide half messages. A row names one by `msgId`, or by `halfQueueOffset` where `msgId` "
        "is null, and by `brokerName` if that is not null; other columns are ignored. Inside foreachBatch "
        "`txnAppId` and `txnVersion` are required.",
    ),
    _row(
        "producerGroup",
        "text",
        parse_group,
        "With `transaction`: the producer group of the half messages. Required for `half`; with `commit` and "
        "`rollback`, half messages of another group are an error.",
    ),
    _row(
        "diskSpaceWarningLevelRatio",
        "number",
        values.number(0, 100),
        "A store is not written to if a higher percentage of its file system is used, as in a broker; in a "
        "cluster, other stores are used.",
        otherwise="that of `brokerConf`, from 35 to 90; else 90",
    ),
    _row(
        "brokerConf",
        "path",
        file_path,
        "The broker.conf of the store's broker: its messageDelayLevel, disk ratios and timer settings apply "
        "to the write. In a cluster one file is for all stores.",
        otherwise="the store's own `.rmqlog/broker.conf`; else the broker's defaults",
    ),
    _row(
        "unfiledQueues",
        "word",
        values.one_of("read", "skip"),
        "For topics that have messages in the commitlog but no consume queue file, if nothing shows "
        "why. `read`: their directories were lost; rebuild the queues. `skip`: the topics were deleted and "
        "created again; the old messages stay deleted.",
        otherwise="an error",
    ),
    _row(
        "ignoreMissingStores",
        "boolean",
        values.boolean,
        "In a cluster, with `true`: a store that is missing now does not come back. A write that needs to "
        "ask this store is then done without it; with `false` it is an error.",
        "false",
    ),
    _row(
        "writerLockTimeout",
        "duration",
        values.duration_ms,
        "How long to wait for another writer of the store.",
        "10m",
    ),
    _row(
        "stagingRetention",
        "duration",
        values.duration_ms,
        "How long staged files of dead tasks are kept.",
        "24h",
    ),
    _row(
        "brokerName", "text", values.text, "The broker's name.", otherwise=_OWN.format("the directory's name")
    ),
    _row(
        "mappedFileSizeCommitLog",
        "size",
        values.sized(1 << 12, _FILE_SIZE_MAX),
        "The size of a commitlog file.",
        otherwise=_OWN.format("1g"),
    ),
    _row(
        "mappedFileSizeConsumeQueue",
        "size",
        values.sized(20, _FILE_SIZE_MAX),
        "The size of a consume queue file, rounded up to a multiple of 20.",
        otherwise=_OWN.format("6000000"),
    ),
    _row(
        "maxHashSlotNum",
        "number",
        values.whole_number,
        "The hash slots of an index file.",
        otherwise=_OWN.format("5000000"),
    ),
    _row(
        "maxIndexNum",
        "number",
        values.whole_number,
        "The entries of an index file.",
        otherwise=_OWN.format("20000000"),
    ),
)


# ---- the values --------------------------------------------------------------------------------------------

_WRITE_NAMES = {option.name for option in WRITE_OPTIONS}
# With the options of a read: in a write they are reported as such, and not as misspelt.
_TABLE = (*WRITE_OPTIONS, *(option for option in OPTIONS if option.name not in _WRITE_NAMES))


@dataclass(frozen=True, slots=True)
class NewStoreOptions:
    """Settings of a new store; an existing store must have the same. None: not given."""

    broker_name: str | None
    mapped_file_size_commit_log: int | None
    mapped_file_size_consume_queue: int | None
    max_hash_slot_num: int | None
    max_index_num: int | None


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write as plain values, which are pickled to every task."""

    path: str
    topic: str | None
    property_columns: tuple[str, ...]
    message_queue_selector: str  # roundrobin | hash | random
    auto_create_topic_enable: bool
    default_topic_queue_nums: int
    flush_disk_type: str  # SYNC_FLUSH | ASYNC_FLUSH
    message_index_enable: bool
    compression: Compression | None
    strict_properties: bool
    max_message_size: int
    born_host: tuple[bytes, int] | None  # None: this machine's
    store_host: tuple[bytes, int] | None
    txn: tuple[str, int] | None  # txnAppId and txnVersion: the key of an idempotent batch
    txn_lost_batch: LostBatch | None
    send_back: str | None  # the group that sends messages back
    max_reconsume_times: int | None
    transaction: str | None  # half | commit | rollback
    producer_group: str | None
    disk_used_percent_max: int | None  # None: that of the broker's settings
    broker_conf: str | None  # path of a file; None: each store's own
    unfiled_queues: Unfiled | None
    ignore_missing_stores: bool
    writer_lock_timeout_ms: int
    staging_retention_ms: int
    new_store: NewStoreOptions
    effective: tuple[tuple[str, str], ...]

    @property
    def decides(self) -> bool:
        """Whether the rows name half messages to commit or to roll back."""
        return self.transaction in ("commit", "rollback")

    def resolved(self) -> list[tuple[str, str]]:
        """(documented name, value) of every option that has one, defaults too: logged once per write."""
        return list(self.effective)


def parse_write_options(options: Mapping[str, str], *, now_ms: int = 0) -> WriteOptions:
    """The options of a batch or stream write. Raises OptionError."""
    given = {name: Given(name, text, now_ms) for name, text in user_options(options, WRITE, _TABLE).items()}
    if "path" not in given:
        raise OptionError(
            "path is not given; give the store directory to write to, as in save('/data/store') or "
            "option('path', …). In SQL, Spark passes a table's options neither to INSERT INTO nor to "
            "CREATE TABLE … AS SELECT: use INSERT INTO t WITH (path = '/data/store') SELECT …, or "
            "INSERT INTO a temporary view that has OPTIONS (path '/data/store')"
        )
    read = {option.name: option.read(given, now_ms) for option in WRITE_OPTIONS}
    _refuse_beside_send_back(given)
    _refuse_beside_transaction(given, read["transaction"])
    combined = {
        "path": read["path"][0],
        "property_columns": _property_columns(read),
        "compression": _compression(read),
        "txn": _txn(read),
        "disk_used_percent_max": read["diskSpaceWarningLevelRatio"],
        "writer_lock_timeout_ms": read["writerLockTimeout"],
        "staging_retention_ms": read["stagingRetention"],
        "new_store": NewStoreOptions(**plain_fields(NewStoreOptions, read)),
        "effective": tuple((name, value_text(value)) for name, value in read.items() if value is not None),
    }
    return WriteOptions(**(plain_fields(WriteOptions, read) | combined))


# What a row of new messages has, and a row that names a stored message does not.
_OF_NEW_MESSAGES = (
    "topic", "propertyColumns", "messageQueueSelector", "autoCreateTopicEnable", "defaultTopicQueueNums",
    "compressType", "compressMsgBodyOverHowmuch", "compressLevel", "strictProperties", "bornHost",
)  # fmt: skip
_NOT_BESIDE_SEND_BACK = (*_OF_NEW_MESSAGES, "transaction", "producerGroup")


def _refuse_beside_send_back(given: Mapping[str, Given]) -> None:
    if "sendBack" not in given:
        if "maxReconsumeTimes" in given:
            raise OptionError("maxReconsumeTimes is given without sendBack; it only applies with sendBack")
        return
    other = next((name for name in _NOT_BESIDE_SEND_BACK if name in given), None)
    if other is not None:
        raise OptionError(
            f"sendBack and {other} are given together, but a message is sent back as it is stored; leave "
            f"out {other}"
        )


def _refuse_beside_transaction(given: Mapping[str, Given], transaction: str | None) -> None:
    if transaction is None:
        if "producerGroup" in given:
            raise OptionError("producerGroup is given without transaction; it only applies with transaction")
        return
    if transaction == "half":
        if "producerGroup" not in given:
            raise OptionError(
                "transaction=half is given without producerGroup; give the group that a broker would ask for "
                "the decision"
            )
        return
    other = next((name for name in _OF_NEW_MESSAGES if name in given), None)
    if other is not None:
        raise OptionError(
            f"transaction={transaction} and {other} are given together, but a half message is decided as it "
            f"is stored; leave out {other}"
        )


def _compression(read: Mapping[str, Any]) -> Compression | None:
    kind, level = read["compressType"], read["compressLevel"]
    if kind == _NO_COMPRESSION:
        return None
    if kind == "ZLIB" and level > _ZLIB_LEVEL_MAX:
        raise OptionError(
            f"compressLevel: expected 1 to {_ZLIB_LEVEL_MAX} for compressType ZLIB, found {level}"
        )
    return Compression(kind, read["compressMsgBodyOverHowmuch"], level)


def _property_columns(read: Mapping[str, Any]) -> tuple[str, ...]:
    names = tuple(read["propertyColumns"] or ())
    check_property_columns(names)
    return names


def _txn(read: Mapping[str, Any]) -> tuple[str, int] | None:
    name, version = read["txnAppId"], read["txnVersion"]
    if name is None and version is None:
        return None
    if name is None or version is None:
        missing, there = ("txnAppId", "txnVersion") if name is None else ("txnVersion", "txnAppId")
        raise OptionError(
            f"{there} is given without {missing}; give both or neither: together they identify the batch"
        )
    return ServiceTurn.user_key((name, version))

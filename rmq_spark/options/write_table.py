"""The options of a write, each once, as `option_table` has those of a read."""

from __future__ import annotations

from functools import partial

from rmq_spark.options import parse as values
from rmq_spark.options.option import Option
from rmq_spark.options.parse import Given
from rmq_spark.options.paths import single_path
from rmq_spark.produce.queues import SELECTORS
from rmq_spark.produce.routes import DEFAULT_TOPIC_QUEUE_NUMS
from store_format.message.compression import COMPRESSION_TYPES
from store_format.message.encode import MESSAGE_SIZE_MAX
from store_format.message.hosts import parse_host

WRITE = "write"
NO_COMPRESSION = "NONE"

_LONG_MAX = (1 << 63) - 1
_FILE_SIZE_MAX = (1 << 31) - 1  # a mapped file's size is a Java int
_LEVEL_MAX = 22  # of ZSTD; ZLIB has 9


def _host(given: Given) -> tuple[bytes, int]:
    try:
        return parse_host(given.text.strip())
    except ValueError as error:
        raise given.error("ip:port, IPv6 in brackets", advice="names are not looked up") from error


_row = partial(Option, heading="Write", applies=frozenset({WRITE}))
_OWN = "the store's own; {} for a new one"

WRITE_OPTIONS: tuple[Option, ...] = (
    _row(
        "path",
        "path",
        single_path,
        "A store root, or a directory of store roots: a cluster. Made when missing.",
        otherwise="required",
    ),
    _row("topic", "text", values.text, "The topic of all rows.", otherwise="the column `topic`"),
    _row(
        "propertyColumns",
        "list",
        values.names,
        "String columns that are properties, as a read with this option has them. Null or an empty string leaves it to the column "
        "`properties`.",
    ),
    _row(
        "messageQueueSelector",
        "word",
        values.one_of(*SELECTORS),
        "The queue of rows without `queueId`: `roundrobin`; `hash` of `shardingKey`, as SelectMessageQueueByHash (without a key in turn); "
        "`random`.",
        SELECTORS[0],
    ),
    _row(
        "autoCreateTopicEnable",
        "boolean",
        values.boolean,
        "Topics that the store does not have are created. With `false` they are an error, but for `%RETRY%…`.",
        "true",
    ),
    _row(
        "defaultTopicQueueNums",
        "number",
        values.whole_number,
        "The queues of a created topic; more where rows name a higher `queueId`.",
        str(DEFAULT_TOPIC_QUEUE_NUMS),
    ),
    _row(
        "flushDiskType",
        "word",
        values.one_of("SYNC_FLUSH", "ASYNC_FLUSH"),
        "`SYNC_FLUSH`: a commit survives power loss. `ASYNC_FLUSH`: it survives the death of processes only; call "
        "`MessageStore.flush()` before a broker starts.",
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
        values.one_of(NO_COMPRESSION, *COMPRESSION_TYPES),
        "How large bodies are compressed. A Java producer's default is `ZLIB`, for the network's sake; here it makes files smaller and "
        "writing several times slower.",
        NO_COMPRESSION,
    ),
    _row(
        "compressMsgBodyOverHowmuch",
        "size",
        values.byte_size,
        "Bodies of this size and above are compressed.",
        "4096",
    ),
    _row(
        "compressLevel",
        "number",
        values.number(1, _LEVEL_MAX),
        "1 to 9 for `ZLIB`, to 22 for `ZSTD`; `LZ4` has no levels.",
        "5",
    ),
    _row(
        "strictProperties",
        "boolean",
        values.boolean,
        "Properties in the map that RocketMQ sets itself (DELAY, REAL_TOPIC, TRAN_MSG …) are an error. With `false` they are left out "
        "and counted in a warning.",
        "false",
    ),
    _row(
        "maxMessageSize",
        "size",
        values.sized(1, _FILE_SIZE_MAX),
        "The largest body, before compression. Consumers with default settings take no message of 16m or more.",
        str(MESSAGE_SIZE_MAX),
    ),
    _row(
        "bornHost",
        "ip:port",
        _host,
        "Who made the messages, where the column `bornHost` is null.",
        otherwise="this machine's address, port 0",
    ),
    _row(
        "storeHost",
        "ip:port",
        _host,
        "The broker in the messages and in their offset ids.",
        otherwise="this machine's address, port 10911",
    ),
    _row(
        "txnAppId",
        "text",
        values.text,
        "With `txnVersion`: a batch of this name and version is written once, however often it runs. Use one name for all runs of a job.",
    ),
    _row(
        "txnVersion",
        "number",
        values.number(0, _LONG_MAX),
        "With `txnAppId`: a number that grows. One not above the last is skipped with a warning.",
    ),
    _row(
        "diskSpaceWarningLevelRatio",
        "number",
        values.number(0, 100),
        "Nothing is written where more percent of the file system are used, as by a broker; a store of a cluster is passed over.",
        "90",
    ),
    _row(
        "rebuildLostQueues",
        "boolean",
        values.boolean,
        "For topics without any consume queue file, of which the commitlog has messages. `true`: their directories were lost, rebuild "
        "the queues. `false`: they were deleted and created again, the old messages stay deleted. Unset: an error, unless consumer "
        "offsets tell that they were lost.",
    ),
    _row(
        "writerLockTimeout",
        "duration",
        values.duration_ms,
        "How long to wait for another writer of the store.",
        "10m",
    ),
    _row("stagingRetention", "duration", values.duration_ms, "How long files of dead tasks are kept.", "24h"),
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
        "The size of a consume queue file, made a multiple of 20.",
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

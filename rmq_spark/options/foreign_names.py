"""Option names of other connectors and clients, with ours or with a sentence that says what to do instead.

The names are those of Spark's Kafka source and file sources, of rocketmq-spark (`RocketMQConf`,
`RocketMQConfig`), of rocketmq-flink (`RocketMQOptions`), of RocketMQ's clients, and of columns that are given
as an option.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from rmq_spark.options.option import WRITE
from rmq_spark.produce.columns import WRITE_COLUMNS
from store_format.names import did_you_mean


@dataclass(frozen=True, slots=True)
class ForeignName:
    """One name as its own documentation spells it: Spark passes names in lower case.

    `ours` are our options for it; an error suggests the first that the query has. `advice` is a sentence,
    which follows the suggestion or stands alone.
    """

    name: str
    ours: tuple[str, ...] = ()
    advice: str = ""


_ADDRESS = "The path is the broker's store directory: no network connection is opened"
_NO_CLIENT = "no client connects to a broker: leave it out"
_BODY = "a body is one column of bytes: decode it with CAST, from_json or from_csv"
_MICRO_BATCH = "It limits what a micro-batch reads of all queues together"
_FILTER = "The values of a column are filtered with where()"


def _all(names: str, ours: tuple[str, ...] = (), advice: str = "") -> tuple[ForeignName, ...]:
    return tuple(ForeignName(name, ours, advice) for name in names.split())


FOREIGN_NAMES: tuple[ForeignName, ...] = (
    *_all("kafka.bootstrap.servers bootstrap.servers", ("path",), _ADDRESS),
    *_all("namesrvAddr nameServer nameserver.addr nameServerAddress name.srv.addr", ("path",), _ADDRESS),
    *_all("topics", ("topic", "subscribe")),
    *_all("topic consumer.topic", ("subscribe",)),
    *_all("topicPattern", ("subscribePattern",)),
    *_all("kafka.group.id group.id groupId groupIdPrefix consumerGroup consumer.group", ("group",)),
    *_all("tag tags consumer.tag", ("subExpression",)),
    *_all("sql filterExpression", ("subExpression",), "Set expressionType=SQL92 with it"),
    *_all("msgId", ("messageId",)),
    *_all("queueId partition", ("assign",), _FILTER),
    *_all("queues", ("defaultTopicQueueNums", "assign")),
    *_all("queueNums writeQueueNums readQueueNums", ("defaultTopicQueueNums",)),
    *_all("startMessageOffset scanStartupMode scan.startup.mode consumer.offset.reset.to auto.offset.reset "
          "kafka.auto.offset.reset queueOffset startingVersion", ("startingOffsets",)),
    *_all("startTimeMs startTime offsetFromTimestamp scan.startup.timestamp-millis since",
          ("startingTimestamp",)),
    *_all("endTime until", ("endingTimestamp",)),
    *_all("maxFilesPerTrigger", ("maxOffsetsPerTrigger",)),
    *_all("maxRatePerPartition pull.max.speed.per.partition", ("maxOffsetsPerQueue",)),
    *_all("maxRecordsPerPartition", ("maxBytesPerPartition",),
          "It counts bytes of the commitlog, as in 64m, and no records"),
    *_all("consumer.offset.persist.interval", ("persistConsumerOffsetInterval",)),
    *_all("compression compressionType kafka.compression.type", ("compressType",)),
    *_all("sendMsgTimeout retryTimes sleepTimeMs retryTimesWhenSendFailed", (),
          "a commit writes files and sends nothing to a broker: leave it out"),
    *_all("pullThresholdForQueue", ("maxOffsetsPerQueue",), "It limits what a micro-batch reads of a queue"),
    *_all("pullThresholdForTopic", ("maxOffsetsPerTopic",), "It limits what a micro-batch reads of a topic"),
    *_all("popThresholdForQueue consumeMessageBatchMaxSize popBatchNums consumeConcurrentlyMaxSpan",
          ("maxOffsetsPerTrigger",), _MICRO_BATCH),
    *_all("pullThresholdSizeForQueue pullThresholdSizeForTopic", ("maxBytesPerTrigger",), _MICRO_BATCH),
    *_all("consumeThreadMin consumeThreadMax consumeThreadNums adjustThreadPoolNumsThreshold",
          ("minPartitions",), "Spark's tasks take the place of a client's threads"),
    *_all("popInvisibleTime", ("invisibleDuration",), "It is for consumeMode=pop"),
    *_all("maxReconsumeTimes", (),
          "retryMaxTimes of the group in subscriptionGroup.json says how often a message is retried, and "
          "max_reconsume_times of rmq_spark.services.Orderly for an ordered stream: leave it out"),
    *_all("pullInterval suspendCurrentQueueTimeMillis", (),
          "the trigger of the query says how often it reads: leave it out"),
    *_all("messageListener", (), "handle the rows in foreachBatch, or use rmq_spark.pop.SimpleConsumer"),
    *_all("includeHeaders", (), "message properties are always in the column properties: leave it out"),
    *_all("timeZone", (), "give times with their zone, as in 2026-01-31T08:00:00+08:00"),
    *_all("partitionDiscoveryIntervalMs", (), "each trigger finds new topics and queues: leave it out"),
    *_all("encoding fieldDelimiter lineDelimiter columnErrorDebug lengthCheck header inferSchema multiLine",
          (), _BODY),
    *_all("isDynamicTag dynamicTagColumn dynamicTagColumnWriteIncluded", (),
          "the tags of a message are the column tags"),
    *_all("keyColumns writeKeysToBody", (), "the keys of a message are the column keys"),
    *_all("rebuildLostQueues", ("unfiledQueues",), "It is read for true, and skip for false"),
    *_all("heartbeatBrokerInterval pollNameServerInterval clientCallbackExecutorThreads "
          "clientIP unitMode unitName namespace namespaceV2 vipChannelEnabled useTLS decodeReadBody "
          "enableMsgTrace enableTrace customizedTraceTopic traceTopic postSubscriptionWhenPull "
          "awaitTerminationMillisWhenShutdown clientRebalance consumeTimeout sendLatencyFaultEnable "
          "createTopicKey retryTimesWhenSendAsyncFailed retryAnotherBrokerWhenNotStoreOK", (), _NO_CLIENT),
    *_all("pullBatchSize pullTimeout pull.max.batch.size pull.timeout.ms pollTimeout useNewApi accessKey "
          "secretKey instanceName kafkaConsumer.pollTimeoutMs fetchOffset.numRetries "
          "fetchOffset.retryIntervalMs", (), _NO_CLIENT),
)  # fmt: skip

_BY_LOWER = {foreign.name.lower(): foreign for foreign in FOREIGN_NAMES}
_KAFKA_CLIENT = "kafka."
_WRITE_COLUMNS = {column.name.lower(): column.name for column in WRITE_COLUMNS if not column.ignored}


def foreign_name(name: str) -> ForeignName | None:
    """The row for `name`, in any case. Each `kafka.…` of Kafka's clients has one."""
    found = _BY_LOWER.get(name.lower())
    if found is None and name.lower().startswith(_KAFKA_CLIENT):
        return ForeignName(name, (), _NO_CLIENT)
    return found


def foreign_hint(
    foreign: ForeignName, known: Collection[str], applicable: Collection[str], where: str
) -> str:
    """The end of an error about `foreign`, in a `where` query; empty if nothing fits.

    `known` are the names of all our options there, `applicable` those that apply to the query.
    """
    if not foreign.ours:
        return foreign.advice
    meant = next((name for name in foreign.ours if name in applicable), None)
    if meant is not None:
        return f"{did_you_mean(meant, [meant])} {foreign.advice}".rstrip()
    column = _WRITE_COLUMNS.get(foreign.name.lower()) or _WRITE_COLUMNS.get(f"{foreign.name.lower()}s")
    if where == WRITE and column is not None:  # tags, and tag
        return column_hint(column)
    other = next((name for name in foreign.ours if name in known), None)
    return f"its counterpart {other} does not apply to a {where} query: leave it out" if other else ""


def column_hint(name: str) -> str:
    """The end of an error about an option of a write that has the name of a column; empty for others."""
    column = _WRITE_COLUMNS.get(name.lower())
    return "" if column is None else f"{column} is a column of a write: add it with withColumn('{column}', …)"

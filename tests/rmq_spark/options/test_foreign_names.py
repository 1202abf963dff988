"""Option names of other connectors: the error names ours, or says in a sentence what to do instead."""

from __future__ import annotations

from functools import partial

import pytest

from rmq_spark.options.foreign_names import FOREIGN_NAMES
from rmq_spark.options.option import WRITE
from rmq_spark.options.read_options import OPTIONS, parse_read_options, user_options
from rmq_spark.options.write_options import WRITE_OPTIONS, parse_write_options
from store_format.errors import OptionError

NO_CLIENT = "no client connects to a broker: leave it out"
ADDRESS = "The path is the broker's store directory: no network connection is opened"


def refused(name: str, where: str | None = "batch") -> str:
    """The error for an option that Spark passes in lower case."""
    given = {"path": "/a", name.lower(): "1"}
    parse = parse_write_options if where == WRITE else partial(parse_read_options, where=where)
    with pytest.raises(OptionError) as caught:
        parse(given)
    return str(caught.value)


def test_foreign_names_lead_to_options_that_exist() -> None:
    names = {option.name for option in (*OPTIONS, *WRITE_OPTIONS)}
    assert {ours for foreign in FOREIGN_NAMES for ours in foreign.ours} <= names
    assert not {foreign.name.lower() for foreign in FOREIGN_NAMES} & {
        option.name.lower() for option in OPTIONS
    }
    assert len({foreign.name.lower() for foreign in FOREIGN_NAMES}) == len(FOREIGN_NAMES)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        # Spark's Kafka source
        ("kafka.bootstrap.servers", f"did you mean path? {ADDRESS}"),
        ("kafka.group.id", "did you mean group?"),
        ("includeHeaders", "message properties are always in the column properties: leave it out"),
        ("kafkaConsumer.pollTimeoutMs", NO_CLIENT),
        ("kafka.security.protocol", NO_CLIENT),
        # rocketmq-spark
        ("topic", "did you mean subscribe?"),
        ("nameServer", f"did you mean path? {ADDRESS}"),
        ("consumer.offset.reset.to", "did you mean startingOffsets?"),
        ("pullBatchSize", NO_CLIENT),
        # rocketmq-flink
        ("nameServerAddress", f"did you mean path? {ADDRESS}"),
        ("consumerGroup", "did you mean group?"),
        ("sql", "did you mean subExpression? Set expressionType=SQL92 with it"),
        ("startTimeMs", "did you mean startingTimestamp?"),
        ("endTime", "did you mean endingTimestamp?"),
        ("encoding", "a body is one column of bytes: decode it with CAST, from_json or from_csv"),
    ],
)
@pytest.mark.parametrize("where", ["batch", None])
def test_a_read_names_ours(name: str, hint: str, where: str | None) -> None:
    assert refused(name, where) == f"unknown option {name!r}; {hint}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("pullThresholdForQueue",
         "did you mean maxOffsetsPerTrigger? It limits what a micro-batch reads of all"),
        ("consumeMessageBatchMaxSize",
         "did you mean maxOffsetsPerTrigger? It limits what a micro-batch reads"),
        ("pullThresholdSizeForTopic", "did you mean maxBytesPerTrigger? It limits what a micro"),
        ("consumeThreadMin",
         "did you mean minPartitions? Spark's tasks take the place of a client's threads"),
        ("consumeThreadMax",
         "did you mean minPartitions? Spark's tasks take the place of a client's threads"),
        ("popInvisibleTime", "did you mean invisibleDuration? It is for consumeMode=pop"),
        ("maxReconsumeTimes", "retryMaxTimes of the group in subscriptionGroup.json says how often"),
        ("pullInterval", "the trigger of the query says how often it reads: leave it out"),
        ("messageListener", "handle the rows in foreachBatch, or use rmq_spark.pop.SimpleConsumer"),
        ("vipChannelEnabled", NO_CLIENT),
    ],
)  # fmt: skip
def test_a_stream_names_ours_for_names_of_rocketmqs_clients(name: str, hint: str) -> None:
    assert refused(name, "stream").startswith(f"unknown option {name!r}; {hint}")


def test_a_hint_suggests_only_what_the_query_has() -> None:
    """maxOffsetsPerTrigger is for streams: a batch that is told of it would be refused again."""
    assert refused("maxFilesPerTrigger", "stream").endswith("; did you mean maxOffsetsPerTrigger?")
    assert refused("pull.max.speed.per.partition", "stream").endswith("; did you mean maxOffsetsPerTrigger?")
    counterpart = "its counterpart maxOffsetsPerTrigger does not apply to a batch query: leave it out"
    assert refused("maxFilesPerTrigger") == f"unknown option 'maxFilesPerTrigger'; {counterpart}"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka.bootstrap.servers", f"did you mean path? {ADDRESS}"),
        ("topics", "did you mean topic?"),
        ("compression", "did you mean compressType?"),
        ("tags", "tags is a column of a write: add it with withColumn('tags', …)"),
        ("consumer.tag", "its counterpart subExpression does not apply to a write query: leave it out"),
        ("queueid", "queueId is a column of a write: add it with withColumn('queueId', …)"),
        ("keyColumns", "the keys of a message are the column keys"),
        ("sendMsgTimeout", "a commit writes files and sends nothing to a broker: leave it out"),
    ],
)
def test_a_write_names_ours_or_the_column(name: str, hint: str) -> None:
    assert f"; {hint}" in refused(name, WRITE)


def test_a_name_of_ours_is_never_foreign() -> None:
    given = {"topic": "Orders", "path": "/a"}
    assert user_options(given, WRITE, WRITE_OPTIONS) == given

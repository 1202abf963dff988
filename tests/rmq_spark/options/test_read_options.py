"""The strings that Spark hands over become a ReadOptions, or one sentence with the nearest right answer."""

from __future__ import annotations

import pickle

import pytest

from rmq_spark.consume.sql92 import Sql92Filter
from rmq_spark.options.access_options import ACCESS_OPTIONS
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.options.option import EARLIEST, LATEST, Offset, OffsetSpec, Timestamp, plain_fields
from rmq_spark.options.read_options import (
    CHOICES,
    OPTIONS,
    PRECEDENCE,
    ReadOptions,
    parse_read_options,
    user_options,
)
from rmq_spark.options.write_options import WRITE_OPTIONS, NewStoreOptions, WriteOptions
from store_format.errors import OptionError
from store_format.read.choice import MessageChoice, QueueName
from store_format.views.registry import ALL_VIEWS

NOW_MS = 1_700_000_000_000


def test_a_path_is_enough() -> None:
    options = parse_read_options({"path": "/data/store"})
    assert options.paths == ("/data/store",)
    assert options.choice == MessageChoice()
    assert (options.broker_name, options.commit_log_paths) == (None, ())
    assert (options.max_hash_slot_num, options.max_index_num) == (None, None)
    assert (options.columns, options.property_columns) == (None, ())
    assert options.starting == OffsetSpec("startingOffsets", EARLIEST)
    assert options.ending == OffsetSpec("endingOffsets", LATEST)
    assert options.starting_offsets_by_timestamp_strategy == "error"
    assert (options.min_partitions, options.split_by) == (None, "queue")
    assert options.max_bytes_per_partition == 64 << 20
    assert (options.fail_on_data_loss, options.mode, options.verify_crc) == (True, "FAILFAST", True)
    assert (options.view, options.max_message_size, options.permissive) == ("messages", 64 << 20, False)


EVERYTHING = {
    "brokername": "broker-a", "storepathcommitlog": "/disk1,/disk2", "maxhashslotnum": "100",
    "maxindexnum": "400", "subscribe": "a,b", "includesystemtopics": "true", "subexpression": "TagA||TagB",
    "expressiontype": "tag", "key": "k", "columns": "body,queueoffset", "propertycolumns": "region",
    "view": "Messages", "startingoffsets": '{"a":{"0":5}}',
    "endingoffsetsbytimestamp": '{"a":{"0":"1970-01-01T00:00:01Z"}}',
    "startingoffsetsbytimestampstrategy": "LATEST", "minpartitions": "4", "maxbytesperpartition": "1m",
    "splitby": "commitLog", "failondataloss": "False", "mode": "permissive", "verifycrc": "false",
    "maxmessagesize": "8m", "path": "file:/data/store",
}  # fmt: skip


def test_every_option_in_the_case_that_spark_makes_of_it() -> None:
    options = parse_read_options(EVERYTHING, now_ms=NOW_MS)
    assert options.paths == ("/data/store",)
    assert (options.broker_name, options.commit_log_paths) == ("broker-a", ("/disk1", "/disk2"))
    assert (options.max_hash_slot_num, options.max_index_num) == (100, 400)
    assert options.choice == MessageChoice(
        names=("a", "b"), include_system_topics=True, tags=frozenset(("TagA", "TagB")), key="k"
    )
    assert (options.columns, options.property_columns) == (("body", "queueoffset"), ("region",))
    assert options.starting.for_queue("a", "broker-a", 0) == Offset(5)
    assert options.ending.for_queue("a", "broker-a", 0) == Timestamp(1000)
    assert options.starting_offsets_by_timestamp_strategy == "latest"
    assert (options.min_partitions, options.split_by) == (4, "commitlog")
    assert options.max_bytes_per_partition == 1 << 20
    assert (options.fail_on_data_loss, options.mode, options.permissive) == (False, "PERMISSIVE", True)
    assert (options.verify_crc, options.max_message_size, options.view) == (False, 8 << 20, "messages")
    assert pickle.loads(pickle.dumps(options)) == options


def test_the_other_ways_to_choose() -> None:
    assert parse_read_options({"paths": '["/a","/b"]'}).paths == ("/a", "/b")
    assert parse_read_options({"paths": '["/a"]', "brokerName": "b"}).broker_name == "b"
    assert parse_read_options({"path": "/a", "subscribePattern": "T.*"}).choice == MessageChoice(
        pattern="T.*"
    )
    assert parse_read_options({"path": "/a", "assign": '{"t":[1]}'}).choice == MessageChoice(
        queues=(QueueName("t", None, 1),)
    )
    assert parse_read_options({"path": "/a", "messageId": "AC11"}).choice.message_id == "AC11"
    assert parse_read_options({"path": "/a", "subExpression": ""}).choice.tags is None


@pytest.mark.parametrize("edge", ["starting", "ending"])
def test_timestamps_beat_offsets_as_kafkas_do(edge: str) -> None:
    offsets, times, time = f"{edge}Offsets", f"{edge}OffsetsByTimestamp", f"{edge}Timestamp"
    given = {"path": "/a", offsets: '{"t":{"0":1}}', times: '{"t":{"0":2}}', time: "3"}
    found = []
    for drop in (None, time, times):
        given.pop(drop or "", None)
        options = parse_read_options(given, now_ms=NOW_MS)
        spec = options.starting if edge == "starting" else options.ending
        found.append((spec.option, spec.for_queue("t", "b", 0)))
        assert [name for name, _ in options.resolved() if name in (offsets, times, time)] == [spec.option]
    assert found == [(time, Timestamp(3)), (times, Timestamp(2)), (offsets, Offset(1))]


def test_resolved_values_are_said_once_with_defaults_and_moments() -> None:
    given = {
        "path": "/a",
        "STARTINGTIMESTAMP": "-1 hour",
        "columns": "body, flag",
        "maxBytesPerPartition": "1m",
        "verifyCrc": "FALSE",
    }
    assert parse_read_options(given, now_ms=NOW_MS).resolved() == [
        ("path", "/a"),
        ("includeSystemTopics", "false"),
        ("subExpression", "*"),
        ("expressionType", "TAG"),
        ("columns", "body,flag"),
        ("view", "messages"),
        ("endingOffsets", "latest"),
        ("startingTimestamp", "1699996400000 (2023-11-14T21:13:20.000Z)"),
        ("startingOffsetsByTimestampStrategy", "error"),
        ("maxBytesPerPartition", "1048576"),
        ("splitBy", "queue"),
        ("failOnDataLoss", "true"),
        ("compacted", "true"),
        ("mode", "FAILFAST"),
        ("verifyCrc", "false"),
        ("maxMessageSize", "67108864"),
    ]


CATALOG = {  # what CREATE TABLE gives to schema(), Spark 4.3
    "provider": "rmqlog",
    "owner": "me",
    "location": "file:/a",
    "external": "true",
    "comment": "hi",
    "my.property": "x",
    "path": "file:/a",
    "subscribe": "t",
    "option.subscribe": "t",
}


def test_what_spark_adds_passes() -> None:
    assert user_options(CATALOG) == {"path": "file:/a", "subscribe": "t"}
    assert user_options({"checkpointLocation": "/c", "path": "/a"}) == {"path": "/a"}


def test_a_name_near_nothing_lists_all() -> None:
    """test_mistakes.py has the sentences that no new option or view changes."""
    names, views = ", ".join(row.name for row in OPTIONS), ", ".join(view.name for view in ALL_VIEWS)
    for name, text, sentence in (
        ("zzz", "1", f"unknown option 'zzz'; the options are {names}"),
        ("view", "queue", f"view: expected one of messages, {views}, found 'queue'; did you mean queues?"),
    ):
        with pytest.raises(OptionError) as caught:
            parse_read_options({"path": "/a", name: text})
        assert str(caught.value) == sentence


def test_a_condition_instead_of_tags() -> None:
    options = parse_read_options({"path": "/a", "expressionType": "sql92", "subExpression": "price > 3"})
    assert options.choice.tags is None
    assert isinstance(options.choice.where, Sql92Filter)
    assert options.choice.where.names == ("price",)
    assert pickle.loads(pickle.dumps(options)) == options
    assert parse_read_options({"path": "/a", "subExpression": "price > 3"}).choice.where is None


def test_an_option_of_another_kind_of_query_says_so() -> None:
    with pytest.raises(OptionError) as caught:
        user_options({"splitBy": "queue"}, "write")
    assert str(caught.value) == "splitBy does not apply to a write query; it is for batch and stream queries"


def test_every_option_reaches_its_options_class() -> None:
    """By a field with its name, or combined with others: a row with neither has no effect."""
    combined = {
        *("path", "storePathCommitLog", "subscribe", "subscribePattern", "assign", "includeSystemTopics"),
        *(
            "key",
            "messageId",
            "subExpression",
            "expressionType",
            "maxTriggerDelay",
            *(row.name for row in ACCESS_OPTIONS),
            *(name for names in PRECEDENCE for name in names),
        ),
    }
    of_group = {
        "allocateMessageQueueStrategy",
        *("consumeFromWhere", "consumeTimestamp", "consumeYoungQueueFromZero"),
    }
    of_group |= {"leaseTime", "persistConsumerOffsetInterval", "consumeMode", "invisibleDuration"}
    of_write = {
        *("compressType", "compressLevel", "compressMsgBodyOverHowmuch", "txnAppId", "txnVersion"),
        *("diskSpaceWarningLevelRatio", "writerLockTimeout", "stagingRetention"),
    }
    for table, classes, others in (
        (OPTIONS, (ReadOptions, GroupOptions), combined | of_group),
        (WRITE_OPTIONS, (WriteOptions, NewStoreOptions), of_write),
    ):
        lost = {
            option.name
            for option in table
            if not any(plain_fields(each, {option.name: None}) for each in classes)
        }
        assert lost == others


def test_the_table_is_one() -> None:
    names = [option.name for option in OPTIONS]
    assert len({name.lower() for name in names}) == len(names)
    assert {name for group in (*CHOICES, *PRECEDENCE) for name in group} <= set(names)
    assert all(option.about and option.kind and option.heading and option.applies for option in OPTIONS)
    assert not [option.name for option in OPTIONS if option.default is not None and option.otherwise]

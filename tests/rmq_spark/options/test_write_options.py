"""The options of a write become WriteOptions, or one sentence with the nearest right answer."""

from __future__ import annotations

import pickle

import pytest

from rmq_spark.options.option import WRITE, Given, duration_ms, number
from rmq_spark.options.read_options import OPTIONS
from rmq_spark.options.write_options import WRITE_OPTIONS, NewStoreOptions, parse_write_options
from rmq_spark.produce.messages import Compression
from store_format.errors import OptionError

EVERYTHING = {
    "path": "file:/data/store", "topic": "TopicTest", "messagequeueselector": "Hash",
    "propertycolumns": "region,BUYER_ID", "autocreatetopicenable": "false", "defaulttopicqueuenums": "8",
    "flushdisktype": "async_flush", "messageindexenable": "false", "compresstype": "zstd",
    "compressmsgbodyoverhowmuch": "1k", "compresslevel": "12", "strictproperties": "true",
    "maxmessagesize": "8m", "bornhost": "10.0.0.1:1", "storehost": "[2001:db8::1]:10911", "txnappid": "job",
    "txnversion": "0", "transaction": "HALF", "producergroup": "PG",
    "txnlostbatch": "again",
    "brokerconf": "/etc/rocketmq/broker.conf", "diskspacewarninglevelratio": "85", "unfiledqueues": "skip",
    "ignoremissingstores": "true", "writerlocktimeout": "1m 30s", "stagingretention": "2 days",
    "brokername": "broker-a", "mappedfilesizecommitlog": "16m", "mappedfilesizeconsumequeue": "20000",
    "maxhashslotnum": "100", "maxindexnum": "400",
}  # fmt: skip


def test_a_path_is_enough() -> None:
    options = parse_write_options({"path": "/data/store"})
    assert (options.path, options.topic) == ("/data/store", None)
    assert options.message_queue_selector == "roundrobin"
    assert (options.auto_create_topic_enable, options.default_topic_queue_nums) == (True, 4)
    assert (options.flush_disk_type, options.message_index_enable) == ("SYNC_FLUSH", True)
    assert options.compression is None
    assert (options.strict_properties, options.max_message_size) == (False, 4 << 20)
    assert (options.born_host, options.store_host, options.txn) == (None, None, None)
    assert options.disk_used_percent_max is None
    assert (options.writer_lock_timeout_ms, options.staging_retention_ms) == (600_000, 86_400_000)
    assert (options.unfiled_queues, options.broker_conf) == (None, None)
    assert not options.ignore_missing_stores
    assert options.txn_lost_batch is None
    assert options.new_store == NewStoreOptions(None, None, None, None, None)
    assert ("flushDiskType", "SYNC_FLUSH") in options.resolved()
    assert not [name for name, _ in options.resolved() if name == "topic"]


def test_every_option_in_the_case_that_spark_makes_of_it() -> None:
    names = {option.name.lower() for option in WRITE_OPTIONS}
    assert names == set(EVERYTHING) | {"sendback", "maxreconsumetimes"}
    sent_back = parse_write_options({"path": "/data/store", "sendback": "CG", "maxreconsumetimes": "3"})
    assert (sent_back.send_back, sent_back.max_reconsume_times) == ("CG", 3)
    default = parse_write_options({"path": "/data/store", "sendback": "CG", "maxreconsumetimes": "-1"})
    assert default.max_reconsume_times == -1
    options = parse_write_options(EVERYTHING)
    assert (options.transaction, options.producer_group) == ("half", "PG")
    assert (options.path, options.topic) == ("/data/store", "TopicTest")
    assert options.message_queue_selector == "hash"
    assert (options.auto_create_topic_enable, options.default_topic_queue_nums) == (False, 8)
    assert (options.flush_disk_type, options.message_index_enable) == ("ASYNC_FLUSH", False)
    assert options.compression == Compression("ZSTD", 1024, 12)
    assert (options.strict_properties, options.max_message_size) == (True, 8 << 20)
    assert (options.born_host, options.txn) == ((bytes([10, 0, 0, 1]), 1), ("job", 0))
    assert options.store_host == (bytes.fromhex("20010db8000000000000000000000001"), 10911)
    assert options.disk_used_percent_max == 85
    assert (options.writer_lock_timeout_ms, options.staging_retention_ms) == (90_000, 172_800_000)
    assert (options.unfiled_queues, options.broker_conf) == ("skip", "/etc/rocketmq/broker.conf")
    assert options.ignore_missing_stores
    assert options.txn_lost_batch == "again"
    assert options.new_store == NewStoreOptions("broker-a", 16 << 20, 20_000, 100, 400)
    resolved = dict(options.resolved())
    assert resolved["storeHost"] == "[2001:db8:0:0:0:0:0:1]:10911"
    assert (resolved["path"], resolved["strictProperties"]) == ("/data/store", "true")
    assert pickle.loads(pickle.dumps(options)) == options


def test_a_row_says_all_there_is_to_say() -> None:
    for option in WRITE_OPTIONS:
        assert (option.applies, option.heading) == (frozenset({WRITE}), "Write")
        assert option.about.endswith(".")
        assert not (option.default and option.otherwise)
    assert len({option.name for option in WRITE_OPTIONS}) == len(WRITE_OPTIONS)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("30s", 30_000), ("1h 30m", 5_400_000), ("0ms", 0), (" 24 Hours ", 86_400_000), ("1w", 604_800_000)],
)
def test_durations(text: str, ms: int) -> None:
    assert duration_ms(Given("someOption", text, 0)) == ms


def test_numbers_within_bounds() -> None:
    assert number(-5, 5)(Given("someOption", " -5 ", 0)) == -5
    for text in ("6", "-6", "", "1.0", "١", "9" * 30):
        with pytest.raises(OptionError, match="expected a whole number from -5 to 5"):
            number(-5, 5)(Given("someOption", text, 0))


def test_the_two_tables_can_become_one() -> None:
    """Names that both have mean two rows, told apart by where they apply."""
    shared = {option.name for option in OPTIONS} & {option.name for option in WRITE_OPTIONS}
    assert shared == {
        "path", "propertyColumns", "brokerConf", "brokerName", "maxMessageSize", "maxHashSlotNum",
        "maxIndexNum", "unfiledQueues",
    }  # fmt: skip

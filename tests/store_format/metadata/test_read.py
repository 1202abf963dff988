"""Configuration files: the `.bak` rule, every kind of file in both dialects, and those of every
broker-written store.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.errors import CorruptStoreError
from store_format.metadata import read as config_json
from store_format.metadata.group_offsets import read_local_offsets
from store_format.metadata.read import (
    DECODERS,
    config_path,
    load_config,
    loaded_bytes,
    read_consumer_offsets,
    read_delay_offsets,
    read_order_infos,
    read_queue_mappings,
    read_request_modes,
    read_subscription_groups,
    read_timer_metrics,
    read_topics,
)
from store_format.metadata.values import (
    ConsumerFilter,
    DataVersion,
    Metric,
    OrderInfo,
    QueueMappingItem,
    RequestMode,
    SubscriptionGroup,
    TopicConfig,
    split_offset_key,
)
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.fixtures import Golden


def _root(tmp_path: Path, name: str, text: str | None) -> str:
    """A store root with that configuration file."""
    (tmp_path / "config").mkdir(exist_ok=True)
    if text is not None:
        (tmp_path / "config" / name).write_text(text, encoding="utf-8")
    return str(tmp_path)


def _decoded(root: str, name: str) -> object:
    """The file of `config/` as the broker's manager decodes it."""
    return config_json.read_config(config_path(Opened(root), name), config_json.DECODERS[name])


# ---- golden ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in goldens.NAMES if name != "rocksdb-5.5.0"])
def test_golden(golden: Golden, name: str) -> None:
    """Offsets and topics are the broker's own view; where the file is missing, nothing was expected and the
    `.bak` speaks.
    """
    for store, answers in goldens.brokers(name, golden(name)).values():
        root = str(store)
        expected = answers["consumerOffset"]
        offsets = read_consumer_offsets(Opened(root))
        if name == "crash-5.5.0":  # killed between the rename to .bak and the new file
            assert offsets is not None
            assert (expected, offsets.offsets["Audit@CG_all"]) == (None, {0: 44})
        else:
            assert (None if offsets is None else dict(offsets.raw)) == expected
        if offsets is not None and expected is not None:
            assert offsets.offsets == {
                key: {int(q): o for q, o in table.items()} for key, table in expected["offsetTable"].items()
            }
            assert offsets.group_topics == {
                group: tuple(topics) for group, topics in expected.get("groupTopicMap", {}).items()
            }
        delay = answers["delayOffset"]
        assert read_delay_offsets(Opened(root)) == (
            None if delay is None else {int(level): o for level, o in delay["offsetTable"].items()}
        )
        topics = read_topics(Opened(root))
        assert (None if topics is None else sorted(topics)) == answers["topics"]
        assert (read_subscription_groups(Opened(root)) is None) == (answers["topics"] is None)


def test_golden_topics_and_groups_in_both_dialects(golden: Golden) -> None:
    for name in ("basic-4.9.7", "basic-5.5.0"):
        root = str(golden(name))
        topics, groups = read_topics(Opened(root)), read_subscription_groups(Opened(root))
        assert topics is not None
        assert groups is not None
        orders = topics["Orders"]
        assert (orders, orders.readable, orders.writable) == (TopicConfig("Orders", 4, 4, 6), True, True)
        assert topics["SCHEDULE_TOPIC_XXXX"].read_queue_nums == 18
        policy = {} if name == "basic-4.9.7" else {"type": "CUSTOMIZED"}
        assert groups["CG_all"] == SubscriptionGroup("CG_all", group_retry_policy=policy)
        assert all(not topic.unknown for topic in topics.values())
        assert all(not group.unknown for group in groups.values())
    batch = read_topics(Opened(str(golden("batchcq-5.5.0"))))
    assert batch is not None
    assert "BatchCQ" in {topic.queue_type for topic in batch.values()}


def test_golden_metrics(golden: Golden) -> None:
    root = str(golden("delay-tx-5.5.0"))
    timer, transaction = read_timer_metrics(Opened(root)), _decoded(root, "transactionMetrics")
    assert timer == {"Timer": Metric(30, 1795244069070)}
    assert transaction == {"Tx": Metric(16, 1795244069771)}


# ---- the file and its .bak ---------------------------------------------------------------------------------

GOOD, OLD = '{"offsetTable":{1:5}}', '{"offsetTable":{1:4}}'


@pytest.mark.parametrize(
    ("main", "backup", "expected"),
    [
        (GOOD, OLD, {1: 5}),
        (GOOD, None, {1: 5}),
        (GOOD, "garbage", {1: 5}),
        (None, OLD, {1: 4}),
        ("", OLD, {1: 4}),
        (GOOD[:-3], OLD, {1: 4}),
        ("\0" * 50, OLD, {1: 4}),
        ('{"offsetTable":{1:"x"}}', OLD, {1: 4}),  # JSON, but not the bean
        ("[1]", OLD, {1: 4}),
        (None, None, None),
        ("", "", None),
        (None, "", None),
        ("garbage", None, None),  # as the broker, which then starts with defaults
        ("garbage", "", None),
    ],
)
def test_which_file_counts(
    tmp_path: Path, main: str | None, backup: str | None, expected: dict[int, int] | None
) -> None:
    for name, text in (("delayOffset.json", main), ("delayOffset.json.bak", backup)):
        _root(tmp_path, name, text)
    assert read_delay_offsets(Opened(str(tmp_path))) == expected


@pytest.mark.parametrize("main", [None, "", GOOD[:-3]])
@pytest.mark.parametrize(
    ("backup", "position"), [(OLD[:-3], len(OLD) - 3), ("?", 0), ('{"offsetTable":{1:{}}}', 0)]
)
def test_a_file_is_lost_whose_bak_cannot_be_decoded_either(
    tmp_path: Path, main: str | None, backup: str, position: int
) -> None:
    """Who looks goes on without it; who needs it gets the error of the first of the two files."""
    for name in ("delayOffset.json", "topics.json"):
        _root(tmp_path, name, main)
        _root(tmp_path, f"{name}.bak", backup if name == "delayOffset.json" else "[]")
    assert read_delay_offsets(Opened(str(tmp_path))) is None
    assert read_topics(Opened(str(tmp_path))) is None
    with pytest.raises(CorruptStoreError) as caught:
        loaded_bytes(config_path(Opened(str(tmp_path)), "delayOffset.json"))
    file, at = ("delayOffset.json", len(GOOD) - 3) if main else ("delayOffset.json.bak", position)
    assert (caught.value.file, caught.value.position) == (str(tmp_path / "config" / file), at)


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("delayOffset.json", "offsetTable"),
        ("topics.json", "topicConfigTable"),
        ("subscriptionGroup.json", "subscriptionGroupTable"),
        ("topicQueueMapping.json", "topicQueueMappingInfoMap"),
        ("timermetrics", "timingCount"),
        ("transactionMetrics", "transactionCount"),
    ],
)
def test_a_table_that_is_null_leads_to_the_bak(tmp_path: Path, name: str, table: str) -> None:
    """`Map.putAll(null)` of the managers; a broker answers {'3': 5} for delayOffset.json."""
    root = _root(tmp_path, name, f'{{"dataVersion":{{"counter":5}},"{table}":null}}')
    _root(tmp_path, f"{name}.bak", f'{{"dataVersion":{{"counter":4}},"{table}":{{}}}}')
    found = load_config(config_path(Opened(root), name), DECODERS[name])
    assert found is not None
    assert found[0].endswith(f"{name}.bak")


def test_a_fallback_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _root(tmp_path, "delayOffset.json", GOOD[:-3])
    _root(tmp_path, "delayOffset.json.bak", OLD)
    with caplog.at_level(logging.WARNING):
        read_delay_offsets(Opened(str(tmp_path)))
        read_delay_offsets(Opened(str(tmp_path)))
    (record,) = caplog.records  # once of each state of the file
    assert "delayOffset.json at byte 18" in record.getMessage()


@pytest.mark.parametrize("name", ["delayOffset.json", "delayOffset.json.bak"])
def test_links_are_refused_not_replaced_by_the_bak(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").write_text(GOOD)
    link = Path(_root(tmp_path, "delayOffset.json.bak", OLD)) / "config" / name
    link.unlink(missing_ok=True)
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptStoreError) as caught:
        read_delay_offsets(Opened(str(tmp_path)))
    assert caught.value.file == str(link)


@given(
    cut=st.integers(0, 400), flips=st.lists(st.tuples(st.integers(0, 400), st.integers(1, 255)), max_size=3)
)
def test_any_damage_ends_in_values_or_a_corrupt_file(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flips: list[tuple[int, int]]
) -> None:
    content = bytearray(
        b'{"dataVersion":{"counter":1},"offsetTable":{"T@G":{0:8,1:5}},"groupTopicMap":{"G":["T"]}}'
    )
    for position, mask in flips:
        content[position % len(content)] ^= mask
    root = tmp_path_factory.mktemp("root")
    path = root / "config" / "consumerOffset.json.bak"
    path.parent.mkdir()
    path.write_bytes(content[:cut])
    refused = None
    try:
        offsets = read_consumer_offsets(Opened(str(root)))
        assert offsets is None or all(
            isinstance(o, int) for table in offsets.offsets.values() for o in table.values()
        )
    except CorruptStoreError as error:
        refused = error
    assert refused is None or refused.file == str(path)


# ---- every kind of file ------------------------------------------------------------------------------------


def test_topics_defaults_attributes_and_unknown_members(tmp_path: Path) -> None:
    text = """{
	"dataVersion":{"counter":3,"stateVersion":2,"timestamp":1700000000000},
	"topicConfigTable":{
		"A":{},
		"B":{"attributes":{"queue.type":"BatchCQ","cleanup.policy":"COMPACTION","message.type":"FIFO"},"order":true,"perm":2,
			"readQueueNums":"9","topicFilterType":"MULTI_TAG","topicName":"other","topicSysFlag":1,"writeQueueNums":3,"future":{"x":[1]}},
		"C":{"attributes":null,"perm":null}
	},
	"more":1
}"""
    topics = read_topics(Opened(_root(tmp_path, "topics.json", text)))
    assert topics is not None
    assert topics.data_version == DataVersion(3, 1700000000000, 2)
    a, b, c = (topics[name] for name in "ABC")
    assert a == TopicConfig("A", 16, 16, 6, "SINGLE_TAG", 0, False, {}, {})
    assert (a.queue_type, a.cleanup_policy, a.message_type) == ("SimpleCQ", "DELETE", "NORMAL")
    assert (b.queue_type, b.cleanup_policy, b.message_type) == ("BatchCQ", "COMPACTION", "FIFO")
    assert b == TopicConfig("B", 9, 3, 2, "MULTI_TAG", 1, True, b.attributes, {"future": {"x": [1]}})
    assert (b.readable, b.writable) == (False, True)
    assert c == TopicConfig("C", perm=0)  # a null number is 0 in 5.5.0
    assert topics.raw["more"] == 1


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        ('"perm":"six"', "a 32-bit integer as topicConfigTable.T.perm"),
        ('"perm":[]', "a 32-bit integer as topicConfigTable.T.perm"),
        ('"perm":2147483648', "a 32-bit integer as topicConfigTable.T.perm"),
        ('"order":"x"', "true or false as topicConfigTable.T.order"),
        ('"topicFilterType":[]', "one of SINGLE_TAG, MULTI_TAG as topicConfigTable.T.topicFilterType"),
        ('"attributes":[]', "an object as topicConfigTable.T.attributes"),
    ],
)
def test_members_of_another_type_are_named(tmp_path: Path, member: str, expected: str) -> None:
    root = _root(tmp_path, "topics.json.bak", '{"topicConfigTable":{"T":{' + member + "}}}")
    assert read_topics(Opened(root)) is None
    with pytest.raises(CorruptStoreError) as caught:
        read_topics(Opened(root), is_needed=True)
    assert caught.value.expected == expected


@pytest.mark.parametrize(
    ("read", "write", "read_ids", "all_ids"),
    [
        *((4, 2, 4, 4), (2, 8, 2, 8), (0, 0, 0, 0), (-1, 3, 0, 3)),
        *((1 << 14, 1, 1 << 14, 1 << 14), (2**31 - 1, 3, 0, 3)),
    ],
)
def test_queue_ids_of_a_topic(read: int, write: int, read_ids: int, all_ids: int) -> None:
    """`perm` changes neither; a number that no topic has gives no queue."""
    topic = TopicConfig("T", read, write, perm=0)
    assert (topic.read_queue_ids, topic.queue_ids) == (range(read_ids), range(all_ids))
    assert topic.written_queue_ids == range(min(read_ids, max(write, 0)))


def test_groups(tmp_path: Path) -> None:
    text = """{"forbiddenTable":{"GID_a":{"TopicTest":1}},"subscriptionGroupTable":{"GID_a":{"attributes":{"priority.factor":"7"},
    "consumeEnable":false,"retryMaxTimes":3,"groupRetryPolicy":{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000]}},"subscriptionDataSet":[]}}}"""  # noqa: E501
    groups = read_subscription_groups(Opened(_root(tmp_path, "subscriptionGroup.json", text)))
    assert groups is not None
    assert groups["GID_a"] == SubscriptionGroup(
        "GID_a",
        consume_enable=False,
        retry_max_times=3,
        attributes={"priority.factor": "7"},
        group_retry_policy={"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000]}},
        unknown={"subscriptionDataSet": []},
    )
    assert (groups.forbidden, groups.data_version) == ({"GID_a": {"TopicTest": 1}}, None)


@pytest.mark.parametrize(
    ("key", "parts"), [("T@G", ("T", "G")), ("T", None), ("@G", None), ("T@", None), ("T@G@H", None)]
)
def test_offset_keys(key: str, parts: tuple[str, str] | None) -> None:
    assert split_offset_key(key) == parts


def test_queue_mappings(tmp_path: Path) -> None:
    text = """{"dataVersion":{},"topicQueueMappingInfoMap":{"StaticT":{"bname":"broker-a","currIdMap":{},"dirty":false,
	"epoch":1700000000000,"hostedQueues":{0:[
					{"bname":"broker-a","endOffset":-1,"gen":0,"logicOffset":0,
					"queueId":3,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}
				]
			},"scope":"__global__","topic":"StaticT","totalQueues":2}}}"""  # noqa: E501
    mappings = read_queue_mappings(Opened(_root(tmp_path, "topicQueueMapping.json", text)))
    assert mappings is not None
    mapping = mappings["StaticT"]
    assert mapping.hosted_queues == {0: (QueueMappingItem(bname="broker-a", queue_id=3),)}
    told = (mapping.topic, mapping.bname, mapping.total_queues, mapping.epoch, mapping.unknown)
    assert told == ("StaticT", "broker-a", 2, 1700000000000, {})


def test_consumer_filters(tmp_path: Path) -> None:
    text = """{"filterDataByTopic":{"TopicTest":{"groupFilterData":{"GID_a":{"bloomFilterData":{"bitNum":112,"bitPos":[46,22,110]},
	"bornTime":1700000000000,"clientVersion":1700000000001,"consumerGroup":"GID_a","dead":false,"deadTime":0,"expression":"a > 1 {0:1}",
	"expressionType":"SQL92","topic":"TopicTest"}},"topic":"TopicTest"}}}"""  # noqa: E501
    filters = _decoded(_root(tmp_path, "consumerFilter.json", text), "consumerFilter.json")
    bloom = {"bitNum": 112, "bitPos": [46, 22, 110]}
    expected = ConsumerFilter(
        "TopicTest", "GID_a", "a > 1 {0:1}", "SQL92", 1700000000000, 0, 1700000000001, bloom, {"dead": False}
    )
    assert filters == {"TopicTest": {"GID_a": expected}}


def test_order_infos_with_absolute_offsets(tmp_path: Path) -> None:
    text = """{"orderInfoCount":1,"table":{"TopicTest@GID_a":{0:{"a":"attempt-2","cm":2,"i":30000,"l":1700000030000,"o":[10,1,3],
	"oc":{10:1,11:1,13:1
	},"ot":{13:1700000099000
	},"popTime":1700000030001},1:{"o":[],"popTime":5}}}}"""  # noqa: E501
    infos = read_order_infos(Opened(_root(tmp_path, "consumerOrderInfo.json", text)))
    expected = OrderInfo(
        (10, 11, 13), 1700000030001, 30000, 1700000030000, 2, "attempt-2",
        {10: 1, 11: 1, 13: 1}, {13: 1700000099000},
    )  # fmt: skip
    assert infos == {"TopicTest@GID_a": {0: expected, 1: OrderInfo((), 5)}}


def test_request_modes(tmp_path: Path) -> None:
    text = (
        '{"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"POP","popShareQueueNum":-1,'
        '"topic":"T"}}}}'
    )
    assert read_request_modes(Opened(_root(tmp_path, "messageRequestMode.json", text))) == {
        "T": {"G": RequestMode("T", "G", "POP", -1)}
    }


@pytest.mark.parametrize(
    "key",
    ['"text"', "5", '{"topic":"T"}', '{"brokerName":"b","queueId":"x","topic":"T"}', '"' + "[" * 5000 + '"'],
)
def test_a_clients_offsets_with_other_keys(tmp_path: Path, key: str) -> None:
    path = tmp_path / "offsets.json"
    path.with_suffix(".json.bak").write_text('{"offsetTable":{' + key + ":1}}")
    with pytest.raises(CorruptStoreError) as caught:
        read_local_offsets(str(path))
    assert caught.value.file == f"{path}.bak"


def test_missing_directory_is_unknown(tmp_path: Path) -> None:
    readers: list[Callable[[Opened], object]] = [
        value
        for name, value in vars(config_json).items()
        if name.startswith("read_") and getattr(value, "__module__", None) == config_json.__name__
        if name not in ("read_config", "read_checkpoint", "read_broker_conf")
    ]
    assert len(readers) == 10
    for reader in readers:
        assert reader(Opened(str(tmp_path / "missing"))) is None

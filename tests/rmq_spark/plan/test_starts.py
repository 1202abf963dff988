"""What a group reads and from where, on stores that brokers wrote."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from rmq_spark.consume.consumer import ConsumeFromWhere, MessageQueue, sort_queues
from rmq_spark.consume.offset_store import StoreOffsets
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.plan.starts import begin_of, start_of, subscribe_set
from store_format import MessageStore
from store_format.read.choice import MessageChoice, QueueName
from tests.support.fixtures import Golden


@pytest.fixture
def store(golden: Golden) -> MessageStore:
    return MessageStore.open(str(golden("basic-5.5.0")))


def test_the_queues_that_members_share(store: MessageStore) -> None:
    found = subscribe_set([store], MessageChoice(names=("Orders", "Metrics")), "CG_some")
    assert found == sort_queues(found)
    assert Counter(queue.topic for queue in found) == {"%RETRY%CG_some": 1, "Metrics": 8, "Orders": 4}
    one = subscribe_set([store], MessageChoice(queues=(QueueName("Orders", None, 2),)), "CG_some")
    assert one == sort_queues(
        MessageQueue(topic, store.broker_name, number)
        for topic, number in (("Orders", 2), ("%RETRY%CG_some", 0))
    )
    every = {queue.topic for queue in subscribe_set([store], MessageChoice(), "g")}
    assert every >= {"Orders", "Metrics", "Audit"}


def _topics(root: Path, choice: MessageChoice, group: str) -> set[str]:
    return {queue.topic for queue in subscribe_set([MessageStore.open(str(root))], choice, group)}


def test_a_group_reads_its_retry_topics_of_pop(golden: Golden, tmp_path: Path) -> None:
    root, retry = golden("pop-5.5.0"), "%RETRY%CG_pop_PopWork"
    assert _topics(root, MessageChoice(names=("PopWork",), group="CG_pop"), "CG_pop") == {"PopWork", retry}
    assert _topics(root, MessageChoice(group="CG_pop"), "CG_pop") >= {"PopWork", retry}
    one = MessageChoice(queues=(QueueName("PopWork", None, 2),), group="CG_pop")
    assert _topics(root, one, "CG_pop") == {"PopWork", retry}
    for choice in (
        MessageChoice(names=("Other",), group="CG_pop"),  # its topic is not read
        MessageChoice(names=("PopWork",)),  # BROADCASTING
    ):
        assert retry not in _topics(root, choice, "CG_pop")
    assert retry not in _topics(root, MessageChoice(names=("PopWork",), group="CG"), "CG")

    copy = shutil.copytree(root, tmp_path / "store")
    path = copy / "config" / "topics.json"
    path.write_text(path.read_text().replace(retry, "%RETRY%CG_pop+PopWork"))
    wanted = MessageChoice(names=("PopWork",), group="CG_pop")
    assert _topics(copy, wanted, "CG_pop") == {"PopWork", "%RETRY%CG_pop+PopWork"}


def test_the_retry_topic_of_another_group_is_not_read(copy_of: Golden) -> None:
    root, retry = copy_of("pop-5.5.0"), "%RETRY%CG_pop_PopWork"
    wanted = MessageChoice(names=("PopWork",), group="CG_pop")
    groups = root / "config" / "subscriptionGroup.json"
    groups.write_text(
        groups.read_text().replace(
            '"subscriptionGroupTable":{', '"subscriptionGroupTable":{"CG_pop_PopWork":{},', 1
        )
    )
    assert retry in _topics(root, wanted, "CG_pop")  # CG_pop has the offsets of the topic
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
    assert retry not in _topics(root, wanted, "CG_pop")


def test_what_may_not_be_read_is_not_shared(store: MessageStore, tmp_path: Path) -> None:
    root = shutil.copytree(store.path, tmp_path / "store")
    path = root / "config" / "topics.json"
    value = json.loads(path.read_bytes())
    value["topicConfigTable"]["Metrics"]["perm"] = 2
    value["topicConfigTable"]["Audit"]["readQueueNums"] = 2**31 - 1
    path.write_text(json.dumps(value))
    found = subscribe_set(
        [MessageStore.open(str(root))], MessageChoice(names=("Orders", "Metrics", "Audit")), "none"
    )
    assert {queue.topic for queue in found} == {"Orders"}


def test_without_a_list_of_topics_the_queues_on_disk_are_shared(golden: Golden) -> None:
    store = MessageStore.open(str(golden("rocksdb-5.5.0")))
    topic = next(name for name in store.topics() if not name.startswith(("%", "rmq_", "RMQ_", "SCHEDULE")))
    found = subscribe_set([store], MessageChoice(names=(topic,)), "g")
    assert [queue.queue_id for queue in found] == [
        queue.queue_id for queue in store.queues() if queue.topic == topic
    ]


def test_a_group_begins_where_a_java_consumer_left_it(store: MessageStore) -> None:
    committed = StoreOffsets("CG_some", {store.broker_name: store.path}).read()
    options = GroupOptions("CG_some")
    for queue in store.queues(lambda topic: topic == "Orders"):
        name = MessageQueue("Orders", store.broker_name, queue.queue_id)
        start = start_of(queue, committed.get(name), options)
        assert (start.offset, start.is_committed) == (committed[name], True)


def test_a_new_group_begins_by_consume_from_where(store: MessageStore) -> None:
    queues = {MessageQueue(queue.topic, store.broker_name, queue.queue_id): queue for queue in store.queues()}
    name = MessageQueue("Orders", store.broker_name, 0)
    queue = queues[name]
    [moment] = next(iter(queue.read(7, 8, columns=["storeTimestampMs"])))["storeTimestampMs"].to_pylist()
    assert begin_of(queues, GroupOptions("g"))(name) == queue.max_offset
    assert begin_of(queues, GroupOptions("g", where=ConsumeFromWhere.FIRST))(name) == 0
    by_time = GroupOptions("g", where=ConsumeFromWhere.TIMESTAMP, consume_timestamp_ms=moment)
    assert begin_of(queues, by_time)(name) == queue.offset_at(moment)
    assert begin_of(queues, GroupOptions("g", young_from_zero=True))(name) == 0
    assert begin_of({}, by_time)(name) == 0  # it has no message yet


def test_a_queue_that_was_cut_begins_at_its_minimum(golden: Golden) -> None:
    store = MessageStore.open(str(golden("cleaned-5.5.0")))
    queue = next(queue for queue in store.queues() if 0 < queue.min_offset < queue.max_offset)
    first = GroupOptions("g", where=ConsumeFromWhere.FIRST, young_from_zero=True)
    assert start_of(queue, None, first).offset == queue.min_offset
    assert start_of(queue, 0, first).offset == 0  # committed: whoever reads tells what is lost


def test_a_retry_topic_begins_at_its_beginning(golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    queue = next(
        queue for queue in store.queues(lambda topic: topic.startswith("%RETRY%")) if queue.max_offset
    )
    assert start_of(queue, None, GroupOptions("g")).offset == 0

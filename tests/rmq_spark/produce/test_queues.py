"""Selectors against a Java producer's arithmetic, one message at a time, over one store and over clusters."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.produce.columns import WriteRows
from rmq_spark.produce.queues import (
    HASH,
    MESSAGE_GROUP,
    RANDOM,
    ROUNDROBIN,
    SELECTORS,
    QueueSelector,
    Routes,
    SelectedQueues,
    StoreTopics,
)
from store_format.errors import IllegalMessageError, StoreInUseError
from store_format.java.text import java_hash
from store_format.metadata.values import TopicConfig
from tests.support.produced_batches import batch_of, decoded, producer, unplaced


def cluster(*queue_nums: int, closed: tuple[int, ...] = (), topics: tuple[str, ...] = ("t",)) -> Routes:
    """Stores s0, s1 … with so many write queues each."""
    return Routes.of(
        StoreTopics(
            f"s{i}", {name: TopicConfig(name, 16, nums) for name in topics}, "in use" if i in closed else None
        )
        for i, nums in enumerate(queue_nums)
    )


def select(
    selector: QueueSelector, topics: list[str], keys: list[str | None] | None = None, **columns: Any
) -> list[tuple[int, int]]:
    """(store, queue) of each row."""
    rows = WriteRows(batch_of(topic=topics, body=[b"x"] * len(topics), **columns))
    selected: SelectedQueues = selector.select(
        rows, None if keys is None else pa.array([key and key.encode() for key in keys], pa.large_binary())
    )
    return list(zip(selected.store.tolist(), selected.queue_id.tolist(), strict=True))


def refused(selector: QueueSelector, error: type[Exception] = IllegalMessageError, **columns: Any) -> str:
    with pytest.raises(error) as caught:
        select(selector, ["t"], **columns)
    return unplaced(caught.value)


# ---- in turn -----------------------------------------------------------------------------------------------


def test_turns_go_through_the_publish_list_and_on_in_the_next_batch() -> None:
    queues = [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)]
    selector = QueueSelector(cluster(2, 1, 3), ROUNDROBIN, seed=3)
    taken = select(selector, ["t"] * 4) + select(selector, ["t"] * 3) + select(selector, ["t"] * 6)
    start = queues.index(taken[0])
    assert taken == [queues[(start + i) % 6] for i in range(13)]


def test_each_topic_has_a_turn_of_its_own() -> None:
    selector = QueueSelector(cluster(4, topics=("a", "b")), ROUNDROBIN, seed=3)
    # c is new, and the topics change places
    taken = select(selector, ["a", "a", "b", "a", "b"]) + select(selector, ["b", "c", "a"])
    a, b = [taken[i][1] for i in (0, 1, 3, 7)], [taken[i][1] for i in (2, 4, 5)]
    assert a == [(a[0] + i) % 4 for i in range(4)]
    assert b == [(b[0] + i) % 4 for i in range(3)]


def test_tasks_do_not_all_begin_at_the_same_queue() -> None:
    starts = Counter(select(QueueSelector(cluster(8), ROUNDROBIN), ["t"])[0][1] for _ in range(100))
    assert len(starts) >= 4  # one in 10^30 that chance does it


def test_closed_stores_are_passed_over() -> None:
    taken = select(QueueSelector(cluster(2, 2, 2, closed=(1,)), ROUNDROBIN, seed=1), ["t"] * 8)
    assert Counter(taken) == dict.fromkeys([(0, 0), (0, 1), (2, 0), (2, 1)], 2)


def test_random_takes_any_open_queue() -> None:
    taken = select(QueueSelector(cluster(3, 2, 1, closed=(0,)), RANDOM, seed=5), ["t"] * 300)
    assert set(taken) == {(1, 0), (1, 1), (2, 0)}
    assert min(Counter(taken).values()) > 60
    assert taken == select(QueueSelector(cluster(3, 2, 1, closed=(0,)), RANDOM, seed=5), ["t"] * 300)


# ---- by key ------------------------------------------------------------------------------------------------


def java_choice(key: str, count: int) -> int:
    """SelectMessageQueueByHash.select: `%` of Java has the sign of the dividend."""
    value = int(np.fmod(java_hash(key), count))
    return abs(value)


@given(
    st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=20),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
)
def test_keys_go_where_a_java_producer_sends_them(keys: list[str], queue_nums: list[int]) -> None:
    queues = [(store, queue) for store, nums in enumerate(queue_nums) for queue in range(nums)]
    taken = select(QueueSelector(cluster(*queue_nums), HASH), ["t"] * len(keys), list(keys))
    assert taken == [queues[java_choice(key, len(queues))] for key in keys]


@pytest.mark.parametrize(
    ("key", "count", "queue"),
    [("polygenelubricants", 7, 2), ("polygenelubricants", 4, 0), ("order-1", 4, 2), ("消息", 5, 2)],
)
def test_some_keys(key: str, count: int, queue: int) -> None:
    assert select(QueueSelector(cluster(count), HASH), ["t"], [key]) == [(0, queue)]
    assert queue == java_choice(key, count)


def test_rows_without_a_key_take_turns() -> None:
    keys = ["k", None, None, "k", None, None]
    taken = select(QueueSelector(cluster(4), HASH, seed=2), ["t"] * 6, list(keys))
    assert taken[0] == taken[3] == (0, java_choice("k", 4))
    others = [taken[i][1] for i in (1, 2, 4, 5)]
    assert others == [(others[0] + i) % 4 for i in range(4)]
    assert len(set(select(QueueSelector(cluster(4), HASH), ["t"] * 4))) == 4


def test_a_key_does_not_move_to_another_store() -> None:
    selector = QueueSelector(cluster(2, 2, closed=(1,)), HASH, seed=2)
    keys = [f"key-{i}" for i in range(50)]
    fine = [key for key in keys if java_choice(key, 4) < 2]
    assert select(selector, ["t"] * len(fine), list(fine)) == [(0, java_choice(key, 4)) for key in fine]
    lost = next(key for key in keys if key not in fine)
    with pytest.raises(StoreInUseError) as caught:
        select(selector, ["t", "t"], [None, lost])
    assert (
        unplaced(caught.value)
        == f"topic t: sharding key {lost!r} selects a queue of s1, which takes no messages now: in use"
    )


def test_rows_of_one_key_keep_their_order() -> None:
    keys = [f"user-{i % 7}" for i in range(100)]
    batch = batch_of(topic=["t"] * 100, body=[str(i).encode() for i in range(100)], shardingKey=keys)
    stored: dict[tuple[int, str], list[int]] = {}
    for message in decoded(producer(cluster(5), selector=HASH).produce(batch, 0)):
        stored.setdefault((message.queue_id, message.properties["__SHARDINGKEY"]), []).append(
            int(message.body)
        )
    assert len(stored) == 7
    assert all(bodies == sorted(bodies) for bodies in stored.values())


def test_the_key_may_come_from_the_properties() -> None:
    batch = batch_of(
        topic=["t"] * 2,
        body=[b"x"] * 2,
        properties=[{"__SHARDINGKEY": "a"}, {"__SHARDINGKEY": "b"}],
        shardingKey=[None, "c"],
    )
    assert producer(cluster(64), selector=HASH).produce(batch, 0).queue_id.tolist() == [
        java_choice("a", 64),
        java_choice("c", 64),
    ]


# ---- message groups ----------------------------------------------------------------------------------------


def _chosen_by_proxies() -> list[dict[str, Any]]:
    """What MessageGroups.java wrote with the classes of 5.5.0."""
    lines = Path(__file__).with_name("message_groups.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("case", _chosen_by_proxies(), ids=lambda case: str(len(case["stores"])))
def test_a_message_group_gets_the_queue_of_a_proxy(case: dict[str, Any]) -> None:
    routes = Routes.of(
        StoreTopics(name, {"t": TopicConfig("t", read, write, perm)})
        for name, read, write, perm in case["stores"]
    )
    groups = [group for group, _, _ in case["chosen"]]
    found = select(QueueSelector(routes, MESSAGE_GROUP), ["t"] * len(groups), groups)
    names = [store.broker_name for store in routes.stores]
    assert [(names[store], queue) for store, queue in found] == [tuple(each[1:]) for each in case["chosen"]]


def test_rows_without_a_message_group_take_turns() -> None:
    found = select(QueueSelector(cluster(4), MESSAGE_GROUP, seed=1), ["t"] * 8, [None] * 8)
    assert sorted(Counter(found).values()) == [2, 2, 2, 2]


# ---- the column queueId ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", SELECTORS)
def test_a_queue_id_decides_whatever_the_selector(strategy: str) -> None:
    taken = select(
        QueueSelector(cluster(8), strategy, seed=1), ["t"] * 4, ["a", "b", "c", "d"], queueId=[7, 0, None, 3]
    )
    assert [queue for _, queue in taken[:2] + taken[3:]] == [7, 0, 3]
    assert 0 <= taken[2][1] < 8


def test_queue_ids_take_no_turns() -> None:
    selector = QueueSelector(cluster(4), ROUNDROBIN, seed=1)
    first = select(selector, ["t"] * 3, queueId=[None, 2, None])
    assert [queue for _, queue in first] == [first[0][1], 2, (first[0][1] + 1) % 4]
    assert select(selector, ["t"])[0][1] == (first[0][1] + 2) % 4


def test_in_a_cluster_a_queue_has_a_broker() -> None:
    selector = QueueSelector(cluster(2, 4), ROUNDROBIN, seed=1)
    taken = select(selector, ["t"] * 3, queueId=[1, 3, None], brokerName=["s0", "s1", "elsewhere"])
    assert taken[:2] == [(0, 1), (1, 3)]
    assert select(QueueSelector(cluster(4)), ["t"], queueId=[1], brokerName=["elsewhere"]) == [(0, 1)]


@pytest.mark.parametrize(
    ("routes", "columns", "error", "message"),
    [
        (cluster(4), {"queueId": [4]}, IllegalMessageError,
         "topic t: queueId: expected 0 to 3 in s0 (writeQueueNums), found 4; without the column queueId, "),
        (Routes.of([StoreTopics("s0")]), {"queueId": [1024]}, IllegalMessageError,
         ("expected 0 to 1023 in s0 (defaultTopicQueueNums, for a new topic), found 1024; without the "
          "column queueId")),
        (cluster(2, 4), {"queueId": [3], "brokerName": ["s0"]}, IllegalMessageError,
         "topic t: queueId: expected 0 to 1 in s0 (writeQueueNums), found 3"),
        (cluster(2, 4), {"queueId": [1], "brokerName": ["x"]}, IllegalMessageError,
         ("topic t: brokerName: with queueId expected a store of the topic, s0, s1, found x; map brokerName "
          "to these, or leave out queueId")),
        (cluster(2, 4), {"queueId": [1], "brokerName": [None]}, IllegalMessageError,
         "expected a store of the topic, s0, s1, found null"),
        (cluster(2, 4), {"queueId": [1]}, IllegalMessageError,
         "expected a store of the topic, s0, s1, found null"),
        (cluster(2, 4, closed=(1,)), {"queueId": [1], "brokerName": ["s1"]}, StoreInUseError,
         "topic t: queueId 1 selects a queue of s1, which takes no messages now: in use"),
    ],
)  # fmt: skip
def test_a_queue_that_is_not_there_is_named(
    routes: Routes, columns: dict[str, Any], error: type[Exception], message: str
) -> None:
    assert message in refused(QueueSelector(routes, ROUNDROBIN, seed=1), error, **columns)


def test_a_topic_that_is_missing_in_the_named_store() -> None:
    routes = Routes.of([StoreTopics("s0", {"t": TopicConfig("t")}), StoreTopics("s1")])
    assert "expected a store of the topic, s0, found s1" in refused(
        QueueSelector(routes), queueId=[0], brokerName=["s1"]
    )


def test_many_topics_with_different_stores() -> None:
    routes = Routes.of(
        [
            StoreTopics("s0", {"a": TopicConfig("a", 2, 2), "c": TopicConfig("c", 1, 1)}),
            StoreTopics("s1", {"b": TopicConfig("b", 3, 3), "c": TopicConfig("c", 2, 2)}),
        ]
    )
    topics = ["a", "b", "c"] * 6
    taken = list(zip(topics, select(QueueSelector(routes, ROUNDROBIN, seed=9), topics), strict=True))
    found = {name: {queue for topic, queue in taken if topic == name} for name in "abc"}
    assert found == {"a": {(0, 0), (0, 1)}, "b": {(1, 0), (1, 1), (1, 2)}, "c": {(0, 0), (1, 0), (1, 1)}}

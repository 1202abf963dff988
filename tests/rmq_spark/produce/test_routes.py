"""Where a topic is written to, which topics are made, and which are refused by name and permission."""

from __future__ import annotations

import pickle

import pytest

from rmq_spark.produce.queues import NAMED_QUEUES_MAX, QueueGroup, Routes, StoreTopics
from store_format.errors import IllegalMessageError, StoreError, StoreInUseError, UnsupportedFormatError
from store_format.metadata.values import TopicConfig


def store(name: str, *topics: TopicConfig, closed: str | None = None) -> StoreTopics:
    return StoreTopics(name, {config.topic_name: config for config in topics}, closed)


def topic(queues: int = 4, perm: int = 6, **attributes: str) -> TopicConfig:
    return TopicConfig(
        "t",
        16,
        queues,
        perm,
        attributes={name.replace("_", "."): value for name, value in attributes.items()},
    )


def test_the_write_queues_of_the_topic_count() -> None:
    assert Routes.of([store("a", topic(3))]).groups("t") == (QueueGroup(0, 3),)


def test_a_publish_list_has_the_stores_by_name() -> None:
    routes = Routes.of(
        [
            store("broker-b", topic(2)),
            store("broker-10", topic(1)),
            store("broker-2", topic(5)),
            store("Broker", topic(6)),
        ]
    )
    assert [group.queue_nums for group in routes.groups("t")] == [6, 1, 5, 2]
    assert [kept.broker_name for kept in routes.stores] == ["Broker", "broker-10", "broker-2", "broker-b"]
    assert [kept.broker_name for kept in Routes.of([store("\U00010000"), store("\uffff")]).stores] == [
        "\U00010000",
        "\uffff",
    ]


def test_stores_that_may_not_be_written_or_lack_the_topic_are_passed_over() -> None:
    routes = Routes.of([store("a", topic(4, perm=4)), store("b", topic(2)), store("c"), store("d", topic(0))])
    assert routes.groups("t") == (QueueGroup(1, 2),)


def test_a_new_topic_is_made_everywhere() -> None:
    routes = Routes.of([store("a"), store("b")], default_topic_queue_nums=3)
    assert routes.groups("new") == tuple(QueueGroup(place, 3, named_max=NAMED_QUEUES_MAX) for place in (0, 1))
    assert routes.created({"new": 1}) == {"new": TopicConfig("new", 3, 3, 6)}
    assert routes.created({"new": 7}) == {"new": TopicConfig("new", 7, 7, 6)}  # a row says queueId 6
    assert Routes.of([store("a", topic())]).created({"t": 9, "new": 1, "%RETRY%g": 1}) == {
        "new": TopicConfig("new", 4, 4),
        "%RETRY%g": TopicConfig("%RETRY%g", 4, 4),
    }


def test_where_messages_wait_is_made_as_a_broker_makes_it() -> None:
    routes = Routes.of([store("a")], auto_create=False, default_topic_queue_nums=3)
    parking = {"SCHEDULE_TOPIC_XXXX": 3, "rmq_sys_wheel_timer": 1}
    assert [config.write_queue_nums for config in routes.created(parking).values()] == [18, 1]
    with pytest.raises(IllegalMessageError):
        routes.groups("rmq_sys_wheel_timer")


def test_without_creation_only_retry_topics_come_into_being() -> None:
    routes = Routes.of([store("a", topic())], auto_create=False)
    assert routes.created({"t": 1, "%RETRY%g": 1}) == {"%RETRY%g": TopicConfig("%RETRY%g", 1, 1)}
    assert routes.groups("%RETRY%g") == (QueueGroup(0, 1),)
    for ask in (routes.groups, lambda name: routes.created({name: 1})):
        with pytest.raises(IllegalMessageError) as caught:
            ask("new")
        assert str(caught.value) == (
            "topic new: no store has this topic and autoCreateTopicEnable is false; create the topic, or "
            "set autoCreateTopicEnable=true"
        )


def test_a_filter_type_is_the_stores_own() -> None:
    routes = Routes.of(
        [store("a", TopicConfig("t", topic_filter_type="MULTI_TAG")), store("b", TopicConfig("t"))]
    )
    assert [group.multi_tags for group in routes.groups("t")] == [True, False]


def test_closed_stores_stay_in_the_list_and_get_no_new_topics() -> None:
    routes = Routes.of([store("a", topic(), closed="in use by process 7"), store("b", topic())])
    assert routes.groups("t") == (QueueGroup(0, 4), QueueGroup(1, 4))
    assert routes.groups("new") == (QueueGroup(1, 4, named_max=NAMED_QUEUES_MAX),)
    assert (routes.is_closed(0), routes.is_closed(1)) == (True, False)


@pytest.mark.parametrize(
    ("routes", "name", "error", "message"),
    [
        (Routes.of([store("a", topic(4, perm=4)), store("b", topic(0, perm=3))]), "t", IllegalMessageError,
         ("topic t: expected write permission and at least one write queue, found perm 4 (R--) and 4 queues "
          "in a, perm 3 (-WX) and 0 queues in b")),
        (Routes.of([store("a", topic(queue_type="BatchCQ"))]), "t", UnsupportedFormatError,
         ("topic t: expected queue.type=SimpleCQ, found BatchCQ, which is not supported: its consume queues "
          "hold batches")),
        (Routes.of([store("a", topic(cleanup_policy="COMPACTION"))]), "t", UnsupportedFormatError,
         ("topic t: expected cleanup.policy=DELETE, found COMPACTION, which is not supported: its messages "
          "are compacted")),
        (Routes.of([store("a", topic(message_type="LITE"))]), "t", UnsupportedFormatError,
         "topic t: message.type=LITE (light queues) is not supported"),
        (Routes.of([store("a", topic(), closed="in use"), store("b")]), "t", StoreInUseError,
         "topic t: expected a store that takes messages now, found none (a: in use)"),
        (Routes.of([store("a", closed="disk at 91 %"), store("b", closed="in use")]), "new", StoreInUseError,
         "topic new: expected a store that takes messages now, found none (a: disk at 91 %; b: in use)"),
        (Routes.of([]), "t", StoreInUseError,
         "topic t: expected a store that takes messages now, found none (no store has the topic)"),
        (Routes.of([store("a")]), "a.b", IllegalMessageError,
         "topic: expected letters, digits, %, |, - and _, found 'a.b'"),
    ],
)  # fmt: skip
def test_a_topic_that_is_not_written_says_why(
    routes: Routes, name: str, error: type[StoreError], message: str
) -> None:
    with pytest.raises(error) as caught:
        routes.groups(name)
    assert type(caught.value) is error
    assert str(caught.value) == message


def test_routes_travel_to_tasks() -> None:
    routes = Routes.of([store("a", topic(), closed="in use")], auto_create=False, default_topic_queue_nums=9)
    assert pickle.loads(pickle.dumps(routes)) == routes

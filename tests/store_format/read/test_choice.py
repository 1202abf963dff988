"""Which topics and queues a choice takes."""

from __future__ import annotations

import pickle

import pytest

from store_format.errors import OptionError
from store_format.read.choice import MessageChoice, QueueName

TOPICS = (
    "Orders",
    "OrdersAll",
    "%RETRY%g",
    "%DLQ%g",
    "%LMQ%l",
    "rmq_sys_wheel_timer",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
)


def chosen(choice: MessageChoice) -> tuple[str, ...]:
    return tuple(topic for topic in TOPICS if choice.chooses_topic(topic))


@pytest.mark.parametrize(
    ("choice", "topics"),
    [
        (MessageChoice(), ("Orders", "OrdersAll")),
        (MessageChoice(include_system_topics=True), TOPICS),
        (MessageChoice(names=("Orders", "%DLQ%g")), ("Orders", "%DLQ%g")),
        (MessageChoice(pattern=".*"), ("Orders", "OrdersAll")),
        (MessageChoice(pattern="Orders"), ("Orders",)),  # the whole name
        (MessageChoice(pattern="Orders|OrdersAll"), ("Orders", "OrdersAll")),
        (MessageChoice(pattern="%RETRY%.*"), ("%RETRY%g",)),
        (MessageChoice(pattern=".*", include_system_topics=True), TOPICS),
        (MessageChoice(pattern="rmq_sys_.*"), ()),
        (MessageChoice(pattern="rmq_sys_.*", include_system_topics=True), ("rmq_sys_wheel_timer",)),
        (MessageChoice(queues=(QueueName("%DLQ%g", None, 0),)), ("%DLQ%g",)),
        (MessageChoice(glob="Orders"), ("Orders",)),
        (MessageChoice(glob="Orders*"), ("Orders", "OrdersAll")),
        (MessageChoice(glob="*"), ("Orders", "OrdersAll")),
        (MessageChoice(glob="*", include_system_topics=True), TOPICS),
        (MessageChoice(glob="*_TOPIC*"), ()),
        (MessageChoice(glob="rmq_sys_*"), ("rmq_sys_wheel_timer",)),
        (MessageChoice(glob="orders"), ()),
    ],
)
def test_topics_chosen(choice: MessageChoice, topics: tuple[str, ...]) -> None:
    assert chosen(choice) == topics
    assert chosen(pickle.loads(pickle.dumps(choice))) == topics


def test_a_pattern_hides_system_topics_and_says_so() -> None:
    choice = MessageChoice(pattern="rmq_sys_.*")
    assert choice.hides("rmq_sys_wheel_timer")
    assert not choice.hides("Orders")
    assert not MessageChoice(names=("rmq_sys_wheel_timer",)).hides("rmq_sys_wheel_timer")


def test_queues_chosen() -> None:
    choice = MessageChoice(queues=(QueueName("t", "a", 0), QueueName("t", None, 1)))
    queues = [
        (broker, queue) for broker in "ab" for queue in range(3) if choice.chooses_queue("t", broker, queue)
    ]
    assert queues == [("a", 0), ("a", 1), ("b", 1)]
    assert MessageChoice(names=("t",)).chooses_queue("t", "a", 7)
    assert choice.named_topics == ("t",)
    assert MessageChoice(names=("b", "a")).named_topics == ("b", "a")
    assert [n for n in range(3) if MessageChoice(queue_ids=(0, 2)).chooses_queue("t", "a", n)] == [0, 2]


@pytest.mark.parametrize(
    ("choice", "topic"),
    [
        (MessageChoice(), None),
        (MessageChoice(names=("a",)), "a"),
        (MessageChoice(names=("a", "b")), None),
        (MessageChoice(glob="a"), "a"),
        (MessageChoice(glob="a?"), None),
        (MessageChoice(pattern="a"), None),
    ],
)
def test_the_one_topic(choice: MessageChoice, topic: str | None) -> None:
    assert choice.one_topic == topic
    assert choice.has_topics is (choice != MessageChoice())


def test_a_key_and_an_id_exclude_each_other() -> None:
    with pytest.raises(OptionError, match="key and message_id are given together"):
        MessageChoice(key="a", message_id="b")
    with pytest.raises(OptionError, match="the message id is empty"):
        MessageChoice(message_id="")

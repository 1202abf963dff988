"""Which topics and queues a read is about."""

from __future__ import annotations

import pickle

import pytest

from rmq_spark.options.option import Given
from rmq_spark.options.queues import QueueName, TopicChoice, parse_assign, parse_subscribe, subscription_text
from store_format.errors import OptionError

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


def chosen(choice: TopicChoice) -> tuple[str, ...]:
    return tuple(topic for topic in TOPICS if choice.chooses_topic(topic))


@pytest.mark.parametrize(
    ("choice", "topics"),
    [
        (TopicChoice(), ("Orders", "OrdersAll")),
        (TopicChoice(include_system_topics=True), TOPICS),
        (TopicChoice(names=("Orders", "%DLQ%g")), ("Orders", "%DLQ%g")),
        (TopicChoice(pattern=".*"), ("Orders", "OrdersAll")),
        (TopicChoice(pattern="Orders"), ("Orders",)),  # the whole name
        (TopicChoice(pattern="Orders|OrdersAll"), ("Orders", "OrdersAll")),
        (TopicChoice(pattern="%RETRY%.*"), ("%RETRY%g",)),
        (TopicChoice(pattern=".*", include_system_topics=True), TOPICS),
        (TopicChoice(pattern="rmq_sys_.*"), ()),
        (TopicChoice(pattern="rmq_sys_.*", include_system_topics=True), ("rmq_sys_wheel_timer",)),
        (TopicChoice(queues=(QueueName("%DLQ%g", None, 0),)), ("%DLQ%g",)),
    ],
)
def test_topics_chosen(choice: TopicChoice, topics: tuple[str, ...]) -> None:
    assert chosen(choice) == topics
    assert chosen(pickle.loads(pickle.dumps(choice))) == topics


def test_a_pattern_hides_system_topics_and_says_so() -> None:
    choice = TopicChoice(pattern="rmq_sys_.*")
    assert choice.hides("rmq_sys_wheel_timer")
    assert not choice.hides("Orders")
    assert not TopicChoice(names=("rmq_sys_wheel_timer",)).hides("rmq_sys_wheel_timer")


def test_queues_chosen() -> None:
    choice = TopicChoice(queues=(QueueName("t", "a", 0), QueueName("t", None, 1)))
    queues = [
        (broker, queue) for broker in "ab" for queue in range(3) if choice.chooses_queue("t", broker, queue)
    ]
    assert queues == [("a", 0), ("a", 1), ("b", 1)]
    assert TopicChoice(names=("t",)).chooses_queue("t", "a", 7)
    assert choice.named_topics == ("t",)
    assert TopicChoice(names=("b", "a")).named_topics == ("b", "a")


def test_subscribe() -> None:
    assert parse_subscribe(Given("subscribe", " a,b ,a,", 0)) == ("a", "b")
    with pytest.raises(OptionError) as caught:
        parse_subscribe(Given("subscribe", "*", 0))
    assert str(caught.value) == (
        'subscribe: expected names of topics, found "*"; leave subscribe out to read every topic, or use '
        "subscribePattern"
    )


def test_assign() -> None:
    assert parse_assign(Given("assign", '{"t":[0,1],"u":{"broker-a":[3]}}', 0)) == (
        QueueName("t", None, 0),
        QueueName("t", None, 1),
        QueueName("u", "broker-a", 3),
    )


SHAPE = '; write it as {"TopicTest":[0,1]} or {"TopicTest":{"broker-a":[0,1]}}'
NAMES = "; assign needs queues; use subscribe for whole topics"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", f"expected at least one queue, found '{{}}'{SHAPE}"),
        ("[0]", f"expected a JSON object, found '[0]'{SHAPE}"),
        ('{"t":0}', f'expected a list of queue ids at "t", found 0{SHAPE}'),
        ('{"t":[]}', f'expected a list of queue ids at "t", found a list{SHAPE}'),
        ('{"t":{}}', f"expected at least one queue, found '{{\"t\":{{}}}}'{SHAPE}"),
        ('{"t":{"b":{"0":1}}}', f'expected a list of queue ids at "t" → "b", found an object{SHAPE}'),
        ('{"t":["0"]}', 'expected queue ids from 0 at "t", found "0"'),
        ('{"t":[-1]}', 'expected queue ids from 0 at "t", found -1'),
        ('{"t":[true]}', 'expected queue ids from 0 at "t", found true'),
        ('{"t":[0,0]}', 'expected each queue once, found "t/*/0"'),
        ('{"*":[0]}', f'expected the name of a topic, found "*"{NAMES}'),
        ('{"t":{"*":[0]}}', f'expected the name of a broker, found "*"{NAMES}'),
    ],
)
def test_assign_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse_assign(Given("assign", text, 0))
    assert str(caught.value) == f"assign: {message}"


def test_subscriptions_are_compared_whatever_their_order() -> None:
    assert subscription_text(TopicChoice(names=("b", "a")), "TAG", "*") == subscription_text(
        TopicChoice(names=("a", "b")), "TAG", "*"
    )
    texts = {
        subscription_text(choice, kind, expression)
        for choice in (
            TopicChoice(names=("a",)),
            TopicChoice(pattern="a"),
            TopicChoice(),
            TopicChoice(include_system_topics=True),
        )
        for kind, expression in (("TAG", "*"), ("TAG", "x"), ("SQL92", "x"))
    } | {subscription_text(TopicChoice(queues=(QueueName("a", None, 0),)), "TAG", "*")}
    assert len(texts) == 13

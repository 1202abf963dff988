"""The texts of the options that choose topics and queues."""

from __future__ import annotations

import pytest

from rmq_spark.options.option import Given, parse_assign, parse_subscribe, subscription_text
from store_format.errors import OptionError
from store_format.read.choice import MessageChoice, QueueName


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
    assert subscription_text(MessageChoice(names=("b", "a")), "TAG", "*") == subscription_text(
        MessageChoice(names=("a", "b")), "TAG", "*"
    )
    texts = {
        subscription_text(choice, kind, expression)
        for choice in (
            MessageChoice(names=("a",)),
            MessageChoice(pattern="a"),
            MessageChoice(),
            MessageChoice(include_system_topics=True),
        )
        for kind, expression in (("TAG", "*"), ("TAG", "x"), ("SQL92", "x"))
    } | {subscription_text(MessageChoice(queues=(QueueName("a", None, 0),)), "TAG", "*")}
    assert len(texts) == 13

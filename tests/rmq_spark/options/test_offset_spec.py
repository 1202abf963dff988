"""startingOffsets and its kin: every shape of the JSON, who wins where several places name a queue, and what
is refused.
"""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from rmq_spark.options.option import (
    EARLIEST,
    LATEST,
    Given,
    Offset,
    OffsetSpec,
    Position,
    Timestamp,
    parse_offsets,
    parse_offsets_by_timestamp,
    parse_timestamp,
)
from store_format.errors import OptionError
from store_format.read.choice import QueueName

NOW_MS = 1_700_000_000_000


def starting(text: str) -> OffsetSpec:
    return parse_offsets(Given("startingOffsets", text, NOW_MS), default=EARLIEST, refused=LATEST)


def ending(text: str) -> OffsetSpec:
    return parse_offsets(Given("endingOffsets", text, NOW_MS), default=LATEST, refused=EARLIEST)


def by_time(text: str) -> OffsetSpec:
    return parse_offsets_by_timestamp(Given("startingOffsetsByTimestamp", text, NOW_MS), default=EARLIEST)


def test_words() -> None:
    assert starting("earliest") == OffsetSpec("startingOffsets", EARLIEST)
    assert ending(" Latest ") == OffsetSpec("endingOffsets", LATEST)
    assert starting("earliest").for_queue("t", "b", 3) == EARLIEST


@pytest.mark.parametrize(
    ("text", "queue", "position"),
    [
        ('{"t":{"broker-a":{"0":23}}}', ("t", "broker-a", 0), Offset(23)),
        ('{"t":{"broker-a":{"0":23}}}', ("t", "broker-b", 0), EARLIEST),
        ('{"t":{"broker-a":{"0":23}}}', ("t", "broker-a", 1), EARLIEST),
        ('{"t":{"broker-a":{"0":23}}}', ("u", "broker-a", 0), EARLIEST),
        ('{"t":{"0":23}}', ("t", "any", 0), Offset(23)),
        ('{"t":{"0":0}}', ("t", "any", 0), Offset(0)),
        ('{"t":{"0":-2}}', ("t", "any", 0), EARLIEST),
        ('{"*":{"0":7}}', ("any", "any", 0), Offset(7)),
        ('{"t":{"*":7}}', ("t", "any", 5), Offset(7)),
        ('{"t":{"*":{"5":7}}}', ("t", "any", 5), Offset(7)),
        ('{"t":{"b":{"*":7}}}', ("t", "b", 5), Offset(7)),
        ('{"*":{"*":{"*":7}}}', ("t", "b", 5), Offset(7)),
        # The most exact place decides: topic before broker before queue, wherever it stands in the text.
        ('{"*":{"b":{"0":1}},"t":{"*":2}}', ("t", "b", 0), Offset(2)),
        ('{"t":{"*":{"0":1},"b":{"*":2}}}', ("t", "b", 0), Offset(2)),
        ('{"t":{"b":{"*":1,"0":2}}}', ("t", "b", 0), Offset(2)),
        ('{"t":{"0":1,"b":{"0":2}}}', ("t", "c", 0), Offset(1)),
        ('{"t":{"2147483647":9223372036854775807}}', ("t", "b", 2147483647), Offset((1 << 63) - 1)),
    ],
)
def test_json(text: str, queue: tuple[str, str, int], position: Position) -> None:
    assert starting(text).for_queue(*queue) == position


def test_an_end_not_named_is_latest() -> None:
    spec = ending('{"t":{"0":23,"1":-1}}')
    assert [spec.for_queue("t", "b", queue) for queue in range(3)] == [Offset(23), LATEST, LATEST]


def test_by_timestamp() -> None:
    spec = by_time('{"t":{"0":5,"b":{"1":"1970-01-01T00:00:01Z","2":"-1m"}}}')
    assert [spec.for_queue("t", "b", queue) for queue in range(4)] == [
        Timestamp(5),
        Timestamp(1000),
        Timestamp(NOW_MS - 60_000),
        EARLIEST,
    ]
    one = parse_timestamp(Given("startingTimestamp", "-1s", NOW_MS))
    assert one.for_queue("t", "b", 0) == Timestamp(NOW_MS - 1000)


def test_named_queues_that_are_not_read() -> None:
    spec = starting('{"t":{"b":{"0":1,"9":2}},"typo":{"*":3},"*":{"4":4,"*":5}}')
    assert spec.named_queues() == (
        QueueName("t", "b", 0),
        QueueName("t", "b", 9),
        QueueName("typo", None, None),
        QueueName(None, None, 4),
        QueueName(None, None, None),
    )
    unread = spec.unread([("t", "b", 0), ("u", "c", 1)])
    assert list(map(str, unread)) == ["t/b/9", "typo/*/*", "*/*/4"]
    assert spec.unread([("t", "b", 9), ("typo", "x", 4), ("t", "b", 0)]) == ()
    assert starting('{"*":{"*":1}}').unread([]) == ()


_NAMES = st.sampled_from(["t", "u", "*", "分", '"'])
_QUEUES = st.dictionaries(
    st.sampled_from(["0", "1", "12", "*"]), st.integers(0, 1 << 62) | st.just(-2), min_size=1
)


@examples(st.dictionaries(_NAMES, st.dictionaries(_NAMES, _QUEUES, min_size=1), min_size=1))
def test_what_is_shown_is_read_again(tree: dict[str, dict[str, dict[str, int]]]) -> None:
    spec = starting(json.dumps(tree))
    assert starting(str(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert len(spec.entries) == sum(len(queues) for brokers in tree.values() for queues in brokers.values())


@examples(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: st.dictionaries(st.text(max_size=2), inner),
    )
)
def test_any_json_is_positions_or_an_option_error(value: object) -> None:
    try:
        spec = starting(json.dumps(value))
    except OptionError as refused:
        message = str(refused)
    else:
        message = f"startingOffsets: expected JSON and {spec.entries} are"
    assert message.startswith("startingOffsets: expected ")

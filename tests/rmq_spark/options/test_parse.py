"""The text of one option becomes a value, or an OptionError that says which option, what was expected and
what was found.
"""

from __future__ import annotations

import json
import os
import pickle
import re
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from hypothesis import given as examples
from hypothesis import strategies as st

from rmq_spark.options.option import (
    Given,
    boolean,
    byte_size,
    json_object,
    names,
    one_of,
    parse_assign,
    parse_subscribe,
    path_list,
    paths_json,
    pattern,
    single_path,
    sized,
    subscription_text,
    text,
    timestamp_ms,
    whole_number,
)
from store_format.errors import OptionError
from store_format.read.choice import MessageChoice, QueueName

NOW_MS = 1_700_000_000_123


def given(value: str) -> Given:
    return Given("someOption", value, NOW_MS)


@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (boolean, "true", True),
        (boolean, " FALSE ", False),
        (whole_number, "1", 1),
        (whole_number, "2147483647", 2147483647),
        (byte_size, "67108864", 67108864),
        (byte_size, "64m", 64 << 20),
        (byte_size, "64MB", 64 << 20),
        (byte_size, "1g", 1 << 30),
        (byte_size, "5b", 5),
        (byte_size, "2kb", 2048),
        (byte_size, "1p", 1 << 50),
        (sized(1, 1 << 30), "1g", 1 << 30),
        (one_of("FAILFAST", "PERMISSIVE"), "permissive", "PERMISSIVE"),
        (names, "a, b ,,a", ("a", "b", "a")),
        (pattern, r"Topic\d+", r"Topic\d+"),
        (text, " a ", " a "),
    ],
)
def test_what_is_written_is_read(parse: Callable[[Given], object], value: str, expected: object) -> None:
    assert parse(given(value)) == expected


@pytest.mark.parametrize(
    ("parse", "value", "expected"),
    [
        (boolean, "1", "true or false"),
        (boolean, "", "true or false"),
        (boolean, "yes", "true or false"),
        (whole_number, "0", "a whole number from 1 to 2147483647"),
        (whole_number, "-1", "a whole number from 1 to 2147483647"),
        (whole_number, "2147483648", "a whole number from 1 to 2147483647"),
        (whole_number, "1.5", "a whole number from 1 to 2147483647"),
        (whole_number, "1_000", "a whole number from 1 to 2147483647"),
        (whole_number, "١", "a whole number from 1 to 2147483647"),
        (byte_size, "64 m", "a size in bytes such as 67108864, 64m or 1g"),
        (byte_size, "64x", "a size in bytes such as 67108864, 64m or 1g"),
        (byte_size, "-1", "a size in bytes such as 67108864, 64m or 1g"),
        (byte_size, "0", "a size from 1 to 9223372036854775807 bytes"),
        (byte_size, "9999999p", "a size from 1 to 9223372036854775807 bytes"),
        (byte_size, "9" * 5000, "a size in bytes such as 67108864, 64m or 1g"),
        (sized(1, 1 << 30), "2g", "a size from 1 to 1073741824 bytes"),
        (one_of("FAILFAST", "PERMISSIVE"), "lenient", "one of FAILFAST, PERMISSIVE"),
        (names, " , ", "names separated by commas"),
        (text, " ", "some text"),
    ],
)
def test_what_is_no_value_is_refused(parse: Callable[[Given], object], value: str, expected: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(given(value))
    shown = repr(value)
    message = f"someOption: expected {expected}, found {shown if len(shown) <= 100 else shown[:100] + '…'}"
    assert str(caught.value).split(";")[0] == message
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(
    "expression",
    ["(", "*", "a{2,1}", "[a-z&&[^b]]", r"\p{Lu}x", r"\Qa\E", "(?<name>a)", "[[a]", "a{99999999999}"],
)
def test_a_pattern_that_python_does_not_know_is_refused(expression: str) -> None:
    """Also what only warns in Python because Java means something else by it."""
    with pytest.raises(
        OptionError,
        match=r"^someOption: expected a regular expression \(.+\), found .+; use the syntax of Python's re",
    ):
        pattern(given(expression))


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("0", 0),
        ("1700000000123", 1_700_000_000_123),
        ("9223372036854775807", (1 << 63) - 1),
        ("1970-01-02", 86_400_000),
        ("1970-01-01T00:00:01", 1000),
        ("1970-01-01 00:01", 60_000),
        ("1970-01-01T00:00:01.5Z", 1500),
        ("1970-01-01t00:00:01z", 1000),
        ("1970-01-01T08:00:00+08:00", 0),
        ("1970-01-01T08:00:00+0800", 0),
        ("1970-01-01T08:00:00+08", 0),
        ("1970-01-01T00:00:00.0001Z", 1),  # a message of ms 0 is before it
        ("1970-01-01T00:00:30.0000009Z", 30_001),  # so is one of ms 30,000
        ("1970-01-01T00:00:30.000000001", 30_001),
        ("1970-01-01T00:00:30.000000000Z", 30_000),
        ("1970-01-01T08:00:29.999000100+08:00", 30_000),
        ("1969-12-31T23:59:59Z", -1000),
        ("-2 hours", NOW_MS - 7_200_000),
        ("-30m", NOW_MS - 1_800_000),
        ("- 1 day 2 HOURS", NOW_MS - 93_600_000),
        ("-1h30m", NOW_MS - 5_400_000),
        ("-5ms", NOW_MS - 5),
        ("-1w", NOW_MS - 604_800_000),
    ],
)
def test_times(value: str, ms: int) -> None:
    assert timestamp_ms(given(value)) == ms


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ("", ""),
        ("yesterday", ""),
        ("2024-02-30", "; day is out of range for month"),
        ("2024-W01-1", ""),
        ("2024-01-01x10:00:00", ""),
        ("20240101T100000", ""),
        ("-5", "; a time back from now needs a unit, as in -5m"),
        ("2 hours", "; a time back from now begins with a minus, as in -2 hours"),
        ("-2 fortnights", "; the units are ms, s, m (minutes), h, d and w, or their English names"),
        ("-9999999999999999h", "; the units are ms, s, m (minutes), h, d and w, or their English names"),
        ("9223372036854775808", ""),
        ("1.5", ""),
        ("20261129", "; this would be in ms; a date is 2026-11-29"),
        ("202611290915", "; this would be in ms; a date is 2026-11-29T09:15:00Z"),
        ("20261129091501", "; this would be in ms; a date is 2026-11-29T09:15:01Z"),
        ("2026", "; this would be in ms; a date is 2026-01-01"),
        ("202611", "; this would be in ms; a date is 2026-11-01"),
        ("1795910400", "; these are seconds; in milliseconds: 1795910400000"),
        ("1795910400123456", "; these are microseconds; in milliseconds: 1795910400123"),
        ("1795910400123456789", "; these are nanoseconds; in milliseconds: 1795910400123"),
    ],
)
def test_what_is_no_time_is_refused(value: str, advice: str) -> None:
    with pytest.raises(OptionError) as caught:
        timestamp_ms(given(value))
    expected = (
        "someOption: expected ms since the epoch, ISO 8601 (2024-05-01T12:00:00Z) or a time back "
        "from now (-2 hours), found "
    )
    assert str(caught.value) == f"{expected}{value!r}{advice}"


@examples(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_written_as_iso_is_read_as_the_first_ms_not_before_it(moment: datetime) -> None:
    ms = timestamp_ms(given(moment.isoformat()))
    before = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    assert ms - timestamp_ms(given(before.isoformat())) == (moment != before)


@examples(st.text(max_size=30))
def test_any_text_is_a_time_or_an_option_error(value: str) -> None:
    try:
        ms = timestamp_ms(given(value))
    except OptionError as refused:
        message = str(refused)
    else:
        message = f"someOption: expected ms since the epoch and {ms:d} is"
    assert message.startswith("someOption: expected ms since the epoch")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{'t': 1}",
         ("expected JSON (Expecting property name enclosed in double quotes at character 1), found \"{'t': "
          "1}\"")),
        ("", "expected JSON (Expecting value at character 0), found ''"),
        ("[1]", "expected a JSON object, found '[1]'"),
        ('{"a":1,"b":2,"a":3}', 'expected each name once in a JSON object, found "a"'),
        ('{"a":NaN}', "expected JSON numbers, found NaN"),
        ('{"a":' * 100_000, "expected JSON of a reasonable depth and size, found "),
        ('{"a":' + "1" * 5000 + "}", "expected JSON of a reasonable depth and size, found "),
    ],
)  # fmt: skip
def test_json_that_is_none_says_where(value: str, message: str) -> None:
    with pytest.raises(OptionError, match="^someOption: " + re.escape(message)) as caught:
        json_object(given(value), '{"example":1}')
    assert len(str(caught.value)) < 300


@examples(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.booleans()), max_size=4))
def test_json_objects_are_read(members: dict[str, object]) -> None:
    assert json_object(given(json.dumps(members)), "") == members


# ---- paths as Spark writes them become absolute local ones -------------------------------------------------


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/store", "/data/store"),
        ("/data//x/../store/", "/data/store"),
        ("file:/data/store a", "/data/store a"),
        ("file:///data/store", "/data/store"),
        ("FILE:/data/store", "/data/store"),
        ("file:/data/store%20a", "/data/store%20a"),  # a Hadoop path is not percent-encoded
        ("store", os.path.join(os.getcwd(), "store")),
    ],
)
def test_one_path(text: str, path: str) -> None:
    assert single_path(Given("path", text, 0)) == (path,)


def test_several() -> None:
    assert paths_json(Given("paths", '["/a,b","file:/c"]', 0)) == ("/a,b", "/c")
    assert path_list(Given("storePathCommitLog", "/a, /b", 0)) == ("/a", "/b")
    with pytest.raises(OptionError, match=r"^paths: expected a JSON list of paths"):
        paths_json(Given("paths", "[" * 100_000, 0))


# ---- the texts of the options that choose topics and queues ------------------------------------------------


def test_subscribe() -> None:
    assert parse_subscribe(Given("subscribe", " a,b ,a,", 0)) == ("a", "b")


def test_assign() -> None:
    assert parse_assign(Given("assign", '{"t":[0,1],"u":{"broker-a":[3]}}', 0)) == (
        QueueName("t", None, 0),
        QueueName("t", None, 1),
        QueueName("u", "broker-a", 3),
    )


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

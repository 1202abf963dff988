"""ConsumeFromWhere by the table of the Java client, cell by cell, and the dates that its lenient parser
takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_spark.consume.consumer import (
    CONSUME_FROM_WHERE,
    ConsumeFromWhere,
    consume_from_where,
    consume_timestamp_ms,
    start_offset,
)
from store_format.errors import OffsetOutOfRangeError, OptionError

LAST, FIRST, TIMESTAMP = ConsumeFromWhere.LAST, ConsumeFromWhere.FIRST, ConsumeFromWhere.TIMESTAMP


def _start(
    committed: int | None, where: ConsumeFromWhere, *, low: int = 0, retry: bool = False, young: bool = False
) -> tuple[int, bool]:
    """On a queue that ends at 90 and has 42 as the offset of the time asked for."""
    found = start_offset(
        committed, where=where, min_offset=low, max_offset=90, offset_at=lambda: 42, is_retry=retry,
        young_from_zero=young,
    )  # fmt: skip
    return found.offset, found.is_committed


@pytest.mark.parametrize(
    ("where", "normal", "retry"),
    [(LAST, 90, 0), (FIRST, 0, 0), (TIMESTAMP, 42, 90)],
)
def test_the_table(where: ConsumeFromWhere, normal: int, retry: int) -> None:
    for unknown in (None, -1):
        assert _start(unknown, where) == (normal, False)
        assert _start(unknown, where, retry=True) == (retry, False)
    for stored in (0, 7, 90, 1000):  # also one behind the end: whoever reads tells the loss
        assert _start(stored, where) == (stored, True)
        assert _start(stored, where, retry=True) == (stored, True)
    for failed in (-2, -3):
        with pytest.raises(OffsetOutOfRangeError) as caught:
            _start(failed, where)
        assert f"found {failed};" in str(caught.value)


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_a_computed_start_is_moved_up_to_the_minimum_and_a_committed_one_is_not(
    where: ConsumeFromWhere,
) -> None:
    assert _start(None, where, low=60) == (60 if where is not LAST else 90, False)
    assert _start(None, where, low=60, retry=True) == (90 if where is TIMESTAMP else 60, False)
    assert _start(5, where, low=60) == (5, True)


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
@pytest.mark.parametrize("retry", [False, True])
def test_a_young_queue_is_read_from_its_beginning(where: ConsumeFromWhere, retry: bool) -> None:
    assert _start(None, where, retry=retry, young=True) == (0, False)
    # not young any more
    assert _start(None, where, low=60, retry=retry, young=True) == _start(None, where, low=60, retry=retry)
    assert _start(33, where, retry=retry, young=True) == (33, True)


@given(
    st.integers(-1, 200),
    st.sampled_from(list(ConsumeFromWhere)),
    st.integers(0, 50),
    st.integers(0, 50),
    st.booleans(),
    st.booleans(),
)
def test_a_computed_start_lies_in_the_queue(
    committed: int, where: ConsumeFromWhere, low: int, length: int, retry: bool, young: bool
) -> None:
    found = start_offset(
        committed, where=where, min_offset=low, max_offset=low + length,
        offset_at=lambda: low + length // 2, is_retry=retry, young_from_zero=young,
    )  # fmt: skip
    assert found.offset == committed if committed >= 0 else low <= found.offset <= low + length
    assert found.is_committed == (committed >= 0)


def test_a_time_is_looked_up_only_where_it_decides() -> None:
    def never() -> int:
        raise AssertionError

    for committed, where, retry in [
        (3, TIMESTAMP, False),
        (None, LAST, False),
        (None, FIRST, False),
        (None, TIMESTAMP, True),
    ]:
        start_offset(committed, where=where, min_offset=0, max_offset=9, offset_at=never, is_retry=retry)


def test_the_names_of_where() -> None:
    assert consume_from_where(" consume_from_first_offset ") is FIRST
    assert consume_from_where("CONSUME_FROM_TIMESTAMP") is TIMESTAMP
    for deprecated in (
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
    ):
        assert CONSUME_FROM_WHERE[deprecated] is LAST
    with pytest.raises(OptionError) as caught:
        consume_from_where("CONSUME_FROM_FIRST")
    assert "did you mean CONSUME_FROM_FIRST_OFFSET?" in str(caught.value)


@pytest.fixture
def _in_shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_in_shanghai")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("20230101080000", 1672531200000),
        ("2023010108000", 1672531200000),  # the last field has one digit
        ("20230101080000 and more", 1672531200000),
        ("20221301080000", 1672531200000),  # month 13
        ("20230100080000", 1672531200000 - 86_400_000),
        ("20230101076000", 1672531200000),  # minute 60
    ],
)
def test_dates_of_a_lenient_parser(text: str, expected: int) -> None:
    assert consume_timestamp_ms(text) == expected


@pytest.mark.parametrize(
    "text", ["202301010800", "", "2023-01-01 08:00", "x20230101080000", "00000101000000", "٢٠٢٣٠١٠١٠٨٠٠٠٠"]
)
def test_what_is_no_date(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        consume_timestamp_ms(text)
    assert (
        str(caught.value)
        == f"consumeTimestamp is invalid, the valid format is yyyyMMddHHmmss,but received {text}"
    )

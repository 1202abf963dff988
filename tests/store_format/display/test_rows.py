"""Rows of plain values: times as text, maps as dicts, bytes as bytes."""

from __future__ import annotations

from datetime import date

import pyarrow as pa

from store_format.display.rows import iso_utc, plain_rows


def test_a_moment_is_shown_for_people() -> None:
    assert iso_utc(1_700_000_000_123) == "2023-11-14T22:13:20.123Z"
    assert iso_utc((1 << 63) - 1) == "9223372036854775807"


def test_each_kind_of_value() -> None:
    batch = pa.record_batch(
        {
            "time": pa.array([1_700_000_000_123_000, None], pa.timestamp("us", tz="UTC")),
            "day": pa.array([date(2023, 11, 14), None]),
            "map": pa.array([[("a", "1"), ("b", "2")], None], pa.map_(pa.string(), pa.string())),
            "body": pa.array([b"\xff", None]),
            "list": pa.array([["x", "y"], None]),
            "count": pa.array([5, None]),
        }
    )
    first, second = plain_rows(batch)
    expected = {"time": "2023-11-14T22:13:20.123Z", "day": "2023-11-14", "map": {"a": "1", "b": "2"}}
    assert first == {**expected, "body": b"\xff", "list": ["x", "y"], "count": 5}
    assert second == dict.fromkeys(first)

"""Axes have the units of tables, and red belongs to damage and loss."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
import vl_convert

from rmq_spark import charts
from rmq_spark.charts.drawing import count_axis, highest, size_axis

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("high", "values"),
    [
        (0, [0, 0.2, 0.4, 0.6, 0.8, 1]),
        (150, [0, 50, 100, 150, 200, 250]),
        (4.3 * MIB, [0, MIB, 2 * MIB, 3 * MIB, 4 * MIB, 5 * MIB]),
        (1000 * KIB, [each * KIB for each in (0, 200, 400, 600, 800, 1000)]),
    ],
)
def test_ticks_of_sizes_are_round_in_their_unit(high: float, values: list[float]) -> None:
    assert size_axis(high).to_dict()["values"] == pytest.approx(values)


def test_small_counts_are_written_in_full() -> None:
    assert count_axis(5_500).to_dict()["format"] == ",~f"  # 5,500, not 5.5k
    assert count_axis(2_000_000).to_dict()["format"] == "~s"


def test_the_highest_stack() -> None:
    table = pa.table({"day": ["a", "a", "b"], "bytes": [1, 2, 2]})
    assert highest(table, "bytes", "day") == 3
    assert highest(table.slice(0, 0), "bytes", "day") == 0


def test_a_picture_has_sizes_and_no_red_topic() -> None:
    batch = pa.table(
        {
            "topic": [f"T{i}" for i in range(8)] * 2,
            "storeTimestampMs": [1_700_000_000_000] * 8 + [1_700_000_001_000] * 8,
            "storeSize": [3 * MIB] * 16,
        }
    )
    drawn = vl_convert.vegalite_to_svg(charts.rate(batch).to_dict())
    texts = re.findall(r">([^<>]+)</text>", drawn)
    assert {"200", "800", "0.5 GiB", "2 GiB"} <= set(texts)
    assert "#e45756" not in drawn

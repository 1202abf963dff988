"""Sizes, durations and counts for people, at the edges between units."""

from __future__ import annotations

import pytest

from store_format.display.units import count_text, duration_text, number_text, size_text

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("size", "text"),
    [
        *((0, "0 B"), (1023, "1023 B"), (KIB, "1.0 KiB"), (10 * KIB, "10 KiB")),
        *((1023 * KIB, "1023 KiB"), (MIB - 1, "1.0 MiB"), (414_777_780, "396 MiB"), (GIB, "1.0 GiB")),
        *((-159, "-159 B"), (9 * KIB + 1000, "10 KiB"), (1 << 70, "1024 EiB")),
    ],
)
def test_sizes(size: int, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        *((0, "0s"), (1, "1ms"), (999, "999ms"), (1000, "1.0s"), (59_999, "59.9s"), (60_000, "1m00s")),
        *((3_599_999, "59m59s"), (3_600_000, "1h00m"), (76_336_958, "21h12m"), (86_399_999, "23h59m")),
        *((86_400_000, "1d00h"), (-76_336_958, "-21h12m"), (1000 * 86_400_000, "1,000d00h")),
    ],
)
def test_durations(ms: int, text: str) -> None:
    assert duration_text(ms) == text


def test_counts() -> None:
    assert [count_text(count) for count in (0, 999, 1000, -1_000_000)] == ["0", "999", "1,000", "-1,000,000"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("bytes", "118 KiB"), ("usedBytes", "118 KiB"), ("bytes_sum", "118 KiB"), ("lagMs_max", "2m00s")),
        *(("physicalOffset", "120777"), ("bornTimestampMs", "120777"), ("bodyCRC", "120777")),
        *(("messages", "120,777"), ("orders", "120,777"), ("", "120,777")),
    ],
)
def test_numbers_of_a_page(name: str, text: str) -> None:
    assert number_text(name, 120_777) == text

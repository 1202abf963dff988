"""Units and arrays that do not fit are not written to; callers' tests show what the kernels write."""

from __future__ import annotations

import numpy as np
import pytest

from store_format import kernels


@pytest.mark.parametrize(
    ("starts", "done"),
    [([0, 91, 182], 2), ([0, 91, 183], 1), ([0, 90, 182], 0), ([91, 182, 0], 1), ([-1, 182], 0)],
)
def test_a_unit_outside_of_the_data_ends_the_pass(starts: list[int], done: int) -> None:
    data = np.full(182, 0xFF, np.uint8)
    numbers = np.arange(2, dtype=np.int64)
    assert kernels.patch.assign(data, np.array(starts), numbers, numbers, numbers) == done
    written = [place for place in range(0, 182, 91) if data[place + 20] == 0]
    assert len(written) == done


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ("queues", np.array([0, 2])),
        ("queues", np.array([0, -1])),
        ("queue_offsets", np.array([5])),
        ("queue_offsets", np.array([5, 7])),
        ("sizes", np.zeros(1, np.int32)),
        ("begins", np.zeros(1, np.int64)),
        ("units", np.zeros(39, np.uint8)),
    ],
)
def test_queue_units_that_have_no_place(wrong: str, value: object) -> None:
    arguments = {
        "queues": np.array([1, 1]),
        "queue_offsets": np.array([5, 6]),
        "physical_offsets": np.array([0, 91]),
        "sizes": np.array([91, 91], np.int32),
        "tags_codes": np.array([1, 2]),
        "begins": np.zeros(2, np.int64),
        "stops": np.zeros(2, np.int64),
        "firsts": np.zeros(2, np.int64),
        "units": np.zeros(40, np.uint8),
    }
    assert kernels.queue_entries.group(*arguments.values())
    assert not kernels.queue_entries.group(*{**arguments, wrong: value}.values())

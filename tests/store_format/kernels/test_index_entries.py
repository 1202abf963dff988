"""Arrays that do not fit together are refused; `index/test_updates.py` tests what the kernel writes."""

from __future__ import annotations

import numpy as np
import pytest

from store_format import kernels


@pytest.mark.parametrize(
    ("wrong", "value"),
    [
        ("head", np.zeros(51, np.uint8)),
        ("pages", np.zeros(0, np.uint8)),
        ("slot_num", 0),
        ("slot_num", 4),
        ("units", np.zeros(39, np.uint8)),
        ("messages", np.zeros(1, np.int64)),
        ("messages", np.array([0, 2])),
        ("messages", np.array([-1, 0])),
        ("timestamps", np.zeros(1, np.int64)),
    ],
)
def test_arrays_that_do_not_fit_together(wrong: str, value: object) -> None:
    arguments = {
        "head": np.zeros(52, np.uint8),
        "pages": np.zeros(1, np.uint8),
        "slot_num": 3,
        "units": np.zeros(40, np.uint8),
        "first_number": 1,
        "hashes": np.array([5, 2], np.int32),
        "messages": np.array([0, 1]),
        "offsets": np.array([0, 100]),
        "timestamps": np.array([7, 8]),
        "begin": 0,
    }
    assert kernels.index_entries.insert(*arguments.values()) == 1
    assert kernels.index_entries.insert(*{**arguments, wrong: value}.values()) == -1

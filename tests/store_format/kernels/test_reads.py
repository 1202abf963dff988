"""Ranges of a file, read by the kernel: each has its bytes, and nothing is written beside them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from store_format import kernels
from store_format.files.view import FileView, runs_of

_SIZE = 20_000
_DATA = random.Random(0).randbytes(_SIZE)
_RANGES = st.lists(st.tuples(st.integers(0, _SIZE - 1), st.integers(1, 900)), min_size=1, max_size=40)


def read(
    path: Path, lows: NDArray[np.int64], highs: NDArray[np.int64], gap_max: int, block: int, room: int
) -> tuple[int, bytes]:
    """How many ranges are read, and the memory that they are read into."""
    data = np.zeros(room, np.uint8)
    with path.open("rb") as file:
        memory = np.zeros(block, np.uint8)
        done = kernels.reads.read_ranges(file.fileno(), lows.copy(), highs.copy(), gap_max, memory, data)
    return done, data.tobytes()


@given(_RANGES, st.integers(0, 600), st.integers(0, 3000))
def test_each_range_has_its_bytes(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int]], gap_max: int, block: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "ranges"
    path.write_bytes(_DATA)
    starts, sizes = np.array(ranges, np.int64).T
    runs = runs_of(starts, np.minimum(starts + sizes, _SIZE), 0)
    done, data = read(path, runs.lows, runs.highs, gap_max, 4096 + block, runs.size + 8)
    whole = b"".join(_DATA[low:high] for low, high, _ in runs.each())
    assert (done, data) == (len(runs.lows), whole + bytes(8))


def test_ranges_that_do_not_fit_are_left(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(_DATA)
    lows, highs = np.array([0, 100, 9000]), np.array([50, 150, 9100])
    assert read(path, lows, highs, 4096, 8192, 100)[0] == 2  # no room
    assert read(path, lows + _SIZE - 9050, highs + _SIZE - 9050, 4096, 8192, 200)[0] == 2  # the file's end
    for wrong in ([-1, 100], [200, 100], [0, 2**63 - 1]):
        assert read(path, np.array([*wrong, 300]), np.array([50, 60, 350]), 9, 8192, 200)[0] <= 1


def test_windows_are_equal_with_and_without_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, chance = tmp_path / "file", random.Random(1)
    path.write_bytes(chance.randbytes(3 << 20))
    starts = np.array(sorted(chance.sample(range(3 << 20), 2000)), np.int64)
    both = np.column_stack([starts, np.minimum(starts + 300, 3 << 20)])
    part = both[:, 0], both[:, 1]  # not contiguous
    with FileView(str(path)) as view:
        assert kernels.reads is not None  # loads the kernels
        ((data, positions),) = view.windows([part])
        monkeypatch.setattr(kernels, "ready", lambda rows=0: False)
        ((plain, plain_positions),) = view.windows([part])
    assert data.tobytes() == plain.tobytes()
    assert positions.tolist() == plain_positions.tolist()

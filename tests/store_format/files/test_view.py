"""Windows of a file: the bytes of any ranges, in memory that is used again only when nobody holds it."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from store_format.errors import FileReplacedError
from store_format.files.view import Buffers, FileView

_SIZE = 3 << 20
_PAGE = 4096
_Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of random bytes."""
    path = tmp_path / "file"
    path.write_bytes(random.Random(0).randbytes(_SIZE))
    return path


def _ranges(chance: random.Random, count: int, size_max: int) -> _Ranges:
    starts = np.array([chance.randrange(_SIZE - size_max) for _ in range(count)], np.int64)
    return starts, starts + np.array([chance.randrange(1, size_max) for _ in range(count)], np.int64)


@pytest.mark.parametrize("count", [1, 2, 20, 500])
@pytest.mark.parametrize("size_max", [100, 5000, 200_000])
def test_each_range_has_its_bytes(file: Path, count: int, size_max: int) -> None:
    chance, data = random.Random(count * size_max), file.read_bytes()
    parts = [_ranges(chance, count, size_max) for _ in range(3)]
    with FileView(str(file)) as view:
        for (starts, stops), window in zip(parts, view.windows(parts), strict=True):
            for start, stop, position in zip(starts, stops, window.positions, strict=True):
                assert window.data[position : position + stop - start].tobytes() == data[start:stop]


def test_bytes_that_somebody_holds_stay(file: Path) -> None:
    data, parts = file.read_bytes(), [_ranges(random.Random(i), 1, 300_000) for i in range(20)]
    with FileView(str(file)) as view:
        windows = list(view.windows(parts))
    for (starts, stops), window in zip(parts, windows, strict=True):
        assert window.data.tobytes() == data[int(starts[0]) : int(stops[0])]


def test_memory_is_used_again(file: Path) -> None:
    buffers: Buffers = []
    places = set()
    with FileView(str(file)) as view:
        for start in range(0, _SIZE - 100_000, 100_000):
            part = np.array([start]), np.array([start + 90_000])
            (window,) = view.windows([part], buffers)
            places.add(window.data.ctypes.data // (1 << 20))
            assert window.data.ctypes.data % _PAGE == start % _PAGE
            del window
    assert len(buffers) == 1
    assert len(places) <= 2


def test_part_of_a_window_keeps_its_memory(file: Path) -> None:
    data, buffers = file.read_bytes(), Buffers()
    with FileView(str(file)) as view:
        held = view.window(0, 50_000, buffers)[100:200]
        for start in range(0, _SIZE - 50_000, 50_000):
            view.window(start, start + 50_000, buffers)
    assert held.tobytes() == data[100:200]


def test_a_file_that_became_shorter_is_named(file: Path) -> None:
    with FileView(str(file)) as view:
        os.truncate(file, 1000)
        assert len(view.window(0, 1000)) == 1000
        with pytest.raises(FileReplacedError, match=f"{file}: expected at least 1001 bytes, found 1000"):
            view.window(0, 1001)
        with pytest.raises(FileReplacedError, match=str(file)):
            list(view.windows([(np.array([0, 5000]), np.array([10, 5010]))]))


def test_a_process_that_leaves_views_open_ends_without_a_word(file: Path) -> None:
    """A module written in C keeps them until the modules written in Python have lost their names."""
    program = "import sys, time, store_format.files.view as v; time.kept = v.FileView(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", program, file], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")

"""Queues of a few entries, checked as whole arrays: what a look at each entry reports is reported, too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from store_format.diagnose import diagnose
from store_format.layouts import CQ_EXT_ADDRESS_MAX, CQ_UNIT
from tests.support.file_edits import overwrite
from tests.support.referee.world import SETTINGS
from tests.support.staged import append, make_store, numbered

_UNITS = 2000  # of a queue's file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    settings = replace(SETTINGS, mapped_file_size_consume_queue=_UNITS * CQ_UNIT.itemsize)
    root = make_store(tmp_path / "store", settings)
    append(root, numbered("Few", 0, 9, queues=3))
    append(root, numbered("Many", 9, 40, queues=1))
    return root


def _file(root: Path, queue: str) -> Path:
    return next((root / "consumequeue" / queue).iterdir())


def _units(path: Path) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    return np.frombuffer(path.read_bytes(), CQ_UNIT).copy()


def test_a_whole_store_has_no_problems(root: Path) -> None:
    assert not diagnose(str(root)).of("damage", "warning")


@pytest.mark.parametrize(("queue", "at"), [("Few/1", 50), ("Few/1", 600), ("Many/0", 50)])
def test_an_entry_behind_zeros_is_reported(root: Path, queue: str, at: int) -> None:
    path = _file(root, queue)
    overwrite(path, at * CQ_UNIT.itemsize, _units(path)[:1].tobytes())
    assert any(each.file == str(path) for each in diagnose(str(root)).of("damage"))


@pytest.mark.parametrize("queue", ["Few/1", "Many/0"])
@pytest.mark.parametrize(
    ("field", "value"),
    [("physical_offset", 1), ("physical_offset", 1 << 40), ("size", 7), ("size", -1), ("tags_code", 5)],
)
def test_a_wrong_entry_is_reported(root: Path, queue: str, field: str, value: int) -> None:
    path = _file(root, queue)
    units = _units(path)
    units[field][1] = value
    path.write_bytes(units.tobytes())
    assert any(each.file == str(path) for each in diagnose(str(root)).of("damage"))


def test_a_lost_extension_is_reported(root: Path) -> None:
    path = _file(root, "Few/1")
    units = _units(path)
    units["tags_code"][1] = CQ_EXT_ADDRESS_MAX - 9
    path.write_bytes(units.tobytes())
    assert ["tags codes" in each.expected for each in diagnose(str(root)).of("warning")] == [True]

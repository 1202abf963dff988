"""The order of writes in an index file: what a kill leaves is a file that a broker deletes, or one without
slots.
"""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pytest

from store_format.files.write import FileWrites
from store_format.index.file import IndexGeometry
from store_format.index.updates import IndexBatch, IndexFiles
from tests.support.failing_writer import Failure, install
from tests.support.fork_server import ForkServer
from tests.support.kills import count_changes, killed_stores

_GEOMETRY = IndexGeometry(20, 30)
_CHECKPOINT = 1_700_000_000_000  # indexMsgTimestamp before the messages of `_write`
_HEADER, _SLOTS_END = 40, 40 + 20 * 4


def _write(root: Path, failure: Failure, first: int, count: int) -> None:
    """Writes entries of messages behind the checkpoint; each file has room for 29."""
    install(failure)
    number = np.arange(first, first + count)
    batch = IndexBatch(
        100 + 100 * number, _CHECKPOINT + 1000 + number, (7 * number).astype(np.int32), number - first
    )
    files = IndexFiles(f"{root}/index", _GEOMETRY, _CHECKPOINT, datetime.UTC, FileWrites(sync=True))
    files.write(batch)
    files.close()


def _slots(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(data[_HEADER:_SLOTS_END], ">i4").astype(np.int32)


@pytest.mark.process
def test_a_broker_deletes_a_new_file_that_a_kill_left_with_slots(tmp_path: Path, forks: ForkServer) -> None:
    """IndexService.load keeps a file whose end time is not behind the checkpoint's. A broker would link its
    own entries to the units of such a file, if slots point to them.
    """
    before = tmp_path / "before"
    before.mkdir()
    without_end = kept = deleted = 0
    for at, root in killed_stores(forks, before, tmp_path, "both", _write, 0, 70):
        for path in sorted(root.glob("index/*")):
            data = path.read_bytes()
            if int.from_bytes(data[8:16], "big") > _CHECKPOINT:
                deleted += 1
                continue
            kept += 1
            without_end += any(data[_SLOTS_END:])
            assert not any(data[_HEADER:_SLOTS_END]), f"change {at}: {path.name} has slots and is kept"
    assert min(kept, without_end, deleted) >= 3


@pytest.mark.process
def test_slots_point_to_units_that_are_written(tmp_path: Path, forks: ForkServer) -> None:
    """In an old file, too: its header tells how far the chains have to be followed back."""
    before = tmp_path / "before"
    before.mkdir()
    count_changes(forks, before, _write, 0, 10)
    ahead = 0
    for at, root in killed_stores(forks, before, tmp_path, "both", _write, 10, 40):
        for path in sorted(root.glob("index/*")):
            data = path.read_bytes()
            units = np.frombuffer(data[_SLOTS_END:], ">i4").reshape(-1, 5)
            slots = _slots(data)
            assert units[slots[slots > 0], 2].all(), f"change {at}: {path.name} has slots without units"
            ahead += bool((slots >= int.from_bytes(data[36:40], "big")).any() and data[39])
    assert ahead, "no kill between slots and header of the old file"

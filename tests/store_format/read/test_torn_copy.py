"""Copies of a store that a broker wrote meanwhile, and uploads in parts: parts of the last commitlog file are
missing in the middle, and whole messages are behind them. No message may be missing without a word.
"""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.errors import CorruptStoreError
from store_format.message.columns import decode_options_of
from store_format.names import QueueKey
from store_format.read.store import read_pieces
from store_format.read.tolerance import Tolerance
from tests.support.fixtures import Golden

_GOLDEN = "crash-5.5.0"
_PART = 8 << 10  # as an upload has parts of 8 MiB and more
_PLACES = decode_options_of(("queueOffset", "physicalOffset"), verify_crc=True)
_Rows = dict[int, int]  # queue offset -> physical offset


def _rows(path: Path, mode: str = "FAILFAST") -> dict[QueueKey, _Rows | None]:
    """What each queue returns; None where it says that it is damaged."""
    found: dict[QueueKey, _Rows | None] = {}
    for queue in MessageStore.open(str(path)).queues():
        found[queue.key] = {}
        if queue.max_offset > queue.min_offset:
            try:
                batches = list(read_pieces([(queue, queue.piece())], _PLACES, Tolerance(mode)))
            except CorruptStoreError:
                found[queue.key] = None
            else:
                rows = (row for batch in batches for row in batch.to_pylist())
                found[queue.key] = {row["queueOffset"]: row["physicalOffset"] for row in rows}
    return found


def _copy(golden: Golden, target: Path) -> tuple[Path, Path, int]:
    """(a copy of the crashed store, the last file with messages, where they end in it)"""
    root = Path(shutil.copytree(golden(_GOLDEN), target))
    last = max(at for rows in _rows(root).values() for at in (rows or {}).values())
    file = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= last)
    return root, file, last - int(file.name)


def _clear(file: Path, ranges: list[tuple[int, int]]) -> None:
    with file.open("r+b") as log:
        for start, stop in ranges:
            log.seek(start)
            log.write(bytes(stop - start))


def _clear_entries(root: Path, physical_offset: int) -> None:
    """Consume queues that were copied when the log ended there."""
    for path in (root / "consumequeue").rglob("*"):
        if path.is_file():
            units = struct.iter_unpack(">qiq", path.read_bytes())
            kept = [struct.pack(">qiq", *each) if each[0] < physical_offset else bytes(20) for each in units]
            path.write_bytes(b"".join(kept))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("are_queues_older", [False, True])
def test_missing_parts_of_the_last_file(
    golden: Golden,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    seed: int,
    are_queues_older: bool,
) -> None:
    root, file, stop = _copy(golden, tmp_path / "copy")
    right = _rows(root)
    chance = random.Random(seed)
    parts = chance.sample(range(stop // _PART + 1), chance.randrange(1, 4))
    _clear(file, [(part * _PART, (part + 1) * _PART) for part in parts])
    if are_queues_older:
        _clear_entries(root, int(file.name) + min(parts) * _PART)
    caplog.clear()
    found, around = _rows(root), _rows(root, "DROPMALFORMED")
    missing, shown = [], [0]
    for key, rows in right.items():
        there, whole = found.get(key, {}), around.get(key, {})
        assert rows is not None
        assert whole is not None
        assert whole.items() <= rows.items()
        shown += whole.values()
        if there is not None:
            assert list(there.items()) == list(rows.items())[: len(there)]  # none is missing in between
            missing += list(rows.values())[len(there) :]
    # The copy is only older, or each read says what it leaves out and why.
    if min(missing, default=stop) < max(shown) or None in found.values():
        assert "damaged in the middle" in caplog.text or "whole messages behind damage" in caplog.text
        assert "copy it again" in caplog.text
        assert MessageStore.open(str(root)).diagnose().of("damage")

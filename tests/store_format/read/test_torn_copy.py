"""Copies of a store that a broker wrote meanwhile, and uploads in parts: parts of the last commitlog file are
missing in the middle, and whole messages are behind them. No message may be missing without a word.
"""

from __future__ import annotations

import errno
import json
import random
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.errors import CorruptStoreError
from store_format.message.columns import decode_options_of
from store_format.names import QueueKey
from store_format.read.store import read_pieces
from store_format.read.tolerance import Tolerance
from tests.support.fixtures import Golden
from tests.support.shrinking import HOW, LOST, MESSAGES, NAMELESS, WHAT

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


# ---- files that become shorter, vanish or are replaced under a reader --------------------------------------


_ROOT = Path(__file__).parents[3]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(3600)  # 200 rounds with --whole
@pytest.mark.parametrize("how", HOW)
def test_a_file_that_changes_under_a_reader(tmp_path: Path, how: str, whole: bool) -> None:
    """200 rounds of each reader with --whole, else 3."""
    rounds = 200 if whole else 3
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.shrinking", str(tmp_path), how, str(rounds)],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=3600,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    ended = json.loads(child.stdout)
    assert ended.keys() == WHAT.keys()
    for what, ways in ended.items():
        assert sum(ways.values()) == rounds
        assert not [way for way in ways if way.startswith((NAMELESS, LOST))], what


_IN_A_FULL_FILE_SYSTEM = """
set -e
mount -t tmpfs -o size=24m tmpfs "$1"
"$2" - "$1" <<'END'
import sys
from pathlib import Path
from store_format.diagnose import diagnose
from tests.support.shrinking import MESSAGES, WHAT, make_store
root = sys.argv[1] + "/store"
make_store(root)
log = sorted(Path(root, "commitlog").iterdir())
with open(log[-1].parent / f"{int(log[-1].name) + (1 << 19):020d}", "wb") as file:
    file.truncate(1 << 19)  # a file that a broker has created in advance: a hole, to which no page belongs
try:
    with open(sys.argv[1] + "/rest", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    print(error.errno)
for name, read in WHAT.items():
    print(name, sum(read(root)))
END
"""


@pytest.mark.process
def test_a_full_file_system_without_room_for_the_holes_of_files(tmp_path: Path) -> None:
    """Where nothing is free, an access to a hole of a mapped file of a tmpfs ends the process."""
    script = ["bash", "-c", _IN_A_FULL_FILE_SYSTEM, "bash", str(tmp_path), sys.executable]
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("mounting a file system needs CAP_SYS_ADMIN")
    child = subprocess.run(
        ["unshare", "--mount", *script], capture_output=True, text=True, cwd=_ROOT, timeout=300
    )
    assert child.returncode == 0, child.stderr[-2000:]
    said = child.stdout.splitlines()
    assert said[0] == str(errno.ENOSPC)
    assert said[1:3] == [f"read {MESSAGES}", f"scan {MESSAGES}"]
    assert len(said) == 1 + len(WHAT)

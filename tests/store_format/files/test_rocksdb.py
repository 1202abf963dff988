"""Databases are opened in a scratch directory that never stays, whatever happens, and in a process that may
die.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from store_format.errors import CorruptStoreError
from store_format.files import rocksdb, rocksdb_child
from store_format.files.files import Files
from store_format.files.read import files_at
from tests.support.fixtures import Golden, Unchanged

STORE = "rocksdbcq-crash2-5.5.0"
_OPENED = """
import sys, time
from store_format.files import rocksdb
from store_format.files.files import Files
fill = rocksdb._fill
def slow(*given, **more):
    fill(*given, **more)
    print("filled", flush=True)
    time.sleep(60)
rocksdb._fill = slow
with Files().database(sys.argv[1]):
    pass
"""


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of temporary files."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def _count(directory: str) -> dict[str, int]:
    with files_at(directory).database(directory) as database:
        return {name: sum(part.count for part in database.records(name)) for name in database.families}


def test_a_database_of_a_broker(golden: Golden, unchanged: Unchanged, scratch: Path) -> None:
    root = golden(STORE)
    with unchanged(root):
        assert _count(f"{root}/consumequeue") == {"default": 254, "offset": 43}
    assert [*scratch.iterdir()] == []


def test_every_record_in_the_order_of_keys(golden: Golden) -> None:
    with files_at("/").database(f"{golden(STORE)}/consumequeue") as database:
        parts = list(database.records("default"))
        assert list(database.records("another")) == []
    records = [record for part in parts for record in part]
    keys = [key for key, _ in records]
    assert keys == sorted(set(keys))
    assert {len(value) for _, value in records} == {28}


def test_an_error_leaves_no_scratch_directory(golden: Golden, tmp_path: Path, scratch: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(golden(STORE) / "consumequeue", copy)
    table = max(copy.glob("*.sst"))
    table.write_bytes(table.read_bytes()[:-1])
    with pytest.raises(CorruptStoreError, match=f"{table.name} at byte 0: .*Bad table magic number"):
        _count(str(copy))
    assert [*scratch.iterdir()] == []


@pytest.mark.process
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_is_ended_leaves_no_scratch_directory(
    golden: Golden, scratch: Path, end: signal.Signals
) -> None:
    command = [sys.executable, "-c", _OPENED, f"{golden(STORE)}/consumequeue"]
    environment = os.environ | {"TMPDIR": str(scratch)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"filled\n"
        (left,) = scratch.iterdir()
        assert (left / "CURRENT").exists()
        process.send_signal(end)
    assert process.returncode == -end
    stop = time.monotonic() + 20
    while left.exists():
        assert time.monotonic() < stop, sorted(left.iterdir())
        time.sleep(0.02)
    assert (golden(STORE) / "consumequeue/CURRENT").exists()


def test_what_nobody_has_locked_is_removed_by_the_next_run(golden: Golden, scratch: Path) -> None:
    left, held = (scratch / f"{rocksdb._PREFIX}{name}" for name in ("1-left", "1-held"))
    for directory in (left, held):
        directory.mkdir()
        (directory / "CURRENT").symlink_to(golden(STORE) / "consumequeue/CURRENT")
        os.utime(directory, (time.time() - 3600,) * 2)
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other = scratch / f"{rocksdb._PREFIX}link"
    other.symlink_to(golden(STORE))
    _count(f"{golden(STORE)}/consumequeue")
    assert {*scratch.iterdir()} == {held, other}
    os.close(lock)
    assert (golden(STORE) / "consumequeue/CURRENT").exists()


def test_a_new_directory_is_left_alone(golden: Golden, scratch: Path) -> None:
    """Between the making of a directory and its lock, another process may look."""
    fresh = scratch / f"{rocksdb._PREFIX}1-x"
    fresh.mkdir()
    _count(f"{golden(STORE)}/consumequeue")
    assert fresh.exists()
    held = os.open(fresh, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(held)


class _Compacting(Files):
    """The files of a broker that deletes a table while they are opened, the first times."""

    def __init__(self, times: int) -> None:
        self.times, self.copies = times, list[bool]()

    def make_readable_at(self, path: str, target: str, *, copy: bool) -> None:
        if path.endswith("000011.sst"):
            self.copies.append(copy)
            if len(self.copies) <= self.times:
                raise FileNotFoundError(path)
        super().make_readable_at(path, target, copy=copy)


@pytest.mark.parametrize("times", [1, 2])
def test_a_deleted_table_begins_it_again(golden: Golden, times: int) -> None:
    files = _Compacting(times)
    with files.database(f"{golden(STORE)}/consumequeue") as database:
        assert sum(part.count for part in database.records("default")) == 254
    assert files.copies == [False, False, True][: times + 1]


def test_a_table_that_is_missing_is_named(golden: Golden, scratch: Path) -> None:
    with pytest.raises(CorruptStoreError, match=r"000011\.sst at byte 0: .*No such file or directory"):
        _Compacting(99).database(f"{golden(STORE)}/consumequeue")
    assert [*scratch.iterdir()] == []


def test_a_process_that_dies_is_an_error(
    golden: Golden, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dying = tmp_path / "dying.py"
    text = Path(rocksdb_child.__file__).read_text()
    dying.write_text(text.replace("    answers = _Answers()\n", "    import os; os.abort()\n"))
    monkeypatch.setattr(rocksdb_child, "__file__", str(dying))
    with pytest.raises(CorruptStoreError, match=r"its process was ended by signal 6$"):
        _count(f"{golden(STORE)}/consumequeue")

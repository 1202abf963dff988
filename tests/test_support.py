"""What the tests share is tested itself: the proof that reading changed nothing must fail for each change."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.file_edits import overwrite
from tests.support.longest_first import LONGEST, longest_first
from tests.support.unchanged import snapshot, unchanged

SIZE = 3 << 20


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A sparse file with its data in the middle, as a commitlog of default size is, and a small one in a
    directory.
    """
    root = tmp_path / "store"
    (root / "config").mkdir(parents=True)
    (root / "config" / "topics.json").write_text("{}")
    with (root / "sparse").open("wb") as file:
        file.truncate(SIZE)
        file.seek(SIZE // 2)
        file.write(b"message")
    return root


def _write_and_put_the_times_back(path: Path, position: int, content: bytes) -> None:
    status = path.stat()
    overwrite(path, position, content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def _add_and_remove(path: Path) -> None:
    path.touch()
    path.unlink()


CHANGES: dict[str, Callable[[Path], object]] = {
    "a byte in a hole, times put back": lambda root: _write_and_put_the_times_back(root / "sparse", 17, b"x"),
    "the last byte, times put back": lambda root: _write_and_put_the_times_back(
        root / "sparse", SIZE - 1, b"x"
    ),
    "the same byte at another place": lambda root: _write_and_put_the_times_back(
        root / "sparse", SIZE // 2, b"\0message"
    ),
    "a modification time alone": lambda root: os.utime(root / "sparse", ns=(0, 1)),
    "a new file": lambda root: (root / "config" / "new").touch(),
    "a file made and removed": lambda root: _add_and_remove(root / "config" / "temporary"),
    "a file removed": lambda root: (root / "config" / "topics.json").unlink(),
    "a longer file": lambda root: os.truncate(root / "sparse", SIZE + 1),
    "other permissions": lambda root: (root / "sparse").chmod(0o400),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed(tree: Path, name: str) -> None:
    with pytest.raises(AssertionError, match="changed below"), unchanged(tree):
        CHANGES[name](tree)


def test_reading_is_no_change(tree: Path) -> None:
    before = snapshot(tree)
    with unchanged(tree):
        assert (tree / "sparse").read_bytes().strip(b"\0") == b"message"
    assert sorted(before) == [".", "config", "config/topics.json", "sparse"]


def test_an_empty_directory_proves_nothing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="is empty"), unchanged(tmp_path):
        pass


# ---- copies of stores with holes ---------------------------------------------------------------------------


@pytest.mark.parametrize("starts", [(), (0,), (1 << 16,), (0, 1 << 20, (3 << 20) - 7)])
def test_a_copy_keeps_bytes_holes_and_times(tmp_path: Path, starts: tuple[int, ...]) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with (store / "sparse").open("wb") as file:
        file.truncate(3 << 20)
        for start in starts:
            file.seek(start)
            file.write(b"message")
    os.utime(store / "sparse", ns=(1, 2))
    (store / "small").write_bytes(b"small")
    (store / "link").symlink_to("small")
    copy = Path(shutil.copytree(store, tmp_path / "copy", symlinks=True))
    for name in ("sparse", "small"):
        assert (copy / name).read_bytes() == (store / name).read_bytes()
    assert (copy / "link").readlink() == Path("small")
    copied, original = (copy / "sparse").stat(), (store / "sparse").stat()
    assert copied.st_blocks <= original.st_blocks
    assert copied.st_mtime_ns == original.st_mtime_ns


# ---- the longest tests are the first of each process -------------------------------------------------------


ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("start", LONGEST)
def test_what_is_listed_exists(start: str) -> None:
    path, _, name = start.partition("::")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert re.search(rf"^def {re.escape(name.partition('[')[0]) or 'test_'}", text, re.MULTILINE)


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
@pytest.mark.parametrize("others", [0, 1, 5, 100])
def test_each_process_begins_with_its_share(processes: int, others: int) -> None:
    names = [f"tests/a.py::test_{number}" for number in range(others)]
    names[others // 2 : others // 2] = reversed(LONGEST)
    ordered = longest_first([(name, name) for name in names], processes)
    assert sorted(ordered) == sorted(names)
    assert [name for name in ordered if name not in LONGEST] == [
        name for name in names if name not in LONGEST
    ]
    left = ordered if others == 100 else []  # with fewer, a share may be more than its part
    for process in range(processes):  # as worksteal cuts what it gives to each at the start
        size = len(left) // (processes - process)
        share = list(LONGEST[process::processes])
        assert left[: len(share)] == (share if left else [])
        left = left[size:]


@pytest.mark.parametrize("processes", [1, 2, 3, 4])
def test_the_first_half_of_the_processes_has_the_tests_with_spark(processes: int) -> None:
    names = [f"tests/a.py::test_{number}{'_spark' * (number % 10 == 3)}" for number in range(100)]
    names[50:50] = LONGEST
    long_ones = {LONGEST[0], LONGEST[-1]}
    with_spark = [name for name in names if name.endswith("_spark") or name in long_ones]
    left = longest_first([(name, name) for name in names], processes, with_spark.__contains__)
    assert sorted(left) == sorted(names)
    firsts, others = (processes + 1) // 2, list[str]()
    for process in range(processes):
        part, left = left[: len(left) // (processes - process)], left[len(left) // (processes - process) :]
        mine = [name for name in part if name in with_spark]
        assert len(mine) >= len(with_spark) // firsts if process < firsts else not mine
        assert [name for name in part[: len(mine)] if name not in with_spark + list(LONGEST)] == []
        others += [name for name in part if name in LONGEST and name not in long_ones]
        assert process >= processes // 2 or not others
    assert sorted(others) == sorted({*LONGEST} - long_ones)


def test_tests_of_one_line_stay_together_in_their_order() -> None:
    one, other = LONGEST[0], LONGEST[1]
    names = ["a.py::t", f"{other}::1", f"{other}::2", f"{one}::1", "b.py::t", "c.py::t", "d.py::t", "e.py::t"]
    assert longest_first([(name, name) for name in names], 2) == [
        *(f"{one}::1", "a.py::t", "b.py::t", "c.py::t"),
        *(f"{other}::1", f"{other}::2", "d.py::t", "e.py::t"),
    ]

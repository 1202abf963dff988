"""Lines of Python of the rooms that the kernels replace code of."""

from __future__ import annotations

from pathlib import PurePosixPath

from benchmarks.old_commit import ROOT, git

ROOMS = ("message", "index", "consumequeue", "commitlog", "kernels")


def lines_of(commit: str) -> int:
    """In the files of a commit."""
    names = git("ls-tree", "-r", "--name-only", commit, *(f"store_format/{room}/" for room in ROOMS)).split()
    files = [name for name in names if PurePosixPath(name).suffix == ".py"]
    return sum(len(git("show", f"{commit}:{name}").splitlines()) for name in files)


def lines_now() -> int:
    """In the files of this checkout as they are."""
    files = [file for room in ROOMS for file in (ROOT / "store_format" / room).rglob("*.py")]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)

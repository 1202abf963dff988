"""Large files are removed at once, and freed by a thread."""

from __future__ import annotations

import os
from pathlib import Path

from store_format.files.background import close_named, free, hold


def _held(path: Path) -> int:
    """How many descriptors of this process have the file open; its name may be gone."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if link.is_symlink()]
    return sum(target.removesuffix(" (deleted)") == str(path) for target in targets)


def test_a_thread_closes_removed_files_and_files_with_a_name_are_closed_at_once(tmp_path: Path) -> None:
    removed, kept = tmp_path / "removed", tmp_path / "kept"
    removed.write_bytes(b"1")
    kept.write_bytes(b"2")
    descriptors = hold([str(removed), str(tmp_path / "missing"), str(kept)])
    removed.unlink()
    assert (_held(removed), _held(kept)) == (1, 1)
    descriptors = close_named(descriptors)
    assert (_held(removed), _held(kept)) == (1, 0)
    thread = free(descriptors)
    assert thread is not None
    thread.join()
    assert _held(removed) == 0
    assert free([]) is None


def test_a_thousand_files_do_not_take_all_descriptors(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    descriptors = hold([str(tmp_path / "file")] * 1000)
    assert len(descriptors) == 256
    assert close_named(descriptors) == []

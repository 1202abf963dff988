"""Copies of stores have the bytes of the originals, and no memory for their holes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


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

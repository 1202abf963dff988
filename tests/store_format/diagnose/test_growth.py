"""What `verify` does grows with the files of a store, not with each file times each other file."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.bookkeeping.settings import StoreSettings
from store_format.diagnose import diagnose
from store_format.index.file import IndexFile
from tests.support.staged import append, make_store, numbered


def test_many_small_log_files_and_index_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 13, 20 * 200, 10, 30))
    append(root, numbered("T", 0, 1000))
    files = [len(list((root / name).iterdir())) for name in ("commitlog", "index")]
    assert min(files) > 20
    searched, find = [], IndexFile.find

    def counted(file: IndexFile, physical_offset: int) -> int:
        searched.append(file.path)
        return find(file, physical_offset)

    monkeypatch.setattr(IndexFile, "find", counted)
    assert diagnose(str(root)).verdict.startswith("sound: 1,000 messages readable")
    # both ends of what each log file and each index file share, which are at most so many pairs
    assert 0 < len(searched) <= 2 * sum(files)

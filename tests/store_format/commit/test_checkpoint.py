"""indexMsgTimestamp: raised by a flushed commit, lowered before the last index file changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.commit.publication import index_end, lower_index_mark
from store_format.index.file import list_index_files
from store_format.metadata.read import Checkpoint, read_checkpoint
from store_format.opened.store import Opened
from tests.support.staged import append, numbered


def _checkpoint(root: Path) -> Checkpoint:
    found = read_checkpoint(str(root / "checkpoint"))
    assert found is not None
    return found


def test_the_mark_is_taken_back_to_the_last_full_file(root: Path) -> None:
    for number in range(11):  # several fill an index file
        options = CommitOptions(clock=lambda number=number: 1_700_000_300_000 + 1000 * number)  # type: ignore[misc]
        append(root, numbered("T", 20 * number, 20), key=("q", number), options=options)
    settings = StoreSettings.read(Opened(str(root)))
    assert settings is not None
    geometry = settings.geometry
    assert len(list_index_files(str(root / "index"))) > 1
    raised = _checkpoint(root)
    full = index_end(Opened(str(root)), geometry, last=2)
    assert full is not None
    assert raised.index_msg_timestamp == index_end(Opened(str(root)), geometry)
    assert full < raised.index_msg_timestamp
    lower_index_mark(Opened(str(root)), geometry)
    assert _checkpoint(root) == replace(raised, index_msg_timestamp=full)
    written = (root / "checkpoint").stat().st_mtime_ns
    lower_index_mark(Opened(str(root)), geometry)
    assert (root / "checkpoint").stat().st_mtime_ns == written  # nothing to take back


def test_with_one_file_nothing_is_safe(root: Path) -> None:
    append(root, numbered("T", 0, 5), key=("q", 0))
    settings = StoreSettings.read(Opened(str(root)))
    assert settings is not None
    assert _checkpoint(root).index_msg_timestamp > 0
    lower_index_mark(Opened(str(root)), settings.geometry)
    assert _checkpoint(root).index_msg_timestamp == 0

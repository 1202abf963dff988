"""What is left of writes that failed: removed when it is old or given up, never when a journal names it,
never at a commit's cost.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from store_format.bookkeeping.identity import StagedFile
from store_format.commit.abandoned_staging import collect, discard
from store_format.commit.append import plan, recover
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import open_store
from store_format.commit.staging import StagingWriter
from store_format.errors import CorruptStoreError, StoreWriteError
from store_format.files.write import FileWrites
from store_format.opened.store import Opened
from tests.support.staged import messages_of, numbered, stage


def _staging(root: Path) -> list[str]:
    return sorted(path.name for path in (root / ".rmqlog" / "staging").iterdir())


def _age(directory: Path) -> None:
    for path in [*directory.iterdir(), directory]:
        os.utime(path, (1_000, 1_000))


def _begin(root: Path, staged: StagedFile) -> None:
    """A commit whose writer dies when the journal stands."""
    files, options = FileWrites(sync=False), CommitOptions()
    opened = open_store(str(root), options, files)
    journal = plan(opened, (staged,), key=None, store_timestamps=None)
    journal.write(Opened(str(root)), files)


def test_what_is_old_or_finished_is_collected_unless_a_journal_names_it(root: Path) -> None:
    staged = {
        write: stage(root, numbered("T", 0, 3), write=write)
        for write in ("old", "named", "fresh", "finished")
    }
    for write in ("old", "named"):
        _age(root / ".rmqlog" / "staging" / write)
    _begin(root, staged["named"])
    assert sorted(collect(str(root), older_than=2_000, finished=["finished"])) == ["finished", "old"]
    assert _staging(root) == ["fresh", "named"]


def test_what_a_journal_names_is_not_discarded(root: Path) -> None:
    staged = [stage(root, numbered("T", 10 * i, 10), write=f"w{i}") for i in range(2)]
    _begin(root, staged[0])
    assert not discard(str(root), ["w0", "w1"])
    assert _staging(root) == ["w0"]
    assert discard(str(root), ["w1", "never staged"])
    assert collect(str(root), older_than=time.time() + 10) == []
    recover(str(root))
    assert len(messages_of(root)) == 10
    stage(root, numbered("T", 0, 1), write="dead")
    assert collect(str(root), older_than=0.0) == []
    assert collect(str(root), older_than=time.time() + 10) == ["dead"]


def test_files_of_attempts_that_died_go_with_their_write(root: Path) -> None:
    StagingWriter(Opened(str(root)), "w", sync=False)  # never closed
    stage(root, numbered("T", 0, 3), write="w")
    assert discard(str(root), ["w"])
    assert _staging(root) == []


def test_what_cannot_be_removed_is_told_and_keeps_nothing_else(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for write in ("a", "b", "c"):
        stage(root, numbered("T", 0, 3), write=write)
    (root / ".rmqlog" / "staging" / "b" / "report").mkdir()
    (root / ".rmqlog" / "staging" / "b" / "report" / "page").touch()
    assert collect(str(root), older_than=time.time() + 10) == ["a", "c"]
    assert [
        record.getMessage()
        for record in caplog.records
        if "staging/b/report: cannot remove" in record.getMessage()
    ]
    assert (root / ".rmqlog" / "staging" / "b" / "report" / "page").exists()
    with pytest.raises(StoreWriteError, match="staging/b/report: cannot remove"):
        discard(str(root), ["b"])


def test_a_link_among_the_staging_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "page").touch()
    stage(root, numbered("T", 0, 3), write="a")
    (root / ".rmqlog" / "staging" / "z").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        CorruptStoreError, match="staging/z at byte 0: expected a file or directory, found a symbolic link"
    ):
        collect(str(root), older_than=time.time() + 10)
    assert (tmp_path / "elsewhere" / "page").exists()


def test_a_task_that_fails_takes_its_directory_along_and_one_that_begins_meanwhile_makes_it_anew(
    root: Path,
) -> None:
    first, second = (StagingWriter(Opened(str(root)), "w", sync=False) for _ in range(2))
    first.discard()
    assert _staging(root) == ["w"]
    second.discard()
    assert _staging(root) == []
    assert stage(root, numbered("T", 0, 3), write="w").units == 3

"""Appending to stores that a broker left: killed in the middle of sending, torn by a power loss, or closed in
order.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.errors import UnsupportedFormatError
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.staged import append, numbered, rows_by_queue, settings_from

pytestmark = pytest.mark.golden


def _options(name: str) -> CommitOptions:
    return CommitOptions(
        settings=settings_from(goldens.config(name)), clock=lambda: 1_800_000_000_000, sync=True
    )


def test_the_index_geometry_is_that_which_the_units_prove(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    append(root, numbered("T", 0, 5), key=("q", 0))
    sizes = {path.stat().st_size for path in (root / "index").iterdir()}
    assert sizes == {StoreSettings("x", max_hash_slot_num=100, max_index_num=400).geometry.file_size}


@pytest.mark.parametrize("name", ["rocksdb-5.5.0"])
def test_rocksdb_stores_are_refused(copy_of: Golden, name: str) -> None:
    root = copy_of(name)
    with pytest.raises(UnsupportedFormatError) as caught:
        commit(str(root), [], key=("q", 0))
    assert "RocksDB" in str(caught.value)


def _last_unit(directory: Path) -> tuple[Path, int]:
    """File and position of the last batch consume queue unit."""
    path = max(path for path in directory.iterdir() if any(path.read_bytes()))
    data = path.read_bytes()
    return path, max(at for at in range(0, len(data), 46) if any(data[at : at + 46]))


@pytest.mark.process
@pytest.mark.parametrize("gone", ["the last entry", "the directory"])
@pytest.mark.parametrize("crashed", [True, False])
def test_a_batch_queue_that_lacks_entries_is_completed(copy_of: Golden, gone: str, crashed: bool) -> None:
    root = copy_of("batchcq-5.5.0")
    topic = sorted((root / "batchconsumequeue").iterdir())[0]
    queue = sorted(directory for directory in topic.iterdir() if any(directory.iterdir()))[0]
    rows = rows_by_queue(root)
    if crashed:
        (root / "abort").write_text("4711")  # the broker's process id
    else:
        shutil.rmtree(root / "consumequeue", ignore_errors=True)  # else no commit looks at batch queues
    if gone == "the directory":
        shutil.rmtree(topic)
    else:
        path, at = _last_unit(queue)
        data = path.read_bytes()
        path.write_bytes(data[:at] + bytes(46) + data[at + 46 :])
    append(root, numbered("T", 0, 3), options=_options("batchcq-5.5.0"))
    assert {key: found for key, found in rows_by_queue(root).items() if key[0] != "T"} == rows

"""Stores that a recovery has to complete, for `tests/support/failing_service.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

from store_format.index.file import open_index_files
from tests.support import goldens
from tests.support.staged import make_store, numbered
from tests.support.waiting import append


def make_lost(root: Path) -> None:
    """A clean store without a queue, without the last files of another, and without two index files."""
    make_store(root)
    append(root, [*numbered("T", 0, 400), *numbered("U", 400, 30, queues=2)])
    shutil.rmtree(root / "consumequeue/T/1")
    shutil.rmtree(root / "consumequeue/U/0")
    for path in sorted((root / "consumequeue/T/2").iterdir())[-3:]:
        path.unlink()
    for path in sorted((root / "index").iterdir())[1:3]:
        path.unlink()


def make_crashed(root: Path) -> None:
    """A store that a broker's crash left, whose batch queues, a queue and an index file were lost since."""
    goldens.unpack("batchcq-5.5.0", root)
    for name in ("timerwheel", "rocksdbstore"):
        path = root / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (root / "rocksdbstore").mkdir()
    for directory in sorted((root / "batchconsumequeue").glob("*/*"))[1:]:
        shutil.rmtree(directory)
    shutil.rmtree(root / "consumequeue/Simple/0")
    sorted((root / "index").iterdir())[-1].unlink()
    (root / "abort").touch()


def run_recover(root: str) -> None:
    from rmq_spark.services import recover

    recover(root).apply()


def files_seen(root: str) -> object:
    """The bytes of the queues, the entries of the index, what is left of the work, and the clean state."""
    folders = ("consumequeue", "batchconsumequeue")
    paths = [path for folder in folders for path in sorted(Path(root, folder).rglob("*")) if path.is_file()]
    queues = [(str(path.relative_to(root)), path.read_bytes()) for path in paths]
    index = [(file.units().tobytes(), file.slots().tobytes()) for file in open_index_files(f"{root}/index")]
    return queues, index, Path(root, ".rmqlog/rebuild").exists(), Path(root, "abort").exists()

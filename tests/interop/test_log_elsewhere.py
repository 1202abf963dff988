"""A commitlog outside of its store has an id in a file beside the directory, which no broker opens."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_format.bookkeeping.identity import LogPlace
from store_format.commit.options import CommitOptions
from tests.interop.harness import RocketMQ
from tests.interop.programs import ProgramError
from tests.interop.versions import NEW
from tests.support.staged import append, make_store, numbered


@pytest.mark.parametrize("version", NEW)
def test_an_id_beside_the_commitlog_stops_no_broker(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, version: str
) -> None:
    root, log = make_store(tmp_path / "store"), tmp_path / "log"
    shutil.move(root / "commitlog", log)
    append(root, numbered("T", 0, 300), options=CommitOptions(log_directories=(str(log),)))
    for path in (log, Path(LogPlace.id_path(str(log)))):
        path.rename(root / path.name.replace("log", "commitlog", 1))
    assert (root / "commitlog.rmqlog-id").exists()
    assert len(rocketmq(version).open_store(root, start=True).messages) == 300


def test_a_directory_in_the_commitlog_stops_a_broker_of_4_9(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    """MappedFileQueue.doLoad of 4.9 compares the length of everything there. 5.x passes over directories."""
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 300))
    (root / "commitlog" / ".rmqlog").mkdir()
    assert len(rocketmq("5.5.0").open_store(root).messages) == 300
    with pytest.raises(ProgramError, match=r"commitlog/\.rmqlog.*length not matched"):
        rocketmq("4.9.7").open_store(root)

"""Consume queue extensions cleaned as RocketMQ cleans them; a broker that goes on after our cleaning."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.services import clean, run_once
from store_format.commit.options import CommitOptions
from store_format.metadata.read import BrokerConf
from tests.interop.harness import RocketMQ
from tests.support.staged import append, make_store, numbered, rows_by_queue

_HOUR_MS = 3_600_000
_ALWAYS = ";".join(f"{hour:02d}" for hour in range(24))
_KINDS = ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "timerlog")


_CONFIG = {
    "fileReservedTime": "2",
    "cleanFileForciblyEnable": "true",
    "deleteCommitLogFilesInterval": "1",
    "deleteConsumeQueueFilesInterval": "1",
}


def _files(root: Path) -> list[str]:
    return sorted(
        str(path.relative_to(root)) for kind in _KINDS for path in (root / kind).rglob("*") if path.is_file()
    )


def _aged(root: Path, hours: list[int], rest: int) -> None:
    """The nth commitlog file was written `hours[n]` hours ago, each later one `rest` hours."""
    now = time.time_ns() // 1_000_000
    for number, file in enumerate(sorted((root / "commitlog").iterdir())):
        age = hours[number] if number < len(hours) else rest
        os.utime(file, ns=(0, (now - age * _HOUR_MS - 60_000) * 1_000_000))


@pytest.mark.whole
def test_the_extensions_of_consume_queues_are_left_alike(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    """A broker rebuilds the queues, with extensions of small files, before both clean."""
    theirs, mine = make_store(tmp_path / "theirs"), tmp_path / "mine"
    append(theirs, numbered("T", 0, 1000, body_size=100))
    shutil.rmtree(theirs / "consumequeue")
    (theirs / "checkpoint").unlink()
    (theirs / "abort").touch()
    extended = {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "1000"}
    config = _CONFIG | extended | {"commitLogRecoverMaxNum": "1000", "deleteWhen": _ALWAYS}
    rocketmq("5.5.0").open_store(theirs, config, start=True)
    _aged(theirs, [3] * 6, 0)
    shutil.copytree(theirs, mine)
    before = _files(mine)
    rocketmq("5.5.0").clean({theirs: config}, 1)
    conf = BrokerConf.of(config, "the test")
    clean.plan(str(mine), None, conf, is_manual=True, disk_percent=lambda path: 10).apply()
    assert _files(mine) == _files(theirs)
    deleted = [file for file in before if file not in _files(mine)]
    assert sum(file.startswith("consumequeue_ext") for file in deleted) > 4


def test_a_broker_takes_over_after_a_flush_and_a_cleaning_of_ours(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("T", 0, 1000, body_size=100), options=CommitOptions(sync=False))
    _aged(root, [3, 3, 3, 3, 3], 0)
    run_once(str(root), ["flush"], apply=True)
    clean.plan(str(root), file_reserved_hours=2, is_manual=True, disk_percent=lambda path: 10).apply()
    ours = {key: (rows[0][0], rows[-1][0] + 1, len(rows)) for key, rows in rows_by_queue(root).items()}
    before = _files(root)
    broker = rocketmq("5.5.0")
    found = broker.open_store(root, start=True).queues
    assert {(q["topic"], q["queueId"]): (q["minOffset"], q["maxOffset"], q["rows"]) for q in found} == ours
    assert all(first > 0 for first, *_ in ours.values())
    assert _files(root) == before
    logs = [path.read_text() for path in broker.directory.rglob("log")]
    assert any(f"last shutdown normally, store path root dir: {root}" in text for text in logs)

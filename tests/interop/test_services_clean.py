"""Cleaning: the store classes of RocketMQ and our service leave the same files.

The disk of the test cannot be filled. RocketMQ is told of several replicas on one disk instead, so many that
the share of each is full; ours is told the percentage. In the cases `disk` both sides look at the disk of the
test, whose use other programs change meanwhile. So their ratio is the lowest that RocketMQ accepts (10,
forcibly 30) if the use at the start is at least 10 percentage points above it, else 60. 4.9 has neither
replicas nor the setting of the forcible ratio.
`compaction` and `rocksdbstore` are no files of messages, and a start of RocketMQ creates files there.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rmq_spark.services import clean
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.files.read import files_at
from store_format.metadata.read import BrokerConf
from tests.interop.harness import RocketMQ
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered

_ROUNDS = 2
_HOUR = 3600
_ALWAYS = ";".join(f"{hour:02d}" for hour in range(24))
_FULL = {"replicasPerDiskPartition": "100000000"}  # logicalRatio is far above 1


@dataclass(frozen=True)
class Case:
    """`ages` are hours since the last write of the commitlog files from the oldest on; the rest is young.

    `percent` is what our service is told, None for the disk itself; `full` has the settings by which RocketMQ
    decides the same.
    """

    golden: str | None
    ages: tuple[int, ...]
    settings: dict[str, str]
    percent: int | None
    full: dict[str, str]
    deleted: int  # commitlog files; -1: all but the last
    versions: tuple[str, ...] = ("5.5.0",)


def _never() -> str:
    return f"{(time.localtime().tm_hour + 12) % 24:02d}"


_BOTH = ("5.5.0", "4.9.7")
_THREE = {"deleteWhen": _ALWAYS, "fileReservedTime": "2", "deleteFileBatchMax": "3"}
_FORCED = {"cleanFileForciblyEnable": "true"}
_UNFORCED = _FULL | {"logicalDiskSpaceCleanForciblyThreshold": "1e300"}
_CASES = {
    # by time: in the hour of deleteWhen, ten files a round, up to the first young one
    "time": Case(None, (100,) * 14 + (1, 100), {"deleteWhen": _ALWAYS}, 50, {}, 14, _BOTH),
    "three": Case(None, (3,) * 8 + (1, 3), _THREE, 50, {}, 6),
    "batches": Case(None, (100,) * 25, {"deleteWhen": _ALWAYS}, 50, {}, 20, _BOTH),
    "all-old": Case(None, (100,) * 99, {"deleteWhen": _ALWAYS, "deleteFileBatchMax": "50"}, 50, {}, -1),
    "hour": Case(None, (100,) * 14, {}, 50, {}, 0, _BOTH),
    # by ratio: above diskMaxUsedSpaceRatio old files at any hour, above the forcible ratio young ones too
    "ratio": Case(None, (100,) * 3, {}, 78, _UNFORCED, 3),
    "forced": Case(None, (), _FORCED, 86, _FULL, 20),
    "not-forced": Case(None, (100,), {"cleanFileForciblyEnable": "false"}, 86, _FULL, 1),
    "cleaned-5.5.0": Case("cleaned-5.5.0", (100, 100, 100), {"deleteWhen": _ALWAYS}, 50, {}, 3),
    "basic-5.5.0": Case("basic-5.5.0", (), _FORCED, 86, _FULL, -1),
}


def _disk_cases(directory: Path) -> dict[str, Case]:
    used = files_at(str(directory)).disk_space(str(directory)).used_percent
    ratio, forced = (low if used >= low + 10 else 60 for low in (10, 30))
    at_ratio = {"diskMaxUsedSpaceRatio": str(ratio)}
    at_forced = _FORCED | {"diskSpaceCleanForciblyRatio": str(forced)}
    return {
        "disk": Case(None, (100,) * 3, at_ratio, None, {}, 3 if used > ratio else 0),
        "disk-forced": Case(None, (100,), at_forced, None, {}, 20 if used > forced else 0),
    }


@pytest.mark.parametrize("version", _BOTH)
def test_the_same_files_survive(
    rocketmq: Callable[[str], RocketMQ], golden: Golden, tmp_path: Path, version: str
) -> None:
    written, now = _many_files(tmp_path / "written"), time.time()
    theirs: dict[Path, dict[str, str]] = {}
    before = {}
    every = _CASES | _disk_cases(tmp_path)
    cases = {name: case for name, case in every.items() if version in case.versions}
    for name, case in cases.items():
        for side in ("broker", "ours"):
            store = tmp_path / side / name
            shutil.copytree(golden(case.golden) if case.golden else written, store)
            _age(store, case.ages, now)
        theirs[tmp_path / "broker" / name] = _settings(case) | case.full | _NO_PAUSES
        before[name] = len(list((store / "commitlog").iterdir()))
    ends = rocketmq(version).clean(theirs, _ROUNDS)
    for name, case in cases.items():
        store = tmp_path / "ours" / name
        _clean(store, case, now)
        assert _files(store) == _files(tmp_path / "broker" / name), name
        deleted = before[name] - len(list((store / "commitlog").iterdir()))
        assert deleted == (before[name] - 1 if case.deleted < 0 else case.deleted), name
        if version == "4.9.7":
            continue  # it keeps the old minimum of a queue whose entries have all expired
        assert _ends(store) == {
            (line["topic"], line["queueId"]): (line["minOffset"], line["maxOffset"])
            for line in ends[tmp_path / "broker" / name]
            if line["maxOffset"]
        }, name


def _clean(store: Path, case: Case, now: float) -> None:
    """Our cleaning, as often as RocketMQ's."""
    percent = case.percent
    disk = None if percent is None else lambda _: percent
    for _ in range(_ROUNDS):
        conf = BrokerConf.of(_settings(case), "test")
        clean.plan(str(store), int(now * 1000), conf, disk_percent=disk).apply()


def _settings(case: Case) -> dict[str, str]:
    given = goldens.config(case.golden) if case.golden else _SIZES
    return given | {"deleteWhen": _never(), "fileReservedTime": "72"} | case.settings


_SIZES = {
    "mappedFileSizeCommitLog": str(1 << 14),
    "mappedFileSizeConsumeQueue": str(20 * 100),
    "maxHashSlotNum": "50",
    "maxIndexNum": "800",
    "cleanFileForciblyEnable": "false",
}
_NO_PAUSES = {"deleteCommitLogFilesInterval": "0", "deleteConsumeQueueFilesInterval": "0"}


def _many_files(root: Path) -> Path:
    """More than 30 commitlog files, with queues of several files and index files; one topic ends early."""
    make_store(root, StoreSettings("broker-a", 1 << 14, 20 * 100, 50, 800))
    now = time.time_ns() // 1_000_000
    for number, topic in enumerate(["Old", *["T"] * 12]):
        options = CommitOptions(sync=False, clock=lambda: now)
        append(root, numbered(topic, number * 200, 200), options=options)
    MessageStore.open(str(root)).flush()
    return root


def _age(store: Path, hours: tuple[int, ...], now: float) -> None:
    files = sorted((store / "commitlog").iterdir())
    for index, file in enumerate(files):
        age = hours[index] if index < len(hours) else 1
        os.utime(file, (now - age * _HOUR, now - age * _HOUR))


def _files(store: Path) -> dict[str, int]:
    """The files of messages, queues and index, with their lengths."""
    folders = ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "timerlog")
    found = [path for folder in folders for path in (store / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(store)): path.stat().st_size for path in found}


def _ends(store: Path) -> dict[tuple[str, int], tuple[int, int]]:
    queues = MessageStore.open(str(store)).queues()
    return {
        (each.topic, each.queue_id): (each.min_offset, each.max_offset) for each in queues if each.max_offset
    }

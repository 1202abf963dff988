"""What retention does next, by age, hour and disk: the files that `clean` deletes, and who loses what."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from rmq_spark.broker.services.clean import LOSS_COLUMNS, Forecast, forecast
from rmq_spark.services import clean
from store_format.files.paths import DiskSpace
from store_format.metadata.read import BrokerConf
from store_format.store import MessageStore
from tests.support.fixtures import Golden

HOUR = 3_600_000
NOW = 1_795_244_400_000  # 2026-11-21T07:00:00Z
COUNT = 7  # commitlog files, modified an hour apart, the last one at NOW


@pytest.fixture(scope="module")
def store(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> MessageStore:
    root = Path(shutil.copytree(golden("cleaned-5.5.0"), tmp_path_factory.mktemp("aged") / "store"))
    files = sorted((root / "commitlog").iterdir(), reverse=True)
    assert len(files) == COUNT
    for age, file in enumerate(files):
        os.utime(file, ns=(0, (NOW - age * HOUR) * 1_000_000))
    return MessageStore.open(str(root))


def _disk(percent: int) -> Callable[[str], DiskSpace]:
    return lambda path: DiskSpace("/", 100 << 30, (100 - percent) << 30, percent)


def _next(
    store: MessageStore, percent: int = 50, now: int = NOW, zone: tzinfo = UTC, **settings: Any
) -> Forecast:
    conf = replace(BrokerConf(), **settings)
    return forecast(store, conf, now, zone, _disk(percent))


def _rows(found: Forecast) -> list[dict[str, Any]]:
    names = [column.name for column in LOSS_COLUMNS]
    return [dict(zip(names, row, strict=True)) for row in found.losses()]


@pytest.mark.parametrize(
    ("percent", "level"),
    [(75, "normal"), (76, "clean"), (85, "clean"), (86, "force"), (90, "force"), (91, "full")],
)
def test_the_levels_are_those_of_rocketmq(store: MessageStore, percent: int, level: str) -> None:
    assert _next(store, percent).level == level
    assert _next(store, percent).disk.used_percent == percent


def test_the_fuller_disk_counts(store: MessageStore) -> None:
    def disk(path: str) -> DiskSpace:
        return _disk(92 if path.endswith("/consumequeue") else 10)(path)

    found = forecast(store, BrokerConf(), NOW, UTC, disk)
    assert (found.level, found.disk.used_percent) == ("full", 92)


def test_files_go_in_the_hour_after_their_time_is_over(store: MessageStore) -> None:
    found = _next(store)  # the oldest file expires at 01:00 on the 24th
    assert found.deletion_ms == _ms(2026, 11, 24, 4)
    assert len(found.files) == 4
    assert {row["deletionTimestamp"] for row in _rows(found)} == {_ms(2026, 11, 24, 4) * 1000}
    short = _next(store, file_reserved_hours=3, delete_when=(9, 22))
    assert (short.deletion_ms, len(short.files)) == (_ms(2026, 11, 21, 9), 6)
    now = _next(store, file_reserved_hours=3, delete_when=(7,))
    assert (now.deletion_ms, len(now.files)) == (NOW, 4)
    # In the hour itself a file goes when its time is over.
    during = _next(store, now=NOW - 5 * 60_000, file_reserved_hours=7, delete_when=(6, 7, 8))
    assert (during.deletion_ms, len(during.files)) == (NOW + HOUR, 1)


def test_the_hour_is_that_of_a_zone(store: MessageStore) -> None:
    for zone in (timezone(timedelta(hours=8)), ZoneInfo("Asia/Shanghai")):
        assert _next(store, zone=zone).deletion_ms == _ms(2026, 11, 24, 20)
    half = timezone(timedelta(hours=5, minutes=30))
    assert _next(store, zone=half).deletion_ms == _ms(2026, 11, 24, 22) + HOUR // 2


def test_a_changed_clock_is_no_lost_hour(store: MessageStore) -> None:
    # On 2027-03-28 the clocks of Berlin have no hour 02.
    late = int(datetime(2027, 3, 27, 12, tzinfo=UTC).timestamp() * 1000)
    found = _next(store, now=late, zone=ZoneInfo("Europe/Berlin"), delete_when=(3,))
    assert found.deletion_ms == _ms(2027, 3, 28, 1)


def test_above_75_percent_no_hour_is_waited_for(store: MessageStore) -> None:
    found = _next(store, 80, file_reserved_hours=4)
    assert (found.deletion_ms, len(found.files)) == (NOW, 3)
    young = _next(store, 80)
    assert (young.deletion_ms, len(young.files)) == (_ms(2026, 11, 24, 1), 1)


def test_above_85_percent_files_of_any_age_go(store: MessageStore) -> None:
    found = _next(store, 86, delete_file_batch_max=2)
    assert (found.deletion_ms, len(found.files)) == (NOW, 2)
    assert found.gate.is_forced
    gentle = _next(store, 86, clean_file_forcibly_enable=False)
    assert (gentle.deletion_ms, len(gentle.files)) == (_ms(2026, 11, 24, 1), 1)
    soonest = _rows(found)[0]
    assert soonest["deletionInMs"] == 0
    assert soonest["nextLostMessages"] > 0
    # Only the loss in the first two files is at once.
    assert sum(row["nextLostMessages"] for row in _rows(found)) < sum(
        row["nextLostMessages"] for row in _rows(_next(store))
    )


@pytest.mark.parametrize(("percent", "hours"), [(50, 0), (50, 3), (80, 4), (86, 72), (92, 72)])
def test_the_files_are_those_that_clean_deletes(store: MessageStore, percent: int, hours: int) -> None:
    found = _next(store, percent, file_reserved_hours=hours, delete_when=(7,))
    plan = clean.plan(
        store.path, NOW, replace(BrokerConf(), delete_when=(7,)), file_reserved_hours=hours, zone=UTC,
        disk_percent=lambda path: percent,
    )  # fmt: skip
    assert found.deletion_ms == NOW
    assert found.files == plan.log_files
    unread: dict[tuple[str, str], int] = {}
    for row in plan.unread().to_pylist():
        if row["group"] is not None:
            pair = (row["group"], row["topic"])
            unread[pair] = unread.get(pair, 0) + row["messages"]
    losses = {(row["group"], row["topic"]): row for row in _rows(found) if row["deletionInMs"] == 0}
    assert {pair: row["nextLostMessages"] for pair, row in losses.items()} == unread != {}


def test_a_time_beyond_the_calendar_is_no_error(store: MessageStore) -> None:
    found = _next(store, file_reserved_hours=70_000_000)
    assert found.deletion_ms == NOW - (COUNT - 1) * HOUR + 70_000_000 * HOUR
    assert {row["deletionTimestamp"] for row in _rows(found)} == {None}
    assert {row["deletionInMs"] for row in _rows(found)} == {found.deletion_ms - NOW}


def test_one_file_is_never_deleted(golden: Golden) -> None:
    found = _next(MessageStore.open(str(golden("edge-5.5.0"))), 92)
    assert (found.deletion_ms, found.files) == (None, ())
    assert _rows(found) == []


def _ms(year: int, month: int, day: int, hour: int) -> int:
    return int(datetime(year, month, day, hour, tzinfo=UTC).timestamp() * 1000)

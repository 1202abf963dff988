"""Cleaning: a broker's decisions, the files that follow the commitlog, and what a real broker left."""

from __future__ import annotations

import datetime
import os
import shutil
import signal
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rmq_spark.broker.services.clean import CleanService, Gate, gate
from rmq_spark.broker.services.service import Now
from rmq_spark.services import clean, run_once
from store_format import MessageStore
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.expiry import ExpiredFile
from store_format.commit.options import CommitOptions
from store_format.diagnose import diagnose
from store_format.errors import OptionError, StoreInUseError, StoreWriteError
from store_format.layouts import BATCH_CQ_UNIT, CQ_UNIT, TIMER_LOG_UNIT, pack
from store_format.metadata.read import BrokerConf
from store_format.opened.store import Opened
from store_format.read.store import Store
from store_format.views.retention import unread_before
from tests.support import goldens
from tests.support.failing_writer import Failure, install
from tests.support.fixtures import Golden
from tests.support.fork_server import ForkServer
from tests.support.staged import append, make_store, numbered, rows_by_queue
from tests.support.writes import held

HOUR = 3_600_000
NOW = 1_800_000_000_000
CLEANED = "cleaned-5.5.0"


def conf(**settings: object) -> BrokerConf:
    return BrokerConf.of({"fileReservedTime": "72"} | {n: str(v) for n, v in settings.items()}, "test")


def empty(path: str) -> int:
    """A disk with much room."""
    return 10


def planned(
    root: Path, now_ms: int = NOW, *, is_manual: bool = True, percent: int = 10, **settings: object
) -> clean.CleanPlan:
    return clean.plan(
        str(root), now_ms, conf(**settings), is_manual=is_manual, zone=datetime.UTC,
        disk_percent=lambda path: percent,
    )  # fmt: skip


def written(root: Path, ages: Mapping[int, int], *, rest: int = 0, now_ms: int = NOW) -> list[Path]:
    """Dates the commitlog files: the nth was written `ages[n]` hours ago, each other `rest` hours."""
    files = sorted((root / "commitlog").iterdir())
    for number, file in enumerate(files):
        moment = now_ms - ages.get(number, rest) * HOUR
        os.utime(file, ns=(0, moment * 1_000_000))
    return files


def names(root: Path) -> dict[str, set[str]]:
    """The file names by directory, of all that retention may delete."""
    found: dict[str, set[str]] = {}
    for kind in ("commitlog", "consumequeue", "consumequeue_ext", "batchconsumequeue", "index", "timerlog"):
        for path in (root / kind).rglob("*"):
            if path.is_file():
                found.setdefault(str(path.parent.relative_to(root)), set()).add(path.name)
    return found


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of our own with many commitlog files of 16 KiB, several files a queue, and index files."""
    root = make_store(tmp_path_factory.mktemp("full") / "store")
    append(root, numbered("T", 0, 900, body_size=100))
    assert len(list((root / "commitlog").iterdir())) > 12
    return root


@pytest.fixture
def grown(full: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(full, tmp_path / "store"))


# ---- the broker's decisions --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "hour", "disks", "manual", "is_open", "is_forced"),
    [
        ({}, 4, (10, 10), False, True, False),
        ({}, 5, (10, 10), False, False, False),
        ({"deleteWhen": "04;05"}, 5, (10, 10), False, True, False),
        ({}, 5, (75, 75), False, False, False),  # above, not at
        ({}, 5, (76, 10), False, True, False),
        ({}, 5, (10, 76), False, True, False),  # the disk of the consume queues counts too
        ({}, 5, (85, 85), False, True, False),
        ({}, 5, (86, 10), False, True, True),
        ({}, 5, (10, 86), False, True, True),
        ({}, 5, (91, 10), False, True, True),
        ({"cleanFileForciblyEnable": "false"}, 5, (99, 99), False, True, False),
        ({"diskSpaceCleanForciblyRatio": 99}, 5, (86, 10), False, True, True),  # clamped to 85
        ({"diskSpaceCleanForciblyRatio": 1}, 5, (31, 10), False, True, True),  # clamped to 30
        ({"diskSpaceCleanForciblyRatio": 1}, 5, (30, 10), False, False, False),
        ({"diskSpaceWarningLevelRatio": 40}, 5, (41, 10), False, True, True),
        ({"diskMaxUsedSpaceRatio": 20}, 5, (21, 10), False, True, False),
        ({}, 4, (86, 10), False, True, True),
        ({}, 5, (10, 10), True, True, False),
        ({}, 5, (86, 10), True, True, True),
    ],
)
def test_the_order_of_the_decisions(
    settings: dict[str, object],
    hour: int,
    disks: tuple[int, int],
    manual: bool,
    is_open: bool,
    is_forced: bool,
) -> None:
    found = gate(conf(**settings), hour, *disks, is_manual=manual)
    assert (found.is_open, found.is_forced) == (is_open, is_forced)
    assert found.reason


@pytest.mark.parametrize(
    ("ages", "forced", "batch", "count"),
    [
        ([], False, 10, 0),
        ([72, 71], False, 10, 1),  # at the moment of expiry
        ([71, 99, 99], False, 10, 0),  # stops at the first young file
        ([99] * 30, False, 10, 10),
        ([0] * 30, True, 10, 10),  # age does not count
        ([0] * 3, True, 10, 3),
        ([99] * 5, False, 2, 2),
    ],
)
def test_how_many_files_one_round_deletes(ages: list[int], forced: bool, batch: int, count: int) -> None:
    modified = [NOW - age * HOUR for age in ages]
    assert ExpiredFile.count(modified, NOW, 72 * HOUR, is_forced=forced, batch_max=batch) == count
    if modified and count == 1:
        assert not ExpiredFile.count(modified, NOW - 1, 72 * HOUR, is_forced=forced, batch_max=batch)


def test_no_default_deletes_files(grown: Path, tmp_path: Path) -> None:
    for run in (
        lambda: clean.plan(str(grown), NOW),
        lambda: run_once(str(grown), ["clean"], NOW, apply=True),
    ):
        with pytest.raises(OptionError, match=r"explicit fileReservedTime.*--broker-conf") as caught:
            run()
        # the turn of a service takes no argument of hours
        assert ("file_reserved_hours" in str(caught.value)) is ("plan" in run.__code__.co_names)
    with pytest.raises(OptionError, match="fileReservedTime: expected hours, at least 0, found -1"):
        planned(grown, fileReservedTime=-1)
    file = tmp_path / "broker.conf"
    file.write_text("fileReservedTime=5\n")
    assert clean.plan(str(grown), NOW, str(file)).reserved_ms == 5 * HOUR
    assert clean.plan(str(grown), NOW, file_reserved_hours=6).reserved_ms == 6 * HOUR
    with (grown / ".rmqlog" / "broker.conf").open("a") as own:
        own.write("fileReservedTime=7\n")
    assert clean.plan(str(grown), NOW).reserved_ms == 7 * HOUR


# ---- which files go ----------------------------------------------------------------------------------------


def test_expired_files_go_oldest_first_up_to_the_first_young_one(grown: Path) -> None:
    files = written(grown, {0: 72, 1: 100, 2: 71, 3: 100})
    plan = planned(grown)
    assert [each.path for each in plan.log_files] == [str(files[0]), str(files[1])]
    assert (plan.gate.is_open, plan.late_ms, plan.log_min) == (True, 0, int(files[2].name))
    assert planned(grown, NOW - 1).due == 0, "not one millisecond before"
    assert plan.table()["reason"].to_pylist()[:2] == ["expired", "expired"]
    assert files[0].exists(), "a plan deletes nothing"
    assert plan.apply() == plan.due > 2
    assert sorted((grown / "commitlog").iterdir()) == files[2:]
    assert planned(grown).due == 0


def test_the_last_file_stays_and_an_empty_one_behind_does_not_count(grown: Path) -> None:
    files = written(grown, {}, rest=200)
    last = files[-1]
    prepared = last.with_name(f"{int(last.name) + last.stat().st_size:020d}")  # as a broker makes ahead
    prepared.write_bytes(bytes(last.stat().st_size))
    os.utime(prepared, ns=(0, 0))
    plan = planned(grown)
    assert [Path(each.path) for each in plan.log_files] == files[:-1]
    plan.apply()
    assert sorted((grown / "commitlog").iterdir()) == [last, prepared]
    kept = rows_by_queue(grown)
    assert kept
    assert planned(grown).due == 0
    append(grown, numbered("T", 900, 40))
    assert sum(map(len, rows_by_queue(grown).values())) == sum(map(len, kept.values())) + 40


def test_a_nearly_full_disk_takes_young_files_ten_a_round(grown: Path) -> None:
    files = written(grown, {})
    plan = planned(grown, percent=86)
    assert [Path(each.path) for each in plan.log_files] == files[:10]
    assert set(plan.table()["reason"].to_pylist()) == {"disk", "log"}
    assert plan.late_ms is None
    assert planned(grown, percent=86, deleteFileBatchMax=2).log_files == plan.log_files[:2]
    assert not planned(grown, percent=86, cleanFileForciblyEnable="false").due
    mixed = written(grown, {0: 80})
    assert planned(grown, percent=86).table()["reason"].to_pylist()[:2] == ["expired", "disk"]
    assert not planned(grown, is_manual=False, percent=75).due, mixed


def test_a_request_takes_more_than_one_round_of_expired_files(grown: Path) -> None:
    files = written(grown, {}, rest=80)
    assert len(planned(grown).log_files) == len(files) - 1 > 10
    night = NOW - NOW % (24 * HOUR) + 4 * HOUR
    written(grown, {}, rest=80, now_ms=night)
    assert len(planned(grown, night, is_manual=False).log_files) == 10
    assert not planned(grown, night + HOUR, is_manual=False).due
    eastern = datetime.timezone(datetime.timedelta(hours=-1))
    plan = clean.plan(str(grown), night + HOUR, conf(), zone=eastern, disk_percent=empty)
    assert len(plan.log_files) == 10, "deleteWhen is local time"


def test_what_stays_is_read_as_before_and_a_writer_goes_on(grown: Path) -> None:
    before = rows_by_queue(grown)
    written(grown, {0: 80, 1: 80, 2: 80})
    plan = planned(grown)
    plan.apply()
    kept = {key: [row for row in rows if row[1] >= plan.log_min] for key, rows in before.items()}
    assert rows_by_queue(grown) == kept
    assert [str(each) for each in diagnose(str(grown)) if each.severity != "info"] == []
    append(grown, numbered("T", 900, 8), key=("after", 1))
    assert {key: len(rows) for key, rows in rows_by_queue(grown).items()} == {
        key: len(rows) + 2 for key, rows in kept.items()
    }


def test_several_directories_of_the_commitlog(grown: Path, tmp_path: Path) -> None:
    written(grown, {0: 80, 1: 80, 2: 80})
    other = tmp_path / "second"
    other.mkdir()
    for number, file in enumerate(sorted((grown / "commitlog").iterdir())):
        if number % 2:
            shutil.move(file, other / file.name)
    paths = (str(grown / "commitlog"), str(other))
    asked: list[str] = []

    def percent(path: str) -> int:
        asked.append(path)
        return 99 if path == paths[0] else 10

    plan = clean.plan(str(grown), NOW, conf(), is_manual=True, disk_percent=percent, commit_log_paths=paths)
    assert not plan.gate.is_forced, "the emptiest directory counts"
    assert asked == [*paths, str(grown / "consumequeue")]
    assert [Path(each.path).parent for each in plan.log_files] == [
        grown / "commitlog", other, grown / "commitlog",
    ]  # fmt: skip
    assert plan.apply() == plan.due
    assert Store.open(str(grown), commit_log_paths=paths).log.min_offset == plan.log_min


def test_a_plan_that_is_too_old_and_a_store_in_use_are_refused(grown: Path) -> None:
    files = written(grown, {0: 80, 1: 80})
    plan = planned(grown)
    os.utime(files[1], ns=(0, NOW * 1_000_000))
    with pytest.raises(StoreWriteError, match="the commitlog is not as the plan saw it"):
        plan.apply()
    assert files[0].exists()
    written(grown, {0: 80, 1: 80})
    with held(grown), pytest.raises(StoreInUseError):
        planned(grown).apply()
    assert files[0].exists()


# ---- what follows the commitlog ----------------------------------------------------------------------------


def test_a_store_as_before_the_broker_s_cleaning_becomes_what_the_broker_left(
    golden: Golden, copy_of: Golden
) -> None:
    """The golden's missing files are made again: what they held is gone, what pointed to what is known."""
    root = copy_of(CLEANED)
    wanted = names(root)
    log_min = min(int(name) for name in wanted["commitlog"])
    written(root, {})
    for start in range(0, log_min, 65536):
        (root / "commitlog" / f"{start:020d}").write_bytes(
            struct.pack(">ii", 65536, 0xCBD43194 - 2**32).ljust(65536, b"\0")
        )
        os.utime(root / "commitlog" / f"{start:020d}", ns=(0, 0))
    made = 0
    for directory, there in wanted.items():
        if directory.startswith("consumequeue/"):
            for start in range(0, min(map(int, there)), 400):
                units = [(log_min * (start // 20 + i) // 10_000, 100, 0) for i in range(20)]
                (root / directory / f"{start:020d}").write_bytes(np.array(units, CQ_UNIT).tobytes())
                made += 1
    first = min(wanted["index"])
    header = bytearray((root / "index" / first).read_bytes())
    struct.pack_into(">q", header, 24, log_min - 1)
    (root / "index" / "20200101000000000").write_bytes(header)
    assert made > 15
    assert names(root) != wanted
    plan = planned(root)
    assert len(plan.log_files) == 3
    plan.apply()
    assert names(root) == wanted
    queues = {(q["topic"], q["queueId"]): q["minOffset"] for q in goldens.expected(CLEANED)["queues"]}
    store = MessageStore.open(str(root))
    assert {(q.topic, q.queue_id): q.min_offset for q in store.queues()} == queues


def test_the_broker_left_nothing_that_our_rules_delete(golden: Golden) -> None:
    root = golden(CLEANED)
    log_min = min(int(name) for name in names(root)["commitlog"])
    assert list(ExpiredFile.following(Opened(str(root)), log_min)) == []
    newest = {str(root / directory / max(there)) for directory, there in names(root).items()}
    assert not newest & {each.path for each in ExpiredFile.following(Opened(str(root)), 1 << 40)}


def test_batch_queues_extensions_and_timer_log(tmp_path: Path) -> None:
    root = tmp_path / "store"

    def write(directory: str, start: int, data: bytes) -> None:
        (root / directory).mkdir(parents=True, exist_ok=True)
        (root / directory / f"{start:020d}").write_bytes(data)

    def columns(layout: np.dtype[np.void], **given: list[int]) -> bytes:
        count = len(next(iter(given.values())))
        values = {n: np.zeros(count, np.int64) for n in layout.names or ()}
        return pack(layout, values | {n: np.array(v, np.int64) for n, v in given.items()}).tobytes()

    for number, last in enumerate((900, 1000, 2000)):
        units = columns(
            BATCH_CQ_UNIT, physical_offset=[last - 50, last], size=[50, 50],
            base_offset=[2 * number, 2 * number + 1], batch_size=[1, 1],
        )  # fmt: skip
        write("batchconsumequeue/B/0", 92 * number, units)
    for number, last in enumerate((900, 999, 1100, 2000)):  # an address every 32 bytes of the extension
        address = [-(1 << 63) + 64 * number, -(1 << 63) + 64 * number + 32]
        units = columns(CQ_UNIT, physical_offset=[last - 50, last], size=[50, 50], tags_code=address)
        write("consumequeue/T/0", 40 * number, units)
        write("consumequeue_ext/T/0", 64 * number, bytes(64))
    for number, last in enumerate((999, 1000, 1001)):
        timer = columns(TIMER_LOG_UNIT, size=[52, 52], magic=[1, 1], physical_offset=[last - 50, last])
        write("timerlog", 128 * number, timer.ljust(128, b"\0"))
    found = [(each.kind, each.start) for each in ExpiredFile.following(Opened(str(root)), 1000)]
    assert found == [
        ("consumequeue", 0), ("consumequeue", 40), ("consumequeue_ext", 0), ("batchconsumequeue", 0),
        ("timerlog", 0),
    ]  # fmt: skip
    kept = [(each.kind, each.start) for each in ExpiredFile.following(Opened(str(root)), 1 << 40)]
    assert ("consumequeue", 120) not in kept
    assert [start for kind, start in kept if kind == "timerlog"] == [0, 128]


@pytest.mark.parametrize("linked", ["T", "T/0"])
def test_an_extension_behind_a_link_is_left_alone(
    grown: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, linked: str
) -> None:
    other = tmp_path / "other"
    (other / "0").mkdir(parents=True)
    files = [directory / f"{64 * number:020d}" for directory in (other, other / "0") for number in range(3)]
    for file in files:
        file.write_bytes(bytes(64))
    for file in (grown / "consumequeue/T/0").iterdir():  # every unit has an address behind these files
        units = np.fromfile(file, CQ_UNIT)
        units["tags_code"] = -(1 << 63) + (1 << 40)
        units.tofile(file)
    link = grown / "consumequeue_ext" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(other)
    written(grown, {0: 99, 1: 99, 2: 99})
    found = planned(grown)
    assert found.log_files
    assert {each.kind for each in found.followers} >= {"consumequeue"}
    found.apply()
    assert all(file.exists() for file in files)
    assert f"{link} at byte 0: expected a file or directory, found a symbolic link" in caplog.text


@pytest.mark.parametrize("kind", ["consumequeue", "index"])
def test_nothing_is_deleted_through_a_linked_directory(grown: Path, tmp_path: Path, kind: str) -> None:
    other = tmp_path / "other"
    written(grown, {0: 99, 1: 99, 2: 99})
    found = planned(grown)
    assert found.due
    (grown / kind).rename(other)
    (grown / kind).symlink_to(other)
    before = sorted(path for root in (grown, other) for path in root.rglob("*") if path.name != "lock")
    for act in (found.apply, lambda: planned(grown)):
        with pytest.raises(StoreWriteError, match=f"{kind}: expected a directory, .* link to {other}; clean"):
            act()
    after = sorted(path for root in (grown, other) for path in root.rglob("*") if path.name != "lock")
    assert after == before


def test_a_damaged_queue_is_left_alone_and_the_others_go_on(
    grown: Path, caplog: pytest.LogCaptureFixture
) -> None:
    written(grown, {0: 80, 1: 80, 2: 80, 3: 80, 4: 80, 5: 80})
    first = sorted((grown / "consumequeue" / "T" / "0").iterdir())[0]
    first.write_bytes(b"short")
    followers = planned(grown).followers
    assert {Path(each.path).parent.name for each in followers if each.kind == "consumequeue"} == {
        "1",
        "2",
        "3",
    }
    assert "retention passes over" in caplog.text


# ---- unread messages ---------------------------------------------------------------------------------------


def test_unread_messages_of_groups_are_counted(copy_of: Golden) -> None:
    root = copy_of(CLEANED)
    written(root, {0: 80, 1: 80})
    plan = planned(root)
    table = goldens.expected(CLEANED)["consumerOffset"]["offsetTable"]
    wanted = {}
    for key, offsets in table.items():
        topic, group = key.split("@")
        for queue_id, committed in offsets.items():
            count = sum(
                row["topic"] == topic and row["queueId"] == int(queue_id) and row["queueOffset"] >= committed
                and row["physicalOffset"] < plan.log_min
                for row in goldens.expected_rows(CLEANED)
            )  # fmt: skip
            if count:
                wanted[group, topic, int(queue_id)] = count
    rows = plan.unread().to_pylist()
    found = {(row["group"], row["topic"], row["queueId"]): row["messages"] for row in rows if row["group"]}
    assert found == wanted
    assert len(found) > 5


def test_what_a_broker_holds_back_is_counted_too(golden: Golden) -> None:
    store = Store.open(str(golden("delay-tx-5.5.0")))
    stop = store.log.stop
    views = MessageStore.open(store.path)
    waiting = [
        row
        for row in views.view("delayed", now_ms=NOW).to_pylist()
        if row["physicalOffset"] < stop and row["state"] in ("waiting", "due", "unknown")
    ]
    halves = [
        row
        for row in views.view("transactions", now_ms=NOW).to_pylist()
        if row["halfPhysicalOffset"] < stop and row["state"] == "pending"
    ]
    held_back = [row for row in unread_before(store, stop, NOW) if row[1] is None]
    assert sum(int(str(row[-1])) for row in held_back) == len(waiting) + len(halves)
    assert len(waiting) > 5
    assert len(halves) > 0


# ---- the service -------------------------------------------------------------------------------------------


def test_the_service_takes_one_round_at_every_interval(grown: Path) -> None:
    night = NOW - NOW % (24 * HOUR) + 4 * HOUR
    written(grown, {}, rest=80, now_ms=night)
    service = CleanService(zone=datetime.UTC, disk_percent=empty)
    settings = conf(cleanResourceInterval=10_000)

    def due(ms: int) -> tuple[int, int | None]:
        plan = service.plan(Store.open(str(grown)), Ledger(), Now(night + ms, settings))
        if plan.changes:
            plan.apply()
        return len(plan.log_files), None if plan.next_due is None else plan.next_due - night

    assert due(0) == (10, 10_000)
    assert due(9_999) == (0, 10_000), "waits for cleanResourceInterval, without sleeping"
    assert due(10_000)[0] > 0
    assert due(25_000) == (0, 35_000)


def test_run_once_cleans_if_it_is_named(grown: Path) -> None:
    files = written(grown, {0: 80})
    settings = conf(deleteWhen=";".join(map(str, range(24))), cleanFileForciblyEnable="false")
    assert (
        "clean"
        not in run_once(str(grown), None, NOW, broker_conf=settings, apply=True)["service"].to_pylist()
    )
    assert files[0].exists()
    (row,) = run_once(str(grown), ["clean"], NOW, broker_conf=settings, apply=True).to_pylist()
    assert (row["service"], row["lateMs"], row["done"] > 0) == ("clean", 8 * HOUR, True)
    assert not files[0].exists()
    assert isinstance(gate(settings, 0, 10, 10), Gate)


def _append_killed(grown: Path) -> None:
    install(Failure("kill", 40))
    append(grown, numbered("T", 900, 300), options=CommitOptions(clock=lambda: NOW))


def test_the_journal_of_a_crash_is_completed_before_files_are_deleted(grown: Path, forks: ForkServer) -> None:
    """Otherwise the next writer would not know which messages of the batch were written."""
    written(grown, {0: 80, 1: 80, 2: 80})
    before = [row for rows in rows_by_queue(grown).values() for row in rows]
    assert forks.run(_append_killed, grown).signal == signal.SIGKILL
    assert (grown / ".rmqlog" / "journal.json").exists()
    plan = planned(grown)
    plan.apply()
    assert not (grown / ".rmqlog" / "journal.json").exists()
    append(grown, numbered("T", 1200, 4))
    kept = sum(place >= plan.log_min for _, place in before)
    assert sum(map(len, rows_by_queue(grown).values())) == kept + 304 < len(before) + 304
    assert [str(each) for each in diagnose(str(grown)) if each.severity != "info"] == []

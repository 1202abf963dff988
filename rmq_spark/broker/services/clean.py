"""Retention: deletes the oldest files of a store by the rules of a broker, read by consumers or not.

A broker without a Spark job beside it does this every ten seconds (DefaultMessageStore.CleanCommitLogService,
ConsumeQueueStore.CleanConsumeQueueService). A log that only Spark writes grows until its disk is nearly full,
and then refuses writes. Deletion cannot be undone: `plan` shows first what would go, and which messages of
consumer groups are not read yet.

`forecast` tells what retention does next on a store, and what consumer groups lose by it; it deletes nothing.
"""

from __future__ import annotations

import datetime
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from rmq_spark.broker.services.service import Now, Tally, tallied
from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.expiry import ExpiredFile
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.commit.unsupported import StoreRefusals
from store_format.display.columns import BROKER, LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.errors import OptionError, StoreWriteError
from store_format.files.paths import DiskSpace
from store_format.files.read import files_at
from store_format.metadata.group_offsets import read_broker_offsets
from store_format.metadata.read import BrokerConf
from store_format.read.store import Store
from store_format.read.store_root import OtherFiles
from store_format.views.lag_by_topic import LAG_BY_TOPIC_COLUMNS, rows_with_losses
from store_format.views.retention import UNREAD_COLUMNS, deletion_ms, expiry_ms, local_hour, unread_before

_HOUR_MS = 3_600_000
_MANUAL_ROUNDS = 20  # CleanCommitLogService.MAX_MANUAL_DELETE_FILE_TIMES

CLEAN_COLUMNS = (
    BROKER,
    ViewColumn(
        "kind",
        TEXT,
        "`commitlog`, `consumequeue`, `batchconsumequeue`, `consumequeue_ext`, `index` or `timerlog`.",
    ),
    ViewColumn("file", TEXT, "The file, below the store root."),
    ViewColumn("sizeBytes", LONG, "The length of the file."),
    ViewColumn("diskBytes", LONG, "The room that the file takes on the disk."),
    ViewColumn("modified", TIME, "When the file was last written."),
    ViewColumn(
        "reason",
        TEXT,
        "`expired`: fileReservedTime is over; `disk`: the disk is nearly full, age does not count; `log`: "
        "the file only points to deleted messages.",
    ),
)


LOSS_COLUMNS = (
    BROKER,
    ViewColumn("group", TEXT, "The consumer group."),
    ViewColumn("topic", TEXT, "The topic."),
    ViewColumn("lagMessages", LONG, "Unconsumed messages."),
    ViewColumn(
        "lostMessages",
        LONG,
        "Unconsumed messages that retention has already deleted; null if tiered storage may have them.",
    ),
    ViewColumn(
        "nextLostMessages",
        LONG,
        "Unconsumed messages that the broker deletes at `deletionTimestamp`; null if it deletes none.",
    ),
    ViewColumn(
        "expiresTimestamp",
        TIME,
        "When the first of their files expires: fileReservedTime after its last write.",
    ),
    ViewColumn(
        "deletionTimestamp",
        TIME,
        "When the broker deletes them: at the next deleteWhen after their file expires, or at once if the "
        "disk is too full.",
    ),
    ViewColumn("deletionInMs", LONG, "Time until `deletionTimestamp`."),
)


# ---- the broker's decision ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gate:
    """Whether files may be deleted now, and the `reason`.

    `is_forced` means that the disk is nearly full, so files of any age are deleted.
    """

    is_open: bool
    is_forced: bool
    reason: str


def gate(
    conf: BrokerConf, hour: int, log_percent: int, queue_percent: int, *, is_manual: bool = False
) -> Gate:
    """The broker's decision, in its order (CleanCommitLogService.deleteExpiredFiles, isSpaceToDelete).

    `hour` is the local hour, `log_percent` the used share of the emptiest disk of the commitlog,
    `queue_percent` that of the disk of the consume queues. `is_manual`: somebody asked for it
    (executeDeleteFilesManually), so the hour does not count.

    >>> gate(BrokerConf(), hour=3, log_percent=50, queue_percent=50).is_open
    False
    """
    for percent in (log_percent, queue_percent):
        # Above the warning level writes are refused too; for deletion the lower one of the two counts.
        limit = min(conf.disk_warning_percent, conf.disk_forcibly_percent)
        if percent > limit:
            return Gate(
                True, conf.clean_file_forcibly_enable, f"the disk is {percent} % full, above {limit} %"
            )
    for percent in (log_percent, queue_percent):
        if percent > conf.disk_max_used_percent:
            limit = conf.disk_max_used_percent
            return Gate(True, False, f"the disk is {percent} % full, above {limit} %")
    hours = ";".join(f"{each:02d}" for each in conf.delete_when)
    if is_manual:
        return Gate(True, False, "fileReservedTime is over")
    if hour in conf.delete_when:
        return Gate(True, False, f"it is the hour of deleteWhen ({hours})")
    return Gate(
        False,
        False,
        f"the local hour is {hour:02d}, deleteWhen is {hours}, and the disk is {log_percent} % full, not "
        f"above {conf.disk_max_used_percent} %",
    )


def reserved_ms(conf: BrokerConf, *, is_service: bool = False) -> int:
    """fileReservedTime in ms. Raises OptionError if nobody gave the setting: a default deletes no files.

    A turn of the service (`is_service`) takes the broker's settings and no argument of hours.
    """
    if "fileReservedTime" not in conf.given:
        hours = "" if is_service else " or the hours (--file-reserved-time, file_reserved_hours=)"
        raise OptionError(
            "clean needs an explicit fileReservedTime, the hours for which files are kept: write "
            "fileReservedTime=72 to the store's .rmqlog/broker.conf, or give the broker's file "
            f"(--broker-conf, broker_conf=){hours}"
        )
    if conf.file_reserved_hours < 0:
        raise OptionError(f"fileReservedTime: expected hours, at least 0, found {conf.file_reserved_hours}")
    return conf.file_reserved_hours * _HOUR_MS


# ---- the plan ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CleanPlan:
    """The files that retention deletes in one turn: `log_files`, oldest first, then `followers`.

    `log_min` is the physical offset at which the commitlog starts afterwards. `gate` says whether the files
    may be deleted now.
    """

    store: Store
    now: Now
    gate: Gate
    reserved_ms: int
    log_files: tuple[ExpiredFile, ...]
    followers: tuple[ExpiredFile, ...]
    log_min: int

    @property
    def due(self) -> int:
        """The number of files to delete."""
        return len(self.log_files) + len(self.followers)

    @property
    def changes(self) -> bool:
        """Whether `apply` deletes any file."""
        return self.due > 0

    @property
    def next_due(self) -> int | None:
        """When a broker looks again, in ms since 1970 (every cleanResourceInterval)."""
        return self.now.ms + self.now.conf.clean_resource_interval_ms

    @property
    def late_ms(self) -> int | None:
        """How long ago the oldest file expired, in ms; None if no file is deleted for its age."""
        if not self.log_files or self.gate.is_forced:
            return None
        return self.now.ms - self.log_files[0].modified_ms - self.reserved_ms

    @property
    def disk_bytes(self) -> int:
        """The bytes that the deletion frees on the disk."""
        return sum(each.disk_bytes for each in (*self.log_files, *self.followers))

    def table(self) -> pa.Table:
        """Returns one row for each file, in the order of deletion, with `CLEAN_COLUMNS`."""
        return pa.Table.from_batches(
            [batch_of(CLEAN_COLUMNS, [self._row(each) for each in (*self.log_files, *self.followers)])]
        )

    def _row(self, file: ExpiredFile) -> tuple[object, ...]:
        is_expired = self.now.ms >= file.modified_ms + self.reserved_ms
        reason = "log" if file.kind != "commitlog" else "expired" if is_expired else "disk"
        return (
            self.store.broker_name, file.kind, file.path.removeprefix(f"{self.store.path}/"),
            file.size_bytes, file.disk_bytes, time_us(file.modified_ms), reason,
        )  # fmt: skip

    def unread(self) -> pa.Table:
        """Returns the messages in `log_files` that somebody has not read yet, by group and queue
        (`UNREAD_COLUMNS`).

        They include delayed messages that are not delivered yet, and transactions without a decision. Raises
        CorruptStoreError if neither the file of consumer offsets nor its `.bak` can be read.
        """
        read_broker_offsets(self.store.opened, is_needed=True)
        rows = unread_before(self.store, self.log_min, self.now.ms) if self.log_files else []
        return pa.Table.from_batches([batch_of(UNREAD_COLUMNS, rows)])

    def apply(self, session: WriteSession | None = None) -> int:
        """Deletes the files and returns their number.

        Takes the store's lock, unless the caller has it in `session`. Raises StoreInUseError if a broker runs
        on the store. Raises StoreWriteError, with nothing changed, if the commitlog has changed since the
        plan. Raises PartsFailedError, whose `done` is the number of deleted files, if a later one cannot be
        deleted.
        """
        options = CommitOptions(
            log_directories=self.store.commit_log_paths, conf=self.now.conf, lock_timeout=10.0
        )
        held = write_session(self.store.path, options) if session is None else nullcontext(session)
        with held as own, tallied() as tally:
            _delete(self, own, tally)
        return tally.done


def plan(
    path: str,
    now_ms: int | None = None,
    settings: str | BrokerConf | None = None,
    *,
    file_reserved_hours: int | None = None,
    is_manual: bool = False,
    zone: datetime.tzinfo | None = None,
    disk_percent: Callable[[str], int] | None = None,
    commit_log_paths: Sequence[str] = (),
) -> CleanPlan:
    """Returns a plan with the files that a broker would delete from the store at `path`. Deletes nothing.

    `now_ms` is the clock (ms since 1970). `settings` is the path of a broker.conf, or its settings; default:
    the store's `.rmqlog/broker.conf`. fileReservedTime must be set there, or given in hours as
    `file_reserved_hours`. With `is_manual`, the plan does not wait for the hour of deleteWhen, as with the
    command mqadmin deleteExpiredCommitLog. `zone` is the time zone of deleteWhen (default: the local zone).
    `disk_percent` is a function that returns how full the disk of a path is.

    Raises OptionError without fileReservedTime, StoreWriteError if a directory of queues, index or timer log
    is a symbolic link, and CorruptStoreError for a commitlog file that no broker can use.

    Example::

        from rmq_spark.services import clean

        plan = clean.plan("/data/store", file_reserved_hours=72, is_manual=True)
        print(plan.table(), plan.unread())
        plan.apply()
    """
    store = Store.open(path, commit_log_paths=commit_log_paths)
    conf = broker_conf_of(store.opened, settings)
    if file_reserved_hours is not None:
        given = conf.given | {"fileReservedTime"}
        conf = replace(conf, file_reserved_hours=file_reserved_hours, given=given)
    now = Now(time.time_ns() // 1_000_000 if now_ms is None else now_ms, conf)
    return _clean_plan(store, now, zone, disk_percent or _disk_percent, is_manual=is_manual)


def _clean_plan(
    store: Store,
    now: Now,
    zone: datetime.tzinfo | None,
    disk_percent: Callable[[str], int],
    *,
    is_manual: bool = False,
    followed: int = 0,
) -> CleanPlan:
    """`followed` is a start of the commitlog that queues and index are known to have followed."""
    conf = now.conf
    kept_ms = reserved_ms(conf)
    StoreRefusals(store.opened).refuse_ledger()  # DLedger deletes its files itself
    ExpiredFile.refuse_links(store.opened)
    for error in store.log.unusable:  # a broker does not start on such a store
        raise error
    hour = local_hour(now.ms, zone)
    log_percent = min(disk_percent(directory) for directory in store.commit_log_paths)
    decision = gate(conf, hour, log_percent, disk_percent(f"{store.path}/consumequeue"), is_manual=is_manual)
    files = ExpiredFile.before_last(store.log) if decision.is_open else []
    modified = [file.modified_ms for file in files]
    batch_max = max(conf.delete_file_batch_max, 1)  # deleteExpiredFileByTime deletes before it counts
    count = ExpiredFile.count(modified, now.ms, kept_ms, is_forced=decision.is_forced, batch_max=batch_max)
    if is_manual:
        # Rounds that follow each other; what is forced ends with the first, because the disk is then emptier.
        rounds = _MANUAL_ROUNDS * batch_max
        count = max(count, ExpiredFile.count(modified, now.ms, kept_ms, is_forced=False, batch_max=rounds))
    gone = tuple(files[:count])
    log_min = gone[-1].start + gone[-1].size_bytes if gone else store.log.min_offset
    later = [file.start for file in store.log.files if file.start >= log_min]
    log_min = min(later, default=log_min)  # the next file, if some are missing between
    followers = tuple(ExpiredFile.following(store.opened, log_min)) if log_min > followed else ()
    return CleanPlan(store, now, decision, kept_ms, gone, followers, log_min)


def _disk_percent(path: str) -> int:
    return files_at(path).disk_space(path).used_percent


def _delete(plan: CleanPlan, session: WriteSession, tally: Tally) -> None:
    """Deletes under the lock: the commitlog from its oldest file on, then what follows its new start."""
    ExpiredFile.refuse_links(plan.store.opened)
    store = session.store()
    wanted = [(file.path, file.modified_ms) for file in plan.log_files]
    found = [
        (file.path, (files_at(file.path).status(file.path) or (0, 0))[1])
        for file in store.log.files[: len(wanted)]
    ]
    if wanted != found or len(store.log.files) <= len(wanted):
        raise StoreWriteError(
            f"{store.path}: the commitlog is not as the plan saw it: expected its oldest {len(wanted)} files "
            "unchanged; nothing was deleted, make a new plan"
        )
    files = session.files
    for file in plan.log_files:
        tally.done += files.remove(file.path)
    for directory in session.options.log_directories or (f"{store.path}/commitlog",) if wanted else ():
        files.sync_directory(directory)
    log_min = session.store().log.min_offset
    directories = set()
    for follower in ExpiredFile.following(store.opened, log_min) if log_min else ():
        tally.done += files.remove(follower.path)
        directories.add(follower.path.rpartition("/")[0])
    for directory in sorted(directories):
        files.sync_directory(directory)


# ---- the service -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CleanService:
    """`clean`, one round at most every cleanResourceInterval. It runs only if somebody names it."""

    name: str = "clean"
    disk_percent: Callable[[str], int] = _disk_percent
    zone: datetime.tzinfo | None = None
    _next_ms: dict[str, int] = field(default_factory=dict)  # of the next round, by store
    _followed: dict[str, int] = field(default_factory=dict)  # lastPhysicalMinOffset, by store

    def plan(self, store: Store, ledger: Ledger, now: Now) -> CleanPlan:
        """Raises OptionError without an explicit fileReservedTime."""
        kept_ms = reserved_ms(now.conf, is_service=True)
        next_ms, interval_ms = self._next_ms.get(store.path, now.ms), now.conf.clean_resource_interval_ms
        if now.ms < next_ms <= now.ms + interval_ms:
            waiting = Gate(False, False, f"the next look is at {next_ms}")
            then = Now(next_ms - interval_ms, now.conf)
            return CleanPlan(store, then, waiting, kept_ms, (), (), store.log.min_offset)
        self._next_ms[store.path] = now.ms + interval_ms
        followed = self._followed.get(store.path, 0)
        found = _clean_plan(store, now, self.zone, self.disk_percent, followed=followed)
        if not found.changes:
            self._followed[store.path] = found.log_min  # Only a later start makes more files go.
        return found


# ---- what comes next ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The next deletion of commitlog files by retention.

    `level` is that of the disk: `normal`; `clean`, where expired files are deleted at any hour; `force`,
    where files of any age are deleted; `full`, where a broker refuses writes, too. `deletion_ms` is the time
    of the next deletion and `files` are those that it deletes, oldest first; None and () if there is only one
    file. `gate` is the broker's decision at `now_ms`.
    """

    store: Store
    conf: BrokerConf
    now_ms: int
    disk: DiskSpace
    level: str
    gate: Gate
    deletion_ms: int | None
    files: tuple[ExpiredFile, ...]
    zone: datetime.tzinfo | None

    @property
    def forced(self) -> int:
        """How many files are deleted at once, whatever their age."""
        return len(self.files) if self.gate.is_forced else 0

    @property
    def is_tiered(self) -> bool:
        """Whether tiered storage may have what is deleted here: nobody knows what is lost then."""
        return self.store.tiered_path is None and OtherFiles(self.store.opened).tiered is not None

    def deleted_at(self, number: int, expires_ms: int) -> int:
        """When the broker deletes a commitlog file, by its number and the time at which it expires."""
        if number < self.forced:
            return self.now_ms
        return deletion_ms(expires_ms, self.now_ms, self.conf, self.zone, is_any_hour=self.level != "normal")

    def losses(self) -> list[tuple[object, ...]]:
        """Rows of `LOSS_COLUMNS`: groups that lost or lose unread messages, the soonest loss first."""
        names, is_tiered = [column.name for column in LAG_BY_TOPIC_COLUMNS], self.is_tiered
        rows = []
        for values, loss in rows_with_losses(
            self.store, self.now_ms, self.conf, self.deleted_at, self.forced
        ):
            row = dict(zip(names, values, strict=True))
            is_unknown = row["lostMessages"] is None and is_tiered
            if loss is None and not row["lostMessages"] and not is_unknown:
                continue
            deleted = None if loss is None else loss.deleted_ms
            rows.append(
                (
                    *(row[column.name] for column in LOSS_COLUMNS[:7]),
                    time_us(deleted),
                    None if deleted is None else deleted - self.now_ms,
                )
            )
        return sorted(rows, key=_soonest_first)


# Any: values of `LOSS_COLUMNS`
def _soonest_first(row: Sequence[Any]) -> tuple[object, ...]:
    _, group, topic, _, _, next_lost, _, _, deletion_in = row
    return deletion_in is None, deletion_in, -(next_lost or 0), group, topic


def forecast(
    store: Store,
    conf: BrokerConf,
    now_ms: int,
    zone: datetime.tzinfo | None = None,
    disk: Callable[[str], DiskSpace] | None = None,
) -> Forecast:
    """What retention does next on the store. `zone` is the time zone of deleteWhen, by default the local one.

    `disk` tells how full the disk of a path is.
    """
    disk = disk or store.opened.files.disk_space
    log_disk = min((disk(path) for path in store.commit_log_paths), key=lambda each: each.used_percent)
    queue_disk = disk(f"{store.path}/consumequeue")
    fuller = max(log_disk, queue_disk, key=lambda each: each.used_percent)
    decision = gate(conf, local_hour(now_ms, zone), log_disk.used_percent, queue_disk.used_percent)
    level = _level(conf, fuller.used_percent)
    files = ExpiredFile.before_last(store.log)
    expiry = expiry_ms(store, conf.file_reserved_hours)[: len(files)]
    deletion, count = None, 0
    if files:
        deletion = deletion_ms(expiry[0], now_ms, conf, zone, is_any_hour=level != "normal")
        count = bisect_right(expiry, deletion)
        if decision.is_forced:
            batch_max = max(conf.delete_file_batch_max, 1)
            modified = [file.modified_ms for file in files]
            forced = ExpiredFile.count(modified, now_ms, 0, is_forced=True, batch_max=batch_max)
            deletion, count = now_ms, max(forced, bisect_right(expiry, now_ms))
    return Forecast(
        store=store,
        conf=conf,
        now_ms=now_ms,
        disk=fuller,
        level=level,
        gate=decision,
        deletion_ms=deletion,
        files=tuple(files[:count]),
        zone=zone,
    )


def _level(conf: BrokerConf, percent: int) -> str:
    if percent > conf.disk_warning_percent:
        return "full"
    if percent > conf.disk_forcibly_percent:
        return "force"
    return "clean" if percent > conf.disk_max_used_percent else "normal"

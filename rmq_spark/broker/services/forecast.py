"""What retention does next on a store, and what consumer groups lose by it; deletes nothing.

The decision is that of the service `clean`, which is the broker's; here it is made for the time to come.
"""

from __future__ import annotations

import datetime
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from rmq_spark.broker.services.clean import Gate, gate, local_hour
from store_format.commit.expiry import ExpiredFile, expired_count, log_files_before_last
from store_format.display.columns import BROKER, LONG, TEXT, TIME, TIME_MS_STOP, ViewColumn, time_us
from store_format.files.read import DiskSpace, disk_space
from store_format.metadata.broker_conf import BrokerConf
from store_format.read.served_elsewhere import tiered_metadata
from store_format.read.store import Store
from store_format.views.lag_by_topic import LAG_BY_TOPIC_COLUMNS, rows_with_losses

_HOUR_MS = 3_600_000
_HOURS_A_DAY = 24

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
    ViewColumn("expiresTimestamp", TIME, "When fileReservedTime of the first of their files is over."),
    ViewColumn(
        "deletionTimestamp",
        TIME,
        "When the broker deletes them: in the hour deleteWhen, or at once if the disk is too full.",
    ),
    ViewColumn("deletionInMs", LONG, "Time until `deletionTimestamp`."),
)


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
        return tiered_metadata(self.store.path) is not None

    def deleted_at(self, number: int, expires_ms: int) -> int:
        """When the broker deletes a commitlog file, by its number and the time at which it expires."""
        if number < self.forced:
            return self.now_ms
        return _deletion_ms(expires_ms, self.now_ms, self.conf, self.zone, is_any_hour=self.level != "normal")

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
    disk: Callable[[str], DiskSpace] = disk_space,
) -> Forecast:
    """What retention does next on the store. `zone` is the time zone of deleteWhen, by default the local one.

    `disk` tells how full the disk of a path is.
    """
    log_disk = min((disk(path) for path in store.commit_log_paths), key=lambda each: each.used_percent)
    queue_disk = disk(f"{store.path}/consumequeue")
    fuller = max(log_disk, queue_disk, key=lambda each: each.used_percent)
    decision = gate(conf, local_hour(now_ms, zone), log_disk.used_percent, queue_disk.used_percent)
    level = _level(conf, fuller.used_percent)
    files = log_files_before_last(store.log)
    expiry = _expiry(files, conf)
    deletion, count = None, 0
    if files:
        is_any_hour = level != "normal"
        deletion = _deletion_ms(expiry[0], now_ms, conf, zone, is_any_hour=is_any_hour)
        count = bisect_right(expiry, deletion)
        if decision.is_forced:
            batch_max = max(conf.delete_file_batch_max, 1)
            modified = [file.modified_ms for file in files]
            forced = expired_count(modified, now_ms, 0, is_forced=True, batch_max=batch_max)
            expired = bisect_right(expiry, now_ms)
            deletion, count = now_ms, max(forced, expired)
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


def _expiry(files: Sequence[ExpiredFile], conf: BrokerConf) -> list[int]:
    """When each file may be deleted, in ms. A young file also protects all files after it."""
    kept = conf.file_reserved_hours * _HOUR_MS
    return [modified + kept for modified in accumulate((file.modified_ms for file in files), max)]


def _level(conf: BrokerConf, percent: int) -> str:
    if percent > conf.disk_warning_percent:
        return "full"
    if percent > conf.disk_forcibly_percent:
        return "force"
    return "clean" if percent > conf.disk_max_used_percent else "normal"


def _deletion_ms(
    expires_ms: int, now_ms: int, conf: BrokerConf, zone: datetime.tzinfo | None, *, is_any_hour: bool
) -> int:
    """The first time from `expires_ms` and `now_ms` on at which a broker deletes expired files."""
    moment = max(expires_ms, now_ms)
    if moment >= TIME_MS_STOP:  # fileReservedTime reaches beyond the calendar
        return moment
    if is_any_hour or local_hour(moment, zone) in conf.delete_when:
        return moment
    clock = datetime.datetime.fromtimestamp(moment / 1000, zone).replace(minute=0, second=0, microsecond=0)
    for _ in range(_HOURS_A_DAY + 1):  # one more where the clock is changed
        clock += datetime.timedelta(hours=1)
        if clock.hour in conf.delete_when:
            break
    return int(clock.timestamp()) * 1000

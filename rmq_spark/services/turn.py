"""One turn: the store is locked once, every chosen service does at most its share, the lock is released."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from rmq_spark.services.registry import chosen_services
from rmq_spark.services.service import Now, Service, ServicePlan
from store_format.bookkeeping.ledger import read_ledger
from store_format.bookkeeping.service_counters import ServiceCounters, read_counters, write_counters
from store_format.bookkeeping.settings import broker_conf_of, read_settings
from store_format.commit.prepare_store import CommitOptions, is_sync
from store_format.commit.session import WriteSession, write_session
from store_format.display.columns import LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.errors import StoreError
from store_format.files.write import FileWrites
from store_format.metadata.broker_conf import BrokerConf
from store_format.read.store import Store

_log = logging.getLogger(__name__)

TURN_COLUMNS = (
    ViewColumn("service", TEXT, "The service."),
    ViewColumn("due", LONG, "Messages (clean: files; flush: 1) that were due, at most one turn of them."),
    ViewColumn("done", LONG, "Messages (clean: files) that the turn wrote or deleted; 0 in a preview."),
    ViewColumn("nextDue", TIME, "When the service has something to do next; null if nothing waits."),
    ViewColumn("lateMs", LONG, "How late the oldest due message was; null if nothing was due."),
)


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What a turn did for one service. `error` is why the service could not do its part."""

    service: str
    due: int = 0
    done: int = 0
    next_due: int | None = None
    late_ms: int | None = None
    error: StoreError | None = None


def turn_table(reports: Sequence[TurnReport]) -> pa.Table:
    """The reports with `TURN_COLUMNS`."""
    rows = [
        (each.service, each.due, each.done, time_us(each.next_due), each.late_ms)
        for each in reports
        if each.error is None
    ]
    return pa.Table.from_batches([batch_of(TURN_COLUMNS, rows)])


def run_once(
    path: str,
    only: Sequence[str] | None = None,
    now_ms: int | None = None,
    *,
    broker_conf: str | BrokerConf | None = None,
    apply: bool = False,
    commit_log_paths: Sequence[str] = (),
    extra: Sequence[Service] = (),
) -> pa.Table:
    """Runs one turn of the services on the store at `path`, and returns one row for each service.

    The columns of the table are `service`, `due`, `done`, `nextDue` and `lateMs` (`TURN_COLUMNS`). `only`
    names the services; by default all run except `clean`. `now_ms` is the clock (ms since 1970).
    `broker_conf` is the path of the broker's settings (default: `.rmqlog/broker.conf` in the store). If
    rmqlog did not create the store, the first turn is a preview that writes nothing, unless `apply` is true.
    `commit_log_paths` are the directories of the commitlog, if they are outside the store
    (storePathCommitLog). `extra` has services that need more than a name, such as
    `transaction.checker(decide)`; they run after the others.

    Raises StoreInUseError while a broker has the store. If a service fails, the others still run, and then
    the first error is raised.

    Example: `run_once("/data/store", ["schedule"]).to_pylist()`.
    """
    path = os.path.abspath(path)
    reports = take_turn(
        path,
        [*chosen_services(only), *extra],
        now_of(path, now_ms, broker_conf),
        preview=is_preview(path, apply),
        commit_log_paths=tuple(commit_log_paths),
    )
    for each in reports:
        if each.error is not None:
            raise each.error
    return turn_table(reports)


def now_of(path: str, now_ms: int | None, broker_conf: str | BrokerConf | None) -> Now:
    """The clock and the settings for a turn."""
    return Now(time.time_ns() // 1_000_000 if now_ms is None else now_ms, broker_conf_of(path, broker_conf))


def is_preview(path: str, apply: bool) -> bool:
    """Whether turns on this store only show what they would do.

    A copy that somebody wants to examine must not deliver all its delayed messages. So the services write to
    stores that rmqlog created, and to others after the first turn with `apply`.
    """
    return not apply and read_settings(path) is None and read_counters(path) is None


def take_turn(
    path: str,
    services: Sequence[Service],
    now: Now,
    *,
    preview: bool = False,
    lock_timeout: float = 10.0,
    commit_log_paths: tuple[str, ...] = (),
    clock_ms: Callable[[], int] | None = None,
) -> list[TurnReport]:
    """The turn of these services; an error of one does not keep the others from theirs.

    `clock_ms` is read again when the turn has the lock, for which it may have waited `lock_timeout` seconds.
    """
    if preview:
        store = Store.open(path, commit_log_paths=commit_log_paths)
        return [_planned(service, store, now)[0] for service in services]
    clock = clock_ms or (lambda: now.ms)
    options = CommitOptions(
        sync=is_sync(path, now.conf),
        lock_timeout=lock_timeout,
        conf=now.conf,
        clock=clock,
        log_directories=commit_log_paths,
    )
    with write_session(path, options) as session:
        now = replace(now, ms=clock())
        reports = [_done(service, session, now) for service in services]
        _count(path, reports, now.ms, session.files)
    return reports


def _planned(service: Service, store: Store, now: Now) -> tuple[TurnReport, ServicePlan | None]:
    try:
        plan = service.plan(store, read_ledger(store.path), now)
    except StoreError as error:
        return TurnReport(service.name, error=error), None
    return TurnReport(service.name, plan.due, 0, plan.next_due, plan.late_ms), plan


def _done(service: Service, session: WriteSession, now: Now) -> TurnReport:
    report, plan = _planned(service, session.store(), now)
    if plan is None or not plan.changes:
        return report
    try:
        done = plan.apply(session)
    except StoreError as error:
        return TurnReport(service.name, report.due, error=error)
    _log.info("%s: service %s: %d done, %s ms late", session.root, service.name, done, report.late_ms)
    return TurnReport(service.name, report.due, done, report.next_due, report.late_ms)


def _count(root: str, reports: Sequence[TurnReport], now_ms: int, files: FileWrites) -> None:
    """Adds what the services did to the store's counters; the first turn makes the file."""
    counters = read_counters(root)
    did = [each for each in reports if each.done or each.error is not None]
    if not did and counters is not None:
        return
    counters = dict(counters or {})
    for each in did:
        before = counters.get(each.service, ServiceCounters())
        counters[each.service] = before.after(
            each.done, each.late_ms or 0, now_ms, failed=each.error is not None
        )
    write_counters(root, counters, files)

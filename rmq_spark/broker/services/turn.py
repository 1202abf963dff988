"""One turn: the store is locked once, every chosen service does at most its share, the lock is released.

A service that fails does not keep the others from their share. The reports of the turn say what each service
did, and why it could not do the rest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from rmq_spark.broker.services.registry import chosen_services
from rmq_spark.broker.services.service import Now, PartsFailedError, Service, ServicePlan
from store_format.bookkeeping.ledger import read_ledger
from store_format.bookkeeping.service_counters import ServiceCounters, read_counters, write_counters
from store_format.bookkeeping.settings import broker_conf_of
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import is_sync
from store_format.commit.session import WriteSession, write_session
from store_format.commit.unsupported import refuse_rocksdb_queues, refuse_store
from store_format.display.columns import LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.errors import StoreError
from store_format.files import paths
from store_format.files.write import FileWrites
from store_format.metadata.broker_conf import BrokerConf
from store_format.read.store import Store

_log = logging.getLogger(__name__)

TURN_COLUMNS = (
    ViewColumn("service", TEXT, "The service; null if the store itself failed."),
    ViewColumn("due", LONG, "Messages (clean: files; flush: 1) that were due, at most one turn of them."),
    ViewColumn("done", LONG, "Messages (clean: files) that the turn wrote or deleted; 0 in a preview."),
    ViewColumn("nextDue", TIME, "When the service has something to do next; null if nothing waits."),
    ViewColumn("lateMs", LONG, "How late the oldest due message was; null if nothing was due."),
    ViewColumn("error", TEXT, "Why the service could not do a part of its work; null if it did everything."),
)


@dataclass(frozen=True, slots=True)
class TurnReport:
    """What a turn did for one service. `errors` are why the service could not do the rest.

    `service` is "" for an error of the store itself, after services had their turn.
    """

    service: str
    due: int = 0
    done: int = 0
    next_due: int | None = None
    late_ms: int | None = None
    errors: tuple[Exception, ...] = ()

    @property
    def error_text(self) -> str | None:
        """Why the service could not do the rest, in one line; None if it did everything."""
        return "; ".join(map(error_text, self.errors)) or None

    @property
    def has_worked(self) -> bool:
        """Whether the service did its work, or a part of it."""
        return self.done > 0 or not self.errors


def error_text(error: Exception) -> str:
    """The text of an error; an error that nobody foresaw is named by its class, too."""
    is_known = isinstance(error, StoreError | OSError)
    return str(error) if is_known else f"{type(error).__name__}: {error}"


def turn_table(reports: Sequence[TurnReport]) -> pa.Table:
    """The reports with `TURN_COLUMNS`."""
    rows = [
        (each.service or None, each.due, each.done, time_us(each.next_due), each.late_ms, each.error_text)
        for each in reports
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
    disk_limit: int | None = None,
) -> pa.Table:
    """Runs one turn of the services on the store at `path`, and returns one row for each service.

    Without `apply`, the turn is a preview: it writes nothing and takes no lock. The columns of the table are
    `service`, `due`, `done`, `nextDue`, `lateMs` and `error` (`TURN_COLUMNS`). `only` names the services; by
    default all run except `clean`. `now_ms` is the clock (ms since 1970). `broker_conf` is the path of the
    broker's settings (default: `.rmqlog/broker.conf` in the store). `commit_log_paths` are the directories of
    the commitlog, if they are outside the store (storePathCommitLog). `extra` has services that need more
    than a name, such as `transaction.checker(decide)`; they run after the others. Above `disk_limit` percent
    of a disk (default: diskSpaceWarningLevelRatio, 90), services that store messages fail, as in a broker.

    Raises StoreInUseError while a broker has the store. If a service fails, the others still run, and then
    the first error is raised; its notes (`__notes__`) say what each service did.

    Example: `run_once("/data/store", ["schedule"], apply=True).to_pylist()`.
    """
    path = paths.absolute(path)
    reports = take_turn(
        path,
        [*chosen_services(only), *extra],
        now_of(path, now_ms, broker_conf),
        preview=not apply,
        commit_log_paths=tuple(commit_log_paths),
        disk_limit=disk_limit,
    )
    errors = [error for each in reports for error in each.errors]
    if errors:
        for each in reports:
            failed = "" if each.error_text is None else f"; failed: {each.error_text}"
            errors[0].add_note(f"{each.service or path}: {each.done} of {each.due} done{failed}")
        raise errors[0]
    return turn_table(reports)


def now_of(path: str, now_ms: int | None, broker_conf: str | BrokerConf | None) -> Now:
    """The clock and the settings for a turn."""
    return Now(time.time_ns() // 1_000_000 if now_ms is None else now_ms, broker_conf_of(path, broker_conf))


def take_turn(
    path: str,
    services: Sequence[Service],
    now: Now,
    *,
    preview: bool = False,
    lock_timeout: float = 10.0,
    commit_log_paths: tuple[str, ...] = (),
    clock_ms: Callable[[], int] | None = None,
    disk_limit: int | None = None,
) -> list[TurnReport]:
    """The turn of these services; an error of one does not keep the others from theirs.

    `clock_ms` is read again when the turn has the lock, for which it may have waited `lock_timeout` seconds.
    `disk_limit` is that of `CommitOptions`: above it, services that store messages fail, as in a broker.
    Raises UnsupportedFormatError for a store that is not written to, StoreInUseError while a broker has it,
    and what opening the store raises. An error of the store after the services' turn is a report.
    """
    refuse_rocksdb_queues(path)
    refuse_store(path)
    if preview:
        store = Store.open(path, commit_log_paths=commit_log_paths)
        return [_planned(service, lambda: store, now)[0] for service in services]
    clock = clock_ms or (lambda: now.ms)
    options = CommitOptions(
        sync=is_sync(path, now.conf),
        lock_timeout=lock_timeout,
        conf=now.conf,
        clock=clock,
        disk_limit=disk_limit,
        log_directories=commit_log_paths,
    )
    reports: list[TurnReport] = []
    try:
        with write_session(path, options) as session:
            now = replace(now, ms=clock())
            for service in services:
                reports.append(_done(service, session, now))
            _count(path, reports, now.ms, session.files)
    except StoreError as error:
        if not reports:
            raise
        reports.append(TurnReport("", errors=(error,)))
    return reports


def _planned(
    service: Service, open_store: Callable[[], Store], now: Now
) -> tuple[TurnReport, ServicePlan | None]:
    try:
        store = open_store()
        plan = service.plan(store, read_ledger(store.path), now)
        errors = tuple(getattr(plan, "errors", ()))
        return TurnReport(service.name, plan.due, 0, plan.next_due, plan.late_ms, errors), plan
    except Exception as error:  # also what nobody foresaw: the other services have their turn
        return TurnReport(service.name, errors=(error,)), None


def _done(service: Service, session: WriteSession, now: Now) -> TurnReport:
    report, plan = _planned(service, session.store, now)
    if plan is None or not plan.changes:
        return report
    try:
        report = replace(report, done=plan.apply(session))
    except PartsFailedError as failed:
        report = replace(report, done=failed.done, next_due=failed.next_due, errors=failed.errors)
    except Exception as error:
        return TurnReport(service.name, report.due, late_ms=report.late_ms, errors=(error,))
    _log.info("%s: service %s: %d done, %s ms late", session.root, service.name, report.done, report.late_ms)
    return report


def _count(root: str, reports: Sequence[TurnReport], now_ms: int, files: FileWrites) -> None:
    """Adds what the services did to the store's counters."""
    did = [each for each in reports if each.done or each.errors]
    if not did:
        return
    counters = dict(read_counters(root) or {})
    for each in did:
        before = counters.get(each.service, ServiceCounters())
        counters[each.service] = before.after(each.done, each.late_ms or 0, now_ms, failed=bool(each.errors))
    write_counters(root, counters, files)

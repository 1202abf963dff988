"""The services by name, one turn of them, and turns in a loop.

In a turn the store is locked once, every chosen service does at most its share, and the lock is released. A
service is imported when it is called by name. A service that fails does not keep the others from their share.
The reports of the turn say what each service did, and why it could not do the rest.

The service `flush` ends a turn: it writes what was committed with ASYNC_FLUSH to the disk, at the intervals
of a broker. A commit with ASYNC_FLUSH survives the death of processes, not a power loss, and leaves `abort`,
so that a broker recovers when it starts. After a flush the store is as after a clean shutdown.

`Services` runs turns beside Spark's queries in the same process, or as the command `rmqlog services`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pkgutil import resolve_name
from types import TracebackType

import pyarrow as pa

from rmq_spark.broker.services.service import Now, PartsFailedError, Service, ServicePlan
from rmq_spark.broker.services.service import now_of as now_of  # part of this door
from store_format.bookkeeping.journal import Abort, Journal
from store_format.bookkeeping.ledger import Ledger, ServiceCounters
from store_format.commit.options import CommitOptions
from store_format.commit.session import WriteSession, write_session
from store_format.commit.unsupported import StoreRefusals
from store_format.display.columns import LONG, TEXT, TIME, ViewColumn, batch_of, time_us
from store_format.display.text import shown
from store_format.errors import OptionError, StoreError
from store_format.files import paths
from store_format.files.read import files_at
from store_format.files.write import FileWrites
from store_format.metadata.read import BrokerConf
from store_format.names import did_you_mean
from store_format.opened.store import Opened
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

_PAGE_SIZE = 4096  # MappedFile.OS_PAGE_SIZE

_FLUSH_COLUMNS = (
    ViewColumn("start", LONG, "The physical offset up to which the store was flushed last; null if unknown."),
    ViewColumn("stop", LONG, "The physical offset up to which messages are committed; null if unknown."),
)

_PAUSE_SECONDS = 0.05  # between turns that follow each other: other writers look for the lock every 20 ms
_AFTER_ERROR_SECONDS = 10.0  # ScheduleMessageService: a task that failed runs again after 10 s


# ---- the service flush -------------------------------------------------------------------------------------


def is_flush_due(conf: BrokerConf, since_ms: int, unflushed_bytes: int) -> bool:
    """Whether a broker flushes `since_ms` after its last flush (CommitLog.FlushRealTimeService).

    At every flushIntervalCommitLog if flushCommitLogLeastPages of 4 KiB are unflushed, and otherwise at every
    flushCommitLogThoroughInterval.

    >>> is_flush_due(BrokerConf(), 500, 16384), is_flush_due(BrokerConf(), 500, 1024)
    (True, False)
    """
    if since_ms >= conf.flush_commit_log_thorough_interval_ms:
        return True
    is_much = unflushed_bytes >= conf.flush_commit_log_least_pages * _PAGE_SIZE
    return is_much and since_ms >= conf.flush_interval_commit_log_ms


@dataclass(frozen=True, slots=True)
class _Flushed:
    """A flush: when, and up to which physical offset."""

    at_ms: int
    stop: int


@dataclass(frozen=True, slots=True)
class _FlushPlan:
    """`due` is 1 if the store is flushed in this turn, else 0."""

    due: int
    next_due: int | None
    late_ms: int | None
    start: int | None
    stop: int | None
    now_ms: int
    flushed: dict[str, _Flushed]

    @property
    def changes(self) -> bool:
        return self.due > 0

    def table(self) -> pa.Table:
        """One row, with `_FLUSH_COLUMNS`, if the store is flushed in this turn."""
        rows = [(self.start, self.stop)] if self.due else []
        return pa.Table.from_batches([batch_of(_FLUSH_COLUMNS, rows)])

    def apply(self, session: WriteSession) -> int:
        """Flushes the store, and notes when and how far."""
        session.flush()
        self.flushed[session.opened.path] = _Flushed(self.now_ms, self.stop or 0)
        return self.due


@dataclass(slots=True)
class FlushService:
    """`flush`. Its first turn on a store flushes at once, because the time of the last flush is unknown."""

    name: str = "flush"
    _flushed: dict[str, _Flushed] = field(default_factory=dict)  # by store

    def plan(self, store: Store, ledger: Ledger, now: Now) -> _FlushPlan:
        stop = None if ledger.last is None else ledger.last.stop
        last = self._flushed.get(store.path)
        start = None if last is None else last.stop
        if not Abort.read_mark(store.opened):  # no commit since the last flush, or a broker's `abort`
            return _FlushPlan(0, None, None, start, stop, now.ms, self._flushed)
        unflushed = (stop or 0) - (start or 0)
        if last is None or now.ms < last.at_ms or is_flush_due(now.conf, now.ms - last.at_ms, unflushed):
            return _FlushPlan(1, None, None, start, stop, now.ms, self._flushed)
        is_much = unflushed >= now.conf.flush_commit_log_least_pages * _PAGE_SIZE
        thorough = now.conf.flush_commit_log_thorough_interval_ms
        wait = min(now.conf.flush_interval_commit_log_ms, thorough) if is_much else thorough
        return _FlushPlan(0, last.at_ms + wait, None, start, stop, now.ms, self._flushed)


# ---- the services by name ----------------------------------------------------------------------------------


# Module and class: a module is imported only if its service is chosen.
_BY_NAME = {
    "schedule": "rmq_spark.broker.services.schedule:Schedule",
    "timer": "rmq_spark.broker.services.timer:Timer",
    "revive": "rmq_spark.broker.pop.revive:ReviveService",
    "clean": "rmq_spark.broker.services.clean:CleanService",
    "flush": f"{__name__}:FlushService",  # the last: what the others wrote is flushed in the same turn
}
NAMED_ONLY = frozenset({"clean"})  # deletes files, so it never runs unless its name is given


def chosen_services(only: Sequence[str] | None) -> list[Service]:
    """The services of these names; None: all that need not be named. Raises OptionError for another name."""
    for name in only or ():
        if name not in _BY_NAME:
            raise OptionError(f"unknown service {name!r}; {did_you_mean(name, _BY_NAME, 'services')}")
    names = [name for name in _BY_NAME if (name in only if only else name not in NAMED_ONLY)]
    return [resolve_name(_BY_NAME[name])() for name in names]


# ---- one turn ----------------------------------------------------------------------------------------------


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
    StoreRefusals(Opened(path)).refuse_rocksdb_queues()
    StoreRefusals(Opened(path)).refuse_store()
    if preview:
        store = Store.open(path, commit_log_paths=commit_log_paths)
        return [_planned(service, lambda: store, now)[0] for service in services]
    clock = clock_ms or (lambda: now.ms)
    options = CommitOptions(
        sync=Journal.is_sync(Opened(path), now.conf),
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
        plan = service.plan(store, Ledger.read(store.opened), now)
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
    _log.info(
        "%s: service %s: %d done, %s ms late", session.opened.path, service.name, report.done, report.late_ms
    )
    return report


def _count(root: str, reports: Sequence[TurnReport], now_ms: int, files: FileWrites) -> None:
    """Adds what the services did to the store's counters."""
    opened = Opened(root)
    did = [each for each in reports if each.done or each.errors]
    if not did:
        return
    counters = dict(ServiceCounters.read_all(opened) or {})
    for each in did:
        before = counters.get(each.service, ServiceCounters())
        counters[each.service] = before.after(each.done, each.late_ms or 0, now_ms, failed=bool(each.errors))
    ServiceCounters.write_all(opened, counters, files)


# ---- the loop ----------------------------------------------------------------------------------------------


class Services:
    """Runs turns of the services in a thread of their own, until the `with` block ends.

    A turn begins when something is due, and at the latest `every` seconds after the previous turn. A turn
    that has begun is completed before the block ends. While another writer has the store, the turn waits. If
    a broker starts, the turns pause until the broker has stopped, and a warning says so. If a service fails,
    a warning says why, the other services go on, and the service tries again. The directory may be missing or
    empty at first, because the first write of a query creates the store.

    Example::

        with Services("/data/store", apply=True):
            query.awaitTermination()
    """

    def __init__(
        self,
        path: str,
        every: float = 1.0,
        *,
        only: Sequence[str] | None = None,
        broker_conf: str | BrokerConf | None = None,
        apply: bool = False,
        commit_log_paths: Sequence[str] = (),
        extra: Sequence[Service] = (),
        on_turn: Callable[[list[TurnReport]], object] = lambda reports: None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """Checks the arguments; the thread starts with the `with` block.

        `only`, `broker_conf`, `commit_log_paths` and `extra` are those of `run_once`. `apply` must be true:
        the services write to the store. `on_turn` is called with the reports of each turn. `clock_ms` returns
        the time in ms since 1970.

        Raises OptionError without `apply`; `run_once(path)` is the preview.
        """
        path = paths.absolute(path)
        if every <= 0:
            raise OptionError(f"every={every}: expected a number of seconds above 0")
        self._path = path
        if not apply:
            raise OptionError(
                f"{path}: the services write to the store and deliver all due messages: expected apply=True, "
                "found False. run_once(path) shows what they would do"
            )
        self._every = every
        self._services = [*chosen_services(only), *extra]
        self._broker_conf = broker_conf
        self._commit_log_paths = tuple(commit_log_paths)
        self._on_turn, self._clock_ms = on_turn, clock_ms
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rmqlog-services", daemon=True)
        self._failure: BaseException | None = None  # of `on_turn`
        self._failing: dict[str, str] = {}

    def __enter__(self) -> Services:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits for the turn that is under way. Raises what `on_turn` has raised, which ended the loop."""
        self.stop()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    @property
    def failing(self) -> dict[str, str]:
        """Why services failed in their last turn, by service; "" is the store itself."""
        return dict(self._failing)

    def stop(self) -> None:
        """Ends the loop after the current turn. A signal handler may call this method."""
        self._stopping.set()

    def run(self) -> None:
        """Runs turns until `stop` is called. The thread calls this method; a separate process may call it
        directly.
        """
        while not self._stopping.is_set():
            self._stopping.wait(self._turn())
        if any(each.name == "flush" for each in self._services):
            failing = self._failing
            self._services = chosen_services(["flush"])  # A broker that stops flushes everything.
            self._turn()
            self._failing = failing | self._failing

    def _run(self) -> None:
        try:
            self.run()
        except BaseException as failure:
            _log.exception("services on %s: on_turn failed, no further turn is taken", self._path)
            self._failure = failure

    def _turn(self) -> float:
        """Takes one turn; returns the seconds until the next one."""
        try:
            if not files_at(self._path).names(self._path, missing_ok=True):
                return self._every  # The first write of a query creates the store.
            now = now_of(self._path, self._clock_ms(), self._broker_conf)
            reports = take_turn(
                self._path,
                self._services,
                now,
                commit_log_paths=self._commit_log_paths,
                clock_ms=self._clock_ms,
            )
        except Exception as error:
            # The thread must not end silently, whatever a store makes of a service.
            self._note_errors({"": (error,)})
            return self._every if isinstance(error, StoreError) else _AFTER_ERROR_SECONDS
        self._note_errors({each.service: each.errors for each in reports if each.errors})
        self._on_turn(reports)
        due = [each.next_due for each in reports if each.next_due is not None]
        wait = (min(due) - self._clock_ms()) / 1000 if due else self._every
        longest = min(self._every, _AFTER_ERROR_SECONDS) if self._failing else self._every
        return min(max(wait, _PAUSE_SECONDS), longest)

    def _note_errors(self, failed: Mapping[str, Sequence[Exception]]) -> None:
        """Logs the errors of each service once, until they change or the service succeeds."""
        texts = {name: "; ".join(map(error_text, errors)) for name, errors in failed.items()}
        for name, errors in failed.items():
            if self._failing.get(name) == texts[name]:
                continue
            unforeseen = [each for each in errors if not isinstance(each, StoreError | OSError)]
            service = f"service {name}: " if name else ""
            _log.warning(
                "services on %s: %s%s", self._path, service, shown(texts[name]),
                exc_info=unforeseen[0] if unforeseen else None,
            )  # fmt: skip
        self._failing = texts

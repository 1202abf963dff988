"""The services as a loop: beside Spark's queries in the same process, or as the command `rmqlog services`."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from rmq_spark.broker.services.registry import chosen_services
from rmq_spark.broker.services.service import Service
from rmq_spark.broker.services.turn import TurnReport, error_text, now_of, take_turn
from store_format.display.text import shown
from store_format.errors import OptionError, StoreError
from store_format.files import paths
from store_format.files.read import entry_names
from store_format.metadata.broker_conf import BrokerConf

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 0.05  # between turns that follow each other: other writers look for the lock every 20 ms
_AFTER_ERROR_SECONDS = 10.0  # ScheduleMessageService: a task that failed runs again after 10 s


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
            if not entry_names(self._path, missing_ok=True):
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

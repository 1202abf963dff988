"""Flush: writes what was committed with ASYNC_FLUSH to the disk, at the intervals of a broker.

A commit with ASYNC_FLUSH survives the death of processes, not a power loss, and leaves `abort`, so that a
broker recovers when it starts. After a flush the store is as after a clean shutdown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from rmq_spark.broker.services.service import Now
from store_format.bookkeeping.journal import abort_mark
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.session import WriteSession
from store_format.display.columns import LONG, ViewColumn, batch_of
from store_format.metadata.broker_conf import BrokerConf
from store_format.read.store import Store

_PAGE_SIZE = 4096  # MappedFile.OS_PAGE_SIZE

FLUSH_COLUMNS = (
    ViewColumn("start", LONG, "The physical offset up to which the store was flushed last; null if unknown."),
    ViewColumn("stop", LONG, "The physical offset up to which messages are committed; null if unknown."),
)


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
class FlushPlan:
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
        """One row, with `FLUSH_COLUMNS`, if the store is flushed in this turn."""
        rows = [(self.start, self.stop)] if self.due else []
        return pa.Table.from_batches([batch_of(FLUSH_COLUMNS, rows)])

    def apply(self, session: WriteSession) -> int:
        """Flushes the store, and notes when and how far."""
        session.flush()
        self.flushed[session.root] = _Flushed(self.now_ms, self.stop or 0)
        return self.due


@dataclass(slots=True)
class FlushService:
    """`flush`. Its first turn on a store flushes at once, because the time of the last flush is unknown."""

    name: str = "flush"
    _flushed: dict[str, _Flushed] = field(default_factory=dict)  # by store

    def plan(self, store: Store, ledger: Ledger, now: Now) -> FlushPlan:
        stop = None if ledger.last is None else ledger.last.stop
        last = self._flushed.get(store.path)
        start = None if last is None else last.stop
        if not abort_mark(store.path):  # no commit since the last flush, or a broker's `abort`
            return FlushPlan(0, None, None, start, stop, now.ms, self._flushed)
        if last is None or now.ms < last.at_ms:
            return FlushPlan(1, None, None, start, stop, now.ms, self._flushed)
        unflushed = (stop or 0) - last.stop
        if is_flush_due(now.conf, now.ms - last.at_ms, unflushed):
            return FlushPlan(1, None, None, start, stop, now.ms, self._flushed)
        is_much = unflushed >= now.conf.flush_commit_log_least_pages * _PAGE_SIZE
        thorough = now.conf.flush_commit_log_thorough_interval_ms
        wait = min(now.conf.flush_interval_commit_log_ms, thorough) if is_much else thorough
        return FlushPlan(0, last.at_ms + wait, None, start, stop, now.ms, self._flushed)

"""Flush: ASYNC commits reach the disk at the broker's intervals, and other services do not flush before."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rmq_spark.broker.services.service import Now
from rmq_spark.broker.services.turn import FlushService, is_flush_due, take_turn
from rmq_spark.services import Services, run_once
from store_format import MessageStore
from store_format.bookkeeping.journal import Abort, StoreState
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.options import CommitOptions
from store_format.metadata.read import BrokerConf, read_checkpoint
from store_format.opened.store import Opened
from store_format.read.store import Store
from tests.support.staged import append, numbered
from tests.support.waiting import BEGIN_MS, delayed
from tests.support.waiting import append as append_delayed

_ASYNC = CommitOptions(sync=False, clock=lambda: 1_700_000_100_000)


@pytest.mark.parametrize(
    ("since_ms", "unflushed", "is_due"),
    [
        (499, 1 << 20, False),
        (500, 1 << 20, True),
        (500, 4 * 4096, True),
        (500, 4 * 4096 - 1, False),
        (9_999, 1, False),
        (10_000, 1, True),
    ],
)
def test_when_a_broker_flushes(since_ms: int, unflushed: int, is_due: bool) -> None:
    assert is_flush_due(BrokerConf(), since_ms, unflushed) is is_due


def test_a_flush_leaves_a_clean_store_and_the_checkpoint_of_the_last_message(root: Path) -> None:
    append(root, numbered("T", 0, 40), options=_ASYNC)
    assert (root / "abort").exists()
    (row,) = run_once(str(root), ["flush"], 1_700_000_200_000, apply=True).to_pylist()
    assert (row["service"], row["due"], row["done"]) == ("flush", 1, 1)
    assert not (root / "abort").exists()
    assert MessageStore.open(str(root)).state is StoreState.CLEAN
    checkpoint, last = read_checkpoint(f"{root}/checkpoint"), Ledger.read(Opened(str(root))).last
    assert checkpoint is not None
    assert last is not None
    assert (checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp) == (1_700_000_100_000,) * 2
    assert checkpoint.logics_physical_offset == last.last_offset
    (row,) = run_once(str(root), ["flush"], 1_700_000_200_000, apply=True).to_pylist()
    assert (row["due"], row["done"], row["nextDue"]) == (0, 0, None)


def test_the_service_flushes_at_its_intervals(root: Path) -> None:
    service, begin = FlushService(), 1_700_000_200_000

    def turn(ms: int) -> tuple[int, int | None]:
        reports = take_turn(str(root), [service], Now(begin + ms))
        return reports[0].done, None if reports[0].next_due is None else reports[0].next_due - begin

    append(root, numbered("T", 0, 4), options=_ASYNC)
    assert turn(0) == (1, None)  # the time of the last flush is unknown
    append(root, numbered("T", 4, 4), options=_ASYNC)
    assert turn(9_999) == (0, 10_000)
    assert Abort.read_mark(Opened(str(root))), "the turn itself flushes nothing"
    assert turn(10_000) == (1, None)
    append(root, numbered("T", 8, 100), options=_ASYNC)  # more than 4 pages
    assert turn(10_100) == (0, 10_500)
    assert turn(10_500) == (1, None)
    assert turn(10_501) == (0, None)


def test_a_delivery_on_a_store_with_async_flush_flushes_nothing(root: Path) -> None:
    append_delayed(root, delayed("T", 1, 0, 6), sync=False)
    assert Abort.read_mark(Opened(str(root)))
    (row,) = run_once(str(root), ["schedule"], BEGIN_MS + 5_000, apply=True).to_pylist()
    assert row["done"] == 6
    assert Abort.read_mark(Opened(str(root))), "the delivered messages wait for the flush too"
    run_once(str(root), ["schedule", "flush"], BEGIN_MS + 6_000, apply=True)
    assert Abort.read_mark(Opened(str(root))) is None


def test_the_settings_decide_before_the_last_commit_does(root: Path) -> None:
    append_delayed(root, delayed("T", 1, 0, 6), sync=True)
    settings = BrokerConf.of({"flushDiskType": "ASYNC_FLUSH"}, "test")
    run_once(str(root), ["schedule"], BEGIN_MS + 5_000, broker_conf=settings, apply=True)
    assert Abort.read_mark(Opened(str(root)))
    settings = BrokerConf.of({"flushDiskType": "SYNC_FLUSH"}, "test")
    run_once(str(root), ["schedule"], BEGIN_MS + 6_000, broker_conf=settings, apply=True)
    assert Abort.read_mark(Opened(str(root))) is None


def test_a_flush_goes_over_all_files_of_several_directories(root: Path, tmp_path: Path) -> None:
    append(root, numbered("T", 0, 200), options=_ASYNC)
    other = tmp_path / "second"
    other.mkdir()
    first = min((root / "commitlog").iterdir())
    first.rename(other / first.name)
    paths = (str(root / "commitlog"), str(other))
    run_once(str(root), ["flush"], 1_700_000_200_000, commit_log_paths=paths, apply=True)
    assert Store.open(str(root), commit_log_paths=paths).state is StoreState.CLEAN


def test_the_loop_flushes_when_it_ends(root: Path) -> None:
    turns: list[object] = []
    with Services(str(root), 0.05, only=["flush"], on_turn=turns.append, apply=True):
        while not turns:
            time.sleep(0.01)
        append(root, numbered("T", 0, 4), options=CommitOptions(sync=False, lock_timeout=10))
    assert Abort.read_mark(Opened(str(root))) is None

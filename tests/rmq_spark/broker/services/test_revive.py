"""The service `revive`: groups without a living consumer."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.broker.pop.revive import ReviveService
from rmq_spark.broker.services.service import Now
from rmq_spark.services import Services, run_once
from store_format import MessageStore
from store_format.bookkeeping.ledger import Ledger, ServiceCounters
from store_format.errors import CorruptStoreError
from store_format.opened.store import Opened
from store_format.pop.log import InFlightLog, in_flight_directory
from tests.rmq_spark.broker.pop.test_share import NOW_MS, QUEUES, RETRY, open_share, pop
from tests.support.fixtures import Unchanged
from tests.support.staged import append, make_store, numbered
from tests.support.waiting import bodies


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with 40 messages, of which a consumer that was killed has 5."""
    make_store(tmp_path / "s")
    append(tmp_path / "s", numbered("T", 0, 40))
    killed(tmp_path / "s", 5)
    return tmp_path / "s"


def killed(root: Path, count: int) -> None:
    share = open_share(root, init_mode="MIN")
    share.begin(QUEUES)
    pop(share, (0, 0), count)
    share.log.close()
    share._lease.end()


def turn(root: Path, now_ms: int) -> dict[str, Any]:
    (row,) = run_once(str(root), ["revive"], now_ms, apply=True).to_pylist()
    return {name: row[name] for name in ("due", "done", "lateMs")}


def test_messages_come_again_without_a_living_consumer(root: Path) -> None:
    assert turn(root, NOW_MS + 59_999) == {"due": 0, "done": 0, "lateMs": None}
    assert turn(root, NOW_MS + 61_500) == {"due": 5, "done": 5, "lateMs": 1_500}
    assert turn(root, NOW_MS + 61_501) == {"due": 0, "done": 0, "lateMs": None}
    assert bodies(root, RETRY).total() == 5
    counters = ServiceCounters.read_all(Opened(str(root)))
    assert counters is not None
    assert (counters["revive"].turns, counters["revive"].done) == (1, 5)


def test_the_plan_names_each_message_and_changes_nothing(root: Path, unchanged: Unchanged) -> None:
    store, now = MessageStore.open(str(root)), Now(NOW_MS + 60_000)
    with unchanged(root):
        plan = ReviveService().plan(store, Ledger.read(Opened(str(root))), now)
    assert (plan.due, plan.changes, plan.next_due, plan.late_ms) == (5, True, None, 0)
    rows = plan.table().to_pylist()
    assert [(row["group"], row["topic"], row["queueId"], row["queueOffset"]) for row in rows] == [
        ("g", "T", 0, offset) for offset in range(5)
    ]
    early = ReviveService().plan(store, Ledger.read(Opened(str(root))), Now(NOW_MS))
    assert (early.due, early.changes, early.next_due, early.late_ms) == (0, False, now.ms, None)


def test_the_next_turn_is_due_when_more_becomes_visible(root: Path) -> None:
    log = InFlightLog(in_flight_directory(Opened(str(root)), "g", "T"))
    log.run(lambda state: state.hand_out(0, 1, range(3), 3, NOW_MS + 5_000, 60_000))
    log.close()
    store, ledger = MessageStore.open(str(root)), Ledger.read(Opened(str(root)))
    assert ReviveService().plan(store, ledger, Now(NOW_MS + 60_000)).next_due == NOW_MS + 65_000


def test_a_damaged_log_keeps_no_other_from_its_turn(root: Path) -> None:
    directory = Path(in_flight_directory(Opened(str(root)), "a", "T"))
    directory.mkdir(parents=True)
    (directory / "in-flight.log").write_bytes(b"something")
    with pytest.raises(CorruptStoreError, match="expected the bytes"):
        turn(root, NOW_MS + 60_000)
    assert bodies(root, RETRY).total() == 5


def test_the_loop_revives_when_the_time_has_come(root: Path) -> None:
    clock = iter(range(NOW_MS + 59_800, NOW_MS + 90_000, 20))
    turns: list[Any] = []
    services = Services(
        str(root), 0.05, only=["revive"], on_turn=turns.append, clock_ms=lambda: next(clock), apply=True
    )
    with services:
        deadline = time.monotonic() + 10
        while bodies(root, RETRY).total() < 5 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert bodies(root, RETRY).total() == 5
    assert sum(each.done for reports in turns for each in reports) == 5


def test_a_store_without_pop_gets_no_file(tmp_path: Path, unchanged: Unchanged) -> None:
    root = make_store(tmp_path / "s")
    turn(root, NOW_MS)
    with unchanged(root):
        assert turn(root, NOW_MS)["due"] == 0

"""One turn: previews, errors that stop nothing else, counters, stores in use and stores that are refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.broker.services.schedule import Schedule, SchedulePlan
from rmq_spark.broker.services.service import Now
from rmq_spark.broker.services.turn import chosen_services, take_turn, turn_table
from rmq_spark.services import recover, run_once
from store_format.bookkeeping.ledger import Ledger, ServiceCounters
from store_format.errors import CorruptStoreError, OptionError, StoreInUseError, UnsupportedFormatError
from store_format.metadata.read import BrokerConf
from store_format.opened.store import Opened
from store_format.read.store import Store
from tests.support.fixtures import Golden, Unchanged
from tests.support.staged import make_store
from tests.support.waiting import BEGIN_MS, append, bodies, delayed, poisoned
from tests.support.writes import held

_LATER_MS = BEGIN_MS + 60_000
_BROKER_STOPPED_MS = 1_795_244_093_309  # delay-tx-5.5.0: nothing is due


class Failing:
    """A service that finds damage, or meets another error."""

    name = "failing"

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error or CorruptStoreError("file", 7, "something", "something else")

    def plan(self, store: Store, ledger: Ledger, now: Now) -> SchedulePlan:
        raise self._error


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of rmqlog with 5 messages of level 1."""
    made = make_store(tmp_path / "store")
    append(made, delayed("T", 1, 0, 5))
    return made


def test_the_table_of_a_turn(root: Path) -> None:
    append(root, delayed("T", 18, 5, 1))
    table = run_once(str(root), ["schedule"], BEGIN_MS + 3_500, apply=True)
    assert table.column_names == ["service", "due", "done", "nextDue", "lateMs", "error"]
    assert table["nextDue"].type == pa.timestamp("us", "UTC")
    (row,) = table.to_pylist()
    assert row["nextDue"].timestamp() * 1000 == BEGIN_MS + 2 * 3_600_000
    assert [row[name] for name in ("service", "due", "done", "lateMs")] == ["schedule", 5, 5, 2_500]


def test_without_apply_a_turn_is_a_preview(copy_of: Golden, unchanged: Unchanged, root: Path) -> None:
    """Of every store, also of one that rmqlog created, and after turns that were applied."""
    copy = copy_of("delay-tx-5.5.0")
    assert run_once(str(copy), ["schedule"], _BROKER_STOPPED_MS, apply=True)["done"].to_pylist() == [0]
    with pytest.raises(OptionError, match="explicit fileReservedTime"):
        run_once(str(copy), ["clean"], apply=True)
    assert run_once(str(root), ["schedule"], BEGIN_MS, apply=True)["done"].to_pylist() == [0]
    for store, due in ((copy, 43), (root, 5)):
        with unchanged(store):
            for _ in range(2):
                (row,) = run_once(str(store), ["schedule"]).to_pylist()
                assert (row["due"], row["done"], row["error"]) == (due, 0, None)
    assert run_once(str(root), ["schedule"], _LATER_MS, apply=True)["done"].to_pylist() == [5]


@pytest.mark.parametrize("apply", [False, True])
def test_a_store_with_rocksdb_queues_is_refused_as_by_recover(
    copy_of: Golden, unchanged: Unchanged, apply: bool
) -> None:
    copy = copy_of("rocksdb-5.5.0")
    with pytest.raises(UnsupportedFormatError, match="expected consume queues in files") as of_recover:
        recover(str(copy))
    with unchanged(copy), pytest.raises(UnsupportedFormatError) as refused:
        run_once(str(copy), apply=apply)
    assert str(refused.value) == str(of_recover.value)


def test_a_store_in_use_may_be_looked_at_and_not_written(root: Path, golden: Golden) -> None:
    with held(root), pytest.raises(StoreInUseError, match="stop that process first"):
        run_once(str(root), ["schedule"], _LATER_MS, apply=True)
    assert not bodies(root, "T")


def test_an_error_of_a_service_does_not_keep_the_others_from_their_turn(root: Path) -> None:
    failing, schedule = take_turn(str(root), [Failing(), Schedule()], Now(_LATER_MS))
    assert isinstance(failing.errors[0], CorruptStoreError)
    assert (failing.due, failing.done, failing.has_worked) == (0, 0, False)
    assert (schedule.errors, schedule.done, schedule.has_worked) == ((), 5, True)
    counters = ServiceCounters.read_all(Opened(str(root)))
    assert counters is not None
    assert (counters["failing"].failures, counters["schedule"].failures) == (1, 0)
    assert (counters["failing"].done, counters["schedule"].done) == (0, 5)


def test_an_error_that_nobody_foresaw_does_not_keep_the_others_from_their_turn(root: Path) -> None:
    failing, schedule = take_turn(str(root), [Failing(ZeroDivisionError("x")), Schedule()], Now(_LATER_MS))
    assert failing.error_text == "ZeroDivisionError: x"
    assert schedule.done == 5


def test_a_report_has_what_was_done_beside_the_errors(root: Path) -> None:
    append(root, [poisoned("T", 2, 5), poisoned("T", 3, 6), *delayed("T", 18, 7, 1)])
    (report,) = take_turn(str(root), [Schedule()], Now(_LATER_MS))
    assert (report.due, report.done, len(report.errors)) == (7, 5, 2)
    # the next turn is for the levels that go on: not at once for those that failed
    assert report.next_due == BEGIN_MS + 2 * 3_600_000
    counters = ServiceCounters.read_all(Opened(str(root)))
    assert counters is not None
    assert (counters["schedule"].done, counters["schedule"].failures) == (5, 1)
    (row,) = turn_table([report]).to_pylist()
    assert (row["service"], row["done"]) == ("schedule", 5)
    for queue_id in (1, 2):
        assert f"SCHEDULE_TOPIC_XXXX-{queue_id} offset 0" in row["error"]


def test_a_preview_names_a_level_that_messagedelaylevel_lacks(root: Path) -> None:
    (report,) = take_turn(
        str(root), [Schedule()], Now(_LATER_MS, BrokerConf(message_delay_levels_ms=())), preview=True
    )
    assert "messageDelayLevel has 0 levels" in str(report.error_text)


def test_run_once_raises_the_error_after_the_turn(root: Path) -> None:
    path = root / "commitlog" / f"{0:020}"
    append(root, delayed("T", 2, 5, 1))
    path.write_bytes(path.read_bytes().replace(b"message 0 of T", b"massage 0 of T", 1))
    with pytest.raises(CorruptStoreError, match="commitlog/0") as caught:
        run_once(str(root), ["schedule", "flush"], _LATER_MS, apply=True)
    assert bodies(root, "T") == {b"message 5 of T": 1}
    assert caught.value.__notes__ == [f"schedule: 1 of 6 done; failed: {caught.value}", "flush: 0 of 0 done"]


def test_above_the_limit_of_the_disk_no_message_is_stored(root: Path) -> None:
    """As in a broker, which refuses its own delivery, too, and goes on to flush and to delete files."""
    schedule, flush = take_turn(
        str(root), chosen_services(["schedule", "flush"]), Now(_LATER_MS), disk_limit=0
    )
    assert (schedule.due, schedule.done, flush.errors) == (5, 0, ())
    assert "above the limit of 0 % for writes" in str(schedule.error_text)
    assert run_once(str(root), ["schedule"], _LATER_MS, apply=True)["done"].to_pylist() == [5]


def test_counters_count_turns_that_did_something(root: Path) -> None:
    for now_ms in (BEGIN_MS, _LATER_MS, _LATER_MS + 1, _LATER_MS + 2):
        run_once(str(root), ["schedule"], now_ms, apply=True)
    counters = ServiceCounters.read_all(Opened(str(root)))
    assert counters is not None
    counted = counters["schedule"]
    assert (counted.turns, counted.done, counted.last_turn) == (1, 5, _LATER_MS)
    assert counted.late_ms_max == _LATER_MS - BEGIN_MS - 1_000


def test_a_turn_of_an_idle_store_changes_no_file(root: Path, unchanged: Unchanged) -> None:
    run_once(str(root), now_ms=_LATER_MS, apply=True)
    with unchanged(root):
        run_once(str(root), now_ms=_LATER_MS + 1, apply=True)


def test_the_clock_is_read_again_when_the_turn_has_the_lock(root: Path) -> None:
    """A turn may wait for a long commit: what became due meanwhile is delivered, with the later time."""
    (report,) = take_turn(str(root), [Schedule()], Now(BEGIN_MS), clock_ms=lambda: _LATER_MS)
    assert (report.done, report.late_ms) == (5, _LATER_MS - BEGIN_MS - 1_000)


def test_a_commitlog_outside_of_the_store(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "log")
    paths = [str(tmp_path / "log")]
    table = run_once(str(root), ["schedule"], _LATER_MS, commit_log_paths=paths, apply=True)
    assert table["done"].to_pylist() == [5]
    assert not (root / "commitlog").exists()


def test_services_by_name() -> None:
    """Those that have to be named are left out: a turn must not delete files that nobody asked to delete."""
    known = {
        "schedule",
        "timer",
        "revive",
        "flush",
        "clean",
        "transaction",
    }  # a new service may stand anywhere
    found = [each.name for each in chosen_services(None) if each.name in known]
    assert found == ["schedule", "timer", "revive", "flush"]
    assert [each.name for each in chosen_services(["schedule"])] == ["schedule"]
    with pytest.raises(OptionError, match="unknown service 'shedule'; did you mean schedule"):
        chosen_services(["shedule"])

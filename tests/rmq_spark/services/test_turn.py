"""One turn: previews of stores that rmqlog did not create, errors, counters, stores in use."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.services import run_once
from rmq_spark.services.registry import NAMED_ONLY, chosen_services, service_names
from rmq_spark.services.schedule import Schedule, SchedulePlan
from rmq_spark.services.service import Now
from rmq_spark.services.turn import is_preview, take_turn
from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.service_counters import read_counters
from store_format.errors import CorruptStoreError, OptionError, StoreInUseError
from store_format.read.store import Store
from tests.support.staged import make_store
from tests.support.waiting import BEGIN_MS, append, bodies, delayed
from tests.support.writes import held

_LATER_MS = BEGIN_MS + 60_000
_BROKER_STOPPED_MS = 1_795_244_093_309  # delay-tx-5.5.0: nothing is due
_Unchanged = Callable[[Path], AbstractContextManager[None]]


class Failing:
    """A service that finds damage."""

    name = "failing"

    def plan(self, store: Store, ledger: Ledger, now: Now) -> SchedulePlan:
        raise CorruptStoreError("file", 7, "something", "something else")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store of rmqlog with 5 messages of level 1."""
    made = make_store(tmp_path / "store")
    append(made, delayed("T", 1, 0, 5))
    return made


def test_the_table_of_a_turn(root: Path) -> None:
    append(root, delayed("T", 18, 5, 1))
    table = run_once(str(root), ["schedule"], BEGIN_MS + 3_500)
    assert table.column_names == ["service", "due", "done", "nextDue", "lateMs"]
    assert table["nextDue"].type == pa.timestamp("us", "UTC")
    (row,) = table.to_pylist()
    assert row["nextDue"].timestamp() * 1000 == BEGIN_MS + 2 * 3_600_000
    assert [row[name] for name in ("service", "due", "done", "lateMs")] == ["schedule", 5, 5, 2_500]


def test_a_foreign_store_is_only_looked_at_until_somebody_says_apply(
    golden: Callable[[str], Path], tmp_path: Path, unchanged: _Unchanged
) -> None:
    copy = Path(shutil.copytree(golden("delay-tx-5.5.0"), tmp_path / "copy"))
    assert is_preview(str(copy), apply=False)
    with unchanged(copy):
        for _ in range(2):
            assert run_once(str(copy), ["schedule"])["due"].to_pylist() == [43]
    assert not is_preview(str(copy), apply=True)
    assert run_once(str(copy), ["schedule"], _BROKER_STOPPED_MS, apply=True)["done"].to_pylist() == [0]
    # even a turn that did nothing shows that somebody wants the services to write here
    assert not is_preview(str(copy), apply=False)
    assert run_once(str(copy), ["schedule"])["done"].to_pylist() == [43]


def test_a_store_in_use_may_be_looked_at_and_not_written(root: Path, golden: Callable[[str], Path]) -> None:
    with held(root), pytest.raises(StoreInUseError, match="stop that process first"):
        run_once(str(root), ["schedule"], _LATER_MS)
    assert not bodies(root, "T")


def test_an_error_of_a_service_does_not_keep_the_others_from_their_turn(root: Path) -> None:
    failing, schedule = take_turn(str(root), [Failing(), Schedule()], Now(_LATER_MS))
    assert isinstance(failing.error, CorruptStoreError)
    assert (failing.due, failing.done) == (0, 0)
    assert (schedule.error, schedule.done) == (None, 5)
    counters = read_counters(str(root))
    assert counters is not None
    assert (counters["failing"].failures, counters["schedule"].failures) == (1, 0)
    assert (counters["failing"].done, counters["schedule"].done) == (0, 5)


def test_run_once_raises_the_error_after_the_turn(root: Path) -> None:
    path = root / "commitlog" / f"{0:020}"
    append(root, delayed("T", 2, 5, 1))
    path.write_bytes(path.read_bytes().replace(b"message 0 of T", b"massage 0 of T", 1))
    with pytest.raises(CorruptStoreError, match="commitlog/0"):
        run_once(str(root), ["schedule"], _LATER_MS)
    assert bodies(root, "T") == {b"message 5 of T": 1}


def test_counters_count_turns_that_did_something(root: Path) -> None:
    for now_ms in (BEGIN_MS, _LATER_MS, _LATER_MS + 1, _LATER_MS + 2):
        run_once(str(root), ["schedule"], now_ms)
    counters = read_counters(str(root))
    assert counters is not None
    counted = counters["schedule"]
    assert (counted.turns, counted.done, counted.last_turn) == (1, 5, _LATER_MS)
    assert counted.late_ms_max == _LATER_MS - BEGIN_MS - 1_000


def test_a_turn_of_an_idle_store_changes_no_file(root: Path, unchanged: _Unchanged) -> None:
    run_once(str(root), now_ms=_LATER_MS)
    with unchanged(root):
        run_once(str(root), now_ms=_LATER_MS + 1)


def test_the_clock_is_read_again_when_the_turn_has_the_lock(root: Path) -> None:
    """A turn may wait for a long commit: what became due meanwhile is delivered, with the later time."""
    (report,) = take_turn(str(root), [Schedule()], Now(BEGIN_MS), clock_ms=lambda: _LATER_MS)
    assert (report.done, report.late_ms) == (5, _LATER_MS - BEGIN_MS - 1_000)


def test_a_commitlog_outside_of_the_store(root: Path, tmp_path: Path) -> None:
    (root / "commitlog").rename(tmp_path / "log")
    paths = [str(tmp_path / "log")]
    done = run_once(str(root), ["schedule"], _LATER_MS, commit_log_paths=paths)["done"].to_pylist()
    assert done == [5]
    assert not (root / "commitlog").exists()


def test_services_by_name() -> None:
    assert [each.name for each in chosen_services(None)] == [
        name for name in service_names() if name not in NAMED_ONLY
    ]
    assert [each.name for each in chosen_services(["schedule"])] == ["schedule"]
    with pytest.raises(OptionError, match="unknown service 'shedule'; did you mean schedule"):
        chosen_services(["shedule"])

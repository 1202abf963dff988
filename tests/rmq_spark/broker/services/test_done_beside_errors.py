"""A turn that fails after a part of its work reports that part as done, beside the error."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.broker.services import decisions
from rmq_spark.broker.services.clean import CleanService
from rmq_spark.broker.services.schedule import Schedule
from rmq_spark.broker.services.service import Now, PartsFailedError, Service
from rmq_spark.broker.services.timer import Timer
from rmq_spark.broker.services.turn import TurnReport, take_turn
from rmq_spark.services import retry, timer, transaction
from store_format.commit.options import CommitOptions
from store_format.errors import StoreInUseError
from store_format.metadata.read import BrokerConf
from store_format.read import stored_messages
from tests.support.failing_writer import Failure, install
from tests.support.fixtures import Golden
from tests.support.halves import BORN_MS, half_store, visible
from tests.support.staged import append as append_messages
from tests.support.staged import make_store, numbered
from tests.support.waiting import BEGIN_MS, append, bodies, delayed, timed
from tests.support.writes import held

_LATER_MS = BEGIN_MS + 60_000


class _FailingCall(Failure):
    """A disk that refuses one call for a path that contains `text`, the `at`-th."""

    def __init__(self, name: str, text: str, at: int = 1) -> None:
        super().__init__("EIO", at)
        self.name, self.text = name, text

    def happens(self, name: str, args: tuple[Any, ...]) -> bool:
        return name == self.name and self.text in str(args[0]) and super().happens(name, args)


@contextmanager
def _failing_disk(failure: Failure) -> Iterator[None]:
    originals = install(failure)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def _turn(root: Path, service: Service, now_ms: int, conf: BrokerConf | None = None) -> TurnReport:
    (report,) = take_turn(str(root), [service], Now(now_ms, conf or BrokerConf()))
    return report


def test_a_large_slot_whose_last_part_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues of one topic are damaged; its message is in the third commit of the slot."""
    monkeypatch.setattr(timer, "_PART_MESSAGES_MAX", 10)
    conf = BrokerConf(timer_log_file_size=1 << 14)
    root = make_store(tmp_path / "store")
    append(root, [*timed("T", BEGIN_MS, 0, 24), *timed("Damaged", BEGIN_MS, 24, 1)])
    damaged = root / "consumequeue" / "Damaged"
    damaged.write_text("a file instead of a directory")
    for due, done in ((25, 20), (5, 0)):
        report = _turn(root, Timer(), _LATER_MS, conf)
        assert (report.due, report.done, len(report.errors)) == (due, done, 1)
        assert "consumequeue/Damaged" in str(report.error_text)
        assert report.has_worked == bool(done)
    damaged.unlink()
    report = _turn(root, Timer(), _LATER_MS, conf)
    assert (report.done, report.errors) == (5, ())
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in range(24)}


def _schedule(tmp_path: Path) -> tuple[Path, Service]:
    root = make_store(tmp_path / "store")
    append(root, delayed("T", 1, 0, 5))
    return root, Schedule()


def _timer(tmp_path: Path) -> tuple[Path, Service]:
    root = make_store(tmp_path / "store")
    append(root, timed("T", BEGIN_MS, 0, 5))
    return root, Timer()


@pytest.mark.parametrize(
    ("made", "file", "at"),
    [(_schedule, "delayOffset.json", 1), (_timer, "timercheck", 2)],
    ids=["schedule", "timer"],
)
def test_messages_are_stored_and_the_progress_is_not(
    tmp_path: Path, made: Callable[[Path], tuple[Path, Service]], file: str, at: int
) -> None:
    root, service = made(tmp_path)
    with _failing_disk(_FailingCall("rename", file, at)):
        report = _turn(root, service, _LATER_MS)
    assert (report.due, report.done, len(report.errors)) == (5, 5, 1)
    assert file in str(report.error_text)
    assert _turn(root, service, _LATER_MS).done == 0
    assert bodies(root, "T").total() == 5


def test_half_messages_are_decided_and_the_offsets_are_not_written(tmp_path: Path) -> None:
    root = half_store(tmp_path / "store", ["A", "B"])
    checker = transaction.checker(lambda message: "commit")
    with _failing_disk(_FailingCall("rename", "consumerOffset.json")):
        report = _turn(root, checker, BORN_MS + 60_000)
    assert (report.due, report.done, len(report.errors)) == (2, 2, 1)
    assert "consumerOffset.json" in str(report.error_text)
    assert _turn(root, checker, BORN_MS + 60_000).done == 0
    assert visible(root) == ["A", "B"]


def test_files_that_are_deleted_before_one_that_cannot_be(root: Path) -> None:
    for _ in range(4):
        append_messages(root, numbered("T", 0, 120))
    files = sorted((root / "commitlog").iterdir())
    assert len(files) > 4
    now_ms = 1_800_000_000_000
    for file in files:
        os.utime(file, (0, now_ms // 1000 - 100 * 3600))
    conf = BrokerConf.of({"fileReservedTime": "72", "deleteWhen": "04"}, "test")
    service = CleanService(disk_percent=lambda path: 80)
    with _failing_disk(_FailingCall("unlink", "commitlog/", 3)):
        report = _turn(root, service, now_ms, conf)
    assert (report.done, len(report.errors)) == (2, 1)
    assert "cannot remove" in str(report.error_text)
    report = _turn(root, service, now_ms + 10_000, conf)
    assert (report.done, report.errors) == (report.due, ())


def test_dead_letters_that_are_stored_again_before_an_error(
    copy_of: Golden, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_messages, "_CHUNK_MESSAGES", 1)
    root = str(copy_of("retry-dlq-5.5.0"))
    plan = retry.resend(root, "CG_fail")
    assert plan.due > 2
    with (
        _failing_disk(_FailingCall("rename", "resent.json", 2)),
        pytest.raises(PartsFailedError, match=r"resent\.json") as caught,
    ):
        plan.apply()
    assert caught.value.done == 2
    assert retry.resend(root, "CG_fail").due == plan.due - 2


def test_transactions_that_are_decided_before_a_store_of_the_cluster_fails(tmp_path: Path) -> None:
    first, second = (half_store(tmp_path / f"broker-{name}", ids) for name, ids in (("a", "AB"), ("b", "C")))
    plan = transaction.decide(str(tmp_path), commit=["A", "C"], rollback=["B"])
    at_once = CommitOptions(lock_timeout=0)
    with held(first), pytest.raises(StoreInUseError, match="broker-a"):
        plan.apply(key=("job", 1), options=at_once)
    with held(second), pytest.raises(PartsFailedError, match="broker-b") as caught:
        plan.apply(key=("job", 1), options=at_once)
    assert caught.value.done == 2
    assert (visible(first), visible(second)) == (["A"], [])
    assert plan.apply(key=("job", 1), options=at_once) == 1
    assert (visible(first), visible(second)) == (["A"], ["C"])


def test_transactions_that_are_decided_before_a_commit_of_their_store_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "TURN_MESSAGES_MAX", 2)
    root = half_store(tmp_path / "store", "ABCDE")
    plan = transaction.decide(str(root), commit="ABCDE")
    # each commit begins with its journal
    with (
        _failing_disk(_FailingCall("rename", "journal.json", 3)),
        pytest.raises(PartsFailedError, match=r"journal\.json") as caught,
    ):
        plan.apply()
    assert caught.value.done == 4
    assert visible(root) == ["A", "B", "C", "D"]
    assert transaction.decide(str(root), commit="ABCDE").apply() == 1

"""The check of half messages: one lost or odd half message does not hold up the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.services import HalfMessage, run_once, transaction
from store_format.layouts import CQ_UNIT
from tests.support.halves import BORN_MS, add_halves, checker_offsets, half_store, states, visible
from tests.support.staged import append, numbered

MINUTE = 60_000
_PRE_BLANK = bytes(8) + (2**31 - 1).to_bytes(4, "big") + bytes(8)


def check(root: Path, answer: Callable[[HalfMessage], str | None], now_ms: int) -> int:
    return transaction.check(str(root), answer, now_ms).apply()


def commit(message: HalfMessage) -> str:
    return "commit"


def test_the_places_of_lost_half_messages_are_passed(tmp_path: Path) -> None:
    """More of them than a check reads first. A recovery with --salvage writes such units."""
    root = half_store(tmp_path / "s", [f"{place:02}" for place in range(50)])
    _lose(root, 2, 45)
    (turn,) = run_once(
        str(root), ["schedule"], BORN_MS + 5000, extra=[transaction.checker(commit)], apply=True
    ).to_pylist()[1:]
    assert turn["nextDue"].timestamp() * 1000 == BORN_MS + 6000
    assert check(root, commit, BORN_MS + MINUTE) == 7
    assert visible(root) == ["00", "01", "45", "46", "47", "48", "49"]
    assert checker_offsets(root)[0] == 50


def test_a_queue_that_ends_in_lost_half_messages_is_checked_to_its_end(tmp_path: Path) -> None:
    root = half_store(tmp_path / "s", [f"{place:02}" for place in range(50)])
    append(
        root, numbered("Other", 0, 1)
    )  # a log that ends in a half message would show that entries are lost
    _lose(root, 0, 50)
    assert check(root, commit, BORN_MS + MINUTE) == 0
    (turn,) = run_once(
        str(root), ["schedule"], BORN_MS + MINUTE, extra=[transaction.checker(commit)], apply=True
    ).to_pylist()[1:]
    assert turn["nextDue"] is None
    assert checker_offsets(root)[0] == 50


def test_a_check_before_a_crash_is_known_after_retention(tmp_path: Path) -> None:
    """The crash comes after the commit and before the checker's first offsets are written."""
    root = half_store(tmp_path / "s", [])
    for part in range(6):
        add_halves(root, [f"{part}-{place}" for place in range(60)])
    assert check(root, commit, BORN_MS + MINUTE) == 360
    (root / "config/consumerOffset.json").unlink()
    (root / "config/consumerOffset.json.bak").unlink(missing_ok=True)
    min(root.joinpath("commitlog").iterdir()).unlink()
    assert check(root, commit, BORN_MS + 2 * MINUTE) == 0
    assert len(visible(root)) == 360


@pytest.mark.parametrize("topic", ["x" * 300, "é" * 100], ids=["long", "many bytes"])
def test_a_commit_to_a_topic_that_is_too_long_does_not_hold_up_the_others(
    topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = half_store(tmp_path / "s", ["A"])
    add_halves(root, ["C"], stored={"REAL_TOPIC": topic})
    add_halves(root, ["D"])
    assert check(root, commit, BORN_MS + MINUTE) == 3
    assert "cannot be committed and is checked again" in caplog.text
    assert states(root) == {"A": "committed", "C": "pending", "D": "committed"}
    for minute in range(2, 18):
        check(root, commit, BORN_MS + minute * MINUTE)
    assert states(root) == {"A": "committed", "C": "discarded", "D": "committed"}


def test_a_half_message_with_no_room_for_the_count_does_not_hold_up_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its properties have nearly 32,767 bytes, and a check adds TRANSACTION_CHECK_TIMES."""
    root = half_store(tmp_path / "s", ["A"])
    add_halves(root, ["C"], properties={"big": "x" * 32640})
    add_halves(root, ["D"])
    assert check(root, commit, BORN_MS + MINUTE) == 3
    assert "offset 1 cannot be stored again and is discarded" in caplog.text
    assert states(root) == {"A": "committed", "C": "discarded", "D": "committed"}
    assert visible(root, "TRANS_CHECK_MAX_TIME_TOPIC") == ["C"]


def _lose(root: Path, start: int, stop: int) -> None:
    """Makes the units [start, stop) of the half queue those of lost messages."""
    (file,) = (root / "consumequeue/RMQ_SYS_TRANS_HALF_TOPIC/0").iterdir()
    with file.open("r+b") as units:
        units.seek(start * CQ_UNIT.itemsize)
        units.write(_PRE_BLANK * (stop - start))

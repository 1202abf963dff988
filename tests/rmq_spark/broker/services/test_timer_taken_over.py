"""A broker may take over a timer between any two turns of the service, and after a kill in one of them.

`tests/support/timer_broker.py` says what a broker would deliver; `tests/interop` asks a broker.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.services import run_once, timer
from rmq_spark.write.stage_and_commit import commit_write, stage_rows
from store_format import MessageStore
from store_format.metadata.read import BrokerConf
from store_format.metadata.timer import TimerCheck
from store_format.opened.store import Opened
from tests.support.timer_broker import lost, to_come
from tests.support.waiting import BEGIN_MS, append, bodies, recall_of, timed
from tests.support.writes import numbered_rows, target_of

SECOND, DAY = 1_000, 24 * 3_600_000
CONF = BrokerConf(timer_log_file_size=1 << 14, timer_roll_window_slots=20)


def _turn(root: Path, now_ms: int, conf: BrokerConf = CONF) -> dict[str, Any]:
    return run_once(str(root), ["timer"], now_ms, apply=True, broker_conf=conf).to_pylist()[0]


def _keys(*numbers: int) -> Counter[str]:
    return Counter(f"U{i:07d}" for i in numbers)


def test_a_message_that_is_stored_again_is_in_the_wheel_after_the_turn(root: Path) -> None:
    append(root, timed("T", BEGIN_MS + 24 * SECOND, 0, 3))
    _turn(root, BEGIN_MS)
    assert _turn(root, BEGIN_MS + 11 * SECOND)["done"] == 3
    check = TimerCheck.read(Opened(str(root)))
    assert check is not None
    assert check.last_timer_queue_offset == 6, "nothing is left for the next turn, or for a broker"
    assert to_come(root) == _keys(0, 1, 2)
    assert lost(root) == set()
    again = _turn(root, BEGIN_MS + 11 * SECOND)
    assert (again["done"], again["nextDue"].timestamp() * 1000) == (0, BEGIN_MS + 25 * SECOND)
    assert _turn(root, BEGIN_MS + 25 * SECOND)["done"] == 3
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in range(3)}


def test_a_message_whose_time_has_passed_is_delivered_and_not_stored_again(root: Path) -> None:
    """The service did not run when the roll window was over: what is due is delivered in the same turn."""
    append(root, timed("T", BEGIN_MS + 24 * SECOND, 0, 2) + timed("T", BEGIN_MS + 29 * SECOND, 2, 1))
    _turn(root, BEGIN_MS)
    assert _turn(root, BEGIN_MS + 27 * SECOND)["done"] == 3
    assert bodies(root, "T") == {b"message 0 of T": 1, b"message 1 of T": 1}
    assert to_come(root) == _keys(2)
    assert lost(root) == set()
    assert _turn(root, BEGIN_MS + 30 * SECOND)["done"] == 1
    assert bodies(root, "T").total() == 3


@pytest.mark.parametrize("recalled_after_ms", [0, 9 * SECOND])
def test_a_late_recall_holds_for_a_late_message(root: Path, recalled_after_ms: int) -> None:
    """The recall waits for the end of a roll window too, or in the second of the message."""
    messages = timed("T", BEGIN_MS + 24 * SECOND, 0, 2)
    append(root, messages)
    _turn(root, BEGIN_MS)
    append(root, [recall_of(messages[1])], BEGIN_MS + recalled_after_ms)
    _turn(root, BEGIN_MS + recalled_after_ms)
    _turn(root, BEGIN_MS + 27 * SECOND)
    _turn(root, BEGIN_MS + 30 * SECOND)
    assert bodies(root, "T") == {b"message 0 of T": 1}


def test_more_new_messages_than_a_turn_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "TURN_MESSAGES_MAX", 4)
    append(root, timed("T", BEGIN_MS, 0, 1))
    assert _turn(root, BEGIN_MS + 5 * SECOND)["done"] == 1
    append(root, timed("T", BEGIN_MS + 8 * SECOND, 1, 9), BEGIN_MS + 6 * SECOND)
    for _ in range(3):
        _turn(root, BEGIN_MS + 9 * SECOND)
        assert lost(root) == set()
    assert bodies(root, "T").total() == 10


def test_slots_far_behind_and_new_messages(root: Path) -> None:
    """Slots of 13 days ago are read before new messages take their places; both in one turn."""
    append(root, timed("T", BEGIN_MS + 5 * SECOND, 0, 3))
    _turn(root, BEGIN_MS)
    later = BEGIN_MS + 13 * DAY
    append(root, timed("T", later - 2 * DAY, 3, 2) + timed("T", later + SECOND, 5, 1), later - 3 * DAY)
    _turn(root, later)
    assert lost(root) == set()
    assert to_come(root) == _keys(3, 4, 5)
    _turn(root, later + 2 * SECOND)
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in range(6)}


def test_the_view_shows_a_message_that_came_too_late_for_its_slot(root: Path) -> None:
    append(root, timed("T", BEGIN_MS, 0, 1))
    assert _turn(root, BEGIN_MS + 5 * SECOND)["done"] == 1
    append(root, timed("T", BEGIN_MS + SECOND, 1, 2), BEGIN_MS + 5 * SECOND)
    assert _turn(root, BEGIN_MS + 5 * SECOND)["done"] == 0
    rows = MessageStore.open(str(root)).view("delayed", now_ms=BEGIN_MS + 6 * SECOND).to_pylist()
    assert [(row["msgId"], row["state"]) for row in rows] == [("U0000001", "due"), ("U0000002", "due")]
    assert _turn(root, BEGIN_MS + 6 * SECOND)["done"] == 2
    assert not MessageStore.open(str(root)).view("delayed", now_ms=BEGIN_MS + 7 * SECOND).num_rows


def test_messages_that_were_staged_before_their_slot_was_read(root: Path) -> None:
    """A write that takes long, beside the service: its commit puts into the wheel what would be missed."""
    begin_ms = time.time_ns() // 1_000_000
    append(root, timed("T", begin_ms, 0, 1), begin_ms)
    rows = numbered_rows(0, 3, "T", deliverTimestamp=[begin_ms + ms for ms in (3_000, 60_000, 90_000)])
    target = target_of(root)
    staged = stage_rows(target, [rows])
    assert _turn(root, begin_ms + 70_000)["done"] == 1
    commit_write(target, [staged], None)
    assert to_come(root).total() == 3
    assert lost(root) == set()
    assert [_turn(root, begin_ms + ms)["done"] for ms in (72_000, 95_000)] == [2, 1]

"""A broker takes over a timer that only our services have written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.services import run_once, timer
from rmq_spark.write.timer_wheel import put_late_in_wheel
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.create_store import StoreDirectory
from store_format.commit.options import CommitOptions
from store_format.metadata.read import BrokerConf
from tests.interop.harness import RocketMQ
from tests.support.staged import messages_of
from tests.support.waiting import append, timed

_SETTINGS = StoreSettings("broker-a", 1 << 20, 20 * 100, 500, 1000)
_CONFIG = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "1000",
    "mappedFileSizeTimerLog": "1024",
    "timerRollWindowSlot": "30",
    # Puts new messages into the wheel for a while before it delivers: else a fast start hides what is missed.
    "enableSlaveActingMaster": "true",
    "totalReplicas": "2",
}
_CONF = BrokerConf(timer_log_file_size=1024, timer_roll_window_slots=30)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _delivered(root: Path) -> Counter[str]:
    return Counter(m.properties["UNIQ_KEY"] for m in messages_of(root) if m.topic == "Timed")


def _turn(root: Path, now_ms: int) -> int:
    (done,) = run_once(str(root), ["timer"], now_ms, broker_conf=_CONF, apply=True)["done"].to_pylist()
    return int(done)


def test_a_broker_goes_on_with_our_timer(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that we have delivered, slots in two timerlog files that wait, one recalled by our function.

    When the broker starts, the times of many others have passed: of messages that our turn stored again, of
    a write that ran beside our turns, and of new messages that did not fit into our turn.
    """
    root, begin = tmp_path / "store", _now() // 1000 * 1000
    StoreDirectory(str(root)).create(_SETTINGS, timestamp=begin)
    rolled = [m for i in range(10) for m in timed("Timed", begin + 150 * i, 33 + i, 1)]
    append(root, rolled, begin - 31_000)
    assert _turn(root, begin - 31_000) == 0
    ours = timed("Timed", begin, 0, 15)
    soon = timed("Timed", begin + 13_000, 15, 10) + timed("Timed", begin + 14_000, 25, 5)
    append(root, [*ours, *soon], begin)
    assert _turn(root, begin + 1_500) == 15 + 10
    assert _delivered(root).total() == 15 + 7
    append(root, timed("Timed", begin, 43, 3), begin + 1_500)
    put_late_in_wheel(str(root), begin, CommitOptions(conf=_CONF, clock=lambda: begin + 1_500))
    append(root, timed("Timed", begin + 2_000, 46, 12), begin + 1_500)
    monkeypatch.setattr(timer, "TURN_MESSAGES_MAX", 4)
    assert _turn(root, begin + 1_600) == 0
    unread = timed("Timed", begin + 13_000, 30, 3)  # the broker puts these into the wheel
    append(root, unread, begin + 1_600)
    assert timer.recall(str(root), topic="Timed", uniq_key="U0000020", now_ms=begin + 1_600).apply() == 1
    time.sleep(max(0, begin + 4_000 - _now()) / 1_000)
    with rocketmq("5.5.0").broker(root, _CONFIG):
        while len(_delivered(root)) < 57 and _now() < begin + 120_000:
            time.sleep(0.2)
        time.sleep(1)
    monkeypatch.undo()
    assert _delivered(root) == {f"U{i:07d}": 1 for i in range(58) if i != 20}
    assert _turn(root, _now() + 5_000) == 0

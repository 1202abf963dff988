"""A broker takes over a timer that only our services have written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rmq_spark.services import run_once, timer
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.create_store import create_store
from store_format.metadata.broker_conf import BrokerConf
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
}
_CONF = BrokerConf(timer_log_file_size=1024)


def _now() -> int:
    return time.time_ns() // 1_000_000


def _delivered(root: Path) -> Counter[str]:
    return Counter(m.properties["UNIQ_KEY"] for m in messages_of(root) if m.topic == "Timed")


def test_a_broker_goes_on_with_our_timer(rocketmq: Callable[[str], RocketMQ], tmp_path: Path) -> None:
    """Slots that we have delivered, slots in two timerlog files that wait, one recalled by our function."""
    root, begin = tmp_path / "store", _now() // 1000 * 1000
    create_store(str(root), _SETTINGS, timestamp=begin)
    ours = timed("Timed", begin, 0, 15)
    soon = timed("Timed", begin + 20_000, 15, 10) + timed("Timed", begin + 21_000, 25, 5)
    append(root, [*ours, *soon], begin)
    assert run_once(str(root), ["timer"], begin + 1_500, broker_conf=_CONF)["done"].to_pylist() == [15]
    unread = timed("Timed", begin + 20_000, 30, 3)  # the broker puts these into the wheel
    append(root, unread, begin + 1_500)
    assert timer.recall(str(root), topic="Timed", uniq_key="U0000020", now_ms=begin + 1_600).apply() == 1
    with rocketmq("5.5.0").broker(root, _CONFIG):
        while len(_delivered(root)) < 32 and _now() < begin + 120_000:
            time.sleep(0.2)
        time.sleep(1)
    found = _delivered(root)
    assert found == {f"U{i:07d}": 1 for i in range(33) if i != 20}
    assert run_once(str(root), ["timer"], _now() + 5_000, broker_conf=_CONF)["done"].to_pylist() == [0]

"""The golden store with delays, timers and transactions goes on under a broker and under our services.

All its messages have been due for a long time, and no producer answers. Compared as in `test_services_same`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.services import run_once, transaction
from tests.interop.harness import RocketMQ
from tests.interop.same import OP, TIMER, Copy, differences
from tests.interop.workload import now_ms, until
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.halves import states
from tests.support.staged import messages_of

DISCARDED = "TRANS_CHECK_MAX_TIME_TOPIC"
_SETTINGS = {
    "messageDelayLevel": " ".join(["1s", "0s"] * 9),
    "transactionTimeOut": "500",
    "transactionCheckMax": "4",
    "transactionCheckInterval": "3600000",
}
_CHECKS = 5
_QUIET_SECONDS = 5


@pytest.mark.whole
def test_both_write_the_same(rocketmq: Callable[[str], RocketMQ], golden: Golden, tmp_path: Path) -> None:
    java, name = rocketmq("5.5.0"), "delay-tx-5.5.0"
    told = goldens.config(name) | _SETTINGS
    stores = {side: tmp_path / side for side in ("broker", "ours")}
    for store in stores.values():
        shutil.copytree(golden(name), store)
    last = messages_of(golden(name))[-1]
    began = last.physical_offset + last.total_size
    with java.broker(stores["broker"], told) as broker:
        begin_ms = now_ms()
        client = broker.client()
        for _ in range(_CHECKS):
            broker.check()
        _until_quiet(lambda: sum(stop for _, stop in client.ends().values()))
        client.program.kill()
    conf = java.config_file(stores["ours"], told | {"transactionCheckInterval": "1"})
    root = str(stores["ours"])
    for turn in range(30):
        run_once(root, now_ms=begin_ms + 1000 * turn, broker_conf=conf, apply=True)
        if turn < _CHECKS + 1:  # a broker that stops checks too
            transaction.check(root, lambda half: None, begin_ms + 1000 * turn, broker_conf=conf).apply()
    broker_copy, ours = (Copy(store, began) for store in stores.values())
    # Stricter than a broker, which discards two transactions whose first copies are decided.
    ended = {key for key, state in states(golden(name)).items() if state != "pending"}
    theirs = [each for each in broker_copy.written if each.topic != DISCARDED or each.uniq_key not in ended]
    assert len(theirs) == len(broker_copy.written) - 2
    assert differences(theirs, ours.written) == []
    assert broker_copy.queue_sizes[DISCARDED, 0] == (0, 18)
    assert ours.queue_sizes == broker_copy.queue_sizes | {(DISCARDED, 0): (0, 16), (OP, 0): (0, 4)}
    assert broker_copy.delay_offsets == ours.delay_offsets
    topics = {each.topic for each in ours.written}
    assert topics == {"Delay", "Timer", TIMER, DISCARDED}


def _until_quiet(total: Callable[[], int]) -> None:
    """Until no message was written for some seconds."""
    since, last = time.monotonic(), total()

    def is_quiet(now: int) -> bool:
        nonlocal since, last
        if now != last:
            since, last = time.monotonic(), now
        return time.monotonic() > since + _QUIET_SECONDS

    until(total, is_quiet, "quiet")

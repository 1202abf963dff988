"""From a broker to our services and back, in the middle of delays, timers, retries and transactions.

The first broker leaves pending work (`workload.leave_work`), our services go on for some seconds, and a
broker does the rest with real consumers and producers. Each message is delivered once by its rule:
nothing is lost where the store changes hands, and nothing is done twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop import workload
from tests.interop.harness import RocketMQ
from tests.interop.our_broker import CHECK_INTERVAL_MS, OurBroker
from tests.interop.programs import Line
from tests.interop.same import HALF
from tests.interop.services_runs import OLD, Runs
from tests.interop.workload import LIMITED, ORDERLY, READER, RETRIED, TIMES_MAX, Left


def _calls(runs: Runs, *groups: str) -> list[Line]:
    """Of the listeners of these groups, in the order of time."""
    return [
        line
        for line in [*runs.left.seen, *runs.seen["between"], *runs.seen["handed"]]
        if line["group"] in groups
    ]


@pytest.mark.parametrize("group", [RETRIED, LIMITED])
def test_each_retry_comes_once(runs: Runs, group: str) -> None:
    calls = _calls(runs, group)
    found = Counter((line["properties"]["UNIQ_KEY"], line["reconsumeTimes"]) for line in calls)
    keys = {line["properties"]["UNIQ_KEY"] for line in calls}
    expected = [
        (key, times) for key in keys for times in range(min(runs.left.fails[key], TIMES_MAX[group]) + 1)
    ]
    assert found == Counter(expected)
    for part in ("between", "handed") if group == RETRIED else ():
        assert any(line["group"] == group and line["failed"] for line in runs.seen[part])


def test_each_delayed_message_comes_once(runs: Runs) -> None:
    assert _read(runs, "Delayed") == Counter(runs.left.levels.keys())


def test_timers_come_once_and_recalled_ones_never(runs: Runs) -> None:
    """Recalled through a broker, and by us."""
    left = runs.left
    recalled = {*left.recalled, *left.recalled_by_us}
    assert _read(runs, "Timed") == Counter(left.timers.keys() - recalled)
    if runs.version != OLD:
        assert sum(due < left.handed_over_ms for due in left.timers.values()) in range(2, len(left.timers))


def test_transactions_end_once(runs: Runs) -> None:
    """Committed once, and rolled back or discarded ones never: checked by us, then by the last broker.

    We commit one by name too.
    """
    halves, handed = runs.left.halves, runs.copy("handed")
    by_us = runs.left.committed_by_us
    committed = [key for key, (tx, answer) in halves.items() if "commit" in (tx, answer.split("@")[0])]
    assert _read(runs, "Transactions") == Counter([*committed, *by_us])
    never = [key for key, rule in halves.items() if rule == ["unknown", "never"] and key not in by_us]
    assert sorted(handed.in_order["TRANS_CHECK_MAX_TIME_TOPIC", 0]) == sorted(never)
    unknown = [key for key, (tx, _) in halves.items() if tx == "unknown"]
    assert Counter(line["uniqKey"] for line in runs.seen["checked"]) == Counter(unknown)
    checks = [each.properties for each in handed.messages if each.topic == HALF]
    times = Counter(each.get("TRANSACTION_CHECK_TIMES", "0") for each in checks)
    late = [key for key in unknown if not halves[key][1].endswith("@2") and key not in by_us]
    assert times == {
        "0": len(halves), "1": len(unknown), "2": len(unknown), "3": len(late), "4": len(never)
    }  # fmt: skip


def _read(runs: Runs, topic: str) -> Counter[str]:
    """How often the Java consumer that started last got each message."""
    return Counter(line["properties"]["UNIQ_KEY"] for line in _calls(runs, READER) if line["topic"] == topic)


def test_queues_keep_their_order(runs: Runs) -> None:
    """Every message is handled after those before it in its queue, by whoever has the store.

    The new consumer counts the failures from 0, as each start of a RocketMQ consumer does.
    """
    calls = _calls(runs, ORDERLY)
    by_queue: dict[int, list[Line]] = {}
    for line in calls:
        by_queue.setdefault(line["queueId"], []).append(line)
    for lines in by_queue.values():
        offsets = [line["queueOffset"] for line in lines]
        assert offsets == sorted(offsets)
        done = [offset for line, offset in zip(lines, offsets, strict=True) if _is_last(line)]
        assert done == list(range(len(done)))
    assert sum(map(_is_last, calls)) == len(runs.left.rules[ORDERLY])
    for part in ("between", "handed"):
        assert any(line["group"] == ORDERLY for line in runs.seen[part])


def _is_last(line: Line) -> bool:
    """The message leaves its queue: handled, or a dead letter."""
    return not line["failed"] or line["reconsumeTimes"] == TIMES_MAX[ORDERLY]


_ROUNDS = 4


@pytest.mark.whole
def test_many_hand_overs(rocketmq: Callable[[str], RocketMQ], tmp_path: Path) -> None:
    """Brokers that leave new work, and our services between them; the last broker finishes all of it."""
    java, store = rocketmq("5.5.0"), tmp_path / "left"
    store.mkdir()
    slowness = workload.slowness()
    many = {"transactionCheckMax": "15"}  # brokers that stop make checks that nobody answers
    long, short = ({**each, **many} for each in workload.settings(slowness))
    conf = java.config_file(store, short | {"transactionCheckInterval": str(CHECK_INTERVAL_MS)})
    left, between = Left(), []
    for _ in range(_ROUNDS):
        with java.broker(store, long) as broker:
            work = workload.leave_work(broker, slowness, is_old=False)
        work.stopped_ms = workload.now_ms()
        ours = OurBroker(store, conf, retries_max=4, checks_max=2)
        ours.turns(work.stopped_ms, work.handed_over_ms)
        between += ours.seen
        left.add(work)
    expected = workload.delivered_in_the_end(left)
    with java.broker(store, short) as broker:
        seen = workload.go_on(broker, left, expected, checks=16)
    runs = Runs("5.5.0", tmp_path, left, {"between": between, "handed": seen})
    for group in (RETRIED, LIMITED):
        test_each_retry_comes_once(runs, group)
    test_each_delayed_message_comes_once(runs)
    assert _read(runs, "Timed") == Counter(left.timers.keys() - set(left.recalled))
    committed = [key for key, (tx, answer) in left.halves.items() if "commit" in (tx, answer.split("@")[0])]
    assert _read(runs, "Transactions") == Counter(committed)
    assert len(left.fails) == _ROUNDS * sum(map(len, workload.FAILS.values()))

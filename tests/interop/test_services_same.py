"""The same store goes on under a broker and under our services: both write the same messages.

A broker of 5.5.0 leaves a store in the middle of its work (`workload.leave_work`). One copy goes on under a
broker with real consumers and producers, the other under our services. Compared is every message written
since, byte for byte. These are left out:

- storeTimestamp, physicalOffset and queueOffset: threads of a broker are not in step, so the messages of
  several topics mix; the offsets of each queue have no gap, and `in_order` compares the order of delivery;
- storeHost: each start of the tests' broker has another port;
- preparedTransactionOffset: the half at that place is compared instead;
- the values of TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS: when the broker handled the message;
- op records: how many halves one names depends on a batch of 100 ms; the halves named are compared;
- with 4.9.7 (only --whole) the order of properties and the separator after the last one, which are another
  there; orderly dead letters, which 4.9.7 sends through a delay level, are not among its work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from tests.interop.programs import Line
from tests.interop.same import HALF, OP, SCHEDULED, TIMER, Copy, Written, differences
from tests.interop.services_runs import OLD, Runs
from tests.interop.workload import (
    CHECKS_MAX,
    LEVELS,
    LIMITED,
    ORDERLY,
    RETRIED,
    TIMES_MAX,
    TRANSACTIONS,
)


def _compared(runs: Runs, topics: Callable[[str], bool]) -> list[Written]:
    """What both copies have written to these topics; fails if they differ."""
    broker, ours = (
        [each for each in runs.copy(name).written if topics(each.topic)] for name in ("broker", "ours")
    )
    assert differences(broker, ours) == []
    return ours


def test_delay_levels(runs: Runs) -> None:
    """Each level delivers its messages in the order of sending."""
    assert len(_compared(runs, "Delayed".__eq__)) > len(LEVELS)
    ours = _delivered(runs.copy("ours"), runs)
    assert ours == _delivered(runs.copy("broker"), runs)
    assert sorted(key for keys in ours.values() for key in keys) == sorted(runs.left.levels)


def _delivered(copy: Copy, runs: Runs) -> dict[tuple[int, int], list[str]]:
    """UNIQ_KEYs by level and queue, in the order of the queue."""
    levels = runs.left.levels
    found: dict[tuple[int, int], list[str]] = {}
    for (topic, queue_id), keys in copy.in_order.items():
        for key in keys if topic == "Delayed" else ():
            found.setdefault((levels[key], queue_id), []).append(key)
    return found


def test_retries_and_dead_letters(runs: Runs) -> None:
    """1 to 16 retries and the dead letter after them; two retries where the group's maximum is 2."""
    topics = [f"%{kind}%{group}" for kind in ("RETRY", "DLQ") for group in (RETRIED, LIMITED)]
    written = _compared(runs, lambda topic: topic in topics or topic == SCHEDULED)
    for group in (RETRIED, LIMITED):
        fails, most = runs.left.rules[group], TIMES_MAX[group]
        retries = [each.reconsume_times for each in written if each.topic == f"%RETRY%{group}"]
        assert sorted(retries) == sorted(times for n in fails for times in range(1, min(n, most) + 1))
        dead = [each.reconsume_times for each in written if each.topic == f"%DLQ%{group}"]
        assert dead == [most + 1] * sum(n > most for n in fails)


def test_delays_of_what_was_sent_back(runs: Runs) -> None:
    """The queue entries of SCHEDULE_TOPIC_XXXX: storeTimestamp plus the level of broker.conf."""
    broker, ours = runs.copy("broker").delays, runs.copy("ours").delays
    assert broker == ours
    assert sum(count for (_, _, ms), count in ours.items() if ms == 0) > 50


def test_orderly_dead_letters(runs: Runs) -> None:
    """A message that failed too often leaves its queue. Its birth is not compared: the client sends it."""
    dead = [
        [
            replace(each, born=(0, ("", 0)))
            for each in runs.copy(name).written
            if each.topic == f"%DLQ%{ORDERLY}"
        ]
        for name in ("broker", "ours")
    ]
    assert differences(*dead) == []
    assert len(dead[1]) == sum(n > TIMES_MAX[ORDERLY] for n in runs.left.rules[ORDERLY])
    for name in ("broker", "ours"):
        calls = [line for line in runs.seen[name] if line["group"] == ORDERLY]
        assert _steps(calls) == _steps([line for line in runs.seen["broker"] if line["group"] == ORDERLY])


def _steps(calls: list[Line]) -> dict[int, list[tuple[int, int, bool]]]:
    """queueOffset, reconsumeTimes and failed of the calls for each queue."""
    found: dict[int, list[tuple[int, int, bool]]] = {}
    for line in calls:
        step = line["queueOffset"], line["reconsumeTimes"], line["failed"]
        found.setdefault(line["queueId"], []).append(step)
    return found


def test_timers(runs: Runs) -> None:
    """Near ones, far ones that are put again, and recalled ones of both kinds."""
    _compared(runs, ("Timed", TIMER).__contains__)
    if runs.version == OLD:
        return
    ours, left = runs.copy("ours"), runs.left
    delivered = [key for (topic, _), keys in ours.in_order.items() if topic == "Timed" for key in keys]
    assert sorted(delivered) == sorted(left.timers.keys() - set(left.recalled))
    rolled = Counter(
        each.properties["UNIQ_KEY"]
        for each in ours.messages
        if each.topic == TIMER and "TIMER_ROLL_TIMES" in each.properties
    )
    far_recalled, *far = list(left.timers)[-3:]
    assert rolled == dict.fromkeys(far, 1) | {far_recalled: 2}  # the recall is a timer message too


def test_transactions(runs: Runs) -> None:
    """Committed, rolled back, checked until an answer comes, and discarded.

    Our op messages list the earlier copies of a decided half message too.
    """
    written = _compared(runs, ("Transactions", HALF, "TRANS_CHECK_MAX_TIME_TOPIC").__contains__)
    broker, ours = runs.copy("broker"), runs.copy("ours")
    assert broker.decided <= ours.decided
    last = dict(sorted(broker.decided))
    assert {key for key, _ in ours.decided} == last.keys()
    assert all(int(times or 0) <= int(last[key] or 0) for key, times in ours.decided)
    checks = [each.properties for each in written if each.topic == HALF]
    assert len(checks) == sum(_checks(tx, answer) * count for tx, answer, count in TRANSACTIONS)
    for topic in (HALF, OP):
        assert [copy.group_offsets("CID_RMQ_SYS_TRANS")[topic, 0] for copy in (broker, ours)] == [
            copy.queue_sizes[topic, 0][1] for copy in (broker, ours)
        ]
    assert broker.queue_sizes[HALF, 0] == ours.queue_sizes[HALF, 0]


def _checks(tx: str, answer: str) -> int:
    """How often a half message is stored again after the first check, which the first broker made."""
    if tx != "unknown":
        return 0
    return (int(answer.split("@")[1]) if "@" in answer else CHECKS_MAX) - 1


def test_progress_files(runs: Runs) -> None:
    """delayOffset.json and timercheck."""
    broker, ours = runs.copy("broker"), runs.copy("ours")
    assert broker.delay_offsets == ours.delay_offsets
    assert broker.timer_check == ours.timer_check

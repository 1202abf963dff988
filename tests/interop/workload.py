"""A scripted workload for the services: the store that a broker leaves in the middle of retries, delays,
timers and transactions, and what clients do while a broker goes on with it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

from tests.interop.harness import Broker, Client
from tests.interop.programs import Line

T = TypeVar("T")

RETRIED, LIMITED, ORDERLY = "g_retried", "g_limited", "g_orderly"
TOPICS = {RETRIED: "Retried", LIMITED: "Limited", ORDERLY: "Orderly"}
TIMES_MAX = {RETRIED: 16, LIMITED: 2, ORDERLY: 2}  # maxReconsumeTimes; 16 is the default
READER = "g_reader"  # reads everything else when the work is done
READ = ("Delayed", "Timed", "Transactions")
PRODUCERS = "p_transactions"
# How often the messages of each group fail.
FAILS = {RETRIED: tuple(range(18)), LIMITED: (0, 1, 2, 3, 4), ORDERLY: (0, 1, 2, 3, 0, 1, 0, 3, 0, 2)}
CHECKS_MAX = 4  # a half with as many checks is discarded before its producer is asked again
# Local transaction, answer from which check on, messages. 5.5 makes the first check when it stops.
TRANSACTIONS = (
    ("commit", "never", 4),
    ("rollback", "never", 3),
    ("unknown", "commit@2", 2),
    ("unknown", "rollback@2", 2),
    ("unknown", "commit@3", 2),
    ("unknown", "never", 2),
)
LEVELS = range(1, 19)
_ANSWERS_SECONDS = 1.0  # the producer answers at once, and op records are written every 100 ms
START_SECONDS_MAX = 90.0
FIRST_LEVEL_SECONDS = 20
# From the sending on; the first broker has stopped by then. The far ones are put again after half a window: a
# broker delivers a recalled message that it puts again when it is due.
NEAR_MS, FAR_MS, WINDOW_MS = 10_000, 20_000, 18_000
# When they are due after NEAR_MS; the first may be due before the first broker has stopped.
TIMERS = (-3000, 0, 300, 1000, 2500, FAR_MS - NEAR_MS, FAR_MS - NEAR_MS + 500, FAR_MS - NEAR_MS + 800)
RECALLED = (1, 5)  # which of them

_FILES = {
    "mappedFileSizeCommitLog": str(1 << 20),
    "mappedFileSizeConsumeQueue": "6000",
    "timerWheelEnable": "true",
    "mappedFileSizeTimerLog": str(52 * 100),
    "recallMessageEnable": "true",
    "transactionOpBatchInterval": "100",
    "transactionTimeOut": "500",
    "transactionCheckInterval": "3600000",  # a check is made when the test says so, and when a broker stops
    "transactionCheckMax": str(CHECKS_MAX),
    "reviveQueueNum": "1",  # a stop waits for as many threads
}


def settings(slowness: float) -> tuple[dict[str, str], dict[str, str]]:
    """The broker.conf of the first broker, and that of the others.

    Delayed messages wait in the first, and are due at once when the levels become shorter
    (ScheduleMessageService.correctDeliverTimestamp). Level 1 stays: its messages wait for their time.
    """
    common = _FILES | {"timerRollWindowSlot": str(round(WINDOW_MS * slowness / 1000))}
    first = f"{round(FIRST_LEVEL_SECONDS * slowness)}s"
    return (
        common | {"messageDelayLevel": " ".join([first, *["1h"] * 17])},
        common | {"messageDelayLevel": " ".join([first, "1s", "0s", *["1s", "0s", "0s"] * 5])},
    )


def slowness() -> float:
    """By what times are to be longer here and now: the load of each processor, if it is above 1.5."""
    return min(max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 1.5), 4.0)


@dataclass
class Left:
    """What the first broker has acknowledged, by UNIQ_KEY, and what its groups have seen."""

    levels: dict[str, int] = field(default_factory=dict)  # the delay level
    timers: dict[str, int] = field(default_factory=dict)  # when it is due
    recalled: list[str] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)  # how often it fails
    rules: dict[str, list[int]] = field(default_factory=dict)  # the same by group, in the order of sending
    halves: dict[str, list[str]] = field(default_factory=dict)  # local transaction, answer
    seen: list[Line] = field(default_factory=list)
    stopped_ms: int = 0
    first_level_ms: int = 0  # when the messages of level 1 are due

    def add(self, later: Self) -> None:
        """What a later broker has left in the same store."""
        for name in ("levels", "timers", "fails", "halves"):
            getattr(self, name).update(getattr(later, name))
        self.recalled += later.recalled
        self.seen += later.seen
        for group, fails in later.rules.items():
            self.rules[group] = [*self.rules.get(group, []), *fails]

    @property
    def handed_over_ms(self) -> int:
        """When our services give the store back: some near timers were due, some are not."""
        return sorted([*self.timers.values(), self.stopped_ms + 1000])[3 if self.timers else 0] + 500

    @property
    def recalled_by_us(self) -> list[str]:
        """What our services recall before they give the store back."""
        return list(self.timers)[-1:]

    @property
    def committed_by_us(self) -> list[str]:
        """The half that our services commit by name before they give the store back."""
        return [key for key, rule in self.halves.items() if rule == ["unknown", "never"]][-1:]

    @property
    def last_due_ms(self) -> int:
        return max([*self.timers.values(), self.first_level_ms])


def until(ask: Callable[[], T], enough: Callable[[T], bool], what: str, seconds_max: float = 60) -> T:
    """The first answer that is enough. Raises AssertionError, with the last answer, after `seconds_max`."""
    end = time.monotonic() + seconds_max
    while not enough(answer := ask()):
        assert time.monotonic() < end, f"{what}: not within {seconds_max} s: {str(answer)[:2000]}"
        time.sleep(0.4)
    return answer


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def leave_work(broker: Broker, slowness: float, *, is_old: bool) -> Left:
    """Sends, fails and recalls; the broker is to be stopped next. The clients have ended.

    `is_old`: of 4.9, which has no timers, and sends orderly dead letters in a way of its own.
    """
    client, left = broker.client(), Left(rules={group: list(fails) for group, fails in FAILS.items()})
    if is_old:
        left.rules[ORDERLY] = [min(each, TIMES_MAX[ORDERLY]) for each in FAILS[ORDERLY]]
    _send_failing(client, left)
    for level in LEVELS:
        for line in client.send("Delayed", 2, delay=level, seed=f"level{level}"):
            left.levels[line["uniqKey"]] = level
        if level == 1:
            left.first_level_ms = now_ms() + round(FIRST_LEVEL_SECONDS * slowness) * 1000
    client.ask("tx-open", PRODUCERS)
    for tx, answer, count in TRANSACTIONS:
        for line in client.ask("tx-send", "Transactions", count, tx, answer):
            left.halves[line["uniqKey"]] = [tx, answer]
    client.ask("tx-close")
    for group in (RETRIED, LIMITED):
        _seen_by(client, group, len(left.rules[group]))
        left.seen += _stopped(client, group)
    if not is_old:
        _send_timers(client, left, slowness)
    else:  # no check is made when it stops
        time.sleep(_ANSWERS_SECONDS)
        broker.check()
    client.program.kill()  # all is acknowledged, and an orderly end takes seconds
    return left


def _send_failing(client: Client, left: Left) -> None:
    for group, topic in TOPICS.items():
        for number, times in enumerate(left.rules[group]):
            (line,) = client.send(topic, 1, seed=f"{topic}{number}", **{"put.fail": times})
            left.fails[line["uniqKey"]] = times
    for group in (RETRIED, LIMITED):
        start_consumer(client, group)


def _send_timers(client: Client, left: Left, slowness: float) -> None:
    near = now_ms() + round(NEAR_MS * slowness)
    for number, millis in enumerate(TIMERS):
        after = round(millis * slowness)
        (line,) = client.send("Timed", 1, seed=f"timer{number}", **{"put.TIMER_DELIVER_MS": near + after})
        left.timers[line["uniqKey"]] = near + after
        if number in RECALLED:
            client.ask("recall", "Timed", line["recallHandle"])
            left.recalled.append(line["uniqKey"])


def start_consumer(client: Client, group: str) -> None:
    topics = TOPICS.get(group, ",".join(READ))
    client.ask("consumer-start", group, topics, str(group == ORDERLY), TIMES_MAX.get(group, -1))


def _seen_by(client: Client, group: str, count: int) -> None:
    """Waits for so many calls of the group's listener."""
    until(
        lambda: client.ask("consumer-seen", group), lambda lines: len(lines) >= count, f"{group} sees {count}"
    )


def go_on(broker: Broker, left: Left, expected: dict[str, int], *, checks: int = CHECKS_MAX) -> list[Line]:
    """All groups and producers at work until the topics have the expected number of messages, and all timers
    were due; then the calls of the listeners, and the offsets are at the broker.

    `checks` of transactions are made; 4.9 discards a half one later than 5.5.
    """
    client = broker.client()
    client.ask("tx-open", PRODUCERS, "Transactions")
    for group in (*TOPICS, READER):
        start_consumer(client, group)
    for _ in range(checks):
        broker.check()
        time.sleep(_ANSWERS_SECONDS)
    until(lambda: _counts(client, expected), expected.__eq__, f"{expected}", seconds_max=180)
    time.sleep(max(0.0, left.last_due_ms / 1000 + 2 - time.time()))
    assert _counts(client, expected) == expected
    _seen_by(client, READER, sum(expected.get(topic, 0) for topic in READ))
    seen = [line for group in (*TOPICS, READER) for line in _stopped(client, group)]
    client.program.kill()
    return seen


def _stopped(client: Client, group: str) -> list[Line]:
    """Every call of the listener; the offsets are at the broker."""
    client.ask("consumer-stop", group)
    return [line | {"group": group} for line in client.ask("consumer-seen", group)]


def _counts(client: Client, topics: dict[str, int]) -> dict[str, int]:
    known = set(client.topics())
    counts = dict.fromkeys(topics, 0)
    for (topic, _), (_, stop) in client.ends([each for each in topics if each in known]).items():
        counts[topic] += stop
    return counts


def delivered_in_the_end(left: Left, *, by_us: bool = False) -> dict[str, int]:
    """Messages of each topic when everything has been done once, by the rules alone.

    `by_us`: with what our services recall and commit.
    """
    found = {"Delayed": len(left.levels)}
    if left.timers:
        found["Timed"] = len(left.timers) - len(left.recalled) - by_us * len(left.recalled_by_us)
    for group, fails in left.rules.items():
        if group != ORDERLY:
            found[f"%RETRY%{group}"] = sum(min(each, TIMES_MAX[group]) for each in fails)
        found[f"%DLQ%{group}"] = sum(each > TIMES_MAX[group] for each in fails)
    decided = [tx if tx != "unknown" else answer.split("@")[0] for tx, answer in left.halves.values()]
    found["Transactions"] = decided.count("commit") + by_us
    found["TRANS_CHECK_MAX_TIME_TOPIC"] = decided.count("never") - by_us
    return found

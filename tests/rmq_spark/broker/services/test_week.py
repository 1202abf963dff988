"""A simulated week of a log without a broker: written every hour, served and consumed every four hours.

Time is an argument: the clock of appends and turns, and the modification times of the files.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rmq_spark.broker.services.clean import CleanService
from rmq_spark.broker.services.decisions import HalfMessage
from rmq_spark.broker.services.schedule import Schedule
from rmq_spark.broker.services.service import Now, Service
from rmq_spark.broker.services.timer import Timer
from rmq_spark.broker.services.turn import take_turn
from rmq_spark.services import retry, transaction
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.metadata.group_offsets import read_group_offsets, write_group_offsets
from store_format.metadata.read import BrokerConf
from store_format.names import (
    DELAY_LEVELS_MS,
    HALF_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
    dead_letter_topic,
    retry_topic,
)
from store_format.opened.store import Opened
from tests.support import oracle
from tests.support.oracle import Message
from tests.support.staged import columns_of, make_store
from tests.support.stored_rows import rows_in

_HOUR_MS = 3_600_000
_BEGIN_MS = 1_700_000_000_000 // _HOUR_MS * _HOUR_MS
_HOURS = 7 * 24
_RESERVED_HOURS = 40
_ROUND_HOURS = 4  # between the turns of the services
_LAST_DELAYED_HOUR = _HOURS - 32  # later messages have no delay, so that all are delivered within the week
_PLAIN, _LEVELS, _TIMERS, _HALVES = 16, 3, 3, 2  # messages an hour
_GROUP = "CG_orders"
_RETRIES_MAX = 3
_FILE_SIZE = 1 << 16
_CONF = BrokerConf.of(
    {
        "fileReservedTime": str(_RESERVED_HOURS),
        "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
        "transactionCheckInterval": "1000",
    },
    "test_week",
)
_NEW_TOPICS = {
    "Orders": 4, SCHEDULE_TOPIC: 18, TIMER_TOPIC: 1, HALF_TOPIC: 1, "RMQ_SYS_TRANS_OP_HALF_TOPIC": 1,
}  # fmt: skip


def _failures(number: int) -> int:
    """How often the group fails the message before it succeeds; the rule of the test."""
    return 99 if number % 61 == 7 else 2 if number % 23 == 5 else 1 if number % 9 == 4 else 0


def _is_committed(number: int) -> bool:
    return number % 4 != 0


@dataclass
class Week:
    """The store, and what producers sent and the group consumed so far."""

    root: Path
    next_number: int = 0
    due_ms: dict[int, int] = field(default_factory=dict)  # not consumed before
    half: set[int] = field(default_factory=set)
    attempts: Counter[int] = field(default_factory=Counter)
    successes: Counter[int] = field(default_factory=Counter)
    ends: list[int] = field(default_factory=list)  # the end of the commitlog, by hour

    # ---- producers -----------------------------------------------------------------------------------------

    def send(self, hour: int, now_ms: int) -> None:
        messages = [self._message(now_ms) for _ in range(_PLAIN)]
        if hour < _LAST_DELAYED_HOUR:
            messages += [self._delayed(1 + self.next_number % 18, now_ms) for _ in range(_LEVELS)]
            messages += [self._timed(now_ms) for _ in range(_TIMERS)]
        messages += [self._half(now_ms) for _ in range(_HALVES)]
        options = CommitOptions(sync=False, clock=lambda: now_ms, new_topics=_NEW_TOPICS, conf=_CONF)
        MessageStore.open(str(self.root)).append(columns_of(messages), options=options)

    def _message(self, now_ms: int, topic: str = "", queue_id: int = 0, **more: str) -> Message:
        number, self.next_number = self.next_number, self.next_number + 1
        self.due_ms.setdefault(number, now_ms)
        properties = {"UNIQ_KEY": f"U{number:07d}", "KEYS": str(number), **more}
        if topic:
            properties |= {"REAL_TOPIC": "Orders", "REAL_QID": str(number % 4)}
        return Message(
            (topic or "Orders").encode(), f"order {number}".encode().ljust(120, b"."),
            oracle.encode_properties(properties), queue_id=queue_id if topic else number % 4,
            born_timestamp=now_ms,
        )  # fmt: skip

    def _delayed(self, level: int, now_ms: int) -> Message:
        self.due_ms[self.next_number] = now_ms + DELAY_LEVELS_MS[level - 1]
        return self._message(now_ms, SCHEDULE_TOPIC, level - 1, DELAY=str(level))

    def _timed(self, now_ms: int) -> Message:
        """Up to 30 hours from now."""
        out_ms = now_ms + 60_000 + self.next_number * 7_919_000 % (30 * _HOUR_MS)
        self.due_ms[self.next_number] = out_ms
        return self._message(now_ms, TIMER_TOPIC, TIMER_OUT_MS=str(out_ms), TIMER_DELIVER_MS=str(out_ms + 1))

    def _half(self, now_ms: int) -> Message:
        self.half.add(self.next_number)
        return self._message(now_ms, HALF_TOPIC, TRAN_MSG="true", PGROUP="PG_orders")

    # ---- services and disk ---------------------------------------------------------------------------------

    def serve(self, now_ms: int) -> None:
        def decide(half: HalfMessage) -> str:
            return "commit" if _is_committed(int(half.keys[0])) else "rollback"

        services: list[Service] = [
            Schedule(), Timer(), transaction.checker(decide),
            CleanService(disk_percent=lambda path: 10),
        ]  # fmt: skip
        reports = take_turn(str(self.root), services, Now(now_ms, _CONF))
        assert [each.errors for each in reports] == [()] * len(services)

    def touch(self, now_ms: int) -> None:
        """Files that were written in this hour are of this hour."""
        for folder in ("commitlog", "consumequeue", "index", "timerlog"):
            for path in (self.root / folder).rglob("*"):
                if path.is_file() and path.stat().st_mtime_ns > now_ms * 1_000_000:
                    os.utime(path, ns=(now_ms * 1_000_000,) * 2)

    def check_disk(self) -> None:
        """The log keeps the reserved hours, those of a round, and the files where they begin and end."""
        log = MessageStore.open(str(self.root)).log
        expired = len(self.ends) - 1 - _RESERVED_HOURS - _ROUND_HOURS
        if expired >= 0:
            assert log.min_offset >= self.ends[expired] - 2 * _FILE_SIZE

    # ---- the group -----------------------------------------------------------------------------------------

    def consume(self, hour: int, now_ms: int) -> None:
        root = str(self.root)
        topics = ("Orders", retry_topic(_GROUP))
        committed = read_group_offsets(Opened(root), _GROUP)
        failed: list[tuple[str, int, int]] = []
        for queue in MessageStore.open(root).queues(topics.__contains__):
            start = committed.get(queue.key, 0)
            assert start >= queue.min_offset, f"{queue.key}: unread messages were deleted"
            for batch in queue.read(start, columns=["queueOffset", "keys", "reconsumeTimes", "body"]):
                for row in batch.to_pylist():
                    if not self._handle(row, now_ms):
                        failed.append((*queue.key, row["queueOffset"]))
            committed[queue.key] = queue.max_offset
        if failed:
            retry.send_back(
                root, _GROUP, failed,
                max_reconsume_times=_RETRIES_MAX, key=("consumer", hour), now_ms=now_ms, broker_conf=_CONF,
            )  # fmt: skip
        write_group_offsets(Opened(root), _GROUP, committed, timestamp=now_ms)

    def _handle(self, row: dict[str, object], now_ms: int) -> bool:
        keys = row["keys"]
        assert isinstance(keys, list)
        number = int(keys[0])
        assert row["body"] == f"order {number}".encode().ljust(120, b".")
        assert now_ms >= self.due_ms[number], f"{number} came too early"
        assert row["reconsumeTimes"] == self.attempts[number]
        self.attempts[number] += 1
        if self.attempts[number] <= _failures(number):
            return False
        self.successes[number] += 1
        return True


@pytest.mark.slow
def test_every_key_is_processed_as_promised_and_the_disk_stays_bounded(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store", StoreSettings("broker-a", _FILE_SIZE, 20 * 300, 500, 2_000))
    week = Week(root)
    for hour in range(_HOURS):
        now_ms = _BEGIN_MS + hour * _HOUR_MS
        week.send(hour, now_ms)
        if hour % _ROUND_HOURS == _ROUND_HOURS - 1:
            week.serve(now_ms + 30 * 60_000)
            week.consume(hour, now_ms + 30 * 60_000)
            week.check_disk()
        week.touch(now_ms)
        week.ends.append(MessageStore.open(str(root)).log.stop)
    for hour in range(_HOURS, _HOURS + _RETRIES_MAX + 1):  # the last retries
        week.serve(_BEGIN_MS + hour * _HOUR_MS)
        week.consume(hour, _BEGIN_MS + hour * _HOUR_MS)
    MessageStore.open(str(root)).flush()

    numbers = range(week.next_number)
    promised = {n for n in numbers if n not in week.half or _is_committed(n)}
    dead = {n for n in promised if _failures(n) > _RETRIES_MAX}
    assert week.successes == Counter(dict.fromkeys(promised - dead, 1))
    assert week.attempts == Counter({n: min(_failures(n), _RETRIES_MAX) + 1 for n in promised})
    assert len(dead) > 40
    letters = _numbers(root, dead_letter_topic(_GROUP))
    young = {n for n in dead if week.due_ms[n] >= _BEGIN_MS + (_HOURS - _RESERVED_HOURS + 8) * _HOUR_MS}
    assert young <= letters.keys() <= dead
    assert set(letters.values()) == {1}

    kept = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
    assert week.ends[-1] > 3 * kept, "cleaning makes the difference"
    assert MessageStore.open(str(root)).diagnose().of("damage", "warning") == []
    (lag,) = {row["lagMessages"] for row in _lag(root)}
    assert lag == 0


def _numbers(root: Path, topic: str) -> Counter[int]:
    return Counter(int(row["keys"][0]) for row in rows_in(root, "keys", topic=topic))


def _lag(root: Path) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = MessageStore.open(str(root)).view("lag").to_pylist()
    return [row for row in rows if row["group"] == _GROUP]

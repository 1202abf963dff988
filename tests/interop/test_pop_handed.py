"""From our consumers to a real 5.5.0 broker: what was in flight here is revived there, and nothing else.

One broker goes on with a store that several groups of ours have popped: a group that was closed with ten
messages in flight, some of them taken over from the broker before; one whose process was killed; one that is
open while the broker starts; and one in order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.pop import MessageView, SimpleConsumer
from store_format.errors import StoreInUseError
from store_format.metadata.group_offsets import read_group_offsets
from store_format.opened.store import Opened
from tests.interop.harness import Broker, RocketMQ
from tests.interop.pop import AFTER_A_PAUSE, Handle, PopClient, place
from tests.interop.pop_runs import BILLING, COUNT, IN_ORDER, ORDERS, STEPS, Left, PopRuns, ShiftedClock
from tests.interop.programs import Line, ProgramError
from tests.interop.workload import now_ms, until

_KILLED, _OPEN = "killed", "open"
_LATER_MS = 9_000  # from the closing on; a broker needs some seconds to start
_KILLED_PROGRAM = """
import json, sys, time
from rmq_spark.pop import SimpleConsumer
consumer = SimpleConsumer(sys.argv[1], sys.argv[2], {sys.argv[3]: "*"}, init_mode="MIN")
found = [consumer.receive(6) for _ in range(4)]
for messages in found:
    consumer.ack(messages[:1] + messages[2:4])
left = [each for messages in found for each in messages[1:2] + messages[4:]]
print(json.dumps([[each.queue_id, each.offset] for each in left]), flush=True)
time.sleep(600)
"""


@dataclass(frozen=True)
class _Handed:
    """What ours has left, by UNIQ_KEY."""

    in_flight: set[str]
    popped: set[str]
    visible_at: dict[str, int]  # of those that were handed out here


def test_a_broker_revives_what_ours_had_in_flight(
    rocketmq: Callable[[str], RocketMQ], pop_runs: PopRuns
) -> None:
    java, left, store = rocketmq("5.5.0"), pop_runs.left, pop_runs.copy("handed")
    lowest = _kill_a_consumer(store)
    with SimpleConsumer(str(store), _OPEN, {ORDERS: "*"}, await_duration=0, init_mode="MIN") as consumer:
        held = [*consumer.receive(32), *consumer.receive(2)]
        order = _leave_in_order(store, left)
        handed = _close_with_ten_in_flight(store, left)
        with _started(java, store) as broker:
            _refused(store, consumer)
            client = PopClient.start(java, broker, BILLING)
            _all_from(client.of(_KILLED), lowest)
            _all_from(client.of(_OPEN), dict.fromkeys(range(4), 0))
            assert len(held) == 34
            _revived(client, handed)
            _goes_on_in_order(client.of(IN_ORDER), order)
            client.die()
            broker.kill()


@contextmanager
def _started(java: RocketMQ, store: Path) -> Iterator[Broker]:
    """A broker asks for the lock once. If a commit of the open consumer holds the lock in this moment, the
    broker ends, and is started again, as docs/faq.md says.
    """
    with ExitStack() as stack:
        for _ in range(5):
            try:
                broker = stack.enter_context(java.broker(store, AFTER_A_PAUSE))
            except ProgramError as error:
                if "Lock failed" not in str(error):
                    raise
            else:
                yield broker
                return
        raise AssertionError("five brokers have met a commit")


# ---- closed with messages in flight ------------------------------------------------------------------------


def _close_with_ten_in_flight(store: Path, left: Left) -> _Handed:
    """Receives 12 of the 20 messages that the broker's client left, and acknowledges half of them, and nine
    of the 13 that the broker had handed out, by its handles.
    """
    clock = ShiftedClock(left.first_pop_time + 1000)
    with SimpleConsumer(str(store), BILLING, {ORDERS: "*"}, await_duration=0, clock_ms=clock) as consumer:
        mine = _received(consumer, 12, clock)
        acked, kept = mine[::2], mine[1::2]
        consumer.ack(acked)
        theirs = sorted(left.in_flight(ORDERS))
        consumer.ack([left.handles[where].text for where in theirs[:9]])
        visible_at = now_ms() + _LATER_MS
        for message in kept:
            consumer.change_invisible_duration(message, (visible_at - clock()) / 1000)
    in_flight = {each.message_id for each in kept} | {left.keys[where] for where in theirs[9:]}
    assert len(in_flight) == 10
    popped = {each.message_id for each in mine} | set(left.keys.values())
    return _Handed(in_flight, popped, {each.message_id: visible_at for each in kept})


def _received(consumer: SimpleConsumer, count: int, clock: ShiftedClock) -> list[MessageView]:
    found: list[MessageView] = []
    while len(found) < count:
        found += consumer.receive(count - len(found), 3600)
    return found


def _revived(client: PopClient, handed: _Handed) -> None:
    """A Java client pops the rest at once, then exactly what was in flight, none before its time."""
    rest: list[Line] = []
    again: list[Line] = []
    end, quiet = time.monotonic() + 120, 0.0
    while len(again) < 10 or time.monotonic() < quiet:
        assert time.monotonic() < end, f"{len(again)} again, {len(rest)} others: {[*map(place, again)]}"
        for line in client.pop(ORDERS, 32, 600_000):
            key = line["properties"]["UNIQ_KEY"]
            if Handle.of(line["handle"]).flag == 0:
                rest.append(line)
                continue
            assert now_ms() >= handed.visible_at.get(key, 0)
            again.append(line)
            quiet = time.monotonic() + 3
        time.sleep(0.1)
    assert Counter(each["properties"]["UNIQ_KEY"] for each in again) == Counter(handed.in_flight)
    assert len(rest) == COUNT - 20 - 12
    assert not handed.popped & {each["properties"]["UNIQ_KEY"] for each in rest}


# ---- killed, and open --------------------------------------------------------------------------------------


def _kill_a_consumer(store: Path) -> dict[int, int]:
    """SIGKILL for a process that has 24 messages and has acknowledged half of them: the lowest offset of
    each queue that was not acknowledged, as consumerOffset.json has it after about a second.
    """
    command = [sys.executable, "-c", _KILLED_PROGRAM, str(store), _KILLED, ORDERS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lowest = dict.fromkeys(range(4), 0)
        for queue_id, offset in sorted(json.loads(process.stdout.readline()), reverse=True):
            lowest[queue_id] = offset
        until(
            lambda: read_group_offsets(Opened(str(store)), _KILLED),
            lambda found: (
                {queue_id: at for (topic, queue_id), at in found.items() if topic == ORDERS} == lowest
            ),
            "the lowest offsets in consumerOffset.json",
            seconds_max=20,
        )
        os.kill(process.pid, signal.SIGKILL)
    assert any(lowest.values())
    return lowest


def _all_from(client: PopClient, lowest: dict[int, int]) -> None:
    """Nothing is lost: the broker delivers everything from these offsets on, for the first time it knows."""
    found = client.pop_all(ORDERS, 600_000)
    expected = {
        (ORDERS, queue_id, at) for queue_id, start in lowest.items() for at in range(start, COUNT // 4)
    }
    assert Counter(place(each) for each in found) == Counter(expected)
    assert {each["reconsumeTimes"] for each in found} == {0}


def _refused(store: Path, consumer: SimpleConsumer) -> None:
    """While the broker has the store, a consumer cannot be opened, and one that is open stops."""
    with pytest.raises(StoreInUseError, match="broker"):
        SimpleConsumer(str(store), "late", {ORDERS: "*"}).open()
    with pytest.raises(StoreInUseError, match="broker"):
        _receive_for(consumer, 5.0)


def _receive_for(consumer: SimpleConsumer, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        consumer.receive(1)
        time.sleep(0.1)


# ---- in order ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _InOrder:
    visible_at: int
    left: dict[tuple[int, int], int]  # queue, offset -> reconsumeTimes at the next delivery


def _leave_in_order(store: Path, left: Left) -> _InOrder:
    """Blocked while the broker's batches are invisible; then delivered again. One queue is acknowledged, one
    to the half.
    """
    blocked = ShiftedClock(left.first_pop_time + 1000)
    options: dict[str, Any] = {"await_duration": 0, "fifo": True, "min_invisible_duration": 1}
    with SimpleConsumer(str(store), IN_ORDER, {STEPS: "*"}, clock_ms=blocked, **options) as consumer:
        assert consumer.receive(32, 3600) == []
    later = ShiftedClock(max(left.blocked_until.values()))
    with SimpleConsumer(str(store), IN_ORDER, {STEPS: "*"}, clock_ms=later, **options) as consumer:
        visible_at = max(now_ms(), later()) + _LATER_MS
        found: list[MessageView] = []
        while more := consumer.receive(32, (visible_at - later()) / 1000):
            found += more
        assert {each.delivery_attempt for each in found} == {2}
        by_queue: dict[int, list[MessageView]] = {}
        for each in found:
            by_queue.setdefault(each.queue_id, []).append(each)
        done, half, rest = sorted(by_queue.values(), key=len)
        consumer.ack([*done, *half[:2]])
    return _InOrder(visible_at, {(each.queue_id, each.offset): 2 for each in [*half[2:], *rest]})


def _goes_on_in_order(client: PopClient, order: _InOrder) -> None:
    found: list[Line] = []
    end = time.monotonic() + 120
    while len(found) < len(order.left):
        assert time.monotonic() < end
        more = client.pop(STEPS, 32, 600_000, order=True)
        assert not more or now_ms() >= order.visible_at
        found += more
        time.sleep(0.1)
    got = {(each["queueId"], each["queueOffset"]): each["reconsumeTimes"] for each in found}
    assert got == order.left

"""The same pops in flight under a broker and under ours: the same messages come again, as the same copies.

One copy of the store of `pop_runs` goes on under a 5.5.0 broker with Java clients, the other under our
SimpleConsumer, whose clock is set to the times of the pops. Each copy in the pop retry topics is compared
byte for byte, but for its place, its store time, and the broker's port in both hosts.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from rmq_spark.pop import SimpleConsumer
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from tests.interop.harness import RocketMQ
from tests.interop.pop import AFTER_A_PAUSE, PopClient
from tests.interop.pop_runs import (
    BILLING,
    COUNT,
    IN_ORDER,
    ORDERS,
    STEPS,
    TAGGED,
    TAGS,
    Left,
    PopRuns,
    ShiftedClock,
    until_seen,
)
from tests.interop.programs import Line
from tests.interop.same import Copy, Written, differences
from tests.support.staged import messages_of

_RETRY = (f"%RETRY%{BILLING}_{ORDERS}", f"%RETRY%{TAGS}_{TAGGED}")
_FILTER = "TagA || TagC"
_QUIET_SECONDS = 1.5  # ours revives about once a second

Delivery = tuple[str, str, int]  # topic, UNIQ_KEY, reconsumeTimes


def test_a_broker_and_ours_deliver_the_same_again(
    rocketmq: Callable[[str], RocketMQ], pop_runs: PopRuns
) -> None:
    left = pop_runs.left
    last = messages_of(pop_runs.store)[-1]
    began = last.physical_offset + last.total_size
    stores = [pop_runs.copy(name) for name in ("broker", "ours")]
    with ThreadPoolExecutor(2) as threads:
        broker_run = threads.submit(_under_a_broker, rocketmq("5.5.0"), stores[0], left)
        ours = threads.submit(_under_ours, stores[1], left).result()
        theirs = broker_run.result()
    assert Counter(ours) == Counter(theirs)
    expected = Counter({(TAGGED, key, 1): 1 for key in left.uniq_keys(TAGGED)})
    expected += Counter(
        (ORDERS, left.keys[where], int(where != left.suspended)) for where in left.in_flight(ORDERS)
    )
    assert expected <= Counter(ours)
    broker, own = (Copy(store, began) for store in stores)
    assert differences(_copies(broker), _copies(own)) == []
    assert len(_copies(own)) == len(left.handles) == 21
    assert _retry_topics(broker) == _retry_topics(own)


def _copies(copy: Copy) -> list[Written]:
    """Without the broker's port, which is another one at each start of the tests' broker."""
    return [
        replace(each, born=(each.born[0], (each.born[1][0], 0)))
        for each in copy.written
        if each.topic in _RETRY
    ]


def _retry_topics(copy: Copy) -> Mapping[str, Any]:
    """What topics.json has of them, and the queues."""
    topics: Mapping[str, Any] = read_topics(Opened(str(copy.root))) or {}
    sizes = {queue: size for queue, size in copy.queue_sizes.items() if queue[0] in _RETRY}
    return {topic: topics[topic] for topic in _RETRY} | {"sizes": sizes}


# ---- under a broker ----------------------------------------------------------------------------------------


def _under_a_broker(java: RocketMQ, store: Path, left: Left) -> list[Delivery]:
    """All that comes. The broker is killed then."""
    with java.broker(store, AFTER_A_PAUSE) as broker:
        billing = PopClient.start(java, broker, BILLING)
        tags, steps = billing.of(TAGS), billing.of(IN_ORDER)

        def pop() -> Sequence[Line]:
            return [*billing.pop(ORDERS, 32, 60_000), *tags.pop(TAGGED, 32, 60_000, tags=_FILTER)]

        found = [line for _, line in until_seen(pop, COUNT - 20 + len(left.handles))]
        found += [line for _, line in until_seen(lambda: steps.pop(STEPS, 32, 60_000, order=True), 11)]
        billing.die()
        broker.kill()
    return [(line["topic"], line["properties"]["UNIQ_KEY"], line["reconsumeTimes"]) for line in found]


# ---- under ours --------------------------------------------------------------------------------------------


def _under_ours(store: Path, left: Left) -> list[Delivery]:
    """All that comes: what is in flight, when it is visible and not before."""
    visible_at = {left.keys[where]: each.visible_at for where, each in left.handles.items()}
    clock = ShiftedClock(min(visible_at.values()) - 1500)
    consumers = [
        _consumer(store, BILLING, {ORDERS: "*"}, clock),
        _consumer(store, TAGS, {TAGGED: _FILTER}, clock),
        _consumer(store, IN_ORDER, {STEPS: "*"}, clock, fifo=True),
    ]
    found: list[Delivery] = []
    end, quiet = time.monotonic() + 120, 0.0
    while len(found) < COUNT - 20 + len(left.handles) + 11 or time.monotonic() < quiet:
        assert time.monotonic() < end, found
        for consumer in consumers:
            for each in consumer.receive(32, 3600):
                since = left.blocked_until[each.queue_id] if each.topic == STEPS else 0
                assert clock() >= visible_at.get(each.message_id, since)
                found.append((each.topic, each.message_id, each.delivery_attempt - 1))
                quiet = time.monotonic() + _QUIET_SECONDS
        time.sleep(0.2)
    for consumer in consumers:
        consumer.close()
    return found


def _consumer(
    store: Path, group: str, subscriptions: dict[str, str], clock: ShiftedClock, **options: Any
) -> SimpleConsumer:
    return SimpleConsumer(str(store), group, subscriptions, await_duration=0, clock_ms=clock, **options)

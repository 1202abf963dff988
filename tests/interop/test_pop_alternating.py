"""A broker and ours take turns at one group: every message is acknowledged in the end, and none comes again
after that.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from rmq_spark.pop import SimpleConsumer
from store_format.errors import StoreInUseError
from tests.interop.harness import RocketMQ
from tests.interop.pop import AFTER_A_PAUSE, SETTINGS, Handle, PopClient
from tests.interop.pop_runs import ShiftedClock
from tests.interop.programs import Line

_TOPIC, _GROUP, _COUNT = "Turns", "turns", 120
_TURNS, _TAKEN, _INVISIBLE_S = 4, 10, 3


class _Book:
    """What was delivered and acknowledged, by UNIQ_KEY."""

    def __init__(self, keys: list[str]) -> None:
        self.keys = set(keys)
        self.delivered: Counter[str] = Counter()
        self.acked: set[str] = set()

    def deliver(self, key: str, attempt: int) -> None:
        assert key in self.keys
        assert key not in self.acked, f"{key} comes again after its acknowledgement"
        self.delivered[key] += 1
        assert attempt == self.delivered[key], key


@pytest.mark.whole
@pytest.mark.parametrize("seed", range(2))
def test_a_broker_and_ours_take_turns(rocketmq: Callable[[str], RocketMQ], tmp_path: Path, seed: int) -> None:
    java, store, random = rocketmq("5.5.0"), tmp_path / "store", Random(seed)
    store.mkdir()
    book: _Book | None = None
    for _ in range(_TURNS):
        with java.broker(store, AFTER_A_PAUSE) as broker:
            if book is None:
                sender = broker.client()
                book = _Book([line["uniqKey"] for line in sender.send(_TOPIC, _COUNT)])
                sender.program.kill()
            with PopClient.start(java, broker, _GROUP) as client:
                _turn_of_a_client(client, book, random)
                client.die()
        _turn_of_ours(store, book, random)
    assert book is not None
    with java.broker(store, AFTER_A_PAUSE) as broker:
        with PopClient.start(java, broker, _GROUP) as client:
            end = time.monotonic() + 60
            while book.acked < book.keys:
                assert time.monotonic() < end, f"lost: {book.keys - book.acked}"
                _take(client, book, client.pop(_TOPIC, 32, 600_000), 1.0, random)
                time.sleep(0.1)
            time.sleep(4)
            assert client.pop_all(_TOPIC, 600_000) == []
        broker.kill()
    assert max(book.delivered.values()) > 2


def _turn_of_a_client(client: PopClient, book: _Book, random: Random) -> None:
    """Some pops; a bit more than half is acknowledged. The others become visible soon, or later."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        _take(client, book, client.pop(_TOPIC, _TAKEN, _INVISIBLE_S * 1000), 0.6, random)
        time.sleep(0.5)


def _take(client: PopClient, book: _Book, messages: list[Line], share: float, random: Random) -> None:
    for each in messages:
        book.deliver(each["properties"]["UNIQ_KEY"], each["reconsumeTimes"] + 1)
    done = [each for each in messages if random.random() < share]
    if done:
        (client.batch_ack if random.random() < 0.5 else client.ack)(_TOPIC, done)
    book.acked |= {each["properties"]["UNIQ_KEY"] for each in done}


def _turn_of_ours(store: Path, book: _Book, random: Random) -> None:
    with SimpleConsumer(
        str(store), _GROUP, {_TOPIC: "*"}, await_duration=0.2, min_invisible_duration=1
    ) as consumer:
        end = time.monotonic() + 5
        while time.monotonic() < end:
            messages = consumer.receive(_TAKEN, _INVISIBLE_S)
            for each in messages:
                book.deliver(each.message_id, each.delivery_attempt)
            done = [each for each in messages if random.random() < 0.6]
            consumer.ack(done)
            book.acked |= {each.message_id for each in done}
            time.sleep(0.3)


@pytest.mark.whole
@pytest.mark.parametrize("closes", [True, False])
def test_a_broker_moves_a_group_that_is_open(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, closes: bool
) -> None:
    """What was in flight here is forgotten where the broker went on; what its client left comes again."""
    java, store = rocketmq("5.5.0"), tmp_path / "store"
    store.mkdir()
    with java.broker(store, SETTINGS) as broker:
        sender = broker.client()
        sender.send(_TOPIC, 40)
        sender.program.kill()
    first = SimpleConsumer(str(store), _GROUP, {_TOPIC: "*"}, await_duration=0, init_mode="MIN")
    first.ack([*first.receive(20), *first.receive(14)][:6])
    with java.broker(store, SETTINGS) as broker, PopClient.start(java, broker, _GROUP) as client:
        popped = client.pop_all(_TOPIC, 30_000)
        client.ack(_TOPIC, popped[:-10])
    assert len(popped) >= 34
    with pytest.raises(StoreInUseError, match="broker"):
        first.receive(1)
    if closes:
        first.close()
    clock = ShiftedClock(max(Handle.of(each["handle"]).visible_at for each in popped[-10:]))
    with SimpleConsumer(str(store), _GROUP, {_TOPIC: "*"}, await_duration=4, clock_ms=clock) as consumer:
        found = []
        while more := consumer.receive(32):
            found += more
    left = Counter(each["properties"]["UNIQ_KEY"] for each in popped[-10:])
    assert Counter(each.message_id for each in found) == left
    assert {each.delivery_attempt for each in found} == {2}
    first.close()

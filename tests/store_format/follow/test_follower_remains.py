"""A followed store behind whose end a recovery has left messages: each new one is read once while the log
grows over them, and beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.errors import OffsetOutOfRangeError
from store_format.follow.follower import StoreFollower
from store_format.read.choice import MessageChoice
from tests.store_format.read.test_readable_end import Broker
from tests.store_format.read.test_written_end import broker, live, recovered, start

__all__ = ["broker", "live"]  # fixtures

Live = Callable[[Path, bool], None]


def ends(follower: StoreFollower) -> dict[int, int]:
    return {queue_id: queue.max_offset for (_, queue_id), queue in sorted(follower.queues.items())}


@pytest.mark.parametrize("is_scanned", [False, True])
def test_each_look_ends_where_the_broker_does(broker: Broker, live: Live, is_scanned: bool) -> None:
    """While the broker runs, stopped and started again. `is_scanned`: RocksDB keeps the consume queues."""
    recovered(broker)
    broker.write(1)
    live(broker.root, True)
    queues, aside = broker.root / "consumequeue", broker.root / "aside"
    follower = StoreFollower(MessageStore.open(str(broker.root)), MessageChoice())

    def look() -> None:
        if is_scanned:
            queues.rename(aside)
        follower.look()
        assert ends(follower) == broker.offsets
        follower.look()
        assert ends(follower) == broker.offsets
        if is_scanned:
            aside.rename(queues)

    for number in range(12):
        if number in (4, 8):
            live(broker.root, False)
            look()
            start(broker.root, broker.timestamp + 60_000 + 100 * number)
            live(broker.root, True)
        broker.write(6, later_ms=60_001 + 100 * number)
        look()
    assert sum(broker.offsets.values()) == 20 + 1 + 72


def test_a_position_behind_the_end_is_data_loss(broker: Broker, live: Live) -> None:
    """As of a store that was copied back, or of what was cut."""
    recovered(broker)
    broker.write(4)
    live(broker.root, True)
    options = parse_read_options({"path": str(broker.root), "startingOffsets": "earliest"}, where=STREAM)
    positions = StreamPositions(StreamStores(options))
    end = positions.latest(positions.initial())
    text = str(end).replace(str(broker.offsets[0]), "15")
    assert text != str(end)
    with pytest.raises(OffsetOutOfRangeError, match="went back"):
        positions.latest(eval(text))  # a literal of this test

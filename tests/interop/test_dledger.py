"""A DLedger store, a group of one node, while its broker writes to it and after that broker was killed."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

from store_format.bookkeeping.journal import StoreState
from store_format.store import MessageStore
from tests.interop.harness import RocketMQ
from tests.interop.rows import as_client, dispatched, ours
from tests.rmq_spark.stream.test_positions import Place, Stream

TOPIC = "Live"
SENT, KILLED_AFTER, PAUSE_MS, SECONDS_MAX = 120, 40, 5, 60


def _config() -> dict[str, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "broker-a",
        "dLegerSelfId": "n0",
        "dLegerPeers": f"n0-127.0.0.1:{port}",
        "mappedFileSizeCommitLog": "65536",
        "mappedFileSizeConsumeQueue": "2000",
    }


def test_a_dledger_store_that_is_written_reads_as_a_prefix_and_after_sigkill_as_its_broker_serves_it(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    store, java, config = tmp_path / "store", rocketmq("5.5.0"), _config()
    with java.broker(store, config) as broker:
        client = broker.client()
        client.begin("send", TOPIC, SENT, "seed=1", f"pause={PAUSE_MS}")
        seen, looks = _followed(store, SENT)
        acknowledged = client.finish()
        final = client.messages([TOPIC])
        assert sorted(seen) == [(TOPIC, line["queueId"], line["queueOffset"]) for line in final]
        assert len(seen) == len(acknowledged) == SENT
        assert looks > 5, "the stream saw no writing"
        client.begin("send", TOPIC, SENT, "seed=2")
        acknowledged += client.acknowledged(KILLED_AFTER)
        broker.kill()

    assert MessageStore.open(str(store)).state is StoreState.CRASHED
    crashed = ours(store, [TOPIC])
    assert {line["msgId"] for line in acknowledged} <= {line["msgId"] for line in crashed}
    with java.broker(store, config) as broker:
        assert as_client(broker.client().messages([TOPIC])) == as_client(crashed)
    assert ours(store, [TOPIC]) == crashed


def _followed(store: Path, count: int) -> tuple[list[Place], int]:
    """(the messages of a stream's micro-batches, how many micro-batches), until all are there.

    Each micro-batch has what the broker had dispatched before.
    """
    end, looks = time.monotonic() + SECONDS_MAX, 0
    while not (store / "consumequeue" / TOPIC).exists():
        assert time.monotonic() < end
    stream, seen = Stream(store, subscribe=TOPIC), list[Place]()
    while len(seen) < count:
        assert time.monotonic() < end, f"{len(seen)} messages after {SECONDS_MAX} seconds"
        before = {(TOPIC, *place) for place in dispatched(store, TOPIC)}
        places = stream.step()
        looks += places is not None
        seen += places or []
        assert before <= set(seen)
    return seen, looks

"""A store while a broker writes to it, and after that broker was killed: we read prefixes, and lose nothing
it acknowledged.

What is read is compared with what RocketMQ's client says of the same store later.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from store_format.bookkeeping.journal import StoreState
from store_format.store import MessageStore
from tests.interop.harness import RocketMQ
from tests.interop.programs import Line
from tests.interop.rows import as_client, ours
from tests.interop.versions import OLD

TOPIC = "Live"
# Small files: what is read rolls over while it is read.
CONFIG = {
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
}
SENT = 400
PAUSE_MS = 5
KILLED_AFTER = 150
SECONDS_MAX = 60


@pytest.mark.parametrize("version", OLD)
def test_a_store_that_a_broker_is_writing_reads_as_a_prefix_and_after_sigkill_as_its_successor_serves_it(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, version: str
) -> None:
    store, java = tmp_path / "store", rocketmq(version)
    with java.broker(store, CONFIG) as broker:
        client = broker.client()
        client.begin("send", TOPIC, SENT, "seed=1", f"pause={PAUSE_MS}")
        reads = _reads_until(store, SENT)
        acknowledged = client.finish()
        final = client.messages([TOPIC])
        assert len(acknowledged) == len(final) == SENT
        client.begin("send", TOPIC, SENT, "seed=2")
        acknowledged += client.acknowledged(KILLED_AFTER)
        broker.kill()
    _all_are_prefixes(reads, final)

    assert MessageStore.open(str(store)).state is StoreState.CRASHED
    crashed = ours(store, [TOPIC])
    assert {line["msgId"] for line in acknowledged} <= {line["msgId"] for line in crashed}
    with java.broker(store, CONFIG) as broker:
        assert as_client(broker.client().messages([TOPIC])) == as_client(crashed)
    assert ours(store, [TOPIC]) == crashed


def _reads_until(store: Path, count: int) -> list[list[Line]]:
    """What each read found, until all is there."""
    reads: list[list[Line]] = [[]]
    end = time.monotonic() + SECONDS_MAX
    while len(reads[-1]) < count:
        assert time.monotonic() < end, f"{len(reads[-1])} messages after {SECONDS_MAX} seconds"
        assert MessageStore.open(str(store)).state is StoreState.LIVE
        reads.append(ours(store, [TOPIC]))
    return reads


def _all_are_prefixes(reads: list[list[Line]], final: list[Line]) -> None:
    whole = _queues(final)
    for rows in reads:
        for key, lines in _queues(rows).items():
            assert lines == whole[key][: len(lines)]
    assert len({len(rows) for rows in reads}) > 5, "the reads saw no writing"


def _queues(rows: list[Line]) -> dict[int, list[Line]]:
    queues: dict[int, list[Line]] = defaultdict(list)
    for line in as_client(rows):
        queues[line["queueId"]].append(line)
    return queues

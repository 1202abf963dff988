"""A store whose queues and configuration a broker keeps in RocksDB, while the broker writes, after it was
killed, and after it was stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from store_format.bookkeeping.journal import StoreState
from store_format.metadata.group_offsets import known_groups, read_group_offsets
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.interop.harness import RocketMQ
from tests.interop.programs import Line
from tests.interop.rows import as_client, ours
from tests.support.unchanged import unchanged

TOPIC, GROUP = "Live", "readers"
CONFIG = {
    "storeType": "defaultRocksDB",
    "mappedFileSizeCommitLog": "65536",
    "maxHashSlotNum": "100",
    "maxIndexNum": "400",
    "flushConsumerOffsetInterval": "200",
}
SENT, KILLED_AFTER = 200, 60
SECONDS_MAX = 60


def test_a_broker_with_rocksdb_writes_is_killed_and_goes_on(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    store, java = tmp_path / "store", rocketmq("5.5.0")
    with java.broker(store, CONFIG) as broker:
        client = broker.client()
        client.begin("send", TOPIC, SENT, "seed=1", "pause=5")
        found = _read_until(store, SENT)
        acknowledged = client.finish()
        final = client.messages([TOPIC])
        assert as_client(found) == as_client(final)
        read = {(TOPIC, line["queueId"]): line["queueId"] + 3 for line in final}
        for (_, queue_id), offset in read.items():
            client.ask("commit-offset", GROUP, TOPIC, queue_id, offset)
        assert client.group_offsets(GROUP, TOPIC) == read
        _equal_offsets_in_time(store, read)
        client.begin("send", TOPIC, SENT, "seed=2")
        acknowledged += client.acknowledged(KILLED_AFTER)
        broker.kill()
    assert MessageStore.open(str(store)).state is StoreState.CRASHED
    with unchanged(store):
        crashed = ours(store, [TOPIC])
    assert {line["msgId"] for line in acknowledged} <= {line["msgId"] for line in crashed}
    with java.broker(store, CONFIG) as broker:
        client = broker.client()
        assert as_client(client.messages([TOPIC])) == as_client(crashed)
        ends = client.ends([TOPIC])
    queues = {queue.key: queue for queue in MessageStore.open(str(store)).queues(TOPIC.__eq__)}
    assert {key: (queue.min_offset, queue.max_offset) for key, queue in queues.items()} == ends
    assert all(queue.scanned is None for queue in queues.values())
    assert ours(store, [TOPIC]) == crashed


def _read_until(store: Path, count: int) -> list[Line]:
    end, rows = time.monotonic() + SECONDS_MAX, list[Line]()
    while len(rows) < count:
        assert time.monotonic() < end, f"{len(rows)} messages after {SECONDS_MAX} seconds"
        assert MessageStore.open(str(store)).state is StoreState.LIVE
        before, rows = len(rows), ours(store, [TOPIC])
        assert len(rows) >= before
    return rows


def _equal_offsets_in_time(store: Path, told: dict[tuple[str, int], int]) -> None:
    """A broker writes offsets to the disk every flushConsumerOffsetInterval."""
    end = time.monotonic() + SECONDS_MAX
    while read_group_offsets(Opened(str(store)), GROUP) != told:
        assert time.monotonic() < end
        time.sleep(0.1)
    assert GROUP in known_groups(Opened(str(store)))

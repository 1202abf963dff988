"""Produced messages in a store: staged, committed and read again, delayed ones at their levels, keys in the
index.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from rmq_spark.produce.messages import ProducedMessages
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.staging import StagingWriter
from store_format.message.columns import DEFAULT_COLUMNS
from store_format.message.encode import encode
from store_format.names import DELAY_LEVELS_MS, SCHEDULE_TOPIC
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.fixtures import Golden
from tests.support.produced_batches import NOW_MS, STORE_HOST, batch_of, produce
from tests.support.staged import make_store
from tests.support.stored_rows import rows_in

WRITTEN_MS = NOW_MS + 60_000
SAME = ["topic", "flag", "body", "properties", "tags", "keys", "msgId", "bornTimestamp", "bornHost"]


def written(root: Path, *batches: ProducedMessages) -> MessageStore:
    make_store(root, StoreSettings("broker-a", 1 << 20, 20 * 1000, 1000, 10_000))
    writer = StagingWriter(Opened(str(root)), "w")
    for messages in batches:
        units = encode(messages.columns(STORE_HOST))
        queues, places = messages.queues()
        writer.append(units, queues, places, messages.tags_code, *messages.key_hashes(), messages.timed)
    commit(str(root), [writer.close()], options=CommitOptions(clock=lambda: WRITTEN_MS))
    return MessageStore.open(str(root))


def test_a_topic_is_read_written_and_read_again(golden: Golden, tmp_path: Path) -> None:
    source = MessageStore.open(str(golden("defaults-5.5.0")))
    (topic, *_) = [
        queue.topic
        for queue in source.queues()
        if queue.max_offset and not queue.topic.startswith(("%", "rmq_sys_", "RMQ_SYS_"))
    ]
    batches = [
        batch
        for queue in source.queues()
        if queue.topic == topic
        for batch in queue.read(columns=[*DEFAULT_COLUMNS, "bornTimestampMs", "bornHost"])
    ]
    store = written(tmp_path / "store", *(produce(batch) for batch in batches))
    before, after = rows_in(source, *SAME, topic=topic), rows_in(store, *SAME, topic=topic)
    assert len(before) > 10
    assert after == before  # queueId decided, so the order of each queue is the same too


def test_delays_get_their_times_from_the_commit(tmp_path: Path) -> None:
    store = written(
        tmp_path / "store",
        produce(
            batch_of(topic=["t"] * 3, body=[b"0", b"1", b"2"], tags=["a"] * 3, delayTimeLevel=[0, 3, 18])
        ),
    )
    found = rows_in(store, "body", "queueId", "tagsCode", topic=SCHEDULE_TOPIC)
    assert found == [
        {"body": b"1", "queueId": 2, "tagsCode": WRITTEN_MS + DELAY_LEVELS_MS[2]},
        {"body": b"2", "queueId": 17, "tagsCode": WRITTEN_MS + DELAY_LEVELS_MS[17]},
    ]


def test_turns_leave_no_gap_between_batches(tmp_path: Path) -> None:
    batch = batch_of(
        topic=["t"] * 10,
        body=[str(i).encode() for i in range(10)],
        keys=pa.array([f"k{i}" for i in range(10)]),
    )
    store = written(tmp_path / "store", produce(batch), produce(batch, seed=8))
    counts = [queue.max_offset - queue.min_offset for queue in store.queues() if queue.topic == "t"]
    assert (len(counts), sum(counts)) == (4, 20)
    assert max(counts) - min(counts) <= 2

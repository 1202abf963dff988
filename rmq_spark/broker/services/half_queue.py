"""Reads the half and op queues of a store: which half messages are decided, and where the checker goes on."""

from __future__ import annotations

from dataclasses import dataclass

from rmq_spark.produce.half import HALF_QUEUE_ID, OP_TAG
from store_format.bookkeeping.ledger import read_ledger
from store_format.errors import CorruptStoreError, UnsupportedFormatError
from store_format.java.numbers import parse_long
from store_format.metadata.broker_conf import BrokerConf
from store_format.metadata.group_offsets import read_group_offsets
from store_format.names import (
    CHECKER_GROUP,
    HALF_TOPIC,
    OP_TOPIC,
    ROCKSDB_HALF_TOPIC,
    ROCKSDB_OP_TOPIC,
)
from store_format.read.store import Queue, Store
from store_format.views.messages import read_queues

CHECK_PART = "transaction"  # of the keys of a check's turns in the ledger


@dataclass(frozen=True, slots=True)
class HalfQueue:
    """The half queue and the op queue of a store, with the checker's offsets in them.

    `half_stored` and `op_offset` are those of group CID_RMQ_SYS_TRANS; without them, 0 and the first of the
    op queue. `half_offset` is where the checker goes on: later than `half_stored` after a crash, or after
    retention. `half_stored` does not follow retention, because a turn in the ledger is known by it.
    """

    half: Queue
    op: Queue | None
    half_offset: int
    half_stored: int
    op_offset: int

    def op_messages(self, start: int | None = None) -> list[tuple[int, list[int]]]:
        """(queue offset, the queue offsets of half messages that it lists) of each op message from `start`.

        An op message with another tag than `d` lists nothing, as in the broker.
        """
        if self.op is None:
            return []
        starts = {} if start is None else {self.op.key: max(start, self.op.min_offset)}
        found = []
        for batch in read_queues([self.op], ("queueOffset", "tags", "body"), starts):
            for row in batch.to_pylist():
                texts = row["body"].decode("latin-1").split(",") if row["tags"] == OP_TAG else ()
                offsets = [parse_long(text) for text in texts]
                found.append((row["queueOffset"], [each for each in offsets if each is not None]))
        return found


def find_half_queue(store: Store, conf: BrokerConf) -> HalfQueue | None:
    """The half queue of a store; None if it has no half message.

    Raises UnsupportedFormatError for a store whose transactions are in RocksDB (transRocksDBEnable), and
    CorruptStoreError if its consume queues are lost.
    """
    topics = (HALF_TOPIC, OP_TOPIC, ROCKSDB_HALF_TOPIC, ROCKSDB_OP_TOPIC)
    queues = {queue.key: queue for queue in store.queues(topics.__contains__)}
    in_rocksdb = any(
        queue.max_offset > 0 for (topic, _), queue in queues.items() if topic not in (HALF_TOPIC, OP_TOPIC)
    )
    if conf.transaction_rocksdb_enable or in_rocksdb:
        raise UnsupportedFormatError(
            f"{store.path}: its broker keeps transactions in RocksDB (transRocksDBEnable=true). Decide them "
            "with the broker and its producers"
        )
    half = queues.get((HALF_TOPIC, HALF_QUEUE_ID))
    op = queues.get((OP_TOPIC, HALF_QUEUE_ID))
    if half is None or half.max_offset == 0:
        return None
    if half.scanned is not None:
        raise CorruptStoreError(
            f"{store.path}/consumequeue", 0, "consume queue files", "none; run rmqlog recover"
        )
    known = read_group_offsets(store.path, CHECKER_GROUP)
    stored = known.get(half.key, 0)
    resumed = read_ledger(store.path).resume(CHECK_PART, stored, store.log)
    op_start = 0 if op is None else op.min_offset
    return HalfQueue(
        half,
        op,
        min(max(resumed, half.min_offset), half.max_offset),
        stored,
        known.get((OP_TOPIC, HALF_QUEUE_ID), op_start),
    )

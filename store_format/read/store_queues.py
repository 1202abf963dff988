"""The queues that a read needs: read from consume queues, or by a scan where consume queues are missing."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from store_format.read.store import Queue, Store

_log = logging.getLogger(__name__)

_SCAN_CUT_BYTES = 64 << 10  # a scan may be split between windows of a walk, 1 MiB or a file


class QueueChoice(Protocol):
    """Which queues a caller reads."""

    def chooses_topic(self, topic: str) -> bool:
        """False only for a topic of which no queue is read."""

    def chooses_queue(self, topic: str, broker: str, queue_id: int) -> bool:
        """Whether this queue of a chosen topic is read."""


@dataclass(frozen=True, slots=True)
class StoreQueues:
    """The queues of one store for one read.

    `queues` have consume queue files. `scanned` are found only in the commitlog; their scan may be split at
    `cuts`. `log_end` is the end of the commitlog where it had to be determined: after a crash, for a scan,
    and where a recovery has left whole messages after it (`has_remains`).
    """

    queues: list[Queue]
    scanned: list[Queue] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    log_end: int | None = None
    has_remains: bool = False


def find_queues(store: Store, choice: QueueChoice, *, level: int = logging.WARNING) -> StoreQueues:
    """The chosen queues as the files are now. A necessary scan is logged at `level`."""

    def chosen(queues: list[Queue]) -> list[Queue]:
        return [
            queue for queue in queues if choice.chooses_queue(queue.topic, store.broker_name, queue.queue_id)
        ]

    if not store.has_consume_queues:
        _log.log(
            level, "%s has no consume queue files (RocksDB, or deleted): scanning its commitlog", store.path
        )
        scanned, cuts = store.scanned_queues(choice.chooses_topic, _SCAN_CUT_BYTES)
        return StoreQueues([], chosen(scanned), cuts, cuts[-1])
    snapshot = store.snapshot(choice.chooses_topic)
    queues = chosen(store.queues_of(snapshot))
    if not snapshot.damaged:
        return StoreQueues(queues, log_end=snapshot.log_end, has_remains=snapshot.has_remains)
    # a warning of the store names the lost queues
    damaged = [(key, error) for key, error in snapshot.damaged.items() if key not in snapshot.lost]
    if damaged:
        (topic, queue_id), error = damaged[0]
        told = "%d consume queues cannot be used, scanning the commitlog for them; %s-%d: %s"
        _log.log(level, told, len(damaged), topic, queue_id, error)
    lost = {key for key in snapshot.damaged if choice.chooses_queue(key[0], store.broker_name, key[1])}
    if not lost:
        return StoreQueues(queues, log_end=snapshot.log_end, has_remains=snapshot.has_remains)
    topics = {name for name, _ in lost}
    scanned, cuts = store.scanned_queues(topics.__contains__, _SCAN_CUT_BYTES)
    return StoreQueues(
        queues, chosen([queue for queue in scanned if (queue.topic, queue.queue_id) in lost]), cuts, cuts[-1]
    )

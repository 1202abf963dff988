"""The entries of the messages in a part of a commitlog, by the queues that have them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.dispatch import MadeEntries
from store_format.names import QueueKey
from store_format.survey.scan import LogScan


def made_entries(
    log: CommitLog,
    start: int,
    stop: int,
    max_offsets: Mapping[QueueKey, int] | None = None,
    last_physical_offsets: Mapping[QueueKey, int] | None = None,
    batch_topics: Collection[str] = (),
) -> dict[QueueKey, MadeEntries]:
    """Those of messages in [start, stop) that are at or behind the end of their queue."""

    def floor(key: QueueKey) -> tuple[int, int]:
        return (max_offsets or {}).get(key, 0), (last_physical_offsets or {}).get(key, -1)

    scan = LogScan(frozenset(batch_topics), index=False, floor=floor)
    return scan.entries_between(log, [(start, stop)])[0]

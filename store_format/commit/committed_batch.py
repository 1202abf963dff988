"""What a store has of batches that its ledger says are committed.

A copy that was made while batches were committed has some files of before a commit and some of after it. What
its commitlog has of a batch gets the topics, queue entries and index entries that the copy lacks. Messages
that the commitlog lacks are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from store_format.bookkeeping.ledger import LedgerEntry
from store_format.commit.append_position import complete_queues, find_writer_end
from store_format.commit.log_comparison import LockedStore
from store_format.commit.steps import write_topics
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.units import FiledQueue
from store_format.display.text import first_names
from store_format.errors import StoreError
from store_format.index.updates import last_index_file
from store_format.layouts import INDEX_HEADER
from store_format.metadata.read import known_topics
from store_format.names import QueueKey
from store_format.survey.fates import kept_topics, missing_topics
from store_format.survey.gone import Gone
from store_format.survey.scan import LogScan, by_queue, scan_log, within_damage

_NAMES_MAX = 50  # of ranges of lost messages in an error


def lost_of(entry: LedgerEntry, log: CommitLog) -> list[Gone]:
    """The messages of the batch that the log lacks, or has with other bytes, if the ledger has the queues of
    the batch. Reads the batch. Empty if retention has deleted a part of it.
    """
    there: dict[QueueKey, list[NDArray[np.int64]]] = {}
    if entry.start < log.min_offset:
        return []
    stop = min(entry.stop, log.stop)
    for part in scan_log(LogScan(index=False, check_bodies=True), log, entry.start, stop):
        for key, rows in by_queue(part.queues, part.rows[~within_damage(part.rows["physical"], part.damage)]):
            there.setdefault(key, []).append(rows["offset"].astype(np.int64))
    lost = []
    for topic, queue_id, first, end in entry.queues:
        found = np.concatenate([np.empty(0, np.int64), *there.get((topic, queue_id), ())])
        gone = np.setdiff1d(np.arange(first, end), found)
        for run in np.split(gone, np.flatnonzero(np.diff(gone) != 1) + 1) if len(gone) else ():
            lost.append(Gone(topic, queue_id, int(run[0]), int(run[-1]) + 1))
    return sorted(lost, key=lambda each: (each.topic, each.queue_id))


def damage_with(entry: LedgerEntry, log: CommitLog, lost: Sequence[Gone] | None = None) -> str | None:
    """`LedgerEntry.damage`, with the names of the `lost` messages; None for a whole batch. Without `lost`,
    the batch is read if its last message is damaged.
    """
    damage = entry.damage(log)
    if lost is None:
        lost = [] if damage is None else lost_of(entry, log)
    if not lost:
        return damage
    names = first_names((f"{each.topic}-{each.queue_id} {each.offsets}" for each in lost), _NAMES_MAX)
    return f"{damage or 'was overwritten'}. {sum(each.count for each in lost):,} are lost: {names}"


def complete_batch(held: LockedStore, entry: LedgerEntry) -> None:
    """Completes a batch of the ledger whose messages are all in the log, if a queue or the index ends before
    its last message.
    """
    if _lacks_index(held, entry) or any(_lacks_entries(held, *each) for each in entry.queues):
        complete_from(held, entry.start)


def complete_from(held: LockedStore, start: int) -> None:
    """Writes the topics, queue entries and index entries that the messages of the log from `start` on lack.

    A queue without files is built if nobody can have deleted its topic since a commit created it. Raises what
    `find_writer_end` and `complete_queues` raise.
    """
    opened, kept = held.opened, kept_topics(held.opened, listed=True)
    write_topics(
        opened,
        missing_topics(opened, known_topics(opened) or ()),
        held.options.clock(),
        held.files,
    )
    end = find_writer_end(held)
    reading = replace(held, options=replace(held.options, unfiled_queues="read"))
    complete_queues(reading, end, max(start, held.log.min_offset), kept, index=True)


def _lacks_entries(held: LockedStore, topic: str, queue_id: int, first: int, stop: int) -> bool:
    with suppress(StoreError):  # who reads the queue raises the error
        bounds = FiledQueue.of(held.opened, topic, queue_id).bounds(held.log.min_offset, likely=stop)
        return first < stop and (bounds is None or bounds.max_offset < stop)
    return False


def _lacks_index(held: LockedStore, entry: LedgerEntry) -> bool:
    """Also true for a batch whose last message has no key."""
    last = last_index_file(f"{held.opened.path}/index") if held.options.message_index_enable else None
    if last is None:
        return False
    header = np.frombuffer(bytes.fromhex(last[1]).ljust(INDEX_HEADER.itemsize, b"\0"), INDEX_HEADER)[0]
    return int(header["end_physical_offset"]) < entry.last_offset

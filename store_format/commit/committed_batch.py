"""What a store has of batches that its ledger says are committed.

A copy that was made while batches were committed has some files of before a commit and some of after it. What
its commitlog has of a batch gets the topics, queue entries and index entries that the copy lacks.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from store_format.bookkeeping.ledger import LedgerEntry
from store_format.commit.append_position import complete_queues, find_writer_end
from store_format.commit.log_comparison import LockedStore
from store_format.commit.steps import write_topics
from store_format.consumequeue.units import FiledQueue
from store_format.errors import StoreError
from store_format.index.updates import last_index_file
from store_format.layouts import INDEX_HEADER
from store_format.metadata.read import known_topics
from store_format.survey.fates import StoredTopics


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
    opened, kept = held.opened, StoredTopics(held.opened).kept(listed=True)
    write_topics(
        opened,
        StoredTopics(opened).missing(known_topics(opened) or ()),
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

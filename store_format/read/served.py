"""Queues as a consumer gets them, where a broker serves messages from other files than the commitlog."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from store_format.consumequeue.compacted import compacted_part, has_compacted_files
from store_format.consumequeue.own_files import DamagedFiles
from store_format.consumequeue.slices import QueueRange, QueueSlice
from store_format.consumequeue.tiered import TieredDirectory
from store_format.display.text import shown
from store_format.errors import CorruptStoreError
from store_format.metadata.tiered import TieredMetadata
from store_format.names import QueueKey
from store_format.opened.store import Opened
from store_format.read.queue_reader import QueueReader

_log = logging.getLogger(__name__)

KEYS = ("queueOffset", "keys")  # columns that tell which messages a broker copies


@dataclass(frozen=True, slots=True)
class CompactedTopics:
    """The topics of a store that brokers serve from `compaction/` (DefaultMessageStore.getMessage): those
    with cleanup.policy=COMPACTION and files there.
    """

    opened: Opened
    names: frozenset[str]

    @staticmethod
    def of(opened: Opened, compacted: Iterable[str]) -> CompactedTopics:
        """Those of the topics with the policy. Costs a look at the disk for each."""
        return CompactedTopics(opened, frozenset(n for n in compacted if has_compacted_files(opened, n)))

    def queues(self, taken: Mapping[QueueKey, QueueRange], reader: QueueReader) -> dict[QueueKey, QueueRange]:
        """Those of the queues that belong to these topics, as consumers get them. `reader` reads `KEYS`."""
        return {
            key: self._served(taken[key], reader)
            for key in taken
            if key[0] in self.names and not taken[key].is_batch
        }

    def _served(self, queue: QueueRange, reader: QueueReader) -> QueueRange:
        """The queue with what a consumer gets: the messages in `compaction/`, and those behind them in the
        log, which a broker has not copied yet. It copies no message without keys (CompactionLog.putMessage).
        """
        try:
            part = compacted_part(self.opened, (queue.topic, queue.queue_id))
        except CorruptStoreError as error:
            _log.warning("%s-%d cannot be read: %s", shown(queue.topic), queue.queue_id, error)
            part = QueueRange(*queue[:2], 0, max(queue.max_offset, 1), None, own=DamagedFiles(error))
        start = max(part.max_offset, queue.min_offset)
        parts = [part]
        if start < queue.max_offset:
            rest = _with_keys(queue.piece(start, queue.max_offset), reader)
            parts += [rest] if rest.entries else []
        filled = [each for each in parts if each.min_offset < each.max_offset]
        stop = max(queue.max_offset, part.max_offset)
        first = filled[0].min_offset if filled else stop
        return queue._replace(min_offset=first, max_offset=stop, parts=tuple(parts))


# ---- tiered storage ----------------------------------------------------------------------------------------


def with_tiered(
    directory: TieredDirectory,
    metadata: TieredMetadata,
    queues: Mapping[QueueKey, QueueRange],
    select: Callable[[str], bool],
) -> dict[QueueKey, QueueRange]:
    """The selected queues that a broker has uploaded, with the messages before those that the store has.

    A broker answers from the store what the store still has (tieredStorageLevel=NOT_IN_DISK, the default).
    """
    found: dict[QueueKey, QueueRange] = {}
    for key in directory.keys(select):
        try:
            part = directory.part(key, metadata)
        except CorruptStoreError as error:
            _log.warning("%s-%d cannot be read: %s", shown(key[0]), key[1], error)
            known = queues.get(key)
            stop = 1 if known is None else max(known.min_offset, 1)
            part = QueueRange(*key, 0, stop, None, own=DamagedFiles(error))
            found[key] = _before(part, known or QueueRange(*key, stop, stop, None), stop)
            continue
        if part is None:
            continue
        local = queues.get(key) or QueueRange(*key, part.max_offset, part.max_offset, None)
        stop = min(part.max_offset, local.min_offset)
        if local.min_offset > part.max_offset:
            _log.warning(
                "%s-%d: %d messages from offset %d on are neither in tiered storage nor in the store",
                shown(key[0]), key[1], local.min_offset - part.max_offset, part.max_offset,
            )  # fmt: skip
        if part.min_offset < stop:
            found[key] = _before(part.until(stop), local, stop)
    return found


def _before(part: QueueRange, local: QueueRange, stop: int) -> QueueRange:
    """The queue that begins with the part, up to `stop`, and goes on as the store has it."""
    high = max(local.max_offset, stop)
    return local._replace(min_offset=part.min_offset, max_offset=high, parts=(part, local))


# ---- compacted topics --------------------------------------------------------------------------------------


def _with_keys(piece: QueueSlice, reader: QueueReader) -> QueueRange:
    """The entries of a slice whose messages have keys, or are damaged: a read of them is an error."""
    offsets, units = piece.read()
    for batch in reader.read([piece]):
        import pyarrow.compute as pc  # most stores need it only for their messages

        without = pc.fill_null(pc.equal(pc.list_value_length(batch["keys"]), 0), True)
        gone = batch["queueOffset"].filter(without).to_numpy()
        kept = ~np.isin(offsets, gone)
        offsets, units = offsets[kept], units[kept]
    first = int(offsets[0]) if len(offsets) else piece.stop
    bytes_of = units.tobytes(), offsets.tobytes()
    return QueueRange(piece.topic, piece.queue_id, first, piece.stop, None, first, *bytes_of)

"""One queue as a snapshot sees it, and whether an entry of it leads to the message that it should lead to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.slices import QueueSlice, read_slice
from store_format.errors import StoreError
from store_format.java.hashes import java_hash
from store_format.layouts import BATCH_CQ_UNIT, CQ_EXT_ADDRESS_MAX
from store_format.message.locate import Identity, UnitRefs, locate
from store_format.message.property_table import PropertyTable
from store_format.message.tags_code import SCHEDULE_TOPIC

__all__ = ["QueueRange", "agrees"]

_OFFSET_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class QueueRange:
    """One queue in a snapshot: offsets [min_offset, max_offset), and what leads to its messages.

    `bounds` None: no consume queue files. `extra` are stored units from offset `extra_start` on that the
    files lack.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    bounds: QueueBounds | None
    extra_start: int = _OFFSET_MAX
    extra: bytes = b""
    extra_offsets: bytes = b""
    is_batch: bool = False

    def piece(self, start: int, stop: int) -> QueueSlice:
        return QueueSlice(
            self.topic,
            self.queue_id,
            start,
            stop,
            self.bounds,
            self.extra_start,
            self.extra,
            self.extra_offsets,
            self.is_batch,
        )

    def byte_estimate(self) -> int:
        """Bytes of commitlog between the first and the last message, this queue's and others'; at least the
        last message's.
        """
        if self.bounds is None or self.bounds.first_physical_offset < 0:
            return len(self.extra)
        return self.bounds.last_physical_offset + self.bounds.last_size - self.bounds.first_physical_offset


def agrees(queue: QueueRange, offset: int, log: CommitLog) -> bool:
    """Whether the entry of one offset, tags code included, is what the log's message says."""
    _, units = read_slice(queue.piece(offset, offset + 1))
    if not len(units):
        return False
    unit = units[-1]
    physical, size, tags_code = int(unit["physical_offset"]), int(unit["size"]), int(unit["tags_code"])
    file = log.file_at(physical)
    if file is None or size > file.stop - physical:
        return False
    try:
        data = np.frombuffer(log.read(physical, size), np.uint8)
    except StoreError:
        return False
    queue_offset = int(unit["base_offset"]) if units.dtype == BATCH_CQ_UNIT else offset
    light = (queue.topic.startswith("%LMQ%"),)
    identity = Identity(
        (queue.topic,), None, np.array([queue.queue_id], np.int32), np.array([queue_offset]), light
    )
    refs = UnitRefs(
        file.path, data, physical, np.zeros(1, np.int64), np.array([size]), np.array([tags_code]), identity
    )
    good, bad = locate(refs, verify_crc=True)
    if bad:
        return False
    if tags_code <= CQ_EXT_ADDRESS_MAX or queue.topic == SCHEDULE_TOPIC:
        return True  # an address or a delivery time, both written in one go with the rest
    tags = PropertyTable(good.raw_properties()).values("TAGS")[0].as_py()
    return tags_code == (java_hash(tags) if tags else 0)

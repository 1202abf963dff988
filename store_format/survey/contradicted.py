"""Messages whose topic contradicts the consume queues.

No checksum covers the topic in a message. A flipped bit makes another topic of it, which has no queue, and
the entry of the message's own queue still points to it. Such a message is damaged; it does not belong to a
topic that was deleted.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store_format.commitlog.log import CommitLog
from store_format.consumequeue.files import UnitFiles, file_run
from store_format.consumequeue.listing import list_queues
from store_format.consumequeue.message_entries import find_entries
from store_format.display.text import shown
from store_format.errors import CorruptStoreError, StoreError
from store_format.layouts import CQ_PRE_BLANK_SIZE, CQ_UNIT
from store_format.message.locate import Units
from store_format.names import QueueKey

_Ints = NDArray[np.int64]

_DIFFERENT_MAX = 2  # characters of two topics of one length


@dataclass(slots=True)
class Contradictions:
    """Compares messages of topics without consume queues with the entries of topics of similar names."""

    root: str
    log: CommitLog
    _directories: dict[str, dict[int, str]] | None = None
    _similar: dict[str, list[str]] = field(default_factory=dict)

    def of_units(self, units: Units) -> dict[int, CorruptStoreError]:
        """The errors of the messages that are contradicted, by their physical offsets."""
        found = find_entries(units, lambda topic: bool(self.similar_to(topic)))
        bad: dict[int, CorruptStoreError] = {}
        for number in np.unique(found.key).tolist():
            rows = found.key == number
            bad |= self.of_queue(found.keys[number], found.offset[rows], found.physical[rows])
        return bad

    def of_queue(
        self, key: QueueKey, offsets: _Ints, physical_offsets: _Ints
    ) -> dict[int, CorruptStoreError]:
        """The same of messages of one queue, with these queue offsets."""
        topic, queue_id = key
        bad: dict[int, CorruptStoreError] = {}
        others = [(each, self._known()[each].get(queue_id)) for each in self.similar_to(topic)]
        places = zip(offsets.tolist(), physical_offsets.tolist(), strict=True) if others else ()
        for offset, physical in places:
            for other, directory in others:
                file = self.log.file_at(physical)
                if directory and file and _points_to(directory, (other, queue_id), offset, physical):
                    expected = (
                        f"a message of {shown(other)}-{queue_id}, whose consume queue points to it at offset "
                        f"{offset}"
                    )
                    found = f"the topic {shown(topic)}, which has no queue"
                    bad[physical] = CorruptStoreError(file.path, physical - file.start, expected, found)
                    break
        return bad

    def similar_to(self, topic: str) -> list[str]:
        """The topics with queues whose names differ little from that of a topic without queues."""
        if topic not in self._similar:
            known = self._known()
            self._similar[topic] = (
                [] if topic in known else [each for each in known if _is_similar(topic, each)]
            )
        return self._similar[topic]

    def _known(self) -> dict[str, dict[int, str]]:
        """The directories of the queues by topic and queue id."""
        if self._directories is None:
            self._directories = {}
            with suppress(StoreError):  # a reader of queues raises the error
                for topic, queue_id, directory, kind in list_queues(
                    self.root, lambda _: True, lambda _: None
                ):
                    self._directories.setdefault(topic, {})
                    if kind == "simple":
                        self._directories[topic][queue_id] = directory
        return self._directories


def _is_similar(one: str, other: str) -> bool:
    return len(one) == len(other) and sum(a != b for a, b in zip(one, other, strict=True)) <= _DIFFERENT_MAX


def _points_to(directory: str, queue: QueueKey, offset: int, physical: int) -> bool:
    with suppress(StoreError):
        run = file_run(directory, CQ_UNIT.itemsize)
        stop = 0 if run is None else run.last_file + run.file_size
        if run is not None and run.first_file <= offset * CQ_UNIT.itemsize < stop:
            with UnitFiles(directory, CQ_UNIT, run, queue) as files:
                found, size, _ = files.unit(offset)
                return bool(found == physical and size > 0 and size != CQ_PRE_BLANK_SIZE)
    return False

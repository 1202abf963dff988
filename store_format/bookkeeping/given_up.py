"""What a recovery has given up, in `.rmqlog/given-up.json`: the trace of messages that are lost for good.

A recovery removes the evidence of lost messages: the queue entries behind the log's end, and in a salvaged
copy the damaged bytes. Later checks report what is noted here, and find no message missing.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace

from store_format.bookkeeping.staged_file import OWN_DIRECTORY
from store_format.errors import CorruptStoreError, StoreError
from store_format.files.read import read_bytes
from store_format.files.write import FileWrites
from store_format.names import QueueKey

GIVEN_UP = "given-up.json"  # in `.rmqlog`
FILLER_TOPIC = "rmq_sys_rmqlog_filler"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """`messages` are (topic, queue id, first queue offset, stop); of other lost messages nothing is known.

    `fillers` are the physical offsets [start, stop) of damaged bytes that a salvage has filled, with messages
    of FILLER_TOPIC. The log may have been cut there since.

    `begins` are (topic, queue id, physical offset) of queues whose first messages were given up: earlier
    messages are of a topic that was deleted before.
    """

    messages: tuple[tuple[str, int, int, int], ...] = ()
    fillers: tuple[tuple[int, int], ...] = ()
    begins: tuple[tuple[str, int, int], ...] = ()

    @property
    def count(self) -> int:
        return sum(stop - first for _, _, first, stop in self.messages)

    def __str__(self) -> str:
        """What was given up; empty for nothing."""
        if self.messages:
            return f"{self.count:,} message{'s' * (self.count != 1)}"
        size = sum(stop - start for start, stop in self.fillers)
        return f"what was in {size:,} damaged bytes" if size else ""

    def within(self, queues: Mapping[QueueKey, tuple[int, int]]) -> GivenUp:
        """The messages whose queue offsets lie in [first, stop) of these queues."""
        found = []
        for topic, queue_id, first, stop in self.messages:
            low, high = queues.get((topic, queue_id), (0, 0))
            if max(first, low) < min(stop, high):
                found.append((topic, queue_id, max(first, low), min(stop, high)))
        return GivenUp(tuple(found))

    def with_more(self, more: GivenUp) -> GivenUp:
        """Both, and what is in both once: a recovery that was broken off notes the rest again."""
        messages = [((topic, id_), first, stop) for topic, id_, first, stop in self.messages + more.messages]
        fillers = [(("", 0), start, stop) for start, stop in self.fillers + more.fillers]
        begins = {each[:2]: each[2] for each in sorted(self.begins + more.begins)}
        return GivenUp(
            tuple((*queue, first, stop) for queue, first, stop in _joined(messages)),
            tuple((start, stop) for _, start, stop in _joined(fillers)),
            tuple((*queue, physical) for queue, physical in begins.items()),
        )


def _joined(ranges: Iterable[tuple[QueueKey, int, int]]) -> list[tuple[QueueKey, int, int]]:
    """The ranges, sorted, with those of a queue that overlap or touch as one."""
    found: list[tuple[QueueKey, int, int]] = []
    for queue, start, stop in sorted(ranges):
        if found and found[-1][0] == queue and start <= found[-1][2]:
            found[-1] = queue, found[-1][1], max(stop, found[-1][2])
        else:
            found.append((queue, start, stop))
    return found


def read_given_up(root: str) -> GivenUp:
    """Returns the notes of all recoveries. Raises CorruptStoreError for a file that is not such a note."""
    path = f"{root}/{OWN_DIRECTORY}/{GIVEN_UP}"
    data = read_bytes(path)
    if data is None:
        return GivenUp()
    try:
        value = json.loads(data)
        return GivenUp(
            tuple((str(topic), int(id_), int(low), int(high)) for topic, id_, low, high in value["messages"]),
            tuple((int(start), int(stop)) for start, stop in value["fillers"]),
            tuple((str(topic), int(id_), int(physical)) for topic, id_, physical in value.get("begins", ())),
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
        raise CorruptStoreError(path, 0, "the notes of a recovery", "something else") from error


def given_up_ranges(root: str) -> dict[QueueKey, list[tuple[int, int]]]:
    """The queue offsets [first, stop) that were given up, of each queue.

    Empty if the notes cannot be read, which `verify` reports.
    """
    found: dict[QueueKey, list[tuple[int, int]]] = {}
    with suppress(StoreError, OSError):
        for topic, queue_id, first, stop in read_given_up(root).messages:
            found.setdefault((topic, queue_id), []).append((first, stop))
    return found


def noted_begins(root: str) -> dict[QueueKey, int]:
    """The physical offsets at which queues begin whose first messages were given up; as `given_up_ranges`."""
    with suppress(StoreError, OSError):
        return {(topic, queue_id): physical for topic, queue_id, physical in read_given_up(root).begins}
    return {}


def note_given_up(root: str, more: GivenUp, files: FileWrites) -> None:
    """Adds to the notes. A second call changes nothing."""
    before = read_given_up(root)
    _write(root, before, before.with_more(more), files)


def forget_topics(root: str, topics: Collection[str], files: FileWrites) -> None:
    """Removes the notes about topics that were deleted: a topic that is created again begins at offset 0."""
    before = read_given_up(root)
    left = tuple(each for each in before.messages if each[0] not in topics)
    begins = tuple(each for each in before.begins if each[0] not in topics)
    _write(root, before, replace(before, messages=left, begins=begins), files)


def _write(root: str, before: GivenUp, now: GivenUp, files: FileWrites) -> None:
    if now != before:
        data = json.dumps({"version": 1, **asdict(now)}).encode()
        files.replace(f"{root}/{OWN_DIRECTORY}/{GIVEN_UP}", data)

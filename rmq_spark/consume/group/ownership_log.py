"""Who owned which queue when, in `ownership.log` of a group's directory: one JSON object a line, for people
and for tests.

Lines are written under the directory's lock just before the state they belong to, and the state says how long
the log is. What a process wrote that died in between never came true: it lies behind that length, and the
next lines go over it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rmq_spark.consume.group.state import read_state
from rmq_spark.consume.message_queue import MessageQueue
from store_format.errors import CorruptStoreError, StoreWriteError
from store_format.files.read import read_bytes
from store_format.files.write import FileWrites

__all__ = ["OwnershipEvent", "append_events", "double_ownership", "read_events"]

_SIZE_MAX = 4 << 20
_ENDS = ("release", "expire")


@dataclass(frozen=True, slots=True)
class OwnershipEvent:
    """`event` is `gain`, `release`, `expire` (taken from a member whose lease is gone), `reset` or `replay`.

    A replay is a micro-batch that Spark repeats whole after a restart, whoever owns its queues by now.
    `writer` is the member that made the change, `at` is in ms since the epoch.
    """

    serial: int
    writer: str
    at: int
    event: str
    topic: str
    broker: str
    queue: int
    client: str | None
    member: str
    epoch: int
    position: int | None
    why: str = ""

    @property
    def message_queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker, self.queue)


def append_events(directory: str, events: Iterable[OwnershipEvent], size: int, files: FileWrites) -> int:
    """Adds lines to a log of `size` bytes; how long it is then, which the state has to say. Of a log that is
    long the older half goes.

    The caller holds the directory's lock.
    """
    lines = "".join(json.dumps(asdict(event), separators=(",", ":")) + "\n" for event in events).encode()
    if not lines:
        return size
    path = f"{directory}/ownership.log"
    if size > _SIZE_MAX:
        data = (read_bytes(path) or b"")[:size]
        files.replace(path, data[data.find(b"\n", len(data) // 2) + 1 :])
    try:
        file = files.open(path)
    except StoreWriteError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        file = files.append_file(path)
    with file:
        start = min(size, file.size)  # shorter than the state says: somebody died when it had halved it
        file.size = start + len(lines)
        file.write(start, lines)
    return start + len(lines)


def read_events(directory: str) -> list[OwnershipEvent]:
    """The events that came true, in their order. Raises CorruptStoreError for a log that is none of ours."""
    path = f"{directory}/ownership.log"
    lines = (read_bytes(path) or b"")[: read_state(directory).log_size].split(b"\n")[:-1]
    try:
        return [_event(line) for line in lines]
    except (ValueError, TypeError, RecursionError) as error:
        raise CorruptStoreError(
            path, 0, "a log of ownership", f"something else ({str(error)[:100]})"
        ) from error


def _event(line: bytes) -> OwnershipEvent:
    event = OwnershipEvent(**json.loads(line))
    numbers, texts = (
        (event.serial, event.at, event.queue, event.epoch),
        (event.event, event.topic, event.broker, event.member),
    )
    if not all(isinstance(each, int) for each in numbers) or not all(isinstance(each, str) for each in texts):
        raise TypeError("a member of another type")
    return event


def double_ownership(events: Iterable[OwnershipEvent]) -> list[str]:
    """A sentence for each queue that got an owner while it had one, or an epoch that is not a new one. None
    is how it should be.
    """
    owner: dict[MessageQueue, OwnershipEvent] = {}
    epoch: dict[MessageQueue, int] = {}
    found = []
    for event in events:
        queue = event.message_queue
        if event.event == "gain":
            before = owner.get(queue)
            if before is not None:
                found.append(
                    f"{queue}: {event.client} gained it in epoch {event.epoch} while {before.client} had it in epoch {before.epoch}"
                )
            if event.epoch <= epoch.get(queue, 0):
                found.append(f"{queue}: epoch {event.epoch} of {event.client} is no new one")
            owner[queue], epoch[queue] = event, event.epoch
        elif event.event in _ENDS:
            owner.pop(queue, None)
    return found

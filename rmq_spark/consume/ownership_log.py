"""Who owned which queue when, in `ownership.log` of a group's directory: one JSON object a line, for people and for tests.

Lines are written under the directory's lock just before the state they belong to, and carry its serial number. Those of a process that
died in between never came true; the next change has the same number, so of equal numbers the last writer's lines count.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from rmq_spark.consume.message_queue import MessageQueue
from store_format.errors import StoreWriteError
from store_format.files import read_bytes
from store_format.write_files import FileWrites

__all__ = ["OwnershipEvent", "append_events", "double_ownership", "read_events"]

_SIZE_MAX = 4 << 20
_ENDS = ("release", "expire")


@dataclass(frozen=True, slots=True)
class OwnershipEvent:
    """`event` is `gain`, `release`, `expire` (taken from a member whose lease is gone), `reset` or `replay`.

    A replay is a micro-batch that Spark repeats whole after a restart, whoever owns its queues by now. `writer` is the member that
    made the change, `at` is in ms since the epoch.
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


def append_events(directory: str, events: Iterable[OwnershipEvent], files: FileWrites) -> None:
    """Adds lines; of a log that has become long the older half goes. The caller holds the directory's lock."""
    lines = "".join(json.dumps(asdict(event), separators=(",", ":")) + "\n" for event in events).encode()
    if not lines:
        return
    path = f"{directory}/ownership.log"
    try:
        file = files.open(path)
    except StoreWriteError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        file = files.append_file(path)
    with file:
        if file.size and file.read(file.size - 1, 1) != b"\n":
            lines = b"\n" + lines  # whoever wrote last was killed in the middle of a line
        start, file.size = file.size, file.size + len(lines)
        file.write(start, lines)
        is_long = file.size > _SIZE_MAX
    if is_long:
        data = read_bytes(path) or b""
        files.replace(path, data[data.index(b"\n", len(data) // 2) + 1 :])


def read_events(directory: str) -> list[OwnershipEvent]:
    """The events that came true, in their order. A line that a kill cut off is none."""
    lines = (read_bytes(f"{directory}/ownership.log") or b"").split(b"\n")
    found = []
    for line in lines:
        try:
            found.append(OwnershipEvent(**json.loads(line)))
        except (ValueError, TypeError):
            continue  # a line whose writer was killed
    last_writer = {event.serial: (event.writer, event.at) for event in found}
    return [event for event in found if last_writer[event.serial] == (event.writer, event.at)]


def double_ownership(events: Iterable[OwnershipEvent]) -> list[str]:
    """A sentence for each queue that got an owner while it had one, or an epoch that is not a new one. None is how it should be."""
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

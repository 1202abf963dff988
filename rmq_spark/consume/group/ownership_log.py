"""`ownership.log` in a group's directory: which client owned which queue when, one JSON object a line.

Lines are written under the directory's lock, just before the state that they belong to, and the state
contains the length of the log. If a process dies between the two writes, its lines lie beyond that length:
they never took effect, and the next lines overwrite them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from store_format.errors import StoreWriteError
from store_format.files.read import read_bytes
from store_format.files.write import FileWrites

_SIZE_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class OwnershipEvent:
    """`event` is `gain`, `release`, `expire` (taken from a member whose lease is gone), `reset`,
    `stop` (a reset to a message at which an orderly handler failed) or `replay`.

    A replay is a micro-batch that Spark repeats after a restart, whoever owns its queues by then. `writer` is
    the member that made the change, `at` is in ms since the epoch.
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


def append_events(directory: str, events: Iterable[OwnershipEvent], size: int, files: FileWrites) -> int:
    """Writes lines at byte `size` of the log and returns its new length, which the state must contain.

    A log above 4 MiB loses its older half first. The caller holds the directory's lock.
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
        file = files.create(path, 0)
    with file:
        # The file is shorter than the state says if a process died right after it had halved the log.
        start = min(size, file.size)
        file.size = start + len(lines)
        file.write(start, lines)
    return start + len(lines)

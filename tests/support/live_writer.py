"""A writer that behaves as a broker does: the byte lock, `abort`, and units that come into their full-size
files piece by piece.

    python -m tests.support.live_writer ROOT MESSAGES

writes a line when the store is there, and one when it has appended that many messages. The process holds the
lock until its input ends; then it ends, too.
"""

from __future__ import annotations

import fcntl
import os
import sys
import threading
import time
from pathlib import Path

from tests.support import oracle
from tests.support.oracle import Message

QUEUES = (("Live", 0), ("Live", 1), ("Live", 2), ("Other", 0))
LOG_FILE_SIZE = 64 << 10
CQ_FILE_SIZE = 20 * 100
PACE_SECONDS = 0.002  # between messages, so that readers meet every state


def message_body(topic: str, queue_id: int, offset: int) -> bytes:
    """What the message at that place says; lengths differ, so that files end at different places."""
    return f"{topic}-{queue_id}-{offset}|".encode() * (1 + offset * 7 % 23)


def message(number: int, physical_offset: int) -> Message:
    """Message `number` goes to the queues in turn."""
    offset, turn = divmod(number, len(QUEUES))
    topic, queue_id = QUEUES[turn]
    properties = oracle.encode_properties([("TAGS", f"t{offset % 5}"), ("UNIQ_KEY", f"U{number}")])
    body = message_body(topic, queue_id, offset)
    now = 1_700_000_000_000 + number
    return Message(
        topic.encode(),
        body,
        properties,
        queue_id,
        offset,
        physical_offset,
        born_timestamp=now,
        store_timestamp=now,
    )


class Files:
    """One file queue: full-size files made when the first byte of each is written, and kept open.

    `ahead` more files are made behind it, as a broker allocates files of the commitlog.
    """

    def __init__(self, directory: Path, size: int, *, ahead: int = 0) -> None:
        self.directory, self.size, self.ahead = directory, size, ahead
        self.directory.mkdir(parents=True)
        self.start, self.file = -1, -1

    def write(self, position: int, data: bytes, pieces: int) -> None:
        start = position - position % self.size
        if start != self.start:
            if self.file >= 0:
                os.close(self.file)
            self.file, self.start = self._make(start), start
            for number in range(self.ahead):
                os.close(self._make(start + (number + 1) * self.size))
        step = -(-len(data) // pieces)
        for at in range(0, len(data), step):
            if at:
                os.sched_yield()
            os.pwrite(self.file, data[at : at + step], position - start + at)

    def _make(self, start: int) -> int:
        file = os.open(self.directory / oracle.file_name(start), os.O_CREAT | os.O_WRONLY)
        os.ftruncate(file, self.size)
        return file


class Writer:
    """A new store with its files; `append` writes the next message, in so many pieces."""

    def __init__(self, root: Path, pieces: int) -> None:
        root.mkdir()
        (root / "abort").touch()
        self.pieces, self.number, self.position = pieces, 0, 0
        self.log = Files(root / "commitlog", LOG_FILE_SIZE, ahead=1)
        self.queues = {
            queue: Files(root / "consumequeue" / queue[0] / str(queue[1]), CQ_FILE_SIZE) for queue in QUEUES
        }

    def append(self) -> None:
        size = message(self.number, self.position).total_size
        remaining = LOG_FILE_SIZE - self.position % LOG_FILE_SIZE
        if size + 8 > remaining:
            self.log.write(self.position, oracle.blank(remaining), self.pieces)
            self.position += remaining
        unit = message(self.number, self.position)
        self.log.write(self.position, oracle.encode_message(unit), self.pieces)
        entry = oracle.cq_unit(self.position, size, oracle.tags_code(unit))
        self.queues[unit.topic, unit.queue_id].write(20 * unit.queue_offset, entry, self.pieces)
        self.position += size
        self.number += 1


def main(root: Path, count: int) -> None:
    waiting = threading.Thread(target=_end_with_the_input, daemon=True)
    waiting.start()
    writer = Writer(root, pieces=4)
    lock = os.open(root / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    print("ready", flush=True)
    for _ in range(count):
        writer.append()
        time.sleep(PACE_SECONDS)
    print("done", flush=True)
    waiting.join()


def _end_with_the_input() -> None:
    sys.stdin.read()
    os._exit(0)  # in the midst of a message, as a broker that is killed


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

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
    """One file queue: full-size files made when the first byte of each is written, and kept open."""

    def __init__(self, directory: Path, size: int) -> None:
        self.directory, self.size = directory, size
        self.directory.mkdir(parents=True)
        self.start, self.file = -1, -1

    def write(self, position: int, data: bytes, pieces: int) -> None:
        start = position - position % self.size
        if start != self.start:
            if self.file >= 0:
                os.close(self.file)
            self.file = os.open(self.directory / oracle.file_name(start), os.O_CREAT | os.O_WRONLY)
            os.ftruncate(self.file, self.size)
            self.start = start
        step = -(-len(data) // pieces)
        for at in range(0, len(data), step):
            os.pwrite(self.file, data[at : at + step], position - start + at)
            os.sched_yield()


def main(root: Path, count: int) -> None:
    waiting = threading.Thread(target=_end_with_the_input, daemon=True)
    waiting.start()
    root.mkdir()
    (root / "abort").touch()
    lock = os.open(root / "lock", os.O_CREAT | os.O_RDWR)
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    log = Files(root / "commitlog", LOG_FILE_SIZE)
    queues = {
        queue: Files(root / "consumequeue" / queue[0] / str(queue[1]), CQ_FILE_SIZE) for queue in QUEUES
    }
    print("ready", flush=True)
    position = 0
    for number in range(count):
        size = message(number, position).total_size
        remaining = LOG_FILE_SIZE - position % LOG_FILE_SIZE
        if size + 8 > remaining:
            log.write(position, oracle.blank(remaining), 2)
            position += remaining
        unit = message(number, position)
        log.write(position, oracle.encode_message(unit), 4)
        entry = oracle.cq_unit(position, size, oracle.tags_code(unit))
        queues[unit.topic, unit.queue_id].write(20 * unit.queue_offset, entry, 4)
        position += size
        time.sleep(PACE_SECONDS)
    print("done", flush=True)
    waiting.join()


def _end_with_the_input() -> None:
    sys.stdin.read()
    os._exit(0)  # in the midst of a message, as a broker that is killed


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

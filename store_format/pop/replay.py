"""A state, and how far it has replayed an in-flight log: whoever reads a log goes on from there."""

from __future__ import annotations

from store_format.errors import CorruptStoreError
from store_format.pop.records import CHECKSUM_SIZE, MAGIC, MAGIC_1, frame, frames, frames_1
from store_format.pop.state import PopState


class LogReplay:
    """The state after the first `end` bytes of the log at `path`, from its start on.

    Use: read the file from `start` on and give the bytes to `take`. They begin with the last bytes that this
    replay knows, by which it recognizes its log (see `records`). `snapshot_size` is where the first frame
    ends: after a compaction that is the snapshot. `is_old`: the log has version 1, where nothing tells one
    log from another.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.state = PopState()
        self.end = self.snapshot_size = 0
        self.is_old = False
        self._last = b""  # the bytes before `end`

    @property
    def start(self) -> int:
        """Where the next read begins."""
        return self.end - len(self._last)

    def take(self, data: bytes) -> bool:
        """Replays the frames in the bytes from `start` on; False if they are of another log.

        Then the file was changed below `end`, and another replay has to begin at 0. Bytes behind `end` are
        no whole frame: a kill has left them, they are damaged, or another process is writing them.

        Raises CorruptStoreError for a file that is no in-flight log, and for records of a newer release.
        """
        base = self.start
        if not data.startswith(self._last):
            return False
        if not self.end:
            self.is_old = data.startswith(MAGIC_1)
            if not (self.is_old or has_magic(data, self.path)):
                return True
            self._know(MAGIC, len(MAGIC))
        start = self.end
        rest = data[start - base :]
        for position, records in frames_1(rest) if self.is_old else frames(rest, self._last):
            self.state.replay(records, self.path, start + position)
            self._know(rest[position - CHECKSUM_SIZE : position], start + position)
            self.snapshot_size = self.snapshot_size or self.end
        return True

    def _know(self, data: bytes, end: int) -> None:
        self.end = end
        self._last = b"" if self.is_old else data[-CHECKSUM_SIZE:]

    def framed(self, records: bytes) -> bytes:
        """The frame that appends the records to the log."""
        return frame(records, self._last)

    def wrote(self, data: bytes) -> None:
        """The state has these records already, and they are at the end of the log now."""
        self.end += len(data)
        self._last = data[-CHECKSUM_SIZE:]

    def rewrote(self, data: bytes) -> None:
        """The log was replaced by this one, a snapshot of the state."""
        self.end = self.snapshot_size = len(data)
        self.is_old, self._last = False, data[-CHECKSUM_SIZE:]


def has_magic(data: bytes, path: str) -> bool:
    """Whether the data begins as an in-flight log; False for the torn beginning that a kill leaves.

    Raises CorruptStoreError for other data.
    """
    if not any(each.startswith(data[: len(MAGIC)]) for each in (MAGIC, MAGIC_1)):
        raise CorruptStoreError(
            path, 0, f"the bytes {MAGIC.hex()}",
            f"{data[: len(MAGIC)].hex()}; remove the file: messages in flight are then delivered again",
        )  # fmt: skip
    return len(data) >= len(MAGIC)

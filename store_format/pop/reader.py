"""Follows an in-flight log without its lock and without a change of any file."""

from __future__ import annotations

import os

from store_format.files.read import is_named, open_descriptor
from store_format.pop.log import LOG_NAME
from store_format.pop.replay import LogReplay
from store_format.pop.state import PopState


class InFlightReader:
    """The state of the log in `directory` at each look. A look reads what was appended since the last one."""

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{LOG_NAME}"
        self._replay = LogReplay(self.path)
        # The file stays open, so that no other file gets its inode.
        self._descriptor = -1

    def look(self) -> PopState | None:
        """The state as of now; None without a log. The caller does not change it, and keeps no part of it.

        Raises CorruptStoreError for a file that is not an in-flight log.
        """
        if self._descriptor < 0 or not is_named(self.path, self._descriptor):
            self.close()
            try:
                self._descriptor = open_descriptor(self.path)
            except FileNotFoundError:
                return None
        if not self._take():  # what a killed process left torn was cut, or damage
            self._replay = LogReplay(self.path)
            self._take()
        return self._replay.state if self._replay.end else None

    def _take(self) -> bool:
        size = os.fstat(self._descriptor).st_size
        return size >= self._replay.end and self._replay.take(
            _read(self._descriptor, self._replay.start, size)
        )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._replay, self._descriptor = LogReplay(self.path), -1


def _read(descriptor: int, start: int, stop: int) -> bytes:
    parts = []
    while start < stop and (part := os.pread(descriptor, stop - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)

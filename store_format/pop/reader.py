"""Follows an in-flight log without its lock and without a change of any file."""

from __future__ import annotations

import os

from store_format.files.read import open_descriptor
from store_format.files.shared_log import is_named
from store_format.pop.log import LOG_NAME, has_magic
from store_format.pop.records import MAGIC, frames
from store_format.pop.state import PopState


class InFlightReader:
    """The state of the log in `directory` at each look. A look reads what was appended since the last one."""

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{LOG_NAME}"
        self._state = PopState()
        # The file stays open, so that no other file gets its inode.
        self._descriptor = -1
        self._end = 0

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
        size = os.fstat(self._descriptor).st_size
        if size < self._end:  # what a killed process left torn was cut
            self._state, self._end = PopState(), 0
        data = _read(self._descriptor, self._end, size)
        if not self._end:
            if not has_magic(data, self.path):
                return None
            data, self._end = data[len(MAGIC) :], len(MAGIC)
        start = self._end
        for position, records in frames(data):
            self._end = start + position
            self._state.replay(records, self.path, self._end)
        return self._state

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._state, self._descriptor, self._end = PopState(), -1, 0


def _read(descriptor: int, start: int, stop: int) -> bytes:
    parts = []
    while start < stop and (part := os.pread(descriptor, stop - start, start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)

"""Writes the commitlog's files: creates a file with its first write, and zeroes or removes files on undo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from store_format.commitlog.log import CommitLog
from store_format.commitlog.place import blank_head
from store_format.files import paths
from store_format.files.read import offset_file_name
from store_format.files.write import FileWrites, WritableFile


class LogFiles:
    """Writes at physical offsets, one file open at a time. Syncs a file before it opens the next.

    `made` has the paths of the files that it created.
    """

    def __init__(self, log: CommitLog, directories: Sequence[str], file_size: int, files: FileWrites) -> None:
        self._files = files
        self._directories = sorted(directories)  # String order
        self._file_size = file_size
        self._paths = {file.start: file.path for file in log.files}
        self._file: WritableFile | None = None
        self._start = -1
        self.made: list[str] = []

    def write(self, offset: int, data: Any) -> None:
        start = offset - offset % self._file_size
        if self._file is None or self._start != start:
            self.close()
            self._file, self._start = self._open(start), start
        self._file.write(offset - start, data)

    def write_blank(self, offset: int) -> None:
        """Writes a BLANK at `offset`: no unit in the rest of the file."""
        self.write(offset, blank_head(offset, self._file_size))

    def close(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                self._files.sync(file)

    def _open(self, start: int) -> WritableFile:
        path = self._paths.get(start) or self._new_path(start)
        file, made = self._files.open_full(path, self._file_size)
        self._paths[start] = path
        if made:
            self.made.append(path)  # At once, so that a failure from here on removes the file again.
            try:
                self._files.sync_directory(paths.parent(path))
            except BaseException:
                file.close()
                raise
        return file

    def _new_path(self, start: int) -> str:
        """The directories take turns (MultiPathMappedFileQueue.tryCreateMappedFile)."""
        directory = self._directories[start // self._file_size % len(self._directories)]
        return f"{directory}/{offset_file_name(start)}"

    def clear_behind(self, base: int, *, keep: int = -1) -> None:
        """Zeroes all bytes at or behind `base`, and removes the files in `made` that begin there.

        Also removes files that begin at or behind `keep`, unless `keep` is negative.
        """
        if self._file is not None:
            self._file.close()
            self._file = None
        for start, path in sorted(self._paths.items(), reverse=True):
            if start + self._file_size <= base:
                continue
            if path in self.made or 0 <= keep <= start:
                if self._files.remove(path):
                    self._files.sync_directory(paths.parent(path))
                del self._paths[start]
            else:
                with self._files.open(path) as file:
                    file.zero(max(base - start, 0), file.size)
                    self._files.sync(file)

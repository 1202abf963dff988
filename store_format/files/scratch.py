"""Directories for files that are needed for a moment, or until the process ends."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def scratch_directory(prefix: str) -> Iterator[str]:
    """The path of a new directory in the system's place for them (TMPDIR); it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix=prefix) as path:
        yield path


def directory_until_exit(prefix: str) -> str:
    """The path of a new directory in the system's place for them; it is removed when the process ends."""
    path = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path

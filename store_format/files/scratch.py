"""Directories for files that are needed until the process ends."""

from __future__ import annotations

import atexit
import shutil
import tempfile


def directory_until_exit(prefix: str) -> str:
    """The path of a new directory in the system's place for them; it is removed when the process ends."""
    path = tempfile.mkdtemp(prefix=prefix)
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path

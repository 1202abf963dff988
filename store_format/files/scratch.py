"""A directory for files that are needed for a moment, outside of every store."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def scratch_directory(prefix: str) -> Iterator[str]:
    """The path of a new directory in the system's place for them (TMPDIR); it is removed at the end."""
    with tempfile.TemporaryDirectory(prefix=prefix) as path:
        yield path

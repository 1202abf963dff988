"""Acting as another user, for tests of what the system does not let a user read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without root's rights, which modes of files do not bind. What the code imports late has to have been
    imported before.
    """
    if os.geteuid() != 0:  # bound by modes anyway
        yield
        return
    group, groups = os.getegid(), os.getgroups()
    os.setgroups([])
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)
        os.setgroups(groups)


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory that every user may look into, unlike pytest's; in memory if pytest's are."""
    directory = Path(tempfile.mkdtemp(dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)

"""The only room of the command line that opens files: the file that an export writes, and the nowhere that a
closed pipe is left to.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import click


def forget_output() -> None:
    """What is still buffered for stdout goes nowhere: the interpreter flushes it when it ends, and would
    complain.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


@contextmanager
def new_file(path: str, *, replace: bool) -> Iterator[BinaryIO]:
    """A file that is there, whole and flushed, when the block has ended well, and not at all when it has not.

    Raises UsageError where a file is already, unless `replace`.
    """
    if not replace and os.path.lexists(path):
        raise click.UsageError(f"{path} exists; give another name, or --force to replace it")
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        if os.path.lexists(part):
            os.unlink(part)
        raise

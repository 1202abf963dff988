"""A terminal for runs of `rmqlog` in this process: text that says that it is a terminal of a given width.

A run in a pseudo-terminal needs a process. `tests.support.terminals` has such runs; a test compares both.
"""

from __future__ import annotations

import io
import random
import string
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from rmq_spark.cli.main import main
from tests.support.terminals import without_progress

STORE = "/data/store"  # the path in recorded screens


@contextmanager
def short_path(store: Path, named: str = STORE) -> Iterator[str]:
    """A link to the store whose path is as long as `named`: lines are wrapped where a user's lines are."""
    letters = string.ascii_lowercase + string.digits
    link = Path("/tmp") / "".join(random.SystemRandom().choices(letters, k=len(named) - len("/tmp/")))
    link.symlink_to(store)
    try:
        yield str(link)
    finally:
        link.unlink()


class TextTerminal(io.StringIO):
    """Text of stdout and stderr, in the order in which it is written."""

    def isatty(self) -> bool:
        return True


@contextmanager
def columns_of_terminal(columns: int | None) -> Iterator[None]:
    """Within it, terminals have this width, no colour, and show times in UTC; None is no terminal."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "UTC")
        patch.setenv("NO_COLOR", "1")
        patch.setenv("COLUMNS", str(columns or 80))  # the help is as wide in a pipe
        time.tzset()
        yield
    time.tzset()


def seen(columns: int | None, *arguments: object) -> tuple[int, str]:
    """(exit code, text) of a run in a terminal of this width; None is a pipe for stdout and stderr."""
    text = io.StringIO() if columns is None else TextTerminal()
    with columns_of_terminal(columns), redirect_stdout(text), redirect_stderr(text):
        code = main([str(each) for each in arguments])
    return code, without_progress(text.getvalue())

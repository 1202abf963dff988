"""A pager for output that is longer than the terminal: $RMQLOG_PAGER, else $PAGER, else less, as git does."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from io import TextIOBase
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess


class _Paged(TextIOBase):
    """Text for a terminal: held until it is longer than the screen, then sent to the pager."""

    def __init__(self, command: list[str], lines_max: int, terminal: IO[str]) -> None:
        self._command, self._left, self._terminal = command, lines_max, terminal
        self._held: list[str] = []
        self._process: subprocess.Popen[str] | None = None

    def write(self, text: str) -> int:
        if self._process is not None:
            assert self._process.stdin is not None
            return self._process.stdin.write(text)
        self._held.append(text)
        self._left -= text.count("\n")
        if self._left < 0:
            self._start()
        return len(text)

    def _start(self) -> None:
        """Starts the pager and sends what is held; without a pager, text goes to the terminal."""
        import subprocess  # 5 ms that only long output needs

        environment = {"LESS": "FRX", "LV": "-c", **os.environ}
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, text=True, errors="backslashreplace", env=environment
            )
        except OSError:
            self._left = sys.maxsize
            return
        assert self._process.stdin is not None
        self._process.stdin.writelines(self._held)

    def isatty(self) -> bool:
        return True

    def end(self) -> None:
        """Shows what is held, or waits until the reader leaves the pager."""
        if self._process is None:
            self._terminal.writelines(self._held)
            self._terminal.flush()
            return
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the reader has left the pager
            self._process.stdin.close()
        while True:
            with suppress(KeyboardInterrupt):  # less uses Ctrl-C itself
                self._process.wait()
                return


@contextmanager
def paged(*, wanted: bool) -> Iterator[None]:
    """Within it, text on stdout goes through a pager if it does not fit the terminal.

    The pager starts only where both stdin and stdout are terminals of known height. `PAGER=cat` turns it off.
    """
    command = _pager() if wanted else None
    if command is None:
        yield
        return
    pages = _Paged(command, os.get_terminal_size(sys.stdout.fileno()).lines - 2, sys.stdout)
    try:
        with redirect_stdout(pages), suppress(BrokenPipeError):
            yield
    finally:
        pages.end()


def _pager() -> list[str] | None:
    if os.environ.get("TERM", "dumb") == "dumb" or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    command = os.environ.get("RMQLOG_PAGER", os.environ.get("PAGER", "less")).split()
    if not command or command[0] == "cat":
        return None
    return command if os.get_terminal_size(sys.stdout.fileno()).lines > 0 else None

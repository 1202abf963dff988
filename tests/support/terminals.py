"""Runs of `rmqlog` in a real terminal of a given size: as processes of their own, and in forks of a process
that has imported the commands. A fork takes a tenth of the CPU time, which a process spends on its imports.
"""

from __future__ import annotations

import fcntl
import importlib
import os
import pkgutil
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from typing import Self

import store_format
from rmq_spark.cli.main import COMMANDS, run
from tests.support.cli_runs import command, environment
from tests.support.fork_server import ForkServer

# A process with one thread may fork: its child gets a terminal, whose size is set before `rmqlog` starts.
_HOST = """
import fcntl, os, pty, struct, sys, termios
lines, columns, *arguments = sys.argv[1:]
child, terminal = pty.fork()
if not child:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", int(lines), int(columns), 0, 0))
    os.execvp(arguments[0], arguments)
while True:
    try:
        part = os.read(terminal, 4096)
    except OSError:
        break
    if not part:
        break
    os.write(1, part)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def screen(columns: int, *arguments: object, lines: int = 500, **more: str) -> tuple[int, str]:
    """(exit code, text) of a run in a terminal of this size. `more` are variables of the environment."""
    return program_screen(columns, command(*arguments), lines=lines, **more)


def program_screen(columns: int, program: Sequence[str], *, lines: int = 500, **more: str) -> tuple[int, str]:
    """Returns what `screen` returns, of any program."""
    done = subprocess.run(
        [sys.executable, "-c", _HOST, str(lines), str(columns), *program],
        stdout=subprocess.PIPE,
        env=_variables(more),
        timeout=60,
        check=False,
    )
    return done.returncode, _text(done.stdout)


class ForkedTerminals:
    """Runs of `rmqlog` like those of `screen`, each in a fork of one process."""

    def __init__(self) -> None:
        self._forks = ForkServer(_import_commands)

    def screen(self, columns: int, *arguments: object, lines: int = 500, **more: str) -> tuple[int, str]:
        """Returns what the function `screen` returns."""
        words = [str(each) for each in arguments]
        code, seen = self._forks.call(_run_in_terminal, lines, columns, words, _variables(more))
        return code, _text(seen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forks.close()


def _import_commands() -> None:
    for module in set(COMMANDS.values()):
        importlib.import_module(f"rmq_spark.cli.commands.{module}")
    for each in pkgutil.walk_packages(store_format.__path__, "store_format."):
        importlib.import_module(each.name)


def _run_in_terminal(
    lines: int, columns: int, words: list[str], variables: dict[str, str]
) -> tuple[int, bytes]:
    child, terminal = pty.fork()
    if not child:
        try:
            _become_rmqlog(lines, columns, words, variables)
        finally:  # `run` ends the process, an error before it does not
            os._exit(99)
    seen = b""
    while part := _read(terminal):
        seen += part
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), seen


def _become_rmqlog(lines: int, columns: int, words: list[str], variables: dict[str, str]) -> None:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    os.environ.clear()
    os.environ.update(variables)
    time.tzset()
    # as the interpreter opens them when it starts: the terminal decides about buffers and encoding
    sys.stdin, sys.stdout = os.fdopen(0, encoding="utf-8"), os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace")
    sys.argv = ["rmqlog", *words]
    run()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the child has closed its side
        return b""


def _variables(more: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment().items() if name not in ("COLUMNS", "NO_COLOR")}
    return kept | {"TERM": "xterm", "TZ": "UTC", **more}


def _text(seen: bytes) -> str:
    return seen.decode("utf-8", "replace").replace("\r\n", "\n")


def without_progress(seen: str) -> str:
    """Without lines of progress: each begins with \\r, CSI K; the last of them is followed by output."""
    return re.sub(r"(\r\x1b\[K[^\r\n]*)*\r\x1b\[K", "", seen)

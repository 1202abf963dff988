"""Runs of `rmqlog` in a real terminal of a given size."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.cli_runs import command, environment

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
    variables = {name: value for name, value in environment().items() if name not in ("COLUMNS", "NO_COLOR")}
    done = subprocess.run(
        [sys.executable, "-c", _HOST, str(lines), str(columns), *command(*arguments)],
        stdout=subprocess.PIPE,
        env=variables | {"TERM": "xterm", "TZ": "UTC", **more},
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace").replace("\r\n", "\n")


def without_progress(seen: str) -> str:
    """Without lines of progress: each begins with \\r, CSI K; the last of them is followed by output."""
    return re.sub(r"(\r\x1b\[K[^\r\n]*)*\r\x1b\[K", "", seen)

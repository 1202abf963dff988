"""Sessions that cannot live beside the classic one of the other tests: a script in a Python of its own, with
its own environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
_TIMEOUT_S = 240


def run(
    script: str,
    *arguments: str,
    directory: Path,
    python_path: Path = ROOT,
    workers: Path = Path(sys.executable),
    timeout_s: int = _TIMEOUT_S,
) -> str:
    """What the script prints. It runs in `directory`; `python_path` is where it and Spark's `workers`, a
    Python, find modules.
    """
    environment = dict(os.environ, SPARK_CONF_DIR=str(ROOT / "conf"), PYTHONPATH=str(python_path))
    environment |= {"PYSPARK_PYTHON": str(workers), "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def start_session(arguments: list[str], log: Path, **environment: str) -> subprocess.Popen[str]:
    """A Python with a session of its own, to be ended with all that it starts; what it says is added to
    `log`, its output is a pipe.
    """
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    given = dict(os.environ, SPARK_CONF_DIR=str(ROOT / "conf"), PYTHONPATH=str(ROOT), **python, **environment)
    with log.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=log.parent, env=given, stdout=subprocess.PIPE, stderr=said,
            start_new_session=True, text=True,
        )  # fmt: skip


def signal_session(leader: int, number: signal.Signals) -> None:
    """Signals all processes of the session that `leader` began, but the calling one: Spark gives its Python
    workers process groups of their own.
    """
    own = os.getpid()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(ProcessLookupError, PermissionError):
            if int(name) != own and os.getsid(int(name)) == leader:
                os.kill(int(name), number)


def end_session(leader: int) -> None:
    """SIGKILL to all processes of the session that `leader` began, the calling one last."""
    for _ in range(2):  # one that was forked meanwhile
        signal_session(leader, signal.SIGKILL)
    if os.getsid(0) == leader:
        os.kill(os.getpid(), signal.SIGKILL)

"""A process without threads that forks for each action: `python -m tests.support.fork_server FD`.

A new interpreter for each process that a test kills takes half a second of a core, a fork 0.02 s. A fork of
the test process may hang: Arrow, numba and Spark start threads, and a lock that one of them holds at the fork
stays locked in the fork for ever. So a small process imports what actions need, starts no thread, and forks.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

_ROOT = Path(__file__).resolve().parents[2]

# numpy starts a thread for each core when it is imported, and Arrow one of its allocator.
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


@dataclass(frozen=True)
class Ended:
    """The signal that killed a fork, or 0; the result of its action; the traceback of an error."""

    signal: int
    value: Any = None
    error: str = ""


@dataclass(frozen=True)
class _Unforked:
    """An action for the process itself."""

    action: Callable[..., object]


class ForkServer:
    """Runs actions in forks of one small process. `prepare` runs once, in that process itself.

    An action is a function of a module, because its name is what is sent; its arguments are pickled.
    """

    def __init__(self, prepare: Callable[[], object] | None = None) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.fork_server", str(theirs.fileno())],
                cwd=_ROOT,
                env=os.environ | _NO_THREADS,
                pass_fds=[theirs.fileno()],
            )
        self._connection = Connection(ours.detach())
        self._connection.send_bytes(pickle.dumps(prepare))

    def run(self, action: Callable[..., object], *arguments: object) -> Ended:
        """Runs the action in a fork and waits for its end."""
        self._connection.send_bytes(pickle.dumps((action, arguments)))
        try:
            ended = pickle.loads(self._connection.recv_bytes())
        except EOFError:
            raise AssertionError(f"the fork server has ended with {self._process.wait()}") from None
        except BaseException:  # the test's timeout: the answer would be taken for that of the next action
            self.close()
            raise
        assert isinstance(ended, Ended)
        return ended

    def call(self, action: Callable[..., object], *arguments: object) -> Any:
        """Runs the action in a fork; returns its result. Raises AssertionError if the action failed."""
        ended = self.run(action, *arguments)
        assert not ended.signal, f"the fork was killed by signal {ended.signal}"
        assert not ended.error, ended.error
        return ended.value

    def prepare(self, action: Callable[..., object], *arguments: object) -> None:
        """Runs the action in the process itself, so that all later forks have what it caches.

        An action that starts a thread makes them fail.
        """
        self._connection.send_bytes(pickle.dumps((_Unforked(action), arguments)))
        ended = pickle.loads(self._connection.recv_bytes())
        assert not ended.error, ended.error

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---- in the process ----------------------------------------------------------------------------------------


def thread_names() -> list[str]:
    """The names of this process's threads, also of those that Python does not know."""
    tasks = Path("/proc/self/task")
    if not tasks.exists():  # not on Linux
        return [thread.name for thread in threading.enumerate()]
    return [(task / "comm").read_text().strip() for task in tasks.iterdir()]


def _run(action: Callable[..., object] | _Unforked, arguments: tuple[object, ...]) -> Ended:
    if isinstance(action, _Unforked):
        action.action(*arguments)
        return Ended(0)
    return _run_in_fork(action, arguments)


def _run_in_fork(action: Callable[..., object], arguments: tuple[object, ...]) -> Ended:
    threads = thread_names()
    if len(threads) != 1:
        return Ended(0, error=f"the fork server has the threads {threads}; a fork of it may hang")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            _answer(writing, action, arguments)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        answer = file.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return Ended(os.WTERMSIG(status))
    ended = pickle.loads(answer) if answer else Ended(0, error="the fork ended without an answer")
    assert isinstance(ended, Ended)
    return ended


def _answer(writing: int, action: Callable[..., object], arguments: tuple[object, ...]) -> None:
    try:
        ended = Ended(0, action(*arguments))
    except BaseException:
        ended = Ended(0, error=traceback.format_exc())
    with os.fdopen(writing, "wb") as file:
        file.write(pickle.dumps(ended))


def main(descriptor: str) -> None:
    pa.array([])  # imports pandas where it is installed, which would take each fork 0.4 s
    connection = Connection(int(descriptor))
    prepare = pickle.loads(connection.recv_bytes())
    if prepare is not None:
        prepare()
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            return
        try:
            ended = _run(*pickle.loads(request))
        except Exception:
            ended = Ended(0, error=traceback.format_exc())
        connection.send_bytes(pickle.dumps(ended))


if __name__ == "__main__":
    # as the module that pickled objects name, not as __main__
    from tests.support.fork_server import main as run

    run(*sys.argv[1:])

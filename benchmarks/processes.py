"""What Python worker processes hold in memory, sampled from /proc while Spark works; the JVM is not counted."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import TracebackType

__all__ = ["WorkerMemory"]

_INTERVAL_S = 0.02
_SIZE = re.compile(r"^(VmRSS|RssAnon):\s+(\d+) kB$", re.MULTILINE)


class WorkerMemory:
    """Within `with`: the most that any one Python worker below this process held.

    `resident_bytes` counts the pages of store files that are mapped at the moment, which the system can take back; `own_bytes` does not.
    Both stay 0 where there is no /proc.
    """

    def __init__(self) -> None:
        self.resident_bytes = 0
        self.own_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            for process in _workers():
                self._sample(process)

    def _sample(self, process: int) -> None:
        try:
            status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
        except OSError:  # it has ended since it was listed
            return
        sizes = {name: int(size) * 1024 for name, size in _SIZE.findall(status)}
        self.resident_bytes = max(self.resident_bytes, sizes.get("VmRSS", 0))
        self.own_bytes = max(self.own_bytes, sizes.get("RssAnon", 0))


def _workers() -> list[int]:
    """Python processes below this one: pyspark.daemon, which the JVM starts, and the workers it forks."""
    found, waiting = [], [os.getpid()]
    while waiting:
        process = waiting.pop()
        for child in _children(process):
            waiting.append(child)
            if _is_python(child):
                found.append(child)
    return found


def _children(process: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text(encoding="ascii").split()]
    except OSError:
        return []


def _is_python(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0", 3)[2] == b"pyspark.daemon"
    except (OSError, IndexError):
        return False

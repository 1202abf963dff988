"""What the processes of a Spark session use, read from /proc: the memory of Python workers while they work,
and everyone's CPU time.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import TracebackType

_INTERVAL_S = 0.02
_SIZE = re.compile(r"^(VmRSS|RssAnon):\s+(\d+) kB$", re.MULTILINE)


class WorkerMemory:
    """Within `with`: the most that any one Python worker below this process held.

    `resident_bytes` counts the pages of programs and libraries too, which the system can take back;
    `own_bytes` does not. Both stay 0 where there is no /proc.
    """

    def __init__(self) -> None:
        self.resident_bytes = 0
        self.own_bytes = 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WorkerMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(_INTERVAL_S):
            self.look()

    def look(self) -> None:
        """Counts what the workers hold at the moment."""
        for process in _descendants():
            if _is_worker(process):
                self._sample(process)

    def _sample(self, process: int) -> None:
        try:
            status = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
        except OSError:  # it has ended since it was listed
            return
        sizes = {name: int(size) * 1024 for name, size in _SIZE.findall(status)}
        self.resident_bytes = max(self.resident_bytes, sizes.get("VmRSS", 0))
        self.own_bytes = max(self.own_bytes, sizes.get("RssAnon", 0))


def cpu_seconds() -> float:
    """CPU time of all processes below this one so far, the JVM and the Python workers, ended ones included. 0
    without /proc.
    """
    return sum(map(_cpu_ticks, _descendants())) / os.sysconf("SC_CLK_TCK")


def _cpu_ticks(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:  # it has ended since it was listed; its parent counts it from now on
        return 0
    # from field 3 of proc(5) on; the name before it may hold spaces
    fields = status[status.rindex(")") + 2 :].split()
    return sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime


def _descendants() -> list[int]:
    found, waiting = [], [os.getpid()]
    while waiting:
        children = _children(waiting.pop())
        found += children
        waiting += children
    return found


def _children(process: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        return [
            int(child)
            for thread in threads
            for child in (thread / "children").read_text(encoding="ascii").split()
        ]
    except OSError:
        return []


def _is_worker(process: int) -> bool:
    """pyspark.daemon, which the JVM starts, and the workers it forks, which keep its command line."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0", 3)[2] == b"pyspark.daemon"
    except (OSError, IndexError):
        return False

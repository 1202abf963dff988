"""Where a commit of ours meets its end: at one change of one file, named by what the change is. A process
dies there, or stands still.

Run as `python -m tests.interop.stopping` it is a plain writer: it stages numbered messages and commits them.
Arguments: store, first message, number of messages, key number, and a `Point` as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.support.failing_writer import Failure, install

DIE, TORN, STAND_STILL = "die", "torn", "stand still"


@dataclass(frozen=True)
class Point:
    """Before the `nth` call (from 1) of that function of `os` for a file whose path has `path` in it. TORN
    writes half of it first.
    """

    function: str
    path: str
    nth: int = 1
    what: str = DIE

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Point:
        return Point(**json.loads(text))


# Each leaves another kind of store behind: the steps of a commit in their order.
POINTS = {
    "the journal stands": Point("rename", "abort.new"),
    "in a unit of the log": Point("pwrite", "/commitlog/", 1, TORN),
    "in the log's next file": Point("pwrite", "/commitlog/", 3, TORN),
    "between log and queues": Point("pwrite", "/consumequeue/"),
    "in the queues": Point("pwrite", "/consumequeue/", 3, TORN),
    "in the index": Point("pwrite", "/index/", 2, TORN),
    "before the ledger": Point("rename", "ledger.json"),
    "before the end of abort": Point("unlink", "/abort"),
    "before the end of the journal": Point("unlink", "journal.json"),
}


class End(Failure):
    """Counts the calls that a point is about. `die` ends this process and whoever has to die with it."""

    def __init__(
        self, point: Point, die: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL)
    ) -> None:
        super().__init__(point.what, point.nth)
        self._point = point
        self._die = die

    def happens(self, name: str, args: tuple[Any, ...]) -> bool:
        if name != self._point.function or self._point.path not in _path_of(args[0]):
            return False
        self.count += 1
        return self.count == self.at

    def fail(self, original: Any, name: str, args: tuple[Any, ...]) -> None:
        if self.what == STAND_STILL:
            # to the process it would come a little later
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            return  # somebody lets it go on
        if self.what == TORN:
            data = memoryview(args[1])
            original(args[0], data[: len(data) // 2], args[2])
        self._die()


def _path_of(file: int | str) -> str:
    return os.readlink(f"/proc/self/fd/{file}") if isinstance(file, int) else file


def main(root: str, first: str, count: str, number: str, point: str) -> None:
    from store_format.commit.append import commit
    from tests.support.staged import numbered, stage

    staged = stage(Path(root), numbered("T", int(first), int(count)), write=f"w{number}", sync=False)
    install(End(Point.from_json(point)))
    commit(root, [staged], key=("q", int(number)))


if __name__ == "__main__":
    main(*sys.argv[1:])

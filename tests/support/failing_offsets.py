"""Changes of a group's offsets that die at their Nth change of a file, in forks of a process without threads.

What to do is `kill` or `torn`. Whose offsets change is `store`, `local`, or `member`: of a group that it
joins and leaves.
"""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

from rmq_spark.consume.allocate import strategy
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.member import Membership, join
from rmq_spark.consume.offset_store import LocalOffsets, StoreOffsets
from tests.support.failing_writer import Failure, install
from tests.support.fork_server import ForkServer

NEW_OFFSET = 20
_CHANGES_MAX = 120


def change(kind: str, root: str) -> None:
    """Offset 20 for queue 0 of T; a member begins at 3 and says 5 before that."""
    queue = {MessageQueue("T", "b", 0): NEW_OFFSET}
    if kind == "store":
        StoreOffsets("g", {"b": root}, clock_ms=lambda: 1_700_000_300_000).write(queue)
    elif kind == "member":
        member = join(
            f"{root}/group", Membership("g", ("a",), strategy("AVG"), "T *"), StoreOffsets("g", {"b": root})
        )
        for positions in ({}, dict.fromkeys(queue, 5)):
            member.settle(list(queue), positions, begin=lambda _: 3)
        member.leave(queue)
    else:
        LocalOffsets(f"{root}/offsets/g/offsets.json").write(queue)


def _run(what: str, at: int, kind: str, root: str) -> None:
    """The action of a fork: the change, which dies at change `at` of a file."""
    install(Failure(what, at))
    change(kind, root)


def kill_at_each_change(forks: ForkServer, base: Path, copies: Path, what: str, kind: str) -> int:
    """Kills the change of a copy of `base` at its 1st change of a file, at its 2nd, and so on; the copies are
    named 1, 2, …, and the change of the last copy is complete. Returns how many were killed.
    """
    for at in range(1, _CHANGES_MAX):
        root = shutil.copytree(base, copies / f"{at}")
        ended = forks.run(_run, what, at, kind, str(root))
        assert not ended.error, ended.error
        if not ended.signal:
            return at - 1
        assert ended.signal == signal.SIGKILL, ended
    raise AssertionError(f"more than {_CHANGES_MAX} changes")

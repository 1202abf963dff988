"""Processes that change a group's offsets and die at their Nth change of a file: run as `python -m
tests.support.failing_offsets`.

Arguments: a directory that is copied for each process, where the copies go, what to do (`kill` or `torn`) and
whose offsets change (`store`, `local`, or `member`: of a group that it joins and leaves). Each process is a
fork of one without threads. Prints how many changes a whole run makes; copy N is the one of a kill at
change N.
"""

from __future__ import annotations

import shutil
import signal
import sys

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


def main(base: str, copies: str, what: str, kind: str) -> None:
    with ForkServer() as forks:
        for at in range(1, _CHANGES_MAX):
            root = shutil.copytree(base, f"{copies}/{at}")
            ended = forks.run(_run, what, at, kind, root)
            assert not ended.error, ended.error
            if not ended.signal:
                print(at - 1)
                return
            assert ended.signal == signal.SIGKILL, ended
    raise AssertionError(f"more than {_CHANGES_MAX} changes")


if __name__ == "__main__":
    # as the module that pickled actions name, not as __main__
    from tests.support.failing_offsets import main as run

    run(*sys.argv[1:])

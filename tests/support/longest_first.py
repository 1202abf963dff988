"""The order of tests for several processes: the longest first, dealt out among the processes.

pytest-xdist's `worksteal` gives each process one run of neighbours, and a process that has none left takes
half of what another has left, from its end. In the order of the files the longest tests are neighbours, and
the last of them ends when the other processes have nothing to do any more.

A process that meets a test with the Spark session starts one: 25 s of a core until it is warm. So half of the
processes get these tests, before others that may be taken from them, and the other half gets the long ones
that start all they need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

# Files and tests that take half a minute and more, the longest first: the beginnings of their ids. The tests
# of one line stay together, because they may share what a fixture of their module makes. A test that is
# missing here runs in its place among the others.
LONGEST = (
    "tests/sparks/test_sparks.py::test_the_oldest_spark",
    "tests/notebooks/test_notebooks.py::test_it_runs_and_shows_what_is_committed",
    "tests/test_installation.py",
    *(
        f"tests/referee/test_machine.py::test_all_callers_agree_in_every_life[{number}]"
        for number in range(4)
    ),
    "tests/interop/test_written.py",
    "tests/docs/test_contributing.py",
    "tests/interop/test_referee.py",
    "tests/interop/test_services_handover.py",
    "tests/spark/test_cluster.py",
    "tests/spark/test_connect.py",
    "tests/spark/test_by_value.py",
    "tests/spark/test_stream_kills.py",
    "tests/spark/test_write_kills.py",
    "tests/spark/test_write_attempts.py",
    "tests/spark/test_pop_kills.py",
)

Item = TypeVar("Item")


def longest_first(
    items: Sequence[tuple[str, Item]], processes: int, with_spark: Callable[[Item], bool] = lambda item: False
) -> list[Item]:
    """Returns the items, given with their ids, in the order in which each of so many equal runs of neighbours
    begins with its share of the longest. The first half of the runs has those `with_spark`, and the second
    half the other long ones. Other items keep their order.
    """
    ranks = [_rank(name) for name, _ in items]
    in_session = {at for at, (_, item) in enumerate(items) if with_spark(item)}
    ranks_in_session = {ranks[at] for at in in_session}
    listed = sorted(set(ranks) - {len(LONGEST)})
    halves = range((processes + 1) // 2), range(processes // 2 if in_session else 0, processes)
    shares: list[list[int]] = [[] for _ in range(processes)]
    for half, is_in_session in zip(halves, (True, False), strict=True):
        ours = [rank for rank in listed if (rank in ranks_in_session) == is_in_session]
        for number, rank in enumerate(ours):
            shares[half[number % len(half)]] += [at for at, its in enumerate(ranks) if its == rank]
    others = sorted(at for at in in_session if ranks[at] == len(LONGEST))
    for process in halves[0]:
        part = -(-len(others) // (len(halves[0]) - process))
        shares[process] += others[:part]
        del others[:part]
    rest = [at for at, rank in enumerate(ranks) if rank == len(LONGEST) and at not in in_session]
    ordered: list[int] = []
    for process, share in enumerate(shares):
        # As xdist cuts: each process gets its part of what those before it have left.
        size = (len(items) - len(ordered)) // (processes - process)
        filled = max(0, size - len(share))
        ordered += share + rest[:filled]
        del rest[:filled]
    return [items[at][1] for at in ordered]


def _rank(name: str) -> int:
    return next((rank for rank, start in enumerate(LONGEST) if name.startswith(start)), len(LONGEST))

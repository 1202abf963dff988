"""What `tests/support/failing_service.py` kills: each service with a store to work on.

A new scenario is a new case of `tests/rmq_spark/services/test_crash.py`. `rmq_spark` is imported inside the
functions: a scenario imports the services that it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.staged import make_store
from tests.support.waiting import BEGIN_MS, append, delayed


def _nothing(root: str) -> object:
    return None


@dataclass(frozen=True)
class Scenario:
    """What a service does on a store.

    `make` makes the store at a path that does not exist. `run` is one turn, or several with clocks of their
    own; it runs once to the end, and again after each kill, and may be interrupted anywhere. `seen` is what
    must be equal beyond messages and state files, such as the bytes of a timer wheel. `topics` selects the
    topics whose messages must be equal, system topics included; leave one out only if a broker that crashes
    may store other records there. `every`: of the changes of a run, every so many is a kill, so that a test
    takes about 3 s; with --whole all are.
    """

    make: Callable[[Path], object]
    run: Callable[[str], object]
    seen: Callable[[str], object] = _nothing
    topics: Callable[[str], bool] = lambda topic: True
    every: int = 13


def _make_delayed(root: Path) -> None:
    make_store(root)
    append(root, delayed("T", 1, 0, 3))
    _run_schedule(str(root), BEGIN_MS + 1_000)
    append(
        root,
        [*delayed("T", 1, 3, 40, queues=2), *delayed("%RETRY%g", 2, 43, 3), *delayed("T", 4, 46, 2)],
        BEGIN_MS + 2_000,
    )


def _run_schedule(root: str, now_ms: int) -> None:
    from rmq_spark.services import run_once

    run_once(root, ["schedule"], now_ms)


def _run_delayed(root: str) -> None:
    for seconds in (4, 8):  # level 1, then level 2; level 4 waits
        _run_schedule(root, BEGIN_MS + seconds * 1_000)


SCENARIOS: dict[str, Scenario] = {
    "schedule": Scenario(_make_delayed, _run_delayed, every=29),
}

"""`python -m tests.support.opens CALL STORE`: how often a call opens each file of a store, one a line: the
number, a tab and the path below the store.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO

from rmq_spark.cli.main import main
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.report import report


def _lag(root: str) -> None:
    with redirect_stdout(StringIO()):
        assert main(["lag", root]) == 0


def _plan(root: str) -> None:
    plan(parse_read_options({"path": root, "subscribe": "Orders"}))


def _report(root: str) -> None:
    report(root).html()


CALLS: dict[str, Callable[[str], None]] = {"lag": _lag, "plan": _plan, "report": _report}


def _count(call: Callable[[str], None], root: str) -> Counter[str]:
    """Audit hooks cannot be removed, so a process counts once."""
    counts = Counter[str]()

    def opened(event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(path := arguments[0], str) and path.startswith(f"{root}/"):
            counts[path.removeprefix(f"{root}/")] += 1

    sys.addaudithook(opened)
    call(root)
    return counts


if __name__ == "__main__":
    for path, count in _count(CALLS[sys.argv[1]], os.path.realpath(sys.argv[2])).items():
        print(f"{count}\t{path}")

"""One version of the code in a process of its own: `python -m benchmarks.side`, in a directory that has the
code.

It reads a line of JSON for each thing to do, and answers with a line on the standard output it began with:
{"open": part, "root", "directory", "filling", "extra"} → {"cases": names};
{"run": case, "watch"} → {"rows", "seconds", "cpu"}, with `watch` also {"own_bytes"} of Spark's workers;
{"close": true} → {"own_bytes"} as they are. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.fill import Filling
from benchmarks.parts import PARTS, Cases
from benchmarks.processes import WorkerMemory, cpu_seconds

_Line = dict[str, Any]  # Any: JSON


def _serve(lines: Iterator[str]) -> Iterator[_Line]:
    for line in lines:
        order = json.loads(line)
        directory = Path(order["directory"])
        directory.mkdir()
        opened = PARTS[order["open"]](
            Path(order["root"]), directory, Filling(**order["filling"]), order["extra"]
        )
        with opened as cases:
            yield {"cases": list(cases)}
            yield from _runs(lines, cases)
            memory = WorkerMemory()
            memory.look()
            yield {"own_bytes": memory.own_bytes}


def _runs(lines: Iterator[str], cases: Cases) -> Iterator[_Line]:
    for line in lines:
        order = json.loads(line)
        if "close" in order:
            return
        if order["watch"]:  # which takes CPU time
            with WorkerMemory() as memory:
                done = _run(cases, order["run"])
            yield done | {"own_bytes": memory.own_bytes}
        else:
            yield _run(cases, order["run"])


def _run(cases: Cases, name: str) -> _Line:
    case = cases[name]
    if case.before is not None:
        case.before()
    cpu, begun = _cpu(), time.perf_counter()
    outcome = case.call()
    seconds = time.perf_counter() - begun
    rows, seconds = outcome if isinstance(outcome, tuple) else (outcome, seconds)
    return {"rows": rows, "seconds": seconds, "cpu": _cpu() - cpu}


def _cpu() -> float:
    """CPU seconds of this process and of all below."""
    return time.process_time() + cpu_seconds()


def _main() -> None:
    """Answers have the descriptor of standard output to themselves: Spark's JVM prints to it, too."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for answer in _serve(iter(sys.stdin)):
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _main()

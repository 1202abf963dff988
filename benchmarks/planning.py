"""What planning costs: options and a store become splits in a process of their own, as on a driver that does
nothing else.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).absolute().parent.parent  # not resolved: an older commit links to this directory


@dataclass(frozen=True, slots=True)
class Planning:
    """One call of `plan`: how long, how many partitions, and the most memory the process held, its imports
    included.
    """

    queues: int
    seconds: float
    partitions: int
    resident_bytes: int


def measure_planning(root: Path, queues: int, rounds: int) -> list[Planning]:
    """Plan a read of everything in the store, `rounds` times, each in a fresh process."""
    return [plan_once(root, queues) for _ in range(rounds)]


def plan_once(root: Path, queues: int) -> Planning:
    """Plan a read of everything in the store in a fresh process."""
    environment = dict(
        os.environ, PYTHONPATH=os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    command = [sys.executable, "-m", "benchmarks.planning", str(root)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return Planning(queues, **json.loads(done.stdout))


def _plan(root: str) -> dict[str, float]:
    from rmq_spark.options.read_options import parse_read_options
    from rmq_spark.plan.batch import plan

    options = parse_read_options({"path": root})
    start = time.perf_counter()
    splits = plan(options).splits
    seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): kilobytes, on macOS bytes
    return {
        "seconds": seconds,
        "partitions": len(splits),
        "resident_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }


if __name__ == "__main__":
    print(json.dumps(_plan(sys.argv[1])))

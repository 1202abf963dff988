"""`python -m benchmarks.object_reads`: a store on object storage beside the same store on a disk, through
Spark, and what the server gives without a reader.

The service is the S3 server of the tests, on loopback; `--delay` is what each of its answers waits.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.fill import Filling, fill
from benchmarks.processes import WorkerMemory
from benchmarks.report import table
from benchmarks.rounds import Rates, interleave
from benchmarks.sessions import session
from benchmarks.spark_read import consume
from store_format import MessageStore
from store_format.files.client import StoredObject
from store_format.files.read import places
from tests.support.object_server import ObjectServer, served

_BODY_SIZE, _UNIT_BYTES = 1024, 272
_RANGE = 8 << 20
_THREADS = 8  # two tasks, each with up to four ranges on their way


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.object_reads")
    parser.add_argument("--gib", type=float, default=4, help="GiB of commitlog (4)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0, help="ms before each answer of the server (0)")
    parser.add_argument("--directory", type=Path, help="where to put the store")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="rmqlog-bench-", dir=given.directory) as directory:
        root = Path(directory) / "buckets" / "bucket" / "store"
        root.parent.mkdir(parents=True)
        messages = int(given.gib * (1 << 30)) // (_BODY_SIZE + _UNIT_BYTES)
        fill(root, Filling(messages=messages, body_size=_BODY_SIZE))
        with served(Path(directory) / "buckets") as server:
            os.environ |= server.environment()
            server.delay_s = given.delay / 1000
            print(_measured(server, root, Path(directory), given.rounds), end="")
    return 0


def _measured(server: ObjectServer, root: Path, directory: Path, rounds: int) -> str:
    url = server.url_of(root)
    log = [file.stored for file in MessageStore.open(url).log.files if file.stored is not None]
    with session(directory) as spark, WorkerMemory() as memory:
        cases: dict[str, Callable[[], int]] = {
            "disk": consume(spark.read.format("rmqlog").load(str(root))),
            "objects": consume(spark.read.format("rmqlog").load(url)),
        }
        rows = cases["disk"]()
        size = rows * (_BODY_SIZE + _UNIT_BYTES)
        cases["server alone"] = lambda: _fetched(log, size) and rows
        before = len(server.requests)
        cases["objects"]()
        requests = len(server.requests) - before
        rates = interleave(cases, rounds)
    cells = [_row(name, rates, rates["disk"]) for name in cases]
    memory_text = f"{memory.own_bytes >> 20} MiB of a worker's own memory, at most."
    sizes = f"{sum(each.size for each in log) / (1 << 30):.1f} GiB of commitlog files, {rows:,} messages"
    return (
        f"{sizes}; {requests} requests a read, each answered after {server.delay_s * 1000:.0f} ms.\n\n"
        f"{table(('what', 'rows/s', 'by the disk'), cells)}\n\n{memory_text}\n"
    )


def _row(name: str, rates: dict[str, Rates], disk: Rates) -> tuple[str, ...]:
    mine = rates[name]
    return name, f"{mine.rate().median:,.0f}", f"{mine.ratio(disk).median:.2f}"


def _fetched(log: Sequence[StoredObject], size: int) -> int:
    """Fetches the first `size` bytes of the log, and decodes nothing."""
    source = places().objects_at(log[0].path).bucket()
    ranges = [(each, start) for each in log for start in range(0, each.size, _RANGE)][: -(-size // _RANGE)]

    def fetch(found: tuple[StoredObject, int]) -> int:
        item, start = found
        return len(source.get(item, start, min(start + _RANGE, item.size)))

    with ThreadPoolExecutor(_THREADS) as pool:
        return sum(pool.map(fetch, ranges))


if __name__ == "__main__":
    raise SystemExit(main())

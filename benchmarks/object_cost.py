"""`python -m benchmarks.object_cost`: requests, bytes and CPU time of a process that reads a store on object
storage without Spark, for the arithmetic of docs/cost.md. With `--cuts`: what queues cost that are cut for
tasks. With `--times`: what is fetched to read the last tenth of a store.

The S3 server of the tests runs in another process, so that the CPU time is the reader's; a second server, in
this process, counts the requests.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any  # Spark's offsets are JSON

from benchmarks.fill import START_MS, Filling, fill
from benchmarks.report import table
from rmq_spark.options.option import STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Split
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore, kernels
from store_format.files import blocks
from store_format.files.read import Clients, places
from tests.support.object_server import ObjectServer, served

_BODY_SIZE, _UNIT_BYTES = 1024, 272
_TOPICS = 10
_COLUMNS = "topic,queueId,queueOffset,body"
_CORES = 8
_CUT_MESSAGES, _CUT_UNIT_BYTES = 2_400_000, 372  # with --cuts
_TIMED_MESSAGES = 1_500_000  # with --times: 3 files for each of 2 queues
_SERVERS: list[ObjectServer] = []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.object_cost")
    parser.add_argument("--gib", type=float, default=1, help="GiB of commitlog (1)")
    parser.add_argument("--cuts", action="store_true", help="requests for queues that are cut for tasks")
    parser.add_argument("--times", action="store_true", help="requests to read from a time, or a checkpoint")
    given = parser.parse_args(arguments)
    if given.cuts:
        return _cuts()
    if given.times:
        return _times()
    with tempfile.TemporaryDirectory(prefix="rmqlog-bench-") as directory:
        buckets = Path(directory) / "buckets"
        root = buckets / "bucket" / "store"
        root.parent.mkdir(parents=True)
        messages = int(given.gib * (1 << 30)) // (_BODY_SIZE + _UNIT_BYTES)
        fill(root, Filling(messages=messages, body_size=_BODY_SIZE, topics=_TOPICS))
        url = f"s3://{root.relative_to(buckets)}"
        kernels.load()
        with served(buckets) as server:
            _use(server)
            counts = [_counted(server, ask, url) for ask in _ASKED.values()]
        command = [sys.executable, "-m", "tests.support.object_server", str(buckets)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            _use(ObjectServer(buckets, port=int(process.stdout.readline())))
            seconds = [_seconds(ask, url) for ask in _ASKED.values()]
            process.communicate("")
    rows = [
        (what, f"{requests:,}", f"{log / 1e6:,.0f}", f"{rest / 1e6:,.0f}", f"{spent:.2f}")
        for what, (requests, log, rest), spent in zip(_ASKED, counts, seconds, strict=True)
    ]
    what = f"{messages:,} messages, {_TOPICS} topics of 8 queues"
    titles = what, "requests", "MB of log", "MB else", "CPU s"
    print(table(titles, rows), end="")
    return 0


def _cuts() -> int:
    """Requests and bytes for each of 16 queues with one file of 150,000 entries."""
    asked: dict[str, tuple[bool, Callable[[str], object]]] = {}
    for tasks in (1, 12, 24, 48):
        size = f"{_CUT_MESSAGES * _CUT_UNIT_BYTES // tasks + 1000}"
        for is_many, of in ((False, "up to"), (True, "as of more than")):
            what = f"plan {tasks} task{'s' * (tasks > 1)}, {of} 2,000 queues"
            asked[what] = is_many, partial(_plan, minPartitions="1", maxBytesPerPartition=size)
    asked["one task of 12"] = False, lambda url: _read_one(url, _CUT_MESSAGES * _CUT_UNIT_BYTES // 12)
    with tempfile.TemporaryDirectory(prefix="rmqlog-bench-") as directory:
        root = Path(directory) / "bucket" / "store"
        root.parent.mkdir()
        fill(root, Filling(messages=_CUT_MESSAGES, body_size=100, topics=2))
        kernels.load()
        rows = []
        with served(Path(directory)) as server:
            _use(server)
            for what, (is_many, ask) in asked.items():
                many, blocks._MANY = blocks._MANY, 8 if is_many else blocks._MANY
                _counted(server, ask, "s3://bucket/store")
                blocks._MANY = many
                sizes = [each.stop - each.start for each in server.requests if "/consumequeue/" in each.key]
                rows.append((what, f"{len(sizes) / 16:.1f}", f"{sum(sizes) / 16e6:.1f}"))
    print(table(("16 queues of 150,000 entries", "requests a queue", "MB a queue"), rows), end="")
    return 0


def _times() -> int:
    """Requests and bytes to plan and to read the last tenth of 2 queues of 3 files each, in one task."""
    url, start_ms = "s3://bucket/store", START_MS + _TIMED_MESSAGES * 9 // 10
    whole = {"minPartitions": "1", "maxBytesPerPartition": "10g"}
    rows = []
    with tempfile.TemporaryDirectory(prefix="rmqlog-bench-") as directory:
        root = Path(directory) / "bucket" / "store"
        root.parent.mkdir()
        fill(root, Filling(messages=_TIMED_MESSAGES, body_size=100, queues_per_topic=2))
        kernels.load()
        with served(Path(directory)) as server:
            _use(server)

            def add(what: str, found: Sequence[Split], scan: Scan) -> None:
                rows.append((f"{what}: plan", *_by_kind(server)))
                _forget()  # tasks run in other processes
                for split in found:
                    for _ in scan.read(split):
                        pass
                rows.append((f"{what}: read", *_by_kind(server)))

            scan, splits = _plan(url, **whole, startingTimestamp=str(start_ms))
            add("`startingTimestamp`", splits, scan)
            checkpoint = json.dumps(_positions(url, maxOffsetsPerTrigger=str(_TIMED_MESSAGES * 9 // 10))[1])
            _forget()
            server.requests.clear()
            positions, end, scan = _positions(url, json.loads(checkpoint), **whole)
            add("a stream's next run", positions.plan(json.loads(checkpoint), end).splits, scan)
    titles = "last tenth of 2 queues of 3 files", "queue file requests", "MB", "log requests", "MB of log"
    print(table(titles, rows), end="")
    return 0


def _positions(
    url: str, start: dict[str, Any] | None = None, **options: str
) -> tuple[StreamPositions, dict[str, Any], Scan]:
    """A stream's positions in a new process, its next end as JSON, and its scan."""
    given = {"path": url, "columns": _COLUMNS, "startingOffsets": "earliest", "includeLastFile": "true"}
    parsed = parse_read_options(given | options, where=STREAM)
    positions = StreamPositions(StreamStores(parsed))
    end = positions.latest(positions.initial() if start is None else start)
    return positions, json.loads(json.dumps(end)), Scan(fields_from_options(parsed), parsed)


def _by_kind(server: ObjectServer) -> tuple[str, ...]:
    """Requests and MB of queue files, and of the log; the server forgets them."""
    cells: list[str] = []
    for kind in ("/consumequeue/", "/commitlog/"):
        sizes = [each.stop - each.start for each in server.requests if kind in each.key]
        cells += [str(len(sizes)), f"{sum(sizes) / 1e6:.1f}"]
    server.requests.clear()
    return tuple(cells)


def _read_one(url: str, size: int) -> None:
    """Reads the middle split; the server has forgotten the requests of planning."""
    scan, splits = _plan(url, minPartitions="1", maxBytesPerPartition=str(size))
    _forget()
    _SERVERS[-1].requests.clear()
    for _ in scan.read(splits[len(splits) // 2]):
        pass


def _plan(url: str, **options: str) -> tuple[Scan, Sequence[Split]]:
    parsed = parse_read_options({"path": url, "columns": _COLUMNS, **options})
    return Scan(fields_from_options(parsed), parsed), plan(parsed, cores=_CORES).splits


def _read(url: str, **options: str) -> None:
    scan, splits = _plan(url, **options)
    _forget()  # tasks run in other processes
    for split in splits:
        for _ in scan.read(split):
            pass


_ASKED: dict[str, Callable[[str], object]] = {
    "plan one topic": lambda url: _plan(url, subscribe="Orders00003"),
    "plan all topics": _plan,
    "read one topic": lambda url: _read(url, subscribe="Orders00003"),
    "read all topics": _read,
    "`lag`": lambda url: MessageStore.open(url).view("lag"),
}


def _use(server: ObjectServer) -> None:
    """From now on this process knows only this server."""
    _SERVERS.append(server)
    os.environ |= server.environment()
    places().clients = Clients()
    _forget()


def _forget() -> None:
    places()._remote.clear()


def _counted(server: ObjectServer, ask: Callable[[str], object], url: str) -> tuple[int, int, int]:
    """(requests, bytes of the commitlog, bytes of all else)"""
    _forget()
    server.requests.clear()
    ask(url)
    sizes = Counter[bool]()
    for request in server.requests:
        sizes["/commitlog/" in request.key] += request.stop - request.start
    return len(server.requests), sizes[True], sizes[False]


def _seconds(ask: Callable[[str], object], url: str) -> float:
    _forget()
    before = time.process_time()
    ask(url)
    return time.process_time() - before


if __name__ == "__main__":
    raise SystemExit(main())

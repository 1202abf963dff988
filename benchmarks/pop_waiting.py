"""What waiting for messages costs: from an append in one process until another has received the message, and
the CPU time of consumers that wait while nothing comes.

The other processes are `python -m benchmarks.pop_waiting`, as `write STORE MESSAGES PAUSE sync|async` or as
`idle STORE CONSUMERS SECONDS`.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_spark.pop import SimpleConsumer
from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.message.encode import MessageColumns

_TOPIC, _QUEUES = "Orders", 4
_WAIT_SECONDS = 60.0
_SETTLE_SECONDS = 1.0  # after the start of consumers


@dataclass(frozen=True, slots=True)
class Latency:
    """From the return of an append until a waiting consumer has the message, in ms; and the append itself."""

    commit: str
    messages: int
    p50_ms: float
    p99_ms: float
    append_p50_ms: float


@dataclass(frozen=True, slots=True)
class Idle:
    """Consumers that wait while nothing comes: the share of one core that all processes use."""

    processes: int
    consumers: int
    core: float


def measure_latency(directory: Path, messages: int, *, sync: bool) -> Latency:
    """One consumer waits; another process appends a message at a time."""
    root = _create(directory / f"latency-{'sync' if sync else 'async'}")
    received: dict[int, int] = {}
    with SimpleConsumer(root, "bench", {_TOPIC: "*"}, await_duration=_WAIT_SECONDS) as consumer:
        writer = _start("write", root, str(messages), "0.03", "sync" if sync else "async")
        while len(received) < messages:
            found = consumer.receive(32)
            now = time.time_ns()
            received |= {int(message.body): now for message in found}
            consumer.ack(found)
            if not found:
                raise ValueError(f"{len(received)} of {messages} messages were received")
        lines = _output(writer)
    times = np.array([[int(field) for field in line.split()] for line in lines], np.int64)
    late = (np.array([received[number] for number in range(messages)]) - times[:, 1]) / 1e6
    p50, p99 = np.percentile(late, [50, 99]).tolist()
    append = float(np.median(times[:, 1] - times[:, 0]) / 1e6)
    return Latency("SYNC_FLUSH" if sync else "ASYNC_FLUSH", messages, p50, p99, append)


def measure_idle(directory: Path, processes: int, consumers: int, seconds: float) -> Idle:
    """So many processes, each with so many consumers that wait at the same time."""
    root = _create(directory / f"idle-{processes}-{consumers}")
    children = [_start("idle", root, str(consumers), str(seconds)) for _ in range(processes)]
    core = sum(float(line) for child in children for line in _output(child))
    return Idle(processes, consumers, core)


def _create(path: Path) -> str:
    _append(MessageStore.create(str(path)), 0, sync=True)
    with SimpleConsumer(str(path), "bench", {_TOPIC: "*"}, await_duration=0.0) as consumer:
        consumer.ack(consumer.receive(32))
    return str(path)


def _append(store: MessageStore, number: int, *, sync: bool) -> None:
    columns = MessageColumns(
        topic=_TOPIC,
        body=pa.array([str(number).encode()]),
        properties=pa.array([b""]),
        queue_id=np.array([number % _QUEUES]),
    )
    options = CommitOptions(sync=sync, new_topics={_TOPIC: _QUEUES}, lock_timeout=_WAIT_SECONDS)
    store.append(columns, options=options)


def _start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.pop_waiting", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _output(child: subprocess.Popen[str]) -> list[str]:
    text, _ = child.communicate(timeout=600)
    if child.returncode:
        raise ValueError(f"{child.args!r} ended with status {child.returncode}")
    return text.splitlines()


# ---- the other processes -----------------------------------------------------------------------------------


def _write(root: str, messages: int, pause: float, *, sync: bool) -> Iterable[str]:
    """Appends one message after the other; (before, after) of each append, in ns."""
    store = MessageStore.open(root)
    for number in range(messages):
        time.sleep(pause)
        began = time.time_ns()
        _append(store, number, sync=sync)
        yield f"{began} {time.time_ns()}"


def _idle(root: str, consumers: int, seconds: float) -> Iterable[str]:
    """Waits with so many consumers at once; the CPU time of the process as a share of a core."""
    wait = _SETTLE_SECONDS + seconds + 10
    threads = []
    with ExitStack() as stack:
        for _ in range(consumers):
            consumer = stack.enter_context(SimpleConsumer(root, "bench", {_TOPIC: "*"}, await_duration=wait))
            threads.append(threading.Thread(target=consumer.receive, daemon=True))
            threads[-1].start()
        time.sleep(min(_SETTLE_SECONDS, seconds))
        before, began = time.process_time(), time.monotonic()
        time.sleep(seconds)
        share = (time.process_time() - before) / (time.monotonic() - began)
        if not all(thread.is_alive() for thread in threads):
            raise ValueError("a consumer has not waited for the whole time")
    yield str(share)


def _main(what: str, root: str, count: str, rest: str, *more: str) -> None:
    if what == "write":
        lines = _write(root, int(count), float(rest), sync="sync" in more)
    else:
        lines = _idle(root, int(count), float(rest))
    for line in lines:
        print(line, flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])

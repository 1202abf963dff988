"""How many messages a second consumers receive and acknowledge, and how that grows with their processes.

The processes are `python -m benchmarks.pop_throughput STORE GO BATCH`; they begin when the file GO exists.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from rmq_spark.pop import SimpleConsumer
from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.message.encode import MessageColumns
from store_format.message.property_encoder import encode_property_columns
from store_format.names import TAGS, UNIQ_KEY

_TOPIC, _BODY_SIZE = "Orders", 200
_DEADLINE_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Throughput:
    """Messages that so many processes have received and acknowledged in batches.

    `seconds` is from the first receive until the last acknowledgement, `cpu_seconds` what all processes used
    together.
    """

    processes: int
    queues: int
    batch: int
    messages: int
    seconds: float
    cpu_seconds: float


def measure_throughput(
    directory: Path, messages: int, *, processes: int, queues: int = 8, batch: int = 32
) -> Throughput:
    """All messages of a topic, by so many processes at once."""
    root = _filled(directory / f"popped-{processes}-{queues}-{batch}", messages, queues)
    go = Path(f"{root}-go")
    command = [sys.executable, "-m", "benchmarks.pop_throughput", root, str(go), str(batch)]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise ValueError(f"{command} ended with status {child.wait()}")
    go.touch()
    lines = [child.communicate(timeout=_DEADLINE_SECONDS)[0].split() for child in children]
    received = sum(int(line[0]) for line in lines)
    if received != messages:
        raise ValueError(f"{received} messages of {messages} were received")
    began = min(float(line[1]) for line in lines)
    ended = max(float(line[2]) for line in lines)
    cpu = sum(float(line[3]) for line in lines)
    return Throughput(processes, queues, batch, messages, ended - began, cpu)


def _filled(path: Path, messages: int, queues: int) -> str:
    number = np.arange(messages)
    columns = MessageColumns(
        topic=_TOPIC,
        body=pa.array([bytes(_BODY_SIZE)] * messages, pa.binary()),
        properties=encode_property_columns(
            messages,
            {
                UNIQ_KEY: pa.array(np.char.mod("%032d", number)),
                TAGS: pa.array(np.char.mod("Tag%d", number % 4)),
            },
        ),
        queue_id=number % queues,
    )
    options = CommitOptions(sync=False, new_topics={_TOPIC: queues})
    MessageStore.create(str(path)).append(columns, options=options)
    return str(path)


def _consume(root: str, go: Path, batch: int) -> str:
    """(messages, time of the first receive, time of the last acknowledgement, CPU seconds) as text."""
    with SimpleConsumer(root, "bench", {_TOPIC: "*"}, await_duration=0.2) as consumer:
        print("ready", flush=True)
        while not go.exists():
            time.sleep(0.001)
        began = ended = time.monotonic()
        cpu, received = time.process_time(), 0
        while found := consumer.receive(batch):
            consumer.ack(found)
            received += len(found)
            ended, used = time.monotonic(), time.process_time()
    return f"{received} {began} {ended} {used - cpu if received else 0.0}"


if __name__ == "__main__":
    print(_consume(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))

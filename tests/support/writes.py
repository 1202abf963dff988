"""A write as Spark does it, without Spark: the target is opened, tasks stage, the driver commits or aborts;
and what stores have then.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from rmq_spark.options.write_options import parse_write_options
from rmq_spark.write.stage_and_commit import abort_write, commit_write, stage_rows
from rmq_spark.write.target import WriteTarget, open_target
from store_format import MessageStore
from store_format.commit.append import CommitResult

ROOT = Path(__file__).resolve().parents[2]

# New stores of a few kilobytes: their files roll over.
SMALL = {
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
}

_HOLDER = """
import contextlib, fcntl, sys
from store_format.files.lock import StoreLock

@contextlib.contextmanager
def broker(root):
    with open(f"{root}/lock", "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        yield

root, kind = sys.argv[1:]
with StoreLock(root) if kind == "writer" else broker(root):
    print("held", flush=True)
    sys.stdin.read()
"""


def numbered_rows(first: int, stop: int, topic: str = "T", **columns: Sequence[object]) -> pa.RecordBatch:
    """Bodies that are numbers, and a key each."""
    numbers = [str(i) for i in range(first, stop)]
    return pa.RecordBatch.from_pydict(
        {"topic": [topic] * len(numbers), "body": numbers, "keys": [f"k{i}" for i in numbers], **columns}
    )


def target_of(path: Path, **options: str) -> WriteTarget:
    return open_target(parse_write_options({"path": str(path), **options}))


def write(
    path: Path, *tasks: pa.RecordBatch, key: tuple[str, int] | None = None, **options: str
) -> dict[str, CommitResult]:
    """One task for each batch. What fails is aborted, as Spark does it."""
    target = target_of(path, **options)
    try:
        return commit_write(target, [stage_rows(target, [rows]) for rows in tasks], key)
    except BaseException:
        abort_write(target)
        raise


def bodies(*roots: Path) -> Counter[int]:
    """The number in each message, by reading every queue of the stores: without gaps, and from its first
    offset on.
    """
    found: Counter[int] = Counter()
    for root in roots:
        for queue in MessageStore.open(str(root)).queues():
            offsets: list[int] = []
            for batch in queue.read(columns=["queueOffset", "body"]):
                offsets += batch["queueOffset"].to_pylist()
                found.update(int(body) for body in batch["body"].to_pylist())
            assert offsets == list(range(queue.max_offset))
    return found


@contextmanager
def held(root: Path, *, kind: str = "broker") -> Iterator[int]:
    """Another process, of which the number is given, holds the lock of the store as a broker does, or as a
    `writer` of rmqlog does.
    """
    command = [sys.executable, "-c", _HOLDER, str(root), kind]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process.pid
        finally:
            process.stdin.close()
            process.wait(30)

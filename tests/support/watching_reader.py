"""A process that reads a store again and again while others write: run as `python -m
tests.support.watching_reader STORE ROWS`.

Bodies are `<batch>:<row>`, ROWS of them a batch. Each look must find every batch whole or not at all, in
queues without gaps, and none gone that was there. It ends with its input and prints what it saw, as JSON:
`looks`, `hidden` (looks at a store in which a commit had begun and was not complete), `batches` (those seen
last).
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store_format import MessageStore
from store_format.bookkeeping.journal import CommitState
from store_format.errors import StoreNotFoundError
from store_format.opened.store import Opened

_PAUSE_SECONDS = 0.03


def look(root: Path) -> Counter[str]:
    """Every body in the store, after a look at the offsets."""
    found: Counter[str] = Counter()
    for queue in MessageStore.open(str(root)).queues():
        offsets: list[int] = []
        for batch in queue.read(columns=["queueOffset", "body"]):
            offsets += batch["queueOffset"].to_pylist()
            found.update(body.decode() for body in batch["body"].to_pylist())
        assert offsets == list(range(queue.max_offset)), (
            f"{queue.topic}-{queue.queue_id}: {offsets}, end {queue.max_offset}"
        )
    return found


@contextmanager
def watching(root: Path, rows: int) -> Iterator[dict[str, int]]:
    """A reader beside the block; afterwards the dict has what it saw."""
    command = [sys.executable, "-m", "tests.support.watching_reader", str(root), str(rows)]
    directory = Path(__file__).parents[2]
    seen: dict[str, int] = {}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=directory, text=True
    ) as process:
        try:
            yield seen
        finally:
            answer, _ = process.communicate()
    assert process.returncode == 0
    seen.update(json.loads(answer))


def main(root: Path, rows: int) -> None:
    looks, hidden, before = 0, 0, Counter[str]()
    while not select.select([sys.stdin], [], [], _PAUSE_SECONDS)[0]:
        is_hidden = CommitState.read(Opened(str(root))).base is not None
        try:
            found = look(root)
        except StoreNotFoundError:
            assert not before, "the store is gone"
            continue
        batches = Counter(body.partition(":")[0] for body in found)
        assert set(found.values()) <= {1}, f"twice: {found.most_common(3)}"
        assert set(batches.values()) <= {rows}, f"in part: {batches}"
        assert batches.keys() >= before.keys(), f"gone: {before - batches}"
        before = batches
        looks += 1
        hidden += is_hidden and CommitState.read(Opened(str(root))).base is not None
    print(json.dumps({"looks": looks, "hidden": hidden, "batches": len(before)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

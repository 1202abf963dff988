"""A handler of orderly queries that notes what it gets, in a file that tasks and tests share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Row

COLUMNS = "storedTopic,brokerName,queueId,queueOffset,reconsumeTimes,body"


class Notes:
    """A handler that notes in a file what it gets, and fails at the places that another file names."""

    def __init__(self, directory: Path) -> None:
        self.seen, self.bad = str(directory / "seen"), str(directory / "bad")
        self._taken = 0  # so many bytes of `seen`

    def __call__(self, row: Row) -> None:
        line = f"{row.queueId} {row.queueOffset} {row.reconsumeTimes}\n".encode()
        file = os.open(self.seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, line)
        os.close(file)
        if f"{row.queueId} {row.queueOffset}" in Path(self.bad).read_text().splitlines():
            raise RuntimeError("the business says no")

    def fail_at(self, *places: str) -> None:
        Path(self.bad).write_text("\n".join(places))

    def take(self) -> dict[int, list[tuple[int, int]]]:
        """What came since the last call: (offset, reconsumeTimes) by queue."""
        found: dict[int, list[tuple[int, int]]] = {}
        path = Path(self.seen)
        # Another process may be writing: the file stays in its place, and an unfinished line waits.
        data = path.read_bytes()[self._taken :] if path.exists() else b""
        data = data[: data.rfind(b"\n") + 1]
        self._taken += len(data)
        for line in data.splitlines():
            queue, offset, times = map(int, line.split())
            found.setdefault(queue, []).append((offset, times))
        return found


def query_options(store: str) -> dict[str, str]:
    return {
        "path": store,
        "group": "g",
        "splitBy": "wholeQueue",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "columns": COLUMNS,
    }

"""What a cell of the matrix is, and what its function works with.

A cell is a function that uses one feature, asserts what it read or wrote, and returns what the table and the
other Sparks are compared with. It returns the same on each run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tests.support import goldens
from tests.support.reads import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["classic", "connect", "by-value"]
Outcome = Literal["works", "ignored", "refused"]
TIMEOUT_S = 120

STORE = "basic-5.5.0"
TOPIC = "Orders"


@dataclass(frozen=True)
class Seen:
    """What a cell saw: `outcome` is the word of the table, `facts` must be equal on each run of a Spark."""

    outcome: Outcome
    facts: dict[str, Any]


@dataclass
class Case:
    """The session that a cell uses, and its directories."""

    spark: SparkSession
    base: Path
    stderr: Path
    _unpacked: dict[str, Path] = field(default_factory=dict)

    @property
    def version(self) -> tuple[int, int]:
        major, minor, *_ = self.spark.version.split(".")
        return int(major), int(minor)

    def golden(self, name: str) -> Path:
        """The store, unpacked. Cells do not change it."""
        if name not in self._unpacked:
            self._unpacked[name] = goldens.unpack(name, self.base / "golden" / name)
        return self._unpacked[name]

    def copy(self, name: str, directory: str) -> Path:
        """A copy of a golden store that a cell changes."""
        return Path(shutil.copytree(self.golden(name), self.base / directory))

    def read(self, path: Path, **options: str) -> DataFrame:
        return self.spark.read.format("rmqlog").options(**options).load(str(path))

    def read_stream(self, path: Path, **options: str) -> DataFrame:
        return self.spark.readStream.format("rmqlog").options(**options).load(str(path))

    def stream(self, name: str, path: Path, **options: str) -> list[list[Place]]:
        """Runs a query until it has read what is there. Returns the sorted places of each batch."""
        batches: dict[int, list[Place]] = {}

        def take(frame: DataFrame, batch: int) -> None:
            rows = frame.select("storedTopic", "queueId", "queueOffset").collect()
            batches[batch] = sorted((row[0], row[1], row[2]) for row in rows)

        options = {"columns": "topic,storedTopic,queueId,queueOffset"} | options
        writer = self.read_stream(path, **options).writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", str(self.base / "checkpoints" / name))
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(TIMEOUT_S), "the query did not end"
        finally:
            query.stop()
        return [batches[batch] for batch in sorted(batches) if batches[batch]]

    def printed(self, action: Callable[[], object]) -> str:
        """What Spark and its Python processes write to stderr while `action` runs."""
        before = self.stderr.stat().st_size
        action()
        with self.stderr.open("rb") as file:
            file.seek(before)
            return file.read().decode("utf-8", "replace")


@dataclass(frozen=True)
class Cell:
    """A row of the table: `title` is its first column."""

    name: str
    title: str
    kind: Kind
    brief: bool
    run: Callable[[Case], Seen]


CELLS: dict[str, Cell] = {}  # in the order of the table


def cell(
    title: str, *, kind: Kind = "classic", brief: bool = False
) -> Callable[[Callable[[Case], Seen]], Callable[[Case], Seen]]:
    """Declares a cell. `brief` cells are run by `make test-all` on the oldest Spark."""

    def declare(run: Callable[[Case], Seen]) -> Callable[[Case], Seen]:
        name = run.__name__
        assert name not in CELLS, f"two cells are called {name}"
        CELLS[name] = Cell(name, title, kind, brief, run)
        return run

    return declare


def works(**facts: object) -> Seen:
    return Seen("works", facts)


def told_places(keep: Callable[[dict[str, Any]], object]) -> list[Place]:
    """The places of the messages that the broker's own classes read from the store of most cells."""
    rows = (row for row in goldens.expected_rows(STORE) if keep(row))
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def of_topic(row: dict[str, Any]) -> bool:
    return bool(row["topic"] == TOPIC)


def digest(rows: Iterable[object]) -> str:
    """A hash of rows in their order; a dict counts by its sorted items."""
    sha = hashlib.sha256()
    for row in rows:
        sha.update(json.dumps(row, sort_keys=True, default=repr).encode())
    return sha.hexdigest()[:16]


def refusal(action: Callable[[], object], error: str = "OptionError") -> str:
    """Runs what must fail with one of our errors. Returns its sentence, without paths of this run.

    Asserts that Spark shows the error once, and no frame of a Python traceback.
    """
    try:
        action()
    except Exception as caught:
        text = str(caught)
        if type(caught).__name__ == error:  # raised in this process, so without the name of its class
            text = f"{error}: {text}"
    else:
        raise AssertionError(f"expected {error}, found no error")
    for frame in ("Traceback (most recent call last)", 'File "', "rmq_spark/"):
        assert frame not in text, f"a traceback: {text}"
    sentences = [line.partition(f"{error}: ")[2] for line in text.splitlines() if f"{error}: " in line]
    assert len(sentences) == 1, f"expected one sentence of {error}, found: {text}"
    return sentences[0]

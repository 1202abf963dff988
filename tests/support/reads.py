"""A batch read without Spark, and what it must give.

The read is planned as the driver plans it, and read from pickled copies, as tasks do.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.plan.output_fields import fields_from_options
from rmq_spark.plan.scan import Scan
from rmq_spark.plan.splits import Split
from tests.support import goldens
from tests.support.fixtures import Golden

Place = tuple[str, int, int]  # topic, queue id, queue offset
PLACE = "topic,queueId,queueOffset"
Row = dict[str, Any]  # column name -> value of any column type


class Read:
    """What a DataFrame is: planned once, when it is looked at first, and read again by each look."""

    def __init__(self, path: str | Path | list[Path], options: dict[str, str]) -> None:
        roots = {"paths": json.dumps(list(map(str, path)))} if isinstance(path, list) else {"path": str(path)}
        self._options = parse_read_options(roots | options)
        self._scan: Scan = pickle.loads(pickle.dumps(Scan(fields_from_options(self._options), self._options)))

    @property
    def columns(self) -> list[str]:
        return [field.name for field in self._scan.fields.fields]

    @cached_property
    def splits(self) -> list[Split]:
        return plan(self._options, cores=2).splits

    def batches(self) -> Iterator[list[pa.RecordBatch]]:
        """Those of each split."""
        for split in pickle.loads(pickle.dumps(self.splits)):
            yield list(self._scan.read(split))

    def parts(self) -> list[list[Row]]:
        """The rows of each split."""
        return [[row for batch in part for row in batch.to_pylist()] for part in self.batches()]

    def table(self) -> pa.Table:
        schema = self._scan.fields.to_arrow_schema()
        return pa.Table.from_batches([batch for part in self.batches() for batch in part], schema)

    def rows(self) -> list[Row]:
        return [row for part in self.parts() for row in part]

    def places(self) -> list[Place]:
        """The places of all rows, sorted; a row that comes twice is there twice."""
        return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in self.rows())


def read(path: str | Path | list[Path], **options: str | int | bool | Path) -> Read:
    """The options as Spark gives them: all are text."""
    given = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }
    return Read(path, given)


# ---- what the broker says ----------------------------------------------------------------------------------


def told(store: str, keep: Callable[[Row], object] = lambda row: True) -> list[Row]:
    """The broker's rows for which `keep` holds."""
    return [row for row in goldens.expected_rows(store) if keep(row)]


def told_places(rows: Iterable[Row]) -> list[Place]:
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def copy_of(golden: Golden, store: str, directory: Path) -> Path:
    """A copy of a golden store that a test may change, under the store's own name."""
    return Path(shutil.copytree(golden(store), directory / store))


def flip(root: Path, physical_offset: int, bit: int = 0x01) -> tuple[Path, int]:
    """Flips bits of one commitlog byte; (file, position in it)."""
    file = max(path for path in (root / "commitlog").iterdir() if int(path.name) <= physical_offset)
    position = physical_offset - int(file.name)
    with file.open("r+b") as opened:
        opened.seek(position)
        byte = opened.read(1)[0]
        opened.seek(position)
        opened.write(bytes([byte ^ bit]))
    return file, position

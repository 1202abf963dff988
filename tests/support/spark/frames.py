"""What the Spark tests share: a read with options, the places of its rows, and the same places as a broker
told them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import goldens

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Place = tuple[str, int, int]  # topic, queue id, queue offset
PLACE = "topic,queueId,queueOffset"


def read(spark: SparkSession, path: Path | list[Path], **options: str | int | bool) -> DataFrame:
    """`spark.read.format("rmqlog")` of one path or several."""
    reader = spark.read.format("rmqlog").options(**{name: _text(value) for name, value in options.items()})
    return reader.load([str(root) for root in path]) if isinstance(path, list) else reader.load(str(path))


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def places(frame: DataFrame) -> list[Place]:
    """The places of all rows, sorted; a row that comes twice is there twice."""
    return sorted(
        (row.topic, row.queueId, row.queueOffset) for row in frame.select(*PLACE.split(",")).collect()
    )


def told(store: str, keep: Callable[[dict[str, Any]], object] = lambda row: True) -> list[dict[str, Any]]:
    """The broker's rows for which `keep` holds."""
    return [row for row in goldens.expected_rows(store) if keep(row)]


def told_places(rows: Iterable[dict[str, Any]]) -> list[Place]:
    return sorted((row["topic"], row["queueId"], row["queueOffset"]) for row in rows)


def copy_of(golden: Callable[[str], Path], store: str, directory: Path) -> Path:
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

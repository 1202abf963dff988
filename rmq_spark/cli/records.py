"""Rows one below the other, a line for each column: for few rows of which everything is to be seen."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rmq_spark.cli.cells import cell
from rmq_spark.cli.output import Output
from store_format.display.rows import plain_rows
from store_format.display.text import body_text, shown

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["write_records"]

_BODY_CHARACTERS = 2000
_PROPERTIES_MAX = 200


def write_records(output: Output, batches: Iterable[pa.RecordBatch], names: Sequence[str]) -> int:
    """Writes the rows, an empty line between two; how many there were. Maps take a line for each entry."""
    count = 0
    for batch in batches:
        for row in plain_rows(batch):
            sys.stdout.write("\n" if count else "")
            for name in names:
                for label, text in _lines(name, row[name]):
                    label = f"{label:<{max(map(len, names))}}"
                    sys.stdout.write((f"\x1b[1m{label}\x1b[0m" if output.colour else label) + f"  {text}\n")
            count += 1
    sys.stdout.flush()
    return count


def _lines(name: str, value: object) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        entries = [f"{shown(key)} = {cell(text)}" for key, text in list(value.items())[:_PROPERTIES_MAX]]
        if len(value) > _PROPERTIES_MAX:
            entries.append(f"… ({len(value)} in all)")
        return [(name if not i else "", line) for i, line in enumerate(entries or ["-"])]
    if isinstance(value, bytes):
        return [(name, body_text(value, _BODY_CHARACTERS))]
    return [(name, cell(value))]

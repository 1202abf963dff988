"""The table of docs/compatibility.md, from what the matrix saw on each Spark: `seen/spark-*.json`.

`python -m tests.sparks.table` writes it again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.sparks import batch_cells, session_cells, stream_cells, write_cells
from tests.sparks.cells import CELLS, Cell
from tests.sparks.environments import ROOT

PAGE = ROOT / "docs" / "compatibility.md"
SEEN = Path(__file__).parent / "seen"
BEGIN, END = "<!-- sparks -->\n", "<!-- /sparks -->"

_MODULES = (batch_cells, write_cells, stream_cells, session_cells)


def cells_in_order() -> list[Cell]:
    """All cells, in the order of the table."""
    names = [module.__name__ for module in _MODULES]
    return sorted(CELLS.values(), key=lambda cell: names.index(cell.run.__module__))


def read_seen() -> list[dict[str, Any]]:
    """What the matrix saw, the oldest Spark first."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in SEEN.glob("spark-*.json")]
    return sorted(found, key=lambda seen: version_of(seen["spark"]))


def write_seen(line: str, found: dict[str, Any]) -> None:
    """Keeps what each cell saw on a Spark; the seconds differ from run to run, and are not kept."""
    cells = {
        name: {"outcome": seen["outcome"], "facts": seen["facts"]} for name, seen in found["cells"].items()
    }
    text = json.dumps({"spark": found["spark"], "cells": cells}, indent=1, ensure_ascii=False)
    (SEEN / f"spark-{line}.json").write_text(f"{text}\n", encoding="utf-8")


def version_of(spark: str) -> tuple[int, int]:
    major, minor, *_ = spark.split(".")
    return int(major), int(minor)


def spark_table(seen: list[dict[str, Any]]) -> str:
    """One row for each cell, one column for each Spark."""
    rows = [["", *(one["spark"] for one in seen)], ["---"] * (len(seen) + 1)]
    for cell in cells_in_order():
        words = [_word(one["cells"][cell.name]["outcome"]) for one in seen]
        rows.append([cell.title, *words])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _word(outcome: str) -> str:
    return {"works": "proven", "ignored": "ignored, with a warning", "refused": "refused"}[outcome]


def write_page() -> None:
    """Writes the table between its markers."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert begin, f"{PAGE}: no {BEGIN}"
    assert end, f"{PAGE}: no {END}"
    PAGE.write_text(f"{before}{begin}\n{spark_table(read_seen())}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    write_page()

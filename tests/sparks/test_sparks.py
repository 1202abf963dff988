"""Each Spark of the package index runs the matrix, and docs/compatibility.md shows what the matrix saw.

`make sparks` runs all cells on all lines of Spark and writes `seen` and the page; `make proofs` does too.
`make test-all` runs the brief cells on the oldest Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.spark import compat
from store_format.views.registry import VIEWS
from tests.sparks import table
from tests.sparks.cells import Cell
from tests.sparks.environments import ENVIRONMENTS, LINES, UnreachableIndexError, locked
from tests.sparks.matrix import run_cells
from tests.sparks.rules import ADMISSION, REPLACES_REGISTERED, expected_outcome
from tests.support import goldens

_MATRIX_S = 3600
_CELLS = [cell.name for cell in table.cells_in_order()]


def _found(line: str, cells: Iterable[Cell], directory: Path) -> dict[str, Any]:
    """What the cells saw on a Spark. Fails if one of them failed, or saw what the rules do not say."""
    try:
        found = run_cells(line, cells, directory)
    except UnreachableIndexError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no way to the package index: {error}")
    failed = [f"{name}: {seen['error']}" for name, seen in found["cells"].items() if "error" in seen]
    assert failed == [], "\n".join([f"Spark {found['spark']}", *failed])
    version = table.version_of(found["spark"])
    assert f"{version[0]}.{version[1]}" == line
    outcomes = {name: seen["outcome"] for name, seen in found["cells"].items()}
    assert outcomes == {name: expected_outcome(name, version) for name in outcomes}
    return found


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.process
@pytest.mark.timeout(_MATRIX_S)
@pytest.mark.parametrize("line", LINES)
def test_every_cell_on_each_spark(line: str, tmp_path: Path) -> None:
    found = _found(line, table.cells_in_order(), tmp_path)
    with locked(ENVIRONMENTS / "page"):  # the Sparks run beside one another
        table.write_seen(line, found)
        table.write_page()


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(_MATRIX_S)
def test_the_oldest_spark_in_brief(tmp_path: Path) -> None:
    found = _found(LINES[0], (cell for cell in table.cells_in_order() if cell.brief), tmp_path)
    kept = next(seen for seen in table.read_seen() if seen["spark"].startswith(f"{LINES[0]}."))
    assert {name: seen["facts"] for name, seen in found["cells"].items()} == {
        name: kept["cells"][name]["facts"] for name in found["cells"]
    }


# ---- the page, without another Spark -----------------------------------------------------------------------


def test_the_page_shows_what_was_seen() -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    _, begin, rest = page.partition(table.BEGIN)
    shown, end, _ = rest.partition(table.END)
    assert begin
    assert end
    assert shown.strip("\n") == table.spark_table(table.read_seen()).strip("\n")
    rows = shown.strip("\n").splitlines()
    assert len(rows) == len(_CELLS) + 2
    assert {row.count(" | ") for row in rows} == {len(LINES)}


def test_each_spark_was_seen_doing_what_the_rules_say() -> None:
    seen = table.read_seen()
    assert [one["spark"].rpartition(".")[0] for one in seen] == list(LINES)
    for one in seen:
        version = table.version_of(one["spark"])
        assert {name: cell["outcome"] for name, cell in one["cells"].items()} == {
            name: expected_outcome(name, version) for name in _CELLS
        }


def test_each_spark_read_the_same_rows() -> None:
    """Every store of a broker, and what other cells read: the facts of cells that work do not differ."""
    seen = table.read_seen()
    for name in _CELLS:
        facts = [one["cells"][name]["facts"] for one in seen if one["cells"][name]["outcome"] == "works"]
        assert facts, name
        assert all(one == facts[-1] for one in facts), name
    assert list(seen[0]["cells"]["stores"]["facts"]) == list(goldens.NAMES)
    assert set(seen[0]["cells"]["views"]["facts"]) == {view.name for view in VIEWS}


def test_the_product_has_the_same_rules() -> None:
    """compat.py asks the Spark that it runs in. What it refused on older ones says since when it works."""
    import pyspark

    assert (table.version_of(pyspark.__version__) >= ADMISSION) == compat.HAS_ADMISSION
    since = {
        "group_stream": ADMISSION,
        "pop_stream": ADMISSION,
        "by_value_installed": REPLACES_REGISTERED,
    }
    for one in table.read_seen():
        cells = one["cells"].items()
        refused = {name: cell["facts"]["text"] for name, cell in cells if cell["outcome"] == "refused"}
        for name, text in refused.items():
            assert f"Spark {since[name][0]}.{since[name][1]} or newer" in text

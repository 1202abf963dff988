"""Every notebook runs, in a kernel and a directory of its own, and shows what the committed one shows; and
that one is fit to be shown.
"""

from __future__ import annotations

import ast
import base64
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from notebooks.checks import CHECKS
from notebooks.run import NOTEBOOKS

ROOT = Path(__file__).resolve().parent.parent.parent
IN_CI = ("01_tour", "06_the_format_under_a_microscope")  # the proofs run all
SIZE_MAX = 600_000  # of a file: people clone them

LINES_MAX = 40  # of a cell
INSTALLED = {"altair", "numpy", "pyarrow", "pyspark", "rmq_spark", "store_format"}  # by `.[all]`

Cell = dict[str, Any]  # Any: JSON


def _cells(directory: Path, name: str) -> list[Cell]:
    notebook = json.loads((directory / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = notebook["cells"]
    assert isinstance(cells, list)
    return cells


def _committed(name: str) -> list[Cell]:
    return _cells(ROOT / "notebooks", name)


def _shown(cell: Cell) -> list[object]:
    """What an output says: text and HTML as they are, a picture by the data that was drawn."""
    shown: list[object] = []
    for output in cell.get("outputs", []):
        if output["output_type"] == "stream":
            shown.append((output["name"], "".join(output["text"])))
        elif output["output_type"] == "error":
            shown.append((output["ename"], output["evalue"]))
        elif "image/png" in output["data"]:
            shown.append(
                (
                    "picture",
                    "".join(output["data"]["text/plain"]),
                    output["metadata"]["image/png"]["data_sha256"],
                )
            )
        else:
            shown.append("".join(output["data"].get("text/html", output["data"].get("text/plain", ""))))
    return shown


def test_there_are_seven() -> None:
    assert [name[:2] for name in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in IN_CI else pytest.mark.whole) for name in NOTEBOOKS]
)
def test_it_runs_and_shows_what_is_committed(name: str, tmp_path: Path) -> None:
    # In a process of its own: what Jupyter's machinery warns about is not this project's, and its event loop
    # stays out of the tests'.
    command = [sys.executable, "-m", "notebooks.run", name, "--into", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=580, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    committed, executed = _committed(name), _cells(tmp_path, name)
    assert [cell["source"] for cell in executed] == [cell["source"] for cell in committed]
    stale = f"the notebook shows something else now; look at it, then: python -m notebooks.run {name}"
    for number, (is_now, was) in enumerate(zip(executed, committed, strict=True)):
        assert _shown(is_now) == _shown(was), f"cell {number}: {stale}"


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_committed_as_it_ran(name: str) -> None:
    code = [cell for cell in _committed(name) if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    kinds = {(output["output_type"], output.get("name")) for cell in code for output in cell["outputs"]}
    # no error, nothing on stderr
    assert kinds <= {("stream", "stdout"), ("display_data", None), ("execute_result", None)}
    # the check runs after the last cell, and readers do not see it
    assert "assert " in CHECKS[name]
    assert not [line for cell in code for line in cell["source"] if line.startswith("assert ")]
    assert sum(bool(cell["outputs"]) for cell in code) >= 5


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_names_nothing_of_the_machine_it_ran_on(name: str) -> None:
    text = (ROOT / "notebooks" / f"{name}.ipynb").read_text(encoding="utf-8")
    assert len(text) <= SIZE_MAX
    without_pictures = re.sub(r'"image/png": "[^"]*"', "", text)
    assert re.findall(r"(?:/tmp/|/home/|/root/|/Users/|rmqlog-notebook-)\w*", without_pictures) == []
    assert re.findall(
        r"(?<![\w.])/[a-z]+/[a-z_]+/[\w./]*", re.sub(r"https?://\S+", "", without_pictures)
    ) in ([], ["/data/store"])
    addresses = set(re.findall(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])", without_pictures))
    assert addresses <= {"10.0.5.17", "10.0.3.11"}  # the client and the broker of the demo store


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_runs_from_anywhere(name: str) -> None:
    """It imports what is installed with the packages, and opens nothing of the checkout."""
    code = ["".join(cell["source"]) for cell in _committed(name) if cell["cell_type"] == "code"]
    imported: set[str] = set()
    for node in ast.walk(ast.parse("\n".join(code))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(str(node.module).partition(".")[0])
    assert imported <= sys.stdlib_module_names | INSTALLED
    assert "demo.create(end_ms=" in code[0]
    assert not re.findall(r"\.\./|golden|tests/", "\n".join(code))
    assert max(text.count("\n") for text in code) < LINES_MAX


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_its_pictures_are_pictures(name: str) -> None:
    pictures = [output for cell in _committed(name) for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in pictures) or name.startswith("06")
    for cell in _committed(name):
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                png = base64.b64decode("".join(output["data"]["image/png"]))
                assert png.startswith(b"\x89PNG\r\n\x1a\n")
                width, height = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
                assert width >= 600
                assert height >= 150


def test_a_stale_output_is_noticed() -> None:
    (cell,) = [
        cell
        for cell in _committed("06_the_format_under_a_microscope")
        if "zlib.crc32(body) & 0x7FFFFFFF)" in "".join(cell["source"])
    ]
    (shown,) = _shown(cell)
    changed = json.loads(json.dumps(cell).replace("0x21527766", "0x21527767"))
    assert _shown(changed) != [shown]

"""The kernels are loaded where they pay, and nowhere else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import store_format
from store_format import kernels

_WITHOUT_NUMBA = [
    "import rmq_spark.cli.main",
    "import rmq_spark.plan.batch, rmq_spark.plan.scan",
    "import store_format; from store_format import kernels; assert not kernels.worth(100)",
]


@pytest.mark.parametrize("statement", _WITHOUT_NUMBA)
@pytest.mark.process
def test_an_import_of_the_project_loads_no_numba(statement: str) -> None:
    check = f"{statement}; import sys; print('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True).stdout == "False\n"


@pytest.mark.process
@pytest.mark.parametrize(
    ("rows", "only_checked"), [("[*[1500] * 6, 1], [2500]", False), ("[*[4500] * 6, 1], [7500]", True)]
)
def test_some_thousand_rows_are_worth_the_kernels(rows: str, only_checked: bool) -> None:
    """A check counts as a third of a read."""
    check = (
        "from importlib import reload; from store_format import kernels; "
        f"print(*([kernels.worth(n, only_checked={only_checked}) for n in rows] "
        f"for rows in ({rows}) if reload(kernels)))"
    )
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert found.stdout == "[False, False, False, False, False, True, True] [True]\n"


@pytest.mark.process
def test_without_compiled_kernels_many_more_rows_take_the_plain_code(tmp_path: Path) -> None:
    source = Path(store_format.__file__).parent
    shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    check = "from store_format import kernels; print(*map(kernels.worth, (9000, 60_000, 30_000, 1000)))"
    nothing_kept = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "NUMBA_CACHE_DIR": "", "PYTHONPATH": ""}
    found = subprocess.run(
        [sys.executable, "-c", check], capture_output=True, text=True, cwd=tmp_path, env=nothing_kept
    )
    assert found.stdout == "False False False True\n"
    assert found.stderr.startswith("compiling the loops that read messages: once for this installation")


def test_a_module_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError) as caught:
        _ = kernels.no_such_kernels
    assert str(caught.value) == "no kernels of the name no_such_kernels"

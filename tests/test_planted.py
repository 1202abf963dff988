"""The tests catch what they should: each defect of `tests/support/planted.py` makes one of its tests fail.

A copy of the project gets one defect at a time. `--whole` plants all of them. Other runs plant three; which
ones depends on the source, so that each change plants another three.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pytest

from tests.support.planted import PLANTED, Planted

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("store_format", "rmq_spark", "tests", "docs", "conf", "pyproject.toml", "pyspark_rmqlog.py")

_FIRST = crc32(b"".join((ROOT / each.file).read_bytes() for each in PLANTED))
_SAMPLE = {(_FIRST + i * len(PLANTED) // 3) % len(PLANTED) for i in range(3)}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project, with compiled modules and kernels: a defect has only its own compiled again."""
    root = tmp_path_factory.mktemp("planted") / "project"
    root.mkdir()
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, root / name)
        else:
            shutil.copy2(ROOT / name, root / name)
    return root


def run(project: Path, tests: list[str]) -> tuple[int, str]:
    """Runs tests in the copy; returns pytest's exit code and output."""
    options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={project.parent / 'tmp'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project)},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_list_fits_the_source() -> None:
    for each in PLANTED:
        assert (ROOT / each.file).read_text().count(each.old) == 1, each
        for test in each.tests:
            path, *names = test.split("::")
            assert all(f"def {name}(" in (ROOT / path).read_text() for name in names), each


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.timeout(1200)
def test_without_a_defect_all_pass(project: Path) -> None:
    code, output = run(project, sorted({test for each in PLANTED for test in each.tests}))
    assert code == 0, output


@pytest.mark.slow
@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(each, id=each.file, marks=() if i in _SAMPLE else pytest.mark.whole)
        for i, each in enumerate(PLANTED)
    ],
)
def test_caught(project: Path, planted: Planted) -> None:
    file = project / planted.file
    source = file.read_text()
    file.write_text(source.replace(planted.old, planted.new))
    try:
        code, output = run(project, list(planted.tests))
    finally:
        file.write_text(source)
    assert code == 1, f"{planted}\n{output}"
    is_of_a_test = re.search(r"^(FAILED|ERROR) \S+::", output, re.MULTILINE)
    assert is_of_a_test, f"{planted}\n{output}"

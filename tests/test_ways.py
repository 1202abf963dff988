"""How far a call of the user goes through the product: the number of files that somebody has to know who
follows it. The limits are what was reached: a change that needs one more file joins two others.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(("name", "most"), [("batch read", 50), ("write", 52), ("pop", 65), ("services", 75)])
def test_a_call_goes_through_few_files(name: str, most: int, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.ways", name, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not run.returncode, run.stderr
    files = run.stdout.split()
    assert len(files) <= most, "\n".join(files)

"""Files that become shorter, vanish or are replaced under a reader: an error that names the file, or what the
file still has; never a wrong row, and never the end of the process.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shrinking import HOW, LOST, NAMELESS, WHAT

_ROOT = Path(__file__).parents[3]


@pytest.mark.process
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("what", WHAT)
def test_a_file_that_changes_under_a_reader(tmp_path: Path, how: str, what: str, whole: bool) -> None:
    rounds = 200 if whole else 5
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.shrinking", str(tmp_path), how, what, str(rounds)],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=600,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    ended = json.loads(child.stdout)
    assert sum(ended.values()) == rounds
    assert not [way for way in ended if way.startswith((NAMELESS, LOST))]

"""Files that become shorter, vanish or are replaced under a reader: an error that names the file, or what the
file still has; never a wrong row, and never the end of the process.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.shrinking import HOW, LOST, MESSAGES, NAMELESS, WHAT

_ROOT = Path(__file__).parents[3]


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(3600)  # 200 rounds with --whole
@pytest.mark.parametrize("how", HOW)
def test_a_file_that_changes_under_a_reader(tmp_path: Path, how: str, whole: bool) -> None:
    """200 rounds of each reader with --whole, else 3."""
    rounds = 200 if whole else 3
    child = subprocess.run(
        [sys.executable, "-m", "tests.support.shrinking", str(tmp_path), how, str(rounds)],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        timeout=3600,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    ended = json.loads(child.stdout)
    assert ended.keys() == WHAT.keys()
    for what, ways in ended.items():
        assert sum(ways.values()) == rounds
        assert not [way for way in ways if way.startswith((NAMELESS, LOST))], what


_IN_A_FULL_FILE_SYSTEM = """
set -e
mount -t tmpfs -o size=24m tmpfs "$1"
"$2" - "$1" <<'END'
import sys
from pathlib import Path
from store_format.diagnose import diagnose
from tests.support.shrinking import MESSAGES, WHAT, make_store
root = sys.argv[1] + "/store"
make_store(root)
log = sorted(Path(root, "commitlog").iterdir())
with open(log[-1].parent / f"{int(log[-1].name) + (1 << 19):020d}", "wb") as file:
    file.truncate(1 << 19)  # a file that a broker has created in advance: a hole, to which no page belongs
try:
    with open(sys.argv[1] + "/rest", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    print(error.errno)
for name, read in WHAT.items():
    print(name, sum(read(root)))
END
"""


@pytest.mark.process
def test_a_full_file_system_without_room_for_the_holes_of_files(tmp_path: Path) -> None:
    """Where nothing is free, an access to a hole of a mapped file of a tmpfs ends the process."""
    script = ["bash", "-c", _IN_A_FULL_FILE_SYSTEM, "bash", str(tmp_path), sys.executable]
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("mounting a file system needs CAP_SYS_ADMIN")
    child = subprocess.run(
        ["unshare", "--mount", *script], capture_output=True, text=True, cwd=_ROOT, timeout=300
    )
    assert child.returncode == 0, child.stderr[-2000:]
    said = child.stdout.splitlines()
    assert said[0] == str(errno.ENOSPC)
    assert said[1:3] == [f"read {MESSAGES}", f"scan {MESSAGES}"]
    assert len(said) == 1 + len(WHAT)

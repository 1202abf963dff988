"""A store on a read-only mount, of each kind: everything is read, and no scratch file is beside the files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import goldens
from tests.support.fixtures import Golden

# One of each kind. All goldens were read so once.
NAMES = (
    "basic-5.5.0", "rocksdb-5.5.0", "rocksdbcq-configv2-5.5.0", "dledger-5.5.0", "compaction-5.5.0",
    "tiered-5.5.0", "static-5.5.0",
)  # fmt: skip
# In a new mount namespace: each directory mounted on itself, without the right to write. Then the command.
_MOUNTED = (
    'while [ "$1" != -- ]; do mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" || exit 99; shift; '
    'done; shift; exec "$@"'
)


def _on_read_only_mounts(roots: list[Path], command: list[str]) -> subprocess.CompletedProcess[str] | None:
    """The command with these directories mounted read-only; None where this process may not mount."""
    user = [] if os.geteuid() == 0 else ["--map-root-user", "--user"]
    unshare = ["unshare", "--mount", *user, "sh", "-c", _MOUNTED, "sh", *map(str, roots), "--", *command]
    try:
        done = subprocess.run(unshare, capture_output=True, text=True, timeout=200)
    except FileNotFoundError:
        return None
    return None if done.returncode == 99 or done.stderr.startswith("unshare: ") else done


def test_every_kind_of_store_is_read_from_a_read_only_mount(golden: Golden) -> None:
    roots = [golden(name) for name in NAMES]
    stores = [
        (name, store) for name, root in zip(NAMES, roots, strict=True)
        for store, _ in goldens.brokers(name, root).values()
    ]  # fmt: skip
    command = [sys.executable, "-m", "tests.support.read_only", *(str(store) for _, store in stores)]
    done = _on_read_only_mounts(roots, command)
    if done is None:
        pytest.skip("this process may not mount (unshare --mount): a container without CAP_SYS_ADMIN?")
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.pop("refused") for line in lines] == ["EROFS"] * len(stores)
    for name in NAMES:
        found = sum(line["messages"] for line, (each, _) in zip(lines, stores, strict=True) if each == name)
        assert found == len(goldens.expected_rows(name)), name
    assert [line["damage"] for line in lines] == [0] * len(stores)
    assert all(line["topics"] for line in lines)
    assert any(line["lag"] for line in lines)

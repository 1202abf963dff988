"""A commit over two stores: both or none, once, wherever it is killed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from store_format.append import CommitOptions, recover
from store_format.cluster import commit_cluster
from store_format.errors import StoreInUseError
from store_format.lock import StoreLock
from tests.staged import append, make_store, messages_of, numbered, stage

_REPOSITORY = Path(__file__).resolve().parents[2]
_OPTIONS = CommitOptions(clock=lambda: 1_700_000_200_000)
_NAMES = ("broker-a", "broker-b")


def _commit(cluster: Path, first: int, number: int, write: str) -> bool:
    """Ten messages a store."""
    members = {
        str(cluster / name): [stage(cluster / name, numbered("T", first + 10 * i, 10), write=write)] for i, name in enumerate(_NAMES)
    }
    results = commit_cluster(members, key=("q", number), options=_OPTIONS)
    return all(result.committed for result in results.values())


def _counts(cluster: Path) -> list[list[int]]:
    return [sorted(int(m.body.split()[1]) for m in messages_of(cluster / name)) for name in _NAMES]


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    for i, name in enumerate(_NAMES):
        append(make_store(tmp_path / "cluster" / name), numbered("T", 1000 + i, 1), key=("old", 0))
    return tmp_path / "cluster"


@pytest.fixture(autouse=True)
def _directory(tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir(exist_ok=True)


def test_each_store_gets_its_part_once(cluster: Path) -> None:
    assert _commit(cluster, 0, 1, "w1")
    assert not _commit(cluster, 0, 1, "again")
    assert _commit(cluster, 20, 2, "w2")
    assert _counts(cluster) == [[*range(10), *range(20, 30), 1000], [*range(10, 20), *range(30, 40), 1001]]
    for name in _NAMES:
        assert not any((cluster / name / ".rmqlog" / "staging").iterdir())
        assert not (cluster / name / ".rmqlog" / "journal.json").exists()


def test_a_store_in_use_stops_all_before_anything_is_written(cluster: Path) -> None:
    with StoreLock(str(cluster / "broker-b")), pytest.raises(StoreInUseError):
        _commit(cluster, 0, 1, "w1")
    assert _counts(cluster) == [[1000], [1001]]


_CHILD = """
import sys
from pathlib import Path
from store_format.cluster import commit_cluster
from tests.failing_writer import Failure, install
from tests.staged import numbered, stage
from store_format.append import CommitOptions
cluster, at = Path(sys.argv[1]), int(sys.argv[2])
members = {str(cluster / n): [stage(cluster / n, numbered("T", 10 * i, 10), write="w1")] for i, n in enumerate(("broker-a", "broker-b"))}
failure = Failure("kill", at)
install(failure)
commit_cluster(members, key=("q", 1), options=CommitOptions(clock=lambda: 1_700_000_200_000))
print(failure.count)
"""


def _run(cluster: Path, at: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _CHILD, str(cluster), str(at)], cwd=_REPOSITORY, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(1400)
def test_killed_anywhere_a_replay_finds_all_or_nothing(cluster: Path, tmp_path: Path) -> None:
    whole = _run(shutil.copytree(cluster, tmp_path / "whole"), 0)
    assert whole.returncode == 0, whole.stderr
    outcomes = set()
    for at in range(1, int(whole.stdout) + 1, 2):
        for replays in (True, False):
            root = shutil.copytree(cluster, tmp_path / f"{at}-{replays}")
            killed = _run(root, at)
            # Journals name stores by their paths, which are those of this copy.
            assert killed.returncode == -signal.SIGKILL, killed.stderr
            if replays:
                _commit(root, 0, 1, "again")
                assert _counts(root) == [[*range(10), 1000], [*range(10, 20), 1001]]
            else:
                for name in reversed(_NAMES):  # each store's next writer decides alone
                    recover(str(root / name), options=_OPTIONS)
                counts = _counts(root)
                assert counts in ([[*range(10), 1000], [*range(10, 20), 1001]], [[1000], [1001]])
                outcomes.add(len(counts[0]))
    assert outcomes == {1, 11}

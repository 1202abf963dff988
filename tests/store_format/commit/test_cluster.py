"""A commit over two stores: both or none, once, wherever it is killed."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from store_format.bookkeeping.ledger import Ledger
from store_format.commit.append import commit_cluster, recover
from store_format.commit.options import CommitOptions
from store_format.errors import StoreInUseError
from store_format.files.lock import StoreLock
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from tests.store_format.commit.test_missing_stores import break_off
from tests.support.failing_writer import staged_members, write_cluster
from tests.support.fork_server import ForkServer
from tests.support.kills import States, killed_stores
from tests.support.staged import append, make_store, messages_of, numbered, stage

_OPTIONS = CommitOptions(clock=lambda: 1_700_000_200_000)
_NAMES = ("broker-a", "broker-b")


def _commit(cluster: Path, first: int, number: int, write: str) -> bool:
    """Ten messages a store."""
    members = staged_members(cluster, _NAMES, first, write)
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


def test_new_topics_are_made_in_every_member_also_where_no_message_goes(cluster: Path) -> None:
    """Else the next batch would hash its keys over the queues of one store only."""
    members = {
        str(cluster / "broker-a"): [stage(cluster / "broker-a", numbered("New", 0, 3))],
        str(cluster / "broker-b"): [],
    }
    commit_cluster(members, options=replace(_OPTIONS, new_topics={"New": 8}))
    for name in _NAMES:
        topics = read_topics(Opened(str(cluster / name)))
        assert topics is not None
        assert topics["New"].write_queue_nums == 8


def test_a_key_counts_that_a_store_has_which_takes_no_part_now(cluster: Path) -> None:
    assert _commit(cluster, 0, 1, "w1")
    other = make_store(cluster / "broker-c")
    roots = [str(cluster / name) for name in _NAMES]
    staged = stage(other, numbered("T", 0, 20), write="again")
    with StoreLock(roots[0]), StoreLock(roots[1]):  # brokers run there
        results = commit_cluster({str(other): [staged]}, key=("q", 1), watched=roots, options=_OPTIONS)
    assert not results[str(other)].committed
    assert messages_of(other) == []
    assert not any((other / ".rmqlog" / "staging").iterdir())


@pytest.mark.process
@pytest.mark.parametrize("told", _NAMES)
def test_a_member_that_was_not_told_completes_its_part_however_late(cluster: Path, told: str) -> None:
    """The other one was, completed its own, and has gone on since."""
    break_off(cluster, told=(told,), names=_NAMES)
    root, late = str(cluster / told), next(str(cluster / name) for name in _NAMES if name != told)
    for number in range(3):
        append(cluster / told, numbered("Later", 10 * number, 10), key=("later", number), options=_OPTIONS)
    assert list(Ledger.read(Opened(root)).begun) == ["j1"]
    for asked in (root, late):
        results = commit_cluster({asked: []}, key=("q", 1), watched=[root, late], options=_OPTIONS)
        assert not results[asked].committed
    bodies = [
        sorted(int(m.body.split()[1]) for m in messages_of(cluster / name) if m.topic == "T")
        for name in _NAMES
    ]
    assert bodies == [[*range(10), 1000], [*range(10, 20), 1001]]
    # The next commit that is broken off forgets what all know by now.
    break_off(cluster, told=(told,), names=_NAMES, journal_id="j2")
    recover(root, options=_OPTIONS)
    assert list(Ledger.read(Opened(root)).begun) == ["j2"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("part", "mode"), [((1, 2), ""), ((2, 2), ""), ((1, 1), "beside")], ids=["part 1", "part 2", "beside"]
)
def test_killed_anywhere_a_replay_finds_all_or_nothing(
    cluster: Path, tmp_path: Path, forks: ForkServer, part: tuple[int, int], mode: str, whole: bool
) -> None:
    """Every change is a kill with --whole, else every fifth one."""
    kills = checked = 0
    every = 1 if whole else 5
    outcomes = set()
    states = States()
    for _, root in killed_stores(
        forks, cluster, tmp_path, "both", write_cluster, _NAMES, mode, every=every, part=part
    ):
        kills += 1
        if not states.is_new(root):
            continue
        checked += 1
        killed = shutil.copytree(root, tmp_path / "killed")
        for name in reversed(_NAMES):  # each store's next writer decides alone
            recover(str(root / name), options=_OPTIONS)
        counts = _counts(root)
        assert counts in ([[*range(10), 1000], [*range(10, 20), 1001]], [[1000], [1001]])
        outcomes.add(len(counts[0]))
        shutil.rmtree(root)
        killed.rename(root)  # not elsewhere: a commit that names stores by their paths
        _commit(root, 0, 1, "again")
        assert _counts(root) == [[*range(10), 1000], [*range(10, 20), 1001]]
    assert kills > 90 // every
    assert checked >= 30 // every
    assert outcomes == ({1, 11} if part[0] == 1 else {11})

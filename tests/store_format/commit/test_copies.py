"""Copies of a store, made by `cp` and `tar` while another process commits batches with new topics: each is
whole, or what it lacks is named; and the jobs run again on it.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.append import CommitResult
from store_format.commit.options import CommitOptions, LostBatch
from store_format.errors import OptionError, StoreError
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.fork_server import ForkServer
from tests.support.oracle import Message
from tests.support.staged import append, make_store, messages_of, numbered
from tests.support.stored_rows import bodies_in

_FIRST, _OLD, _NEW, _BATCHES = 300, 12, 5, 400  # messages before; of T and of a new topic in each batch
_PLACE = re.compile(r"[TU]\d*-\d offsets \d+ to \d+")
_CP = ["cp", "-a", "--sparse=always"]


def _batch(k: int) -> list[Message]:
    first = _FIRST + k * (_OLD + _NEW)
    return [*numbered("T", first, _OLD), *numbered(f"U{k}", first + _OLD, _NEW)]


def _commit(root: Path, k: int, lost: LostBatch | None = None) -> CommitResult:
    return append(root, _batch(k), key=(f"job{k}", 1), options=CommitOptions(lost_batch=lost))


def _copy(root: Path, copy: Path, how: str) -> None:
    """Without an error for files that vanish meanwhile."""
    if how == "cp":
        subprocess.run([*_CP, str(root), str(copy)], stderr=subprocess.DEVNULL, check=False)
        return
    copy.mkdir()
    if how == "tar":
        pipe = 'tar -C "$0" -cf - . 2>/dev/null | tar -C "$1" -xf -'
        subprocess.run(["sh", "-c", pipe, str(root), str(copy)], stderr=subprocess.DEVNULL, check=False)
    else:  # as docs/write.md says
        (copy / ".rmqlog").mkdir()
        for directory, last in ((root, "commitlog"), (root / ".rmqlog", "ledger.json")):
            names = sorted({*os.listdir(directory)} - {".rmqlog", last})
            for part in (names, [last]):
                paths = [str(directory / name) for name in part]
                target = str(copy / directory.relative_to(root))
                subprocess.run([*_CP, *paths, target], stderr=subprocess.DEVNULL, check=False)


def copy_while_committing(root: Path, copy: Path, how: str, seconds: float) -> None:
    """Copies the store while a process commits batches, which is killed then."""
    writer = os.fork()
    if not writer:
        try:
            for k in range(_BATCHES):
                _commit(root, k)
        finally:
            os._exit(0)
    time.sleep(seconds)
    _copy(root, copy, how)
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)


def _texts(messages: list[Message]) -> Counter[str]:
    return Counter(m.body.decode().rstrip(".") for m in messages)


class _Copy:
    """One copy: what it says of itself, and what the jobs that run again on it do."""

    def __init__(self, root: Path, stats: Counter[str]) -> None:
        self.root, self.stats = root, stats
        self.ledger = Ledger.read(Opened(str(root)))
        journal = Journal.read(Opened(str(root)))
        self.interrupted = None if journal is None else journal.key
        in_log = _texts(messages_of(root))
        self.committed = {k for k in range(_BATCHES) if self.ledger.has((f"job{k}", 1))}
        logged = {k for k in range(_BATCHES) if in_log & _texts(_batch(k))}
        self.jobs = range(max([*self.committed, *logged, 0]) + 2)
        self.again: dict[int, int] = {}  # by job: how many messages the store has twice, it was told

    def check_says_what_it_lacks(self) -> None:
        problems = [
            str(each) for each in MessageStore.open(str(self.root)).diagnose() if each.severity != "info"
        ]
        committed = sum((_texts(_batch(k)) for k in self.committed), _texts(numbered("T", 0, _FIRST)))
        try:
            lost = committed - Counter(bodies_in(self.root))
        except StoreError as error:  # it asks whether a topic was deleted, or names a damaged file
            problems.append(str(error))
            lost = Counter()
        assert problems or not lost, sorted(lost)
        self.stats["named" if problems else "whole"] += 1

    def run_jobs(self) -> None:
        """Runs all jobs, and does what the errors say."""
        for _ in range(2):
            others = []
            for k in self.jobs:
                try:
                    self._run(k)
                except StoreError as error:
                    others.append(str(error))
            if not others:
                return
            self.stats["files lost"] += 1  # a queue leads behind the last file of the commitlog
            assert all("rmqlog recover STORE --cut-after-damage --apply" in error for error in others), others
            MessageStore.open(str(self.root)).recover(cut_after_damage=True).apply()
        raise AssertionError(others)

    def _run(self, k: int) -> None:
        try:
            _commit(self.root, k)
        except OptionError as error:
            refusal = str(error)
        else:
            return
        lost = re.search(r"\. ([\d,]+) are lost: (.*?)\. Write the lost messages", refusal)
        assert lost is not None, refusal
        assert all(map(_PLACE.fullmatch, lost[2].split(", "))), refusal
        self.stats["refused"] += 1
        report = _commit(self.root, k, "again").reports[0]
        twice = re.search(rf"because {lost[1]} of its 17 messages.* the other (\d+) messages twice", report)
        assert twice is not None, report
        self.again[k] = int(twice[1])

    def check_jobs(self, *, is_ordered: bool) -> None:
        read = Counter(bodies_in(self.root))
        whole = sum((_texts(_batch(k)) for k in self.jobs), _texts(numbered("T", 0, _FIRST)))
        assert not whole - read
        for k in self.jobs:
            twice = sum(((read - whole) & _texts(_batch(k))).values())
            assert twice == self.again.get(k, twice)
            if twice and k not in self.again:  # the copy's ledger is older than its commitlog
                self.stats["ledger older"] += 1
                assert not is_ordered
                assert k not in self.committed
                assert self.interrupted != (f"job{k}", 1)  # that commit is completed, not repeated
        diagnosis = MessageStore.open(str(self.root)).diagnose()
        assert [str(each) for each in diagnosis if each.severity == "damage"] == []


def _check_copies(directory: Path, count: int, seed: int) -> dict[str, dict[str, int]]:
    """Makes and checks so many copies; returns what was met, by the way of copying."""
    chance = random.Random(seed)
    before = make_store(directory / "before")
    append(before, numbered("T", 0, _FIRST), key=("first", 0))
    met: dict[str, Counter[str]] = {}
    with ForkServer() as forks:
        for number in range(count):
            how = ("cp", "ordered", "tar")[number % 3]
            root, copy = Path(shutil.copytree(before, directory / "store")), directory / f"{number}-{how}"
            forks.call(copy_while_committing, root, copy, how, chance.uniform(0.02, 0.4))
            found = _Copy(copy, met.setdefault(how, Counter()))
            found.stats["copies"] += 1
            found.check_says_what_it_lacks()
            found.run_jobs()
            found.check_jobs(is_ordered=how == "ordered")
            shutil.rmtree(root)
            shutil.rmtree(copy)
    return {how: dict(sorted(stats.items())) for how, stats in met.items()}


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_copy_made_during_commits_is_whole_or_says_what_it_lacks(tmp_path: Path) -> None:
    _check_copies(tmp_path, 3, seed=1)


@pytest.mark.process
@pytest.mark.whole
@pytest.mark.timeout(7200)
def test_two_hundred_copies(tmp_path: Path) -> None:
    met = _check_copies(tmp_path, 200, seed=2)
    print(met)
    assert sum(stats["copies"] for stats in met.values()) == 200
    assert all({"named", "whole"} <= stats.keys() for stats in met.values())

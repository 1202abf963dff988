"""Stores for the referee: `make(seed, directory)` makes the store of that number, the same one each time.

Who made it, what happened to it and in which state it was left are drawn by the seed.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

from store_format.commit.options import CommitOptions
from tests.interop.referee import body_of
from tests.support.fork_server import ForkServer
from tests.support.kills import count_changes, kill_at
from tests.support.referee import harms, shapes
from tests.support.referee.law import Case
from tests.support.referee.made import ENTRY_SIZE, BrokerStore
from tests.support.staged import append, make_store, numbered, settings_from
from tests.support.writes import SMALL

_LOG_SIZES = (2048, 4096, 16384)


@dataclass
class Generator:
    """`forks` kills commits; without it no store has a commit that was killed."""

    forks: ForkServer | None = None
    shape: str = ""  # that of all stores, if it is named; the same for the harm
    harm: str = ""
    _changes: dict[str, int] = field(default_factory=dict)

    def make(self, seed: int | str, directory: Path) -> Case:
        random = Random(f"referee/{seed}")
        maker = random.choices((self._by_broker, self._by_rmqlog, self._killed), (10, 2, 2))[0]
        if self.shape:
            maker = self._by_broker
        return maker(random, directory)

    # ---- who made it --------------------------------------------------------------------------------------

    def _by_broker(self, random: Random, directory: Path) -> Case:
        name, shape = random.choice(sorted(shapes.SHAPES.items()))
        if self.shape:
            name, shape = self.shape, shapes.SHAPES[self.shape]
        root = directory / "store"
        store = BrokerStore(
            root,
            log_file_size=random.choice(_LOG_SIZES),
            queue_entries=random.choice([4, 8, 16, 64]),
            begin=random.choice([0, 0, 0, 1 << 16]),
        )
        shape(store, random)
        crashed = random.random() < 0.35
        store.write(crashed=crashed)
        case = Case(
            root,
            name + (" crashed" if crashed else ""),
            store.conf,
            # without `abort` a queue that waits for a broker is as one of a topic that was created again
            may_ask=name in shapes.MAY_ASK or (store.lacks_queues and not crashed),
            must_ask=name in shapes.MUST_ASK,
            delivery=store.delivery,
        )
        return self._harmed(case, random)

    def _by_rmqlog(self, random: Random, directory: Path) -> Case:
        """Commits, one after the other."""
        root = make_store(directory / "store", settings_from(SMALL))
        for number in range(random.randint(1, 3)):
            topic = random.choice("AAB")
            append(root, numbered(topic, number * 100, random.randint(1, 40)), key=("w", number + 1))
        return self._harmed(Case(root, "commits", SMALL), random)

    def _killed(self, random: Random, directory: Path) -> Case:
        """A commit that was killed, and what became of the store: left, or copied without `abort`, or with
        config/ of before.
        """
        if self.forks is None:
            return self._by_rmqlog(random, directory)
        topic = random.choice(["A", "N"])  # N is new
        root = _before(directory / "store")
        config = shutil.copytree(root / "config", directory / "config")
        if topic not in self._changes:
            other = _before(directory / "other")
            self._changes[topic] = count_changes(self.forks, other, _commit, topic)
            shutil.rmtree(other)
        at = random.randint(1, self._changes[topic])
        kill_at(self.forks, root, "kill", at, _commit, topic)
        name = f"a commit killed, {'a new topic' if topic == 'N' else 'a known topic'}"
        left = random.choice(["", "without abort", "with config of before", "without both"])
        if left in ("without abort", "without both"):
            (root / "abort").unlink(missing_ok=True)
        if left in ("with config of before", "without both"):
            shutil.rmtree(root / "config")
            shutil.copytree(config, root / "config")
        shutil.rmtree(config)
        told = (f"killed at change {at}", left or "left as it was")
        pending = frozenset(body_of(message.body) for message in numbered(topic, 1000, 12))
        name = f"{name}, {left or 'left as it was'}"
        rerun = partial(_commit, failure=None, topic=topic)
        return Case(root, name, SMALL, told, is_damaged=True, pending=pending, rerun=rerun)

    # ---- what happened to it ------------------------------------------------------------------------------

    def _harmed(self, case: Case, random: Random) -> Case:
        count = random.choices((0, 1, 2), (3, 6, 2))[0]
        told, names = list(case.told), []
        drawn = [random.choice(sorted(harms.HARMS.items())) for _ in range(count)]
        for name, harm in [(self.harm, harms.HARMS[self.harm])] if self.harm else drawn:
            with suppress(harms.NothingThereError):
                told.append(harm(case.root, random))
                names.append(name)
        if random.random() < 0.1:
            told.append("the log is in two directories")
            logs, conf = _two_directories(case, random)
        else:
            logs, conf = (), dict(case.conf)
        return replace(
            case,
            name=" + ".join([case.name, *names]),
            conf=conf | _shown_size(case.root),
            told=tuple(told),
            is_damaged=not harms.HARMLESS.issuperset(names),
            logs=logs,
        )


def _shown_size(root: Path) -> dict[str, str]:
    """The size of the queue files, if they all have the same one and nothing else on disk shows it: a file
    that is cut to whole entries is, byte for byte, a file of a broker with a smaller size.
    """
    sizes = {path.stat().st_size for path in (root / "consumequeue").glob("*/*/*") if path.is_file()}
    is_shown = len(sizes) == 1 and max(sizes) and not max(sizes) % ENTRY_SIZE
    has_settings = (root / ".rmqlog").exists()
    return {"mappedFileSizeConsumeQueue": str(max(sizes))} if is_shown and not has_settings else {}


def _two_directories(case: Case, random: Random) -> tuple[tuple[str, ...], dict[str, str]]:
    """Half of the files of the log in another directory, in turn, as MultiPathMappedFileQueue does it."""
    other = case.root / "commitlog2"
    other.mkdir()
    for number, path in enumerate(sorted((case.root / "commitlog").iterdir())):
        if number % 2:
            path.rename(other / path.name)
    logs = (str(case.root / "commitlog"), str(other))
    return logs, {**case.conf, "storePathCommitLog": ",".join(logs)}


def _before(root: Path) -> Path:
    """The store before the commit that is killed."""
    make_store(root, settings_from(SMALL))
    append(root, numbered("A", 0, 30), key=("w", 1), options=CommitOptions(clock=lambda: 1_700_000_100_000))
    return root


def _commit(root: Path, failure: object, topic: str) -> None:
    """The action that is killed, and that runs again without a failure."""
    from tests.support.failing_writer import Failure, install

    assert failure is None or isinstance(failure, Failure)
    if failure is not None:
        install(failure)
    append(root, numbered(topic, 1000, 12), key=("w", 2))

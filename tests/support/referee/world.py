"""A store, the truth about it, and what can happen to both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import CommitResult, commit
from store_format.commit.options import CommitOptions
from tests.support import goldens, oracle
from tests.support.failing_writer import Failure, install
from tests.support.oracle import Message
from tests.support.referee.answers import Answer
from tests.support.referee.askers import ask_all, batch_read, differences_left, written
from tests.support.referee.followers import Follower
from tests.support.referee.truth import (
    Fate,
    QueueKey,
    Stored,
    Truth,
    digest,
    keys_of,
    truth_of_golden,
    write_committed,
)
from tests.support.staged import append, deleted_topic, make_store, numbered, settings_from, stage

# Commitlog files of some 40 messages, consume queue files of 20 entries
ENTRY_SIZE = 20
BODY_AT = 88  # of a message with IPv4 hosts
LOG_FILE_SIZE, QUEUE_FILE_SIZE = 1 << 13, 20 * ENTRY_SIZE
SETTINGS = StoreSettings("broker-a", LOG_FILE_SIZE, QUEUE_FILE_SIZE, 50, 200)


@dataclass
class World:
    """A store, the truth about it, and an empty place for copies."""

    root: Path
    truth: Truth
    place: Path
    answers: list[Answer] = field(default_factory=list)  # those that were given before the end
    followers: list[Follower] = field(default_factory=list)
    more: list[Callable[[Path, Truth, Path], list[Answer]]] = field(default_factory=list)  # to ask
    settings: StoreSettings = SETTINGS
    now_ms: int = 1_700_000_100_000
    write_to: tuple[QueueKey, ...] = ()  # queues that a write is to choose

    def follow(self) -> None:
        """Starts a stream and a group, and reads everything that is there."""
        self.followers = [
            Follower(self.root),
            Follower(self.root, skips=False),
            Follower(self.root, offsets=self.place / "offsets"),
        ]
        self.step()

    def step(self) -> None:
        """The running queries read on."""
        self.answers += [each.step(self.truth.copy()) for each in self.followers if not each.has_failed]

    def restart(self) -> None:
        """The running queries go on in other processes."""
        for each in self.followers:
            each.restart()

    def append(self, messages: Sequence[Message], *, queues: int = 4, sync: bool = True) -> None:
        options = CommitOptions(
            clock=lambda: 1_700_000_100_000,
            sync=sync,
            new_topics={message.topic: queues for message in messages},
        )
        self.truth.appended(self.root, messages, append(self.root, messages, options=options))

    def log_files(self) -> list[Path]:
        return sorted((self.root / "commitlog").iterdir())

    def queue_files(self, topic: str, queue_id: int) -> list[Path]:
        return sorted((self.root / "consumequeue" / topic / str(queue_id)).iterdir())

    def zero_entries(self, topic: str, queue_id: int, start: int, stop: int) -> None:
        """Zeroes the entries of queue offsets [start, stop)."""
        for offset in range(start, stop):
            at = offset * ENTRY_SIZE
            (path,) = [path for path in self.queue_files(topic, queue_id) if int(path.name) <= at][-1:]
            overwrite(path, at - int(path.name), bytes(ENTRY_SIZE))
        self.truth.differences.append(f"zeros in {topic}-{queue_id} at {start} to {stop}")

    def flip_entry(self, topic: str, queue_id: int, offset: int, byte: int, bit: int) -> None:
        """Flips a bit of the entry of a queue offset, in one of its 20 bytes."""
        at = offset * ENTRY_SIZE
        (path,) = [path for path in self.queue_files(topic, queue_id) if int(path.name) <= at][-1:]
        where = at - int(path.name) + byte
        overwrite(path, where, bytes([path.read_bytes()[where] ^ bit]))
        self.truth.differences.append(f"a bit of the entry {topic}-{queue_id} {offset} is wrong")

    def lose_log_file(self, path: Path) -> None:
        start, size = int(path.name), path.stat().st_size
        path.unlink()
        self.truth.lose_bytes(start, start + size, f"commitlog file {path.name} is lost")

    def lose(self, *paths: Path) -> None:
        """Removes files and directories of which messages do not depend."""
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.truth.differences.append(f"{path.relative_to(self.root)} is lost")

    def delete_topic(self, topic: str, *, creates_again: bool = False) -> None:
        """As a broker does it. Without messages, a topic that was created again has no queue file."""
        deleted_topic(self.root, topic)
        self.truth.delete_topic(topic)
        write_committed(self.root, self.truth)
        if creates_again:
            path = self.root / "config/topics.json"
            config = json.loads(path.read_text())
            table = config["topicConfigTable"]
            table[topic] = next(iter(table.values())) | {"topicName": topic}
            path.write_text(json.dumps(config))

    def refresh(self) -> None:
        """Notes what a full check of the store has to find."""
        self.truth.differences = differences_left(self.root, self.truth)
        self.truth.is_crashed = (self.root / "abort").exists()

    def write(self, messages: Sequence[Message], *, sync: bool = True) -> Answer:
        """A write that may refuse."""
        self.now_ms += 1000
        answer, result = written(
            self.root, self.truth.copy(), messages, settings=self.settings, sync=sync, now_ms=self.now_ms
        )
        if result is not None:
            self.truth.appended(self.root, messages, result)
        self.refresh()
        return answer

    def log_end(self) -> int:
        """The physical offset after the last message."""
        return max(each.physical_stop for each in self.truth.messages)

    def has(self, messages: Sequence[Message]) -> int:
        """How many of the messages a batch read returns; -1 if it does not answer."""
        answer = batch_read(self.root, self.truth, skips=True)
        bodies = {digest(message.body) for message in messages}
        return -1 if answer.rows is None else sum(row[3] in bodies for row in answer.rows)

    def settle(self, killed: Sequence[Message], end: int) -> int:
        """Adds the messages of a commit that was killed and completed since, if it was; returns how many a
        batch read has. `end` is that of the log before the commit.
        """
        found = self.has(killed)
        if found == len(killed):
            queues = {(message.topic, message.queue_id) for message in killed}
            starts = {queue: (self.truth.next_offset(queue), 0) for queue in queues}
            self.truth.appended(self.root, killed, CommitResult(True, end, queues=starts))
        return found

    def broker_writes(self, messages: Sequence[Message], *, queued: int, torn: bool) -> None:
        """A broker appends messages and is killed: the first `queued` of them are in queues, and with `torn`
        only half of the last one is in the commitlog.
        """
        end = self.log_end()
        self.now_ms += 1000
        for number, message in enumerate(messages):
            queue = (message.topic, message.queue_id)
            offset = self.truth.next_offset(queue)
            rest = LOG_FILE_SIZE - end % LOG_FILE_SIZE
            if message.total_size + 8 > rest:
                self._write_file("commitlog", LOG_FILE_SIZE, end, oracle.blank(rest))
                end += rest
            placed = replace(message, queue_offset=offset, physical_offset=end, store_timestamp=self.now_ms)
            unit = oracle.encode_message(placed)
            if torn and number == len(messages) - 1:
                self._write_file("commitlog", LOG_FILE_SIZE, end, unit[: len(unit) // 2])
                break
            self._write_file("commitlog", LOG_FILE_SIZE, end, unit)
            if number < queued:
                entry = oracle.cq_unit(end, len(unit), oracle.tags_code(placed))
                directory = f"consumequeue/{queue[0]}/{queue[1]}"
                self._write_file(directory, QUEUE_FILE_SIZE, offset * ENTRY_SIZE, entry)
            self.truth.add(Stored(*queue, offset, end, len(unit), message.body, keys_of(message)))
            end += len(unit)
        (self.root / "abort").write_text("4711")
        self.refresh()

    def _write_file(self, directory: str, size: int, position: int, data: bytes) -> None:
        path = self.root / directory / oracle.file_name(position - position % size)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(bytes(size))
        overwrite(path, position % size, data)

    def flip_body(self, message: Stored) -> None:
        """Flips a bit of a body, which a checksum protects."""
        path = max(path for path in self.log_files() if int(path.name) <= message.physical_offset)
        at = message.physical_offset - int(path.name) + BODY_AT
        overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x20]))
        self.truth.set(Fate.DAMAGED, message.__eq__)
        self.refresh()

    def retain(self, count: int) -> None:
        """Deletes the first log files, as retention does."""
        for path in self.log_files()[:count]:
            path.unlink()
        first = int(self.log_files()[0].name)
        expired = [each for each in self.truth.messages if each.physical_offset < first]
        self.truth.fates.update(dict.fromkeys(expired, Fate.EXPIRED))

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.truth.committed[group, topic, queue_id] = offset
        write_committed(self.root, self.truth)


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def empty_world(place: Path) -> World:
    """A store without messages."""
    return World(make_store(place / "store", SETTINGS), Truth(), place)


def new_world(place: Path) -> World:
    """A store with two topics, and a group that has read some of T-0."""
    world = empty_world(place)
    world.append(numbered("T", 0, 100, queues=1))
    world.append(numbered("V", 700, 30, queues=1))
    world.commit_offset("G", "T", 0, 5)
    world.commit_offset("G", "V", 0, 3)
    return world


def golden_world(name: str, place: Path) -> World:
    """A store of a real broker."""
    root = goldens.unpack(name, place / "store")
    return World(root, truth_of_golden(name, root), place, settings=settings_from(goldens.config(name)))


def commit_killed(root: Path, failure: Failure, messages: Sequence[Message], now_ms: int) -> None:
    """A commit that is killed, as an action of `kills`."""
    topics = {message.topic: 4 for message in messages}
    staged = stage(root, messages, write="killed", sync=False)
    install(failure)
    options = CommitOptions(clock=lambda: now_ms, new_topics=topics)
    commit(str(root), [staged], options=options)


def answers_about(world: World) -> list[Answer]:
    """What everybody says about the store of a case."""
    answers = [
        *world.answers,
        *ask_all(world.root, world.truth, world.place, write_to=world.write_to, settings=world.settings),
    ]
    for ask in world.more:
        answers += ask(world.root, world.truth, world.place)
    for each in world.followers:
        each.close()
    return answers

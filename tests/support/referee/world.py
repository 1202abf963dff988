"""A store, the truth about it, and what can happen to both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import CommitResult, commit
from store_format.commit.options import CommitOptions
from tests.support import goldens, oracle
from tests.support.failing_writer import Failure, install
from tests.support.file_edits import edited_json, overwrite
from tests.support.oracle import Message
from tests.support.referee.answers import Answer
from tests.support.referee.askers import ENTRY, ask_all, batch_read, entries_of, look, written
from tests.support.referee.followers import Follower
from tests.support.referee.truth import (
    Fate,
    QueueKey,
    Row,
    Stored,
    Truth,
    digest,
    keys_of,
    truth_of_golden,
    write_committed,
)
from tests.support.staged import (
    append,
    deleted_topic,
    make_store,
    messages_of,
    numbered,
    settings_from,
    stage,
)

# Commitlog files of some 40 messages, consume queue files of 20 entries
_HEAD_SIZE = 88  # of a message, with IPv4 hosts
ENTRY_SIZE = 20
# bytes of a message with IPv4 hosts: its body, and the fields flag, bornTimestamp, bornHost, storeTimestamp,
# storeHost, reconsumeTimes and preparedTransactionOffset, which no checksum protects (docs/read.md)
BODY_AT = 88
UNPROTECTED = frozenset([*range(16, 20), *range(40, 84)])
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
    wrong: list[str] = field(default_factory=list)  # what is wrong beside messages and their entries

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
            with edited_json(self.root / "config/topics.json") as config:
                table = config["topicConfigTable"]
                table[topic] = next(iter(table.values())) | {"topicName": topic}

    def lose_file(self, what: str) -> Path | None:
        """Removes topics.json, the checkpoint or the index; None if there is none."""
        paths = {
            "topics.json": sorted((self.root / "config").glob("topics.json*")),
            "checkpoint": [self.root / "checkpoint"],
            "index": sorted((self.root / "index").glob("*")),
        }[what]
        if not paths or not paths[0].exists():
            return None
        self.lose(*paths)
        return paths[0]

    def without_evidence(self) -> set[QueueKey]:
        """The queues that lack their last entries, where only a comparison of the whole log shows it.

        A broker does not look behind the ends of its queues when it starts, and nor does a reader. Another
        thing shows it if the ledger knows the end, or if no queue has an entry of a later message.
        """
        entries, ledger = entries_of(self.root), self.ledger()
        ends = ledger["ends"] if "last" in ledger and self._has(ledger["last"]) else {}
        dispatched = max((at + size for at, size in entries.values()), default=0)
        last_entry: dict[QueueKey, int] = {}
        for directory in (self.root / "consumequeue").glob("*/*"):
            if any(any(path.read_bytes()) for path in directory.iterdir()):  # else nothing but zeros shows it
                last_entry[directory.parent.name, int(directory.name)] = -1
        for topic, queue_id, offset in entries:
            last_entry[topic, queue_id] = max(offset, last_entry.get((topic, queue_id), -1))
        found: dict[QueueKey, bool] = {}
        for each in self.truth.of(Fate.KEPT):
            topic, queue_id = each.queue
            if each.queue in last_entry and each.queue_offset > last_entry[each.queue]:
                known = ends.get(topic, {}).get(str(queue_id), 0) > each.queue_offset
                known |= each.physical_offset >= dispatched
                found[each.queue] = found.get(each.queue, False) or known
        return {queue for queue, known in found.items() if not known}

    def _has(self, batch: dict[str, Any]) -> bool:
        """Whether the log has the last message of a batch of the ledger."""
        start, size = batch["last_offset"], batch["last_size"]
        for path in self.log_files():
            if 0 <= start - int(path.name) < path.stat().st_size:
                data = path.read_bytes()[start - int(path.name) :][:size]
                return crc32(data) == batch["last_crc"]
        return False

    def ledger(self) -> dict[str, Any]:
        path = self.root / ".rmqlog/ledger.json"
        return json.loads(path.read_text()) if path.exists() else {}

    def refresh(self) -> None:
        """Notes what a full check of the store has to find."""
        look(self.root, self.truth)
        self.truth.differences += self.wrong
        if not (self.root / "config/topics.json").exists():
            self.truth.differences.append("topics.json is lost")
        self.truth.is_crashed = (self.root / "abort").exists()
        if self.truth.is_crashed and self._has_half_entries():
            self.truth.differences.append("half of an entry behind the log's end is left")

    def _has_half_entries(self) -> bool:
        """Whether a recovery was killed while it wrote zeros over an entry behind the log's end."""
        known, end = {each.place for each in self.truth.messages}, self.log_end()
        entries = entries_of(self.root, lost=False)
        return any(place not in known and at < end for place, (at, _) in entries.items())

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
        rows = self._rows_of(messages)
        return -1 if rows is None else len(rows)

    def _rows_of(self, messages: Sequence[Message]) -> list[Row] | None:
        answer = batch_read(self.root, self.truth, skips=True)
        bodies = {digest(message.body) for message in messages}
        return None if answer.rows is None else [row for row in answer.rows.elements() if row[3] in bodies]

    def settle(self, killed: Sequence[Message], end: int) -> int:
        """Adds the messages of a commit that was killed and completed since, if it was; returns how many a
        batch read has. `end` is that of the log before the commit, which may have cut damage there.
        """
        rows = self._rows_of(killed)
        if rows is None or len(rows) != len(killed):
            return -1 if rows is None else len(rows)
        queues: dict[QueueKey, tuple[int, int]] = {}
        for topic, queue_id, offset, _ in sorted(rows, reverse=True):
            queues[topic, queue_id] = (offset, 0)
        for queue, (start, _) in queues.items():
            assert start >= self.truth.next_offset(queue), f"{queue} goes on at {start}"
        starts = [
            int(path.name) + at - BODY_AT
            for path in self.log_files()
            for at in (path.read_bytes().find(message.body) for message in killed)
            if at >= 0
        ]
        self.truth.appended(self.root, killed, CommitResult(True, min([end, *starts]), queues=queues))
        return len(rows)

    def broker_appends(self, messages: Sequence[Message]) -> Answer:
        """A broker appends messages and is stopped in order: nothing in .rmqlog tells of them."""
        own, before = self.root / ".rmqlog", self.place / "own"
        shutil.copytree(own, before)
        answer = self.write(messages)
        shutil.rmtree(own)
        before.rename(own)
        return answer

    def broker_opens(self) -> None:
        """A broker starts on a store that was stopped in order, and is stopped in order.

        It looks for the end of each queue in its last three files: at the first entry that is none, it ends
        the queue there and deletes later files (ConsumeQueue.recover). Then it dispatches the messages behind
        the last one that any queue has (DefaultMessageStore.start).
        A queue that lost its files begins again with the first message that it dispatches, behind pre-blank
        entries.
        """
        dispatched, ends = 0, dict[QueueKey, int]()
        for directory in sorted((self.root / "consumequeue").glob("*/*")):
            files = sorted(directory.iterdir())
            end = 0
            for number, path in enumerate(files):
                if number < len(files) - 3:
                    continue
                units = np.frombuffer(path.read_bytes(), ENTRY)
                valid = (units["physical_offset"] >= 0) & (units["size"] > 0)
                count = len(units) if valid.all() else int(np.argmin(valid))
                end = int(path.name) // ENTRY_SIZE + count
                if count:
                    last = units[count - 1]
                    dispatched = max(dispatched, int(last["physical_offset"]) + int(last["size"]))
                if count < len(units):
                    for later in files[number + 1 :]:
                        later.unlink()
                    break
            ends[directory.parent.name, int(directory.name)] = end
        for each in self.truth.of(Fate.KEPT):
            end = ends.get(each.queue, each.queue_offset)
            if each.physical_offset >= dispatched and each.queue_offset == end:
                first = end if each.queue in ends else end - end % (QUEUE_FILE_SIZE // ENTRY_SIZE)
                for blank in range(first, end):  # ConsumeQueue.fillPreBlank
                    self._write_entry(each.queue, blank, oracle.pre_blank_cq_unit())
                unit = next(unit for unit in messages_of(self.root) if unit.body == each.body)
                entry = oracle.cq_unit(each.physical_offset, each.size, oracle.tags_code(unit))
                self._write_entry(each.queue, each.queue_offset, entry)
                ends[each.queue] = each.queue_offset + 1
        self.refresh()

    def broker_writes(
        self, messages: Sequence[Message], *, queued: int, torn: bool, unwritten: int = 0
    ) -> None:
        """A broker appends messages and is killed: the first `queued` of them are in queues, and with `torn`
        only half of the last one is in the commitlog. Of the last `unwritten`, no byte is: the machine lost
        power before they were flushed (ASYNC_FLUSH), but after the broker had made their file. It gives
        offsets that a recovery has given up again: it knows only the entries of its queues.
        """
        end = max(each.physical_offset + each.total_size for each in messages_of(self.root))
        written = len(messages) - unwritten
        self.now_ms += 1000
        next_offsets: dict[QueueKey, int] = {}
        for topic, queue_id, offset in sorted(entries_of(self.root)):
            next_offsets[topic, queue_id] = offset + 1
        for number, message in enumerate(messages):
            queue = (message.topic, message.queue_id)
            offset = next_offsets.get(queue, self.truth.next_offset(queue))
            rest = LOG_FILE_SIZE - end % LOG_FILE_SIZE
            if message.total_size + 8 > rest:
                if number < written:
                    self._write_file("commitlog", LOG_FILE_SIZE, end, oracle.blank(rest))
                end += rest
                self._write_file("commitlog", LOG_FILE_SIZE, end, b"")
            placed = replace(message, queue_offset=offset, physical_offset=end, store_timestamp=self.now_ms)
            unit = oracle.encode_message(placed)
            is_torn = torn and number == written - 1
            data = unit[: len(unit) // 2] if is_torn else unit
            if number < written:
                self._write_file("commitlog", LOG_FILE_SIZE, end, data)
            if number < queued:
                self._write_entry(queue, offset, oracle.cq_unit(end, len(unit), oracle.tags_code(placed)))
            if number < written and not is_torn:
                self.truth.add(Stored(*queue, offset, end, len(unit), message.body, keys_of(message)))
            elif number < queued or (is_torn and len(data) >= _HEAD_SIZE):  # the head shows the message
                self.truth.vanished += 1
            next_offsets[queue] = offset + 1
            end += len(unit)
        (self.root / "abort").write_text("4711")
        (self.root / "lock").write_text("lock")  # as each broker that starts
        self.refresh()

    def _write_entry(self, queue: QueueKey, offset: int, entry: bytes) -> None:
        directory = f"consumequeue/{queue[0]}/{queue[1]}"
        self._write_file(directory, QUEUE_FILE_SIZE, offset * ENTRY_SIZE, entry)

    def _write_file(self, directory: str, size: int, position: int, data: bytes) -> None:
        path = self.root / directory / oracle.file_name(position - position % size)
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(bytes(size))
        overwrite(path, position % size, data)

    def flip_body(self, message: Stored) -> None:
        """Flips a bit of a body, which a checksum protects."""
        self.flip(message, BODY_AT)

    def flip(self, message: Stored, at: int, bit: int = 5) -> None:
        """Flips a bit of a message; `at` counts from its first byte. Fields that nothing protects may change
        without harm to what the referee compares.
        """
        path = max(path for path in self.log_files() if int(path.name) <= message.physical_offset)
        position = message.physical_offset - int(path.name) + at
        overwrite(path, position, bytes([path.read_bytes()[position] ^ 1 << bit]))
        if at not in UNPROTECTED:
            self.truth.set(Fate.DAMAGED, lambda each: each is message)
        self.refresh()

    def retain(self, count: int) -> None:
        """Deletes the first log files, as retention does."""
        for path in self.log_files()[:count]:
            path.unlink()
        self.forget_expired()

    def forget_expired(self) -> None:
        """The messages before the log's first file are expired."""
        first = int(self.log_files()[0].name)
        expired = [each for each in self.truth.messages if each.physical_offset < first]
        self.truth.fates.update(dict.fromkeys(expired, Fate.EXPIRED))

    def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.truth.committed[group, topic, queue_id] = offset
        write_committed(self.root, self.truth)


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
    world = World(root, truth_of_golden(name, root), place, settings=settings_from(goldens.config(name)))
    end = world.log_end()
    world.truth.vanished = sum(physical >= end for physical, _ in entries_of(root).values())
    return world


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

"""What is right about a store: a list of every message that it was given, and what became of each."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any

from store_format.commit.append import CommitResult
from store_format.names import is_light_queue
from tests.support import goldens
from tests.support.oracle import Message
from tests.support.staged import messages_of

QueueKey = tuple[str, int]
Row = tuple[str, int, int, str]  # topic, queue id, queue offset, digest of the body

_HEAD = 88  # bytes before the body of a message with IPv4 hosts


class Fate(Enum):
    """What became of a message."""

    KEPT = "kept"  # a reader returns it
    EXPIRED = "expired"  # deleted by retention
    DELETED = "deleted"  # its topic was deleted
    DAMAGED = "damaged"  # bytes of it are wrong
    LOST = "lost"  # bytes of it are gone
    GIVEN_UP = "given up"  # lost, and a recovery has said so
    UNKNOWN = "unknown"  # no evidence says whether its topic was deleted or its queue was lost


@dataclass(frozen=True, eq=False)
class Stored:
    """A message as the store was given it; it equals itself alone. One that is in no queue has the queue
    offset -1.
    """

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size: int
    body: bytes
    keys: tuple[str, ...] = ()
    is_plain: bool = True  # False: a light queue's, or a part of an inner batch

    @cached_property
    def queue(self) -> QueueKey:
        return self.topic, self.queue_id

    @cached_property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue_id, self.queue_offset

    @cached_property
    def row(self) -> Row:
        return self.topic, self.queue_id, self.queue_offset, digest(self.body)

    @property
    def physical_stop(self) -> int:
        return self.physical_offset + self.size


def digest(body: bytes) -> str:
    return hashlib.blake2b(body, digest_size=6).hexdigest()


@dataclass
class Truth:
    """All messages of a store. Operations on the store change their fates."""

    messages: list[Stored] = field(default_factory=list)
    fates: dict[Stored, Fate] = field(default_factory=dict)
    next_offsets: dict[QueueKey, int] = field(default_factory=dict)
    committed: dict[tuple[str, str, int], int] = field(default_factory=dict)  # (group, topic, queue id)
    differences: list[str] = field(default_factory=list)  # what a full check of the store has to find
    unnamed: frozenset[Row] = frozenset()  # lost messages without an entry: nothing tells how many there were
    # those without an index entry, of which nothing tells the keys: a recovery has made the index again
    unindexed: frozenset[Row] = frozenset()
    vanished: int = 0  # queue offsets that were given to messages of which nothing is left
    is_crashed: bool = False
    is_log_missing: bool = False  # the commitlog's disk is not mounted
    begins_by_hand: int | None = None  # the log's first byte, if it was not retention that deleted files

    # ---- what is right ------------------------------------------------------------------------------------

    def of(self, *fates: Fate) -> list[Stored]:
        """The messages of these fates that are in a queue."""
        return [each for each in self.messages if self.fates[each] in fates and each.queue_offset >= 0]

    @property
    def rows(self) -> Counter[Row]:
        """The rows that a reader of all queues returns."""
        return Counter(each.row for each in self.of(Fate.KEPT))

    @property
    def lost(self) -> list[Stored]:
        """The messages that nobody can read any more."""
        return self.of(Fate.DAMAGED, Fate.LOST)

    @property
    def units(self) -> int:
        """How many messages of the commitlog a read with default options returns."""
        mine = [each for each in self.of(Fate.KEPT) if not is_light_queue(each.topic)]
        return len({(each.physical_offset, each.queue_offset) for each in mine})

    def fate_at(self, topic: str, queue_id: int, queue_offset: int) -> Fate | None:
        """The fate of the newest message that was given this place."""
        place = (topic, queue_id, queue_offset)
        there = [self.fates[each] for each in self.messages if each.place == place]
        return there[-1] if there else None

    def next_offset(self, queue: QueueKey) -> int:
        """The least queue offset that a writer may give to the next message of a queue."""
        committed = [at for (_, *name), at in self.committed.items() if tuple(name) == queue]
        return max([self.next_offsets.get(queue, 0), *committed])

    def copy(self) -> Truth:
        return replace(
            self,
            messages=self.messages.copy(),
            fates=self.fates.copy(),
            next_offsets=self.next_offsets.copy(),
            committed=self.committed.copy(),
            differences=self.differences.copy(),
        )

    # ---- operations ---------------------------------------------------------------------------------------

    def add(self, message: Stored) -> None:
        self.messages.append(message)
        self.fates[message] = Fate.KEPT
        if message.queue_offset >= 0:
            end = max(self.next_offsets.get(message.queue, 0), message.queue_offset + 1)
            self.next_offsets[message.queue] = end

    def appended(self, root: Path, messages: Sequence[Message], result: CommitResult) -> None:
        """Adds messages that a commit has written: each body is unique, which shows where it stands. Lost
        messages behind its start are given up.
        """
        self.give_up(lambda each: each.physical_offset >= result.start)
        files = {int(path.name): path.read_bytes() for path in (root / "commitlog").iterdir()}
        offsets = {queue: start for queue, (start, _) in result.queues.items()}
        for message in messages:
            queue = (message.topic, message.queue_id)
            where = [(first, data.find(message.body) - _HEAD) for first, data in sorted(files.items())]
            first, at = next((first, at) for first, at in where if at >= 0 and first + at >= result.start)
            size = int.from_bytes(files[first][at : at + 4], "big")
            self.add(Stored(*queue, offsets[queue], first + at, size, message.body, keys_of(message)))
            offsets[queue] += 1

    def set(self, fate: Fate, chosen: Callable[[Stored], bool]) -> int:
        """Gives a fate to the chosen messages that were kept; returns how many there are."""
        found = [each for each in self.messages if self.fates[each] is Fate.KEPT and chosen(each)]
        self.fates.update(dict.fromkeys(found, fate))
        return len(found)

    def ask_about(self, chosen: Callable[[Stored], bool], what: str) -> None:
        """Nothing on disk says whether the topic of the chosen messages was deleted or their queue lost."""
        if self.set(Fate.UNKNOWN, chosen):
            self.differences.append(what)

    def lose_bytes(self, start: int, stop: int, what: str, fate: Fate = Fate.LOST) -> None:
        """Physical offsets [start, stop) are gone, or DAMAGED. Nobody asks for those of deleted topics."""

        def is_there(each: Stored) -> bool:
            return each.physical_offset < stop and each.physical_stop > start

        self.messages = [
            each for each in self.messages if self.fates[each] is not Fate.DELETED or not is_there(each)
        ]
        if self.set(fate, is_there):
            self.differences.append(what)

    def give_up(self, chosen: Callable[[Stored], bool] = lambda each: True) -> None:
        """A recovery has said that the chosen messages are lost."""
        self.fates.update(dict.fromkeys(filter(chosen, self.lost), Fate.GIVEN_UP))

    def cut(self, end: int) -> None:
        """The commitlog was cut at `end`, and so were queues; the offsets behind it stay given."""
        given_up = [each for each in self.of(Fate.GIVEN_UP) if each.physical_offset >= end]
        self.vanished += len(self.lost) + len(given_up)
        self.messages = [each for each in self.messages if each.physical_offset < end]

    def delete_topic(self, topic: str) -> None:
        self.set(Fate.DELETED, lambda each: each.topic == topic)
        for queue in [queue for queue in self.next_offsets if queue[0] == topic]:
            del self.next_offsets[queue]
        for place in [place for place in self.committed if place[1] == topic]:
            del self.committed[place]


def keys_of(message: Message) -> tuple[str, ...]:
    """The words that `find` finds the message by."""
    properties = message.properties
    words = [word for word in properties.get("KEYS", "").split(" ") if word]
    return tuple(dict.fromkeys([*words, *filter(None, [properties.get("UNIQ_KEY")])]))


# ---- stores of real brokers ------------------------------------------------------------------------------


def truth_of_golden(name: str, root: Path, broker: str = "") -> Truth:
    """What the broker's classes returned, and the messages of the commitlog that are in no queue.

    `broker` is the one of a cluster whose store this is.
    """
    answers = goldens.brokers(name, root)[broker][1]
    truth = Truth(is_crashed=(root / "abort").exists())
    for row in goldens.expected_rows(name):
        if row.get("brokerName", "") == broker:
            truth.add(_stored(row))
    queued = {each.physical_offset for each in truth.messages}
    for unit in messages_of(root):
        if unit.physical_offset not in queued:
            truth.add(Stored(unit.topic, unit.queue_id, -1, unit.physical_offset, unit.total_size, unit.body))
    for queue in answers["queues"]:
        truth.next_offsets[queue["topic"], queue["queueId"]] = queue["maxOffset"]
    truth.committed = committed_in((answers["consumerOffset"] or {}).get("offsetTable", {}))
    return truth


def _stored(row: dict[str, Any]) -> Stored:
    properties = row["properties"]
    words = [word for word in properties.get("KEYS", "").split(" ") if word]
    keys = dict.fromkeys([*words, *filter(None, [properties.get("UNIQ_KEY")])])
    return Stored(
        row["topic"], row["queueId"], row["queueOffset"], row["physicalOffset"], row["storeSize"],
        base64.b64decode(row["body"]), tuple(keys), is_plain=not {"storedTopic", "batchNum"} & row.keys(),
    )  # fmt: skip


def committed_in(offsets: Mapping[str, Mapping[str, int]]) -> dict[tuple[str, str, int], int]:
    """The offsetTable of consumerOffset.json as (group, topic, queue id) -> offset."""
    found: dict[tuple[str, str, int], int] = {}
    for name, of_queues in offsets.items():
        topic, _, group = name.partition("@")
        found |= {(group, topic, int(queue)): offset for queue, offset in of_queues.items()}
    return found


def write_committed(root: Path, truth: Truth) -> None:
    """Writes the committed offsets as a 5.x broker does."""
    table: dict[str, dict[str, int]] = {}
    for (group, topic, queue_id), offset in truth.committed.items():
        table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = offset
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000}
    text = json.dumps({"dataVersion": version, "offsetTable": table})
    (root / "config/consumerOffset.json").write_text(text)


def ranges(messages: Iterable[Stored]) -> list[tuple[str, int, int, int]]:
    """(topic, queue id, first offset, stop) of each run of messages of one queue."""
    found: list[tuple[str, int, int, int]] = []
    for topic, queue_id, offset in sorted((m.topic, m.queue_id, m.queue_offset) for m in messages):
        if found and found[-1][:2] == (topic, queue_id) and found[-1][3] == offset:
            found[-1] = (*found[-1][:3], offset + 1)
        else:
            found.append((topic, queue_id, offset, offset + 1))
    return found

"""What became of messages that no consume queue file shows, and at which offsets their queues go on.

No queue offset is given a second time while a topic lives. So a queue that lacks its newest entries, or all
its files, goes on at the end that other files of the store know (`Fates.known_ends`, `Fates.past_queues`).

`Fates.decide` is the only place that decides the fate of the messages: the first rule that applies counts.
`read`, `commit` and `diagnose` ask it. What nothing shows is asked for (`Fates.question`), never guessed.

A broker removes a deleted topic from topics.json and removes its consume queues. The messages stay in the
commitlog until retention deletes them, and no consumer gets them. A broker that recovers after a crash makes
consume queues again for those of them that it scans: of one store, 5.5.0 made a queue with 1 of 30 messages,
and 4.9.7 one with all 30. But topics.json still lacks the topic, so that a client finds no route to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import cache, lru_cache
from typing import Literal, NamedTuple

import numpy as np

from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.ledger import GivenUp, Ledger
from store_format.commitlog.log import CommitLog
from store_format.consumequeue.dispatch import Filing, find_entries
from store_format.consumequeue.files import FOLDERS, can_be_queue, has_rocksdb_queues
from store_format.consumequeue.units import FiledQueue, list_queues, stored_bounds
from store_format.display.text import first_names, shown
from store_format.errors import CorruptStoreError, OptionError, StoreError
from store_format.files.read import files_at
from store_format.layouts import OFFSET_MAX
from store_format.message.locate import locate
from store_format.metadata.group_offsets import read_broker_offsets, read_committed
from store_format.metadata.read import (
    config_path,
    known_topics,
    read_subscription_groups,
    read_topics,
)
from store_format.names import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    REVIVE_GROUP,
    QueueKey,
    is_light_queue,
    is_system_topic,
)
from store_format.opened.store import Opened
from store_format.survey.scan import LogQueue

Unfiled = Literal["read", "skip"]

# where a broker keeps its topics instead of topics.json, which may be left from before
_ROCKSDB_CONFIG = ("topics", "metadata", "rdb")
_BESIDE_TOPICS = frozenset(
    {
        *("topics.json", "topics.json.bak", "subscriptionGroup.json", "consumerOffset.json"),
        *("delayOffset.json", "ledger.json"),
    }
)
_OF_GROUPS = (RETRY_PREFIX, DLQ_PREFIX)
_TAIL_SIZE = 16 << 20  # of the log behind the newest entry of all queues


# ---- queue ends that other files know ----------------------------------------------------------------------


class KnownEnd(NamedTuple):
    """The queue has had messages up to the queue offset before `offset`; `evidence` is a clause that says
    which file shows it.
    """

    offset: int
    evidence: str


# ---- the fate of messages ----------------------------------------------------------------------------------


class Fate(Enum):
    """What became of the messages of a queue that no consume queue file shows."""

    DELETED = "deleted"  # with their topic: nobody reads them
    LOST = "lost"  # their entries were: a reader reads them from the commitlog, a writer rebuilds the queue
    WAITING = "waiting"  # for a running broker, which dispatches them soon
    UNKNOWN = "unknown"  # asked for: `unfiledQueues`


class FateDecision(NamedTuple):
    """A fate, and the evidence that decided it, as a part of a sentence."""

    fate: Fate
    evidence: str

    @property
    def is_without_topic(self) -> bool:
        """Whether topics.json does not have the topic, so that clients find no route to the messages."""
        return self == _DELETED


_DELETED = FateDecision(Fate.DELETED, "the topic was deleted: topics.json does not have it")
_AGAIN = FateDecision(Fate.DELETED, "the topic was deleted and created again after these messages")
_WAITING = FateDecision(Fate.WAITING, "the running broker has not dispatched these messages yet")
_SYSTEM = FateDecision(Fate.LOST, "a broker does not delete the topic")
_COMMITTED = FateDecision(
    Fate.LOST, "the ledger has a commit that created the topic, and topics.json is from before this commit"
)
_SIBLING = FateDecision(Fate.LOST, "another queue of the topic has an earlier message")
_NOT_FILED = FateDecision(Fate.LOST, "the broker was killed before it filed these messages")
_UNKNOWN = FateDecision(
    Fate.UNKNOWN,
    "the store does not show whether the queue was lost, or its topic deleted and created again",
)


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of messages that no consume queue file shows, and where queues end by other files."""

    opened: Opened
    log: CommitLog

    def last_commit_ends(self, log_end: int = OFFSET_MAX) -> Mapping[QueueKey, int]:
        """The ends of the queues of our last commit, by the ledger.

        Empty if the log ends before the commit, if a broker has cut it since, and if the ledger cannot be
        read. A topic that was deleted and created again since begins at 0: its entries point behind the
        commit.
        """
        try:
            ledger = known_ledger(self.opened)
            last = ledger.last
            if last is None or not ledger.ends or last.stop > log_end or last.damage(self.log) is not None:
                return {}
        except (StoreError, OSError):  # who needs the file raises the error
            return {}
        return ledger.ends

    def committed_ends(self) -> dict[QueueKey, KnownEnd]:
        """What the groups have committed in the queues of the topics of topics.json.

        Counts for a queue without files only: a broker that has cut messages keeps their offsets. Only a 5.x
        broker removes the offsets of a topic that is deleted; consumerOffset.json of such a broker has a
        `dataVersion`. Empty otherwise, and for files that cannot be read.
        """
        places = (config_path(self.opened, name) for name in ("consumerOffset.json", "topics.json"))
        return dict(_committed_ends(self.opened, tuple(map(self.opened.files.stat_identity, places))))

    def known_ends(self) -> dict[QueueKey, KnownEnd]:
        """The greater of both ends of each queue, and the file that shows it: for a queue without files."""
        found = self.committed_ends()
        for key, end in self.last_commit_ends().items():
            if key not in found or found[key].offset < end:
                ledger = f"the last commit of {self.opened}/.rmqlog/ledger.json"
                found[key] = KnownEnd(end, f"{ledger} ends {_name(key)} at offset {end}")
        return found

    def decide(
        self, keys: Collection[QueueKey], seen: Mapping[QueueKey, LogQueue], dispatched: int = OFFSET_MAX
    ) -> dict[QueueKey, FateDecision]:
        """The fate of the newest messages of each queue of `keys`, which have no consume queue file.

        `seen` are the queues of the same topics, at least `keys`, as the `log` or a part of it shows them. A
        running broker has dispatched the messages before the physical offset `dispatched`. Of a queue whose
        offsets began at 0 again, the earlier messages are deleted.
        """
        topics, found, open_keys = StoredTopics(self.opened), dict[QueueKey, FateDecision](), list[QueueKey]()
        deleted = topics.deleted_until()
        for key in keys:
            if seen[key].epochs[-1][0] >= dispatched:
                found[key] = _WAITING
            elif topics.is_of_system(key[0]):
                found[key] = _SYSTEM
            elif seen[key].last < deleted(key[0]):
                found[key] = _DELETED
            else:
                open_keys.append(key)
        if not open_keys:
            return found
        kept = topics.kept()
        if not topics.has_queue_files:
            fate = self._if_none_filed()
            return found | {key: _COMMITTED if key[0] in kept else fate for key in open_keys}
        begins = _begins(
            self.opened, {topic for topic, _ in open_keys}.__contains__, seen, self.log.min_offset
        )
        known, filed_stop = self.committed_ends(), cache(self._filed_stop)
        for key in open_keys:
            queues = {other: queue for other, queue in seen.items() if other[0] == key[0]}
            alive = {other: begin for other, begin in begins.items() if other[0] == key[0]}
            if _is_left_over(key, queues, alive):
                found[key] = _AGAIN
                continue
            alive |= {
                each: _begin(queues.get(each)) for each in known.keys() - alive.keys() if each[0] == key[0]
            }
            if key in known:
                found[key] = FateDecision(Fate.LOST, known[key].evidence)
            elif key[0] in kept:
                found[key] = _COMMITTED
            elif any(begin < seen[key].last for begin in alive.values()):
                found[key] = _SIBLING
            elif seen[key].epochs[-1][0] >= filed_stop():
                found[key] = _NOT_FILED
            else:
                found[key] = _UNKNOWN
        return found

    def _if_none_filed(self) -> FateDecision:
        """The fate of the queues of a store of which no queue has a file. A broker that starts builds all of
        them from the log: it dispatches the messages behind the newest one of all queues
        (CommitLog.recoverNormally, DefaultMessageStore.recover). But deleting the last topic leaves an empty
        directory, too.
        """
        if has_rocksdb_queues(self.opened):
            return FateDecision(Fate.LOST, "RocksDB keeps the consume queues")
        # On object storage no directory is empty.
        if not self.opened.files.is_directory(f"{self.opened.path}/{FOLDERS['simple']}"):
            return FateDecision(
                Fate.LOST, "the store has no consume queue directory, which no broker deletes"
            )
        known = self.committed_ends()
        return FateDecision(Fate.LOST, known[min(known)].evidence) if known else _UNKNOWN

    def _filed_stop(self) -> int:
        """The physical offset behind the newest entry of all queues, if the messages behind it include the
        next one of a queue with files: the broker was killed before it filed them. Else OFFSET_MAX.
        """
        queues = []
        with suppress(StoreError):  # who needs the directory raises the error
            every = stored_bounds(self.opened, self.log.min_offset, refused=lambda _: None)
            queues = [queue for queue in every if queue.has_entries]
        ends, stop = Filing.behind(queues).ends, max(Filing.behind(queues).start - 1, self.log.min_offset)
        for run in self.log.runs(stop, stop + _TAIL_SIZE):
            found = find_entries(locate(self.log.refs_of(run), verify_crc=False)[0])
            for first in np.unique(found.key, return_index=True)[1].tolist():
                if ends.get(found.keys[found.key[first]], (-1, -1))[0] == found.offset[first]:
                    return stop
        return OFFSET_MAX

    def question(self, queues: Mapping[QueueKey, LogQueue], *, is_part: bool = False) -> OptionError:
        """The error about queues of UNKNOWN fate: it asks which of the two things happened.

        With `is_part`, only a part of the commitlog was read.
        """
        count = sum(queue.max_offset - queue.min_offset for queue in queues.values())
        (topic, queue_id), more = min(queues), "at least " if is_part else ""
        topics = sorted({topic for topic, _ in queues})
        names = f"topic {topic} was" if len(topics) == 1 else f"the topics {first_names(topics)} were"
        return OptionError(
            f"{self.opened}: {more}{count:,} messages of {len(queues)} queues (the first is "
            f"{topic}-{queue_id}) are in the commitlog and in no consume queue, and the store does not show "
            f"why. If {names} deleted and created again, set unfiledQueues=skip: the messages stay deleted. "
            "If the directories of the consume queues were lost, set unfiledQueues=read, or restore the "
            "directories from a backup: the messages are read, and a write gives them their queue offsets "
            "back. (In Python unfiled_queues, in commands --unfiled-queues.)"
        )

    def past_queues(
        self, log_begin: int, seen: Container[QueueKey], *, is_copied: bool = False
    ) -> dict[QueueKey, KnownEnd]:
        """The ends of the simple queues without files that have had messages, of which the log has none
        (`seen`: those of which it has one). With `is_copied`, of a copy of the store without queues.

        Retention has deleted the messages before `log_begin`, the first physical offset of the log, and the
        files were lost. The next message must not get offset 0: groups would not see it.
        """
        known: dict[QueueKey, KnownEnd] = {}
        if log_begin:  # else nothing was deleted, and a group may commit any number
            known = {
                key: end
                for key, end in self.committed_ends().items()
                if key not in seen and can_be_queue(*key)
            }
        topics = {topic for topic, _ in known}
        select = (lambda topic: True) if is_copied else topics.__contains__
        for queue in StoredTopics(self.opened).filed_queues(select) if is_copied or topics else ():
            if not is_copied:
                known.pop(queue.key, None)
                continue
            bounds = None
            if queue.kind == "simple" and queue.key not in seen:
                with suppress(StoreError):
                    bounds = queue.bounds(log_begin)
            if bounds is not None and bounds.max_offset:
                end = bounds.max_offset
                known[queue.key] = KnownEnd(
                    end, f"{queue.directory} ends at offset {end}, without a message left"
                )
        return known


def known_ledger(opened: Opened) -> Ledger:
    """`Ledger.read`, at the cost of one stat while the file stays as it is."""
    identity = opened.files.stat_identity(Ledger.path(opened))
    return Ledger() if identity is None else _ledger_of(opened, identity)


@lru_cache(maxsize=8)
def _ledger_of(opened: Opened, identity: object) -> Ledger:
    """The ledger of many queues takes milliseconds to read."""
    return Ledger.read(opened)


@lru_cache(maxsize=8)
def _committed_ends(opened: Opened, identity: object) -> Mapping[QueueKey, KnownEnd]:
    """They are read once for each state of their files."""
    try:
        name, offsets = read_broker_offsets(opened)
        if offsets is None or offsets.data_version is None:
            return {}
        committed, topics = read_committed(opened), known_topics(opened)
    except StoreError:  # who needs the files raises the error
        return {}
    found: dict[QueueKey, KnownEnd] = {}
    for (group, topic), table in committed.offsets.items():
        if group == REVIVE_GROUP or topics is None or topic not in topics:
            continue
        for queue_id, offset in table.items():
            key = (topic, queue_id)
            if offset > (found[key].offset if key in found else 0):
                clause = f"group {shown(group)} has committed offset {offset} of {_name(key)}"
                found[key] = KnownEnd(offset, f"{clause} in {opened.path}/config/{name}")
    return found


def _name(key: QueueKey) -> str:
    return f"{shown(key[0])}-{key[1]}"


def _begins(
    opened: Opened, select: Callable[[str], bool], seen: Mapping[QueueKey, LogQueue], log_min: int
) -> dict[QueueKey, int]:
    """The physical offset of the first message of each queue with files, -1 before the log's first byte.

    Without the queues whose files show no entry.
    """
    begins, noted = dict[QueueKey, int](), GivenUp.known(opened).queue_begins
    for queue in StoredTopics(opened).filed_queues(select):
        key, bounds = queue.key, None
        with suppress(StoreError):
            bounds = queue.bounds(log_min)
        if key in noted:
            begins[key] = noted[key]
        elif bounds is None or (bounds.min_offset and key in seen):
            begins[key] = _begin(seen.get(key))
        elif bounds.max_offset:
            begins[key] = -1 if bounds.min_offset else bounds.first_physical_offset
    return begins


def _begin(queue: LogQueue | None) -> int:
    """The place where the queue's offsets last began at 0; -1 before the log's first byte."""
    return -1 if queue is None or queue.epochs[-1][1] else queue.epochs[-1][0]


def _is_left_over(key: QueueKey, queues: Mapping[QueueKey, LogQueue], begins: Mapping[QueueKey, int]) -> bool:
    """Whether the queue's messages are older than its topic, which was deleted and created again.

    The offsets of one of the topic's `queues` begin again. That is no new start of the topic, but of a queue
    that had lost its files or its last entries, if another queue of the topic continues across that place, or
    has files (`begins`) with older messages: deleting a topic removes the files of all its queues.
    """
    for other, queue in queues.items():
        last_old, again = queue.last_old, queue.epochs[-1][0]
        if len(queue.epochs) == 1 or (
            again != begins.get(other) and not any(low < 0 for low, *_ in queue.claims.left[:1])
        ):  # only its files can show where it began again
            again = begins.get(other, -1)
            last_old = queue.last if queue.last < again else queue.epochs[0][0]
        goes_on = any(begin <= last_old for begin in begins.values()) or any(
            one.epochs[-1][0] <= last_old and one.last > again
            for each, one in queues.items()
            if each not in begins
        )
        if queues[key].epochs[-1][0] <= last_old < again and not goes_on:
            return True
    return False


# ---- deleted topics, and those that topics.json has lost ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoredTopics:
    """The topics of a store, as topics.json, the ledger, and the files and names of queues show them."""

    opened: Opened

    def deleted_until(self) -> Callable[[str], int]:
        """A function of a topic: its messages before this physical offset belong to a deleted topic.

        0 if none do, and without topics.json. OFFSET_MAX if topics.json does not have the topic, and no
        directory of it is left, unless a commit created the topic and topics.json is older (`kept`). If only
        the `.bak` can be read, 0: topics that were created since are not in it either.
        While a commit is not complete that creates a topic, the earlier messages of the topic belong to a
        deleted one.
        """
        try:
            topics = known_topics(self.opened)
            journal = Journal.read(self.opened)
        except CorruptStoreError:  # who needs the file raises the error
            return lambda topic: 0
        if not topics or self.has_rocksdb_config:  # a broker's topics.json is never empty
            return lambda topic: 0
        created, noted = dict[str, int](), dict(GivenUp.known(self.opened).deleted)
        if journal is not None:
            continued = {
                topic for (topic, _), base in zip(journal.queues, journal.queue_bases, strict=True) if base
            }
            new = journal.new_topics.keys() - continued
            continued |= {
                each[0] for each in self.filed_queues(new.__contains__) if each[:2] not in journal.queues
            }
            created = dict.fromkeys(new - continued, journal.base)

        @cache
        def end(topic: str) -> int:
            if topic in created:
                return created[topic]
            if topic in topics or topics.is_backup or is_light_queue(topic) or self.is_of_system(topic):
                return noted.get(topic, -1) + 1
            return 0 if self.has_directory(topic) or topic in self.kept() else OFFSET_MAX

        return end

    @property
    def counter(self) -> int | None:
        """The counter of topics.json, which each change increments; None without it."""
        topics = read_topics(self.opened)
        return None if topics is None or topics.data_version is None else topics.data_version.counter

    def kept(self, *, listed: bool = False) -> set[str]:
        """The topics that commits created after this topics.json was written, as in a copy that was made
        during commits: its counter is lower than the ledger says. Empty for files that cannot be read: who
        needs them raises the error.

        With `listed` also the topics in topics.json, if commits account for each change of the file since:
        nobody has deleted the topic and created it again.
        """
        with suppress(StoreError, OSError):
            created = known_ledger(self.opened).created
            now = self.counter if created else None
            ours = {counter for _, counter in created.values()} if listed else set()
            return {
                topic
                for topic, (_, then) in created.items()
                if now is not None and all(counter in ours for counter in range(then, now + 1))
            }
        return set()

    def missing(self, topics: Container[str]) -> dict[str, int]:
        """The topics of commits that `topics`, those of topics.json, lack because it is older, with their
        numbers of queues.
        """
        with suppress(StoreError, OSError):  # who needs the file raises the error
            new = {
                name: number
                for name, (number, _) in known_ledger(self.opened).created.items()
                if name not in topics
            }
            kept = self.kept() if new else ()
            return {name: number for name, number in new.items() if name in kept}
        return {}

    def lost(self, named: Collection[QueueKey] = ()) -> dict[str, int]:
        """The topics of a store that has lost topics.json, with their numbers of queues; those of commits
        that topics.json lacks because it is older (`missing`).

        The directories of the simple consume queues show them, the queues that the log has `named`, and those
        of which a recovery has given up messages. A broker makes its own topics when it starts, and batch
        queues need attributes that no directory shows: both are left out, and the topics of a `.bak` that can
        be read. A store had topics.json if it has another file that a broker, or a commit, writes beside it.
        A file that cannot be read is lost; a topic that a readable file lacks was deleted.
        """
        names = {
            *self.opened.files.names(f"{self.opened.path}/config", missing_ok=True),
            *self.opened.files.names(f"{self.opened.path}/.rmqlog", missing_ok=True),
        }
        if names.isdisjoint(_BESIDE_TOPICS) or self.has_rocksdb_config:
            return {}
        known = known_topics(self.opened)
        missing = self.missing(known) if known else {}
        if known and not known.is_backup:
            return missing
        numbers = missing | self.shown_numbers(named)
        return {topic: number for topic, number in numbers.items() if topic not in (known or ())}

    def short(self, named: Collection[QueueKey], topics: Collection[str] | None = None) -> dict[str, int]:
        """The topics of a `.bak`, where only that can be read, of which clients do not read all queues, with
        their numbers of queues, as `lost` finds them: their readQueueNums is of an earlier moment. In a
        readable topics.json somebody may have lowered it: then only of `topics`, which the user named.
        """
        known = read_topics(self.opened)
        if not known or self.has_rocksdb_config or not (known.is_backup or topics):
            return {}
        return {
            topic: number
            for topic, number in self.shown_numbers(named).items()
            if topic in known
            and (topics is None or topic in topics)
            and known[topic].read_queue_nums < number
        }

    def shown_numbers(self, named: Collection[QueueKey]) -> dict[str, int]:
        """The topics that files of queues, and these queues, show, with their numbers of queues."""
        numbers = self.numbers(self.needs_config)
        for topic, queue_id in {*named, *GivenUp.known(self.opened).ranges}:
            if self.needs_config(topic):
                numbers[topic] = max(numbers.get(topic, 0), queue_id + 1)
        return numbers

    @staticmethod
    def needs_config(topic: str) -> bool:
        """Whether clients find the topic through topics.json only: a broker makes its own when it starts."""
        return topic.startswith(_OF_GROUPS) or not (is_light_queue(topic) or is_system_topic(topic))

    def numbers(self, select: Callable[[str], bool]) -> dict[str, int]:
        """The selected topics whose simple queues have files, each with its highest queue id plus one."""
        numbers: dict[str, int] = {}
        for topic, queue_id, _, kind in self.filed_queues(select):
            if kind == "simple":
                numbers[topic] = max(numbers.get(topic, 0), queue_id + 1)
        return numbers

    @property
    def batch(self) -> frozenset[str]:
        """The topics whose queues are batch queues, by topics.json and by the files of queues."""
        configured = {
            name for name, each in (read_topics(self.opened) or {}).items() if each.queue_type == "BatchCQ"
        }
        listed = list_queues(self.opened, lambda _: True, lambda _: None)
        return frozenset(configured.union(topic for topic, _, _, kind in listed if kind == "batch"))

    @property
    def has_light_queues(self) -> bool:
        """Whether a broker with enableLmq has used the store, or its directory of consume queues is lost,
        which would show it. Without such a broker, the properties that name light queues are a producer's
        own.
        """
        if self.opened.files.exists(
            f"{self.opened.path}/config/lmqConsumerOffset.json"
        ) or not self.opened.files.is_directory(f"{self.opened.path}/{FOLDERS['simple']}"):
            return True
        with suppress(StoreError):  # who needs the directory raises the error
            names = self.opened.files.names(f"{self.opened.path}/consumequeue", missing_ok=True)
            return any(map(is_light_queue, names))
        return False

    @property
    def has_queue_files(self) -> bool:
        """Whether any simple consume queue has a file that is not empty; batch queues do not count."""
        return any(queue.kind == "simple" for queue in self.filed_queues(lambda topic: True))

    def filed_queues(self, select: Callable[[str], bool]) -> Iterator[FiledQueue]:
        """The selected queues that have a file that is not empty, or files that cannot be listed."""
        with suppress(StoreError):  # who needs the directory raises the error
            for found in list_queues(self.opened, select, lambda error: None):
                try:
                    is_filed = any(
                        file.size for file in files_at(found.directory).store_files(found.directory)
                    )
                except StoreError:
                    is_filed = True
                if is_filed:
                    yield found

    @property
    def has_rocksdb_config(self) -> bool:
        return any(
            self.opened.files.exists(f"{self.opened.path}/config/{name}/CURRENT") for name in _ROCKSDB_CONFIG
        )

    def is_of_system(self, topic: str) -> bool:
        """Whether a broker creates the topic again when it needs it: its messages wait for the broker."""
        for prefix in _OF_GROUPS:
            if topic.startswith(prefix):
                name = topic.removeprefix(prefix)
                try:
                    groups = read_subscription_groups(self.opened)
                except CorruptStoreError:
                    return True
                # the topic of popped messages has the name of another topic behind that of the group
                return groups is None or any(
                    name == group or name.startswith((f"{group}_", f"{group}+")) for group in groups
                )
        return is_system_topic(topic)

    def has_directory(self, topic: str) -> bool:
        """Whether anything is in a directory of the topic. A broker that deletes it leaves an empty one."""
        try:
            return can_be_queue(topic, 0) and any(
                self.opened.files.names(f"{self.opened.path}/{folder}/{topic}", missing_ok=True)
                for folder in FOLDERS.values()
            )
        except StoreError:  # it may not be listed
            return True

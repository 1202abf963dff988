"""The queues that a stream reads, in all its stores, as of the last look; and what it can no longer read.

A look that finds nothing new costs microseconds. Positions and planning use the same look, so a micro-batch
is planned from what was seen when its end was decided. A store that appears in the directory of a cluster
while a query runs is warned of.

Messages that retention deleted, offsets that went back and deleted queues are losses. With failOnDataLoss,
everything that one look finds is one error, with the sum of the messages. Without it, each loss is one
warning with the number of messages, logged once, and another one has their sum.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Collection, Iterator

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.stream_offset import MARK
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.starts import open_stores, reach_stores
from store_format import Queue
from store_format.consumequeue.files import FOLDERS
from store_format.display.text import shown
from store_format.errors import OffsetOutOfRangeError, StoreError
from store_format.files.paths import LOST_AND_FOUND
from store_format.files.read import files_at
from store_format.follow.follower import StoreFollower
from store_format.follow.log_tail import Replaced
from store_format.names import QueueKey
from store_format.read.choice import MessageChoice, QueueName
from store_format.read.store import Store, StoreQueues, find_queues
from store_format.read.store_root import cluster_members, has_config, looks_like_store

_log = logging.getLogger(__name__)


class StreamStores:
    """The chosen `queues` of all stores as of the last look. `version` counts the looks that found a change.

    `replaced` are queues that have other messages than before, until `StreamPositions` has dealt with them.
    `gone` are queues that a look did not find, until then.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.queues: dict[MessageQueue, Queue] = {}
        self.replaced: dict[MessageQueue, Replaced] = {}
        self.gone: set[MessageQueue] = set()
        self.version = 0
        # by broker and key, made once: looks find the same queues again and again
        self._names: defaultdict[str, dict[QueueKey, MessageQueue]] = defaultdict(dict)
        self._left_out: set[str] = set()
        self._followers: list[StoreFollower] | None = None
        self._newcomers: list[_Newcomers] = []
        self._unnamed: set[int] = set()  # places among the followers

    @property
    def followers(self) -> list[StoreFollower]:
        """One follower for each store. The first call opens the stores.

        A store or queue that the user must not read is an error also without failOnDataLoss: the checkpoint
        would lose its position.
        """
        if self._followers is None:
            reach_stores(self.options)
            self._newcomers = [_Newcomers(path) for path in self.options.paths]
            stores = open_stores(self.options, skip_unreadable=False)
            self._followers = [StoreFollower(store, self.options.choice) for store in stores]
            self._unnamed = {place for place, store in enumerate(stores) if not self._is_named(store)}
            for place in self._unnamed:
                _log.info(
                    "%s: waiting for the name of its broker: the store has no topics.json and no message yet",
                    stores[place].path,
                )
        return self._followers

    @property
    def waits_for_names(self) -> bool:
        """Whether the broker names of all stores are still unknown."""
        return len(self.followers) == len(self._unnamed)

    def _is_named(self, store: Store) -> bool:
        return self.options.broker_name is not None or has_config(store.opened)

    def _named(self, place: int) -> StoreFollower | None:
        """The follower of a store whose broker name was unknown, opened again with the name it has now.

        None while the store has neither a name nor a message. A broker writes topics.json with its first
        message; until then the name would be that of the directory, and would stay in the checkpoint for
        ever.
        """
        follower = self.followers[place]
        follower.look()
        if not self._is_named(follower.store) and not any(
            queue.max_offset for queue in follower.queues.values()
        ):
            return None
        (store,) = [
            each
            for each in open_stores(self.options, skip_unreadable=False)
            if each.path == follower.store.path
        ]
        self.followers[place] = StoreFollower(store, self.options.choice)
        self._unnamed.discard(place)
        return self.followers[place]

    @property
    def stores(self) -> list[Store]:
        return [follower.store for follower in self.followers]

    def chooses(self, key: MessageQueue) -> bool:
        """Whether the options choose the queue."""
        choice = self.options.choice
        return choice.chooses_topic(key.topic) and choice.chooses_queue(*key)

    def deleted_topics(self, names: Collection[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Those (topic, broker) pairs whose store has neither a configuration nor a consume queue of the
        topic.

        A store without any topic proves no deletion: its disk may not be mounted.
        """
        deleted: set[tuple[str, str]] = set()
        for store in self.stores if names else ():
            known = store.configured_topics() | _with_directories(store.path)
            deleted |= {
                name for name in names if name[1] == store.broker_name and known and name[0] not in known
            }
        return frozenset(deleted)

    def find_unchosen(self, keys: Collection[MessageQueue]) -> Iterator[tuple[Store, StoreQueues]]:
        """Queues that the options do not choose now, by store: a batch of an earlier run may contain them."""
        for store in self.stores if keys else ():
            mine = tuple(QueueName(*key) for key in keys if key.broker_name == store.broker_name)
            if mine:
                yield store, find_queues(store, MessageChoice(queues=mine))

    def look(self, *, anew: bool = False) -> int:
        """Updates `queues` and returns `version`, which is larger if anything changed.

        With `anew`, the look does not rely on earlier looks.
        """
        changed = False
        for place, known in enumerate(self.followers):
            follower = self._named(place) if place in self._unnamed else known
            if follower is None or not follower.look(anew=anew):
                continue
            broker = follower.store.broker_name
            changed, names = True, self._names[broker]
            for key, queue in follower.changed.items():
                name = names.get(key)
                if name is None:
                    topic, queue_id = key
                    name = names[key] = MessageQueue(topic, broker, queue_id)
                if queue is not None and name in self.queues:
                    self.queues[name] = queue  # most of 10,000
                elif name.topic.startswith(MARK):
                    self._leave_out(name.topic)
                elif queue is None:
                    self.queues.pop(name, None)
                    self.gone.add(name)
                else:
                    self.queues[name] = queue
            self.replaced |= {
                MessageQueue(topic, broker, queue_id): each
                for (topic, queue_id), each in follower.replaced.items()
            }
        for newcomers in self._newcomers:
            newcomers.look()
        self.version += changed
        return self.version

    def _leave_out(self, topic: str) -> None:
        """Warns once of a topic that begins with `$`. No broker creates such a topic."""
        if topic not in self._left_out:
            self._left_out.add(topic)
            _log.warning(
                "topic %r is not read: in a checkpoint, names that begin with %s are reserved", topic, MARK
            )


def _with_directories(root: str) -> frozenset[str]:
    """The topics with a directory of consume queues. Files in `consumequeue` are RocksDB's, and no topics."""
    folders = [f"{root}/{folder}" for folder in FOLDERS.values()]
    names = ((folder, name) for folder in folders for name in files_at(folder).names(folder, missing_ok=True))
    return frozenset(
        name
        for folder, name in names
        if name != LOST_AND_FOUND and not files_at(folder).is_file(f"{folder}/{name}")
    )


# ---- stores that appear ------------------------------------------------------------------------------------


class _Newcomers:
    """Warns of each store that appears in the directory of a cluster: the query reads it after a restart."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = files_at(path).directory_identity(path)
        self._known = files_at(path).names(path)
        self._is_cluster = "commitlog" not in self._known and not looks_like_store(self._known)
        self._coming: set[str] = set()  # directories that are not a store yet

    def look(self) -> None:
        """Costs one system call, and one more for each new directory that is not a store."""
        if not self._is_cluster:
            return
        identity = files_at(self._path).directory_identity(self._path)
        if identity is not None and identity != self._identity:
            names = files_at(self._path).names(self._path, missing_ok=True)
            self._coming = (self._coming | (names - self._known)) & names
            self._identity, self._known = identity, names
        for name in sorted(self._coming):
            errors: list[StoreError] = []
            if cluster_members(self._path, [name], errors.append):
                _log.warning(
                    "%s/%s was added while the query runs; the query reads it after a restart",
                    self._path,
                    shown(name),
                )
            elif errors:
                _log.warning(
                    "%s/%s was added while the query runs, and cannot be read: %s",
                    self._path,
                    shown(name),
                    errors[0],
                )
            else:
                continue
            self._coming.discard(name)


# ---- what a stream can no longer read ----------------------------------------------------------------------


_CONTINUE = "set failOnDataLoss=false to continue"
_NEW_CHECKPOINT = "start with a new checkpoint"


class Losses:
    """Collects the losses of one look, until `report`.

    `keeps_offsets`: the offsets are those of a checkpoint, so that a new checkpoint begins elsewhere.
    """

    def __init__(self, fail_on_data_loss: bool, *, keeps_offsets: bool = True) -> None:
        self._fail = fail_on_data_loss
        self._anew = f"{_NEW_CHECKPOINT}, or " if keeps_offsets else ""
        self._found: list[tuple[int, str, str]] = []  # (messages, what happened, advice)
        self._reported: set[str] = set()
        self._replaced: dict[MessageQueue, Replaced] = {}  # reported; no micro-batch began there yet

    def begin(self, name: MessageQueue, position: int, queue: Queue) -> int:
        """The offset at which to continue in a queue whose next message should be at `position`."""
        low, high = queue.min_offset, queue.max_offset
        if position < low:
            what = (
                f"the next offset is {position} and the queue holds {low} to {high}: "
                f"retention deleted {low - position} messages"
            )
            self.add(name, low - position, what, f"{_CONTINUE} at offset {low}")
            return low
        if high < position <= queue.held_max_offset:
            return position  # the messages between are not read yet
        if position > high:
            # as a client: DefaultMessageStore.getMessage answers OFFSET_OVERFLOW_BADLY with the maximum
            what = (
                f"the next offset is {position} and the queue holds {low} to {high}: its offsets went back "
                f"by {position - high} "
                "(is the store an older copy, or was the topic deleted and created again?)"
            )
            self.add(name, 0, what, f"{self._anew}{_CONTINUE} at offset {high}")
            return high
        return position

    def replaced(self, name: MessageQueue, position: int, queue: Queue, replaced: Replaced) -> int:
        """The offset at which to continue in a queue with other messages at offsets already read."""
        low, high = queue.min_offset, queue.max_offset
        if self._replaced.get(name) == replaced and replaced.begin is not None:
            return replaced.begin
        if not self._fail:
            self._replaced[name] = replaced
        holds = f"the next offset is {position} and the queue holds {low} to {high}"
        if replaced.begin is not None:
            back = f": its offsets went back by {position - high}" if position > high else ""
            what = f"{holds}{back}: the topic was deleted and created again"
            lost = max(replaced.stop - position, 0)
            self.add(name, lost, what, f"{_NEW_CHECKPOINT}, or {_CONTINUE} at offset {replaced.begin}")
            return replaced.begin
        if not low <= position <= high:
            return self.begin(name, position, queue)
        what = (
            f"{holds}, but other messages than at the last look: the store's files were replaced, or a "
            f"broker overwrote them after a crash; the messages {low} to {position} are not read"
        )
        self.add(name, position - low, what, f"{_NEW_CHECKPOINT}, or {_CONTINUE} at offset {position}")
        return position

    def forget_replaced(self) -> None:
        """The next offset says where the replaced queues begin: equal replacements from now on are new."""
        self._replaced.clear()

    def vanished(self, name: MessageQueue, position: int) -> None:
        what = f"the next offset is {position} and the store no longer has the queue (was the topic deleted?)"
        self.add(name, 0, what, f"{_CONTINUE} without it")

    def add(self, name: MessageQueue, count: int, what: str, advice: str) -> None:
        """`count` messages of the queue are lost, because of `what`; `advice` is what the user can do."""
        message = f"{name}: {what}"
        if message not in self._reported:
            self._found.append((count, message, advice))

    def report(self) -> None:
        """Raises OffsetOutOfRangeError for, or logs, what was found since the last report."""
        found, self._found = self._found, []
        if not found:
            return
        counts = [count for count, _, _ in found if count]
        total = f"in all, {sum(counts)} messages of {len(counts)} queues are lost" if len(counts) > 1 else ""
        if self._fail:
            _, message, advice = found[0]
            others = f" (and {len(found) - 1} more queues{total and f'; {total}'})" if len(found) > 1 else ""
            raise OffsetOutOfRangeError(f"{message}{others}; {advice}")
        for count, message, _ in found:
            self._reported.add(message)
            _log.warning("%d messages lost: %s", count, message)
        if total:
            _log.warning("%s", total)

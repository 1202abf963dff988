"""The queues that a stream reads, in all its stores, as of the last look.

A look that finds nothing new costs microseconds. Positions and planning use the same look, so a micro-batch
is planned from what was seen when its end was decided. A store that appears in the directory of a cluster
while a query runs is warned of.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.stream_offset import MARK
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.starts import open_stores
from store_format import Queue
from store_format.consumequeue.files import FOLDERS
from store_format.display.text import shown
from store_format.errors import StoreError
from store_format.files import paths
from store_format.files.read import LOST_AND_FOUND, directory_identity, entry_names
from store_format.follow.follower import StoreFollower
from store_format.follow.log_tail import Replaced
from store_format.read.choice import MessageChoice, QueueName
from store_format.read.store import Store, StoreQueues, find_queues
from store_format.read.store_root import cluster_members, has_config

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
        return self.options.broker_name is not None or has_config(store.path)

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
            changed = True
            for (topic, queue_id), queue in follower.changed.items():
                if topic.startswith(MARK):
                    self._leave_out(topic)
                elif queue is None:
                    self.queues.pop(MessageQueue(topic, broker, queue_id), None)
                    self.gone.add(MessageQueue(topic, broker, queue_id))
                else:
                    self.queues[MessageQueue(topic, broker, queue_id)] = queue
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
    names = ((folder, name) for folder in folders for name in entry_names(folder, missing_ok=True))
    return frozenset(
        name for folder, name in names if name != LOST_AND_FOUND and not paths.is_file(f"{folder}/{name}")
    )


# ---- stores that appear ------------------------------------------------------------------------------------


class _Newcomers:
    """Warns of each store that appears in the directory of a cluster: the query reads it after a restart."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._identity = directory_identity(path)
        self._known = entry_names(path)
        self._is_cluster = "commitlog" not in self._known
        self._coming: set[str] = set()  # directories that are not a store yet

    def look(self) -> None:
        """Costs one system call, and one more for each new directory that is not a store."""
        if not self._is_cluster:
            return
        identity = directory_identity(self._path)
        if identity is not None and identity != self._identity:
            names = entry_names(self._path, missing_ok=True)
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

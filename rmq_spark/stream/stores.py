"""The queues a stream reads, over all its stores, as they are at each look. A look that finds nothing new
costs microseconds.

The stream's positions and its planning both ask here, so that a micro-batch is planned from what was seen
when its end was decided.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.stream_offset import MARK
from rmq_spark.options.offset_spec import QueueName
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.options.topic_choice import TopicChoice
from rmq_spark.plan.stores import open_stores
from rmq_spark.stream.newcomers import Newcomers
from store_format import Queue
from store_format.consumequeue.listing import FOLDERS
from store_format.files.read import LOST_AND_FOUND, entry_names
from store_format.follow.follower import StoreFollower
from store_format.follow.replaced import Replaced
from store_format.read.store import Store
from store_format.read.store_queues import StoreQueues, find_queues
from store_format.read.store_root import has_config

_log = logging.getLogger(__name__)


class StreamStores:
    """What is there for a stream. `queues` are the chosen ones by (topic, broker, queue id), as of the last
    look.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.queues: dict[MessageQueue, Queue] = {}
        self.replaced: dict[
            MessageQueue, Replaced
        ] = {}  # until whoever positions the stream has dealt with them
        self.version = 0
        self._left_out: set[str] = set()
        self._followers: list[StoreFollower] | None = None
        self._newcomers: list[Newcomers] = []
        self._unnamed: set[int] = set()  # places among the followers

    @property
    def followers(self) -> list[StoreFollower]:
        """Opens the stores when first asked for. What may not be read is never passed over: its position
        would be forgotten.
        """
        if self._followers is None:
            self._newcomers = [Newcomers(path) for path in self.options.paths]
            stores = open_stores(self.options, skip_unreadable=False)
            self._followers = [StoreFollower(store, self.options.topics) for store in stores]
            self._unnamed = {place for place, store in enumerate(stores) if not self._is_named(store)}
            for place in self._unnamed:
                _log.info(
                    "%s: no topics.json and no message yet, so that the name of its broker is not known: waiting",
                    stores[place].path,
                )
        return self._followers

    @property
    def waits_for_names(self) -> bool:
        """Whether no store has had a message or a broker's name so far."""
        return len(self.followers) == len(self._unnamed)

    def _is_named(self, store: Store) -> bool:
        return self.options.broker_name is not None or has_config(store.path)

    def _named(self, place: int) -> StoreFollower | None:
        """The follower of a store whose broker's name was not known, under the name that it has now; None
        while it is not needed.

        A broker writes topics.json with its first message; the directory's name, taken before, would be in
        the checkpoint for ever.
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
        self.followers[place] = StoreFollower(store, self.options.topics)
        self._unnamed.discard(place)
        return self.followers[place]

    @property
    def stores(self) -> list[Store]:
        return [follower.store for follower in self.followers]

    def chooses(self, key: MessageQueue) -> bool:
        """Whether the options ask for the queue."""
        choice = self.options.topics
        return choice.chooses_topic(key[0]) and choice.chooses_queue(*key)

    def deleted_topics(self, names: Collection[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Those of the (topic, broker) pairs whose store has neither a configuration nor a consume queue of
        the topic.

        A store that has no topic at all tells nothing: its disk may not be mounted.
        """
        deleted: set[tuple[str, str]] = set()
        for store in self.stores if names else ():
            known = store.configured_topics() | _with_directories(store.path)
            deleted |= {
                name for name in names if name[1] == store.broker_name and known and name[0] not in known
            }
        return frozenset(deleted)

    def find_unchosen(self, keys: Collection[MessageQueue]) -> Iterator[tuple[Store, StoreQueues]]:
        """Queues that the options do not choose now, as the files are at this moment: a batch that was
        planned before may have them.
        """
        for store in self.stores if keys else ():
            mine = tuple(QueueName(*key) for key in keys if key[1] == store.broker_name)
            if mine:
                yield store, find_queues(store, TopicChoice(queues=mine))

    def look(self, *, anew: bool = False) -> int:
        """Where the queues begin and end now; a number that is another one when something is. `anew` trusts
        nothing seen before.
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
        """No broker makes such a topic."""
        if topic not in self._left_out:
            self._left_out.add(topic)
            _log.warning("topic %r is not read: an offset cannot name what begins with %s", topic, MARK)


def _with_directories(root: str) -> frozenset[str]:
    """The topics with a directory of consume queues. RocksDB keeps files of its own in `consumequeue`, which
    are no topics.
    """
    folders = [f"{root}/{folder}" for folder in FOLDERS.values()]
    names = ((folder, name) for folder in folders for name in entry_names(folder, missing_ok=True))
    return frozenset(
        name for folder, name in names if name != LOST_AND_FOUND and not os.path.isfile(f"{folder}/{name}")
    )

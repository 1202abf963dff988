"""The queues that a stream shares with the other members of its group, by share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.options.group_options import PopOptions
from rmq_spark.stream.stores import StreamStores
from store_format.files.read import stat_identity
from store_format.metadata.read import read_topics
from store_format.metadata.values import TopicConfig
from store_format.pop.state import TOPIC, PopQueue

ShareKey = tuple[str, str]  # topic and broker name


class SharedQueues:
    """The subscribed topics and the group's retry topics of them, in all stores, as of the last look."""

    def __init__(self, stores: StreamStores, options: PopOptions) -> None:
        self._stores = stores
        self._readable: dict[ShareKey, range] = {}  # the queue ids of each topic, by topics.json
        self._readable_seen: object = None
        topics = stores.options.topics.names
        # name of the topic, or of a retry topic -> the topic, and the flag of receipt handles
        self._flags = {topic: (topic, TOPIC) for topic in topics} | options.retry_topics(topics)

    def __contains__(self, key: MessageQueue) -> bool:
        """Whether the topic of the queue is subscribed, or is a retry topic of one that is."""
        return key.topic in self._flags

    def share_key(self, key: MessageQueue) -> ShareKey:
        """The share that has the queue."""
        return self._flags[key.topic][0], key.broker_name

    def pop_queue(self, key: MessageQueue) -> PopQueue:
        """The name of the queue in its share."""
        return self._flags[key.topic][1], key.queue_id

    def readable_ids(self, share_key: ShareKey) -> Sequence[int]:
        """The queue ids that topics.json allows to read, also of queues without a message."""
        return self._readable.get(share_key, ())

    def by_share(self) -> dict[ShareKey, list[MessageQueue]]:
        """The queues with messages of each topic and its retry topics, as far as topics.json allows."""
        self._read_topics()
        found: dict[ShareKey, list[MessageQueue]] = {share_key: [] for share_key in self._readable}
        for key in self._stores.queues:
            if key in self:
                share_key = self.share_key(key)
                allowed = self._readable.get(share_key)
                if allowed is None or self.pop_queue(key)[0] != TOPIC or key.queue_id in allowed:
                    found.setdefault(share_key, []).append(key)
        return found

    def _read_topics(self) -> None:
        """Reads topics.json of each store again if the file was replaced."""
        stores = self._stores.stores
        seen = [stat_identity(f"{store.path}/config/topics.json") for store in stores]
        if seen == self._readable_seen:
            return
        self._readable, self._readable_seen = {}, seen
        for store in stores:
            configs: Mapping[str, TopicConfig] = read_topics(store.path) or {}
            for topic in self._stores.options.topics.names:
                config = configs.get(topic)
                if config is not None:
                    ids = config.read_queue_ids if config.readable else range(0)
                    self._readable[topic, store.broker_name] = ids

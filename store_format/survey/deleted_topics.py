"""Which messages of the commitlog belong to a topic that was deleted, and which topics topics.json has lost.

A broker removes a deleted topic from topics.json and removes its consume queues. The messages stay in the
commitlog until retention deletes them, and no consumer gets them. A broker that recovers after a crash makes
consume queues again for those of them that it scans: of one store, 5.5.0 made a queue with 1 of 30 messages,
and 4.9.7 one with all 30. But topics.json still lacks the topic, so that a client finds no route to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from store_format.bookkeeping.journal import read_journal
from store_format.consumequeue.listing import FOLDERS, can_be_queue, list_queues
from store_format.errors import CorruptStoreError, StoreError
from store_format.files import paths
from store_format.files.read import entry_names
from store_format.layouts import OFFSET_MAX
from store_format.metadata.read import read_subscription_groups, read_topics
from store_format.names import DLQ_PREFIX, RETRY_PREFIX, QueueKey, is_light_queue, is_system_topic

# where a broker keeps its topics instead of topics.json, which may be left from before
_ROCKSDB_CONFIG = ("topics", "metadata", "rdb")
_BESIDE_TOPICS = frozenset(
    {"subscriptionGroup.json", "consumerOffset.json", "delayOffset.json", "ledger.json"}
)
_OF_GROUPS = (RETRY_PREFIX, DLQ_PREFIX)


def deleted_until(root: str) -> Callable[[str], int]:
    """A function of a topic: its messages before this physical offset belong to a deleted topic.

    0 if none do, and without topics.json. OFFSET_MAX if topics.json does not have the topic, and no directory
    of it is left. While a commit is not complete that creates a topic, the earlier messages of the topic
    belong to a deleted one.
    """
    try:
        topics = read_topics(root)
        journal = read_journal(root)
    except CorruptStoreError:  # who needs the file raises the error
        return lambda topic: 0
    if not topics or _has_rocksdb_config(root):  # a broker's topics.json is never empty
        return lambda topic: 0
    created: dict[str, int] = {}
    if journal is not None:
        continued = {
            topic for (topic, _), base in zip(journal.queues, journal.queue_bases, strict=True) if base
        }
        new = journal.new_topics.keys() - continued
        continued |= {key[0] for key in _filed_queues(root, new.__contains__) if key not in journal.queues}
        created = dict.fromkeys(new - continued, journal.base)

    @cache
    def end(topic: str) -> int:
        if topic in created:
            return created[topic]
        if topic in topics or is_light_queue(topic) or _is_of_system(root, topic):
            return 0
        return 0 if _has_directory(root, topic) else OFFSET_MAX

    return end


def lost_topics(root: str) -> dict[str, int]:
    """The topics of a store that has lost topics.json and its `.bak`, with their numbers of queues.

    The directories of the consume queues show them. A broker makes its own topics when it starts, and batch
    queues need attributes that no directory shows: both are left out. A store had topics.json if it has
    another file that a broker, or a commit, writes beside it.
    """
    names = {
        *entry_names(f"{root}/config", missing_ok=True),
        *entry_names(f"{root}/.rmqlog", missing_ok=True),
    }
    if names.isdisjoint(_BESIDE_TOPICS) or _has_rocksdb_config(root) or read_topics(root):
        return {}
    return filed_topics(root, lambda topic: topic.startswith(_OF_GROUPS) or not _is_not_configured(topic))


def filed_topics(root: str, select: Callable[[str], bool]) -> dict[str, int]:
    """The selected topics whose simple queues have files, each with one more than its highest queue id."""
    numbers: dict[str, int] = {}
    for topic, queue_id in _filed_queues(root, select):
        numbers[topic] = max(numbers.get(topic, 0), queue_id + 1)
    return numbers


def _filed_queues(root: str, select: Callable[[str], bool]) -> list[QueueKey]:
    return [
        (topic, queue_id)
        for topic, queue_id, directory, kind in list_queues(root, select, lambda error: None)
        if kind == "simple" and entry_names(directory, missing_ok=True)
    ]


def _is_not_configured(topic: str) -> bool:
    return is_light_queue(topic) or is_system_topic(topic)


def _has_rocksdb_config(root: str) -> bool:
    return any(paths.exists(f"{root}/config/{name}/CURRENT") for name in _ROCKSDB_CONFIG)


def _is_of_system(root: str, topic: str) -> bool:
    """Whether a broker creates the topic again when it needs it: its messages wait for the broker."""
    for prefix in _OF_GROUPS:
        if topic.startswith(prefix):
            name = topic.removeprefix(prefix)
            try:
                groups = read_subscription_groups(root)
            except CorruptStoreError:
                return True
            # the topic of messages that were popped has the name of another topic behind that of the group
            return groups is None or any(
                name == group or name.startswith((f"{group}_", f"{group}+")) for group in groups
            )
    return is_system_topic(topic)


def _has_directory(root: str, topic: str) -> bool:
    """Whether anything is in a directory of the topic. A broker leaves an empty one when it deletes it."""
    try:
        return can_be_queue(topic, 0) and any(
            entry_names(f"{root}/{folder}/{topic}", missing_ok=True) for folder in FOLDERS.values()
        )
    except StoreError:  # it may not be listed
        return True

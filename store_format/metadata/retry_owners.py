"""Whose messages wait in the retry topics of a store, by the groups, topics and offsets in its `config/`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from store_format.errors import StoreError
from store_format.metadata.group_offsets import known_groups, read_committed
from store_format.names import (
    ORIGIN_GROUP,
    RETRY_TOPIC,
    RetryOwner,
    is_retry_topic,
    normal_topic,
    retry_owner,
)


@dataclass(frozen=True, slots=True)
class RetryOwners:
    """`store_format.names.retry_owner` for one store.

    A group with offsets for a retry topic of pop owns the topic, if it is the only such group: a broker
    commits offset 0 when it creates the topic (PopReviveService.initPopRetryOffset). `readers` are the groups
    with offsets for each retry topic.
    """

    groups: frozenset[str]
    topics: frozenset[str]
    readers: Mapping[str, Collection[str]] = field(default_factory=dict)

    @staticmethod
    def read(root: str, topics: Iterable[str]) -> RetryOwners:
        """The owners in the store at `root`, which has the `topics`. Damaged files count as empty."""
        pairs: Collection[tuple[str, str]] = ()
        with suppress(StoreError):
            pairs = read_committed(root).pairs()
        return RetryOwners.of(known_groups(root), topics, pairs)

    @staticmethod
    def of(groups: Iterable[str], topics: Iterable[str], pairs: Iterable[tuple[str, str]]) -> RetryOwners:
        """The owners by the names that exist, and by the (group, topic) `pairs` that have offsets."""
        readers: dict[str, set[str]] = {}
        for group, topic in pairs:
            if is_retry_topic(topic):
                readers.setdefault(topic, set()).add(group)
        return RetryOwners(frozenset(groups), frozenset(topics), readers)

    def owner(self, name: str, properties: Mapping[str, str | None] | None = None) -> RetryOwner:
        """The owner of a retry topic, or of a message in the topic that has the `properties`."""
        if not any((properties or {}).get(name) for name in (ORIGIN_GROUP, RETRY_TOPIC)):
            popping = [group for group in self.readers.get(name, ()) if normal_topic(name, group)[1]]
            if len(popping) == 1:
                return RetryOwner(popping[0], normal_topic(name, popping[0])[0])
        return retry_owner(name, self.groups, self.topics, properties)

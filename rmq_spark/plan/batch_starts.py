"""Where a batch read begins in each queue: by the `starting…` options, or at the offset of its group."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from rmq_spark.consume.client_ids import BROADCASTING
from rmq_spark.consume.consume_from_where import ConsumeFromWhere
from rmq_spark.consume.message_queue import MessageQueue
from rmq_spark.consume.permission import consuming_group
from rmq_spark.options.group_options import GroupOptions
from rmq_spark.options.read_options import ReadOptions
from rmq_spark.plan.group_start import start_of, subscribe_set, usable_offsets
from rmq_spark.plan.starts import start_offset
from store_format import Queue
from store_format.metadata.group_offsets import known_groups
from store_format.names import did_you_mean
from store_format.read.store import Store

_log = logging.getLogger(__name__)


class Starts:
    """The starts of a batch read. A batch reads a group's offsets, but writes none and joins no group.

    `clients` has the queues of each logical client, or None without the option `consumers`. `left_out` are
    the queues of the group that the strategy gives to no client.
    """

    def __init__(self, stores: Sequence[Store], options: ReadOptions) -> None:
        self._options = options
        self._group = options.group
        self._committed: dict[MessageQueue, int] = {}
        self.left_out: frozenset[MessageQueue] = frozenset()
        self.clients: list[frozenset[MessageQueue]] | None = None
        self._allocated: frozenset[MessageQueue] = frozenset()
        if self._group is not None:
            is_broadcasting = self._group.message_model == BROADCASTING
            for store in stores:
                consuming_group(store.path, self._group.group, is_broadcasting=is_broadcasting)
            known = self._group.make_offset_store({store.broker_name: store.path for store in stores}).read()
            shared = frozenset(subscribe_set(stores, options.topics, self._group.group))
            self._allocate(self._group, shared, sorted(store.broker_name for store in stores))
            group, fails = self._group.group, options.fail_on_data_loss
            self._committed = usable_offsets(known, group, shared, fail_on_data_loss=fails)
            if not shared & self._committed.keys() and self._group.where is ConsumeFromWhere.LAST:
                _warn_of_nothing(stores, group)

    def _allocate(self, group: GroupOptions, shared: frozenset[MessageQueue], brokers: Sequence[str]) -> None:
        """Divides the shared queues by the strategy, as if the read were the only member of the group."""
        if group.message_model == BROADCASTING:
            self._allocated = shared
            return
        membership = group.make_membership(self._options.subscription, brokers)
        owner = membership.allocate(membership.clients, shared)
        self._allocated = frozenset(owner)
        self.left_out = shared - self._allocated
        if group.consumers is not None:
            self.clients = [
                frozenset(queue for queue, client in owner.items() if client == own)
                for own in membership.clients
            ]

    def reads(self, queue: Queue) -> bool:
        """Whether the queue is read. A group reads only queues that topics.json makes readable, and that the
        strategy gives to its clients.
        """
        return self._group is None or MessageQueue.of(queue) in self._allocated

    def of(self, queue: Queue) -> tuple[str, int]:
        """(the option or offset that decides, the first offset). It may be outside of the queue."""
        if self._group is None:
            return self._options.starting.option, start_offset(queue, self._options)
        start = start_of(queue, self._committed.get(MessageQueue.of(queue)), self._group)
        return f"the {start.origin} offset of group {self._group.group}", start.offset


def _warn_of_nothing(stores: Sequence[Store], group: str) -> None:
    """A misspelt group would look like a group with nothing to read."""
    known = {name for store in stores for name in known_groups(store.path)} - {group}
    hint = did_you_mean(group, sorted(known), "groups")
    _log.warning(
        "group %s has no committed offset in the queues read, so a batch read begins at their ends and "
        "returns no rows; %s To read the messages of a new group, set consumeFromWhere=%s",
        group, hint if hint.endswith("?") else f"{hint}.", ConsumeFromWhere.FIRST,
    )  # fmt: skip

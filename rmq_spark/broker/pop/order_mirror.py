"""consumerOrderInfo.json while a group pops in order: the last batch of each queue.

The file is written with consumerOffset.json, so that a broker goes on exactly: a queue that is blocked stays
blocked, and deliveries are counted on. The in-flight log notes what the file has and what it gets before the
file is written. A batch that is neither was written by a broker, and counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from store_format.files.read import stat_identity
from store_format.files.write import FileWrites
from store_format.metadata.add_group import add_subscription_group
from store_format.metadata.group_offsets import is_broker_49, rewrite_config
from store_format.metadata.read import config_path, read_order_infos
from store_format.metadata.values import OrderInfo, SubscriptionGroup
from store_format.pop.log import InFlightLog, PopName
from store_format.pop.order import digest, merge_order_infos
from store_format.pop.state import TOPIC, PopState


def is_ordered(group: SubscriptionGroup | None, fifo: bool | None) -> bool:
    """Whether a group pops in order: as `fifo` says, None: as the group's consumeMessageOrderly."""
    return fifo if fifo is not None else group is not None and group.consume_message_orderly


def switch_order(state: PopState, is_on: bool) -> None:
    """The group pops in order from now on, or no longer; nobody of it is popping in the other way.

    What is in flight is forgotten, and the queues go on at the first message that is not acknowledged: the
    messages are delivered again, in the new way.
    """
    if state.order.is_on == is_on:
        return
    for (flag, queue_id), queue in list(state.queues.items()):
        if flag == TOPIC and (queue.check_points or queue_id in state.order.batches):
            state.set_offset(flag, queue_id, queue.lowest)
    state.order.switch(is_on)


class OrderMirror:
    """Keeps the batches of an in-flight log and those of the file together; nothing without order."""

    def __init__(self, name: PopName, log: InFlightLog, clock_ms: Callable[[], int], *, sync: bool) -> None:
        self._path = config_path(name.root, "consumerOrderInfo.json")
        self._root, self._group = name.root, name.group
        self._key = f"{name.topic}@{name.group}"
        self._in_flight = log
        self._clock_ms = clock_ms
        self._files = FileWrites(sync=sync)
        self._seen: object = None  # the identity of the file at the last comparison

    def is_changed(self) -> bool:
        """Whether the file was replaced by another program, or no longer has the right batches."""
        is_on, changed = self._in_flight.run(lambda state: (state.order.is_on, state.order.not_mirrored()))
        return is_on and (bool(changed) or self._seen != stat_identity(self._path))

    def update(self, is_deleted: Callable[[int, OrderInfo], bool] = lambda queue_id, batch: False) -> None:
        """Takes over what a broker has written, then writes what the log has. Under the store's lock.

        Batches of a deleted topic are passed over.
        """
        stored = (read_order_infos(self._root) or {}).get(self._key, {})
        deleted = {queue_id for queue_id, batch in stored.items() if is_deleted(queue_id, batch)}
        batches = self._in_flight.run(lambda state: _compared(state, stored, deleted, self._clock_ms()))
        if batches is not None:
            if not is_broker_49(self._root):
                # a broker drops the batches of a group that it does not know (autoClean)
                add_subscription_group(self._root, self._group, timestamp=self._clock_ms(), files=self._files)
            rewrite_config(
                self._path, lambda data, file: merge_order_infos(data, self._key, batches, file), self._files
            )
            queues = stored.keys() | batches.keys()
            # from here on the batches before would be a broker's
            self._in_flight.run(lambda state: state.order.note_mirrored(queues, batches, batches))
        self._seen = stat_identity(self._path)


def _compared(
    state: PopState, stored: Mapping[int, OrderInfo], deleted: Set[int], now_ms: int
) -> dict[int, OrderInfo] | None:
    """The batches for the file, which has `stored`; None if the file needs no change.

    The batches of the queues `deleted` do not count.
    """
    order = state.order
    if not order.is_on:
        return None
    foreign = {
        queue_id: None if queue_id in deleted else stored.get(queue_id)
        for queue_id in stored.keys() | order.mirrored.keys()
        if digest(stored.get(queue_id)) not in order.mirrored.get(queue_id, ())
    }
    if foreign:
        order.take_over(foreign)
        order.note_mirrored(foreign, stored, stored)
    order.forget(now_ms)
    known = stored.keys() | order.batches.keys()
    changed = {
        queue_id for queue_id in known if digest(stored.get(queue_id)) != digest(order.batches.get(queue_id))
    }
    noted = sorted(changed.union(order.not_mirrored()))
    if noted:
        order.note_mirrored(noted, stored, order.batches)
    return dict(order.batches) if changed else None

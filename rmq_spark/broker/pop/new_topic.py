"""Topics that were deleted and created again: what the in-flight log has of the deleted topic does not count.

The new topic is read from its first message. An offset counts that somebody has set in consumerOffset.json
since: a broker, from which the group has popped the new topic.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from store_format.consumequeue.slices import QueueRange
from store_format.display.text import first_names, shown
from store_format.metadata.group_offsets import read_group_offsets
from store_format.names import QueueKey
from store_format.pop.log import InFlightLog, PopName
from store_format.pop.state import PopQueue, PopState
from store_format.pop.witness import (
    is_of_new_topic,
    is_set_since,
    witness_before,
)
from store_format.read.store import Store

_log = logging.getLogger(__name__)

Ranges = Mapping[QueueKey, QueueRange]


def queue_ranges(name: PopName, store: Store) -> Ranges:
    """The queues of the topic and of the group's retry topics that can be read; {} without consume queues."""
    return store.snapshot(name.flags().__contains__).queues if store.has_consume_queues else {}


def forget_deleted(name: PopName, log: InFlightLog, queues: Ranges) -> None:
    """Forgets what the log has of queues whose topic was created again, with a warning.

    Under the store's lock, before consumerOffset.json is compared.
    """
    known = log.run(lambda state: {queue: each.witness for queue, each in state.queues.items()})
    new = {}
    for queue, witness in known.items():
        there = queues.get((name.topic_of(queue[0]), queue[1]))
        if there is not None and witness is not None and is_of_new_topic(there, witness):
            new[queue] = there.min_offset
    if not new:
        return
    offsets = read_group_offsets(name.root, name.group)
    count, starts = log.run(lambda state: _forget(state, name, new, offsets))
    _log.warning(
        "%s: group %s: topic %s was deleted and created again; %d messages of the deleted topic that were in "
        "flight are forgotten, and the group continues at %s",
        name.root, name.group, shown(name.topic), count, first_names(starts),
    )  # fmt: skip


def _forget(
    state: PopState, name: PopName, new: Mapping[PopQueue, int], offsets: Mapping[QueueKey, int]
) -> tuple[int, list[str]]:
    """(messages in flight that were forgotten, the names of the queues with their offsets)."""
    before, starts = state.in_flight + state.order.in_flight, []
    for queue, first in new.items():
        key, mirrored = (name.topic_of(queue[0]), queue[1]), state.mirrored.get(queue)
        in_file = offsets.get(key, -1)
        is_set = is_set_since(in_file, mirrored)
        start = in_file if is_set else first
        state.renew_queue(*queue, start)
        if is_set:
            state.note_mirrored({queue: start})
        starts.append(f"{key[0]}-{key[1]} at {start}")
    return before - state.in_flight - state.order.in_flight, starts


def note_witnesses(name: PopName, log: InFlightLog, queues: Ranges) -> None:
    """Notes a witness of each queue that has none: until the first hand-out it is the entry before."""
    unknown = log.run(
        lambda state: {
            queue: each.next_offset for queue, each in state.queues.items() if each.witness is None
        }
    )
    found = {}
    for queue, next_offset in unknown.items():
        there = queues.get((name.topic_of(queue[0]), queue[1]))
        witness = None if there is None else witness_before(there, next_offset)
        if witness is not None:
            found[queue] = witness

    def note(state: PopState) -> None:
        new = {queue: each for queue, each in found.items() if _lacks_witness(state, queue)}
        if new:
            state.note_witnesses(new)

    if found:
        log.run(note)


def _lacks_witness(state: PopState, queue: PopQueue) -> bool:
    known = state.queues.get(queue)
    return known is not None and known.witness is None

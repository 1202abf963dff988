"""Where a group begins in queues that it has not popped; offsets outside of their queues are corrected."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rmq_spark.pop.pop_name import PopName
from store_format.display.text import shown
from store_format.names import QueueKey
from store_format.pop.state import PopQueue, PopState

_log = logging.getLogger(__name__)

Limits = Mapping[QueueKey, tuple[int, int]]  # the first offset of each queue, and the one behind its end


@dataclass(slots=True)
class Begun:
    """What `begin_queues` has done: offsets to commit, and (name, offset before) of corrected queues."""

    offsets: dict[PopQueue, int] = field(default_factory=dict)
    corrected: list[tuple[QueueKey, int]] = field(default_factory=list)

    def warn_corrected(self, name: PopName, limits: Limits) -> int:
        """Warns of each correction. Returns how many messages the group has lost."""
        count = 0
        for key, before in self.corrected:
            low, high = limits[key]
            lost = max(low - before, 0)
            count += lost
            why = f"retention deleted {lost} messages; pop goes on at {low}"
            if not lost:
                why = f"the topic was created again, or the store is an older copy; pop goes on at {high}"
            _log.warning(
                "%d messages lost: %s, group %s: the next offset of %s-%d is %d and the queue holds %d to "
                "%d: %s",
                lost, name.root, name.group, shown(key[0]), key[1], before, low, high, why,
            )  # fmt: skip
        return count


def begin_queues(
    state: PopState,
    names: Mapping[PopQueue, QueueKey],
    limits: Limits,
    known: Mapping[QueueKey, int],
    first_offset: Callable[[int, int, int], int],
) -> Begun:
    """Sets the next offsets of these queues, see `ConsumerShare.begin`; a change of the in-flight log.

    `known` are the committed offsets. `first_offset` tells from (flag, first offset, end) of a queue where a
    group without an offset begins.
    """
    begun = Begun()
    for queue, key in names.items():
        low, high = limits.get(key, (0, 0))
        there = state.queues.get(queue)
        offset = known.get(key, -1) if there is None else there.next_offset
        if offset < 0:
            offset = first_offset(queue[0], low, high)
        after = min(max(offset, low), high) if key in limits else offset
        if after != offset:
            begun.corrected.append((key, offset))
        if there is None or after < offset:
            state.set_offset(*queue, after)
            state.note_witnesses({queue: None})  # an older copy of the store does not have that entry
        elif after > offset:
            state.skip(*queue, after)
        else:
            continue
        if there is None and known.get(key, -1) >= 0:
            state.note_mirrored({queue: known[key]})
        begun.offsets[queue] = state.queues[queue].lowest
    if begun.offsets:
        state.note_mirrored(begun.offsets)
    return begun

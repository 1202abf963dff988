"""A reset of a group that pops: consumerOffset.json counts, also if it already had the offset of the reset.

The consumers of a group know a reset by an offset in the file that they have not written. A reset to the
offset that the file already has looks like no reset. So it is noted in the in-flight log too: the log then
believes of no offset that it is its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from store_format.names import QueueKey
from store_format.pop.log import InFlightLog, in_flight_logs
from store_format.pop.pop_name import PopName
from store_format.pop.state import PopQueue, PopState

_FOREIGN = -2  # differs from every offset of the file, and from -1, which means "unknown"


def note_moved(root: str, group: str, queues: Iterable[QueueKey]) -> None:
    """Notes that the group was moved in these queues. Call it under the store's lock, behind the file.

    Consumers that are open, and those that are opened later, continue at the offsets of the file; what was
    in flight in these queues is forgotten. Does nothing for a group without an in-flight log.
    """
    moved = list(queues)
    for owner, topic in in_flight_logs(root):
        if owner != group:
            continue
        name = PopName(root, group, topic)
        flags = name.flags()
        wanted = {(flags[each], queue_id) for each, queue_id in moved if each in flags}
        log = InFlightLog(name.directory, sync=True)
        try:
            log.run(partial(_forget_mirrored, wanted))
        finally:
            log.close()


def _forget_mirrored(queues: set[PopQueue], state: PopState) -> None:
    known = dict.fromkeys(sorted(queues & state.queues.keys()), _FOREIGN)
    if known and not state.is_closed:
        state.note_mirrored(known)  # the log keeps the last two offsets of the file
        state.note_mirrored(known)

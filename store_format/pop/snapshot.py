"""The records that rebuild a state: the first frame of an in-flight log that was made shorter."""

from __future__ import annotations

from store_format.pop.check_point import as_json
from store_format.pop.records import note
from store_format.pop.state import PopState


def snapshot(state: PopState) -> bytes:
    """Returns the records. The state's journal is not part of them."""
    found = bytearray()
    if not state.is_closed:
        found += note("open")
    for (flag, queue_id), queue in state.queues.items():
        found += note("offset", queue=[flag, queue_id], offset=queue.next_offset)
    witnesses = [[*key, *each.witness] for key, each in state.queues.items() if each.witness is not None]
    found += note("entries", queues=witnesses)
    points = [*state.check_points(), *state.settled.values()]
    found += note("take", points=[as_json(each) for each in points])
    found += state.order.snapshot(note)
    if state.reviving is not None:
        bits = [[*key, hex(each)] for key, each in state.reviving.bits.items()]
        found += note("revive", number=state.reviving.number, points=bits)
    found += note(
        "state",
        mirrored=[[*queue, *values] for queue, values in state.mirrored.items()],
        number=state.revive_number,
        totals=dict(state.totals),
        renewals=state.renewals,
    )
    return bytes(found)

"""Clients of a 5.5.0 broker pop, acknowledge, change invisible times and are killed; the broker is stopped.

What is in flight is known from the clients, and read from the store.
"""

from __future__ import annotations

from store_format.pop.broker_in_flight import read_broker_in_flight
from store_format.read.store import Store
from tests.interop.pop_runs import BILLING, ORDERS, TAGGED, TAGS, Place, PopRuns


def test_what_is_in_flight_is_what_the_clients_did_not_acknowledge(pop_runs: PopRuns) -> None:
    """Every message, with the time at which it becomes visible; filtered and acknowledged ones are not."""
    left = pop_runs.left
    found: dict[str, dict[Place, int]] = {BILLING: {}, TAGS: {}}
    for point in read_broker_in_flight(Store.open(str(pop_runs.store))):
        assert point.flag == 0
        for offset in point.unacked:
            where = (point.topic, point.queue_id, offset)
            assert where not in found[point.group]  # a changed message is in one check point only
            found[point.group][where] = point.visible_at
    assert found == {BILLING: left.in_flight(ORDERS), TAGS: left.in_flight(TAGGED)}
    assert len(found[BILLING]) == 13
    assert len(found[TAGS]) == 8
    assert len(left.filtered) == 4

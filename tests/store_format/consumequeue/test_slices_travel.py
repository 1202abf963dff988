"""Plain values come out of a pickle as they went in, without their field names."""

from __future__ import annotations

import pickle

from store_format.consumequeue.files import QueueBounds
from store_format.consumequeue.slices import QueueRange, QueueSlice


def _slice() -> QueueSlice:
    bounds = QueueBounds(
        "Orders", 3, "/store/consumequeue/Orders/3", "simple", 6_000_000, 0, 0, 0, 5, 90, 5, 90, 17, 4711, 230
    )
    queue = QueueRange("Orders", 3, 5, 90, bounds, 60, b"units", b"offsets", kind="batch")
    return QueueSlice(queue, 7, 80)


def test_slices_and_their_bounds_come_back_equal() -> None:
    before = [_slice(), QueueSlice(QueueRange("Orders", 4, 0, 1, None), 0, 1)]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(before, protocol)) == before


def test_fields_travel_without_their_names() -> None:
    assert b"extra_offsets" not in pickle.dumps(_slice())

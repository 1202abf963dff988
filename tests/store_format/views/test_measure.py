"""Entries of a short queue that are read at once, against looks that read each entry alone."""

from __future__ import annotations

import pytest

from store_format.store import MessageStore
from store_format.views.measure import QueueEntries
from tests.support import goldens
from tests.support.fixtures import Golden


@pytest.mark.parametrize("name", ["cleaned-5.5.0", "batchcq-5.5.0", "crash-5.5.0"])
def test_entries_read_at_once_are_those_read_one_by_one(golden: Golden, name: str) -> None:
    root, _ = goldens.brokers(name, golden(name))[""]
    looks = 0
    for queue in MessageStore.open(str(root)).queues():
        middle = (queue.min_offset + queue.max_offset) // 2
        edges = sorted({queue.min_offset, middle, queue.max_offset})
        at_once, alone = QueueEntries.of(queue, edges), QueueEntries(queue)
        assert (at_once.known is None) == queue.range.is_batch
        for edge in edges:
            assert at_once.look(edge) == alone.look(edge)
            for stop in edges[edges.index(edge) :]:
                assert at_once.bytes_between(edge, stop) == alone.bytes_between(edge, stop)
                looks += at_once.bytes_between(edge, stop) > 0
    assert looks

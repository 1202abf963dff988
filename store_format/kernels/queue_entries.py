"""Consume queue units of a batch, grouped by queue (ConsumeQueue.putMessagePositionInfo, spec 3.1)."""

from __future__ import annotations

from store_format.kernels.jit import BOOL, INTS, INTS32, OUT_BYTES, OUT_INTS, kernel
from store_format.kernels.words import put32, put64

_UNIT_SIZE = 20


@kernel(BOOL, INTS, INTS, INTS, INTS32, INTS, OUT_INTS, OUT_INTS, OUT_INTS, OUT_BYTES)
def group(queues, queue_offsets, physical_offsets, sizes, tags_codes, begins, stops, firsts, units):
    """Fills `units`, 20 bytes a message, queue after queue and in the order of the messages. Returns False if
    the offsets of a queue do not ascend by one, or arrays do not fit together.

    `begins`, `stops` and `firsts` have a number for each queue: where its units begin and end, counted in
    units, and the queue offset of its first message. A unit has the physical offset (8 bytes), the size of
    the message (4) and the tags code (8).
    """
    count, queue_count = len(queues), len(stops)
    if (
        min(len(queue_offsets), len(physical_offsets), len(sizes), len(tags_codes)) < count
        or min(len(begins), len(firsts)) < queue_count
        or len(units) < _UNIT_SIZE * count
    ):
        return False
    stops[:] = 0
    for i in range(count):
        if not 0 <= queues[i] < queue_count:
            return False
        stops[queues[i]] += 1
    total = 0
    for queue in range(queue_count):
        begins[queue] = total
        total += stops[queue]
        stops[queue] = begins[queue]
    ascends = True
    for i in range(count):
        queue = queues[i]
        place = stops[queue]
        stops[queue] = place + 1
        if place == begins[queue]:
            firsts[queue] = queue_offsets[i]
        ascends &= queue_offsets[i] - firsts[queue] == place - begins[queue]
        put64(units, _UNIT_SIZE * place, physical_offsets[i])
        put32(units, _UNIT_SIZE * place + 8, sizes[i])
        put64(units, _UNIT_SIZE * place + 12, tags_codes[i])
    return ascends

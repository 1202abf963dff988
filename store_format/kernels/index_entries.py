"""Index entries: a unit for each key, and its slot (IndexFile.putKey, spec 4.3 to 4.5)."""

from __future__ import annotations

import numpy as np

from store_format.kernels.jit import INT, INTS, INTS32, OUT_BYTES, kernel
from store_format.kernels.words import load32, prefetch, put32, put64

_HEADER_SIZE, _UNIT_SIZE = 40, 20
_PAGE_BITS = 12
_INT_MAX = 2**31 - 1
_AHEAD = 16  # entries; slots lie apart, and waiting for each would take most of the time


@kernel(INT, OUT_BYTES, OUT_BYTES, INT, OUT_BYTES, INT, INTS32, INTS, INTS, INTS, INT)
def insert(head, pages, slot_num, units, first_number, hashes, messages, offsets, timestamps, begin):
    """Fills `units` with one unit of 20 bytes for each hash, and changes the slots; returns the number of
    slots that were empty, -1 for arrays that do not fit together.

    `head` is the file up to its units: a header of 40 bytes, then `slot_num` slots of 4 bytes. `pages` has a
    byte for each 4096 bytes of `head`, set to 1 for a change. Unit i has the number `first_number` + i and
    belongs to message `messages[i]`, which has a physical offset and a store time in ms. A unit has the hash
    (4 bytes), the physical offset (8), whole seconds after `begin` (4) and the slot's value before (4), where
    a value above the unit's own number counts as empty.
    """
    count, taken = len(hashes), 0
    if (
        slot_num < 1
        or len(head) < _HEADER_SIZE + 4 * slot_num
        or len(pages) << _PAGE_BITS < len(head)
        or len(units) < _UNIT_SIZE * count
        or len(messages) < count
        or len(timestamps) < len(offsets)
    ):
        return -1
    for i in range(count):
        prefetch(head, _HEADER_SIZE + 4 * (np.int64(hashes[min(i + _AHEAD, count - 1)]) % slot_num))
        message = messages[i]
        if not 0 <= message < len(offsets):
            return -1
        at = _HEADER_SIZE + 4 * (np.int64(hashes[i]) % slot_num)
        number, before = first_number + i, load32(head, at)
        if before < 0 or before > number:
            before = 0
        taken += before == 0
        seconds = 0
        if begin > 0:
            seconds = min(max((timestamps[message] - begin) // 1000, 0), _INT_MAX)
        put32(units, _UNIT_SIZE * i, hashes[i])
        put64(units, _UNIT_SIZE * i + 4, offsets[message])
        put32(units, _UNIT_SIZE * i + 12, seconds)
        put32(units, _UNIT_SIZE * i + 16, before)
        put32(head, at, number)
        pages[at >> _PAGE_BITS] = 1
    return taken

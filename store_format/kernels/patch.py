"""What a commit fills into staged units: positions and store times (CommitLog.doAppend, spec 2.1)."""

from __future__ import annotations

from store_format.kernels.jit import INT, INTS, INTS32, NOTHING, OUT_BYTES, OUT_INTS, kernel
from store_format.kernels.words import load32, put64

_UNIT_SIZE_MIN = 91
_QUEUE_OFFSET, _PHYSICAL_OFFSET, _SYS_FLAG, _STORE_TIMESTAMP = 20, 28, 36, 56
_BORN_HOST_V6, _V6_MORE = 1 << 4, 12  # the store time is behind the born host, which has 8 or 20 bytes


@kernel(INT, OUT_BYTES, INTS, INTS, INTS, INTS)
def assign(data, starts, physical_offsets, queue_offsets, store_timestamps):
    """Writes both offsets and the store time (ms) into each unit; returns the number of units done.

    Unit i is data[starts[i]:starts[i + 1]]. Stops at a unit that is too short or not inside of `data`.
    """
    count = min(len(starts) - 1, len(physical_offsets), len(queue_offsets), len(store_timestamps))
    for i in range(count):
        at = starts[i]
        if at < 0 or starts[i + 1] > len(data) or starts[i + 1] - at < _UNIT_SIZE_MIN:
            return i
        put64(data, at + _QUEUE_OFFSET, queue_offsets[i])
        put64(data, at + _PHYSICAL_OFFSET, physical_offsets[i])
        more = _V6_MORE if load32(data, at + _SYS_FLAG) & _BORN_HOST_V6 else 0
        put64(data, at + _STORE_TIMESTAMP + more, store_timestamps[i])
    return max(count, 0)


@kernel(NOTHING, INTS32, OUT_INTS, OUT_INTS)
def take_offsets(queues, nexts, offsets):
    """Writes the next queue offset of each message and counts it on; 0 for a number outside of `nexts`."""
    for i in range(min(len(queues), len(offsets))):
        queue = queues[i]
        offsets[i] = 0
        if 0 <= queue < len(nexts):
            offsets[i] = nexts[queue]
            nexts[queue] += 1

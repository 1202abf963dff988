"""Breaches of the law that are known and not mended yet, in the stores that `tests/interop/test_referee.py`
judges: the number of a store of seed "ci", and the laws that are broken there. Any other breach is an error.

A breach that is mended leaves this list. `make proofs` judges other stores, and knows no list.
"""

from __future__ import annotations

_CRASHED_AND_EXCHANGED = {  # exchanged queues or a flipped first entry of a crashed store
    3: ("law 2",),
    5: ("law 1", "law 2", "law 3"),
}

OPEN: dict[str, dict[int, tuple[str, ...]]] = {
    "4.9.7": {**_CRASHED_AND_EXCHANGED},
    "5.5.0": {
        **_CRASHED_AND_EXCHANGED,
        56: ("law 2",),
        65: ("law 1",),  # offsets begin again in one queue, and its first entry is wrong
        # a file of another store in the log of a crashed store
        83: ("law 1",),
        100: ("law 1",),
        178: ("law 3",),
        258: ("law 1",),  # of two messages with one offset in a tail that no queue has, the second counts
    },
}

"""Breaches of the law that are known and not mended yet, in the stores that `tests/interop/test_referee.py`
judges: the number of a store of seed "ci", and the laws that are broken there. Any other breach is an error.

A breach that is mended leaves this list. `make proofs` judges other stores, and knows no list.
"""

from __future__ import annotations

# exchanged queues of a crashed store, and the message before one of two that are left has expired
_CRASHED_AND_EXCHANGED = {5: ("law 3",)}

OPEN: dict[str, dict[int, tuple[str, ...]]] = {
    "4.9.7": {**_CRASHED_AND_EXCHANGED},
    "5.5.0": {
        **_CRASHED_AND_EXCHANGED,
    },
}

"""The tags code of a consume queue entry, computed from the message (spec 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from store_format.java.hashes import tags_code_many
from store_format.java.numbers import parse_long
from store_format.message.properties import PropertyTable
from store_format.names import DELAY, TAGS

_SECOND, _MINUTE, _HOUR = 1000, 60_000, 3_600_000
# MessageStoreConfig.messageDelayLevel; level 1 is the first
DELAY_LEVELS_MS = (
    *(n * _SECOND for n in (1, 5, 10, 30)),
    *(n * _MINUTE for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(n * _HOUR for n in (1, 2)),
)


def tags_codes(
    table: PropertyTable,
    scheduled: NDArray[np.bool_],
    store_timestamps: NDArray[np.int64],
    delay_levels_ms: Sequence[int] = DELAY_LEVELS_MS,
) -> NDArray[np.int64]:
    """Returns the Java hash of TAGS, 0 without; for delayed messages (`scheduled`) the delivery time in ms.

    CommitLog.checkMessageAndReturnSize and DefaultMessageStore.computeDeliverTimestamp: a level above the
    highest counts as the highest; a level of 0 or less counts as no level.
    """
    codes: NDArray[np.int64] = tags_code_many(table.values(TAGS)).astype(np.int64)
    if scheduled.any() and len(delay_levels_ms):
        for i, text in enumerate(table.values(DELAY).to_pylist()):
            level = parse_long(text)
            if scheduled[i] and level is not None and level > 0:
                delay = np.int64(delay_levels_ms[min(level, len(delay_levels_ms)) - 1])
                # as arrays, whose sum wraps silently as in Java
                codes[i : i + 1] = store_timestamps[i : i + 1] + delay
    return codes

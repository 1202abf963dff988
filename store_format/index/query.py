"""Searches for a key in all index files: all candidates, because index files have only hashes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from store_format.index.file import IndexFile, index_key, key_hash

_TIME_DIFF_MAX = 2**31 - 1


def find_offsets(
    files: Sequence[IndexFile],
    topic: str,
    key: str,
    begin: int | None = None,
    end: int | None = None,
    index_type: str | None = None,
) -> NDArray[np.int64]:
    """Physical offsets of all candidates, ascending, each once, without a broker's limits.

    Compare topic and key when the messages are read.     `begin` and `end` (ms, both inclusive) leave out
    only units that cannot lie in the window, so the result may contain others. The time of a unit is known to
    the second, and not at all where the broker clamped it: it also writes 0 seconds when the clock went back,
    and the first unit of a file counts from the end of the file before.
    """
    hash_value = key_hash(index_key(topic, key, index_type))
    found: set[int] = set()
    for file in files:
        header = file.header()
        for number, unit_hash, physical_offset, time_diff in file.chain(hash_value, header):
            if unit_hash != hash_value:
                continue
            if number > 1 and 0 < time_diff < _TIME_DIFF_MAX:
                time = header.begin_timestamp + time_diff * 1000
                if (begin is not None and time + 999 < begin) or (end is not None and time > end):
                    continue
            found.add(physical_offset)
    return np.array(sorted(found), np.int64)

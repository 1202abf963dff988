"""Looking a key up over all index files: as the broker answers, caps and all, and as a reader wants it,
complete.

Both give candidates, since files know only hashes; whoever reads the messages compares topic and key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.index.file import IndexFile, index_key, key_hash

__all__ = ["MSGS_NUM_BATCH_MAX", "QueryOffsetResult", "find_offsets", "query_message", "query_offsets"]

MSGS_NUM_BATCH_MAX = 64  # MessageStoreConfig.maxMsgsNumBatch
_TIME_DIFF_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class QueryOffsetResult:
    """Offsets newest file first, newest unit first, repeats included; and how far the newest file reaches."""

    physical_offsets: list[int]
    index_last_update_timestamp: int
    index_last_update_physical_offset: int


def query_offsets(
    files: Sequence[IndexFile],
    topic: str,
    key: str,
    max_num: int,
    begin: int,
    end: int,
    index_type: str | None = None,
) -> QueryOffsetResult:
    """IndexService.queryOffset. `files` in the order of `list_index_files`."""
    hash_value = key_hash(index_key(topic, key, index_type))
    max_num = min(max_num, MSGS_NUM_BATCH_MAX)
    offsets: list[int] = []
    newest = files[-1].header() if files else None
    for file in reversed(files):
        header = file.header()
        if header.matches_time(begin, end):
            offsets += file.lookup(hash_value, begin, end, max_num - len(offsets))
        if header.begin_timestamp < begin or len(offsets) >= max_num:
            break
    if newest is None:
        return QueryOffsetResult(offsets, 0, 0)
    return QueryOffsetResult(offsets, newest.end_timestamp, newest.end_physical_offset)


def query_message(
    files: Sequence[IndexFile],
    topic: str,
    key: str,
    max_num: int,
    begin: int,
    end: int,
    has_message: Callable[[int], bool],
    index_type: str | None = None,
) -> list[int]:
    """Physical offsets of the messages that DefaultMessageStore.queryMessage returns, in its order:
    ascending, repeats included.

    `has_message` says whether the commitlog holds a message at an offset. The broker makes up to three
    rounds, each up to the store time of the round's first message, as long as it has found nothing. But a
    first message with a store time has been found, and without one the next round is the same again: one
    round gives the answer of three.
    """
    result = query_offsets(files, topic, key, max_num, begin, end, index_type)
    return [offset for offset in sorted(result.physical_offsets) if has_message(offset)]


def find_offsets(
    files: Sequence[IndexFile],
    topic: str,
    key: str,
    begin: int | None = None,
    end: int | None = None,
    index_type: str | None = None,
) -> NDArray[np.int64]:
    """All candidates, ascending, each once: no cap, no stop at the first unit out of the window.

    With `begin` or `end` (ms, both inclusive) nothing is left out that could lie in the window; what is left
    may lie outside of it. A unit's time is known to the second, and not at all where the broker had to clamp
    it: 0 seconds is also written for a clock that went back, the first unit of a file counts from the end of
    the file before.
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

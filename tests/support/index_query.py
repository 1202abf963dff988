"""A query by key as a broker answers it (IndexService.queryOffset, DefaultMessageStore.queryMessage), with
its limits: the witness for the order of chains and the times of units, which the goldens' answers check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from store_format.index.file import IndexFile, IndexHeader, index_key, key_hash
from store_format.index.query import offsets_in_chain

MSGS_NUM_BATCH_MAX = 64  # MessageStoreConfig.maxMsgsNumBatch
LONG_MAX = 2**63 - 1


def lookup(
    file: IndexFile, hash_value: int, begin: int = 0, end: int = LONG_MAX, num_max: int | None = None
) -> list[int]:
    """Physical offsets of the units with this hash and window, newest first (IndexFile.selectPhyOffset)."""
    header = file.header()
    found: list[int] = []
    if num_max is not None and num_max <= 0:
        return found
    for _, unit_hash, physical_offset, time_diff in file.chain(hash_value, header):
        if time_diff < 0:
            break
        # a Java long wraps
        time = (header.begin_timestamp + time_diff * 1000 + (1 << 63)) % (1 << 64) - (1 << 63)
        if unit_hash == hash_value and begin <= time <= end:
            found.append(physical_offset)
            if num_max is not None and len(found) >= num_max:
                break
        if time < begin:
            break
    return found


def query_offsets(
    files: Sequence[IndexFile],
    topic: str,
    key: str,
    max_num: int,
    begin: int,
    end: int,
    index_type: str | None = None,
) -> list[int]:
    """IndexService.queryOffset: newest file first, newest unit first, with repetitions."""
    hash_value = key_hash(index_key(topic, key, index_type))
    max_num = min(max_num, MSGS_NUM_BATCH_MAX)
    offsets: list[int] = []
    for file in reversed(files):
        header = file.header()
        if _matches_time(header, begin, end):
            offsets += lookup(file, hash_value, begin, end, max_num - len(offsets))
        if header.begin_timestamp < begin or len(offsets) >= max_num:
            break
    return offsets


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
    """Physical offsets of the messages that DefaultMessageStore.queryMessage returns: ascending, with
    repetitions.

    The broker makes up to three rounds while it has found nothing, each up to the store time of the last
    round's first message. If that message has a store time, it was found; if not, the next round is the same.
    So one round gives the answer of three.
    """
    offsets = query_offsets(files, topic, key, max_num, begin, end, index_type)
    return [offset for offset in sorted(offsets) if has_message(offset)]


def _matches_time(header: IndexHeader, begin: int, end: int) -> bool:
    """IndexFile.isTimeMatched: whether the window covers the file, or begins or ends in it."""
    first, last = header.begin_timestamp, header.end_timestamp
    return (begin < first and end > last) or first <= begin <= last or first <= end <= last


def find_offsets(
    files: Sequence[IndexFile],
    topic: str,
    key: str,
    begin: int | None = None,
    end: int | None = None,
    index_type: str | None = None,
) -> list[int]:
    """The candidates of a search in all files, ascending, each once."""
    hash_value = key_hash(index_key(topic, key, index_type))
    found = (offsets_in_chain(file, file.header(), hash_value, begin, end) for file in files)
    return sorted(set[int]().union(*found))

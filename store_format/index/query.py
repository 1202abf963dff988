"""Searches in all index files of a store: which of them can be trusted, which part of the commitlog they do
not cover, and the candidates for a key.

A file covers the messages between its first and its last one. It may share these two messages with its
neighbours, because a full file can end between two keys of a message. So a search scans them, too. Index
files have only hashes, so a search finds candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, StorePermissionError
from store_format.index.file import IndexFile, index_key, key_hash, open_index_files

_TIME_DIFF_MAX = 2**31 - 1


@dataclass(frozen=True, eq=False, slots=True)
class Coverage:
    """`files` cover the log except the physical ranges [start, stop) of `uncovered`, which ascend.

    `unused` has the path of each other file and the reason. `edges` are the first and last messages of the
    files: they are in `uncovered`, although a file has some of their keys.
    """

    files: tuple[IndexFile, ...]
    unused: tuple[tuple[str, str], ...]
    uncovered: tuple[tuple[int, int], ...]
    edges: frozenset[int]


def plan_coverage(
    directory: str,
    start: int,
    stop: int,
    *,
    is_unit: Callable[[int], bool],
    timestamp_max: int | None = None,
    hash_slot_num: int | None = None,
    index_num: int | None = None,
    keys: Sequence[tuple[str, str]] = (),
) -> Coverage:
    """Which of the log's bytes [start, stop) the index files of a directory cover, for `keys` (topic, key).

    After a crash `timestamp_max` is checkpoint.indexMsgTimestamp: files that end later were not flushed, and
    a broker deletes them (IndexService.load). `is_unit` says whether a message begins at an offset: a file
    whose first or last unit points to none belongs to another log. A file whose links of one of the keys lead
    to a foreign unit has lost units. Raises OptionError as `IndexFile.open` does.
    """
    hashes = [key_hash(index_key(topic, key)) for topic, key in keys]
    try:
        opened = open_index_files(directory, hash_slot_num=hash_slot_num, index_num=index_num)
    except (CorruptStoreError, StorePermissionError) as error:
        return Coverage((), ((directory, str(error)),), ((start, stop),) if stop > start else (), frozenset())
    used: list[IndexFile] = []
    unused: list[tuple[str, str]] = []
    ranges: list[tuple[int, int]] = []
    for file in opened:
        # The header is read once, before the units: messages that a broker adds later are scanned, too.
        first, last, reason = _range(file, start, stop, is_unit, timestamp_max)
        reason = reason or next(filter(None, (_foreign_unit(file, each) for each in hashes)), None)
        if reason is not None:
            unused.append((file.path, reason))
        elif last >= start:
            used.append(file)
            ranges.append((first, last))
    uncovered = _uncovered(ranges, start, stop)
    return Coverage(
        tuple(used), tuple(unused), uncovered, frozenset(edge for pair in ranges for edge in pair)
    )


def _range(
    file: IndexFile, start: int, stop: int, is_unit: Callable[[int], bool], timestamp_max: int | None
) -> tuple[int, int, str | None]:
    """(the first message of the file, the last one, why the file is not used or None)"""
    header = file.header()
    first, last = header.begin_physical_offset, header.end_physical_offset
    if header.index_count <= 1:
        return first, last, "it has no entries"
    if file.geometry is None:
        reason = "its numbers of hash slots and units are unknown: set maxHashSlotNum and maxIndexNum"
        return first, last, reason
    if timestamp_max is not None and header.end_timestamp > timestamp_max:
        times = f"{header.end_timestamp} > {timestamp_max}"
        return first, last, f"the store crashed, and this file was not flushed up to its end ({times})"
    if not 0 <= first <= last < stop:
        return first, last, f"its entries point from {first} to {last}, but the commitlog ends at {stop}"
    for edge in {first, last}:
        if edge >= start and not is_unit(edge):
            return first, last, f"no message begins at {edge}, but its header says so"
    return first, last, None


def _foreign_unit(file: IndexFile, hash_value: int) -> str | None:
    """Why the links of a key's slot cannot be trusted: they lead to a unit of another slot, or of no message
    of the file, as where a page of units was lost with the power.
    """
    header, geometry = file.header(), file.geometry
    assert geometry is not None
    slots, first, last = geometry.hash_slot_num, header.begin_physical_offset, header.end_physical_offset
    for number, unit_hash, physical_offset, _ in file.chain(hash_value, header):
        if unit_hash % slots != hash_value % slots or not first <= physical_offset <= last:
            return f"unit {number} does not belong to the slot whose links lead to it: units were lost"
    return None


def _uncovered(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[tuple[int, int], ...]:
    """The parts of [start, stop) outside the ranges (first message, last message), with these messages."""
    found = []
    cursor = start
    for first, last in sorted(ranges):
        if first >= cursor:
            found.append((cursor, first + 1))
        cursor = max(cursor, last)
    if cursor < stop:
        found.append((cursor, stop))
    return tuple(found)


def find_offsets(
    files: Sequence[IndexFile],
    topic: str,
    key: str,
    begin: int | None = None,
    end: int | None = None,
    index_type: str | None = None,
) -> NDArray[np.int64]:
    """Physical offsets of all candidates, ascending, each once, without a broker's limits.

    Compare topic and key when the messages are read. `begin` and `end` (ms, both inclusive) leave out
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

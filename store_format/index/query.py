"""Searches in all index files of a store: which of them can be trusted, which part of the commitlog they do
not cover, and the candidates for a key.

A file covers the messages between its first and its last one. It may share these two messages with its
neighbours, because a full file can end between two keys of a message. So a search scans them, too. Index
files have only hashes, so a search finds candidates.

A search between two times opens the header only of a file that was written outside of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, StorePermissionError
from store_format.index.file import (
    IndexFile,
    IndexHeader,
    each_at_once,
    index_key,
    key_hash,
    open_index_files,
)

_TIME_DIFF_MAX = 2**31 - 1
_CLOCK_STEP_MAX_MS = 3_600_000  # so far a message may lie outside of its file's times: a clock was set back


@dataclass(frozen=True, eq=False, slots=True)
class Coverage:
    """`files` cover the log except the physical ranges [start, stop) of `uncovered`, which ascend.

    `unused` has the path of each other file and the reason. `edges` are the first and last messages of the
    files: they are in `uncovered`, although a file has some of their keys. `candidates` are the physical
    offsets that the files have for the keys, ascending, each once.
    """

    files: tuple[IndexFile, ...]
    unused: tuple[tuple[str, str], ...]
    uncovered: tuple[tuple[int, int], ...]
    edges: frozenset[int]
    candidates: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


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
    begin: int | None = None,
    end: int | None = None,
) -> Coverage:
    """Which of the log's bytes [start, stop) the index files of a directory cover, for `keys` (topic, key)
    between `begin` and `end` (ms, both inclusive), and the candidates.

    After a crash `timestamp_max` is checkpoint.indexMsgTimestamp: files that end later were not flushed, and
    a broker deletes them (IndexService.load). `is_unit` says whether a message begins at an offset: a file
    whose first or last unit points to none belongs to another log. A file whose links of one of the keys lead
    to a foreign unit has lost units. Raises OptionError as `IndexFile.open` does.
    """
    hashes = [key_hash(index_key(topic, key)) for topic, key in keys]

    def is_wanted(header: IndexHeader) -> bool:
        is_older = begin is not None and header.end_timestamp < begin - _CLOCK_STEP_MAX_MS
        return not is_older and (end is None or header.begin_timestamp <= end + _CLOCK_STEP_MAX_MS)

    try:
        opened = open_index_files(
            directory, hash_slot_num=hash_slot_num, index_num=index_num, is_wanted=is_wanted
        )
    except (CorruptStoreError, StorePermissionError) as error:
        return Coverage((), ((directory, str(error)),), ((start, stop),) if stop > start else (), frozenset())

    def look(file: IndexFile) -> tuple[IndexFile, IndexHeader, str | None]:
        # The header is read once, before the units: messages that a broker adds later are scanned, too.
        header = file.header()
        reason = _reason(file, header, start, stop, is_unit, timestamp_max)
        if reason is None and file.geometry is None and is_wanted(header):
            reason = "its numbers of hash slots and units are unknown: set maxHashSlotNum and maxIndexNum"
        return file, header, reason

    def follow(chain: tuple[IndexFile, IndexHeader, int]) -> tuple[str | None, set[int]]:
        foreign = _foreign_unit(*chain)
        return foreign, set() if foreign else offsets_in_chain(*chain, begin, end)

    looks = list(each_at_once(directory, opened, look))
    reasons = {file: reason for file, _, reason in looks if reason is not None}
    ranges = {
        file: (header.begin_physical_offset, header.end_physical_offset)
        for file, header, _ in looks
        if file not in reasons and header.end_physical_offset >= start
    }
    chains = [
        (file, header, each)
        for file, header, _ in looks
        if file in ranges and is_wanted(header)
        for each in hashes
    ]
    found: dict[IndexFile, set[int]] = {file: set() for file in ranges}
    for (file, *_), (foreign, offsets) in zip(chains, each_at_once(directory, chains, follow), strict=True):
        found[file] |= offsets
        if foreign is not None:
            reasons.setdefault(file, foreign)
    used = [file for file in ranges if file not in reasons]
    edges = [ranges[file] for file in used]
    return Coverage(
        tuple(used),
        tuple((file.path, reasons[file]) for file in opened if file in reasons),
        _uncovered(edges, start, stop),
        frozenset(edge for pair in edges for edge in pair),
        np.array(sorted(set[int]().union(*(found[file] for file in used))), np.int64),
    )


def _reason(
    file: IndexFile,
    header: IndexHeader,
    start: int,
    stop: int,
    is_unit: Callable[[int], bool],
    timestamp_max: int | None,
) -> str | None:
    """Why a file is not used, by its header; None if nothing is against it."""
    first, last = header.begin_physical_offset, header.end_physical_offset
    if header.index_count <= 1:
        return "it has no entries"
    if timestamp_max is not None and header.end_timestamp > timestamp_max:
        times = f"{header.end_timestamp} > {timestamp_max}"
        return f"the store crashed, and this file was not flushed up to its end ({times})"
    if not 0 <= first <= last < stop:
        return f"its entries point from {first} to {last}, but the commitlog ends at {stop}"
    for edge in {first, last}:
        if edge >= start and not is_unit(edge):
            return f"no message begins at {edge}, but its header says so"
    return None


def _foreign_unit(file: IndexFile, header: IndexHeader, hash_value: int) -> str | None:
    """Why the links of a key's slot cannot be trusted: they lead to a unit of another slot, or of no message
    of the file, as where a page of units was lost with the power.
    """
    geometry = file.geometry
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


def offsets_in_chain(
    file: IndexFile, header: IndexHeader, hash_value: int, begin: int | None = None, end: int | None = None
) -> set[int]:
    """Physical offsets of the units of a file with this hash, without a broker's limits.

    Compare topic and key when the messages are read. `begin` and `end` (ms, both inclusive) leave out
    only units that cannot lie in the window, so the result may contain others. The time of a unit is known to
    the second, and not at all where the broker clamped it: it also writes 0 seconds when the clock went back,
    and the first unit of a file counts from the end of the file before.
    """
    found: set[int] = set()
    for number, unit_hash, physical_offset, time_diff in file.chain(hash_value, header):
        if unit_hash != hash_value:
            continue
        if number > 1 and 0 < time_diff < _TIME_DIFF_MAX:
            time = header.begin_timestamp + time_diff * 1000
            if (begin is not None and time + 999 < begin) or (end is not None and time > end):
                continue
        found.add(physical_offset)
    return found

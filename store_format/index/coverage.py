"""Which index files may be trusted, and which part of the commitlog they do not cover.

A file covers the messages between the first and the last one it has units of. These two it may share with its
neighbours, because a message's keys can be cut by a full file, so whoever looks for a key scans them as well
as everything outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from store_format.errors import CorruptStoreError, StorePermissionError
from store_format.index.file import IndexFile, open_index_files

__all__ = ["Coverage", "plan_coverage"]


@dataclass(frozen=True, eq=False, slots=True)
class Coverage:
    """`files` answer for the log but for `uncovered`: physical ranges [start, stop), ascending. `unused` says
    why of each other file.

    `edges` are the first and last messages of the files: those are in `uncovered`, though a file knows them
    at least in part.
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
) -> Coverage:
    """What of the log's bytes [start, stop) the index files of a directory cover.

    `timestamp_max`: after a crash, checkpoint.indexMsgTimestamp: files that end later were not flushed, and a
    broker deletes them (IndexService.load). `is_unit` says whether a message stands at an offset: a file
    whose first or last entry leads nowhere is not of this log. Raises OptionError as `IndexFile.open` does.
    """
    try:
        opened = open_index_files(directory, hash_slot_num=hash_slot_num, index_num=index_num)
    except (CorruptStoreError, StorePermissionError) as error:
        return Coverage((), ((directory, str(error)),), ((start, stop),) if stop > start else (), frozenset())
    used: list[IndexFile] = []
    unused: list[tuple[str, str]] = []
    ranges: list[tuple[int, int]] = []
    for file in opened:
        # The header is read once and before the units: what a broker adds meanwhile is scanned, and found
        # twice.
        first, last, reason = _range(file, start, stop, is_unit, timestamp_max)
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
    """The first and the last message of the file, or why it is not used."""
    header = file.header()
    first, last = header.begin_physical_offset, header.end_physical_offset
    if header.index_count <= 1:
        return first, last, "it has no entries"
    if file.geometry is None:
        return (
            first,
            last,
            "its numbers of hash slots and units are not known: give maxHashSlotNum and maxIndexNum",
        )
    if timestamp_max is not None and header.end_timestamp > timestamp_max:
        return (
            first,
            last,
            f"the store crashed, and this file ends after what was flushed ({header.end_timestamp} > {timestamp_max})",
        )
    if not 0 <= first <= last < stop:
        return first, last, f"its entries lead from {first} to {last}, and the commitlog ends at {stop}"
    for edge in {first, last}:
        if edge >= start and not is_unit(edge):
            return first, last, f"no message begins at {edge}, where its header says so"
    return first, last, None


def _uncovered(ranges: Sequence[tuple[int, int]], start: int, stop: int) -> tuple[tuple[int, int], ...]:
    found = []
    cursor = start
    for first, last in sorted(ranges):
        if first >= cursor:
            found.append((cursor, first + 1))
        cursor = max(cursor, last)
    if cursor < stop:
        found.append((cursor, stop))
    return tuple(found)

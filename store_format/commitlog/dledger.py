"""Commitlog files of DLedger (DLedgerCommitLog): in front of each message is the head of its Raft entry.

The physical offset of a message is that of its own first byte, `DLEDGER_HEAD.itemsize` bytes behind the
entry's. So consume queues and index files need no other rules; only a walk passes the heads. A file ends
with a BLANK that has its magic code before its size (DLedgerMmapFileStore, MmapFileList).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import gather_units
from store_format.commitlog.walk import UnitFrame, message_places
from store_format.errors import StoreNotFoundError, StorePermissionError
from store_format.files import paths
from store_format.files.paths import StoreFile
from store_format.files.read import FileCache, files_at
from store_format.layouts import (
    BLANK_HEAD,
    DLEDGER_BLANK,
    DLEDGER_HEAD,
    DLEDGER_INDEX_UNIT,
    DLEDGER_MAGIC,
    DLEDGER_MAGIC_BLANK,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    MESSAGE_SIZE_MIN,
    as_struct,
)
from store_format.message.single import Sliceable, UnitCheck, UnitKind, check_unit

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int64]

# DLedgerLeaderElector, DLedgerEntryPusher: what a broker of a group does that starts
GROUP_RECOVERS = (
    "start the broker: it recovers the log by the heads of the entries. If a majority of its group runs, "
    "the leader gives it the entries that it lacks, and may replace its last ones; without a majority there "
    "is no leader, and the group takes no messages"
)
RESERVED_HOURS_MORE = 1  # a file is kept so much longer than fileReservedTime (DLedgerCommitLog)
DIRECTORY = "data"  # of the files, in `dledger-<dLegerSelfId>` (DLedgerConfig.getDataStorePath)
_SIZE = DLEDGER_HEAD.itemsize
_HEAD = as_struct(DLEDGER_HEAD)
_INDEX_UNIT = as_struct(DLEDGER_INDEX_UNIT)
_START = as_struct(DLEDGER_BLANK)  # magic code and size, of an entry, too
_MESSAGE_START = as_struct(BLANK_HEAD)  # size and magic code, of a message, too
_UNKNOWN = np.full(2, -1, np.int64)  # no entry before


class EntryFrame(UnitFrame):
    """Each message is the body of an entry (DLedgerEntryCoder). The rules are those by which DLedger itself
    recovers (DLedgerMmapFileStore.recover): an entry has its magic code, a size that fits, its own place,
    the index after that of the entry before, and no earlier term. The sums in a head are never filled.

    `previous` has index and term of the entry before; -1 if any may follow. A message whose head is damaged
    is still one: consume queues lead to it, so a walk that begins at a message takes it without a head.
    """

    def check(
        self,
        buffer: Sliceable,
        position: int,
        remaining: int,
        *,
        physical_offset: int,
        verify_crc: bool,
        previous: _Ints | None = None,
    ) -> UnitCheck:
        """Checks the entry at `position`, and the message in it; or a message that has no head."""
        head = bytes(buffer[position : position + min(remaining, _SIZE)])
        if _is_message(head):
            return check_unit(
                buffer, position, remaining, physical_offset=physical_offset, verify_crc=verify_crc
            )
        if len(head) < _START.size:
            if any(head):
                return _torn(0, f"at least {_START.size} bytes", f"{len(head)} bytes")
            return UnitCheck(UnitKind.UNWRITTEN, 0, 0, "an entry", "zeros: nothing written here yet")
        magic, size = _START.unpack_from(head)
        if magic == DLEDGER_MAGIC_BLANK:
            return UnitCheck(UnitKind.BLANK, remaining)
        if magic == size == 0:
            return UnitCheck(UnitKind.UNWRITTEN, 0, 0, "an entry", "zeros: nothing written here yet")
        wrong = _wrong_head(head, remaining, physical_offset, _UNKNOWN if previous is None else previous)
        if wrong is not None:
            return wrong
        check = check_unit(
            buffer,
            position + _SIZE,
            size - _SIZE,
            physical_offset=physical_offset + _SIZE,
            verify_crc=verify_crc,
        )
        if check.kind is UnitKind.OK and check.size == size - _SIZE:
            return check
        if check.kind in (UnitKind.OK, UnitKind.BLANK):
            found = f"{check.kind} of {check.size} bytes"
            return _torn(_SIZE, f"a message of {size - _SIZE} bytes in the entry", found)
        return _torn(_SIZE + check.at, check.expected, check.found)

    def message_at(self, buffer: Sliceable, position: int) -> int:
        """Behind the head, unless a message without one begins here."""
        head = bytes(buffer[position : position + _MESSAGE_START.size])
        return position if _is_message(head) else position + _SIZE

    def note(self, buffer: Sliceable, position: int, previous: _Ints) -> None:
        """Notes index and term of the entry."""
        head = bytes(buffer[position : position + _SIZE])
        previous[:] = -1 if _is_message(head) else _HEAD.unpack(head)[2:4]

    def is_blank(self, buffer: Sliceable, position: int) -> bool:
        """Whether the bytes begin with the magic code of a BLANK."""
        head = bytes(buffer[position : position + _START.size])
        return len(head) == _START.size and _START.unpack(head)[0] == DLEDGER_MAGIC_BLANK

    def follow(
        self,
        buffer: _Bytes,
        stop: int,
        position: int,
        physical: int,
        verify_crc: bool,
        previous: _Ints,
        positions: _Ints,
        sizes: _Ints,
    ) -> tuple[int, bool]:
        """As `UnitFrame.follow`. A message begins behind its head."""
        follow = kernels.walk.follow_entries if kernels.ready() else follow_entries
        count, wrong = follow(buffer, stop, position, physical, verify_crc, previous, positions, sizes)
        return count, bool(wrong)

    def candidates(self, data: _Bytes, count: int, file: StoreFile, at: int) -> list[int]:
        """Also messages whose head may be damaged."""
        found = {*message_places(data, count, file, at)}
        starts = gather_units(data, places := _places(data, count, _START.size), DLEDGER_BLANK)
        is_blank = (starts["magic"] == DLEDGER_MAGIC_BLANK) & (starts["size"] == file.size - at - places)
        found.update((at + places[is_blank]).tolist())
        heads = gather_units(data, places := _places(data, count, _SIZE), DLEDGER_HEAD)
        is_head = (heads["magic"] == DLEDGER_MAGIC) & (heads["pos"] == places + (file.start + at))
        found.update((at + places[is_head]).tolist())
        return sorted(found)


def _places(data: _Bytes, count: int, size: int) -> _Ints:
    """Where the magic code of an entry or of a BLANK may begin, with `size` bytes."""
    count = min(count, len(data) - size + 1)
    if count <= 0:
        return np.empty(0, np.int64)
    first, last = data[:count], data[3 : count + 3]
    same = (first == data[1 : count + 1]) & (first == data[2 : count + 2])
    return np.flatnonzero(same & ((first == 0) & (last == 1) | (first == 0xFF) & (last == 0xFF)))


def _is_message(head: bytes) -> bool:
    return len(head) >= _MESSAGE_START.size and _MESSAGE_START.unpack_from(head)[1] in (MAGIC_V1, MAGIC_V2)


def _size_of(data: bytes, at: int) -> int:
    """The bytes of the message of an entry; 0 if no entry begins there."""
    magic, size = _START.unpack_from(data, at)
    return int(size) - _SIZE if magic == DLEDGER_MAGIC else 0


def _torn(at: int, expected: str, found: str) -> UnitCheck:
    return UnitCheck(UnitKind.TORN, 0, at, expected, found)


def _wrong_head(head: bytes, remaining: int, place: int, previous: _Ints) -> UnitCheck | None:
    """What is wrong with the head of the entry at the physical offset `place`; None if nothing is."""
    magic, size = _START.unpack_from(head)
    if magic != DLEDGER_MAGIC:
        expected = f"magic code {DLEDGER_MAGIC} of a DLedger entry, or {DLEDGER_MAGIC_BLANK} (blank)"
        return _torn(0, expected, str(magic))
    if not _SIZE + MESSAGE_SIZE_MIN <= size <= remaining or len(head) < _SIZE:
        expected = f"an entry of {_SIZE + MESSAGE_SIZE_MIN} to {remaining} bytes"
        return _torn(4, expected, f"size {size}")
    _, _, index, term, pos, _, _, _, body_size = _HEAD.unpack(head)
    before, least = previous.tolist()
    for at, name, expected, value, is_right in (
        (8, "index", str(before + 1), index, index >= 0 and before in (-1, index - 1)),
        (16, "term", f"{max(least, 0)} or later", term, term >= max(least, 0)),
        (24, "pos", str(place), pos, pos == place),
        (44, "body size", str(size - _SIZE), body_size, body_size == size - _SIZE),
    ):
        if not is_right:
            return _torn(at, f"{name} {expected} in the head of a DLedger entry", str(value))
    return None


ENTRIES = EntryFrame()


def follow_entries(
    buffer: _Bytes,
    stop: int,
    position: int,
    physical: int,
    verify_crc: bool,
    previous: _Ints,
    positions: _Ints,
    sizes: _Ints,
) -> tuple[int, bool]:
    """The kernel of the same name for a few entries: without numba."""
    data, at, count = buffer.tobytes(), 0, 0
    while (place := ENTRIES.message_at(data, at)) < min(stop, len(data) - MESSAGE_SIZE_MIN + 1):
        size = _MESSAGE_START.unpack_from(data, place)[0] if place == at else _size_of(data, at)
        if not MESSAGE_SIZE_MIN <= size <= len(data) - place:
            break
        check = ENTRIES.check(
            data,
            at,
            place - at + size,
            physical_offset=physical + at,
            verify_crc=verify_crc,
            previous=previous,
        )
        if check.kind is not UnitKind.OK:
            return count, True
        ENTRIES.note(data, at, previous)
        positions[count], sizes[count] = position + place, size
        count, at = count + 1, place + size
    return count, False


def entry_index(log_file: StoreFile, cache: FileCache, message_offset: int) -> int | None:
    """The index of the entry in front of the message at a physical offset; None without a head."""
    at = message_offset - log_file.start - _SIZE
    if not log_file.head_size or at < 0:
        return None
    head = cache.view(log_file).read(at, _SIZE)
    right = (
        len(head) == _SIZE and _wrong_head(head, log_file.size - at, at + log_file.start, _UNKNOWN) is None
    )
    return int(_HEAD.unpack(head)[2]) if right else None


def committed_index(ledger: str) -> int | None:
    """The committedIndex of a ledger's checkpoint (DLedgerMmapFileStore.persistCheckPoint); None without
    one. `ledger` is the directory `dledger-<id>`. A running broker writes it every few seconds.
    """
    data = files_at(ledger).read(f"{ledger}/checkpoint") or b""
    found = re.search(rb"^committedIndex=(-?\d{1,18})\s*$", data, re.MULTILINE)
    return None if found is None else int(found[1])


def committed_stop(ledger: str, log_files: Iterable[StoreFile], cache: FileCache) -> int | None:
    """The physical offset behind the last committed entry of a ledger whose broker was stopped in order; None
    if all entries are committed, or the ledger's own index does not show where the next one is.
    """
    committed = committed_index(ledger)
    at = -1 if committed is None else (committed + 1) * DLEDGER_INDEX_UNIT.itemsize
    for file in files_at(ledger).store_files(f"{ledger}/index"):
        if file.start <= at < file.stop:
            unit = cache.view(file).read(at - file.start, DLEDGER_INDEX_UNIT.itemsize)
            pos = _INDEX_UNIT.unpack(unit)[1] if len(unit) == DLEDGER_INDEX_UNIT.itemsize else -1
            log_file = next((each for each in log_files if each.start <= pos < each.stop), None)
            if log_file is not None and entry_index(log_file, cache, pos + _SIZE) == (committed or 0) + 1:
                return int(pos)
    return None


# ---- which files have heads --------------------------------------------------------------------------------


def with_heads(directory: str, files: Iterable[StoreFile], cache: FileCache) -> list[StoreFile]:
    """The commitlog files of a directory, which say whether their messages have heads.

    `commitlog` has none. The files of another directory show it: storePathCommitLog and
    storePathDLedgerCommitLog give any name. The first file whose first record is right decides, so that a
    damaged one does not.
    """
    listed = sorted(files, key=lambda file: file.start)
    if paths.base_name(directory) == "commitlog" or not listed:
        return listed
    key = (with_heads, directory)
    size = cache.found.get(key)
    for file in listed if size is None else ():
        size = _shown_head_size(file, cache)
        if size is not None:
            cache.found[key] = size
            break
    if size is None:  # no file shows it
        size = _SIZE if paths.base_name(paths.parent(directory)).startswith("dledger-") else 0
    assert isinstance(size, int)
    return [replace(file, head_size=size) for file in listed] if size else listed


def _shown_head_size(file: StoreFile, cache: FileCache) -> int | None:
    try:
        head = cache.view(file).read(0, min(_SIZE, file.size))
    except (StorePermissionError, StoreNotFoundError):  # a reader of the file raises the error
        return None
    if len(head) < _MESSAGE_START.size:
        return None
    if _is_message(head) or _MESSAGE_START.unpack_from(head)[1] == MAGIC_BLANK:
        return 0
    is_head = len(head) == _SIZE and _wrong_head(head, file.size, file.start, _UNKNOWN) is None
    return _SIZE if is_head else None

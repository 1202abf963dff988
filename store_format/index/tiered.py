"""Index files of tiered storage (IndexStoreFile): which messages of uploaded queues have a key.

An uploaded file is a segment with a header, hash slots, and items by slot. The number of slots is a setting
that the header lacks; the length of the file gives it. Items are read in one pass, without the slots, so that
they also show which part of each queue's log the files cover: a broker indexes the messages of a queue in
their order. Files that are still being written in the store are not read: their messages are behind those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from store_format.consumequeue.own_files import read_listed
from store_format.errors import CorruptStoreError
from store_format.files.paths import StoreFile
from store_format.files.read import FileCache
from store_format.layouts import TIERED_INDEX_HEADER, TIERED_INDEX_ITEM, unpack

_ITEMS_AT_ONCE = 1 << 17
_SLOT_SIZE = 8
_COMPACTED = 0xBCC50285 - (1 << 32)  # IndexStoreFile.COMPACTED_INDEX_FILE_MAGIC_CODE


class IndexedLog(NamedTuple):
    """What index files have of one queue: the offsets in its log at which messages with the key may begin,
    and the first and the last offset that they have at all.
    """

    candidates: tuple[int, ...]
    first: int
    last: int


def indexed_logs(files: Sequence[StoreFile], hashes: Mapping[int, int]) -> dict[tuple[int, int], IndexedLog]:
    """By (topic id, queue id), for the topic ids that `hashes` has with the hash of `topic#key`.

    Raises CorruptStoreError for a file that is no uploaded index file.
    """
    wanted = np.array([*hashes], np.int64)
    found: dict[tuple[int, int], IndexedLog] = {}
    for file in files:
        for items in _items_of(file):
            topics, queues, offsets = (
                items[name].astype(np.int64) for name in ("topic_id", "queue_id", "physical_offset")
            )
            places = topics << 32 | queues & 0xFFFFFFFF
            for place in np.unique(places[np.isin(topics, wanted)]).tolist():
                mine = np.flatnonzero(places == place)
                key = place >> 32, int(queues[mine[0]])
                same = mine[items["key_hash"][mine] == hashes[key[0]]]
                before = found.get(key, IndexedLog((), int(offsets[mine[0]]), int(offsets[mine[0]])))
                found[key] = IndexedLog(
                    (*before.candidates, *offsets[same].tolist()),
                    min(before.first, int(offsets[mine].min())),
                    max(before.last, int(offsets[mine].max())),
                )
    return found


def _items_of(file: StoreFile) -> Iterator[NDArray[np.void]]:
    cache, size = FileCache(1), TIERED_INDEX_HEADER.itemsize
    if file.size < size:
        raise CorruptStoreError(file.path, 0, f"a header of {size} bytes", f"{file.size} bytes")
    header = unpack(read_listed(file, 0, size, cache), TIERED_INDEX_HEADER)[0]
    magic, count = int(header["magic"]), int(header["item_count"])
    left = file.size - size - count * TIERED_INDEX_ITEM.itemsize
    if magic != _COMPACTED or count < 0 or left < 0 or left % _SLOT_SIZE:
        expected = "an uploaded index file: magic code 0xBCC50285, whole hash slots, and the items"
        raise CorruptStoreError(file.path, 0, expected, f"0x{magic & 0xFFFFFFFF:08X}, {count} items")
    for first in range(0, count, _ITEMS_AT_ONCE):
        start, stop = (
            size + left + number * TIERED_INDEX_ITEM.itemsize
            for number in (first, min(first + _ITEMS_AT_ONCE, count))
        )
        yield unpack(read_listed(file, start, stop, cache), TIERED_INDEX_ITEM)

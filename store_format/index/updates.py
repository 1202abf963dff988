"""The bytes that a broker's IndexService writes for a batch of messages, and their places; nothing here
touches a file.

All units of one file are computed at once. Sorted by slot and number, the unit before another one of its slot
is its predecessor in the chain; the first one's predecessor is the slot's value before the batch
(IndexFile.putKey, spec 4.3 to 4.5).
"""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from store_format.errors import CorruptStoreError, OptionError
from store_format.index.file import IndexFile, IndexHeader, index_file_name
from store_format.index.geometry import DEFAULT_GEOMETRY, IndexGeometry
from store_format.layouts import INDEX_HEADER, INDEX_SLOT, INDEX_UNIT, pack

_PLACE_BITS = 32
_PLACE_MASK = (1 << _PLACE_BITS) - 1
_INT_MAX = 2**31 - 1
_NAME_STOP = 10**17  # names have 17 digits
_NO_SLOTS = np.empty(0, INDEX_SLOT)

_Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class IndexState:
    """The last index file of a store before an update. `slots` are as stored; missing slots count as 0."""

    name: str
    header: IndexHeader
    slots: NDArray[np.int32]

    @classmethod
    def read(cls, file: IndexFile) -> IndexState:
        """`slots` is a view of the mapped file: use it before the update is written."""
        return cls(file.path.rpartition("/")[2], file.header(), file.slots())


@dataclass(frozen=True, eq=False, slots=True)
class IndexBatch:
    """All dispatched messages in the order of the commitlog, and their entries from `index_key_hashes`."""

    physical_offsets: _Ints
    store_timestamps: _Ints
    key_hashes: NDArray[np.int32]
    message_index: _Ints  # the message of each entry, ascending


@dataclass(frozen=True, eq=False, slots=True)
class IndexUpdate:
    """The update of one file: units from number `unit_start` on, new `slot_values`, and then the header.

    A new file must be created with `geometry.file_size` bytes. Slots ascend.
    """

    name: str
    is_new: bool
    geometry: IndexGeometry
    header: IndexHeader
    unit_start: int
    units: NDArray[np.void]
    slot_numbers: _Ints
    slot_values: NDArray[np.int32]

    @property
    def header_bytes(self) -> bytes:
        return pack(
            INDEX_HEADER, {name: getattr(self.header, name) for name in INDEX_HEADER.names or ()}
        ).tobytes()

    @property
    def units_position(self) -> int:
        """The byte at which `units` begin."""
        return self.geometry.units_start + INDEX_UNIT.itemsize * self.unit_start


def index_updates(
    state: IndexState | None,
    batch: IndexBatch,
    *,
    geometry: IndexGeometry = DEFAULT_GEOMETRY,
    timestamp: int,
    zone: datetime.tzinfo,
) -> list[IndexUpdate]:
    """The updates of a broker's index files for a batch, file by file. `state` is None without an index file.

    New files are named by `timestamp` (ms) in `zone`. As in the broker, a message before the last file's end
    offset adds nothing, and each message, with or without keys, creates a file if there is none or the last
    one is full. Raises OptionError for a geometry without room for an entry, and CorruptStoreError for a last
    file whose name leaves no room for a later name.
    """
    if geometry.hash_slot_num < 1 or geometry.index_num < 2:
        raise OptionError(
            f"maxHashSlotNum={geometry.hash_slot_num}, maxIndexNum={geometry.index_num} leave no room for "
            "an index entry"
        )
    if not len(batch.physical_offsets):
        return []
    updates: list[IndexUpdate] = []
    start, stop = _first_entry(state, batch), len(batch.key_hashes)
    file = state
    while True:
        if file is None or file.header.index_count >= geometry.index_num:
            file = _new_file(file, timestamp, zone)
        file_stop = min(start + geometry.index_num - file.header.index_count, stop)
        is_new = file is not state
        if is_new or file_stop > start:
            updates.append(_put(file, is_new, geometry, batch, start, file_stop))
            file = replace(file, header=updates[-1].header)
        # Only a message creates a file: a full file stays the last one until the next message.
        if file_stop == stop and not (
            file.header.index_count >= geometry.index_num and _message_follows(batch)
        ):
            return updates
        start = file_stop


def next_index_file_name(last: str | None, timestamp: int, zone: datetime.tzinfo) -> str:
    """The name by the clock; one ms after `last` if the clock, or the time in the zone, is not behind it yet.

    Names must ascend, because brokers and this project take the file with the last name as the last file.

    >>> next_index_file_name("20231114221359999", 1700000000123, datetime.timezone.utc)
    '20231114221400000'
    """
    name = index_file_name(timestamp, zone)
    if last is None or name > last:
        return name
    try:
        year, month, day, hour, minute, second = (
            int(last[:4]),
            *(int(last[place : place + 2]) for place in range(4, 14, 2)),
        )
        # Without a zone, because only the digits count.
        moment = datetime.datetime(
            year, month, day, hour, minute, second, 1000 * int(last[14:])
        ) + datetime.timedelta(milliseconds=1)
        return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
    except (ValueError, OverflowError):  # a broker loads any name that is a number
        if int(last) + 1 < _NAME_STOP:
            return f"{int(last) + 1:017d}"
    raise CorruptStoreError(
        f"index/{last}", 0, "an index file whose name leaves room for a later name", "the last possible name"
    )


# ---- files -------------------------------------------------------------------------------------------------


def _new_file(last: IndexState | None, timestamp: int, zone: datetime.tzinfo) -> IndexState:
    """A new file, which begins where the last one ended (IndexFile's constructor, IndexFile.flush)."""
    end_timestamp = max(last.header.end_timestamp, 0) if last is not None else 0
    end_offset = max(last.header.end_physical_offset, 0) if last is not None else 0
    header = IndexHeader(
        end_timestamp, end_timestamp, end_offset, end_offset, hash_slot_count=0, index_count=1
    )
    return IndexState(
        next_index_file_name(last.name if last is not None else None, timestamp, zone), header, _NO_SLOTS
    )


def _first_entry(state: IndexState | None, batch: IndexBatch) -> int:
    """The first entry of a message at or behind the last file's end offset. Offsets of messages ascend."""
    end_offset = state.header.end_physical_offset if state is not None else 0
    return int(np.searchsorted(batch.message_index, np.searchsorted(batch.physical_offsets, end_offset)))


def _message_follows(batch: IndexBatch) -> bool:
    """Whether a message follows the message of the last entry."""
    return not len(batch.message_index) or int(batch.message_index[-1]) < len(batch.physical_offsets) - 1


# ---- entries -----------------------------------------------------------------------------------------------


def _put(
    file: IndexState, is_new: bool, geometry: IndexGeometry, batch: IndexBatch, start: int, stop: int
) -> IndexUpdate:
    """The update of one file for the entries [start, stop) of a batch."""
    header, units, no_slots = file.header, np.empty(stop - start, INDEX_UNIT), np.empty(0, np.int64)
    first_number = header.index_count
    if not len(units):
        return IndexUpdate(file.name, is_new, geometry, header, first_number, units, no_slots, _NO_SLOTS)
    hashes, messages = batch.key_hashes[start:stop], batch.message_index[start:stop]
    previous, slot_numbers, slot_values, slots_taken = _chain(
        hashes, geometry.hash_slot_num, first_number, file.slots
    )
    first, last = int(messages[0]), int(messages[-1])
    offsets, timestamps = batch.physical_offsets[first : last + 1], batch.store_timestamps[first : last + 1]
    messages = messages - first
    units["key_hash"] = hashes
    units["physical_offset"] = offsets[messages]
    units["prev_index"] = previous
    begin = (header.begin_timestamp, header.begin_physical_offset)
    if first_number <= 1:
        begin = (int(timestamps[0]), int(offsets[0]))
    units["time_diff"] = _time_diffs(timestamps, begin[0])[messages]
    # The first unit of a rolled file counts from the end of the file before: the header takes the unit's time
    # only afterwards.
    if first_number <= 1:
        units["time_diff"][0] = _time_diffs(timestamps[:1], header.begin_timestamp)[0]
    after = IndexHeader(
        begin_timestamp=begin[0],
        end_timestamp=int(timestamps[-1]),
        begin_physical_offset=begin[1],
        end_physical_offset=int(offsets[-1]),
        # a Java int wraps
        hash_slot_count=(header.hash_slot_count + slots_taken + (1 << 31)) % (1 << 32) - (1 << 31),
        index_count=first_number + len(units),
    )
    return IndexUpdate(file.name, is_new, geometry, after, first_number, units, slot_numbers, slot_values)


def _time_diffs(timestamps: _Ints, begin: int) -> NDArray[np.int32]:
    """Whole seconds after `begin`, in [0, 2^31); 0 without a begin."""
    if begin <= 0:
        return np.zeros(len(timestamps), np.int32)
    # below 0 the result is clipped, however // rounds
    return np.clip((timestamps - begin) // 1000, 0, _INT_MAX).astype(np.int32)


def _chain(
    hashes: NDArray[np.int32], hash_slot_num: int, first_number: int, stored: NDArray[np.int32]
) -> tuple[NDArray[np.int32], _Ints, NDArray[np.int32], int]:
    """(prev_index of each unit, changed slots, their new values, how many of these slots were empty).

    One sort of 64-bit words, with the slot in the high bits, takes 20 ns a unit; a stable argsort by slot 300
    ns.
    """
    words = hashes.astype(np.int64) % hash_slot_num
    words <<= _PLACE_BITS
    words |= np.arange(len(words))
    words.sort()
    places, slots = words & _PLACE_MASK, words >> _PLACE_BITS
    numbers = (places + first_number).astype(np.int32)
    heads, tails = np.ones(len(words), bool), np.ones(len(words), bool)
    np.not_equal(slots[1:], slots[:-1], out=heads[1:])
    tails[:-1] = heads[1:]
    chained = np.empty(len(words), np.int32)
    chained[1:] = numbers[:-1]
    before = _stored_values(stored, slots[heads])
    # IndexFile.putKey takes a slot's value above the new number as empty
    before[(before < 0) | (before > numbers[heads])] = 0
    chained[heads] = before
    previous = np.empty(len(words), np.int32)
    previous[places] = chained
    return previous, slots[tails], numbers[tails].astype(INDEX_SLOT), int(np.count_nonzero(before == 0))


def _stored_values(stored: NDArray[np.int32], slots: _Ints) -> NDArray[np.int32]:
    """The values of ascending slots; 0 for slots that a short file lacks."""
    values = np.zeros(len(slots), np.int32)
    there = int(np.searchsorted(slots, len(stored)))
    values[:there] = stored[slots[:there]]
    return values

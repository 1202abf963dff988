"""What a broker's IndexService writes for a batch of messages: the hashes of their keys, the bytes, their
places, and how to write them.

`index_key_hashes` has the hashes in the broker's order (IndexService.buildIndex). `index_updates` touches no
file. Each unit takes the value of its slot as its predecessor in the chain, and its number becomes the slot's
value (IndexFile.putKey, spec 4.3 to 4.5).

`IndexFiles` writes first the units, then the slots that point to them, then the header. With this order a
half-written file can be rewound to an earlier header: every unit that a slot points to has its predecessor on
disk, so the chains can be followed back to the earlier units.

A new file gets its header before its slots. A broker that recovers the store deletes an index file whose end
time is behind the checkpoint's (IndexService.load). It would keep a file without a header, and link its own
entries to the units that the slots point to.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from store_format import kernels
from store_format.arrays.ranges import flat_bytes, without_nulls
from store_format.errors import CorruptStoreError, OptionError
from store_format.files.read import files_at
from store_format.files.write import FileWrites, WritableFile
from store_format.index.file import (
    DEFAULT_GEOMETRY,
    IndexFile,
    IndexGeometry,
    IndexHeader,
    IndexSlots,
    index_file_name,
    index_key,
    key_hash,
    list_index_files,
)
from store_format.java.text import decode_utf8, java_hash
from store_format.layouts import INDEX_HEADER, INDEX_UNIT, pack
from store_format.message import sysflag
from store_format.message.locate import UnitRefs, Units, locate
from store_format.message.properties import PropertyTable
from store_format.names import KEYS, TAGS, UNIQ_KEY

_INT_MAX = 2**31 - 1
_NAME_STOP = 10**17  # names have 17 digits

_Ints = NDArray[np.int64]

_HASH_MASK = 0xFFFFFFFF

_Hashes = tuple[NDArray[np.int32], NDArray[np.int64]]


# ---- what is written ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class IndexState:
    """The last index file of a store before an update. An update changes `slots`, in memory."""

    name: str
    header: IndexHeader
    slots: IndexSlots

    @classmethod
    def read(cls, file: IndexFile) -> IndexState:
        return cls(file.path.rpartition("/")[2], file.header(), file.slots_to_change())


@dataclass(frozen=True, eq=False, slots=True)
class IndexBatch:
    """All dispatched messages in the order of the commitlog, and their entries from `index_key_hashes`."""

    physical_offsets: _Ints
    store_timestamps: _Ints
    key_hashes: NDArray[np.int32]
    message_index: _Ints  # the message of each entry, ascending

    def message(self, entry: int) -> tuple[int, int]:
        """(store time, physical offset) of the message of an entry."""
        message = self.message_index[entry]
        return int(self.store_timestamps[message]), int(self.physical_offsets[message])


@dataclass(frozen=True, eq=False, slots=True)
class IndexUpdate:
    """The update of one file: units from number `unit_start` on, the changed slots, and then the header.

    A new file must be created with `geometry.file_size` bytes. Several updates of a file may be written
    together: all units, the slots, and the last header.
    """

    state: IndexState  # of the file with this update
    is_new: bool
    geometry: IndexGeometry
    unit_start: int
    units: NDArray[np.void]

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
            file = _new_file(file, geometry, timestamp, zone)
        file_stop = min(start + geometry.index_num - file.header.index_count, stop)
        is_new = file is not state
        if is_new or file_stop > start:
            updates.append(_put(file, is_new, geometry, batch, start, file_stop))
            file = updates[-1].state
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


def _new_file(
    last: IndexState | None, geometry: IndexGeometry, timestamp: int, zone: datetime.tzinfo
) -> IndexState:
    """A new file, which begins where the last one ended (IndexFile's constructor, IndexFile.flush)."""
    end_timestamp = max(last.header.end_timestamp, 0) if last is not None else 0
    end_offset = max(last.header.end_physical_offset, 0) if last is not None else 0
    header = IndexHeader(
        end_timestamp, end_timestamp, end_offset, end_offset, hash_slot_count=0, index_count=1
    )
    name = next_index_file_name(last.name if last is not None else None, timestamp, zone)
    return IndexState(name, header, IndexSlots.empty(geometry))


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
    header, units, number = file.header, np.empty(stop - start, INDEX_UNIT), file.header.index_count
    if not len(units):
        return IndexUpdate(file, is_new, geometry, number, units)
    entries = replace(
        batch, key_hashes=batch.key_hashes[start:stop], message_index=batch.message_index[start:stop]
    )
    first, last = entries.message(0), entries.message(-1)
    begin = header.begin_timestamp, header.begin_physical_offset
    if number <= 1:
        begin = first
    insert = _insert if kernels.ready(len(units)) else _insert_one_by_one
    taken = insert(file.slots, geometry.hash_slot_num, units, number, entries, begin[0])
    if number <= 1:
        # The first unit of a rolled file counts from the end of the file before: the header takes the unit's
        # time only afterwards.
        units["time_diff"][0] = _time_diff(first[0], header.begin_timestamp)
    after = IndexHeader(
        begin_timestamp=begin[0],
        end_timestamp=last[0],
        begin_physical_offset=begin[1],
        end_physical_offset=last[1],
        # a Java int wraps
        hash_slot_count=(header.hash_slot_count + taken + (1 << 31)) % (1 << 32) - (1 << 31),
        index_count=number + len(units),
    )
    return IndexUpdate(replace(file, header=after), is_new, geometry, number, units)


def _time_diff(timestamp: int, begin: int) -> int:
    """Whole seconds after `begin`, in [0, 2^31); 0 without a begin. The difference wraps as a Java long."""
    wrapped = (timestamp - begin + (1 << 63)) % (1 << 64) - (1 << 63)
    return min(max(wrapped // 1000, 0), _INT_MAX) if begin > 0 else 0


def _insert(
    slots: IndexSlots, slot_num: int, units: NDArray[np.void], number: int, entries: IndexBatch, begin: int
) -> int:
    """Fills `units`, changes the slots, and returns how many slots were empty."""
    taken = kernels.index_entries.insert(
        slots.head,
        slots.pages,
        slot_num,
        units.view(np.uint8),
        number,
        np.ascontiguousarray(entries.key_hashes),
        np.ascontiguousarray(entries.message_index),
        np.ascontiguousarray(entries.physical_offsets),
        np.ascontiguousarray(entries.store_timestamps),
        begin,
    )
    assert taken >= 0, "arrays that do not fit together"
    return int(taken)


def _insert_one_by_one(
    slots: IndexSlots, slot_num: int, units: NDArray[np.void], number: int, entries: IndexBatch, begin: int
) -> int:
    """`_insert` without the kernel."""
    values, taken = slots.values, 0
    changed = entries.key_hashes.astype(np.int64) % slot_num
    slots.mark(changed)
    for i, (slot, hash_value) in enumerate(zip(changed.tolist(), entries.key_hashes.tolist(), strict=True)):
        timestamp, offset = entries.message(i)
        before = int(values[slot])
        if not 0 <= before <= number + i:  # IndexFile.putKey takes such a value as empty
            before = 0
        taken += before == 0
        units[i] = hash_value, offset, _time_diff(timestamp, begin), before
        values[slot] = number + i
    return taken


# ---- writing -----------------------------------------------------------------------------------------------


class IndexFiles:
    """Writes batches behind the entries of the last index file.

    Slots and header are written when the file is full, or at `close`.
    """

    def __init__(
        self,
        directory: str,
        geometry: IndexGeometry,
        timestamp: int,
        zone: datetime.tzinfo,
        files: FileWrites,
        *,
        after: IndexState | None = None,
        indexed: Callable[[int], bool] = lambda end: True,
    ) -> None:
        """`after` is a full file in another directory that the first new file follows.

        `indexed` says whether all messages between the physical offset `end` and the first entry that is
        written are in the index. If not, the entries begin a new file: what lies between two files is
        scanned by a search, and messages that are missing within a file are not found.
        """
        self._directory = directory
        self._geometry = geometry
        self._timestamp = timestamp
        self._zone = zone
        self._files = files
        self._state = after or _last_state(directory, geometry, indexed)
        self._file: WritableFile | None = None
        self._is_new = False  # whether the open file was created here
        self._written: IndexState | None = None  # the state of the open file with all units written so far

    @property
    def end_timestamp(self) -> int | None:
        """The end timestamp in the last file's header; None without a file."""
        return None if self._state is None else self._state.header.end_timestamp

    def write(self, batch: IndexBatch) -> None:
        """Writes the entries of a batch, into new files where the last one is full."""
        updates = index_updates(
            self._state, batch, geometry=self._geometry, timestamp=self._timestamp, zone=self._zone
        )
        for update in updates:
            self._state = update.state
            path = f"{self._directory}/{update.state.name}"
            if update.is_new:
                self.close()
                root, _, folder = self._directory.rpartition("/")
                self._files.make_directories(root, folder)
                self._file, _ = self._files.open_full(path, self._geometry.file_size)
                self._files.sync_directory(self._directory)
                self._is_new = True
            elif self._file is None:
                self._file = self._files.open(path)
            if len(update.units):
                self._file.write(update.units_position, update.units)
            self._written = update.state

    def close(self) -> None:
        """Completes the open file: writes its slots and header behind its units, syncs and closes it."""
        if self._file is not None:
            file, self._file = self._file, None
            with file:
                self._files.sync(file)
                assert self._written is not None
                header = self._written.header.to_bytes()
                if self._is_new:
                    file.write(0, header)
                    self._files.sync(file)
                self._written.slots.write(file)
                if not self._is_new:
                    file.write(0, header)
                self._files.sync(file)
            self._is_new = False


def _last_state(directory: str, geometry: IndexGeometry, indexed: Callable[[int], bool]) -> IndexState | None:
    """The state of the last file, as if it were full if its entries cannot be continued."""
    files = list_index_files(directory)
    if not files:
        return None
    state = IndexState.read(
        IndexFile.open(files[-1].path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num)
    )
    if state.header.index_count <= 1 or indexed(state.header.end_physical_offset):
        return state
    return replace(state, header=replace(state.header, index_count=geometry.index_num))


# ---- rewinding ---------------------------------------------------------------------------------------------


def last_index_file(directory: str) -> tuple[str, str] | None:
    """(name, header in hex) of the last file, the `base` of `rewind_index`; None without a file."""
    files = list_index_files(directory)
    if not files:
        return None
    with files_at(files[-1].path).view(files[-1].path) as view:
        return files[-1].path.rpartition("/")[2], view.read(0, INDEX_HEADER.itemsize).hex()


def rewind_index(
    directory: str, base: tuple[str, str] | None, geometry: IndexGeometry, files: FileWrites
) -> None:
    """Restores the index of the moment `base`, however much of later entries was written.

    Later files are removed, and slots point to older units again.
    """
    removed = [
        file for file in list_index_files(directory) if base is None or file.path.rpartition("/")[2] > base[0]
    ]
    for file in removed:
        files.remove(file.path)
    if removed:
        files.sync_directory(directory)
    if base is None:
        return
    name, header = base[0], bytes.fromhex(base[1])
    count = max(int(np.frombuffer(header, INDEX_HEADER)["index_count"][0]), 1)
    path = f"{directory}/{name}"
    with files.open(path) as writable, files_at(path).view(path) as view:
        if writable.size != geometry.file_size:
            return  # another file now; its units stay
        slots = IndexSlots.read(view, geometry)
        previous = view.copy_on_write(view.size)[geometry.units_start :].view(INDEX_UNIT)["prev_index"]
        later = np.flatnonzero(slots.values >= count)
        values = slots.values[later].astype(np.int64)
        while (values >= count).any():
            ahead = values >= count
            # Links point to lower numbers; the slot of a damaged unit with another link becomes empty.
            following = np.where(
                values[ahead] < len(previous), previous[np.minimum(values[ahead], len(previous) - 1)], 0
            )
            values[ahead] = np.where((following < values[ahead]) & (following > 0), following, 0)
        slots.values[later] = values
        slots.mark(later)
        slots.write(writable)
        writable.write(0, header)
        writable.zero(geometry.units_start + count * INDEX_UNIT.itemsize, writable.size)
        files.sync(writable)


def cut_index(
    directory: str,
    stop: int,
    store_timestamp_at: Callable[[int], int],
    geometry: IndexGeometry,
    files: FileWrites,
) -> None:
    """Removes the newest entries, those that point to `stop` or behind it. A second call changes nothing."""
    for listed in reversed(list_index_files(directory)):
        if not listed.size:
            continue
        file = IndexFile.open(listed.path, hash_slot_num=geometry.hash_slot_num, index_num=geometry.index_num)
        header = file.header()
        if header.index_count > 1 and header.end_physical_offset < stop:
            return
        last, slot_count, firsts = 0, 0, 0  # of the units that stay; `firsts` counts those that begin a chain
        end = -1
        for number, units in file.chunks():
            kept = np.flatnonzero(units["physical_offset"] < stop)
            if len(kept):
                last, end = number + int(kept[-1]), int(units["physical_offset"][kept[-1]])
                slot_count = firsts + int(np.count_nonzero(units["prev_index"][: int(kept[-1]) + 1] == 0))
            firsts += int(np.count_nonzero(units["prev_index"] == 0))
        if not last:
            files.remove(listed.path)
            files.sync_directory(directory)
            continue
        changed = {
            "begin_timestamp": header.begin_timestamp,
            "end_timestamp": store_timestamp_at(end),
            "begin_physical_offset": header.begin_physical_offset,
            "end_physical_offset": end,
            "hash_slot_count": slot_count,
            "index_count": last + 1,
        }
        name = listed.path.rpartition("/")[2]
        rewind_index(directory, (name, pack(INDEX_HEADER, changed).tobytes().hex()), geometry, files)
        return


# ---- the keys of messages ----------------------------------------------------------------------------------


def index_key_hashes(
    topics: pa.Array,
    uniq_keys: pa.Array,
    keys: pa.Array,
    tags: pa.Array,
    *,
    tag_keys: bool = True,
    rolled_back: NDArray[np.bool_] | None = None,
) -> _Hashes:
    """(key hashes, ends): those of message i, hashes[ends[i]:ends[i + 1]], are of UNIQ_KEY, KEYS, then TAGS.

    The arrays are UTF-8 strings, null where a message lacks the property. `topics` is preferably a
    dictionary. Brokers from 5.4 on index tags, too (`tag_keys`). Messages
    of type rollback have no entry.
    """
    count = len(uniq_keys)
    topics = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    batch = _Batch(
        [decode_utf8(name) for name in topics.dictionary.cast(pa.binary()).to_pylist()],
        codes,
        uniq_keys.is_valid().to_numpy(zero_copy_only=False),
        np.zeros(1, bool) if rolled_back is None else rolled_back,
        [flat_bytes(without_nulls(values)) for values in (uniq_keys, keys, tags)],
        tag_keys,
    )
    assert {len(codes), *(len(ends) - 1 for _, ends in batch.texts)} == {count}
    assert len(batch.skipped) in (1, count)
    ends = np.zeros(count + 1, np.int64)
    if not kernels.ready(count):
        each = [batch.hashes_of(i) for i in range(count)]
        np.cumsum([len(hashes) for hashes in each], out=ends[1:])
        hashes = np.fromiter(chain.from_iterable(each), np.int32, int(ends[-1]))
    else:
        hashes = batch.hashes(ends)
    return hashes, ends


def messages_of(ends: _Ints) -> _Ints:
    """Returns the message of each entry, as `IndexBatch` has it, of the `ends` of `index_key_hashes`."""
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends))


@dataclass(frozen=True, slots=True)
class _Batch:
    """The messages of a batch: the texts are UNIQ_KEY, KEYS and TAGS, as bytes with offsets."""

    topics: list[str]
    topic: NDArray[np.int64]  # the place in `topics` of each message's
    has_uniq_key: NDArray[np.bool_]
    skipped: NDArray[np.bool_]  # of each message, or of all
    texts: list[tuple[NDArray[np.uint8], NDArray[np.int64]]]
    tag_keys: bool

    def hashes(self, ends: NDArray[np.int64]) -> NDArray[np.int32]:
        """Returns all hashes; those of message i end at ends[i + 1]."""
        hashes = np.empty((len(self.texts[1][0]) + len(ends)) // 2 + 2 * len(ends), np.int32)
        seeds = [[java_hash(topic + joint) for topic in self.topics] for joint in ("#", "#T#")]
        is_valid = kernels.hashes.key_hashes(
            self.topic,
            np.array(seeds[0], np.int64) & _HASH_MASK,
            np.array(seeds[1] if self.tag_keys else [], np.int64) & _HASH_MASK,
            *self.texts[0],
            self.has_uniq_key,
            *self.texts[1],
            *self.texts[2],
            self.skipped,
            hashes,
            ends,
        )
        if not is_valid:
            malformed = np.flatnonzero(hashes[: ends[-1]] < 0)
            for i in np.unique(np.searchsorted(ends, malformed, "right") - 1).tolist():
                hashes[ends[i] : ends[i + 1]] = self.hashes_of(i)
        return hashes[: ends[-1]]

    def hashes_of(self, i: int) -> list[int]:
        """Returns the hashes of one message."""
        if self.skipped[i if len(self.skipped) > 1 else 0]:
            return []
        uniq_key, keys, tags = (data[ends[i] : ends[i + 1]].tobytes() for data, ends in self.texts)
        topic = self.topics[self.topic[i]]
        texts = [uniq_key] * bool(self.has_uniq_key[i]) + list(filter(None, keys.split(b" ")))
        hashes = [key_hash(index_key(topic, decode_utf8(text))) for text in texts]
        if tags and self.tag_keys:
            hashes.append(key_hash(index_key(topic, decode_utf8(tags), "T")))
        return hashes


def unit_key_hashes(units: Units, *, tag_keys: bool = True) -> _Hashes:
    """`index_key_hashes` of units in a commitlog, for entries that a crash kept from being written."""
    table = PropertyTable(units.raw_properties())
    return index_key_hashes(
        units.stored_topics(),
        table.values(UNIQ_KEY),
        table.values(KEYS),
        table.values(TAGS),
        tag_keys=tag_keys,
        rolled_back=(units.sys_flag & sysflag.TRANSACTION_MASK) == sysflag.TRANSACTION_ROLLBACK,
    )


def index_batch(refs: UnitRefs, *, tag_keys: bool = True) -> IndexBatch:
    """Returns the index entries of the messages at `refs`, except those of rolled back messages."""
    if not kernels.ready(len(refs)):
        units, _ = locate(refs, verify_crc=False)
        units = units.select((units.sys_flag & sysflag.TRANSACTION_MASK) != sysflag.TRANSACTION_ROLLBACK)
        times = units.integers("store_timestamp").astype(np.int64)
        hashes, ends = unit_key_hashes(units, tag_keys=tag_keys)
        return IndexBatch(units.physical_offsets, times, hashes, messages_of(ends))
    kinds, times = np.empty(len(refs), np.uint8), np.empty(len(refs), np.int64)
    room = int(refs.sizes.sum()) // 2
    hashes, messages = np.empty(room, np.int32), np.empty(room, np.int64)
    count = kernels.dispatch.index_keys(
        refs.buffer,
        refs.positions,
        refs.physical_offsets,
        refs.sizes,
        tag_keys,
        kinds,
        times,
        hashes,
        messages,
    )
    hashes, messages = hashes[:count].copy(), messages[:count].copy()
    odd = np.flatnonzero(kinds == kernels.dispatch.ODD)
    if len(odd):
        units, _ = locate(refs.select(odd), verify_crc=False)
        more, ends = unit_key_hashes(units, tag_keys=tag_keys)
        messages = np.concatenate([messages, odd[messages_of(ends)]])
        order = np.argsort(messages, kind="stable")
        hashes, messages = np.concatenate([hashes, more])[order], messages[order]
    physical = refs.physical_offsets
    indexed = kinds != kernels.dispatch.NOT_INDEXED
    if not indexed.all():
        physical, times = physical[indexed], times[indexed]
        messages = (np.cumsum(indexed) - 1)[messages]
    return IndexBatch(physical, times, hashes, messages)

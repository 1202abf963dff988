"""Plans of index files against a scalar writer from the spec, against IndexFile's own bytes, and byte for
byte against real brokers.
"""

from __future__ import annotations

import datetime
import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.commitlog.log import CommitLog
from store_format.commitlog.walk import UnitRun
from store_format.errors import CorruptStoreError, OptionError
from store_format.files.read import FileCache
from store_format.files.write import FileWrites
from store_format.index.file import DEFAULT_GEOMETRY, IndexFile, IndexGeometry, IndexHeader, IndexSlots
from store_format.index.updates import (
    IndexBatch,
    IndexFiles,
    IndexState,
    IndexUpdate,
    index_key_hashes,
    index_updates,
    messages_of,
    next_index_file_name,
    unit_key_hashes,
)
from store_format.message.locate import Units, locate
from tests.support import goldens
from tests.support.failing_writer import Failure, install
from tests.support.fixtures import Golden
from tests.support.fork_server import ForkServer
from tests.support.kills import count_changes, killed_stores
from tests.support.oracle import IndexBuilder, index_keys_of

T0 = 1_700_000_000_000
UTC = datetime.UTC
STORES = [
    (name, broker)
    for name in goldens.NAMES
    for broker in (goldens.expected(name).get("brokers") or {"": None})
]

Properties = dict[str, str]
Message = tuple[str, Properties, int, int]  # topic, properties, physical offset, store timestamp


class Directory:
    """The index files of a store, in memory and by name, on which plans are carried out."""

    def __init__(self, geometry: IndexGeometry, files: dict[str, bytearray] | None = None) -> None:
        self.geometry = geometry
        self.files = files or {}

    def state(self) -> IndexState | None:
        if not self.files:
            return None
        name = max(self.files)
        raw = self.files[name]
        begin, end, begin_offset, end_offset, slot_count, index_count = struct.unpack(">qqqqii", raw[:40])
        slots = IndexSlots.empty(self.geometry)
        slots.head[:] = np.frombuffer(raw, np.uint8)[: self.geometry.units_start]
        return IndexState(
            name, IndexHeader(begin, end, begin_offset, end_offset, slot_count, max(index_count, 1)), slots
        )

    def apply(self, updates: Sequence[IndexUpdate]) -> None:
        for update in updates:
            assert (update.state.name in self.files) != update.is_new
            raw = self.files.setdefault(update.state.name, bytearray(self.geometry.file_size))
            units = update.units.tobytes()
            raw[update.units_position : update.units_position + len(units)] = units
            raw[40 : self.geometry.units_start] = update.state.slots.head[40:].tobytes()
            raw[:40] = update.state.header.to_bytes()
            assert len(raw) == update.geometry.file_size

    def put(self, batch: IndexBatch, timestamp: int = T0) -> list[IndexUpdate]:
        updates = index_updates(self.state(), batch, geometry=self.geometry, timestamp=timestamp, zone=UTC)
        self.apply(updates)
        return updates

    def contents(self) -> list[bytes]:
        return [bytes(self.files[name]) for name in sorted(self.files)]


def _strings(messages: Sequence[Message], name: str) -> pa.Array:
    return pa.array([properties.get(name) for _, properties, _, _ in messages], pa.string())


def _batch(messages: Sequence[Message], *, tags: bool = True) -> IndexBatch:
    topics = pa.array([topic for topic, _, _, _ in messages], pa.string())
    columns = [_strings(messages, name) for name in ("UNIQ_KEY", "KEYS", "TAGS")]
    hashes, ends = index_key_hashes(topics, *columns, tag_keys=tags)
    offsets, timestamps = (np.array([message[i] for message in messages], np.int64) for i in (2, 3))
    return IndexBatch(offsets, timestamps, hashes, messages_of(ends))


def _written(messages: Sequence[Message], geometry: IndexGeometry, *, tags: bool = True) -> list[bytes]:
    writer = IndexBuilder(geometry.hash_slot_num, geometry.index_num)
    for topic, properties, offset, timestamp in messages:
        writer.put_message(index_keys_of(topic, properties, tags), offset, timestamp)
    # The scalar writer leaves an empty file as IndexFile makes it; IndexFile.flush then puts the 1 of memory
    # into its index count.
    return [
        file.to_bytes() if file.units else file.header()[:36] + b"\0\0\0\1" + file.to_bytes()[40:]
        for file in writer.files
    ]


# ---- files -------------------------------------------------------------------------------------------------

PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": st.sampled_from(["", "u", "v"]),
        "KEYS": st.lists(st.sampled_from("abc"), max_size=4).map(" ".join),
        "TAGS": st.sampled_from(["", "a", "b"]),
    },
)
TIMES = st.one_of(
    st.integers(T0, T0 + 5000), st.sampled_from([-(2**62), -1, 0, 1, T0 - 999, T0 + 2**31 * 1000, 2**62 - 1])
)


@st.composite
def _logs(draw: st.DrawFn) -> list[Message]:
    properties = draw(st.lists(PROPERTIES, min_size=1, max_size=14))
    offset, messages = 0, []
    for each in properties:
        messages.append((draw(st.sampled_from(["T", "Orders"])), each, offset, draw(TIMES)))
        offset += draw(st.integers(1, 500))
    return messages


@given(_logs(), st.integers(1, 7), st.integers(2, 9), st.booleans(), st.booleans(), st.data())
def test_files_are_the_scalar_writers_however_the_log_is_cut(
    messages: list[Message], slots: int, numbers: int, tags: bool, kernel: bool, data: st.DataObject
) -> None:
    geometry = IndexGeometry(slots, numbers)
    directory = Directory(geometry)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=3)))
    with patch.object(kernels, "ready", lambda rows=0: kernel):
        for start, stop in zip([0, *cuts], [*cuts, len(messages)], strict=True):
            directory.put(_batch(messages[start:stop], tags=tags))
    assert directory.contents() == _written(messages, geometry, tags=tags)


@given(_logs(), st.integers(0, 13))
def test_a_replay_skips_what_is_before_the_last_entry_and_repeats_that(
    messages: list[Message], start: int
) -> None:
    geometry = IndexGeometry(3, 6)
    directory = Directory(geometry)
    directory.put(_batch(messages))
    directory.put(_batch(messages[start:]))
    assert directory.contents() == _written(messages + messages[start:], geometry)


def test_a_message_without_keys_makes_a_file_and_a_full_file_waits_for_the_next_message() -> None:
    directory = Directory(IndexGeometry(2, 3))
    (first,) = directory.put(_batch([("T", {}, 0, T0)]))
    assert (first.is_new, len(first.units), first.state.header) == (True, 0, IndexHeader(0, 0, 0, 0, 0, 1))
    assert directory.put(_batch([("T", {}, 50, T0)])) == []
    (full,) = directory.put(_batch([("T", {"KEYS": "a b"}, 100, T0 + 1)]))
    assert (full.state.name, full.is_new, full.state.header.index_count, full.unit_start) == (
        first.state.name,
        False,
        3,
        1,
    )
    (rolled,) = directory.put(_batch([("T", {}, 200, T0 + 2)]))
    assert (rolled.is_new, rolled.state.header) == (True, IndexHeader(T0 + 1, T0 + 1, 100, 100, 0, 1))


def test_the_first_unit_of_a_rolled_file_counts_from_the_end_of_the_file_before() -> None:
    directory = Directory(IndexGeometry(2, 3))
    full, rolled = directory.put(
        _batch([("T", {"KEYS": "a b"}, 0, T0), ("T", {"KEYS": "c"}, 100, T0 + 7999), ("T", {}, 200, T0)])
    )
    assert full.state.header.index_count == 3
    assert rolled.units["time_diff"].tolist() == [7]
    assert rolled.state.header == IndexHeader(T0 + 7999, T0 + 7999, 100, 100, 1, 2)


def test_no_messages_write_nothing() -> None:
    assert index_updates(None, _batch([]), timestamp=T0, zone=UTC) == []


# What org.apache.rocketmq.store.index.IndexFile of 5.5.0 made of a damaged file: slots 5, -1, 2 with two
# units, hash slot count 2^31 - 1.
DAMAGED = (
    "0000018bcfe568000000018bcfe58b28000000000000006400000000000001f47fffffff0000000300000005ffffffff00000002"
    + "00" * 20
    + "0000000200000000000000640000000000000000"
    + "0000000500000000000001f40000000900000001"
    + "00" * 120
)
PUT_INTO_DAMAGED = (
    "0000018bcfe568000000018bcfe53ef7000000000000006400000000000003e88000000000000009000000060000000700000008"
    "0000000000000000000000000000000000000000"
    "0000000200000000000000640000000000000000"
    "0000000500000000000001f40000000900000001"
    "00013ff300000000000001f40000000900000000"
    "00013ff400000000000002580000000500000002"
    "00013ff200000000000002bc0000000100000005"
    "00013ff500000000000003200000000000000005"
    "00013ff600000000000003840000000000000003"
    "00013ff700000000000003e80000000000000004"
)


@pytest.mark.parametrize("size", [1, 2, 6])
@pytest.mark.parametrize("kernel", [True, False])
def test_a_damaged_file_is_continued_as_the_broker_continues_it(
    size: int, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "ready", lambda rows=0: kernel)
    directory = Directory(IndexGeometry(3, 9), {"20260101000000001": bytearray.fromhex(DAMAGED)})
    messages: list[Message] = [
        ("T", {"KEYS": key}, 500 + 100 * i, T0 + 9500 - 4001 * i) for i, key in enumerate("bcadef")
    ]
    for start in range(0, 6, size):
        directory.put(_batch(messages[start : start + size]))
    assert directory.contents() == [bytes.fromhex(PUT_INTO_DAMAGED)]


@pytest.mark.parametrize("kernel", [True, False])
def test_the_seconds_since_the_begin_wrap_as_a_java_long(
    kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IndexFile.putKey subtracts two longs: an absurd store time far in the past becomes the largest int."""
    monkeypatch.setattr(kernels, "ready", lambda rows=0: kernel)
    times = [T0, -(2**63), 2**63 - 1, -(2**63) + T0, T0 - 999, T0 + 999, T0 + 1000]
    directory = Directory(IndexGeometry(3, 9))
    (update,) = directory.put(_batch([("T", {"KEYS": "k"}, 100 * i, time) for i, time in enumerate(times)]))
    assert update.units["time_diff"].tolist() == [0, 2**31 - 1, 2**31 - 1, 0, 0, 0, 1]


def test_the_first_unit_of_a_rolled_file_wraps_too() -> None:
    directory = Directory(IndexGeometry(2, 3))
    _, rolled = directory.put(_batch([("T", {"KEYS": "a b"}, 0, T0), ("T", {"KEYS": "c"}, 100, -(2**63))]))
    assert rolled.units["time_diff"].tolist() == [2**31 - 1]


@pytest.mark.parametrize("length", [0, 39, 40, 45, 51, 52, 60])
def test_slots_that_a_short_file_lacks_are_empty(tmp_path: Path, length: int) -> None:
    geometry = IndexGeometry(3, 9)
    directory = Directory(geometry)
    directory.put(_batch([("T", {"KEYS": "a b c"}, 0, T0)]))
    (name,) = directory.files
    (tmp_path / name).write_bytes(directory.contents()[0][:length])
    with IndexFile.open(str(tmp_path / name), hash_slot_num=3, index_num=9) as file:
        state = IndexState.read(file)
        (update,) = index_updates(
            state, _batch([("T", {"KEYS": "a b c"}, 9, T0)]), geometry=geometry, timestamp=T0, zone=UTC
        )
    assert (update.state.name, update.is_new, update.state.slots.pages.tolist()) == (name, False, [1])
    slots = (
        struct.unpack(">3i", directory.contents()[0][40:length].ljust(12, b"\0")[:12])
        if length >= 40
        else (0, 0, 0)
    )
    previous = dict(
        zip((unit["key_hash"] % 3 for unit in update.units), update.units["prev_index"].tolist(), strict=True)
    )
    whole = (max(length, 40) - 40) // 4
    assert [previous[slot] for slot in range(3)] == [
        value if i < whole else 0 for i, value in enumerate(slots)
    ]


@pytest.mark.parametrize("geometry", [IndexGeometry(0, 9), IndexGeometry(3, 1), IndexGeometry(3, 0)])
def test_a_geometry_without_room_is_refused(geometry: IndexGeometry) -> None:
    with pytest.raises(
        OptionError,
        match=f"maxHashSlotNum={geometry.hash_slot_num}, maxIndexNum={geometry.index_num} leave no room",
    ):
        index_updates(None, _batch([("T", {}, 0, 0)]), geometry=geometry, timestamp=T0, zone=UTC)


# ---- names -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (None, "20231114221320000"),
        ("20231114221319999", "20231114221320000"),
        ("20231114221320000", "20231114221320001"),  # the same ms
        ("20231114231320999", "20231114231321000"),  # the clock went back, or was another zone's
        ("20240228235959999", "20240229000000000"),
        ("20241399999999999", "20241400000000000"),  # a number, but no date
        ("99991231235959999", "99991231235960000"),
    ],
)
def test_names(last: str | None, expected: str) -> None:
    assert next_index_file_name(last, T0, UTC) == expected


def test_no_name_is_left() -> None:
    with pytest.raises(
        CorruptStoreError,
        match="index/99999999999999999 at byte 0: expected an index file whose name leaves room",
    ):
        next_index_file_name("99999999999999999", T0, UTC)


def test_files_of_one_batch_have_ascending_names() -> None:
    directory = Directory(IndexGeometry(2, 3))
    names = [update.state.name for update in directory.put(_batch([("T", {"KEYS": "a b c d e"}, 0, T0)]))]
    assert names == ["20231114221320000", "20231114221320001", "20231114221320002"]


# ---- broker-written stores ---------------------------------------------------------------------------------


def _units(store: Path) -> Iterator[Units]:
    log = CommitLog.open(list(map(str, goldens.log_directories(store))), FileCache())
    for run in log.walk(log.min_offset):
        assert isinstance(run, UnitRun)
        units, bad = locate(log.refs_of(run), verify_crc=False)
        assert not bad
        yield units


def _unit_batch(units: Units, *, tags: bool) -> IndexBatch:
    hashes, ends = unit_key_hashes(units, tag_keys=tags)
    times = units.integers("store_timestamp").astype(np.int64)
    return IndexBatch(units.physical_offsets, times, hashes, messages_of(ends))


def _between(batch: IndexBatch, start: int, stop: int, entries_done: int) -> IndexBatch:
    """The messages from offset `start` to `stop`, without the first entries."""
    first, last = (int(i) for i in np.searchsorted(batch.physical_offsets, [start, stop]))
    entry, end = (int(i) for i in np.searchsorted(batch.message_index, [first, last]))
    entry += entries_done if first < last else 0
    return IndexBatch(
        batch.physical_offsets[first:last],
        batch.store_timestamps[first:last],
        batch.key_hashes[entry:end],
        batch.message_index[entry:end] - first,
    )


def _golden_geometry(name: str) -> IndexGeometry:
    config: dict[str, Any] = goldens.config(name)
    return IndexGeometry(
        int(config.get("maxHashSlotNum", DEFAULT_GEOMETRY.hash_slot_num)),
        int(config.get("maxIndexNum", DEFAULT_GEOMETRY.index_num)),
    )


# Of the torn store the last message that is in the index is gone; the file of the default size has a test of
# its own.
SMALL_STORES = [
    (name, broker) for name, broker in STORES if name not in ("crash-torn-5.5.0", "defaults-5.5.0")
]


@pytest.mark.parametrize(("name", "broker"), SMALL_STORES)
def test_the_brokers_own_files(golden: Golden, name: str, broker: str) -> None:
    """From the commitlog, all files; where the first messages are gone, all but the first file. Names
    aside.
    """
    store = goldens.brokers(name, golden(name))[broker][0]
    written = {path.name: path.read_bytes() for path in sorted((store / "index").iterdir())}
    directory = Directory(_golden_geometry(name))
    begin, entries_done = 0, 0
    first_name, first = next(iter(written.items()))
    if name == "cleaned-5.5.0":
        directory.files[first_name] = bytearray(first)
        begin = int.from_bytes(first[24:32], "big")
        # Its last message may go on in the next file.
        entries_done = sum(
            first[position + 4 : position + 12] == first[24:32]
            for position in range(40 + 400 + 20, len(first), 20)
        )
    end = 2**63 - 1
    if name == "crash-5.5.0":  # dispatch was behind the log when the broker was killed
        end = int.from_bytes(max(written.items())[1][24:32], "big") + 1
    for units in _units(store):
        batch = _between(_unit_batch(units, tags="4.9" not in name), begin, end, entries_done)
        directory.put(batch)
        entries_done = 0 if len(batch.physical_offsets) else entries_done
    assert directory.contents() == list(written.values())


def test_the_brokers_own_file_of_default_size(golden: Golden) -> None:
    store = golden("defaults-5.5.0")
    (path,) = (store / "index").iterdir()
    batches = [_unit_batch(units, tags=True) for units in _units(store)]
    joined = IndexBatch(
        np.concatenate([batch.physical_offsets for batch in batches]),
        np.concatenate([batch.store_timestamps for batch in batches]),
        np.concatenate([batch.key_hashes for batch in batches]),
        np.concatenate(
            [
                batch.message_index + sum(len(b.physical_offsets) for b in batches[:i])
                for i, batch in enumerate(batches)
            ]
        ),
    )
    (update,) = index_updates(None, joined, timestamp=T0, zone=UTC)
    assert update.geometry.file_size == path.stat().st_size
    with path.open("rb") as file:
        head = file.read(DEFAULT_GEOMETRY.units_start)
        unit_bytes = file.read(20 * (1 + update.state.header.index_count))
    assert head == update.state.header.to_bytes() + update.state.slots.head[40:].tobytes()
    assert (
        not np.delete(update.state.slots.head, slice(40))
        .reshape(-1)[np.repeat(update.state.slots.pages == 0, 4096)[40 : len(head)]]
        .any()
    )
    assert unit_bytes == bytes(20) + update.units.tobytes() + bytes(20)


def test_the_worked_example_of_the_format() -> None:
    vector = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())[
        "index_worked_default"
    ]
    puts = [vector["first_put"], vector["second_put"]]
    state = None
    for put, told in zip(puts, (vector, vector["second_put"]), strict=True):
        message = (put["topic"], {"KEYS": put["key"]}, put["phy_offset"], put["store_timestamp"])
        (update,) = index_updates(state, _batch([message]), timestamp=T0, zone=UTC)
        slot = vector["slot_pos"]
        assert np.flatnonzero(update.state.slots.pages).tolist() == [slot // 4096]
        assert update.state.slots.head[slot : slot + 4].tobytes().hex() == told["slot_value_hex"]
        assert (update.units_position, update.units.tobytes().hex()) == (told["unit_pos"], told["unit_hex"])
        assert update.state.header.to_bytes().hex() == told["header_hex"]
        state = update.state


# ---- the order of writes in an index file ------------------------------------------------------------------


_GEOMETRY = IndexGeometry(20, 30)
_CHECKPOINT = 1_700_000_000_000  # indexMsgTimestamp before the messages of `_write`
_HEADER, _SLOTS_END = 40, 40 + 20 * 4


def _write(root: Path, failure: Failure, first: int, count: int) -> None:
    """Writes entries of messages behind the checkpoint; each file has room for 29."""
    install(failure)
    number = np.arange(first, first + count)
    batch = IndexBatch(
        100 + 100 * number, _CHECKPOINT + 1000 + number, (7 * number).astype(np.int32), number - first
    )
    files = IndexFiles(f"{root}/index", _GEOMETRY, _CHECKPOINT, datetime.UTC, FileWrites(sync=True))
    files.write(batch)
    files.close()


def _slots(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.frombuffer(data[_HEADER:_SLOTS_END], ">i4").astype(np.int32)


@pytest.mark.process
def test_a_broker_deletes_a_new_file_that_a_kill_left_with_slots(tmp_path: Path, forks: ForkServer) -> None:
    """IndexService.load keeps a file whose end time is not behind the checkpoint's. A broker would link its
    own entries to the units of such a file, if slots point to them.
    """
    before = tmp_path / "before"
    before.mkdir()
    without_end = kept = deleted = 0
    for at, root in killed_stores(forks, before, tmp_path, "both", _write, 0, 70):
        for path in sorted(root.glob("index/*")):
            data = path.read_bytes()
            if int.from_bytes(data[8:16], "big") > _CHECKPOINT:
                deleted += 1
                continue
            kept += 1
            without_end += any(data[_SLOTS_END:])
            assert not any(data[_HEADER:_SLOTS_END]), f"change {at}: {path.name} has slots and is kept"
    assert min(kept, without_end, deleted) >= 3


@pytest.mark.process
def test_slots_point_to_units_that_are_written(tmp_path: Path, forks: ForkServer) -> None:
    """In an old file, too: its header tells how far the chains have to be followed back."""
    before = tmp_path / "before"
    before.mkdir()
    count_changes(forks, before, _write, 0, 10)
    ahead = 0
    for at, root in killed_stores(forks, before, tmp_path, "both", _write, 10, 40):
        for path in sorted(root.glob("index/*")):
            data = path.read_bytes()
            units = np.frombuffer(data[_SLOTS_END:], ">i4").reshape(-1, 5)
            slots = _slots(data)
            assert units[slots[slots > 0], 2].all(), f"change {at}: {path.name} has slots without units"
            ahead += bool((slots >= int.from_bytes(data[36:40], "big")).any() and data[39])
    assert ahead, "no kill between slots and header of the old file"

"""Index files: geometry and chains, against vectors, a scalar writer, and every store of a broker."""

from __future__ import annotations

import datetime
import json
import os
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format import kernels
from store_format.errors import CorruptStoreError, FileReplacedError, OptionError, StoreError
from store_format.files.view import FileView
from store_format.index.file import (
    DEFAULT_GEOMETRY,
    IndexFile,
    IndexGeometry,
    index_file_name,
    index_key,
    infer_geometry,
    key_hash,
    key_hash_many,
    list_index_files,
    open_index_files,
)
from store_format.index.query import offsets_in_chain
from store_format.index.updates import index_key_hashes, messages_of
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.oracle import IndexBuilder, IndexFileBuilder, index_keys_of, java_hash

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "vectors.json").read_bytes())
LONG_MAX = 2**63 - 1
T0 = 1_700_000_000_000
STORES = [
    (name, broker)
    for name in goldens.NAMES
    for broker in (goldens.expected(name).get("brokers") or {"": None})
]


def _store(golden: Golden, name: str, broker: str) -> tuple[Path, dict[str, Any]]:
    return goldens.brokers(name, golden(name))[broker]


def _open_all(directory: Path) -> list[IndexFile]:
    return open_index_files(str(directory))


def _chain(file: IndexFile, hash_value: int) -> list[int]:
    """Physical offsets of the units with this hash, newest first."""
    units = file.chain(hash_value, file.header())
    return [physical_offset for _, unit_hash, physical_offset, _ in units if unit_hash == hash_value]


def _find(
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


# ---- keys, hashes, names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["index_key_hash"], ids=lambda vector: vector["composed"])
def test_key_hash_is_the_jvms(vector: dict[str, Any]) -> None:
    assert index_key(vector["topic"], vector["key"]) == vector["composed"]
    assert key_hash(vector["composed"]) == vector["index_hash"]
    assert 40 + 4 * (vector["index_hash"] % DEFAULT_GEOMETRY.hash_slot_num) == vector["slot_byte_pos_default"]
    assert vector["index_hash"] % 100 == vector["slot_100"]


def test_tag_key() -> None:
    assert key_hash(index_key("TopicTest", "TagA", "T")) == 1311325016  # spec 10, a 5.5.0 broker's
    assert index_key("TopicTest", "TagA", "K") == index_key("TopicTest", "TagA", "U") == "TopicTest#TagA"


@given(st.lists(st.text()))
def test_key_hash_many_is_key_hash(texts: list[str]) -> None:
    texts.append("TopicTest#aXA4ptp")  # hash -2^31
    assert key_hash_many(pa.array(texts, pa.string())).tolist() == [key_hash(text) for text in texts]


@pytest.mark.parametrize("vector", VECTORS["index_file_name"], ids=lambda vector: vector["name"])
def test_file_name(vector: dict[str, Any]) -> None:
    zone = datetime.timezone(datetime.timedelta(minutes=vector["utc_offset_minutes"]))
    assert index_file_name(vector["epoch_ms"], zone) == vector["name"]


def test_listing_is_by_name_and_skips_other_names(tmp_path: Path) -> None:
    names = ["20261121065231934", "20261121065232434"]
    for name in (*reversed(names), "2026112106523193", "20261121065231934.bak", "x" * 17):
        (tmp_path / name).touch()
    assert [Path(file.path).name for file in list_index_files(str(tmp_path))] == names
    assert list_index_files(str(tmp_path / "missing")) == []


@pytest.mark.parametrize(
    ("make", "found"),
    [(Path.mkdir, "a directory"), (lambda path: path.symlink_to("/etc/passwd"), "a symbolic link")],
)
def test_listing_refuses_what_is_no_file(tmp_path: Path, make: Callable[[Path], None], found: str) -> None:
    make(tmp_path / "20261121065239999")
    with pytest.raises(CorruptStoreError, match=f"20261121065239999 at byte 0: expected .*, found {found}"):
        list_index_files(str(tmp_path))


# ---- vectors -----------------------------------------------------------------------------------------------


def test_mini_store_of_the_5_3_form(tmp_path: Path) -> None:
    """Index bytes without tag units: each file is understood, and every key of every message is found."""
    store = VECTORS["mini_store"]
    contents = [bytes.fromhex(data) for data in _hex_contents(store["index_files_in_order"])]
    for i, content in enumerate(contents):
        (tmp_path / f"{20231114221320456 + i}").write_bytes(content)
    files = _open_all(tmp_path)
    given_geometry = IndexGeometry(store["config"]["maxHashSlotNum"], store["config"]["maxIndexNum"])
    # An open file without units proves no geometry and needs none.
    assert [file.geometry for file in files] == [
        given_geometry if file.header().index_count > 1 else None for file in files
    ]
    offsets = {message["physical_offset"] for message in store["messages"]}
    assert offsets == {int(offset) for file in files for offset in file.units()["physical_offset"]}
    writer = IndexBuilder(given_geometry.hash_slot_num, given_geometry.index_num)
    for message, source in zip(store["messages"], store["inputs"], strict=True):
        properties = (
            dict(source["properties"]) if isinstance(source["properties"], list) else source["properties"]
        )
        keys = index_keys_of(source["topic"], properties, tag_keys=False)
        writer.put_message(keys, message["physical_offset"], source["store_timestamp"])
        for key in keys:
            assert message["physical_offset"] in _find(
                files, source["topic"], key.removeprefix(source["topic"] + "#")
            )
    assert [file.to_bytes() for file in writer.files] == contents


def _hex_contents(value: Any) -> list[str]:
    return [item["hex"] if isinstance(item, dict) else item for item in value]


# ---- geometry ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "broker"), STORES)
def test_geometry_of_every_golden_file_is_inferred(golden: Golden, name: str, broker: str) -> None:
    store, _ = _store(golden, name, broker)
    config = goldens.config(name)
    real = IndexGeometry(
        int(config.get("maxHashSlotNum", 5_000_000)), int(config.get("maxIndexNum", 20_000_000))
    )
    files = _open_all(store / "index")
    assert files
    for file in files:
        assert file.header().index_count > 1  # so each has units to prove it
        assert file.geometry == real, file.path
        with IndexFile.open(file.path) as alone:
            assert alone.geometry == real, file.path


@given(
    hash_slot_num=st.integers(1, 300),
    index_num=st.integers(2, 120),
    puts=st.lists(
        st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3), st.integers(-5000, 100_000)),
        min_size=1,
        max_size=130,
    ),
)
def test_inferred_geometry_is_the_real_one_or_none(
    hash_slot_num: int, index_num: int, puts: list[tuple[str, int, int]]
) -> None:
    writer = IndexFileBuilder(hash_slot_num, index_num)
    offset = 0
    for key, step, time in puts:
        offset += step
        writer.put(f"Orders#{key}", offset, T0 + time)
    inferred = _inferred(writer)
    assert inferred in (None, IndexGeometry(hash_slot_num, index_num))


@pytest.mark.process
def test_other_numbers_of_the_default_size_are_found(tmp_path: Path) -> None:
    """A million slots and 20,800,000 units have the default size: the search runs over twenty million
    candidates.
    """
    geometry = IndexGeometry(1_000_000, 20_800_000)
    assert geometry.file_size == DEFAULT_GEOMETRY.file_size
    writer = IndexFileBuilder(geometry.hash_slot_num, geometry.index_num)
    for i in range(50):
        writer.put(f"Orders#{i}", 100 * i, T0 + i)
    path = tmp_path / "20231114221320456"
    with open(path, "wb") as file:
        file.write(writer.header())
        for slot, number in writer.slots.items():
            file.seek(40 + 4 * slot)
            file.write(struct.pack(">i", number))
        file.seek(geometry.units_start + 20)
        file.write(b"".join(writer.units))
        file.truncate(geometry.file_size)
    with IndexFile.open(str(path)) as index:
        assert index.geometry == geometry


def test_geometry_with_distinct_messages_is_always_found() -> None:
    for hash_slot_num in (1, 2, 7, 100, 101, 5000):
        for count in (1, 2, 50, 199):
            writer = IndexFileBuilder(hash_slot_num, 200)
            for i in range(count):
                writer.put(f"Orders#{i}", 100 * i + 100, T0 + i)
            assert _inferred(writer) == IndexGeometry(hash_slot_num, 200)


def _inferred(writer: IndexFileBuilder) -> IndexGeometry | None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(writer.to_bytes())
        file.flush()
        with FileView(file.name) as view:
            return infer_geometry(view)


@pytest.mark.parametrize("size", [0, 39, 100])
def test_a_file_that_became_shorter_since_it_was_opened(tmp_path: Path, size: int) -> None:
    writer = IndexFileBuilder(5, 10)
    writer.put("Orders#a", 100, T0)
    path = tmp_path / "20231114221320456"
    path.write_bytes(writer.to_bytes())
    with FileView(str(path)) as view:
        os.truncate(path, size)
        with pytest.raises(FileReplacedError, match=path.name):
            infer_geometry(view)


def _write(path: Path, writer: IndexFileBuilder) -> str:
    path.write_bytes(writer.to_bytes())
    return str(path)


def test_without_units_the_geometry_is_unknown_and_lookups_are_empty(tmp_path: Path) -> None:
    with IndexFile.open(_write(tmp_path / "20231114221320456", IndexFileBuilder(100, 400, T0, 7))) as index:
        assert (index.geometry, index.header().index_count, len(index.units())) == (None, 1, 0)
        assert _find([index], "Orders", "a") == []


def test_unknown_geometry_of_a_file_with_units_asks_for_the_options(tmp_path: Path) -> None:
    writer = IndexFileBuilder(10, 50)
    writer.put("Orders#a", 500, T0)
    path = tmp_path / "20231114221320456"
    path.write_bytes(
        writer.to_bytes().replace(struct.pack(">iqii", abs(java_hash("Orders#a")), 500, 0, 0), b"\xff" * 20)
    )
    with IndexFile.open(str(path)) as index, pytest.raises(OptionError) as caught:
        _chain(index, 5)
    assert "maxHashSlotNum" in str(caught.value)
    assert str(path) in str(caught.value)
    with IndexFile.open(str(path), hash_slot_num=10, index_num=50) as index:
        assert _chain(index, 5) == []


def test_given_numbers(tmp_path: Path) -> None:
    writer = IndexFileBuilder(10, 50)
    for i in range(20):
        writer.put(f"Orders#{i}", 100 + i, T0)
    path = _write(tmp_path / "20231114221320456", writer)
    for slots, units in ((10, None), (None, 50), (10, 50)):
        with IndexFile.open(path, hash_slot_num=slots, index_num=units) as index:
            assert index.geometry == IndexGeometry(10, 50)
    with pytest.raises(OptionError) as caught:
        IndexFile.open(path, hash_slot_num=11)
    assert f"{len(writer.to_bytes())} bytes" in str(caught.value)
    with pytest.raises(OptionError) as caught:
        IndexFile.open(path, hash_slot_num=15)  # fits the size, but the units say otherwise
    assert "its units prove 10 and 50" in str(caught.value)


# ---- chains ------------------------------------------------------------------------------------------------


def _patched(tmp_path: Path, writer: IndexFileBuilder, position: int, data: bytes) -> IndexFile:
    content = bytearray(writer.to_bytes())
    content[position : position + len(data)] = data
    path = tmp_path / "20231114221320456"
    path.write_bytes(content)
    return IndexFile.open(str(path), hash_slot_num=writer.slot_count, index_num=writer.unit_count)


def _three_of_one_key() -> tuple[IndexFileBuilder, int, int]:
    writer = IndexFileBuilder(4, 10)
    for i in range(3):
        writer.put("Orders#a", 1000 * (i + 1), T0 + 5000 * i)
    return writer, abs(java_hash("Orders#a")), 40 + 4 * 4


def test_chain_comes_newest_first(tmp_path: Path) -> None:
    writer, hash_value, _ = _three_of_one_key()
    with _patched(tmp_path, writer, 0, b"") as index:
        assert _chain(index, hash_value) == [3000, 2000, 1000]
        assert _chain(index, hash_value + 4) == []  # same slot, other hash
        assert _find([index], "Orders", "a", end=T0 + 5000) == [1000, 2000]


@pytest.mark.parametrize(
    ("unit", "prev", "expected"),
    [
        (3, 3, [3000]),  # names itself
        (2, 3, [3000, 2000]),  # a cycle: the broker would go round it for ever when nothing matches
        (3, 99, [3000]),  # behind index_count
        (3, -1, [3000]),
        (3, 1, [3000, 1000]),
    ],
)
def test_broken_links_end_the_chain(tmp_path: Path, unit: int, prev: int, expected: list[int]) -> None:
    writer, hash_value, units_start = _three_of_one_key()
    with _patched(tmp_path, writer, units_start + 20 * unit + 16, struct.pack(">i", prev)) as index:
        assert _chain(index, hash_value) == expected
        assert _find([index], "Orders", "a") == sorted(expected)


def test_a_unit_of_the_second_in_which_a_window_begins_is_found(tmp_path: Path) -> None:
    writer = IndexFileBuilder(4, 10)
    for time in (0, 5700):
        writer.put("Orders#a", 1000 + time, T0 + time)
    with _patched(tmp_path, writer, 0, b"") as index:
        assert _find([index], "Orders", "a", T0 + 5500) == [1000, 6700]


def test_a_negative_difference_hides_nothing(tmp_path: Path) -> None:
    """A broker ends its walk there."""
    writer, _, units_start = _three_of_one_key()
    with _patched(tmp_path, writer, units_start + 20 * 2 + 12, struct.pack(">i", -1)) as index:
        assert _find([index], "Orders", "a") == [1000, 2000, 3000]


@pytest.mark.parametrize("slot_value", [-5, 0, 5, 2**31 - 1])
def test_slots_out_of_range_hold_nothing(tmp_path: Path, slot_value: int) -> None:
    writer, hash_value, _ = _three_of_one_key()
    with _patched(tmp_path, writer, 40 + 4 * (hash_value % 4), struct.pack(">i", slot_value)) as index:
        assert _chain(index, hash_value) == []


@given(st.data())
def test_any_truncation_or_flip_ends_in_offsets_or_a_store_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    writer = IndexFileBuilder(5, 30)
    for i in range(25):
        writer.put(f"Orders#{i % 7}", 100 * i, T0 + 700 * i)
    content = bytearray(writer.to_bytes())
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("index") / "20231114221320456"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    slots, units = data.draw(st.sampled_from([(None, None), (5, 30)]))
    refused = None
    try:
        with IndexFile.open(str(path), hash_slot_num=slots, index_num=units) as index:
            assert len(index.units()) <= 29
            assert len(_find([index], "Orders", "3")) <= 30
    except StoreError as error:
        refused = error
    assert refused is None or str(path) in str(refused)


# ---- queries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["crash-5.5.0", "crash-torn-5.5.0"])
def test_a_crashed_store_as_it_lies_holds_every_answer(golden: Golden, name: str) -> None:
    """Without recovery, the uncapped search over the files left still gives every message that the broker
    gives.

    The reverse cannot hold: behind the log's valid end there are units of messages that recovery cuts off,
    and whoever reads the candidates' messages drops them.
    """
    store, answers = _store(golden, name, "")
    files = _open_all(store / "index")
    valid = {row["physicalOffset"] for row in goldens.expected_rows(name)}
    for probe in answers["queryByKey"]:
        window = (probe["begin"], min(probe["end"], LONG_MAX))
        candidates = set(_find(files, probe["topic"], probe["key"], *window, probe.get("indexType")))
        assert set(probe["physicalOffsets"]) <= candidates
        if probe["maxNum"] == 32 and len(probe["physicalOffsets"]) < 32 and window == (0, LONG_MAX):
            assert candidates & valid == set(probe["physicalOffsets"])


@pytest.mark.process
@pytest.mark.parametrize("name", goldens.NAMES)
def test_find_gives_every_message_under_all_of_its_keys(golden: Golden, name: str) -> None:
    """Every key and tag of every message of the store leads to it, beyond the broker's cap of 64.

    Kept out: messages whose index files retention deleted, and the light queues' names, under which nothing
    is indexed.
    """
    for broker, (store, _) in goldens.brokers(name, golden(name)).items():
        files = _open_all(store / "index")
        first_indexed = min(int(file.header().begin_physical_offset) for file in files)
        wanted: dict[tuple[str, str, str | None], set[int]] = {}
        for row in goldens.expected_rows(name):
            if row.get("brokerName", broker) != broker or row["physicalOffset"] < first_indexed:
                continue
            topic, properties = (
                row.get("storedTopic", row["topic"]),
                row.get("outerProperties", row["properties"]),
            )
            for key in index_keys_of(topic, properties, tag_keys=name != "basic-4.9.7"):
                text = key.removeprefix(topic + "#")
                wanted.setdefault((topic, text, None), set()).add(row["physicalOffset"])
        assert wanted
        for (topic, key, index_type), offsets in wanted.items():
            found = _find(files, topic, key, index_type=index_type)
            assert (np.diff(found) > 0).all()
            assert offsets <= set(found), (topic, key)


@given(
    puts=st.lists(st.tuples(st.sampled_from("ab"), st.integers(-3_000, 9_000)), min_size=1, max_size=60),
    begin=st.one_of(st.none(), st.integers(T0 - 10_000, T0 + 300_000)),
    length=st.one_of(st.none(), st.integers(0, 50_000)),
)
def test_find_in_a_window_misses_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    puts: list[tuple[str, int]],
    begin: int | None,
    length: int | None,
) -> None:
    """Clocks that go back and files that roll are what make an index's times wrong: a window must hold all
    the same.
    """
    end = None if length is None else (begin or T0) + length
    writer = IndexBuilder(3, 8)
    time, written = T0, []
    for i, (key, step) in enumerate(puts):
        time += step
        writer.put_message([f"Orders#{key}"], 100 * i + 100, time)
        written.append((key, 100 * i + 100, time))
    directory = tmp_path_factory.mktemp("index")
    files = [
        IndexFile.open(_write(directory / f"{20231114221320456 + i}", file), hash_slot_num=3, index_num=8)
        for i, file in enumerate(writer.files)
    ]
    inside = {
        offset
        for key, offset, at in written
        if key == "a" and (begin is None or at >= begin) and (end is None or at <= end)
    }
    found = set(_find(files, "Orders", "a", begin, end))
    assert inside <= found
    assert found <= {offset for key, offset, _ in written if key == "a"}


# ---- hashes of index keys ----------------------------------------------------------------------------------


Properties = dict[str, str]

TEXTS = st.text(st.sampled_from("aB9-#é中\U0001f600"), max_size=6)
PROPERTIES = st.fixed_dictionaries(
    {},
    optional={
        "UNIQ_KEY": TEXTS,
        "KEYS": st.lists(TEXTS, max_size=4).map(" ".join) | st.sampled_from(["", " ", "  a  b ", "中 中"]),
        "TAGS": TEXTS,
    },
)


def _expected_hashes(topic: str, properties: Properties, tags: bool) -> list[int]:
    hashes = [java_hash(key) for key in index_keys_of(topic, properties, tag_keys=tags)]
    return [0 if value == -(2**31) else abs(value) for value in hashes]


@given(
    st.lists(st.tuples(st.sampled_from(["T", "Orders", "主题"]), PROPERTIES), max_size=12),
    st.booleans(),
    st.booleans(),
    st.data(),
)
def test_key_hashes(
    drawn: list[tuple[str, Properties]], tags: bool, by_kernel: bool, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "ready", lambda rows=0: by_kernel)
        assert_key_hashes(drawn, tags, data)


def assert_key_hashes(drawn: list[tuple[str, Properties]], tags: bool, data: st.DataObject) -> None:
    rolled_back = np.array([data.draw(st.booleans()) for _ in drawn], bool)
    expected = [
        [] if back else _expected_hashes(*message, tags)
        for message, back in zip(drawn, rolled_back, strict=True)
    ]
    columns = [
        pa.array([properties.get(name) for _, properties in drawn], pa.string())
        for name in ("UNIQ_KEY", "KEYS", "TAGS")
    ]
    topics = pa.array([topic for topic, _ in drawn], pa.string())
    for array in (topics, topics.dictionary_encode()):
        hashes, ends = index_key_hashes(array, *columns, tag_keys=tags, rolled_back=rolled_back)
        assert hashes.tolist() == [value for values in expected for value in values]
        assert messages_of(ends).tolist() == [i for i, values in enumerate(expected) for _ in values]


def test_key_hashes_of_slices_of_one_topic_and_of_a_hash_without_absolute_value() -> None:
    keys = pa.array(["x", None, "aXA4ptp  k2", "y"]).slice(1, 2)
    nothing = pa.array(["a", None, None, "b"]).slice(1, 2)
    hashes, ends = index_key_hashes(pa.array(["TopicTest"] * 2), nothing, keys, nothing)
    assert (hashes.tolist(), ends.tolist()) == ([0, java_hash("TopicTest#k2")], [0, 0, 2])


def test_key_hashes_of_a_null_that_covers_bytes() -> None:
    raw = pa.Array.from_buffers(
        pa.string(),
        2,
        [pa.py_buffer(b"\x02"), pa.array([0, 3, 4], pa.int32()).buffers()[1], pa.py_buffer(b"a bc")],
    )
    hashes, ends = index_key_hashes(pa.array(["T", "T"]), raw, raw, raw)
    assert ends.tolist() == [0, 0, 3]
    assert hashes.tolist() == [java_hash(key) for key in ("T#c", "T#c", "T#T#c")]

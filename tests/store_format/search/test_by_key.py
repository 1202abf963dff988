"""find() against every key query a broker answered: what it returned, checked on the messages, and all of it,
however found.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.errors import CorruptStoreError, OptionError
from store_format.layouts import INDEX_HEADER
from store_format.search.look_up import Found
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.staged import append, make_store, numbered

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]
LONG_MAX = 2**63 - 1
COLUMNS = ("topic", "keys", "storeTimestampMs", "msgId", "physicalOffset")


class Messages:
    """Every stored unit of a store by the keys it is found under: from one slow pass over `scan`, not over
    any index.
    """

    def __init__(self, store: MessageStore) -> None:
        self.by_key: dict[tuple[str, str], set[int]] = defaultdict(set)
        self.times: dict[int, int] = {}
        columns = ["storedTopic", "properties", "physicalOffset", "storeTimestampMs", "sysFlag"]
        for batch in store.scan(columns, on_damage="DROPMALFORMED"):
            for row in batch.to_pylist():
                properties = dict(row["properties"])
                self.times[row["physicalOffset"]] = row["storeTimestampMs"]
                keys = {properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")}
                if row["sysFlag"] & 0xC != 0xC:
                    for key in keys - {None, ""}:
                        self.by_key[row["storedTopic"], key].add(row["physicalOffset"])


def _open(golden: Golden, name: str, broker: str) -> tuple[MessageStore, dict[str, Any]]:
    root, answers = goldens.brokers(name, golden(name))[broker]
    return MessageStore.open(str(root)), answers


def _offsets(found: Found) -> list[int]:
    offsets: list[int] = found.table["physicalOffset"].to_pylist()
    return offsets


@pytest.mark.slow
@pytest.mark.parametrize(("name", "broker"), STORES)
def test_key_queries_of_a_broker(golden: Golden, name: str, broker: str, whole: bool) -> None:
    """Every one with --whole, else every seventh one."""
    store, answers = _open(golden, name, broker)
    messages = Messages(store)
    ways = set()
    questions = _questions(answers)
    for (topic, key, begin, end), probes in list(questions.items())[:: 1 if whole else 7]:
        # the broker answers nothing: its index knows the topic that stores the message
        if topic.startswith("%LMQ%"):
            with pytest.raises(OptionError, match="is a light queue"):
                store.find(key=key, topic=topic)
            continue
        found = store.find(key=key, topic=topic, since=begin, until=end + 1, columns=COLUMNS)
        offsets = _offsets(found)
        ways.add(found.how)
        own = messages.by_key[topic, key]
        for probe in probes:
            # The index keeps seconds and hashes only: the broker also returns messages of other keys, and
            # times close to the window.
            verified = sorted(
                {at for at in probe["physicalOffsets"] if at in own and begin <= messages.times[at] <= end}
            )
            assert set(verified) <= set(offsets)
            if (
                (begin, end, probe["maxNum"]) == (0, LONG_MAX, 32)
                and len(probe["physicalOffsets"]) < 32
                and topic not in BATCH_TOPICS
            ):
                # there the broker has deleted index files
                assert offsets == verified or name == "cleaned-5.5.0"
        assert set(found.table["topic"].to_pylist()) <= {topic}
        if topic not in BATCH_TOPICS:
            assert offsets == sorted(at for at in own if begin <= messages.times[at] <= end)
    assert ways == WAYS.get(name, {"index"})


BATCH_TOPICS = {"Inner"}
WAYS = {
    "batchcq-5.5.0": {"index", "scan"},
    "crash-5.5.0": {"index and scan"},
    "crash-torn-5.5.0": {"index and scan"},
}


def _questions(answers: dict[str, Any]) -> dict[tuple[str, str, int, int], list[dict[str, Any]]]:
    """The probes by what they ask, for key queries; indexType T asks for a tag, which find() does not look
    for.
    """
    questions: dict[tuple[str, str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for probe in answers["queryByKey"]:
        if probe.get("indexType") != "T":
            questions[probe["topic"], probe["key"], probe["begin"], min(probe["end"], LONG_MAX)].append(probe)
    return questions


def test_messages_in_batches_are_found_by_their_own_keys_and_by_that_of_the_batch(golden: Golden) -> None:
    store = MessageStore.open(str(golden("batchcq-5.5.0")))
    rows = [row for row in goldens.expected_rows("batchcq-5.5.0") if "outerProperties" in row]
    assert rows
    for row in rows[:40]:
        found = store.find(
            key=row["properties"]["UNIQ_KEY"], topic=row["topic"], columns=["queueId", "queueOffset"]
        )
        assert found.how == "scan"
        assert "BatchCQ" in str(found.searched)
        assert found.table.to_pylist() == [
            {name: row[name] for name in ("queueId", "queueOffset", "physicalOffset")}
        ]
    outer = rows[0]["outerProperties"]["UNIQ_KEY"]
    whole = [row["queueOffset"] for row in rows if row["outerProperties"]["UNIQ_KEY"] == outer]
    assert len(whole) > 1
    assert store.find(key=outer, topic=rows[0]["topic"], columns=["queueOffset"]).table[
        "queueOffset"
    ].to_pylist() == sorted(whole)


@pytest.mark.process
@pytest.mark.parametrize("name", ["basic-5.5.0", "cleaned-5.5.0", "edge-5.5.0", "crash-5.5.0"])
def test_any_topic_is_every_topic(golden: Golden, name: str) -> None:
    store = MessageStore.open(str(golden(name)))
    messages = Messages(store)
    keys = sorted({key for _, key in messages.by_key})[:: max(1, len(messages.by_key) // 25)]
    for key in keys:
        found = store.find(key=key)
        assert found.searched.topics
        assert _offsets(found) == sorted(
            at for (_, other), offsets in messages.by_key.items() if other == key for at in offsets
        )


# ---- what the index does not cover -------------------------------------------------------------------------


@pytest.fixture
def copy(copy_of: Golden) -> Path:
    return copy_of("basic-5.5.0")


def _answers(root: Path, keys: list[tuple[str, str]]) -> tuple[list[list[int]], set[str]]:
    store = MessageStore.open(str(root))
    found = [store.find(key=key, topic=topic) for topic, key in keys]
    return [_offsets(one) for one in found], {one.how for one in found}


def _some_keys(root: Path) -> list[tuple[str, str]]:
    by_key = Messages(MessageStore.open(str(root))).by_key
    return sorted(by_key, key=lambda pair: min(by_key[pair]))[:: len(by_key) // 60]


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["all", "first", "middle", "last", "stale header", "foreign"])
def test_without_some_index_files_the_answer_is_the_same(copy: Path, lost: str) -> None:
    keys = _some_keys(copy)
    expected, ways = _answers(copy, keys)
    assert ways == {"index"}
    files = sorted((copy / "index").iterdir())
    if lost == "all":
        shutil.rmtree(copy / "index")
    elif lost == "stale header":  # the newest entries are not flushed: the header stands at an earlier unit
        data = bytearray(files[-1].read_bytes())
        data[:] = bytes(len(data))
        files[-1].write_bytes(data)
    elif lost == "foreign":  # a file of another log: its last entry leads to no message
        data = bytearray(files[4].read_bytes())
        header = np.frombuffer(data, INDEX_HEADER, 1)
        header["end_physical_offset"] += 1
        files[4].write_bytes(data)
    else:
        files[{"first": 0, "middle": 7, "last": -1}[lost]].unlink()
    found, ways = _answers(copy, keys)
    assert found == expected
    assert ways == {"scan" if lost == "all" else "index and scan"}


def test_index_files_not_flushed_at_a_crash_are_not_trusted(golden: Golden) -> None:
    store = MessageStore.open(str(golden("crash-5.5.0")))
    found = store.find(key="nobody's", topic="Audit")
    assert found.table.num_rows == 0
    assert found.how == "index and scan"
    assert all("not flushed up to its end" in reason for _, reason in found.searched.unused)
    assert found.searched.unused
    assert found.searched.index_files


def test_a_missing_number_of_slots_means_a_scan(copy: Path) -> None:
    """A file whose units prove no geometry is not guessed at."""
    file = sorted((copy / "index").iterdir())[3]
    data = bytearray(file.read_bytes())
    data[40:] = b"\x7f" * (len(data) - 40)
    file.write_bytes(data)
    found = MessageStore.open(str(copy)).find(key="nobody's", topic="Audit")
    assert [path for path, reason in found.searched.unused if "maxHashSlotNum" in reason] == [str(file)]
    assert found.how == "index and scan"


# ---- results -----------------------------------------------------------------------------------------------


def test_each_row_has_its_place_and_the_columns_asked_for(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    (topic, key), offsets = max(Messages(store).by_key.items(), key=lambda item: len(item[1]))
    found = store.find(key=key, topic=topic, columns=["queueOffset", "body"])
    assert found.table.column_names == ["queueOffset", "body", "physicalOffset"]
    assert len(offsets) > 1  # duplicates of a key are all shown
    assert _offsets(found) == sorted(offsets)
    assert store.find(key=key, topic=topic).table.schema.names[-1] == "physicalOffset"
    assert store.find(key=key, topic="NoSuchTopic").table.num_rows == 0


@pytest.mark.process
def test_with_and_without_the_index_the_rows_are_equal(golden: Golden) -> None:
    store = MessageStore.open(str(golden("edge-5.5.0")))
    for topic, key in _some_keys(golden("edge-5.5.0")):
        indexed = store.find(key=key, topic=topic)
        scanned = store.find(key=key, topic=topic, use_index=False)
        assert (indexed.how, scanned.how) == ("index", "scan")
        assert indexed.table.equals(scanned.table)
        assert scanned.searched.bytes_scanned > indexed.searched.bytes_scanned


@pytest.mark.parametrize(("key", "topic"), [("", None), ("a\ud800", None), ("a", "b\udc00"), ("a", "%LMQ%a")])
def test_questions_that_no_message_can_answer(golden: Golden, key: str, topic: str | None) -> None:
    store = MessageStore.open(str(golden("edge-5.5.0")))
    with pytest.raises(OptionError):
        store.find(key=key, topic=topic)


def test_a_key_with_a_space_is_not_two_words(golden: Golden) -> None:
    store = MessageStore.open(str(golden("edge-5.5.0")))
    two = [key for _, key in Messages(store).by_key][:2]
    for use_index in (True, False):
        assert store.find(key=" ".join(two), use_index=use_index).table.num_rows == 0
        assert store.find(key=f"{two[0]} ", use_index=use_index).table.num_rows == 0


# ---- damage ------------------------------------------------------------------------------------------------


def _message_with_keys() -> tuple[str, str, int]:
    """Topic, UNIQ_KEY and physical offset."""
    rows = goldens.expected_rows("basic-5.5.0")
    row = next(row for row in rows if row["properties"].get("KEYS") and row["physicalOffset"] > 300_000)
    return row["topic"], row["properties"]["UNIQ_KEY"], row["physicalOffset"]


def test_a_damaged_message_is_an_error_or_is_left_out(copy: Path) -> None:
    topic, key, at = _message_with_keys()
    file = copy / "commitlog" / f"{at // 262144 * 262144:020d}"
    data = bytearray(file.read_bytes())
    data[at % 262144 + 90] ^= 1  # in the body
    file.write_bytes(data)
    store = MessageStore.open(str(copy))
    with pytest.raises(CorruptStoreError, match="body CRC") as caught:
        store.find(key=key, topic=topic)
    assert (caught.value.file, caught.value.position) == (str(file), at % 262144 + 8)
    assert store.find(key=key, topic=topic, on_damage="DROPMALFORMED").table.num_rows == 0
    assert _offsets(store.find(key=key, topic=topic, verify_crc=False)) == [at]


def test_an_index_entry_that_leads_nowhere_is_an_error_or_is_left_out(copy: Path) -> None:
    topic, key, at = _message_with_keys()
    needle = at.to_bytes(8, "big")
    for file in sorted((copy / "index").iterdir()):
        data = file.read_bytes()
        file.write_bytes(data[:40] + data[40:].replace(needle, (at + 1).to_bytes(8, "big")))
    store = MessageStore.open(str(copy))
    with pytest.raises(CorruptStoreError) as caught:
        store.find(key=key, topic=topic)
    assert caught.value.position == at % 262144 + 1 + 4  # no magic code there
    assert store.find(key=key, topic=topic, on_damage="DROPMALFORMED").table.num_rows == 0
    assert _offsets(store.find(key=key, topic=topic, use_index=False)) == [at]


def test_finding_changes_nothing(golden: Golden, unchanged: Callable[[Path], Any]) -> None:
    root = golden("basic-5.5.0")
    with unchanged(root):
        MessageStore.open(str(root)).find(key="id-5")


def _add(root: Path, first: int, *, index: bool) -> None:
    options = CommitOptions(clock=lambda: 1_700_000_100_000 + first, message_index_enable=index)
    append(root, numbered("T", first, 10), options=options)


@pytest.mark.parametrize("how", ["without an index", "an older index"])
def test_a_write_does_not_hide_messages_that_the_index_lacks(tmp_path: Path, how: str) -> None:
    root = tmp_path / "store"
    make_store(root)
    _add(root, 0, index=True)
    backup = shutil.copytree(root / "index", tmp_path / "index")
    _add(root, 10, index=how == "an older index")
    if how == "an older index":
        shutil.rmtree(root / "index")
        backup.rename(root / "index")
    _add(root, 20, index=True)
    _add(root, 30, index=True)
    store = MessageStore.open(str(root))
    assert [len(_offsets(store.find(key=f"k{i}"))) for i in range(40)] == [1] * 40
    assert len(list((root / "index").iterdir())) == 2  # the last write goes on with the new file


def test_units_that_were_lost_with_the_power_hide_no_message(tmp_path: Path) -> None:
    """A page of units is zeros, and the file's header says that it has them: the log is scanned instead."""
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 16, 8000, 5000, 20000))
    append(root, numbered("T", 0, 500))
    (path,) = (root / "index").iterdir()
    with path.open("r+b") as file:
        file.seek(40 + 4 * 5000 + 20 * 600)
        file.write(bytes(20 * 200))
    store = MessageStore.open(str(root))
    assert [len(_offsets(store.find(key=f"k{i}"))) for i in range(0, 500, 7)] == [1] * 72
    assert len(store.diagnose().of("damage")) > 0

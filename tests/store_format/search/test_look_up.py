"""find() by either kind of id, by tags and by time; and what a scan sees of a log that is being written."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from store_format.errors import ChecksumError, CorruptStoreError, OptionError
from store_format.files.view import FileView
from store_format.layouts import INDEX_HEADER
from store_format.message.columns import DecodeOptions
from store_format.read.choice import MessageChoice
from store_format.read.tolerance import Tolerance
from store_format.search.look_up import Found, How, KeySearch, bytes_to_scan
from store_format.store import MessageStore
from tests.support import goldens, oracle
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.staged import append, make_store, numbered
from tests.support.store_files import write_log

STORES = [(name, broker) for name in goldens.NAMES for broker in goldens.brokers(name, Path())]


def _rows(name: str, broker: str = "") -> list[dict[str, Any]]:
    """The broker's rows in the order of the log, without those of light queues, which show others'
    messages.
    """
    rows = [
        row
        for row in goldens.expected_rows(name)
        if broker in ("", row.get("brokerName")) and not row["topic"].startswith("%LMQ%")
    ]
    return sorted(rows, key=lambda row: (row["physicalOffset"], row["queueOffset"]))


def _places(found: Found) -> list[tuple[str, int, int]]:
    return list(
        zip(*(found.table[name].to_pylist() for name in ("topic", "queueId", "queueOffset")), strict=True)
    )


def _told(rows: list[dict[str, Any]]) -> list[tuple[str, int, int]]:
    return [(row["topic"], row["queueId"], row["queueOffset"]) for row in rows]


# ---- ids ---------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize(("name", "broker"), STORES)
def test_both_kinds_of_id(golden: Golden, name: str, broker: str) -> None:
    root, _ = goldens.brokers(name, golden(name))[broker]
    store, rows = MessageStore.open(str(root)), _rows(name, broker)
    by_unique: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_unique.setdefault(row["properties"].get("UNIQ_KEY", ""), []).append(row)
    for row in rows[:: len(rows) // 10 + 1]:
        # the messages of a batch share an offset id
        mine = [each for each in rows if each["physicalOffset"] == row["physicalOffset"]]
        for message_id in {mine[0]["msgId"], mine[0]["msgId"].lower()} if mine[0]["msgId"] else ():
            found = store.find(message_id=message_id)
            assert (_places(found), found.how) == (_told(mine), "offset")
        unique = row["properties"].get("UNIQ_KEY")
        if unique and name != "edge-5.5.0":  # its keys repeat over and over
            found = store.find(message_id=unique)
            assert _places(found) == _told(by_unique[unique])  # duplicates of an id are all shown
            assert found.how in ("index", "index and scan", "scan")


@pytest.mark.slow
@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "broker"), STORES)
def test_every_id(golden: Golden, name: str, broker: str) -> None:
    root, _ = goldens.brokers(name, golden(name))[broker]
    store, rows = MessageStore.open(str(root)), _rows(name, broker)
    by_offset: dict[str, list[dict[str, Any]]] = {}
    by_unique: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["msgId"]:
            by_offset.setdefault(row["msgId"], []).append(row)
        if "UNIQ_KEY" in row["properties"]:
            by_unique.setdefault(row["properties"]["UNIQ_KEY"], []).append(row)
    for offset_id, mine in by_offset.items():
        assert _places(store.find(message_id=offset_id)) == _told(mine)
    for unique, mine in by_unique.items():
        assert _places(store.find(message_id=unique)) == _told(mine)


def test_an_offset_id_of_another_host_or_place_is_no_ones(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    offset_id = _rows("basic-5.5.0")[5]["msgId"]
    for wrong in ("0" + offset_id[1:], offset_id[:-1] + "1", "FF" * 16, "0" * 32, "00" * 28, "x"):
        assert store.find(message_id=wrong).table.num_rows == 0


def test_an_id_is_no_key(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    key = next(row["properties"]["KEYS"] for row in _rows("basic-5.5.0") if "KEYS" in row["properties"])
    assert store.find(key=key).table.num_rows
    assert store.find(message_id=key).table.num_rows == 0


def test_a_damaged_message_found_by_its_offset(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    row = next(row for row in _rows("basic-5.5.0") if row["topic"] == "Orders" and row["body"])
    file = root / "commitlog" / oracle.file_name(row["physicalOffset"] // 262144 * 262144)
    data = bytearray(file.read_bytes())
    data[row["physicalOffset"] % 262144 + 90] ^= 1
    file.write_bytes(data)
    store = MessageStore.open(str(root))
    with pytest.raises(ChecksumError):
        store.find(message_id=row["msgId"])
    assert store.find(message_id=row["msgId"], on_damage="DROPMALFORMED").table.num_rows == 0
    assert store.find(message_id=row["msgId"], verify_crc=False).table.num_rows == 1


def test_topic_time_and_tags_narrow_an_id(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    row = next(
        row for row in _rows("basic-5.5.0") if row["topic"] == "Orders" and "TAGS" in row["properties"]
    )
    time, tag = row["storeTimestamp"], row["properties"]["TAGS"]
    for message_id in (row["msgId"], row["properties"]["UNIQ_KEY"]):
        for wanted, count in (
            ({"topic": "Orders"}, 1),
            ({"topic": "Audit"}, 0),
            ({"since": time, "until": time + 1}, 1),
            ({"since": time + 1}, 0),
            ({"until": time}, 0),
            ({"tags": [tag, "other"]}, 1),
            ({"tags": ["other"]}, 0),
        ):
            assert store.find(message_id=message_id, **wanted).table.num_rows == count, wanted


def test_columns_are_those_asked_for(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    row = _rows("basic-5.5.0")[7]
    for message_id in (row["msgId"], row["properties"]["UNIQ_KEY"]):
        table = store.find(message_id=message_id, columns=["queueOffset", "tagsCode"]).table
        assert table.to_pylist() == [
            {name: row[name] for name in ("queueOffset", "tagsCode", "physicalOffset")}
        ]


def test_contradictions(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    with pytest.raises(OptionError, match="key and message_id are given together"):
        store.find(key="a", message_id="b")
    with pytest.raises(OptionError, match="the message id is empty"):
        store.find(message_id="")
    with pytest.raises(OptionError, match="unknown column 'tag'"):
        store.find(message_id="b", columns=["tag"])


def test_how_much_there_is_to_scan(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    question, how = MessageChoice(("Orders",), key="k"), How(("body",))
    size = sum(path.stat().st_size for path in (root / "commitlog").iterdir())

    def left() -> int:
        return bytes_to_scan(MessageStore.open(str(root)), question, how)

    covered = left()
    assert 0 < covered < size // 4
    (root / "commitlog" / oracle.file_name(size)).write_bytes(bytes(262144))  # a file made in advance
    assert left() == covered
    shutil.rmtree(root / "index")
    assert left() == size
    assert bytes_to_scan(MessageStore.open(str(root)), MessageChoice(("Orders",)), how) == 0


# ---- tags and time -----------------------------------------------------------------------------------------


QUESTIONS: list[Callable[[list[str], int, int], dict[str, Any]]] = [
    lambda tags, begin, end: {},
    lambda tags, begin, end: {"tags": tags},
    lambda tags, begin, end: {"since": begin, "until": end},
    lambda tags, begin, end: {"tags": tags[:1], "since": begin},
    lambda tags, begin, end: {"until": begin},
]


@pytest.mark.parametrize(
    "name", ["basic-5.5.0", "crash-5.5.0", "rocksdb-5.5.0", "batchcq-5.5.0", "cleaned-5.5.0"]
)
def test_tags_and_times_without_a_key(golden: Golden, name: str) -> None:
    store, rows = MessageStore.open(str(golden(name))), _rows(name)
    topics = sorted({row["topic"] for row in rows})
    tags = sorted({row["properties"].get("TAGS", "none") for row in rows})[:2]
    times = sorted(row["storeTimestamp"] for row in rows)
    begin, end = times[len(times) // 4], times[len(times) * 3 // 4]
    for topic in [None, *topics[:3]]:
        for question in QUESTIONS:
            wanted = question(tags, begin, end)
            found = store.find(topic=topic, **wanted)
            expected = [
                row
                for row in rows
                if topic in (None, row["topic"])
                and ("tags" not in wanted or row["properties"].get("TAGS") in wanted["tags"])
                and wanted.get("since", 0) <= row["storeTimestamp"] < wanted.get("until", 1 << 62)
            ]
            assert _places(found) == _told(expected), (topic, wanted)
            assert found.how == "consume queue"


def test_a_light_queue_by_its_name(golden: Golden) -> None:
    light = [row for row in goldens.expected_rows("edge-5.5.0") if row["topic"].startswith("%LMQ%")]
    topic = light[0]["topic"]
    found = MessageStore.open(str(golden("edge-5.5.0"))).find(topic=topic)
    assert _places(found) == [
        (row["topic"], row["queueId"], row["queueOffset"]) for row in light if row["topic"] == topic
    ]


# ---- scans -------------------------------------------------------------------------------------------------


KEYED = Message(b"Orders", b"a body", b"TAGS\x01red\x02KEYS\x01k1 k2\x02region\x01far away\x02", 0, 0)


def _log(root: Path, messages: list[Message]) -> tuple[MessageStore, Path, int]:
    """A store of one file, the file, and where its last unit begins."""
    at = 1_700_000_000_000
    dated = [replace(each, queue_offset=i, store_timestamp=at + i) for i, each in enumerate(messages)]
    stored = write_log(root, dated)
    path = root / "commitlog" / oracle.file_name(0)
    return MessageStore.open(str(root)), path, stored[-1].physical_offset


def _scan(store: MessageStore, *, is_live: bool = False, mode: str = "FAILFAST") -> list[int]:
    options = DecodeOptions(("physicalOffset", "queueOffset"))
    search = KeySearch(store.log, "k1", MessageChoice(), "b", options, Tolerance(mode), is_live)
    batches = search.scan(0, store.log.files[-1].stop, frozenset())
    return [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]


def test_a_half_written_last_unit_is_not_yet_there(tmp_path: Path) -> None:
    """No sum covers properties: a unit whose end is still zeros looks right, with the key in what is
    there.
    """
    store, path, start = _log(tmp_path / "store", [KEYED] * 3)
    whole = path.read_bytes()
    size = KEYED.total_size
    assert _scan(store, is_live=True) == _scan(store, is_live=False) == [0, 1, 2]
    key_end = whole.index(b"k1 k2", start) + len(b"k1 k2\x02")
    for cut in range(key_end, start + size):
        path.write_bytes(whole[:cut] + bytes(len(whole) - cut))
        assert _scan(MessageStore.open(str(tmp_path / "store")), is_live=True) == [0, 1], cut - start


def test_a_scan_of_a_long_log_finds_keys_in_every_window(tmp_path: Path) -> None:
    """Windows are searched in another thread, some ahead of the one whose messages are given."""
    bodies = [b"k1 " * (i % 3) + b"x" * 60_000 for i in range(200)]  # the key's bytes in a body are no key
    data, keyed = b"", []
    for i, body in enumerate(bodies):
        message = Message(b"Orders", body, b"KEYS\x01k1\x02" if i % 7 == 0 else b"KEYS\x01k12 k\x02", 0, i)
        data += oracle.encode_message(replace(message, physical_offset=len(data)))
        keyed += [i] * (i % 7 == 0)
    path = tmp_path / "store" / "commitlog" / oracle.file_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(data + bytes(1 << 16))
    store = MessageStore.open(str(tmp_path / "store"))
    assert (
        store.find(key="k1", use_index=False, columns=["queueOffset"]).table["queueOffset"].to_pylist()
        == keyed
    )


def test_a_hole_is_not_read(tmp_path: Path) -> None:
    store, path, _ = _log(tmp_path / "store", [KEYED] * 3)
    with path.open("r+b") as file:
        file.truncate(1 << 36)  # 64 GB, of which a few are there
    store = MessageStore.open(str(tmp_path / "store"))
    with FileView(str(path)) as view:
        if view.data_from(1 << 20) != 1 << 36:
            pytest.skip("this file system keeps no holes")
    assert _scan(store) == [0, 1, 2]


def test_a_unit_that_begins_at_the_end_of_a_hole_is_found(tmp_path: Path) -> None:
    """Its first bytes are zeros, the high bytes of its length."""
    _, path, _ = _log(tmp_path / "store", [KEYED] * 3)
    for hidden in (1, 2, 3):
        start = (1 << 20) - hidden
        unit = oracle.encode_message(replace(KEYED, physical_offset=start, queue_offset=9))
        assert unit[:hidden] == bytes(hidden)
        with path.open("r+b") as file:
            file.truncate(1 << 16)
            file.truncate(1 << 21)
            file.seek(1 << 20)
            file.write(unit[hidden:])
        assert _scan(MessageStore.open(str(tmp_path / "store")), mode="DROPMALFORMED") == [0, 1, 2, 9], hidden


# ---- find() against every key query a broker answered ------------------------------------------------------


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
    "dledger-crash-5.5.0": {"index and scan"},
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


@pytest.mark.parametrize("name", ["rocksdb-5.5.0", "rocksdbcq-5.5.0"])
def test_the_index_of_a_store_with_queues_in_rocksdb_is_used(golden: Golden, name: str) -> None:
    """The database and topics.json have its topics."""
    store = MessageStore.open(str(golden(name)))
    rows = goldens.expected_rows(name)
    keys = sorted({key for row in rows for key in row["properties"].get("KEYS", "").split()})[:20]
    assert keys
    for key in keys:
        found = store.find(key=key)
        assert found.searched.index_files
        assert not found.searched.unused
        assert _offsets(found) == _offsets(store.find(key=key, use_index=False)) != []


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
    overwrite(path, 40 + 4 * 5000 + 20 * 600, bytes(20 * 200))
    store = MessageStore.open(str(root))
    assert [len(_offsets(store.find(key=f"k{i}"))) for i in range(0, 500, 7)] == [1] * 72
    assert len(store.diagnose().of("damage")) > 0

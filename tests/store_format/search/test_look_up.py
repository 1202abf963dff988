"""find() by either kind of id, by tags and by time; and what a scan sees of a log that is being written."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store_format.errors import ChecksumError, OptionError
from store_format.files.view import FileView
from store_format.read.choice import MessageChoice
from store_format.read.tolerance import Tolerance
from store_format.search.look_up import Found, How, KeySearch, bytes_to_scan
from store_format.store import MessageStore
from tests.support import goldens, oracle
from tests.support.fixtures import Golden
from tests.support.oracle import Message

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
            assert found.how == ("scan" if name == "rocksdb-5.5.0" else "consume queue")


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
    data = b""
    for i, message in enumerate(messages):
        start = len(data)
        data += oracle.encode_message(
            replace(message, physical_offset=start, queue_offset=i, store_timestamp=1_700_000_000_000 + i)
        )
    path = root / "commitlog" / oracle.file_name(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(data.ljust(1 << 16, b"\0"))
    return MessageStore.open(str(root)), path, start


def _scan(store: MessageStore, *, is_live: bool = False, mode: str = "FAILFAST") -> list[int]:
    columns = ("physicalOffset", "queueOffset")
    search = KeySearch(store.log, "k1", MessageChoice(), "b", columns, Tolerance(mode), True, is_live)
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

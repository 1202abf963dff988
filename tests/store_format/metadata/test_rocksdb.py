"""Configuration in RocksDB: what a real broker loads from it, the files that are merged in, and databases
that cannot be read.
"""

from __future__ import annotations

import json
import logging
import shutil
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from store_format import MessageStore
from store_format.diagnose import diagnose
from store_format.errors import CorruptStoreError, StoreError, UnsupportedFormatError
from store_format.metadata import rocksdb
from store_format.metadata.group_offsets import read_group_offsets, write_group_offsets
from store_format.metadata.read import (
    known_topics,
    read_consumer_offsets,
    read_subscription_groups,
    read_topics,
)
from store_format.metadata.values import ConsumerOffsets
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.fixtures import Golden, Unchanged
from tests.support.object_server import ObjectServer

FIRST = ("rocksdbcq-5.5.0", "rocksdbcq-crash-5.5.0", "rocksdbcq-crash2-5.5.0")
SECOND = "rocksdbcq-configv2-5.5.0"


def _loaded(name: str) -> dict[str, Any]:  # Any: JSON
    """What a real broker had loaded from a copy of the store."""
    return dict(json.loads((goldens.ROOT / name / "config-by-broker.json").read_bytes()))


def _offsets(store: Opened) -> ConsumerOffsets:
    found = read_consumer_offsets(store, is_needed=True)
    assert found is not None
    return found


@pytest.mark.parametrize("name", [*FIRST, SECOND])
def test_what_a_broker_loads(golden: Golden, unchanged: Unchanged, name: str) -> None:
    root, told = golden(name), _loaded(name)
    with unchanged(root):
        store = Opened(str(root))
        topics, groups, offsets = read_topics(store), read_subscription_groups(store), _offsets(store)
    assert topics is not None
    assert groups is not None
    # A broker adds its own topics and groups at each start; version 2 keeps what was set, and not these.
    assert topics.keys() <= told["topics"].keys()
    assert groups.keys() <= told["subscriptionGroups"].keys()
    if name != SECOND:
        assert told["topics"].keys() - topics.keys() == {"rmq_sys_wheel_timer"}
        assert groups.keys() == told["subscriptionGroups"].keys()
    for topic, config in topics.items():
        members = told["topics"][topic]
        assert (config.read_queue_nums, config.write_queue_nums) == (
            members["readQueueNums"],
            members["writeQueueNums"],
        )
        assert (config.perm, config.order, dict(config.attributes)) == (
            members["perm"],
            members["order"],
            members["attributes"],
        )
    for group, config_of_group in groups.items():
        assert config_of_group.retry_max_times == told["subscriptionGroups"][group]["retryMaxTimes"]
        assert config_of_group.consume_enable == told["subscriptionGroups"][group]["consumeEnable"]
    assert offsets.offsets == {
        key: {int(queue): offset for queue, offset in table.items()}
        for key, table in told["consumerOffset"].items()
    }
    assert (offsets.pull_offsets == {}) is (name != SECOND)


def test_object_storage_has_the_same(server: ObjectServer, golden: Golden) -> None:
    for name in (FIRST[2], SECOND):
        shutil.copytree(golden(name) / "config", server.bucket / name / "config")
        (server.bucket / name / "commitlog").mkdir()
        there, here = Opened(server.url_of(server.bucket / name)), Opened(str(golden(name)))
        assert read_topics(there) == read_topics(here) != None  # noqa: E711 # both are there
        assert read_subscription_groups(there) == read_subscription_groups(here)
        assert _offsets(there) == _offsets(here)


# ---- made databases ----------------------------------------------------------------------------------------


def _put(directory: Path, families: Mapping[str, Mapping[str, object]]) -> None:
    """A database with JSON values, as a broker of version 1 leaves it."""
    directory.mkdir(parents=True)
    database = Rdict(str(directory), Options(raw_mode=True))
    for name, records in families.items():
        family = (
            database if name == "default" else database.create_column_family(name, Options(raw_mode=True))
        )
        for key, value in records.items():
            family[key.encode()] = json.dumps(value).encode()
    database.close()


def _version(counter: int) -> dict[str, object]:
    return {"kvDataVersionKey": {"counter": counter, "stateVersion": 0, "timestamp": 5}}


def _topic(queues: int) -> dict[str, object]:
    return {"topicName": "ignored", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}


def _file(root: Path, name: str, members: Mapping[str, object]) -> None:
    (root / "config").mkdir(parents=True, exist_ok=True)
    (root / "config" / name).write_text(json.dumps(members))


def _queues(root: Path) -> dict[str, int]:
    return {name: config.read_queue_nums for name, config in (read_topics(Opened(str(root))) or {}).items()}


def _single(root: Path, counter: int) -> None:
    """The one database for all configuration (useSingleRocksDBForAllConfigs)."""
    _put(
        root / "config/metadata",
        {
            "topic": {"T": _topic(1), "B": _topic(2)},
            "topicVersion": _version(counter),
            "subscriptionGroup": {"g": {"groupName": "g", "retryMaxTimes": 3}},
            "subscriptionGroupVersion": _version(counter),
            "forbidden": {"g": {"T": 4}},
            "consumerOffset": {"T@g": {"offsetTable": {"0": 7}}},
            "consumerOffsetVersion": _version(counter),
        },
    )


def test_one_database_for_all(tmp_path: Path) -> None:
    _single(tmp_path, 4)
    store = Opened(str(tmp_path))
    groups = read_subscription_groups(store)
    assert groups is not None
    assert (_queues(tmp_path), groups["g"].retry_max_times) == ({"T": 1, "B": 2}, 3)
    assert groups.forbidden == {"g": {"T": 4}}
    assert read_group_offsets(store, "g") == {("T", 0): 7}
    _put(tmp_path / "config/topics", {"default": {"T": _topic(9)}, "kvDataVersion": _version(4)})
    assert _queues(tmp_path) == {"T": 1, "B": 2}
    shutil.rmtree(tmp_path / "config/topics")
    _put(tmp_path / "config/topics", {"default": {"T": _topic(9)}, "kvDataVersion": _version(5)})
    assert _queues(tmp_path) == {"T": 9}


@pytest.mark.parametrize("counter", [4, 5])
def test_a_later_file_is_merged_in(tmp_path: Path, counter: int) -> None:
    """A broker puts the topics and groups of the file over those of the database, and takes all offsets of
    the file.
    """
    _single(tmp_path, 4)
    version = {"dataVersion": {"counter": counter, "stateVersion": 0, "timestamp": 9}}
    _file(tmp_path, "topics.json", version | {"topicConfigTable": {"T": _topic(8), "C": _topic(3)}})
    _file(tmp_path, "subscriptionGroup.json", version | {"subscriptionGroupTable": {"h": {"groupName": "h"}}})
    _file(tmp_path, "consumerOffset.json", version | {"offsetTable": {"T@h": {"0": 2}}})
    _file(tmp_path, "lmqConsumerOffset.json", {"offsetTable": {"T@x": {"0": 2}}})
    is_later = counter == 5
    assert _queues(tmp_path) == ({"T": 8, "B": 2, "C": 3} if is_later else {"T": 1, "B": 2})
    store = Opened(str(tmp_path))
    assert {*(read_subscription_groups(store) or ())} == ({"g", "h"} if is_later else {"g"})
    assert read_group_offsets(store, "h") == ({("T", 0): 2} if is_later else {})
    assert read_group_offsets(store, "g") == ({} if is_later else {("T", 0): 7})
    assert read_group_offsets(store, "x") == {}


def test_version_2_is_read_alone(copy_of: Golden) -> None:
    root = copy_of(SECOND)
    before = _queues(root)
    _single(root, 1000)
    _file(root, "topics.json", {"dataVersion": {"counter": 1000}, "topicConfigTable": {"New": _topic(1)}})
    assert _queues(root) == before != {}


def test_a_change_is_seen(tmp_path: Path) -> None:
    _put(tmp_path / "config/topics", {"default": {"T": _topic(1)}})
    store = Opened(str(tmp_path))
    first = known_topics(store)
    assert first is not None
    database = Rdict(str(tmp_path / "config/topics"), Options(raw_mode=True))
    database[b"U"] = json.dumps(_topic(1)).encode()
    database.flush_wal()  # it is in the log only, as with a broker that runs
    assert {*(known_topics(store) or ())} == {"T", "U"}
    database.close()


# ---- what cannot be read -----------------------------------------------------------------------------------


def test_without_rocksdict(
    copy_of: Golden, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = Opened(str(copy_of(FIRST[0])))  # whose databases no other test has opened in this process
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    rocksdb._last_database.cache_clear()
    with pytest.raises(UnsupportedFormatError, match=r"run `pip install rocksdict`, the extra `rocksdb`$"):
        read_group_offsets(store, "CG_all")
    with caplog.at_level(logging.WARNING):
        messages = sum(
            queue.max_offset - queue.min_offset for queue in MessageStore.open(store.path).queues()
        )
    assert messages == goldens.expected(FIRST[0])["rows"]
    assert "pip install rocksdict" in caplog.text


def test_offsets_are_not_written(copy_of: Golden, unchanged: Unchanged) -> None:
    root = copy_of(FIRST[0])
    with unchanged(root), pytest.raises(UnsupportedFormatError, match=r"set offsetStore to local or none$"):
        write_group_offsets(Opened(str(root)), "CG_all", {("Audit", 0): 1}, timestamp=1)


def _damaged(root: Path, pattern: str, position: int) -> Path:
    file = max((root / "config").glob(pattern), key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[position] ^= 16
    file.write_bytes(data)
    return file


@pytest.mark.parametrize(
    ("pattern", "position"),
    [("topics/*.sst", 40), ("topics/*.sst", -3), ("topics/MANIFEST-*", 60), ("topics/CURRENT", 3)],
)
def test_a_flipped_bit_is_named(copy_of: Golden, pattern: str, position: int) -> None:
    root = copy_of(FIRST[0])
    file = _damaged(root, pattern, position)
    with pytest.raises(CorruptStoreError) as caught:
        read_topics(Opened(str(root)), is_needed=True)
    assert caught.value.file in (str(file), str(file.parent))
    assert read_topics(Opened(str(root))) is None
    damage = [str(problem) for problem in diagnose(str(root)) if problem.severity == "damage"]
    assert len(damage) == 1
    assert str(file.parent) in damage[0]


def test_the_log_of_a_killed_broker_is_read_as_far_as_it_goes(copy_of: Golden) -> None:
    """A log that is cut is what a power loss leaves; a wrong byte in it is damage."""
    root = copy_of(FIRST[1])
    whole = read_group_offsets(Opened(str(root)), "CG_all")
    (log,) = (root / "config/consumerOffsets").glob("*.log")
    data = log.read_bytes()
    log.write_bytes(data[:-5])
    assert read_group_offsets(Opened(str(root)), "CG_all").keys() == whole.keys() != set()
    log.write_bytes(data[:20] + bytes([data[20] ^ 1]) + data[21:])
    with pytest.raises(CorruptStoreError, match=r"config/consumerOffsets at byte 0: .*checksum mismatch"):
        read_group_offsets(Opened(str(root)), "CG_all")


@pytest.mark.parametrize(
    "record",
    [
        (b"\x01\x00\x03\x02\x00", b"\x01{}"),
        (b"\x01\x00\x03\x02\x00\x09short", b"\x01{}"),
        (b"\x01\x00\x03\x02\x00\x01T", b""),
        (b"\x01\x00\x03\x02\x00\x01T", b"\x01{"),
        (b"\x01\x00\x01\x02\x00\x01g\x01\x00\x01T\x01\x00", bytes(8)),
        (b"\x01\x00\x03\x01data_version", bytes(7)),
        (b"\x01", b""),
    ],
)
def test_a_record_of_version_2_that_no_broker_writes(tmp_path: Path, record: tuple[bytes, bytes]) -> None:
    (tmp_path / "config").mkdir()
    database = Rdict(str(tmp_path / "config/rdb"), Options(raw_mode=True))
    database[b"\x01\x00\x01\x02\x00\x01g\x01\x00\x01T\x01" + struct.pack(">i", 3)] = struct.pack(">q", 9)
    database[record[0]] = record[1]
    database.close()
    for read in (read_topics, read_consumer_offsets):
        with pytest.raises(StoreError, match="config/rdb"):
            read(Opened(str(tmp_path)), is_needed=True)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    _put(tmp_path / "elsewhere", {"default": {"T": _topic(1)}})
    (tmp_path / "store/config").mkdir(parents=True)
    (tmp_path / "store/config/topics").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptStoreError, match="symbolic link"):
        read_topics(Opened(str(tmp_path / "store")), is_needed=True)

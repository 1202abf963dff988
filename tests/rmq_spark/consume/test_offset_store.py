"""The offset stores: the broker's file, a client's and none, beside brokers, readers and kills at every
moment.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from rmq_spark.consume.consumer import MessageQueue, check_client_id, client_ids, default_client_id
from rmq_spark.consume.group.directory import group_directory
from rmq_spark.consume.offset_store import LocalOffsets, NoOffsets, OffsetStore, StoreOffsets, offset_store
from store_format.errors import (
    CorruptStoreError,
    OptionError,
    StoreError,
    StoreInUseError,
    StoreWriteError,
    UnsupportedFormatError,
)
from store_format.metadata.group_offsets import read_broker_offsets, read_group_offsets, read_local_offsets
from store_format.metadata.rocksdb import _last_database
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.failing_offsets import NEW_OFFSET, kill_at_each_change
from tests.support.fixtures import Golden, Unchanged
from tests.support.fork_server import ForkServer

T0 = MessageQueue("T", "b", 0)


def _store(root: Path, text: str | None = None, name: str = "consumerOffset.json") -> str:
    (root / "config").mkdir(parents=True, exist_ok=True)
    (root / "lock").write_bytes(b"lock")
    if text is not None:
        (root / "config" / name).write_text(text)
    return str(root)


# As a Java broker holds a store: the lock of the file's first byte, in a process of its own.
_HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
if sys.argv[2] == "lock":
    fcntl.lockf(descriptor, fcntl.LOCK_EX, 1, 0)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def _broker(root: str, how: str = "lock") -> Iterator[None]:
    command = [sys.executable, "-c", _HOLD, f"{root}/lock", how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.stdin.close()


# ---- store -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["basic-5.5.0", "basic-4.9.7"])
def test_what_a_java_consumer_left(golden: Golden, unchanged: Unchanged, name: str) -> None:
    root = golden(name)
    expected = goldens.expected(name)["consumerOffset"]["offsetTable"]
    with unchanged(root):
        found = StoreOffsets("CG_some", {"broker-a": str(root)}).read()
    by_topic = {
        topic: {queue.queue_id: n for queue, n in found.items() if queue.topic == topic}
        for topic in {q.topic for q in found}
    }
    assert by_topic["Orders"] == {int(queue): n for queue, n in expected["Orders@CG_some"].items()}
    assert sum(by_topic["Orders"].values()) > 0
    assert set(by_topic) == {key.split("@")[0] for key in expected if key.endswith("@CG_some")}
    assert StoreOffsets("nobody", {"broker-a": str(root)}).read() == {}


def test_saving_keeps_what_others_have(copy_of: Golden) -> None:
    root = str(copy_of("basic-5.5.0"))
    before = Path(root, "config", "consumerOffset.json").read_bytes()
    store = StoreOffsets("CG_some", {"broker-a": root}, clock_ms=lambda: 1_800_000_000_000)
    was = store.read()
    assert store.save({MessageQueue("Orders", "broker-a", 3): 60})
    assert store.read() == was | {MessageQueue("Orders", "broker-a", 3): 60}
    assert Path(root, "config", "consumerOffset.json.bak").read_bytes() == before
    after = Path(root, "config", "consumerOffset.json").read_bytes()
    assert store.save({MessageQueue("Orders", "broker-a", 3): 59})  # it is further already
    assert Path(root, "config", "consumerOffset.json").read_bytes() == after
    assert store.save({MessageQueue("Orders", "broker-a", 3): 1}, is_reset=True)
    assert store.read() == was | {MessageQueue("Orders", "broker-a", 3): 1}
    assert StoreOffsets("CG_all", {"broker-a": root}).read() != {}


def test_each_broker_has_its_own(tmp_path: Path) -> None:
    roots = {name: _store(tmp_path / name) for name in ("a", "b")}
    store = StoreOffsets("g", roots)
    offsets = {
        MessageQueue("T", "a", 0): 3,
        MessageQueue("T", "b", 0): 4,
        MessageQueue("%RETRY%g", "b", 0): 1,
    }
    assert store.save(offsets)
    assert store.read() == offsets
    assert read_group_offsets(Opened(roots["a"]), "g") == {("T", 0): 3}
    with pytest.raises(OptionError) as caught:
        store.save({MessageQueue("T", "c", 0): 1})
    assert str(caught.value) == "offsets of c: expected a broker that is read, a, b"


def test_a_running_broker_at_the_start_and_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = _store(tmp_path / "store")
    store = StoreOffsets("g", {"b": root})
    store.check()
    assert store.save({T0: 1})
    with caplog.at_level(logging.WARNING):
        with _broker(root):
            for offset in (2, 3):
                assert not store.save({T0: offset})
            assert store.read() == {T0: 1}
        assert store.save({T0: 3})
    assert store.read() == {T0: 3}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2  # once when it began, once when it was over
    assert "held by process" in said[0]
    assert said[1] == "offsets are saved again"


def test_groups_of_one_store_wait_for_each_other(tmp_path: Path) -> None:
    root = _store(tmp_path / "store")
    stores = [StoreOffsets(f"g{number}", {"b": root}, lock_timeout=30) for number in range(4)]

    def save(store: StoreOffsets) -> list[bool]:
        return [store.save({T0: offset}) for offset in range(1, 6)]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(save, stores)) == [[True] * 5] * 4
    assert [store.read() for store in stores] == [{T0: 5}] * 4


def test_a_broker_at_the_start_is_an_error_that_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rmq_spark.consume.offset_store._WAIT_SECONDS", 0.1)
    root = _store(tmp_path / "store")
    for how in ("lock", "open"):  # a broker that starts has the file open before it takes the lock
        with _broker(root, how), pytest.raises(StoreInUseError) as caught:
            StoreOffsets("g", {"b": root}).check()
        assert "set offsetStore to local or none" in str(caught.value)


def test_a_store_that_may_not_be_written() -> None:
    with pytest.raises(StoreWriteError) as caught:
        StoreOffsets("g", {"b": "/proc/self"}).check()  # nobody makes files there, root neither
    assert "set offsetStore to local or none" in str(caught.value)


def test_the_file_of_a_broker_with_light_queues(tmp_path: Path) -> None:
    old, new = (
        f'"dataVersion":{{"counter":1,"stateVersion":0,"timestamp":{timestamp}}},' for timestamp in (1, 2)
    )
    plain = "{" + old + '"offsetTable":{"T@g":{0:1}}}'
    root = _store(tmp_path / "store", plain)
    light = tmp_path / "store" / "config" / "lmqConsumerOffset.json"
    light.write_text("{" + old + '"offsetTable":{"T@g":{0:5}}}')
    assert read_broker_offsets(Opened(root))[0] == "lmqConsumerOffset.json"
    # light queues were switched off since
    (tmp_path / "store" / "config" / "consumerOffset.json").write_text(plain.replace(old, new))
    assert read_broker_offsets(Opened(root))[0] == "consumerOffset.json"
    light.write_text("{" + new + '"lmqOffsetTable":{"%LMQ%t@%LMQ%g":8},"offsetTable":{"T@g":{0:5}}}')
    assert read_broker_offsets(Opened(root))[0] == "lmqConsumerOffset.json"
    assert StoreOffsets("g", {"b": root}).save({T0: 6})
    assert StoreOffsets("g", {"b": root}).read() == {T0: 6}
    assert StoreOffsets("%LMQ%g", {"b": root}).read() == {MessageQueue("%LMQ%t", "b", 0): 8}
    assert StoreOffsets("%LMQ%g", {"b": root}).save({MessageQueue("%LMQ%t", "b", 0): 9})
    assert read_group_offsets(Opened(root), "%LMQ%g") == {("%LMQ%t", 0): 9}
    assert "0:1" in (tmp_path / "store" / "config" / "consumerOffset.json").read_text()


def test_ids_that_no_queue_can_have(tmp_path: Path) -> None:
    root = _store(
        tmp_path / "store",
        '{"offsetTable":{"T@g":{-1:5,0:7},"a@b@g":{0:1},"@g":{0:1},"T@":{0:1}}}',
    )
    assert StoreOffsets("g", {"b": root}).read() == {T0: 7}
    # no Integer: a broker refuses the file (ConsumerOffsetManager)
    root = _store(tmp_path / "store", '{"offsetTable":{"T@g":{0:7,2147483648:6}}}')
    with pytest.raises(CorruptStoreError, match="a 32-bit integer"):
        StoreOffsets("g", {"b": root}).read()


def test_a_file_that_a_crash_left(tmp_path: Path) -> None:
    root = _store(tmp_path / "store", '{"offsetTable":{"T@g":{0:', "consumerOffset.json")
    _store(tmp_path / "store", '{"offsetTable":{"T@g":{0:5},"T@h":{0:7}}}', "consumerOffset.json.bak")
    store = StoreOffsets("g", {"b": root})
    assert store.read() == {T0: 5}
    assert store.save({T0: 6})
    assert store.read() == {T0: 6}
    assert StoreOffsets("h", {"b": root}).read() == {T0: 7}
    # the broken one did not become the .bak
    assert "0:5" in (tmp_path / "store" / "config" / "consumerOffset.json.bak").read_text()


def test_broken_in_both_files_is_an_error_with_the_file(tmp_path: Path) -> None:
    root = _store(tmp_path / "store", "{")
    _store(tmp_path / "store", '{"offsetTable":{"T@g":{0:"x"}}}', "consumerOffset.json.bak")
    store = StoreOffsets("g", {"b": root})
    calls: list[Callable[[], object]] = [store.read, lambda: store.save({T0: 6})]
    for call in calls:
        with pytest.raises(CorruptStoreError) as caught:
            call()
        assert caught.value.file == f"{root}/config/consumerOffset.json"


def test_offsets_in_rocksdb(
    golden: Golden, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = {"broker-a": str(golden("rocksdb-5.5.0"))}
    store = StoreOffsets("CG_all", roots)
    committed = {MessageQueue("Audit", "broker-a", 0): 38}
    assert store.read() == committed
    calls: list[Callable[[], object]] = [store.check, lambda: store.save({next(iter(committed)): 39})]
    for call in calls:
        with pytest.raises(UnsupportedFormatError) as caught:
            call()
        assert "storeType=defaultRocksDB" in str(caught.value)
        assert "offsetStore to local or none" in str(caught.value)
    local = offset_store("local", group="CG_all", roots=roots, offset_store_path=str(tmp_path))
    assert local.read() == committed
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    _last_database.cache_clear()
    with pytest.raises(UnsupportedFormatError, match=r"run `pip install rocksdict`"):
        store.read()
    with caplog.at_level(logging.WARNING):
        assert local.read() == {}
    assert "the broker's committed offsets cannot be read" in caplog.text


# ---- killed ------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["store", "local"])
@pytest.mark.parametrize("what", ["kill", "torn"])
@pytest.mark.parametrize("is_new", [False, True])
def test_killed_at_every_change(
    tmp_path: Path, forks: ForkServer, kind: str, what: str, is_new: bool
) -> None:
    """What is read afterwards is the old offset or the new one, others' stand, and the next one saves."""
    base = tmp_path / "base"
    _store(base)
    home = base / "offsets" / "g" / "offsets.json"

    def store_at(root: Path) -> OffsetStore:
        in_store = StoreOffsets("g", {"b": str(root)})
        return in_store if kind == "store" else LocalOffsets(f"{root}/offsets/g/offsets.json", in_store)

    other = MessageQueue("Other", "b", 1)
    if not is_new:
        assert store_at(base).save({T0: 7, other: 70})
    (tmp_path / "copies").mkdir()
    changes = kill_at_each_change(forks, base, tmp_path / "copies", what, kind)
    assert changes >= 3
    seen = []
    for at in range(1, changes + 2):
        store = store_at(tmp_path / "copies" / str(at))
        found = store.read()
        seen.append(found.get(T0))
        assert found.get(T0) in (NEW_OFFSET, None if is_new else 7)
        assert found.get(other) == (None if is_new else 70)
        assert store.save({T0: 21})
        assert store.read()[T0] == 21
        assert store.read().get(other) == (None if is_new else 70)
    assert seen[-1] == NEW_OFFSET
    assert seen == sorted(seen, key=lambda offset: offset == NEW_OFFSET)  # once new, it stays
    assert home.exists() == (kind == "local" and not is_new)


# ---- local and none ----------------------------------------------------------------------------------------


def test_a_clustering_group_shares_a_file_and_begins_where_the_broker_has_it(tmp_path: Path) -> None:
    root = _store(tmp_path / "store", '{"offsetTable":{"T@g":{0:5,1:6}}}')
    before = sorted((tmp_path / "store").rglob("*"))
    local = offset_store("local", group="g", roots={"b": root}, offset_store_path=str(tmp_path / "offsets"))
    assert isinstance(local, LocalOffsets)
    assert local.path == str(tmp_path / "offsets" / "g" / "offsets.json")
    local.check()
    with _broker(root):  # a local store has nothing to do with it
        local.check()
        assert local.save({T0: 9})
        assert local.read() == {T0: 9, MessageQueue("T", "b", 1): 6}
    assert sorted((tmp_path / "store").rglob("*")) == before
    other = offset_store("local", group="g", roots={"b": root}, offset_store_path=str(tmp_path / "offsets"))
    assert other.save({MessageQueue("T", "b", 1): 7, T0: 8})
    assert local.read() == {T0: 9, MessageQueue("T", "b", 1): 7}
    assert local.save({T0: 2}, is_reset=True)
    assert local.read()[T0] == 2


def test_a_broadcasting_client_has_rocketmqs_path_and_nobody_elses_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = _store(tmp_path / "store", '{"offsetTable":{"T@g":{0:5}}}')
    monkeypatch.setenv("HOME", str(tmp_path / "offsets"))
    client = default_client_id("BROADCASTING", process_id=1, now_ns=2)
    assert client.endswith("@DEFAULT")
    store = offset_store(None, group="g", roots={"b": root}, message_model="BROADCASTING", client_id=client)
    assert store.read() == {}
    assert store.save({T0: 3})
    path = tmp_path / "offsets" / ".rocketmq_offsets" / client / "g" / "offsets.json"
    assert read_local_offsets(str(path)) == {("T", "b", 0): 3}
    assert store.save({T0: 4})
    assert "}:3" in path.with_suffix(".json.bak").read_text()


def test_none_keeps_nothing(tmp_path: Path) -> None:
    root = _store(tmp_path / "store", '{"offsetTable":{"T@g":{0:5}}}')
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    store = offset_store("none", group="g", roots={"b": root})
    store.check()
    assert store.save({T0: 9})
    assert store.read() == {T0: 5}
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before
    assert NoOffsets().read() == {}


def test_where_members_meet(tmp_path: Path) -> None:
    roots = {"b2": str(tmp_path / "two"), "b1": str(tmp_path / "one")}
    for kind, expected in [
        ("store", f"{tmp_path}/one/.rmqlog/groups/g"),
        ("local", f"{tmp_path}/offsets/g/members"),
        ("none", None),
    ]:
        store = offset_store(kind, group="g", roots=roots, offset_store_path=str(tmp_path / "offsets"))
        paths = [str(tmp_path / "two"), str(tmp_path / "one")]
        assert group_directory(store, group="g", roots=roots, paths=paths) == expected
        assert (
            group_directory(store, group="g", roots=roots, paths=paths, group_path="/shared/") == "/shared/g"
        )


def test_client_ids() -> None:
    assert default_client_id("CLUSTERING", process_id=7, now_ns=8).endswith("@7#8")
    assert client_ids("c", 1) == ["c"]
    assert client_ids("c", 3) == ["c@0", "c@1", "c@2"]
    for name in ("", "..", "a\nb", "é" * 200):
        with pytest.raises(OptionError):
            check_client_id(name)
    assert issubclass(OptionError, StoreError)

"""Writes to a directory of stores: spread as a producer spreads them, closed stores passed over and told,
each batch once whatever dies.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.write.stage_and_commit import abort_write, stage_rows
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.errors import IllegalMessageError, OptionError, StoreInUseError, StoreNotFoundError
from store_format.files.read import files_at
from store_format.java.text import java_hash
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from tests.support.failing_writer import Failure, install
from tests.support.fork_server import ForkServer
from tests.support.kills import killed_stores
from tests.support.staged import make_store
from tests.support.writes import bodies, held, numbered_rows, target_of, write

_NAMES = ("broker-a", "broker-b")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    directory = tmp_path / "cluster"
    directory.mkdir()
    for name in _NAMES:
        make_store(directory / name, StoreSettings(name, 1 << 14, 400, 50, 200))
    return directory


def _stores(cluster: Path) -> list[Path]:
    return [cluster / name for name in _NAMES]


def _once(*ranges: range) -> dict[int, int]:
    return {number: 1 for each in ranges for number in each}


# ---- where messages go -------------------------------------------------------------------------------------


def test_messages_are_spread_over_the_queues_of_all_stores(cluster: Path) -> None:
    results = write(cluster, numbered_rows(0, 160), numbered_rows(160, 320))
    assert list(results) == [str(store) for store in _stores(cluster)]
    assert bodies(*_stores(cluster)) == _once(range(320))
    for store in _stores(cluster):
        counts = [queue.max_offset for queue in MessageStore.open(str(store)).queues()]
        assert counts == [40] * 4
        assert not any((store / ".rmqlog" / "staging").iterdir())
        assert MessageStore.open(str(store)).diagnose().of("damage", "warning") == []


def test_a_sharding_key_stays_in_its_queue_also_when_the_topic_is_new(cluster: Path) -> None:
    """The first batch has one key and fills one store; the topic is made in both, or the key would move."""
    for first in range(0, 30, 10):
        rows = numbered_rows(first, first + 10, shardingKey=["one"] * 10)
        write(cluster, rows, messageQueueSelector="hash")
    place = abs(java_hash("one")) % 8  # 4 queues in each of two stores
    queues = {store: MessageStore.open(str(store)).queues() for store in _stores(cluster)}
    found = [(store.name, queue.queue_id, queue) for store, of_store in queues.items() for queue in of_store]
    assert [(name, queue_id) for name, queue_id, _ in found] == [(_NAMES[place // 4], place % 4)]
    order = [int(body) for batch in found[0][2].read(columns=["body"]) for body in batch["body"].to_pylist()]
    assert order == list(range(30))


def test_a_queue_is_named_with_its_broker(cluster: Path) -> None:
    rows = numbered_rows(0, 3, queueId=[3, 0, 3], brokerName=["broker-b", "broker-a", "broker-b"])
    results = write(cluster, rows)
    assert [dict(result.queues) for result in results.values()] == [{("T", 0): (0, 1)}, {("T", 3): (0, 2)}]
    with pytest.raises(
        IllegalMessageError,
        match="brokerName: with queueId expected a store of the topic, broker-a, broker-b",
    ):
        write(cluster, numbered_rows(0, 1, queueId=[0]))


def test_units_must_fit_the_files_of_their_own_store(tmp_path: Path) -> None:
    for name, size in (("broker-a", 1 << 12), ("broker-b", 1 << 14)):
        make_store(tmp_path / name, StoreSettings(name, size, 400, 50, 200))
    rows = {"topic": ["T"], "body": ["x" * 6000], "queueId": [0]}
    write(tmp_path, pa.RecordBatch.from_pydict({**rows, "brokerName": ["broker-b"]}))
    with pytest.raises(IllegalMessageError, match="at most 4088 bytes, which fits a commitlog file of 4096"):
        write(tmp_path, pa.RecordBatch.from_pydict({**rows, "brokerName": ["broker-a"]}))


def test_a_name_of_its_own_and_equal_names_are_refused(cluster: Path) -> None:
    with pytest.raises(OptionError, match=r"brokerName names one store, and .*cluster is a cluster"):
        target_of(cluster, brokerName="broker-x")
    make_store(cluster / "copy", StoreSettings("broker-a", 1 << 14, 400, 50, 200))
    with pytest.raises(
        OptionError, match=r"broker-a and .*copy both belong to broker broker-a; write to only one of them"
    ):
        target_of(cluster)


# ---- stores that take no messages now ----------------------------------------------------------------------


def test_a_store_in_use_is_passed_over_and_told(cluster: Path, caplog: pytest.LogCaptureFixture) -> None:
    with held(cluster / "broker-a"):
        results = write(cluster, numbered_rows(0, 40))
    assert list(results) == [str(cluster / "broker-b")]
    assert bodies(cluster / "broker-b") == _once(range(40))
    assert bodies(cluster / "broker-a") == {}
    (told,) = caplog.messages
    assert told.startswith(
        f"broker-a ({cluster / 'broker-a'}) takes no messages now and was left out: in use by process "
    )
    write(cluster, numbered_rows(40, 80, topic="U"))
    assert bodies(*_stores(cluster)) == _once(range(80))


def test_a_queue_that_is_fixed_is_not_exchanged_for_another(cluster: Path) -> None:
    write(cluster, numbered_rows(0, 8))
    keys = [
        next(key for key in map(str, range(1000)) if abs(java_hash(key)) % 8 == place) for place in (0, 7)
    ]
    with held(cluster / "broker-a"):
        taken = "a queue of broker-a, which takes no messages now"
        with pytest.raises(
            StoreInUseError, match=rf"T, row 0 \(keys 'k0'\): queueId 2 selects {taken}: in use by "
        ):
            write(cluster, numbered_rows(0, 1, queueId=[2], brokerName=["broker-a"]))
        with pytest.raises(StoreInUseError, match=rf"T, row 0 .*: sharding key '{keys[0]}' selects {taken}"):
            write(cluster, numbered_rows(0, 1, shardingKey=keys[:1]), messageQueueSelector="hash")
        write(cluster, numbered_rows(8, 9, shardingKey=keys[1:]), messageQueueSelector="hash")
    assert bodies(*_stores(cluster)) == _once(range(9))


@pytest.mark.process
def test_without_any_store_that_takes_messages_nothing_is_written(cluster: Path) -> None:
    write(cluster, numbered_rows(0, 8))
    with held(cluster / "broker-a"), held(cluster / "broker-b"):
        for topic in ("T", "New"):
            with pytest.raises(
                StoreInUseError,
                match=rf"topic {topic}: expected a store that takes messages now, found none \(broker-a: in "
                rf"use by ",
            ):
                write(cluster, numbered_rows(0, 1, topic=topic))


@pytest.mark.process
def test_another_writer_is_waited_for_and_not_passed_over(cluster: Path) -> None:
    with held(cluster / "broker-a", kind="writer"):
        assert [store.closed for store in target_of(cluster).stores] == [None, None]
        with pytest.raises(StoreInUseError, match="broker-a/lock: held by process "):
            write(cluster, numbered_rows(0, 8), writerLockTimeout="100ms")
        assert target_of(cluster, writerLockTimeout="0s").stores[0].closed is not None
    assert bodies(*_stores(cluster)) == {}


@pytest.mark.process
def test_a_key_counts_whichever_stores_took_part(cluster: Path) -> None:
    write(cluster, numbered_rows(100, 108))
    with held(cluster / "broker-a"):
        write(cluster, numbered_rows(0, 40), key=("q", 7))
    with held(cluster / "broker-b"):  # the driver died, and now the other one is in use
        results = write(cluster, numbered_rows(0, 40), key=("q", 7))
    assert [result.committed for result in results.values()] == [False]
    assert bodies(*_stores(cluster)) == _once(range(40), range(100, 108))


def test_a_store_on_a_full_disk_is_passed_over(cluster: Path) -> None:
    """The second store is on another file system, of which less is used: between the two is the limit."""
    used = files_at(str(cluster)).disk_space(str(cluster)).used_percent
    other = next(
        (
            place
            for place in (Path("/dev/shm"), Path("/run"), Path("/var/tmp"))
            if place.is_dir() and abs(files_at(str(place)).disk_space(str(place)).used_percent - used) > 4
        ),
        None,
    )
    if other is None:
        pytest.skip("no two file systems of which different shares are used")
    away = other / f"rmqlog-{cluster.parent.name}-{cluster.stat().st_ino}"
    try:
        shutil.move(cluster / "broker-b", away)
        (cluster / "broker-b").symlink_to(away)
        both = [used, files_at(str(away)).disk_space(str(away)).used_percent]
        full, free = (_NAMES if both[0] > both[1] else _NAMES[::-1])[:2]
        limit = str(max(1, sum(both) // 2))
        target = target_of(cluster, diskSpaceWarningLevelRatio=limit)
        assert [store.settings.broker_name for store in target.stores if store.closed] == [full]
        assert next(store.closed for store in target.stores if store.closed).endswith(
            f"% full, above the limit of {limit} % for writes"
        )
        write(cluster, numbered_rows(0, 10), diskSpaceWarningLevelRatio=limit)
        assert bodies(cluster / free) == _once(range(10))
    finally:
        shutil.rmtree(away, ignore_errors=True)


@pytest.mark.process
def test_a_batch_is_not_written_again_by_the_store_that_was_left_out(cluster: Path) -> None:
    """The store that has the batch is missing when the job runs again: nobody there could know."""
    rows = numbered_rows(0, 20)
    with held(cluster / "broker-a"):
        write(cluster, rows, key=("q", 1))
    away = (cluster / "broker-b").rename(cluster.parent / "away")
    with pytest.raises(StoreNotFoundError, match=r"batch 1 of q: expected the store .*broker-b with the id"):
        write(cluster, rows, key=("q", 1))
    away.rename(cluster / "broker-b")
    write(cluster, rows, key=("q", 1))
    assert bodies(*_stores(cluster)) == _once(range(20))


@pytest.mark.process
def test_ignore_missing_stores_writes_the_batch_without_them(cluster: Path) -> None:
    write(cluster, numbered_rows(0, 20), key=("q", 1))
    (cluster / "broker-b").rename(cluster.parent / "away")
    with pytest.raises(StoreNotFoundError, match="ignoreMissingStores=true"):
        write(cluster, numbered_rows(20, 40), key=("q", 2))
    write(cluster, numbered_rows(20, 40), key=("q", 2), ignoreMissingStores="true")
    write(cluster, numbered_rows(40, 50), key=("q", 3))
    assert bodies(cluster / "broker-a").keys() >= set(range(20, 50))


# ---- failures ----------------------------------------------------------------------------------------------


def test_what_was_staged_in_all_stores_is_removed_when_the_write_is_given_up(cluster: Path) -> None:
    target = target_of(cluster)
    stage_rows(target, [numbered_rows(0, 16)])
    assert all(any((store / ".rmqlog" / "staging").iterdir()) for store in _stores(cluster))
    abort_write(target)
    assert not any(any((store / ".rmqlog" / "staging").iterdir()) for store in _stores(cluster))
    with pytest.raises(IllegalMessageError, match="expected a body of at least 1 byte"):
        stage_rows(target, [numbered_rows(0, 16), pa.RecordBatch.from_pydict({"topic": ["T"], "body": [""]})])
    assert not any(any((store / ".rmqlog" / "staging").iterdir()) for store in _stores(cluster))


def _write_killed(cluster: Path, failure: Failure) -> None:
    install(failure)
    write(cluster, numbered_rows(1000, 1030), numbered_rows(1030, 1060), key=("q", 1))


def _check_killed(cluster: Path, closed: str | None) -> None:
    """Runs a killed write again, with both stores or with one in use, and another batch."""
    assert bodies(*_stores(cluster)).keys() >= set(range(40))
    if closed:
        with held(cluster / closed, kind="writer"):
            write(cluster, numbered_rows(1000, 1060), key=("q", 1), writerLockTimeout="0s")
    else:
        write(cluster, numbered_rows(1000, 1060), key=("q", 1))
        assert bodies(*_stores(cluster)) == _once(range(40), range(1000, 1060))
    write(cluster, numbered_rows(2000, 2010), key=("q", 2))
    assert bodies(*_stores(cluster)) == _once(range(40), range(1000, 1060), range(2000, 2010))
    for store in _stores(cluster):
        names = {"store.json", "broker.conf", "ledger.json", "doorbell", "id", "staging"}
        assert {path.name for path in (store / ".rmqlog").iterdir()} == names
        assert not (store / "abort").exists()
        assert MessageStore.open(str(store)).diagnose().of("damage", "warning") == []
        topics = read_topics(Opened(str(store)))
        assert topics is not None
        assert topics["T"].write_queue_nums == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_at_many_changes(cluster: Path, tmp_path: Path, forks: ForkServer, whole: bool) -> None:
    """At every change with --whole, else at every seventh one."""
    write(cluster, numbered_rows(0, 40), key=("q", 0))
    kills = 0
    every = 1 if whole else 7
    for at, root in killed_stores(forks, cluster, tmp_path, "torn", _write_killed, every=every):
        _check_killed(root, {1: "broker-a", 5: "broker-b"}.get(at % 8))
        kills += 1
    assert kills >= 100 // every

"""Spark and a broker where one dies, or begins, in the middle of the other's work: each message is there
once, or a report tells of it.

All deaths are SIGKILL. What Spark wrote is a stream, so that its next run repeats the batch that was broken
off. CI runs each order with one version of RocketMQ, and some points of a commit; the proofs run all.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store_format.bookkeeping.journal import StoreState
from store_format.files.lock import StoreLock
from store_format.store import MessageStore
from tests.interop.harness import Broker, RocketMQ
from tests.interop.programs import Line, ProgramError
from tests.interop.rows import as_client, ours
from tests.interop.spark import (
    SMALL_FILES,
    Row,
    as_written,
    frame,
    rows,
    spark_lines,
    wanted,
    write,
    write_stream,
)
from tests.interop.stopping import POINTS, STAND_STILL, Point
from tests.interop.versions import OLD
from tests.support.staged import append, make_store, numbered

ROOT = Path(__file__).resolve().parents[2]
TOPICS = ["Orders", "Metrics"]
SECONDS_MAX = 150  # of a driver, on a busy machine
SENT = 20


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def _batch(number: int, count: int = 120) -> list[Row]:
    """Flags tell rows apart, over batches too."""
    return [row | {"flag": 1000 * number + abs(row["flag"])} for row in rows(f"batch{number}", TOPICS, count)]


def _of_spark(lines: list[Line]) -> list[Line]:
    return [line for line in lines if line["properties"].get("seed") not in ("1", "2")]


def _check_exactly_once(spark: SparkSession, store: Path, written: list[Row], sent: list[Line]) -> list[Line]:
    """Of every row and of every message that a broker acknowledged: one, and queues without gaps."""
    lines = spark_lines(spark, store)
    assert lines == ours(store)
    mine = _of_spark(lines)
    assert as_written(mine, written) == wanted(written)
    others = Counter(line["properties"]["UNIQ_KEY"] for line in lines if line not in mine)
    assert set(others.values()) <= {1}
    assert {line["uniqKey"] for line in sent} <= set(others)
    return lines


def _check_served(java: RocketMQ, store: Path, lines: list[Line]) -> None:
    """By a broker that starts now; every message is found by its id too, and once."""
    with java.broker(store) as broker:
        client = broker.client()
        assert as_client(client.messages()) == as_client(lines)
        for line in lines[:: max(1, len(lines) // 40)]:
            assert as_client(
                client.by_unique_key(line["topic"], line["properties"]["UNIQ_KEY"])
            ) == as_client([line])
        broker.kill()


# ---- a broker that runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "flush"),
    [pytest.param("5.5.0", "SYNC_FLUSH", marks=pytest.mark.whole), ("4.9.7", "ASYNC_FLUSH")],
)
def test_a_running_broker_is_told_before_any_task_runs(
    version: str, flush: str, rocketmq: Callable[[str], RocketMQ], spark: SparkSession, store: Path
) -> None:
    """Whatever mark is in `abort`: 4.9 leaves that of a commit without flush."""
    write(spark, store, _batch(0), flushDiskType=flush, **SMALL_FILES)
    with rocketmq(version).broker(store) as broker:
        began = time.monotonic()
        with pytest.raises(Exception, match="StoreInUseError") as caught:
            write(spark, store, _batch(1))
        assert f"process {broker.pid}" in str(caught.value)
        assert time.monotonic() - began < 30  # and not the ten minutes of writerLockTimeout
        staging = store / ".rmqlog" / "staging"
        assert not staging.exists() or not any(staging.iterdir())
        broker.kill()


# ---- a broker that was killed ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", OLD)
def test_spark_appends_behind_a_killed_broker(
    version: str, rocketmq: Callable[[str], RocketMQ], spark: SparkSession, store: Path, tmp_path: Path
) -> None:
    java, written = rocketmq(version), [_batch(0), _batch(1), _batch(2)]
    write_stream(spark, store, written[:1], tmp_path, **SMALL_FILES)
    with java.broker(store) as broker:
        client = broker.client()
        client.begin("send", "Orders", 10_000, "seed=1")
        sent = client.acknowledged(150)
        broker.kill()
    assert MessageStore.open(str(store)).state is StoreState.CRASHED
    write_stream(spark, store, written[1:2], tmp_path)
    assert MessageStore.open(str(store)).state is StoreState.CLEAN
    lines = _check_exactly_once(spark, store, [*written[0], *written[1]], sent)
    with java.broker(store) as broker:
        assert as_client(broker.client().messages()) == as_client(lines)
        broker.kill()  # again, and this time nothing was sent
    write_stream(spark, store, written[2:], tmp_path)
    _check_served(
        java, store, _check_exactly_once(spark, store, [row for batch in written for row in batch], sent)
    )


# ---- a driver that was killed ------------------------------------------------------------------------------


def _driver(store: Path, directory: Path, point: Point) -> subprocess.Popen[str]:
    arguments = [str(store), str(directory), point.to_json(), json.dumps(SMALL_FILES)]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.interop.stopping_driver", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _wait_until(what: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS_MAX
    while not what():
        assert time.monotonic() < end
        time.sleep(0.005)


def _kill_driver(
    spark: SparkSession, store: Path, directory: Path, written: list[list[Row]], point: Point
) -> None:
    """Its stream has written the first batch, and died in the second."""
    for batch in written[:2]:
        frame(spark, batch).write.mode("append").parquet(str(directory / "source"))
    driver = _driver(store, directory, point)
    _, errors = driver.communicate(timeout=SECONDS_MAX)
    assert driver.returncode == -signal.SIGKILL, errors
    _wait_until(lambda: StoreLock.holder(f"{store}/lock") is None)
    assert (store / ".rmqlog" / "journal.json").exists()


@pytest.mark.whole  # CI has the next test; tests/spark/test_write_kills.py kills a driver
@pytest.mark.parametrize(
    ("version", "point", "ends"),
    [
        ("5.5.0", "in a unit of the log", "stop"),
        ("4.9.7", "in the queues", "kill"),
        ("5.5.0", "before the ledger", "kill"),
        ("4.9.7", "in the queues", "stop"),
    ],
)
def test_a_driver_dies_in_mid_commit_and_a_broker_goes_on(
    version: str,
    point: str,
    ends: str,
    rocketmq: Callable[[str], RocketMQ],
    spark: SparkSession,
    store: Path,
    tmp_path: Path,
) -> None:
    """The broker may serve the first messages of the batch; Spark's next write completes it, behind what the
    broker has written.
    """
    java, written = rocketmq(version), [_batch(0), _batch(1, 300), _batch(2)]
    _kill_driver(spark, store, tmp_path, written, POINTS[point])
    with java.broker(store) as broker:
        client = broker.client()
        served = client.messages()
        sent = client.send("Orders", SENT, seed=1) + client.send("Fresh", SENT, seed=2)
        if ends == "kill":
            broker.kill()
    assert as_written(served, written[0] + written[1]) >= wanted(written[0])
    assert as_written(served, written[0] + written[1]) <= wanted(written[0] + written[1])
    write_stream(spark, store, written[2:], tmp_path)
    lines = _check_exactly_once(spark, store, [row for batch in written for row in batch], sent)
    assert not (store / ".rmqlog" / "journal.json").exists()
    _check_served(java, store, lines)


@pytest.mark.parametrize(
    ("version", "point", "ends"),
    [
        ("4.9.7", "in a unit of the log", "stop"),
        ("4.9.7", "in the queues", "kill"),
        ("5.5.0", "in the index", "kill"),
        *(
            pytest.param("4.9.7", point, ("stop", "kill")[i % 2], marks=pytest.mark.whole)
            for i, point in enumerate(POINTS)
        ),
        *(
            pytest.param("5.5.0", point, "kill", marks=pytest.mark.whole)
            for point in ("the journal stands", "in the log's next file", "before the end of abort")
        ),
    ],
)
def test_a_writer_dies_in_mid_commit_and_a_broker_goes_on(
    version: str, point: str, ends: str, rocketmq: Callable[[str], RocketMQ], store: Path
) -> None:
    """The same without Spark, at every step: a batch of 150 that fills files of every kind, and 7 messages of
    the next writer.
    """
    java = rocketmq(version)
    append(make_store(store), numbered("T", 0, 40), key=("q", 0))
    done = subprocess.run(
        _writer_command(store, POINTS[point]), cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert (store / ".rmqlog" / "journal.json").exists()
    with java.broker(store) as broker:
        client = broker.client()
        served = _numbers(client.messages(["T"]))
        assert set(range(40)) <= served.keys() <= set(range(190))
        sent = client.send("T", SENT, seed=1) + client.send("Fresh", SENT, seed=2)
        if ends == "kill":
            broker.kill()
    append(store, numbered("T", 190, 7), key=("q", 2))
    lines = _check_numbered(java, store)
    assert served <= _numbers(lines)
    assert Counter(
        line["properties"]["UNIQ_KEY"] for line in lines if "seed" in line["properties"]
    ) == Counter(line["uniqKey"] for line in sent)


def _writer_command(store: Path, point: Point, count: int = 150) -> list[str]:
    """Of a writer of messages from 40 on."""
    return [
        sys.executable,
        "-m",
        "tests.interop.stopping",
        str(store),
        "40",
        str(count),
        "1",
        point.to_json(),
    ]


def _check_numbered(java: RocketMQ, store: Path, *, indexed_once: bool = True) -> list[Line]:
    """Messages 0 to 197 once each, by reading, by pulling and by key; all that there is."""
    lines = ours(store)
    assert _numbers(lines) == Counter(range(197))
    assert not (store / ".rmqlog" / "journal.json").exists()
    assert MessageStore.open(str(store)).diagnose().of("damage", "warning") == []
    with java.broker(store) as broker:
        client = broker.client()
        topics = sorted({line["topic"] for line in lines} & {"T", "Fresh"})
        assert as_client(client.messages(topics)) == as_client(
            line for line in lines if line["topic"] in topics
        )
        for number in range(0, 197, 4):
            found = _numbers(client.by_key("T", f"k{number}"))
            assert found == Counter([number]) or (found.keys() == {number} and not indexed_once), number
        broker.kill()
    return lines


def _numbers(lines: list[Line]) -> Counter[int]:
    """Of the messages of `numbered`, by their ids."""
    return Counter(
        int(line["properties"]["UNIQ_KEY"][1:])
        for line in lines
        if line["properties"].get("UNIQ_KEY", "").startswith("U")
    )


# ---- a broker that begins while Spark writes ---------------------------------------------------------------


@contextmanager
def _loaded(java: RocketMQ, store: Path) -> Iterator[Broker]:
    """A broker that has loaded and recovered the store and has not taken its lock yet."""
    broker = java.broker(store)
    try:
        broker.load()
        yield broker
    finally:
        broker.kill()


@pytest.mark.parametrize("version", OLD)
def test_a_broker_that_is_loading_is_seen_before_anything_is_written(
    version: str, rocketmq: Callable[[str], RocketMQ], spark: SparkSession, store: Path
) -> None:
    java, written = rocketmq(version), [_batch(0), _batch(1)]
    write(spark, store, written[0], **SMALL_FILES)
    with _loaded(java, store) as broker:
        assert StoreLock.holder(f"{store}/lock") is None
        with pytest.raises(Exception, match=f"StoreInUseError(.|\n)*opened by process {broker.pid}"):
            write(spark, store, written[1])
        broker.start()
        client = broker.client()
        assert as_written(client.messages(), written[0]) == wanted(written[0])
        sent = client.send("Orders", SENT, seed=1)
        broker.stop()
    write(spark, store, written[1])
    _check_exactly_once(spark, store, written[0] + written[1], sent)


@contextmanager
def _standing_still(store: Path, point: str, count: int = 150) -> Iterator[subprocess.Popen[str]]:
    """A writer that holds the lock and stands still in the commit of its batch."""
    command = _writer_command(store, replace(POINTS[point], what=STAND_STILL), count)
    writer = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _wait_until(lambda: writer.poll() is not None or _is_stopped(writer.pid))
        assert StoreLock.holder(f"{store}/lock") == writer.pid
        yield writer
    finally:
        writer.kill()
        writer.communicate()


def _is_stopped(process_id: int) -> bool:
    return Path(f"/proc/{process_id}/stat").read_text().rpartition(") ")[2].startswith("T")


def _finish(writer: subprocess.Popen[str]) -> str:
    writer.send_signal(signal.SIGCONT)
    _, errors = writer.communicate(timeout=SECONDS_MAX)
    assert writer.returncode == 0, errors
    return errors


@pytest.mark.parametrize(
    ("version", "point"),
    [
        ("4.9.7", "in the index"),
        ("5.5.0", "in the log's next file"),
        *(
            pytest.param("4.9.7", point, marks=pytest.mark.whole)
            for point in ("in a unit of the log", "between log and queues")
        ),
        pytest.param("4.9.7", "before the end of abort", marks=pytest.mark.whole),
        pytest.param("5.5.0", "in the index", marks=pytest.mark.whole),
    ],
)
def test_a_broker_that_meets_a_commit_cannot_start(
    version: str, point: str, rocketmq: Callable[[str], RocketMQ], store: Path
) -> None:
    """It has loaded a store in the middle of a change, deleted files and made entries in others by then."""
    java = rocketmq(version)
    append(make_store(store), numbered("T", 0, 40), key=("q", 0))
    with _standing_still(store, point) as writer:
        with _loaded(java, store) as broker, pytest.raises(ProgramError, match=r"(?i)lock failed"):
            broker.start()
        _finish(writer)
    append(store, numbered("T", 190, 7), key=("q", 2))
    # A broker indexes again what it finds behind a crash, entries that are there too
    # (IndexService.buildIndex).
    _check_numbered(java, store, indexed_once=False)


@pytest.mark.parametrize("version", OLD)
def test_a_broker_that_loads_during_a_commit_and_starts_after_it_is_reported(
    version: str, rocketmq: Callable[[str], RocketMQ], store: Path
) -> None:
    """It knows of a part of the batch only and writes over the rest: the commit says so at its end, diagnose
    and the next writer later.
    """
    java = rocketmq(version)
    append(make_store(store), numbered("T", 0, 40), key=("q", 0))
    with _standing_still(store, "in a unit of the log", 20) as writer, _loaded(java, store) as broker:
        assert f"opened by process {broker.pid}" in _finish(writer)
        broker.start()
        sent = broker.client().send("T", SENT, seed=1)
        broker.stop()
    (told,) = [
        problem.found for problem in MessageStore.open(str(store)).diagnose() if "ledger" in problem.file
    ]
    assert "was cut" in told
    (report,) = append(store, numbered("T", 190, 7), key=("q", 2)).reports
    assert "was cut" in report
    lines = ours(store)
    assert {line["uniqKey"] for line in sent} <= {line["properties"]["UNIQ_KEY"] for line in lines}
    numbers = _numbers(lines)
    assert Counter([*range(40), *range(190, 197)]) <= numbers <= Counter([*range(60), *range(190, 197)])
    assert numbers != Counter([*range(60), *range(190, 197)]), "nothing was written over"
    with java.broker(store) as broker:
        assert as_client(broker.client().messages(["T"])) == as_client(
            line for line in lines if line["topic"] == "T"
        )
        broker.kill()

"""A store that Spark wrote, under a real broker and its client, and back again: every field, every question,
nothing doubled.

One session for each version serves all tests: Spark writes, a broker serves and goes on writing, Spark reads
and appends, and another broker serves all of it. The tests look at what was recorded. CI runs 5.5.0, the
proofs 4.9.7 too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from store_format.bookkeeping.journal import StoreState
from store_format.diagnose.problems import Problem
from store_format.store import MessageStore
from tests.interop.harness import Client, Opened, RocketMQ
from tests.interop.once import made_once
from tests.interop.programs import Line
from tests.interop.rows import as_client, by_place, data_files, ours
from tests.interop.spark import SMALL_FILES, Row, as_written, rows, spark_lines, wanted, write, write_stream
from tests.interop.versions import NEW
from tests.support.oracle_units import java_hash

LONG_TOPIC = "Long" * 31 + "-_%"  # 127 characters, the longest a client sends
LATE = "Late"
SENT = 30
KEYS_ASKED_MIN = 40
DELIVERY_SECONDS_MAX = 40


@dataclass(frozen=True)
class Answers:
    """What the client got for one message: by each of its keys, by its UNIQ_KEY, by its offset id."""

    message: Line
    by_key: dict[str, list[Line]]
    by_unique_key: list[Line]
    by_physical_offset: Line


@dataclass(frozen=True)
class Probe:
    """An offset by time as the broker told it."""

    topic: str
    queue_id: int
    timestamp: int
    boundary: str
    offset: int


@dataclass(frozen=True)
class Session:
    """A store from Spark's first write to the second broker's end."""

    version: str
    store: Path
    written: list[Row]  # before the first broker
    read: list[Line]  # by Spark, all topics
    opened: Opened  # by DefaultMessageStore, and the files before and after
    files: tuple[dict[str, str], dict[str, str]]
    state: StoreState
    served: list[Line]  # by the first broker when messages for later were delivered
    answers: list[Answers]
    by_time: list[Probe]
    pushed: list[Line]
    sent: list[Line]
    served_again: list[Line]  # with what was sent
    read_again: list[Line]  # by Spark behind the broker
    appended: list[Row]
    files_again: tuple[dict[str, str], dict[str, str]]
    opened_again: Opened
    read_at_last: list[Line]
    problems: list[Problem]
    served_at_last: list[Line]  # by the second broker
    answers_at_last: list[Answers]


@pytest.fixture(scope="module", params=NEW)
def session(
    request: pytest.FixtureRequest,
    rocketmq: Callable[[str], RocketMQ],
    spark: SparkSession,
    shared_directory: Path,
) -> Session:
    directory, java = shared_directory / f"written-{request.param}", rocketmq(request.param)
    return made_once(directory, lambda: _session(spark, java, directory))


def _session(spark: SparkSession, java: RocketMQ, directory: Path) -> Session:
    version, store = java.version, directory / "store"
    written = _write(spark, store, directory / "stream", version)
    read = spark_lines(spark, store)
    opened, files = _open(java, store)
    with java.broker(store) as broker:
        client = broker.client()
        _wait_for(client, len(read) + sum(row["topic"] == LATE for row in written))
        served = client.messages()
        answers, by_time = _answers(client, served), _offsets_by_time(client, served, version)
        state = MessageStore.open(str(store)).state
        orders = [(line["queueId"], line["queueOffset"]) for line in served if line["topic"] == "Orders"]
        pushed = client.push_consume("CG_new", "Orders", orders)
        sent = client.send("Orders", SENT // 2, seed=1) + client.send(
            "Fresh", SENT - SENT // 2, seed=2, shards=3
        )
        served_again = client.messages()
    read_again = spark_lines(spark, store)
    appended = _append(spark, store, directory / "stream")
    opened_again, files_again = _open(java, store, start=True)
    read_at_last, problems = spark_lines(spark, store), list(MessageStore.open(str(store)).diagnose())
    with java.broker(store) as broker:
        client = broker.client()
        served_at_last = client.messages()
        answers_at_last = _answers(
            client, [line for line in served_at_last if line["properties"].get("seed") in ("more", "1")]
        )
        broker.kill()  # nothing more is asked
    return Session(
        version, store, written, read, opened, files, state, served, answers, by_time, pushed, sent,
        served_again, read_again, appended, files_again, opened_again, read_at_last, problems,
        served_at_last, answers_at_last,
    )  # fmt: skip


def _write(spark: SparkSession, store: Path, stream: Path, version: str) -> list[Row]:
    """Every way to choose a queue and to compress, batch and stream; files of all kinds roll over."""
    turn = rows("turn", ["Orders", LONG_TOPIC], 220)
    write(spark, store, turn, compressType="ZLIB", brokerName="spark-broker", **SMALL_FILES)
    sharded = rows("sharded", ["Sharded"], 120)
    write(
        spark,
        store,
        sharded,
        messageQueueSelector="hash",
        compressType="LZ4",
        storeHost="[2001:db8::7]:10911",
    )
    fixed = rows("fixed", ["Elsewhere"], 150, queueId=1)
    write(
        spark,
        store,
        fixed,
        topic="Fixed",
        compressType="ZSTD",
        bornHost="10.1.2.3:4",
        storeHost="10.9.8.7:10911",
    )
    streamed = [rows(f"stream{part}", ["Streamed"], 40) for part in range(3)]
    write_stream(spark, store, streamed, stream, compressType="ZLIB")
    late = rows("late", [LATE], 5, delayTimeLevel=1)
    write(spark, store, late)
    if version.startswith("5."):  # 4.9 has no timer
        timed = rows("timed", [LATE], 5, deliverTimestamp=datetime.now(UTC) + timedelta(seconds=6))
        timed = [row | {"flag": 1000 + row["flag"]} for row in timed]
        write(spark, store, timed)
        late += timed
    return [
        *turn,
        *sharded,
        *(row | {"topic": "Fixed"} for row in fixed),
        *(row for part in streamed for row in part),
        *late,
    ]


def _append(spark: SparkSession, store: Path, stream: Path) -> list[Row]:
    """Behind a broker's messages: to topics of Spark's, to one of the broker's, to a new one, and the stream
    goes on.
    """
    more = [row | {"flag": row["flag"] + 100_000} for row in rows("more", ["Orders", "Fresh", "New"], 90)]
    write(spark, store, more, messageQueueSelector="hash", compressType="ZLIB")
    streamed = [row | {"flag": row["flag"] + 100_000} for row in rows("stream3", ["Streamed"], 40)]
    write_stream(spark, store, [streamed], stream, compressType="ZLIB")
    return more + streamed


def _open(
    java: RocketMQ, store: Path, *, start: bool = False
) -> tuple[Opened, tuple[dict[str, str], dict[str, str]]]:
    before = data_files(store)
    opened = java.open_store(store, start=start)
    return opened, (before, data_files(store))


def _wait_for(client: Client, count: int) -> None:
    end = time.monotonic() + DELIVERY_SECONDS_MAX
    while (found := sum(stop - start for start, stop in client.ends().values())) < count:
        assert time.monotonic() < end, f"{found} messages after {DELIVERY_SECONDS_MAX} seconds, not {count}"
        time.sleep(0.2)


def _answers(client: Client, lines: list[Line]) -> list[Answers]:
    chosen = [line for line in lines if "KEYS" in line["properties"]]
    answers = []
    for line in chosen[:: max(1, len(chosen) // KEYS_ASKED_MIN)]:
        topic, properties = line["topic"], line["properties"]
        by_key = {key: client.by_key(topic, key) for key in properties["KEYS"].split(" ")}
        by_unique_key = client.by_unique_key(topic, properties["UNIQ_KEY"])
        answers.append(
            Answers(line, by_key, by_unique_key, client.by_physical_offset(topic, line["physicalOffset"]))
        )
    return answers


def _offsets_by_time(client: Client, served: list[Line], version: str) -> list[Probe]:
    """Around each store time of the first queue of each topic. 4.9 chooses the file of a queue by its mtime,
    the last write.
    """
    probes = []
    for topic in ("Orders", "Sharded", "Streamed", *(("Fixed",) if version.startswith("5.") else ())):
        queue_id = next(line["queueId"] for line in served if line["topic"] == topic)
        times = {
            line["storeTimestamp"] for line in served if (line["topic"], line["queueId"]) == (topic, queue_id)
        }
        for timestamp in sorted({stored + step for stored in times for step in (-1, 0, 1)}):
            for boundary in ("LOWER", "UPPER") if version.startswith("5.") else ("-",):
                probes.append(
                    Probe(
                        topic,
                        queue_id,
                        timestamp,
                        boundary,
                        client.offset_at(topic, queue_id, timestamp, boundary),
                    )
                )
    return probes


# ---- before a broker ---------------------------------------------------------------------------------------


def test_files_of_every_kind_rolled_over(session: Session) -> None:
    files = [Path(name).parts for name in session.files[0]]
    assert len([parts for parts in files if parts[0] == "commitlog"]) > 4
    assert len([parts for parts in files if parts[:3] == ("consumequeue", "Fixed", "1")]) == 2
    assert len([parts for parts in files if parts[0] == "index"]) > 4


def test_spark_reads_every_row_it_wrote(session: Session) -> None:
    now = [row for row in session.written if row["topic"] != LATE]
    read = [line for line in session.read if line["topic"] in {row["topic"] for row in now}]
    assert as_written(read, now) == wanted(now)
    assert len(session.read) == len(session.written)


def test_the_store_classes_find_every_message_and_leave_every_byte(session: Session) -> None:
    before, after = session.files
    assert before == after
    assert by_place(session.opened.messages) == session.read
    assert session.opened.commit_log == (
        0,
        max(line["physicalOffset"] + line["storeSize"] for line in session.read),
    )
    assert sum(queue["rows"] for queue in session.opened.queues) == len(session.written)


# ---- the first broker --------------------------------------------------------------------------------------


def test_the_broker_serves_what_spark_wrote_field_by_field(session: Session) -> None:
    served = [line for line in session.served if line["topic"] in {row["topic"] for row in session.written}]
    assert as_written(served, session.written) == wanted(session.written)
    there = {(line["topic"], line["queueId"], line["queueOffset"]) for line in session.read}
    old = [line for line in session.served if (line["topic"], line["queueId"], line["queueOffset"]) in there]
    assert as_client(old) == as_client(session.read)


def test_compressed_bodies_and_hosts_are_as_asked_for(session: Session) -> None:
    kinds = {"turn": 3, "sharded": 1, "fixed": 2, "stream0": 3}
    for seed, kind in kinds.items():
        flags = {
            line["sysFlag"] & 0x701
            for line in session.read
            if line["properties"].get("seed") == seed and line.get("rawBody")
        }
        assert flags == {0x1 | kind << 8}, seed
    fixed = [line for line in session.served if line["topic"] == "Fixed"]
    assert {line["storeHost"] for line in fixed} == {"10.9.8.7:10911"}
    assert {line["bornHost"] for line in fixed} == {
        "10.1.2.3:4",
        "192.168.0.9:4711",
        "[2001:db8:0:0:0:0:0:1]:65535",
    }
    assert {line["storeHost"] for line in session.served if line["topic"] == "Sharded"} == {
        "[2001:db8:0:0:0:0:0:7]:10911"
    }


def test_rows_of_one_sharding_key_are_in_one_queue_and_in_order(session: Session) -> None:
    keyed = [
        line
        for line in session.served
        if line["topic"] == "Sharded" and "__SHARDINGKEY" in line["properties"]
    ]
    keys = {line["properties"]["__SHARDINGKEY"] for line in keyed}
    assert len(keys) == 5
    for key in keys:
        lines = [line for line in keyed if line["properties"]["__SHARDINGKEY"] == key]
        assert {line["queueId"] for line in lines} == {abs(java_hash(key)) % 4}
        assert [abs(line["flag"]) for line in lines] == sorted(abs(line["flag"]) for line in lines)


def test_keys_and_ids_lead_to_the_messages(session: Session) -> None:
    assert len(session.answers) >= KEYS_ASKED_MIN
    everything = session.served
    for answers in session.answers:
        topic = answers.message["topic"]
        for key, found in answers.by_key.items():
            with_key = [
                line
                for line in everything
                if line["topic"] == topic and key in line["properties"].get("KEYS", "").split(" ")
            ]
            assert (
                by_place(found) == with_key[:64]
                if len(with_key) <= 64
                else set(map(str, found)) <= set(map(str, with_key))
            )
        assert answers.by_unique_key == [answers.message]
        assert answers.by_physical_offset == answers.message


def test_offsets_by_time(session: Session) -> None:
    """LOWER is the first message at or after the time, UPPER the last one at or before it, 4.9's is any of
    the nearest.
    """
    assert len(session.by_time) > 10
    for probe in session.by_time:
        queue = [
            line
            for line in session.served
            if (line["topic"], line["queueId"]) == (probe.topic, probe.queue_id)
        ]
        times = [line["storeTimestamp"] for line in by_place(queue)]
        if probe.boundary == "LOWER":
            assert probe.offset == sum(time < probe.timestamp for time in times), probe
        elif probe.boundary == "UPPER":
            assert probe.offset == max(sum(time <= probe.timestamp for time in times) - 1, 0), probe
        else:
            assert abs(times[probe.offset] - probe.timestamp) <= 1, probe


def test_messages_for_later_are_delivered(session: Session) -> None:
    delivered = [line for line in session.served if line["topic"] == LATE]
    assert len(delivered) == (10 if session.version.startswith("5.") else 5)
    assert {line["properties"]["REAL_TOPIC"] for line in delivered} == {LATE}


def test_a_push_consumer_gets_a_topic_that_spark_made(session: Session) -> None:
    assert as_client(session.pushed) == as_client(
        line for line in session.served if line["topic"] == "Orders"
    )


def test_a_store_with_a_broker_on_it_is_live(session: Session) -> None:
    assert session.state is StoreState.LIVE


# ---- Spark again, and another broker -----------------------------------------------------------------------


def test_the_broker_goes_on_behind_spark(session: Session) -> None:
    assert [line["status"] for line in session.sent] == ["SEND_OK"] * SENT
    places = {(line["topic"], line["queueId"], line["queueOffset"]): line for line in session.served_again}
    for sent in session.sent:
        line = places[sent["topic"], sent["queueId"], sent["queueOffset"]]
        assert (line["body"], line["msgId"], line["properties"]["UNIQ_KEY"]) == (
            sent["body"],
            sent["msgId"],
            sent["uniqKey"],
        )
    assert len(session.served_again) == len(session.served) + SENT


def test_spark_reads_the_whole_behind_a_broker(session: Session) -> None:
    assert as_client(session.read_again) == as_client(session.served_again)
    ids = [
        line["properties"]["UNIQ_KEY"]
        for line in session.read_again
        if line["topic"] in ("Orders", "Fresh", "Fixed", "Sharded")
    ]
    assert len(set(ids)) == len(ids)


def test_spark_appends_behind_the_broker_and_changes_nothing_before(session: Session) -> None:
    log_end = max(line["physicalOffset"] + line["storeSize"] for line in session.read_again)
    assert [line for line in session.read_at_last if line["physicalOffset"] < log_end] == session.read_again
    new = [line for line in session.read_at_last if line["physicalOffset"] >= log_end]
    assert as_written(new, session.appended) == wanted(session.appended)


def test_the_store_classes_leave_every_byte_of_a_store_that_both_wrote(session: Session) -> None:
    """Here they were started too, and shut down in order."""
    before, after = session.files_again
    assert before == after
    assert by_place(session.opened_again.messages) == session.read_at_last


def test_another_broker_serves_everything(session: Session) -> None:
    assert as_client(session.served_at_last) == as_client(session.read_at_last)
    assert len(session.answers_at_last) >= KEYS_ASKED_MIN
    for answers in session.answers_at_last:
        assert all(answers.message in found for found in answers.by_key.values())
        assert answers.by_unique_key == [answers.message]
    assert ours(session.store) == session.read_at_last
    assert session.problems == []

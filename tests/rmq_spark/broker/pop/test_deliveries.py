"""What becomes of messages that are not simply received and acknowledged."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from rmq_spark.broker.pop.topic_pop import TopicPop
from rmq_spark.consume.group.directory import live_topics
from rmq_spark.pop import MessageView, SimpleConsumer
from store_format.errors import ChecksumError, OptionError, UnsupportedFormatError
from store_format.files.lock import StoreLock
from store_format.metadata.group_offsets import write_group_offsets
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.popped import GROUP, TOPIC, Clock, append_numbered, popped_store
from tests.support.stored_rows import rows_in

RETRY_TOPIC, DLQ = "%RETRY%billing_Orders", "%DLQ%billing"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _consumer(root: Path, clock: Clock, *, max_attempts: int | None = None) -> SimpleConsumer:
    """A consumer without the thread that keeps it: the test calls `keep` itself."""
    consumer = SimpleConsumer(
        str(root), GROUP, {TOPIC: "*"}, 0, max_attempts=max_attempts, clock_ms=clock, random=Random(1)
    )
    consumer.open()
    consumer._stores.keeper.stop()
    return consumer


def _bodies(messages: list[MessageView]) -> list[int]:
    return [int(message.body) for message in messages]


def _rows(root: Path, topic: str) -> list[dict[str, object]]:
    return rows_in(root, "body", "properties", "reconsumeTimes", topic=topic)


def test_a_message_comes_again_from_the_retry_topic(tmp_path: Path, clock: Clock) -> None:
    root = popped_store(tmp_path / "s", 3)
    with _consumer(root, clock) as consumer:
        first = consumer.receive(3, 10)
        consumer.ack(first[1:])
        clock.ms += 9_999
        consumer._stores.keep()
        assert consumer.receive(3, 10) == []
        clock.ms += 1
        consumer._stores.keep()
        (again,) = consumer.receive(3, 10)
        assert (again.topic, again.body, again.message_id) == (TOPIC, b"0", first[0].message_id)
        assert (again.delivery_attempt, again.offset, again.queue_id) == (2, 0, 0)
        assert again.receipt_handle.split(" ")[4] == "1"  # retry v1
        assert again.stored_properties["1ST_POP_TIME"] == first[0].receipt_handle.split(" ")[1]
        assert dict(again.properties) == dict(first[0].properties) == {"price": "0"}
        consumer.ack(again)
        assert consumer.metrics().redelivered == 1
    assert len(_rows(root, RETRY_TOPIC)) == 1


def test_a_changed_invisible_time_counts_from_now(tmp_path: Path, clock: Clock) -> None:
    root = popped_store(tmp_path / "s", 1)
    with _consumer(root, clock) as consumer:
        (message,) = consumer.receive(1, 10)
        clock.ms += 9_000
        consumer.change_invisible_duration(message, 60)
        clock.ms += 59_999
        consumer._stores.keep()
        assert consumer.receive(1, 10) == []
        consumer.change_invisible_duration(message, 0)
        (message,) = consumer.receive(1, 10)  # at once: no round of the keeper is needed
        assert message.delivery_attempt == 2
        consumer.change_invisible_duration(message, 0)  # in the same ms
        assert [each.delivery_attempt for each in consumer.receive(1, 10)] == [3]


def test_an_invisible_time_of_0_waits_for_no_writer_of_the_store(tmp_path: Path, clock: Clock) -> None:
    root = popped_store(tmp_path / "s", 1)
    with _consumer(root, clock) as consumer:
        (message,) = consumer.receive(1, 10)
        with StoreLock(str(root)):
            consumer.change_invisible_duration(message, 0)
            assert consumer.receive(1, 10) == []
        clock.ms += 1
        consumer._stores.keep()
        assert [each.delivery_attempt for each in consumer.receive(1, 10)] == [2]


def test_a_message_that_was_received_too_often_is_a_dead_letter(tmp_path: Path, clock: Clock) -> None:
    root = popped_store(tmp_path / "s", 2)
    with _consumer(root, clock, max_attempts=3) as consumer:
        for attempt in (1, 2, 3):
            found = consumer.receive(2, 10)
            assert [message.delivery_attempt for message in found] == [attempt] * len(found)
            consumer.ack([message for message in found if message.body == b"1"])
            clock.ms += 10_000
            consumer._stores.keep()
        assert consumer.receive(2, 10) == []
        assert consumer.metrics().dead_letters == 1
        clock.ms += 100_000
        consumer._stores.keep()
        assert consumer.receive(2, 10) == []
    (dead,) = _rows(root, DLQ)
    assert (dead["body"], dead["reconsumeTimes"]) == (b"0", 4)
    properties = dict(dead["properties"])  # type: ignore[call-overload] # a map column
    assert properties["RETRY_TOPIC"] == RETRY_TOPIC
    assert properties["DELAY"] == "0"


def test_a_damaged_message_is_delivered_with_its_error(tmp_path: Path, clock: Clock) -> None:
    root = popped_store(tmp_path / "s", 3)
    log = next((root / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    at = MessageStore.open(str(root)).queue(TOPIC, 0)
    (unit,) = [row for batch in at.read(1, 2, columns=["physicalOffset"]) for row in batch.to_pylist()]
    place = data.index(b"1", unit["physicalOffset"] + 88)
    data[place : place + 1] = b"7"
    log.write_bytes(data)
    with _consumer(root, clock) as consumer:
        found = consumer.receive(3, 10)
        assert [message.error is None for message in found] == [True, False, True]
        damaged = found[1]
        assert (damaged.offset, damaged.queue_id, damaged.topic) == (1, 0, TOPIC)
        assert isinstance(damaged.error, ChecksumError)
        assert damaged.error.file == str(log)
        with pytest.raises(ChecksumError):
            _ = damaged.body
        assert "error=" in repr(damaged)
        consumer.ack(found)
        assert consumer.metrics().damaged == 1
        clock.ms += 10_000
        consumer._stores.keep()
        assert consumer.receive(3, 10) == []


def test_messages_that_retention_deleted_are_counted(tmp_path: Path, clock: Clock) -> None:
    root = goldens.unpack("cleaned-5.5.0", tmp_path / "s")
    queues = goldens.expected("cleaned-5.5.0")["queues"]
    topic = next(each["topic"] for each in queues if each["minOffset"] > 0)
    queues = [each for each in queues if each["topic"] == topic]
    write_group_offsets(
        Opened(str(root)), "late", {(topic, each["queueId"]): 0 for each in queues}, timestamp=1
    )
    with SimpleConsumer(str(root), "late", {topic: "*"}, 0, clock_ms=clock) as consumer:
        found: list[MessageView] = []
        while batch := consumer.receive(32):
            found += batch
            consumer.ack(batch)
        lost = consumer.metrics().lost
    assert len(found) == sum(each["maxOffset"] - each["minOffset"] for each in queues)
    assert lost == sum(each["minOffset"] for each in queues) > 0


def test_a_run_of_deleted_messages_is_one_warning_and_all_are_counted(
    tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    root = popped_store(tmp_path / "s", 50, file_size=20_000)
    for first in range(50, 950, 100):
        append_numbered(root, 100, first=first)
    with _consumer(root, clock) as consumer:
        first_ones = consumer.receive(32, 10)  # and entries are read ahead
        for log in sorted((root / "commitlog").iterdir())[:3]:
            log.unlink()
        kept = MessageStore.open(str(root)).queue(TOPIC, 0).min_offset
        consumer.ack(first_ones[:5])
        found = []
        while batch := consumer.receive(32, 10):
            found += _bodies(batch)
            consumer.ack(batch)
        assert found == list(range(kept, 950))
        assert kept > 256  # so that several windows of entries are behind
        said = f"retention deleted {kept - 32} messages, from offset 32 on, before they were delivered"
        assert [each.message for each in caplog.records if "deleted" in each.message] == [
            f"{root}: queue Orders-0: {said}"
        ]
        assert consumer.metrics().lost == kept - 32
        clock.ms += 10_000
        consumer._stores.keep()
        assert consumer.metrics().lost == kept - 5  # with those that were in flight


def test_an_interrupted_receive_gives_its_messages_back(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = popped_store(tmp_path / "s", 3)

    def interrupted(*arguments: object) -> list[MessageView]:
        raise KeyboardInterrupt

    with _consumer(root, clock) as consumer:
        with monkeypatch.context() as patch:
            patch.setattr(TopicPop, "_messages", interrupted)
            with pytest.raises(KeyboardInterrupt):
                consumer.receive(3, 3600)
        consumer._stores.keep()  # not an hour later
        assert _bodies(consumer.receive(3, 10)) == [0, 1, 2]


def test_a_receive_waits_for_a_commit_and_ends_with_the_consumer(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)
    consumer = SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=60)
    found: list[list[MessageView]] = []

    def receive() -> None:
        for _ in range(3):
            found.append(consumer.receive(32))

    thread = threading.Thread(target=receive)
    thread.start()
    _wait_until_one_waits(consumer, found, 1)
    append_numbered(root, 2, first=1)
    _wait_until_one_waits(consumer, found, 2)
    began = time.monotonic()
    consumer.close()
    thread.join(10)
    assert time.monotonic() - began < 5
    assert sorted(int(each.body) for batch in found for each in batch) == [0, 1, 2]
    assert found[-1] == []
    with pytest.raises(OptionError, match=r"this consumer is closed; make another one$"):
        consumer.receive()
    metrics = consumer.metrics()
    assert (metrics.short_polling_hit, metrics.long_polling, metrics.received) == (1, 2, 3)
    assert metrics.notified >= 1


def _wait_until_one_waits(consumer: SimpleConsumer, found: list[list[MessageView]], receives: int) -> None:
    deadline = time.monotonic() + 30
    while True:
        waiter = consumer._stores._waiter
        if len(found) == receives and waiter is not None and waiter.blocked:
            return
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_forked_child_is_another_consumer(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 6)
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        mine = consumer.receive(2)
        child = os.fork()
        if not child:
            status = 1
            try:
                if _open_files(root / ".rmqlog" / "pop"):
                    os._exit(3)
                theirs = consumer.receive(3)
                consumer.ack(theirs)
                consumer.ack(mine[0])  # a handle is good in every process
                consumer.close()
                status = 0 if _bodies(theirs) == [2, 3, 4] else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        opened = {os.path.basename(path) for path in _open_files(root / ".rmqlog" / "pop")}
        assert opened >= {"in-flight.log", "lock", "members"}
        assert live_topics(str(root), GROUP) == [TOPIC]
        consumer.ack(mine[1])
        assert _bodies(consumer.receive(3)) == [5]


def _open_files(directory: Path) -> list[str]:
    """The files below the directory that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing itself
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in found if path.startswith(f"{directory}/")]


def test_every_store_of_a_cluster(tmp_path: Path) -> None:
    """The stores have one broker name: a message still knows its store."""
    (tmp_path / "c").mkdir()
    for name in ("a", "b"):
        popped_store(tmp_path / "c" / name, 5)
    seen: list[tuple[str, int]] = []
    with SimpleConsumer(str(tmp_path / "c"), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        for message in _until_empty(consumer):
            seen.append((message.place.path.split("/")[-3], message.offset))
            consumer.ack(message)
        with pytest.raises(OptionError, match=r"2 stores of .* have the broker name broker-a"):
            consumer.ack(message.receipt_handle)
    assert sorted(seen) == [(name, offset) for name in ("a", "b") for offset in range(5)]


def _until_empty(consumer: SimpleConsumer) -> Iterator[MessageView]:
    while batch := consumer.receive(2):
        yield from batch


def test_unknown_topics_are_named(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)
    with pytest.raises(
        OptionError,
        match=r"^topic Oders is not in topics.json of .*, and has no queue; did you mean Orders\?$",
    ):
        SimpleConsumer(str(root), GROUP, {"Oders": "*"}).open()
    with pytest.raises(OptionError, match=r"found no topic at all; give the broker's store directory"):
        SimpleConsumer(str(root / "commitlog"), GROUP, {TOPIC: "*"}).open()
    with pytest.raises(OptionError, match=r"^subscriptions: expected at least one topic"):
        SimpleConsumer(str(root), GROUP, {})
    with pytest.raises(OptionError, match=r"^topic: expected letters"):
        SimpleConsumer(str(root), GROUP, {"../x": "*"})


@pytest.mark.parametrize(
    ("golden", "topic", "text"),
    [
        ("rocksdb-5.5.0", "Orders", r"keeps consumer offsets in RocksDB .*: pop from the broker$"),
        ("batchcq-5.5.0", "Inner", r"queue Inner-\d: expected a simple consume queue, found a BatchCQ"),
    ],
)
def test_stores_that_cannot_be_popped(tmp_path: Path, golden: str, topic: str, text: str) -> None:
    root = goldens.unpack(golden, tmp_path / "s")
    with (
        pytest.raises(UnsupportedFormatError, match=text),
        SimpleConsumer(str(root), "g", {topic: "*"}) as it,
    ):
        it.receive()


def test_consumers_that_close_while_threads_receive(tmp_path: Path) -> None:
    """A receive that meets a close ends with [], or says that the consumer is closed."""
    root = popped_store(tmp_path / "s", 1)
    for _ in range(10):
        consumer = SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=30)
        errors: list[BaseException] = []

        def work(consumer: SimpleConsumer = consumer, errors: list[BaseException] = errors) -> None:
            try:
                while True:
                    consumer.ack(consumer.receive())
            except OptionError as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        consumer.open()
        consumer.close()
        for thread in threads:
            thread.join(20)
        assert len(errors) == 3

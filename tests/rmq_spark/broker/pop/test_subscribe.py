"""Topics that an open consumer subscribes to, and leaves."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import pytest

from rmq_spark.consume.group.directory import live_topics
from rmq_spark.pop import FilterExpression, MessageView, SimpleConsumer
from store_format.errors import InvalidReceiptHandleError, OptionError
from store_format.metadata.group_offsets import read_group_offsets
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from tests.support.popped import GROUP, TOPIC, append_numbered, drain, popped_store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Topic Orders with 3 messages, and topic Other with 2."""
    root = popped_store(tmp_path / "s", 3)
    append_numbered(root, 2, topic="Other", first=100)
    return root


@pytest.fixture
def consumer(root: Path) -> Iterator[SimpleConsumer]:
    with SimpleConsumer(root, GROUP, {TOPIC: "*"}, 0, init_mode="MIN", min_invisible_duration=0) as consumer:
        yield consumer


def _bodies(messages: list[MessageView]) -> list[int]:
    return [int(each.body) for each in messages]


def _read_all(consumer: SimpleConsumer) -> list[int]:
    return sorted(_bodies(drain(consumer)))


def _open_files(root: Path, topic: str) -> int:
    directory = in_flight_directory(Opened(str(root)), GROUP, topic)
    files = (os.path.realpath(f"/dev/fd/{each}") for each in os.listdir("/dev/fd"))
    return sum(each.startswith(f"{directory}/") for each in files)


def test_a_topic_is_read_from_the_next_receive_on(consumer: SimpleConsumer) -> None:
    assert _read_all(consumer) == [0, 1, 2]
    consumer.subscribe("Other")
    assert _read_all(consumer) == [100, 101]


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no /dev/fd")
def test_a_topic_that_is_left_keeps_no_file_open(root: Path, consumer: SimpleConsumer) -> None:
    consumer.subscribe("Other")
    consumer.receive(32)
    before = len(os.listdir("/dev/fd"))
    assert _open_files(root, TOPIC) >= 2
    consumer.unsubscribe(TOPIC)
    gc.collect()
    assert _open_files(root, TOPIC) == 0
    assert live_topics(str(root), GROUP) == ["Other"]
    for _ in range(5):
        consumer.subscribe(TOPIC)
        consumer.receive(1)
        consumer.unsubscribe(TOPIC)
    assert len(os.listdir("/dev/fd")) < before


def test_what_was_in_flight_comes_after_its_invisible_time(root: Path, consumer: SimpleConsumer) -> None:
    """The last consumer of the topic hands it over to a broker, as `close` does."""
    consumer.subscribe("Other")
    consumer.unsubscribe("Other")
    messages = consumer.receive(32, 0.5)
    consumer.ack(messages[0])
    consumer.subscribe("Other")
    consumer.unsubscribe(TOPIC)
    state = read_in_flight(in_flight_directory(Opened(str(root)), GROUP, TOPIC))
    assert state is not None
    assert state.is_closed
    assert read_group_offsets(Opened(str(root)), GROUP)[TOPIC, 0] == 3
    with pytest.raises(InvalidReceiptHandleError, match="before it unsubscribes"):
        consumer.ack(messages[1])
    consumer.unsubscribe("Other")
    consumer.subscribe(TOPIC)
    found: list[int] = []
    deadline = time.monotonic() + 30
    while len(found) < 2 and time.monotonic() < deadline:
        found += _read_all(consumer)
        time.sleep(0.05)
    assert sorted(found) == [1, 2]


def test_another_member_goes_on_with_the_topic(root: Path, consumer: SimpleConsumer) -> None:
    with SimpleConsumer(root, GROUP, {TOPIC: "*"}, 0, min_invisible_duration=0) as other:
        (message,) = consumer.receive(1, 60)
        consumer.subscribe("Other")
        consumer.unsubscribe(TOPIC)
        assert _bodies(other.receive(32, 60)) == [1, 2]
        other.ack(message.receipt_handle)


@pytest.mark.parametrize("fifo", [False, True])
def test_a_receive_that_waits_wakes_for_the_new_topic(root: Path, fifo: bool) -> None:
    with SimpleConsumer(root, GROUP, {TOPIC: "*"}, 60, init_mode="MIN", fifo=fifo) as consumer:
        consumer.ack(consumer.receive(32))
        found: list[MessageView] = []
        thread = threading.Thread(target=lambda: found.extend(consumer.receive(32)))
        thread.start()
        _until_waiting(consumer)
        began = time.monotonic()
        consumer.subscribe("Other")
        thread.join(30)
        assert time.monotonic() - began < 20
        assert _bodies(found) == [100, 101]
        consumer.ack(found)
        thread = threading.Thread(target=lambda: found.extend(consumer.receive(32)))
        thread.start()
        _until_waiting(consumer)
        append_numbered(root, 1, topic="Other", first=102)
        thread.join(30)
        assert _bodies(found) == [100, 101, 102]


def _until_waiting(consumer: SimpleConsumer) -> None:
    deadline = time.monotonic() + 10
    while not (consumer._stores._waiter and consumer._stores._waiter.blocked):
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.process
def test_an_acknowledgement_of_another_process_wakes_for_the_new_topic(root: Path) -> None:
    """In order, the next message is free when the other process acknowledges its batch, which is no commit.

    The consumer has left its only topic, so that it had no queue in order when it subscribed.
    """
    theirs, mine = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=_take_and_ack, args=(str(root), theirs))
    other.start()
    try:
        assert mine.poll(60)
        assert mine.recv() == [100]
        with SimpleConsumer(root, GROUP, {TOPIC: "*"}, 30, init_mode="MIN", fifo=True) as consumer:
            consumer.ack(consumer.receive(32))
            consumer.unsubscribe(TOPIC)
            consumer.subscribe("Other")
            found: list[MessageView] = []
            thread = threading.Thread(target=lambda: found.extend(consumer.receive(32)))
            thread.start()
            _until_waiting(consumer)
            time.sleep(0.5)
            assert thread.is_alive()
            began = time.monotonic()
            mine.send("ack")
            thread.join(60)
            assert time.monotonic() - began < 15
            assert _bodies(found) == [101]
    finally:
        mine.close()
        other.join(60)


def _take_and_ack(root: str, pipe: Connection) -> None:
    """Takes the first message of topic Other, and acknowledges it when it is told to."""
    with SimpleConsumer(root, GROUP, {"Other": "*"}, 0, init_mode="MIN", fifo=True) as consumer:
        messages = consumer.receive(1, 120)
        pipe.send(_bodies(messages))
        pipe.recv()
        consumer.ack(messages)


def test_a_receive_that_waits_does_not_wake_for_a_topic_that_is_left(root: Path) -> None:
    with SimpleConsumer(root, GROUP, {TOPIC: "*", "Other": "*"}, 1, init_mode="MIN") as consumer:
        consumer.ack(consumer.receive(32))
        consumer.ack(consumer.receive(32))
        found: list[MessageView] = []
        thread = threading.Thread(target=lambda: found.extend(consumer.receive(32)))
        thread.start()
        _until_waiting(consumer)
        consumer.unsubscribe("Other")
        append_numbered(root, 1, topic="Other", first=102)
        thread.join(30)
        assert found == []


def test_another_filter_counts_from_the_next_receive_on(consumer: SimpleConsumer, root: Path) -> None:
    append_numbered(root, 17, first=3)
    first = consumer.receive(1, 60)
    assert _bodies(first) == [0]
    consumer.subscribe(TOPIC, "Tag3")
    tags = {each.tag for each in consumer.receive(32, 60)}
    assert tags == {"Tag3"}
    consumer.ack(first)
    append_numbered(root, 1, first=20)
    consumer.subscribe(TOPIC, FilterExpression("TAGS IS NOT NULL", "SQL92"))
    assert _read_all(consumer) == [20]


def test_a_consumer_that_is_not_open_notes_the_topics(root: Path) -> None:
    consumer = SimpleConsumer(root, GROUP, {"Nothing": "*"}, 0, init_mode="MIN")
    consumer.subscribe("Other")
    consumer.unsubscribe("Nothing")
    with consumer:
        assert _read_all(consumer) == [100, 101]


def test_refused_topics_change_nothing(root: Path, consumer: SimpleConsumer) -> None:
    with pytest.raises(OptionError, match=r"topic Othre is not in topics.json of .*did you mean Other"):
        consumer.subscribe("Othre")
    with pytest.raises(OptionError, match="FilterExpression: expected filter_type TAG or SQL92"):
        consumer.subscribe("Other", FilterExpression("*", "tag"))
    with pytest.raises(OptionError, match="topic Other: expected tags"):
        consumer.subscribe("Other", 3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"topic Order is not subscribed; did you mean Orders"):
        consumer.unsubscribe("Order")
    assert live_topics(str(root), GROUP) == [TOPIC]
    assert _read_all(consumer) == [0, 1, 2]
    consumer.unsubscribe(TOPIC)
    with pytest.raises(OptionError, match="no topic is subscribed; call subscribe"):
        consumer.receive()
    with pytest.raises(OptionError, match="reads 0 topics"):
        consumer.ack("0 0 60000 0 0 broker 0 0 0")
    consumer.close()
    with pytest.raises(OptionError, match="this consumer is closed"):
        consumer.subscribe(TOPIC)


class Paused(Random):
    """Stops a receive in the middle: when it chooses a queue."""

    def __init__(self) -> None:
        super().__init__(1)
        self.is_reached, self.goes_on = threading.Event(), threading.Event()

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        self.is_reached.set()
        assert self.goes_on.wait(30)
        return super().randrange(start, stop, step)


def _unsubscribe(consumer: SimpleConsumer, *topics: str) -> None:
    for each in topics:
        consumer.unsubscribe(each)


def test_a_topic_is_closed_when_the_last_receive_has_left_it(root: Path) -> None:
    random = Paused()
    with SimpleConsumer(root, GROUP, {TOPIC: "*", "Other": "*"}, 0, random=random) as consumer:
        found: list[MessageView] = []
        receiving = threading.Thread(target=lambda: found.extend(consumer.receive(32)))
        receiving.start()
        assert random.is_reached.wait(30)
        leaving = threading.Thread(target=lambda: _unsubscribe(consumer, TOPIC, "Other"))
        leaving.start()
        leaving.join(0.2)
        assert leaving.is_alive()
        random.goes_on.set()
        receiving.join(30)
        leaving.join(30)
        assert len(found) in (2, 3)
        assert _open_files(root, TOPIC) == _open_files(root, "Other") == 0


def test_threads_receive_while_topics_come_and_go(root: Path) -> None:
    """Each message is received once; no receive sees a topic whose files are closed."""
    append_numbered(root, 400, first=3)
    append_numbered(root, 400, topic="Other", first=1000)
    with SimpleConsumer(root, GROUP, {TOPIC: "*"}, 0.05, init_mode="MIN") as consumer:
        found: list[int] = []
        errors: list[BaseException] = []
        is_done = threading.Event()

        def receive() -> None:
            try:
                while not is_done.is_set():
                    messages = consumer.receive(4, 60)
                    found.extend(_bodies(messages))
                    for each in messages:
                        try:
                            consumer.ack(each)
                        except InvalidReceiptHandleError:
                            assert each.topic == "Other"  # left meanwhile: it comes again in 60 s
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=receive) for _ in range(3)]
        for each in threads:
            each.start()
        for _ in range(6):
            consumer.subscribe("Other")
            time.sleep(0.03)
            consumer.unsubscribe("Other")
        consumer.subscribe("Other")
        deadline = time.monotonic() + 30
        while len(found) < 805 and not errors and time.monotonic() < deadline:
            time.sleep(0.02)
        is_done.set()
        for each in threads:
            each.join()
    assert errors == []
    assert sorted(found) == sorted([*range(403), 100, 101, *range(1000, 1400)])


def test_a_handle_that_is_not_valid_keeps_no_other_message_from_its_acknowledgement(
    root: Path, consumer: SimpleConsumer
) -> None:
    consumer.subscribe("Other")
    messages = consumer.receive(32, 60) + consumer.receive(32, 60)
    consumer.unsubscribe("Other")
    messages.sort(key=lambda message: message.topic)
    with pytest.raises(InvalidReceiptHandleError, match="before it unsubscribes from the topic"):
        consumer.ack(messages)
    assert (consumer.metrics().acked, consumer.metrics().invalid_handles) == (3, 2)
    append_numbered(root, 2, first=3)
    handles = [message.receipt_handle for message in consumer.receive(32, 60)]
    with pytest.raises(InvalidReceiptHandleError, match="'no handle' is not a handle"):
        consumer.ack(["no handle", *handles])
    state = read_in_flight(in_flight_directory(Opened(str(root)), GROUP, TOPIC))
    assert state is not None
    assert (state.totals["acked"], state.in_flight) == (5, 0)

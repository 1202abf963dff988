"""SimpleConsumer: what it receives of real and of own stores, and what handles are good for."""

from __future__ import annotations

import base64
import gc
import math
import os
import pickle
import resource
import shutil
import signal
import time
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.broker.pop.message import MessageView
from rmq_spark.broker.pop.waiting import _FollowedStore
from rmq_spark.consume.group.directory import live_topics
from rmq_spark.pop import FilterExpression, SimpleConsumer
from store_format.commit.recover import recover
from store_format.errors import InvalidReceiptHandleError, OptionError, UnsupportedFormatError
from store_format.files.lock import StoreLock
from store_format.metadata.group_offsets import read_group_offsets
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from tests.store_format.pop.test_damaged_log import DAMAGE
from tests.support import goldens
from tests.support.popped import GROUP, TOPIC, append_numbered, drain, popped_store
from tests.support.staged import append, numbered


def test_every_message_of_a_real_broker_from_the_committed_offset(tmp_path: Path) -> None:
    root = goldens.unpack("basic-5.5.0", tmp_path / "s")
    committed = {0: 64, 1: 64, 2: 64, 3: 58}  # of CG_some, in the golden consumerOffset.json
    want = {
        (row["queueId"], row["queueOffset"]): row
        for row in goldens.expected_rows("basic-5.5.0")
        if row["topic"] == "Orders" and row["queueOffset"] >= committed[row["queueId"]]
    }
    with SimpleConsumer(str(root), "CG_some", {"Orders": "*"}, await_duration=0) as consumer:
        found = drain(consumer)
    assert len(found) == len(want) == 1076
    for message in found:
        row = want[message.queue_id, message.offset]
        assert message.body == base64.b64decode(row["body"])
        assert message.stored_properties == row["properties"]
        assert (message.born_timestamp, message.store_timestamp) == (
            row["bornTimestamp"],
            row["storeTimestamp"],
        )
        assert row["bornHost"].startswith(f"{message.born_host}:")
        assert message.message_id == row["properties"].get("UNIQ_KEY", row["msgId"])
        assert message.delivery_attempt == row["reconsumeTimes"] + 1


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("Tag1 || Tag3", [number for number in range(100) if number % 4 in (1, 3)]),
        (FilterExpression("price > 6 AND TAGS <> 'Tag0'", "SQL92"), None),
    ],
)
def test_filters(tmp_path: Path, expression: str | FilterExpression, wanted: list[int] | None) -> None:
    root = popped_store(tmp_path / "s", 100)
    if wanted is None:
        wanted = [number for number in range(100) if number % 10 > 6 and number % 4]
    with SimpleConsumer(str(root), GROUP, {TOPIC: expression}, await_duration=0) as consumer:
        assert [int(message.body) for message in drain(consumer)] == wanted
        assert consumer.receive(1) == []


@pytest.mark.parametrize("expression", ["Tag1", FilterExpression("TAGS = 'Tag1'", "SQL92")])
def test_messages_that_come_again_are_filtered_too(
    tmp_path: Path, expression: str | FilterExpression
) -> None:
    """Seen with a 5.5.0 broker: it passes over the copies in the retry topic that do not match."""
    root, now = popped_store(tmp_path / "s", 8), [1_700_000_000_000]
    with SimpleConsumer(
        str(root), GROUP, {TOPIC: "*"}, await_duration=0, clock_ms=lambda: now[0]
    ) as consumer:
        assert len(consumer.receive(8)) == 8
    now[0] += 60_000
    with SimpleConsumer(
        str(root), GROUP, {TOPIC: expression}, await_duration=5, clock_ms=lambda: now[0]
    ) as consumer:
        assert [message.tag for message in consumer.receive(8)] == ["Tag1", "Tag1"]


def test_a_handle_is_good_once_and_for_its_invisible_time(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 5)
    now = [1_700_000_000_000]
    with SimpleConsumer(
        str(root), GROUP, {TOPIC: "*"}, await_duration=0, clock_ms=lambda: now[0]
    ) as consumer:
        messages = consumer.receive(5, invisible_duration=10)
        consumer.ack(messages[0])
        with pytest.raises(InvalidReceiptHandleError, match=r"^INVALID_RECEIPT_HANDLE: .*names no message"):
            consumer.ack(messages[0].receipt_handle)
        old = messages[1].receipt_handle
        new = consumer.change_invisible_duration(messages[1], 60)
        assert new == messages[1].receipt_handle != old
        with pytest.raises(InvalidReceiptHandleError, match="the newer handle counts"):
            consumer.ack(old)
        now[0] += 10_000
        with pytest.raises(InvalidReceiptHandleError, match="is expired: the invisible time of 10 s ended 0"):
            consumer.ack(messages[1:])
        with pytest.raises(InvalidReceiptHandleError, match="names no message"):
            consumer.ack(messages[1].receipt_handle)  # acknowledged with the others


@pytest.mark.parametrize(
    ("count", "invisible", "text"),
    [
        (0, 30, r"^max_message_num: expected 1 to 32, as a broker allows, found 0"),
        (33, 30, r"^max_message_num: expected 1 to 32"),
        (1, 9.9, r"^invisible_duration: expected 10 to 43200 seconds, found 9.9"),
        (1, 43201, r"^invisible_duration: expected 10 to 43200 seconds"),
        (1, float("nan"), r"^invisible_duration: expected 10 to 43200 seconds"),
    ],
)
def test_limits_of_a_receive(tmp_path: Path, count: int, invisible: float, text: str) -> None:
    with pytest.raises(OptionError, match=text):
        SimpleConsumer(str(tmp_path), GROUP, {TOPIC: "*"}).receive(count, invisible)


def test_a_tag_with_the_same_hash_is_passed_over(tmp_path: Path) -> None:
    """`Aa` and `BB` have one Java hash: the consume queue entry does not tell them apart."""
    root = goldens.unpack("basic-5.5.0", tmp_path / "s")
    tags = [
        row["properties"].get("TAGS")
        for row in goldens.expected_rows("basic-5.5.0")
        if row["topic"] == "Orders"
    ]
    with SimpleConsumer(str(root), "new", {"Orders": "Aa"}, await_duration=0) as consumer:
        found = drain(consumer)
        assert {message.tag for message in found} == {"Aa"}
        metrics = consumer.metrics()
    assert (len(found), metrics.filtered) == (tags.count("Aa"), tags.count("BB")) == (160, 181)


def test_a_match_behind_many_messages_is_found_at_once(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 3_000, file_size=1 << 22)
    where = FilterExpression("UNIQ_KEY = '2999'", "SQL92")
    with SimpleConsumer(str(root), GROUP, {TOPIC: where}, await_duration=0) as consumer:
        assert [message.body for message in consumer.receive(1)] == [b"2999"]


def test_failed_evaluations_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = popped_store(tmp_path / "s", 4)
    where = FilterExpression("TAGS > 3", "SQL92")
    with SimpleConsumer(str(root), GROUP, {TOPIC: where}, await_duration=0) as consumer:
        assert consumer.receive() == []
    assert "topic Orders: 4 evaluations of the SQL92 expression failed" in caplog.text


def test_retry_topics_of_version_2_are_read(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 2)
    append_numbered(root, 3, first=10, topic="%RETRY%billing+Orders")
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        found = drain(consumer)
    flags = {int(message.body): int(message.receipt_handle.split(" ")[4]) for message in found}
    assert flags == {0: 0, 1: 0, 10: 2, 11: 2, 12: 2}
    assert {message.topic for message in found} == {TOPIC}


def test_iteration_ends_with_the_consumer_and_acknowledges_nothing(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 5)
    consumer = SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0)
    found = []
    for message in consumer:
        found.append(int(message.body))
        if len(found) == 3:
            consumer.close()
    assert found == [0, 1, 2]
    assert consumer.metrics().acked == 0
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as other:
        assert [int(message.body) for message in other.receive()] == [3, 4]


def test_a_signal_handler_closes_a_consumer_that_waits(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)
    consumer = SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=math.inf)
    consumer.receive(1)
    before = signal.signal(signal.SIGALRM, lambda *_: consumer.close())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        began = time.monotonic()
        assert consumer.receive(1) == []
        consumer.close()  # waits for the end of the close of the handler
        assert time.monotonic() - began < 10
    finally:
        signal.signal(signal.SIGALRM, before)
    assert live_topics(str(root), GROUP) == []


def test_a_damaged_queue_does_not_keep_back_the_others(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 20, queues=2)
    (root / "consumequeue" / TOPIC / "1" / ("0" * 20)).write_bytes(b"\xff" * 400)
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        found = consumer.receive(32)
        assert [(m.queue_id, m.offset) for m in found] == [(0, each) for each in range(10)]
        with pytest.raises(UnsupportedFormatError, match="Orders-1"):
            consumer.receive(32)


def test_a_message_that_is_acknowledged_twice_in_one_call_does_not_stand_for_another(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 2)
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        first, second = consumer.receive(2)
        consumer.ack([first, first])
        consumer.ack(second)  # raises InvalidReceiptHandleError if it was acknowledged with the first one


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"path": ""}, r"^path: expected a path, found ''"),
        ({"path": "viewfs://node/store"}, r"^path: expected a local path, .* copy or mount the store$"),
        ({"subscriptions": TOPIC}, r"^subscriptions: expected at least one topic .*, found 'Orders'$"),
        ({"subscriptions": {TOPIC: None}}, r"^subscriptions: topic Orders: expected tags .*, found None$"),
        ({"await_duration": "30"}, r"^await_duration: expected at least 0 seconds, found '30'$"),
        ({"max_attempts": 0}, r"^max_attempts: expected at least 1 delivery.*, found 0$"),
        ({"init_mode": "min"}, r"^init_mode: expected MIN or MAX, found 'min'$"),
        ({"min_invisible_duration": -1}, r"^min_invisible_duration: expected 0 to 43200 seconds, found -1$"),
    ],
)
def test_wrong_arguments_are_refused_at_once(tmp_path: Path, wrong: dict[str, Any], text: str) -> None:
    given: dict[str, Any] = {"path": str(tmp_path), "group": GROUP, "subscriptions": {TOPIC: "*"}, **wrong}
    with pytest.raises(OptionError, match=text):
        SimpleConsumer(**given)


@pytest.mark.parametrize("given", [None, 5, [1], [None]])
def test_only_messages_and_handles_are_acknowledged(tmp_path: Path, given: Any) -> None:
    with pytest.raises(OptionError, match=r"^ack: expected a message, a receipt handle, or several of them"):
        SimpleConsumer(tmp_path, GROUP, {TOPIC: "*"}).ack(given)


def test_durations_may_be_timedeltas(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)
    with SimpleConsumer(root, GROUP, {TOPIC: "*"}, timedelta(0)) as consumer:
        (message,) = consumer.receive(1, timedelta(minutes=1))
        assert message.receipt_handle.split(" ")[2] == "60000"
        consumer.change_invisible_duration(message, timedelta(minutes=2))
        assert message.receipt_handle.split(" ")[2] == "120000"
        with pytest.raises(OptionError, match=r"^invisible_duration: expected 10 to 43200 seconds, fo"):
            consumer.receive(1, timedelta(seconds=1))
    assert SimpleConsumer(root, GROUP, {TOPIC: "*"})._await == 20  # as RocketMQ's Python client
    assert FilterExpression("a > 1", filter_type="SQL92").filter_type == "SQL92"


def test_paths_are_those_of_spark(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)
    for path in (root, f"file:{root}", f"file://{root}/"):
        assert SimpleConsumer(path, GROUP, {TOPIC: "*"}).path == str(root)


def test_a_consumer_is_not_pickled(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"group billing: a consumer cannot be pickled or copied; make a"):
        pickle.dumps(SimpleConsumer(tmp_path, GROUP, {TOPIC: "*"}))


@pytest.mark.parametrize("name", ["in-flight.log", "."])
def test_a_consumer_goes_on_after_somebody_has_removed_the_in_flight_log(tmp_path: Path, name: str) -> None:
    root = popped_store(tmp_path / "s", 4)
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        consumer.ack(consumer.receive(2))
        path = root / ".rmqlog" / "pop" / GROUP / TOPIC / name
        shutil.rmtree(path) if name == "." else path.unlink()
        deadline = time.monotonic() + 10
        while not (found := consumer.receive(4)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert [message.offset for message in found] in ([0, 1, 2, 3], [2, 3])
        assert live_topics(str(root), GROUP) == [TOPIC]
        consumer.ack(found)
    assert read_group_offsets(Opened(str(root)), GROUP) == {(TOPIC, 0): 4}


def test_the_garbage_collector_ends_a_consumer_in_the_middle_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = popped_store(tmp_path / "s", 1)
    forgotten = [SimpleConsumer(str(root), "forgotten", {TOPIC: "*"})]
    forgotten[0].open()
    look = _FollowedStore._changed_topics

    def look_and_forget(store: _FollowedStore) -> Counter[str]:
        forgotten.clear()  # here, with the lock of the store
        return look(store)

    monkeypatch.setattr(_FollowedStore, "_changed_topics", look_and_forget)
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        assert len(consumer.receive(1)) == 1
    deadline = time.monotonic() + 10
    while live_topics(str(root), "forgotten") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert live_topics(str(root), "forgotten") == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="no /proc")
def test_a_consumer_that_is_collected_keeps_no_file_open(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)

    def opened() -> int:
        return sum(
            os.path.realpath(f"/proc/self/fd/{each}").startswith(f"{root}/.rmqlog/pop/")
            for each in os.listdir("/proc/self/fd")
        )

    consumer = SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0)
    assert len(consumer.receive(1)) == 1
    assert opened() >= 3
    del consumer
    gc.collect()
    deadline = time.monotonic() + 10
    while opened() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert opened() == 0


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no /dev/fd")
def test_topics_that_need_too_many_open_files_are_refused(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)
    for number in range(8):
        append_numbered(root, 1, topic=f"T{number}")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(os.listdir("/dev/fd")) + 32 + 4 * 6
    consumer = SimpleConsumer(root, GROUP, {f"T{number}": "*" for number in range(8)}, 0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        with pytest.raises(OptionError, match=rf"of at most {limit} \(ulimit -n\); raise the limit, or give"):
            consumer.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert live_topics(str(root), GROUP) == []
    assert len(consumer.receive()) == 1
    consumer.close()


def test_a_close_that_is_interrupted_leaves_the_group(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)
    consumer = SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0)
    consumer.open()
    consumer._calls._under_way.append((-1, 0))  # a receive of another thread that does not end
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert live_topics(str(root), GROUP) == []


def test_an_interrupted_hand_over_leaves_all_topics(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 1)
    append(root, numbered("Other", 0, 4))
    consumer = SimpleConsumer(str(root), GROUP, {TOPIC: "*", "Other": "*"}, await_duration=0)
    consumer.open()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with StoreLock(str(root)):  # another writer: the hand-over waits
            signal.setitimer(signal.ITIMER_REAL, 0.2, 0.2)  # Ctrl-C, and again
            with pytest.raises(KeyboardInterrupt):
                consumer.close()
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert live_topics(str(root), GROUP) == []


def test_a_recovered_copy_knows_what_is_in_flight(tmp_path: Path) -> None:
    root, new = popped_store(tmp_path / "s", 100), tmp_path / "new"
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        first, *others = consumer.receive(32, 3600)
        consumer.ack(others)
        recover(str(root), into=str(new)).apply()
        rest = len(drain(consumer))
    assert read_in_flight(in_flight_directory(Opened(str(new)), GROUP, TOPIC)) is not None
    with SimpleConsumer(str(new), GROUP, {TOPIC: "*"}, await_duration=0) as consumer:
        found = drain(consumer)
    assert len(found) == rest == 100 - 1 - len(others)
    assert first.body not in {message.body for message in found}


# ---- a damaged in-flight log, beside a consumer that lives -------------------------------------------------


_COUNT = 240


def _consumer(root: Path) -> SimpleConsumer:
    return SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, 0.0)


def _ack(consumer: SimpleConsumer, messages: list[MessageView]) -> None:
    """A message whose hand-out was damaged is delivered again, and its handle is not valid."""
    for each in messages:
        with suppress(InvalidReceiptHandleError):
            consumer.ack(each)


def _numbers(messages: list[MessageView]) -> list[int]:
    return [int(each.body) for each in messages]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_leads_to_few_deliveries_and_no_loss(tmp_path: Path, kind: str) -> None:
    """What is below the offsets in consumerOffset.json never comes again, other messages once or twice."""
    root = popped_store(tmp_path / "s", _COUNT, queues=2)
    log = Path(in_flight_directory(Opened(str(root)), GROUP, TOPIC), "in-flight.log")
    live = _consumer(root)
    first = [message for _ in range(4) for message in live.receive(20, 60)]
    live.ack(first[:40])
    live._stores.keep()
    old = log.read_bytes()
    offsets = [read_group_offsets(Opened(str(root)), GROUP)]
    held = live.receive(30, 60)
    live.ack(held[:10])
    before = Counter(_numbers([*first, *held]))

    DAMAGE[kind](log, old)
    opener, after = _consumer(root), Counter[int]()
    opener.open()
    for _ in range(12):
        for consumer in (opener, live):
            messages = consumer.receive(32, 60)
            after.update(_numbers(messages))
            _ack(consumer, messages)
            consumer._stores.keep()
            offsets.append(read_group_offsets(Opened(str(root)), GROUP))
    _ack(live, [*first[40:], *held[10:]])

    assert (before | after).keys() == set(range(_COUNT))
    assert max(after.values()) <= 2
    settled = {message.queue_id: offsets[0][TOPIC, message.queue_id] for message in first}
    again = [each for each in first if int(each.body) in after and each.offset < settled[each.queue_id]]
    assert not again
    for key in settled:
        course = [each[TOPIC, key] for each in offsets]
        assert course == sorted(course), "an offset went back"
    assert not live.receive(32, 60)
    for each in (live, opener):
        each.close()
    assert os.path.getsize(log) > 0

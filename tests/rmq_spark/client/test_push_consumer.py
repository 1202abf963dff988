"""A push consumer in one process: what its listener gets, what it records, and what becomes of failures."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.group.directory import read_state
from rmq_spark.consume.offset_store import StoreOffsets
from rmq_spark.consume.reset import group_place, reset_to_earliest
from rmq_spark.consumer import ConsumeContext, ConsumeStatus, MessageExt, PushConsumer
from rmq_spark.pop import SimpleConsumer
from rmq_spark.services import run_once
from store_format import MessageStore
from store_format.errors import OptionError, StoreInUseError
from tests.rmq_spark.client.conftest import Consumers, Heard, wait_until
from tests.rmq_spark.stream.test_positions import expected
from tests.support.file_edits import overwrite
from tests.support.own_strategies import ByParity
from tests.support.staged import append, deleted_topic, numbered, update_topic
from tests.support.writes import held

_ALL = expected("T", *[(0, 5)] * 4)
_LATER = 4_000_000_000_000  # ms: every delay is over


def committed(root: Path) -> dict[int, int]:
    found = StoreOffsets("g", {"broker-a": str(root)}).read()
    return {queue.queue_id: offset for queue, offset in found.items() if queue.topic == "T"}


def _has_delayed(root: Path, queue_id: int, count: int) -> bool:
    queues = {queue.key: queue.max_offset for queue in MessageStore.open(str(root)).queues()}
    return queues.get(("SCHEDULE_TOPIC_XXXX", queue_id)) == count


def dead_letters(root: Path) -> int:
    queues = [queue for queue in MessageStore.open(str(root)).queues() if queue.topic == "%DLQ%g"]
    return sum(queue.max_offset for queue in queues)


# ---- messages and positions --------------------------------------------------------------------------------


def test_every_message_once_and_the_positions_are_recorded(consumers: Consumers, root: Path) -> None:
    heard = Heard()
    consumer = consumers.push(heard)
    assert sorted(heard.wait(20)) == _ALL
    append(root, numbered("T", 20, 8))
    assert sorted(heard.wait(28)) == expected("T", *[(0, 7)] * 4)
    consumer.shutdown()
    assert committed(root) == dict.fromkeys(range(4), 7)
    assert {*map(len, heard.calls)} == {1}
    again = Heard()
    consumers.push(again, consume_message_batch_max_size=8)
    append(root, numbered("T", 28, 4))
    assert sorted(again.wait(4)) == expected("T", *[(7, 8)] * 4)


def test_a_message_has_the_attributes_of_pop(consumers: Consumers, root: Path) -> None:
    found: list[MessageExt] = []

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> ConsumeStatus:
        found.extend(messages)
        return ConsumeStatus.CONSUME_SUCCESS

    consumers.push(listen, offset_store="none")
    wait_until(lambda: len(found) == 20)
    with SimpleConsumer(root, "pops", {"T": "*"}, 0.0, init_mode="MIN") as popping:
        views = {(each.queue_id, each.offset): each for each in popping.receive(32)}
    names = [
        name
        for name in dir(next(iter(views.values())))
        if not name.startswith("_") and name not in ("handle", "place", "receipt_handle", "root")
    ]
    assert len(names) > 15
    assert views
    for message in found:
        view = views.get((message.queue_id, message.offset))
        if view is not None:
            assert [getattr(message, name) for name in names] == [getattr(view, name) for name in names]


def test_expressions_choose_messages_and_positions_pass_the_others(root: Path) -> None:
    append(root, numbered("U", 0, 12))
    heard = Heard()
    consumer = PushConsumer(root, "g", consume_from_where="CONSUME_FROM_FIRST_OFFSET")
    consumer.subscribe("T", "T0 || X")
    consumer.subscribe("U", "TAGS = 'T1'", "SQL92")
    consumer.register_message_listener(heard)
    with consumer:
        assert Counter(topic for topic, _, _ in heard.wait(11)) == {"T": 7, "U": 4}
        wait_until(lambda: not consumer._in_hand)
    assert committed(root) == dict.fromkeys(range(4), 5)


def test_a_damaged_message_arrives_with_its_error(consumers: Consumers, root: Path) -> None:
    (file,) = (root / "commitlog").iterdir()
    overwrite(file, file.read_bytes().index(b"message 6 of T"), b"X")
    errors: list[MessageExt] = []

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        errors.extend(each for each in messages if each.error is not None)
        return "CONSUME_SUCCESS"

    heard = Heard(listen)
    consumers.push(heard)
    assert sorted(heard.wait(20)) == _ALL
    (damaged,) = errors
    assert (damaged.queue_id, damaged.offset) == (2, 1)
    assert "CRC" in str(damaged.error)
    with pytest.raises(type(damaged.error)):  # type: ignore[type-var] # it has an error
        _ = damaged.body


def test_a_full_local_buffer_stops_pulling(consumers: Consumers, root: Path) -> None:
    append(root, [*numbered("T", 20, 380), *numbered("U", 0, 400)])
    going_on = threading.Event()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        going_on.wait(20)
        return "CONSUME_SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(
        heard,
        topics=("T", "U"),
        pull_threshold_for_queue=30,
        pull_threshold_for_topic=40,
        consume_thread_number=2,
    )
    member = consumer._member
    assert member is not None
    of_topic = {name: queue for name, queue in member.queues.items() if not name.topic.startswith("%")}
    wait_until(lambda: all(queue.held == 10 for queue in of_topic.values()))
    assert not heard.wait(2)[2:]
    assert {queue.held for queue in of_topic.values()} == {10}  # 40 for each topic of four queues
    going_on.set()
    assert len({*heard.wait(800)}) == 800


def test_minus_one_is_no_threshold_of_a_topic(consumers: Consumers) -> None:
    """The default of DefaultMQPushConsumer."""
    no_limits: dict[str, Any] = {"pull_threshold_for_topic": -1, "pull_threshold_size_for_topic": -1}
    consumer = consumers.push(Heard(), pull_threshold_for_queue=30, **no_limits)
    assert consumer._member is not None
    assert {each.messages for each in consumer._member._thresholds.values()} == {30}


@pytest.mark.parametrize("span", [1, 3])
def test_a_slow_message_holds_its_queue_at_the_span(consumers: Consumers, root: Path, span: int) -> None:
    going_on = threading.Event()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        if messages[0].offset == 0:
            going_on.wait(20)
        return "CONSUME_SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(heard, consume_concurrently_max_span=span, pull_batch_size=1)
    assert sorted(heard.wait(4 * (span + 1))) == expected("T", *[(0, span + 1)] * 4)
    consumer._wake.set()
    assert len(heard.places) == 4 * (span + 1)
    going_on.set()
    assert sorted(heard.wait(20)) == _ALL


# ---- members -----------------------------------------------------------------------------------------------


def test_members_share_the_queues_and_hand_them_over(consumers: Consumers, root: Path) -> None:
    one, two = Heard(), Heard()
    first = consumers.push(one, allocate_message_queue_strategy=ByParity(), instance_name="one")
    one.wait(20)
    assert [queue.queue_id for queue in first.message_queues if queue.topic == "T"] == [0, 1, 2, 3]
    second = consumers.push(two, allocate_message_queue_strategy=ByParity(), instance_name="two")
    wait_until(lambda: len(first.message_queues) == len(second.message_queues) == 2)
    append(root, numbered("T", 20, 8))
    assert sorted(two.wait(4)) == [("T", 1, 5), ("T", 1, 6), ("T", 3, 5), ("T", 3, 6)]
    assert sorted(one.wait(24)[20:]) == [("T", 0, 5), ("T", 0, 6), ("T", 2, 5), ("T", 2, 6)]
    first.shutdown()
    append(root, numbered("T", 28, 4))
    assert sorted(two.wait(8)[4:]) == [("T", queue, 7) for queue in range(4)]


def test_another_strategy_is_refused(consumers: Consumers) -> None:
    consumers.push(Heard())
    with pytest.raises(OptionError, match="expected the allocation strategy of its members, AVG; found"):
        consumers.push(Heard(), allocate_message_queue_strategy="AVG_BY_CIRCLE")


def test_a_queue_that_was_lost_is_not_handed_out(consumers: Consumers, root: Path) -> None:
    """A member that was stopped past its lease: its epoch is over, whatever it has read ahead."""
    first = threading.Event()
    going_on = threading.Event()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        first.set()
        going_on.wait(20)
        return "CONSUME_SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(
        heard, consume_thread_number=1, offset_store="local", offset_store_path=str(root / "o")
    )
    assert first.wait(20)
    (path,) = root.glob("o/**/group.json")
    text = path.read_text()
    member = next(iter(read_state(str(path.parent)).members))
    path.write_text(text.replace(f'"{member}"', '"0123456789abcdef"'))  # another member has all queues
    going_on.set()
    wait_until(lambda: not consumer._in_hand)
    assert len(heard.places) == 1


def test_a_changed_number_of_queues_is_shared(consumers: Consumers, root: Path) -> None:
    heard = Heard()
    consumer = consumers.push(heard)
    heard.wait(20)
    update_topic(root, "T", 6)
    wait_until(lambda: sum(queue.topic == "T" for queue in consumer.message_queues) == 6)
    update_topic(root, "T", 2)
    wait_until(lambda: sum(queue.topic == "T" for queue in consumer.message_queues) == 2)


def test_broadcasting_reads_every_queue_and_drops_failures(
    consumers: Consumers, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Heard(lambda messages, context: "RECONSUME_LATER"), Heard()
    path = str(root / "offsets")
    for heard, name in ((one, "one"), (two, "two")):
        consumers.push(heard, message_model="BROADCASTING", offset_store_path=path, instance_name=name)
    assert sorted(one.wait(20)) == sorted(two.wait(20)) == _ALL
    wait_until(lambda: sum("are not delivered again" in text for text in caplog.messages) == 20)


def test_a_reset_moves_a_running_consumer(consumers: Consumers, root: Path) -> None:
    heard = Heard()
    consumers.push(heard, persist_consumer_offset_interval=0)
    heard.wait(20)
    store = MessageStore.open(str(root))
    reset_to_earliest(group_place("g", [store]), [store]).apply()
    assert Counter(heard.wait(40)) == Counter(_ALL * 2)


def test_a_topic_that_is_created_again_is_read_from_its_begin(consumers: Consumers, root: Path) -> None:
    heard = Heard()
    consumer = consumers.push(heard, persist_consumer_offset_interval=0)
    heard.wait(20)
    wait_until(lambda: not consumer._in_hand)
    deleted_topic(root, "T")
    append(root, numbered("T", 100, 8))
    assert sorted(heard.wait(28)[20:]) == expected("T", *[(0, 2)] * 4)


# ---- failures ----------------------------------------------------------------------------------------------


def _fail_at(*places: tuple[int, int]) -> Any:
    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str | None:
        failing = any(
            (each.queue_id, each.offset) in places and each.stored_topic == "T" for each in messages
        )
        return "RECONSUME_LATER" if failing else "CONSUME_SUCCESS"

    return listen


def _raise(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
    raise ValueError("no such customer")


@pytest.mark.parametrize("answer", [lambda messages, context: None, _raise, lambda messages, context: "OK"])
def test_what_is_no_success_is_a_failure(consumers: Consumers, root: Path, answer: Any) -> None:
    heard = Heard(answer)
    consumer = consumers.push(heard, max_reconsume_times=0)
    heard.wait(20)
    wait_until(lambda: dead_letters(root) == 20)
    consumer.shutdown()
    assert committed(root) == dict.fromkeys(range(4), 5)


def test_a_failed_message_is_retried_and_becomes_one_dead_letter(consumers: Consumers, root: Path) -> None:
    """The services deliver what waits, as a broker does."""

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        assert messages[0].topic == "T"
        return "CONSUME_SUCCESS" if (messages[0].body or b"")[:12] != b"message 7 of" else "RECONSUME_LATER"

    heard = Heard(listen)
    consumer = consumers.push(heard, max_reconsume_times=2)
    heard.wait(20)
    for number in (1, 2):
        wait_until(partial(_has_delayed, root, 1 + number, 1))
        run_once(str(root), ["schedule"], _LATER, apply=True)
        assert heard.wait(20 + number)[-1] == ("%RETRY%g", 0, number - 1)
        assert heard.times[-1] == number
    wait_until(lambda: dead_letters(root) == 1)
    consumer.shutdown()
    assert committed(root) == dict.fromkeys(range(4), 5)
    assert MessageStore.open(str(root)).diagnose().of("damage") == []


def test_the_context_says_what_was_handled_and_how_long_to_wait(consumers: Consumers, root: Path) -> None:
    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        context.ack_index = 1 if messages[0].queue_id == 0 else None
        context.delay_level_when_next_consume = -1 if messages[0].queue_id == 1 else 5
        return "RECONSUME_LATER" if messages[0].queue_id == 1 else "CONSUME_SUCCESS"

    heard = Heard(listen)
    consumers.push(heard, consume_message_batch_max_size=5)
    heard.wait(20)
    wait_until(lambda: dead_letters(root) == 5)
    wait_until(partial(_has_delayed, root, 4, 3))


def test_a_message_is_sent_back_once_for_all_members(consumers: Consumers, root: Path) -> None:
    """A member that was killed after it had sent a message back has not recorded it."""
    heard = Heard(_fail_at((1, 2)))
    consumer = consumers.push(heard, max_reconsume_times=0, offset_store="none", instance_name="killed")
    heard.wait(20)
    wait_until(lambda: dead_letters(root) == 1)
    consumer.shutdown()
    again = Heard(_fail_at((1, 2), (1, 3)))
    consumers.push(again, max_reconsume_times=0, offset_store="none", instance_name="next")
    assert sorted(again.wait(20)) == _ALL  # without offsets everything comes again
    wait_until(lambda: dead_letters(root) == 2)
    assert sorted(MessageStore.open(str(root)).queue("%DLQ%g", 0).to_table()["body"].to_pylist())


# ---- beside a broker ---------------------------------------------------------------------------------------


def test_a_broker_that_has_the_store_keeps_the_offsets(consumers: Consumers, root: Path) -> None:
    with held(root), pytest.raises(StoreInUseError, match="local"):
        consumers.push(Heard())


def test_beside_a_broker_failures_are_delivered_again_and_hold_the_position(
    consumers: Consumers, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fails = {"message 9 of": True}

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        context.delay_level_when_next_consume = 1
        failing = fails.get(messages[0].body[:12].decode(), False)
        return "RECONSUME_LATER" if failing else "CONSUME_SUCCESS"

    heard = Heard(listen)
    path = str(root / "offsets")
    with held(root):
        consumer = consumers.push(heard, offset_store="local", offset_store_path=path, max_reconsume_times=1)
        assert Counter(heard.wait(21))["T", 1, 2] == 2
        assert heard.times[-1] == 1
        wait_until(lambda: any("has failed 2 times" in text for text in caplog.messages))
        member = consumer._member
        assert member is not None
        assert member.queues[MessageQueue("T", "broker-a", 1)].committed == 2
    wait_until(lambda: dead_letters(root) == 1)
    wait_until(lambda: member.queues[MessageQueue("T", "broker-a", 1)].committed == 5)


# ---- in order ----------------------------------------------------------------------------------------------


def test_an_orderly_queue_waits_at_a_failure(consumers: Consumers, root: Path) -> None:
    failures = Counter[tuple[int, int]]()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        place = messages[0].queue_id, messages[0].offset
        context.suspend_current_queue_time = 0.05
        if place == (2, 1) and failures[place] < 3:
            assert messages[0].reconsume_times == failures[place]
            failures[place] += 1
            return "SUSPEND_CURRENT_QUEUE_A_MOMENT"
        return "SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(heard, orderly=True)
    heard.wait(23)
    of_queue = {queue: [place[2] for place in heard.places if place[1] == queue] for queue in range(4)}
    assert of_queue == {queue: [*range(5)] for queue in range(4)} | {2: [0, 1, 1, 1, 1, 2, 3, 4]}
    consumer.shutdown()
    assert committed(root) == dict.fromkeys(range(4), 5)


def test_an_orderly_queue_gives_a_message_up(consumers: Consumers, root: Path) -> None:
    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        context.suspend_current_queue_time = 0.02
        return (
            "SUCCESS"
            if (messages[0].queue_id, messages[0].offset) != (3, 2)
            else "SUSPEND_CURRENT_QUEUE_A_MOMENT"
        )

    heard = Heard(listen)
    consumers.push(heard, orderly=True, max_reconsume_times=2)
    assert Counter(heard.wait(22))["T", 3, 2] == 3
    assert dead_letters(root) == 1
    assert heard.places[-1] != ("T", 3, 2)


# ---- mistakes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        ({"consume_thread_number": 0}, "consume_thread_number: expected a number from 1, found 0"),
        ({"max_reconsume_times": -2}, "max_reconsume_times: expected -1 or a number from 0, found -2"),
        ({"consume_from_where": "LAST"}, "consumeFromWhere: expected one of"),
        ({"allocate_message_queue_strategy": "AVERAGE"}, "did you mean AVG?"),
        ({"lease_time": 0.5}, "leaseTime: expected at least 1s"),
    ],
)
def test_a_wrong_argument(consumers: Consumers, arguments: dict[str, Any], expected_error: str) -> None:
    with pytest.raises(OptionError) as caught:
        consumers.push(Heard(), **arguments)
    assert expected_error in str(caught.value)


def test_a_consumer_needs_a_topic_and_a_listener(consumers: Consumers, root: Path) -> None:
    with pytest.raises(OptionError, match="no store has a topic 'Typo'"):
        consumers.push(Heard(), topics=["Typo"])
    with pytest.raises(OptionError, match="call subscribe first"):
        consumers.push(Heard(), topics=[])
    with pytest.raises(OptionError, match="call register_message_listener first"):
        PushConsumer(root, "g").start()


def test_listeners_log_their_errors(consumers: Consumers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    consumers.push(Heard(_raise), max_reconsume_times=0)
    wait_until(lambda: any("ValueError: no such customer" in text for text in caplog.messages))

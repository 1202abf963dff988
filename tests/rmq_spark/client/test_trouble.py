"""What goes wrong in and beside a consumer: listeners, threads, files of the store and of the group."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.client.member import Member
from rmq_spark.client.queues import ProcessQueue
from rmq_spark.consume.consumer import MessageQueue
from rmq_spark.consume.reset import group_place, reset_to_earliest
from rmq_spark.consumer import ConsumeContext, MessageExt
from store_format import MessageStore
from store_format.errors import OptionError, StoreError
from tests.rmq_spark.client.conftest import Consumers, Heard, wait_until
from tests.rmq_spark.client.test_push_consumer import committed, dead_letters
from tests.rmq_spark.stream.test_positions import expected
from tests.support.staged import append, numbered
from tests.support.writes import held

_ALL = expected("T", *[(0, 5)] * 4)

# ---- listeners ---------------------------------------------------------------------------------------------


def _exit(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
    raise SystemExit(1)


def _clear(messages: Any, context: ConsumeContext) -> str:
    messages.clear()
    return "CONSUME_SUCCESS"


@pytest.mark.parametrize("listen", [_exit, _clear])
def test_a_listener_that_exits_or_takes_messages_out_of_its_call_has_failed(
    consumers: Consumers, root: Path, listen: Callable[..., str]
) -> None:
    """As the Java client catches every Throwable, and passes an unmodifiable list: the process goes on, and
    no message is forgotten.
    """
    consumer = consumers.push(Heard(listen), max_reconsume_times=0)
    wait_until(lambda: dead_letters(root) == 20)
    consumer.shutdown()
    assert committed(root) == dict.fromkeys(range(4), 5)


# ---- the end -----------------------------------------------------------------------------------------------


def test_calls_that_wait_for_a_thread_do_not_delay_the_end(consumers: Consumers) -> None:
    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        time.sleep(0.1)
        return "CONSUME_SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(heard, consume_thread_number=1)
    heard.wait(1)
    began = time.monotonic()
    consumer.shutdown(await_terminate=8)
    assert time.monotonic() - began < 4
    assert len(heard.places) < 10


def test_the_end_leaves_the_group_while_a_failure_is_due(consumers: Consumers, root: Path) -> None:
    """The failure comes due while `shutdown` waits for a slow call."""
    going_on = threading.Event()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        context.delay_level_when_next_consume = 1
        if messages[0].queue_id == 0:
            going_on.wait(20)
        return "RECONSUME_LATER" if messages[0].queue_id == 1 else "CONSUME_SUCCESS"

    heard = Heard(listen)
    path = str(root / "offsets")
    with held(root):
        consumer = consumers.push(heard, offset_store="local", offset_store_path=path)
        heard.wait(20)
        threading.Timer(2, going_on.set).start()
        consumer.shutdown()
    assert not [*root.glob("offsets/**/leases/*")]


def test_a_start_that_fails_leaves_no_member(consumers: Consumers, root: Path) -> None:
    class Strategy:
        def get_name(self) -> str:
            return "unlucky"

        def allocate(self, group: str, client: str, queues: Any, clients: Any) -> Any:
            raise ValueError("no machine room")

    with pytest.raises(OptionError, match="no machine room"):
        consumers.push(Heard(), allocate_message_queue_strategy=Strategy())
    assert not [*root.glob(".rmqlog/groups/**/leases/*")]
    consumer = consumers.pull(allocate_message_queue_strategy=Strategy())
    consumer.subscribe("T")
    with pytest.raises(OptionError, match="no machine room"):
        consumer.poll(0)
    assert not [*root.glob(".rmqlog/groups/**/leases/*")]


# ---- failed messages ---------------------------------------------------------------------------------------


def _fails_once_at(place: tuple[int, int]) -> Callable[[Sequence[MessageExt], ConsumeContext], str]:
    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        return "RECONSUME_LATER" if (messages[0].queue_id, messages[0].offset) == place else "CONSUME_SUCCESS"

    return listen


@pytest.mark.parametrize(
    "places",
    ['{"a 0": ["T", "x", 1]}', '{"a 0": [["T"], 0, 1]}', '{"a 0": ["T", 0, Infinity]}', '{"a 0": "abc"}'],
)
def test_a_damaged_file_of_copies_holds_the_position(
    consumers: Consumers, root: Path, places: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The failed message waits, and is stored when the file is repaired."""
    path = root / ".rmqlog" / "sent-back.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{{"version": 1, "groups": {{"g": {{"turns": 0, "places": {places}}}}}}}')
    heard = Heard(_fails_once_at((1, 2)))
    consumer = consumers.push(heard, max_reconsume_times=0)
    heard.wait(20)
    wait_until(lambda: any("sent-back.json" in text for text in caplog.messages))
    time.sleep(2.5)
    assert sum("sent-back.json" in text for text in caplog.messages) == 1
    path.unlink()
    wait_until(lambda: dead_letters(root) == 1)
    consumer.shutdown()
    assert committed(root) == dict.fromkeys(range(4), 5)


def test_a_copy_is_made_once_until_the_position_is_recorded(consumers: Consumers, root: Path) -> None:
    """A later failure must not forget the copies behind the recorded positions of a member that dies."""
    failing = [(0, 0)]

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        place = messages[0].queue_id, messages[0].offset
        return "RECONSUME_LATER" if place in failing else "CONSUME_SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(heard, max_reconsume_times=0, persist_consumer_offset_interval=3600)
    heard.wait(20)
    member = consumer._member
    assert member is not None
    queue = MessageQueue("T", "broker-a", 1)
    wait_until(lambda: dead_letters(root) == 1 and member.recorded(queue) == 5)
    time.sleep(1.2)  # a look
    failing += [(1, 5), (2, 6)]
    for count in (2, 3):
        append(root, numbered("T", 20 + 4 * (count - 2), 4))
        wait_until(lambda count=count: dead_letters(root) == count)  # type: ignore[misc] # lambda
        wait_until(lambda count=count: member.queues[queue].committed == 4 + count)  # type: ignore[misc] # lambda
        consumer._wake.set()
        time.sleep(1.2)  # a look
    assert member.recorded(queue) == 5
    assert '["T",1,5]' in (root / ".rmqlog" / "sent-back.json").read_text()


# ---- in order ----------------------------------------------------------------------------------------------


class _SlowQueue(ProcessQueue):
    """Between the moment in which it is free for another call and what its thread does next, time goes by."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name in ("is_busy", "is_suspended") and value is False:
            time.sleep(0.005)


def test_an_orderly_queue_is_in_one_call_at_a_time(
    consumers: Consumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when its thread makes way for other queues, and when its group is reset during a call."""
    monkeypatch.setattr("rmq_spark.client.push_consumer._ORDERLY_SECONDS", 0.0)
    monkeypatch.setattr("rmq_spark.client.member.ProcessQueue", _SlowQueue)
    inside: Counter[int] = Counter()
    found = []

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        inside[messages[0].queue_id] += 1
        found.append(inside[messages[0].queue_id])
        time.sleep(0.002)
        inside[messages[0].queue_id] -= 1
        return "SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(heard, orderly=True)
    while len({*heard.places}) < 20:
        consumer._wake.set()
    assert max(found) == 1
    assert len(heard.places) == 20


def test_a_reset_waits_for_the_orderly_call(consumers: Consumers, root: Path) -> None:
    going_on = threading.Event()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        if messages[0].offset == 3:
            going_on.wait(20)
        return "SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(heard, orderly=True)
    heard.wait(16)
    store = MessageStore.open(str(root))
    assert consumer._member is not None
    before = consumer._member.queues.copy()
    reset_to_earliest(group_place("g", [store]), [store]).apply()
    name = MessageQueue("T", "broker-a", 0)
    wait_until(lambda: before[name].is_dropped)
    time.sleep(0.3)
    assert len(heard.places) == 16
    going_on.set()
    assert Counter(heard.wait(36))["T", 0, 0] == 2


def test_an_orderly_queue_goes_to_another_member_after_its_call(consumers: Consumers) -> None:
    """Two members must not handle one queue at the same time."""
    going_on = threading.Event()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        if messages[0].offset == 2:
            going_on.wait(20)
        return "SUCCESS"

    one, two = Heard(listen), Heard(lambda messages, context: "SUCCESS")
    first = consumers.push(one, orderly=True, instance_name="one")
    one.wait(12)
    second = consumers.push(two, orderly=True, instance_name="two")
    time.sleep(2.5)
    assert not second.message_queues
    assert len(one.places) == 12
    going_on.set()
    wait_until(lambda: len(one.places) + len(two.places) == 20)
    assert sorted(one.places + two.places) == _ALL
    assert len(first.message_queues) == len(second.message_queues) == 2


# ---- the group's files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("orderly", [False, True])
def test_a_damaged_state_of_the_group_fails_no_message(
    consumers: Consumers, root: Path, orderly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is handed out, nothing becomes a dead letter, and all goes on with the file."""
    first, going_on = threading.Event(), threading.Event()

    def listen(messages: Sequence[MessageExt], context: ConsumeContext) -> str:
        first.set()
        going_on.wait(20)
        return "SUCCESS" if orderly else "CONSUME_SUCCESS"

    heard = Heard(listen)
    consumer = consumers.push(heard, orderly=orderly, max_reconsume_times=0, consume_thread_number=1)
    assert first.wait(20)
    (path,) = root.glob(".rmqlog/groups/**/group.json")
    text = path.read_text()
    path.write_text("torn")
    going_on.set()
    wait_until(lambda: not consumer._in_hand)
    time.sleep(2.2)
    assert len(heard.places) == 1
    assert sum("the consumer goes on" in text for text in caplog.messages) <= 1
    path.write_text(text)
    wait_until(lambda: len({*heard.places}) == 20)
    consumer.shutdown()
    assert dead_letters(root) == 0
    assert committed(root) == dict.fromkeys(range(4), 5)


def test_a_poll_that_cannot_ask_the_group_loses_no_message(consumers: Consumers, root: Path) -> None:
    consumer = consumers.pull(pull_batch_size=5)
    consumer.subscribe("T")
    found = [(each.queue_id, each.offset) for each in consumer.poll(0)]
    (path,) = root.glob(".rmqlog/groups/**/group.json")
    text = path.read_text()
    path.write_text("torn")
    for _ in range(4):
        with suppress(StoreError):
            assert not consumer.poll(0)
    path.write_text(text)
    deadline = time.monotonic() + 10
    while len({*found}) < 20 and time.monotonic() < deadline:
        found += [(each.queue_id, each.offset) for each in consumer.poll(0.1)]
    assert len({*found}) == 20
    assert len(found) == 20


def test_a_pull_consumer_names_an_error_once(
    consumers: Consumers, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = consumers.pull()
    consumer.subscribe("T")
    consumer.poll(0)
    (path,) = root.glob(".rmqlog/groups/**/group.json")
    text = path.read_text()
    path.write_text("torn")
    time.sleep(3.5)
    path.write_text(text)
    assert sum("group.json" in each for each in caplog.messages) == 1


# ---- much to read ------------------------------------------------------------------------------------------


def test_an_error_behind_the_listener_costs_no_thread(
    consumers: Consumers, root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_more = Member.has_more

    def failing(member: Member, queue: ProcessQueue) -> bool:
        if threading.current_thread().name.endswith("_0"):
            raise KeyError("T")
        return has_more(member, queue)

    monkeypatch.setattr(Member, "has_more", failing)
    heard = Heard()
    consumers.push(heard, consume_thread_number=1)
    assert sorted(heard.wait(20)) == _ALL
    assert sum("ended in an error" in text for text in caplog.messages) > 1


def test_a_backlog_does_not_keep_the_consumer_from_looking(
    consumers: Consumers, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions, failures and other members do not wait until everything is read."""
    monkeypatch.setattr("rmq_spark.client.push_consumer._READ_SECONDS", 0.05, raising=False)
    append(root, numbered("T", 20, 2000))
    pull, look, looks = Member.pull, Member.look, [0]

    def slow_pull(member: Member, queue: ProcessQueue) -> list[MessageExt]:
        time.sleep(0.001)
        looks[-1] += 1
        return pull(member, queue)

    def counted_look(member: Member) -> bool:
        looks.append(0)
        return look(member)

    monkeypatch.setattr(Member, "pull", slow_pull)
    monkeypatch.setattr(Member, "look", counted_look)
    heard = Heard()
    consumers.push(heard, pull_batch_size=2)
    heard.wait(2020)
    assert max(looks) < 250

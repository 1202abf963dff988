"""Pop in order: one batch of a queue at a time, redelivered from the first message not acknowledged."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.broker.pop.share import PopGroup, ShareOptions
from rmq_spark.pop import MessageView, SimpleConsumer
from store_format import MessageStore
from store_format.errors import InvalidReceiptHandleError, OptionError
from store_format.files.write import FileWrites
from store_format.metadata.group_offsets import read_group_offsets, rewrite_config, write_group_offsets
from store_format.metadata.read import read_order_infos, read_subscription_groups
from store_format.metadata.values import OrderInfo
from store_format.opened.store import Opened
from store_format.pop import order as order_info
from store_format.pop.log import in_flight_directory, read_in_flight
from store_format.pop.state import PopState
from tests.support.popped import GROUP, TOPIC, Clock, popped_store


def _consumer(root: Path, clock: Clock, expression: str = "*", *, fifo: bool = True) -> SimpleConsumer:
    return SimpleConsumer(str(root), GROUP, {TOPIC: expression}, await_duration=0, clock_ms=clock, fifo=fifo)


def _offsets(messages: list[MessageView]) -> list[int]:
    return [message.offset for message in messages]


def test_a_queue_waits_for_its_batch(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 10), Clock()
    with _consumer(root, clock) as one, _consumer(root, clock) as other:
        batch = one.receive(3)
        assert _offsets(batch) == [0, 1, 2]
        assert [message.receipt_handle.split(" ")[3] for message in batch] == ["999"] * 3
        assert other.receive(3) == one.receive(3) == []
        one.ack([batch[2], batch[0]])
        assert other.receive(3) == []
        other.ack(batch[1].receipt_handle)
        assert _offsets(other.receive(4)) == [3, 4, 5, 6]


def test_redelivery_begins_at_the_first_message_not_acknowledged(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 10), Clock()
    with _consumer(root, clock) as consumer:
        batch = consumer.receive(4, 30)
        consumer.ack([batch[0], batch[2]])
        clock.ms += 29_999
        assert consumer.receive(4) == []
        clock.ms += 1
        again = consumer.receive(4, 30)
        assert _offsets(again) == [1, 2, 3, 4]  # 2 too: the broker reads the queue from 1
        assert [message.delivery_attempt for message in again] == [2, 2, 2, 1]
        with pytest.raises(InvalidReceiptHandleError, match="names no message that is in flight"):
            consumer.ack(batch[1])
        consumer.ack(again)
        assert _offsets(consumer.receive(32)) == [5, 6, 7, 8, 9]


def test_a_message_is_acknowledged_late_until_its_queue_is_read_again(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 3), Clock()
    with _consumer(root, clock) as consumer:
        (first,) = consumer.receive(1, 30)
        clock.ms += 60_000
        consumer.ack(first)
        assert _offsets(consumer.receive(1)) == [1]


def test_an_invisible_time_holds_the_queue(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 5), Clock()
    with _consumer(root, clock) as consumer:
        first, second = consumer.receive(2, 30)
        before = first.receipt_handle
        clock.ms += 10_000
        consumer.change_invisible_duration(second, 60)
        assert second.receipt_handle.split(" ")[2] == "70000"  # from the pop time on
        consumer.change_invisible_duration(first, 0)
        clock.ms += 59_999
        assert consumer.receive(2) == []
        clock.ms += 1
        assert _offsets(consumer.receive(2, 30)) == [0, 1]
        with pytest.raises(InvalidReceiptHandleError):
            consumer.ack(before)


def test_a_repeated_attempt_gets_its_messages_again(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 5), Clock()
    with _consumer(root, clock) as consumer:
        first = consumer.receive(2, attempt_id="a")
        assert consumer.receive(2, attempt_id="b") == []
        again = consumer.receive(2, attempt_id="a")
        assert _offsets(again) == _offsets(first) == [0, 1]
        assert [message.delivery_attempt for message in again] == [1, 1]
        consumer.ack(again)


def test_filtered_messages_do_not_hold_the_queue(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 40), Clock()
    found = []
    with _consumer(root, clock, "Tag1") as consumer:
        while batch := consumer.receive(3):
            assert consumer.receive(1) == []
            found += _offsets(batch)
            consumer.ack(batch)
    assert found == list(range(1, 40, 4))


def test_queues_are_independent(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 12, queues=3), Clock()
    with _consumer(root, clock) as consumer:
        found = [consumer.receive(2) for _ in range(3)]
        assert sorted((each[0].queue_id, _offsets(each)) for each in found) == [
            (queue, [0, 1]) for queue in range(3)
        ]
        consumer.ack(found[1])
        assert [(m.queue_id, m.offset) for m in consumer.receive(2)] == [
            (found[1][0].queue_id, offset) for offset in (2, 3)
        ]


def test_the_group_s_configuration_decides(tmp_path: Path) -> None:
    root, clock = popped_store(tmp_path / "s", 4), Clock()
    (root / "config" / "subscriptionGroup.json").write_text(
        '{"subscriptionGroupTable":{"billing":{"groupName":"billing","consumeMessageOrderly":true}}}'
    )
    with SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=0, clock_ms=clock) as consumer:
        assert _offsets(consumer.receive(1)) == [0]
        assert consumer.receive(1) == []


def test_a_message_that_fails_too_often_lets_the_queue_go_on(tmp_path: Path) -> None:
    """It is stored as a dead letter when it would be delivered again, and the queue continues behind it."""
    root, clock = popped_store(tmp_path / "s", 4), Clock()
    with SimpleConsumer(
        str(root), GROUP, {TOPIC: "*"}, await_duration=0, clock_ms=clock, fifo=True, max_attempts=2
    ) as consumer:
        for _ in range(2):
            batch = consumer.receive(2, 30)
            assert _offsets(batch) == [0, 1]
            consumer.ack(batch[1])
            clock.ms += 30_000
        # 1 was acknowledged behind 0, which was not: both came again
        assert _offsets(consumer.receive(3, 30)) == [2]
        assert consumer.metrics().dead_letters == 2
        (queue,) = MessageStore.open(str(root)).queues(f"%DLQ%{GROUP}".__eq__)
        assert queue.max_offset == 2
    assert read_group_offsets(Opened(str(root)), GROUP)[TOPIC, 0] == 2


def test_a_waiting_consumer_is_woken_by_an_acknowledgement_and_by_time(tmp_path: Path) -> None:
    root = popped_store(tmp_path / "s", 3)
    options: dict[str, Any] = {"fifo": True, "min_invisible_duration": 0}
    with (
        SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=20, **options) as one,
        SimpleConsumer(str(root), GROUP, {TOPIC: "*"}, await_duration=20, **options) as other,
        ThreadPoolExecutor(1) as threads,
    ):
        (first,) = one.receive(1, 60)
        waiting = threads.submit(other.receive, 1, 0.3)
        time.sleep(0.2)
        assert not waiting.done()
        begin = time.monotonic()
        one.ack(first)
        assert _offsets(waiting.result()) == [1]
        assert time.monotonic() - begin < 0.5  # milliseconds on an idle machine
        assert _offsets(one.receive(1, 60)) == [1]  # 0.3 s later: it was not acknowledged
        assert time.monotonic() - begin < 1.5


# ---- a share of a group that pops in order -----------------------------------------------------------------


NOW = 1_700_000_200_000
KEY = f"{TOPIC}@{GROUP}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return popped_store(tmp_path / "s", 20, queues=2)


def _open(root: Path, *, fifo: bool | None = True, now: int = NOW) -> PopGroup:
    options = ShareOptions(fifo=fifo, clock_ms=lambda: now)
    return PopGroup.open(MessageStore.open(str(root)), GROUP, TOPIC, options)


def _killed(share: PopGroup) -> None:
    """The system drops the locks of a process that is killed."""
    share._keeper.close()
    share._lease.end()


def _pop(share: PopGroup, queue_id: int, count: int = 3) -> OrderInfo:
    def change(state: PopState) -> OrderInfo:
        start = state.queues[0, queue_id].next_offset
        return state.order.hand_out(
            queue_id, range(start, start + count), pop_time=share.options.clock_ms(), invisible_ms=30_000
        )

    return share.run(change)


def _ack(share: PopGroup, queue_id: int, offset: int, info: OrderInfo) -> bool:
    return share.run(lambda state: state.order.acknowledge(queue_id, offset, info.pop_time))


def _batches(share: PopGroup) -> dict[int, OrderInfo]:
    return share.run(lambda state: dict(state.order.batches))


def _stored(root: Path) -> dict[int, OrderInfo]:
    return (read_order_infos(Opened(str(root))) or {}).get(KEY, {})


def _write(root: Path, infos: dict[int, OrderInfo]) -> None:
    """As a broker that ran in between."""

    def merge(data: bytes | None, file: str) -> bytes | None:
        return order_info.merge_order_infos(data, KEY, infos, file)

    rewrite_config(str(root / "config" / "consumerOrderInfo.json"), merge, FileWrites(sync=False))


def test_the_files_have_the_batches_and_the_first_offset_not_acknowledged(root: Path) -> None:
    share = _open(root)
    batch = _pop(share, 0)
    _ack(share, 0, 1, batch)
    _ack(share, 0, 0, batch)
    share.keep()
    assert _stored(root) == _batches(share) != {}
    assert read_group_offsets(Opened(str(root)), GROUP) == {(TOPIC, 0): 2, (TOPIC, 1): 0}
    before = (root / "config" / "consumerOrderInfo.json").stat()
    share.keep()  # nothing has changed
    assert (root / "config" / "consumerOrderInfo.json").stat() == before
    _ack(share, 0, 2, batch)
    share.close()
    assert _stored(root)[0].commit_offset_bit == 7
    assert read_group_offsets(Opened(str(root)), GROUP)[TOPIC, 0] == 3


def test_a_closed_share_goes_on_from_the_files(root: Path) -> None:
    share = _open(root)
    batch = _pop(share, 1)
    _ack(share, 1, 1, batch)
    share.close()
    again = _open(root)
    assert again.run(lambda state: state.order.is_blocked(1, NOW + 29_999, 30_000))
    assert _batches(again)[1].commit_offset_bit == 2
    assert _ack(again, 1, 0, batch)  # the handle is still good
    assert again.run(lambda state: state.queues[0, 1].next_offset) == 2
    again.close()


@pytest.mark.parametrize("is_written", [True, False])
def test_after_a_kill_the_log_counts(root: Path, is_written: bool) -> None:
    """Whether the files had the last changes or not."""
    share = _open(root)
    first = _pop(share, 0)
    share.keep()
    _ack(share, 0, 0, first)
    _pop(share, 1)
    if is_written:
        share.keep()
    expected = _batches(share)
    _killed(share)
    again = _open(root)
    assert _batches(again) == expected == _stored(root)
    again.close()


def test_a_kill_before_the_file_is_written_takes_over_nothing(root: Path) -> None:
    """The log notes a batch, the file never gets it, twice."""
    share = _open(root)
    first = _pop(share, 0)
    share.keep()
    _ack(share, 0, 0, first)
    for _ in range(2):
        share.run(lambda state: state.order.note_mirrored([0], _stored(root), state.order.batches))
        _killed(share)
        share = _open(root)
        assert _batches(share)[0].commit_offset_bit & 1
        _ack(share, 0, 1, first)
    share.close()


def test_what_a_broker_has_written_since_counts(root: Path) -> None:
    share = _open(root)
    _pop(share, 0)
    ours = _pop(share, 1)
    share.keep()
    _killed(share)
    theirs = OrderInfo((0, 1, 2, 3), NOW + 60_000, 10_000, NOW + 60_000, 1, "x", {0: 1, 1: 1, 2: 1}, None)
    _write(root, _stored(root) | {0: theirs})
    write_group_offsets(Opened(str(root)), GROUP, {(TOPIC, 0): 1}, timestamp=NOW)
    again = _open(root, now=NOW + 61_000)
    assert _batches(again) == {0: theirs, 1: ours}
    assert again.run(lambda state: state.queues[0, 0].next_offset) == 1
    again.close()


def test_a_batch_that_a_broker_has_dropped_blocks_nothing(root: Path) -> None:
    share = _open(root)
    _pop(share, 0)
    share.keep()
    _killed(share)
    _write(root, {})
    again = _open(root)
    assert _batches(again) == {}
    again.close()


def test_a_moved_group_is_not_blocked(root: Path) -> None:
    """A reset clears the batch (clearBlock), in the file too."""
    share = _open(root)
    _pop(share, 0)
    share.keep()
    write_group_offsets(Opened(str(root)), GROUP, {(TOPIC, 0): 7}, timestamp=NOW)
    share.keep()
    assert _batches(share) == _stored(root) == {}
    assert share.run(lambda state: state.queues[0, 0].next_offset) == 7
    share.close()


def test_a_day_later_the_batch_is_forgotten(root: Path) -> None:
    share = _open(root)
    _pop(share, 0)
    share.close()
    share = _open(root, now=NOW + order_info.FORGET_MS + 1)
    assert _batches(share) == _stored(root) == {}
    share.close()


@pytest.mark.parametrize("is_old", [True, False])
def test_a_broker_that_has_pop_knows_the_group(root: Path, is_old: bool) -> None:
    """A broker drops the batches of groups that subscriptionGroup.json lacks (autoClean)."""
    topics = root / "config" / "topics.json"
    if is_old:
        topics.write_text(topics.read_text().replace('"stateVersion":0,', ""))
    share = _open(root)
    _pop(share, 0)
    share.close()
    assert _stored(root)
    assert (GROUP in (read_subscription_groups(Opened(str(root))) or {})) is not is_old


@pytest.mark.parametrize("fifo", [True, False])
def test_one_group_pops_in_one_way(root: Path, fifo: bool) -> None:
    share = _open(root, fifo=fifo)
    with pytest.raises(
        OptionError, match=r"fifo: consumers of group billing pop topic Orders .*; give all of them"
    ):
        _open(root, fifo=not fifo)
    share.close()


@pytest.mark.parametrize("fifo", [True, False])
def test_what_is_in_flight_comes_again_in_the_other_way(root: Path, fifo: bool) -> None:
    """After a kill; nothing is lost."""

    def hand_out(state: PopState) -> Callable[[], object]:
        point = state.hand_out(0, 0, [0, 1, 2], 3, NOW, 30_000)
        return lambda: state.ack(point.key, [0])

    share = _open(root, fifo=fifo)
    if fifo:
        _ack(share, 0, 0, _pop(share, 0))
    else:
        share.run(lambda state: hand_out(state)())
    _killed(share)
    other = _open(root, fifo=not fifo)
    assert other.is_ordered is not fifo
    assert other.run(lambda state: (state.queues[0, 0].lowest, state.queues[0, 0].next_offset)) == (1, 1)
    assert not other.run(lambda state: state.order.is_blocked(0, NOW, 30_000))
    other.close()


# ---- order among processes that are killed -----------------------------------------------------------------


QUEUES, PROCESSES = 3, 4
INVISIBLE = 0.25


def _acknowledged_to(root: str) -> dict[int, int]:
    """The first offset of each queue that is not acknowledged."""
    state = read_in_flight(in_flight_directory(Opened(root), GROUP, TOPIC))
    if state is not None and not state.is_closed and len(state.queues) >= QUEUES:
        return {queue: state.queues[0, queue].next_offset for queue in range(QUEUES)}
    return {queue: offset for (_, queue), offset in read_group_offsets(Opened(root), GROUP).items()}


def _consume(root: str, record: str, seed: int, last: int) -> None:
    """Consumes until every queue is at `last`, and notes what it got and what it is about to acknowledge.

    Each note is one write to the end of the file, so the file has them in the order in which they were made.
    """
    chance = random.Random(seed)
    file = os.open(record, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with SimpleConsumer(
        root, GROUP, {TOPIC: "*"}, await_duration=0.05, fifo=True, min_invisible_duration=0, random=chance
    ) as consumer:
        while any(offset < last for offset in _acknowledged_to(root).values()):
            messages = consumer.receive(chance.randint(1, 8), INVISIBLE)
            for each in messages:
                pop_time = each.handle.pop_time
                os.write(
                    file, f"got {each.queue_id} {each.offset} {pop_time} {each.delivery_attempt}\n".encode()
                )
            chance.shuffle(messages)
            for each in messages:
                if chance.random() < 0.03:
                    break  # forgets the rest
                os.write(file, f"ack {each.queue_id} {each.offset} {each.handle.pop_time}\n".encode())
                consumer.ack(each)


@pytest.mark.process
def test_killed_processes_keep_the_order(tmp_path: Path, whole: bool) -> None:
    messages = 3000 if whole else 240
    root, record = str(popped_store(tmp_path / "s", messages, queues=QUEUES)), str(tmp_path / "record")
    chance, context = random.Random(7), multiprocessing.get_context("fork")
    seeds = iter(range(10_000))

    def start() -> multiprocessing.process.BaseProcess:
        process = context.Process(
            target=_consume, args=(root, record, next(seeds), messages // QUEUES), daemon=True
        )
        process.start()
        return process

    def notes() -> list[str]:
        return Path(record).read_text().splitlines() if os.path.exists(record) else []

    # Each message gives two notes or more: kills that wait for notes are spread over the run on any machine.
    running, kills, killed = [start() for _ in range(PROCESSES)], 200 if whole else 10, 0
    end = time.monotonic() + (600 if whole else 60)
    while any(each.is_alive() for each in running):
        assert time.monotonic() < end, "the queues are not consumed"
        time.sleep(chance.uniform(0, 0.03))
        victim = chance.randrange(PROCESSES)
        process_id = running[victim].pid
        due = killed < kills and len(notes()) > killed * 2 * messages // (kills + 1)
        if due and running[victim].is_alive() and process_id:
            os.kill(process_id, signal.SIGKILL)
            running[victim].join()
            running[victim] = start()
            killed += 1
    for process in running:
        process.join()
    assert _acknowledged_to(root) == dict.fromkeys(range(QUEUES), messages // QUEUES)
    _check(notes(), messages // QUEUES)
    assert killed > kills // 2
    print(killed, "killed")


def _check(notes: list[str], last: int) -> None:
    """Each batch begins behind acknowledged messages, and not while another batch is in flight."""
    acknowledged: dict[int, set[int]] = defaultdict(set)  # an acknowledgement was at least begun
    of_batch: dict[tuple[int, int], set[int]] = defaultdict(set)
    batches: dict[tuple[int, int], list[int]] = defaultdict(list)
    latest: dict[int, int] = {}
    for note in notes:
        what, *numbers = note.split()
        queue, offset, pop_time = map(int, numbers[:3])
        if what == "ack":
            acknowledged[queue].add(offset)
            of_batch[queue, pop_time].add(offset)
            continue
        before = latest.get(queue)
        if before is not None and pop_time > before:
            left = set(batches[queue, before]) - of_batch[queue, before]
            assert not left or pop_time >= before + INVISIBLE * 1000, (note, left)
        if before is None or pop_time > before:
            assert set(range(offset)) <= acknowledged[queue], note
            latest[queue] = pop_time
        else:
            assert not batches[queue, pop_time] or offset == batches[queue, pop_time][-1] + 1, note
        batches[queue, pop_time].append(offset)
    assert {queue: len(done) for queue, done in acknowledged.items()} == dict.fromkeys(range(QUEUES), last)
    assert any(each.endswith(" 2") for each in notes if each.startswith("got"))  # there were redeliveries

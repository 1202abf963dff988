"""Order among processes that are killed: no message overtakes another, and all are acknowledged."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import defaultdict
from pathlib import Path

import pytest

from rmq_spark.pop import SimpleConsumer
from store_format.metadata.group_offsets import read_group_offsets
from store_format.opened.store import Opened
from store_format.pop.log import in_flight_directory, read_in_flight
from tests.support.popped import GROUP, TOPIC, popped_store

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

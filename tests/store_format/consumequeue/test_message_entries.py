"""Which queue entries a message has: a writer's repair and a reader without consume queues answer alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.commitlog.log import CommitLog
from store_format.files.read import FileCache
from store_format.survey.scan import LogQueues
from tests.support import oracle
from tests.support.entries import made_entries
from tests.support.oracle import Message
from tests.support.store_files import write_log

Queue = tuple[str, int]
Spans = dict[Queue, tuple[int, int]]  # the first queue offset and the one behind the last

INNER_BATCH = 0xC0


def _log(directory: Path, *messages: Message) -> CommitLog:
    write_log(directory, messages)
    return CommitLog.open([str(directory / "commitlog")], FileCache())


def _repaired(log: CommitLog, batch_topics: set[str]) -> Spans:
    stop = log.files[-1].stop
    found = made_entries(log, log.min_offset, stop, {}, batch_topics=batch_topics)
    return {queue: (int(each.queue_offsets[0]), each.max_offset) for queue, each in found.items()}


def _surveyed(log: CommitLog) -> Spans:
    found = LogQueues.of(log, lambda topic: True).queues
    return {key: (queue.min_offset, queue.max_offset) for key, queue in found.items()}


_A = ("%LMQ%a", 0)


def _light(names: str, offsets: str) -> dict[str, str]:
    return {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}


def _inner(base: str | None, count: str | None) -> dict[str, str]:
    return {name: value for name, value in (("INNER_BASE", base), ("INNER_NUM", count)) if value}


@pytest.mark.parametrize(
    ("topic", "properties", "expected"),
    [
        ("T", {}, {("T", 2): (3, 4)}),
        ("T", _light("%LMQ%a,%LMQ%b", "5,6"), {("T", 2): (3, 4), _A: (5, 6), ("%LMQ%b", 0): (6, 7)}),
        # a broker dispatches no message of these topics to light queues, and a retry keeps the properties
        ("%RETRY%group", _light("%LMQ%a", "5"), {("%RETRY%group", 2): (3, 4)}),
        ("rmq_sys_wheel_timer", _light("%LMQ%a", "5"), {("rmq_sys_wheel_timer", 2): (3, 4)}),
        ("SCHEDULE_TOPIC_XXXX", _light("%LMQ%a", "5"), {("SCHEDULE_TOPIC_XXXX", 2): (3, 4)}),
        # no 5.x broker gives a name without %LMQ% an offset: a producer wrote it
        ("T", _light("%LMQ%a,Victim", "5,0"), {("T", 2): (3, 4), _A: (5, 6)}),
        ("T", _light("%LMQ%a", str(2**63 - 1)), {("T", 2): (3, 4)}),
        ("Batch", _inner("3", "4"), {("Batch", 2): (3, 7)}),
        ("Batch", _inner("8", "4"), {("Batch", 2): (8, 12)}),
        # both properties are needed (CommitLog.checkMessageAndReturnSize)
        ("Batch", _inner(None, "4"), {("Batch", 2): (3, 4)}),
        ("Batch", _inner("x", "4"), {("Batch", 2): (3, 4)}),
        ("Batch", _inner("3", "32768"), {("Batch", 2): (3, 4)}),
        ("Batch", {}, {("Batch", 2): (3, 4)}),
    ],
)  # fmt: skip
def test_a_repair_and_a_survey_find_the_same_entries(
    tmp_path: Path, topic: str, properties: dict[str, str], expected: Spans
) -> None:
    flag = INNER_BATCH if topic == "Batch" and properties else 0
    raw = oracle.encode_properties(properties)
    log = _log(tmp_path, Message(topic.encode(), b"body", raw, queue_id=2, queue_offset=3, sys_flag=flag))
    assert (_repaired(log, {"Batch"}), _surveyed(log)) == (expected, expected)

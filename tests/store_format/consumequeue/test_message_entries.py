"""Which queue entries a message has: a writer's repair and a reader without consume queues answer alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store_format.commitlog.log import CommitLog
from store_format.files.view import FileCache
from store_format.metadata.read import read_topics
from store_format.read.log_reader import survey
from store_format.survey.newest_entries import missing_entries
from tests.support import oracle
from tests.support.oracle import Message

Queue = tuple[str, int]
Spans = dict[Queue, tuple[int, int]]  # the first queue offset and the one behind the last

INNER_BATCH = 0xC0


def _log(directory: Path, *messages: Message) -> CommitLog:
    root = directory / "commitlog"
    root.mkdir()
    data = b""
    for message in messages:
        data += oracle.encode_message(replace(message, physical_offset=len(data)))
    (root / oracle.file_name(0)).write_bytes(data.ljust(1 << 16, b"\0"))
    return CommitLog.open([str(root)], FileCache())


def _repaired(log: CommitLog, batch_topics: set[str]) -> Spans:
    stop = log.files[-1].stop
    found = missing_entries(log, log.min_offset, stop, {}, batch_topics=batch_topics)
    return {queue: (int(each.queue_offsets[0]), each.max_offset) for queue, each in found.items()}


def _surveyed(log: CommitLog) -> Spans:
    found = survey(log, lambda topic: True).queues
    return {key: (queue.min_offset, queue.max_offset) for key, queue in found.items()}


@pytest.mark.parametrize(
    ("topic", "queue_id", "sys_flag", "properties", "expected"),
    [
        (b"T", 2, 0, {}, {("T", 2): (3, 4)}),
        (
            b"T",
            2,
            0,
            {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "INNER_MULTI_QUEUE_OFFSET": "5,6"},
            {("T", 2): (3, 4), ("%LMQ%a", 0): (5, 6), ("%LMQ%b", 0): (6, 7)},
        ),
        # a broker dispatches no message of these topics to light queues, and a retry keeps the properties
        *(
            (
                topic,
                0,
                0,
                {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "5"},
                {(topic.decode(), 0): (3, 4)},
            )
            for topic in (b"%RETRY%group", b"rmq_sys_wheel_timer", b"SCHEDULE_TOPIC_XXXX")
        ),
        # no 5.x broker gives a name without %LMQ% an offset: a producer wrote it
        (
            b"T",
            2,
            0,
            {"INNER_MULTI_DISPATCH": "%LMQ%a,Victim", "INNER_MULTI_QUEUE_OFFSET": "5,0"},
            {("T", 2): (3, 4), ("%LMQ%a", 0): (5, 6)},
        ),
        (
            b"T",
            2,
            0,
            {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": str(2**63 - 1)},
            {("T", 2): (3, 4)},
        ),
        (b"Batch", 0, INNER_BATCH, {"INNER_BASE": "3", "INNER_NUM": "4"}, {("Batch", 0): (3, 7)}),
        # both properties are needed (CommitLog.checkMessageAndReturnSize)
        (b"Batch", 0, INNER_BATCH, {"INNER_NUM": "4"}, {("Batch", 0): (3, 4)}),
        (b"Batch", 0, INNER_BATCH, {"INNER_BASE": "x", "INNER_NUM": "4"}, {("Batch", 0): (3, 4)}),
        (b"Batch", 0, INNER_BATCH, {"INNER_BASE": "3", "INNER_NUM": "32768"}, {("Batch", 0): (3, 4)}),
        (b"Batch", 0, INNER_BATCH, {"INNER_BASE": "8", "INNER_NUM": "4"}, {("Batch", 0): (8, 12)}),
        (b"Batch", 0, 0, {}, {("Batch", 0): (3, 4)}),
    ],
)
def test_a_repair_and_a_survey_find_the_same_entries(
    tmp_path: Path, topic: bytes, queue_id: int, sys_flag: int, properties: dict[str, str], expected: Spans
) -> None:
    message = Message(
        topic,
        b"body",
        oracle.encode_properties(properties),
        queue_id=queue_id,
        queue_offset=3,
        sys_flag=sys_flag,
    )
    log = _log(tmp_path, message)
    assert (_repaired(log, {"Batch"}), _surveyed(log)) == (expected, expected)


@pytest.mark.golden
@pytest.mark.parametrize("name", ["batchcq-5.5.0", "edge-5.5.0", "delay-tx-5.5.0", "basic-4.9.7"])
def test_both_find_the_entries_of_a_broker(golden: Callable[[str], Path], name: str) -> None:
    root = golden(name)
    log = CommitLog.open([str(root / "commitlog")], FileCache())
    topics = dict(read_topics(str(root)) or {})
    repaired = _repaired(log, {topic for topic, config in topics.items() if config.queue_type == "BatchCQ"})
    assert repaired == _surveyed(log)

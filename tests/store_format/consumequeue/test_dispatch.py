"""Consume queue entries made from units: which queue, which offset, which tags code, by the broker's rules
case by case.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from store_format.commitlog.log import CommitLog
from store_format.files.read import FileCache
from store_format.names import DELAY_LEVELS_MS
from store_format.survey.scan import LogScan
from tests.support import oracle, strategies
from tests.support.entries import made_entries
from tests.support.oracle import Message
from tests.support.store_files import write_log
from tests.support.strategies import StoredLog

Queue = tuple[str, int]


def _message(number: int, **fields: Any) -> Message:
    return replace(
        Message(
            b"TopicTest", b"body", queue_offset=number, store_timestamp=1_700_000_000_000 + 1000 * number
        ),
        **fields,
    )


def _open(root: Path) -> CommitLog:
    return CommitLog.open([str(root / "commitlog")], FileCache())


def _one_file(directory: Path, *messages: Message) -> CommitLog:
    """The messages, one behind the other."""
    write_log(directory, messages)
    return _open(directory)


def _entries(
    log: CommitLog, max_offsets: dict[Queue, int] | None = None, **options: Any
) -> dict[Queue, list[tuple[int, int, int]]]:
    """(queue offset, physical offset, tags code) of each entry."""
    found = made_entries(log, 0, 1 << 16, max_offsets or {}, **options)
    return {
        queue: [
            (offset, *place)
            for offset, place in zip(
                entries.queue_offsets.tolist(),
                entries.units[["physical_offset", "tags_code"]].tolist(),
                strict=True,
            )
        ]
        for queue, entries in found.items()
    }


def _properties(**pairs: str) -> bytes:
    return oracle.encode_properties(pairs)


def test_only_committed_messages_have_entries(tmp_path: Path) -> None:
    log = _one_file(tmp_path, *(_message(i, sys_flag=flag) for i, flag in enumerate([0x0, 0x4, 0x8, 0xC])))
    assert [offset for offset, _, _ in _entries(log)["TopicTest", 0]] == [0, 2]


def test_what_a_queue_has_is_not_missing(tmp_path: Path) -> None:
    log = _one_file(tmp_path, *(_message(i) for i in range(5)), _message(0, queue_id=-3), _message(-7))
    assert _entries(log, {("TopicTest", 0): 3}) == {
        ("TopicTest", 0): [(3, 312, 0), (4, 416, 0)],
        ("TopicTest", -3): [(0, 520, 0)],
    }


def test_remains_of_a_topic_made_again_are_held_back(tmp_path: Path) -> None:
    """Ten old messages, then the topic was deleted and made again: two new ones, of which the queue has the
    first.
    """
    log = _one_file(tmp_path, *(_message(i) for i in range(10)), _message(0), _message(1))
    queue = ("TopicTest", 0)
    assert _entries(log, {queue: 1}, last_physical_offsets={queue: 1040})[queue] == [(1, 1144, 0)]
    assert _entries(log)[queue] == [(0, 1040, 0), (1, 1144, 0)]


def test_the_first_of_two_messages_with_one_offset_counts(tmp_path: Path) -> None:
    """As ConsumeQueue.putMessagePositionInfo files them: A0 A1 B1 B2 C2 C3 become A0 A1 B2 C3."""
    log = _one_file(tmp_path, *(_message(i) for i in (0, 1, 1, 2, 2, 3)))
    assert _entries(log)["TopicTest", 0] == [(0, 0, 0), (1, 104, 0), (2, 312, 0), (3, 520, 0)]


def test_floors_are_asked_for_in_the_thread_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may read files, whose cache is for one thread. A large log is scanned by threads otherwise."""
    monkeypatch.setattr("store_format.survey.scan.PART_SIZE", 200)
    asked = set[threading.Thread]()

    def floor(key: Queue) -> tuple[int, int]:
        asked.add(threading.current_thread())
        return 2, -1

    log = _one_file(tmp_path, *(_message(i, queue_id=i % 2) for i in range(8)))
    found, _ = LogScan(index=False, floor=floor).entries_between(log, [(0, 1 << 16)])
    assert {queue: entries.queue_offsets.tolist() for queue, entries in found.items()} == {
        ("TopicTest", 0): [2, 4, 6],
        ("TopicTest", 1): [3, 5, 7],
    }
    assert asked == {threading.current_thread()}


DELAYED = {"topic_bytes": b"SCHEDULE_TOPIC_XXXX", "store_timestamp": 1000}


@pytest.mark.parametrize(
    ("properties", "more", "expected"),
    [
        ({"TAGS": "TagA"}, {}, 2598919),
        ({"TAGS": "TagA", "DELAY": "3"}, {}, 1000 + 10_000),
        ({"DELAY": "99"}, {}, 1000 + 7_200_000),  # the highest level there is
        ({"DELAY": "+1"}, {}, 2000),
        ({"DELAY": "0" * 25 + "1"}, {}, 2000),  # Java reads any number of leading zeros
        ({"TAGS": "TagA", "DELAY": "0"}, {}, 2598919),
        ({"TAGS": "TagA", "DELAY": "-1"}, {}, 2598919),
        # no broker stores this; it is no reason to lose the message
        ({"TAGS": "TagA", "DELAY": "x"}, {}, 2598919),
        ({"TAGS": "TagA", "DELAY": "9" * 30}, {}, 2598919),
        ({"TAGS": "TagA", "DELAY": "3"}, {"topic_bytes": b"TopicTest"}, 2598919),  # means nothing there
        ({"DELAY": "1"}, {"store_timestamp": 2**63 - 1}, -(2**63) + 999),  # wraps as Java's
    ],
)
def test_delayed_messages_carry_their_delivery_time(
    tmp_path: Path, properties: dict[str, str], more: dict[str, Any], expected: int
) -> None:
    message = _message(0, properties_bytes=_properties(**properties), **(DELAYED | more))
    assert _entries(_one_file(tmp_path, message)) == {(message.topic, 0): [(0, 0, expected)]}


def test_the_delay_levels_are_the_brokers() -> None:
    levels = oracle.delay_levels()
    assert [levels[i] for i in sorted(levels)] == list(DELAY_LEVELS_MS)


@pytest.mark.parametrize(
    ("names", "offsets", "expected"),
    [
        ("%LMQ%a,%LMQ%b", "4,7", {("%LMQ%a", 0): 4, ("%LMQ%b", 0): 7}),
        ("%LMQ%a,other", "4,7", {("%LMQ%a", 0): 4}),  # a 5.x broker gives `other` no offset
        ("%LMQ%a,other", "4,", {}),  # a null offset: the lists differ in length, and the broker skips both
        ("%LMQ%a/../b,%LMQ%b", "4,7", {("%LMQ%b", 0): 7}),
        ("%LMQ%a,%LMQ%b", "x,7", {("%LMQ%b", 0): 7}),
        ("%LMQ%a", "-1", {}),
        (" ", "4", {}),
        (",", ",", {}),
        ("%LMQ%a", None, {}),
    ],
)
def test_light_queues_are_named_by_the_message(
    tmp_path: Path, names: str, offsets: str | None, expected: dict[Queue, int]
) -> None:
    pairs = {"TAGS": "TagA", "INNER_MULTI_DISPATCH": names} | (
        {"INNER_MULTI_QUEUE_OFFSET": offsets} if offsets else {}
    )
    log = _one_file(tmp_path, _message(0, queue_id=2, properties_bytes=_properties(**pairs)))
    found = _entries(log, {("TopicTest", 2): 1})
    assert found == {queue: [(offset, 0, 2598919)] for queue, offset in expected.items()}


def test_a_light_queue_that_has_the_message_needs_no_entry(tmp_path: Path) -> None:
    properties = _properties(INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b", INNER_MULTI_QUEUE_OFFSET="4,7")
    log = _one_file(tmp_path, _message(0, properties_bytes=properties))
    assert set(_entries(log, {("TopicTest", 0): 1, ("%LMQ%a", 0): 5, ("%LMQ%b", 0): 7})) == {("%LMQ%b", 0)}


@pytest.mark.parametrize(
    ("properties", "base", "size"),
    [
        ({"INNER_BASE": "8", "INNER_NUM": "5"}, 8, 5),
        ({"INNER_BASE": "8"}, 3, 1),
        ({"INNER_NUM": "5"}, 3, 1),
        ({"INNER_BASE": "x", "INNER_NUM": "5"}, 3, 1),
        ({"INNER_BASE": "8", "INNER_NUM": "0"}, 3, 1),
        ({"INNER_BASE": "8", "INNER_NUM": "40000"}, 3, 1),
        ({}, 3, 1),
    ],
)
def test_a_batch_queue_has_one_entry_for_a_batch(
    tmp_path: Path, properties: dict[str, str], base: int, size: int
) -> None:
    log = _one_file(tmp_path, _message(3, properties_bytes=_properties(**properties)))
    (entries,) = made_entries(log, 0, 1 << 16, {}, batch_topics={"TopicTest"}).values()
    unit_size = 91 + 4 + 9 + len(_properties(**properties))
    assert entries.units.tobytes() == oracle.batch_cq_unit(0, unit_size, 0, 1_700_000_003_000, base, size)
    assert (entries.queue_offsets.tolist(), entries.max_offset) == ([base], base + size)


def test_a_unit_longer_than_a_window_gets_its_entry(tmp_path: Path) -> None:
    message = Message(b"T", bytes(2 << 20), _properties(TAGS="TagA"), queue_offset=6)
    write_log(tmp_path, [message], 3 << 20)
    (entries,) = made_entries(_open(tmp_path), 0, 3 << 20, {}).values()
    assert entries.units.tobytes() == oracle.cq_unit(0, message.total_size, 2598919)


@pytest.mark.process
@settings(max_examples=80)
@given(stored=strategies.commit_logs())
def test_entries_of_any_log_are_those_of_the_oracle(
    tmp_path_factory: pytest.TempPathFactory, stored: StoredLog
) -> None:
    root = tmp_path_factory.mktemp("any")
    stored.write(root)
    log = _open(root)
    found = made_entries(log, log.min_offset, stored.stop, {})
    expected = {
        queue: [
            (m.queue_offset, oracle.cq_unit(m.physical_offset, m.total_size, oracle.tags_code(m)))
            for m in messages
        ]
        for queue, messages in stored.queues.items()
    }
    made = {
        queue: list(
            zip(entries.queue_offsets.tolist(), [unit.tobytes() for unit in entries.units], strict=True)
        )
        for queue, entries in found.items()
        if not queue[0].startswith("%LMQ%") or queue in expected
    }
    assert made == expected
    shutil.rmtree(root)

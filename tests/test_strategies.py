"""What the strategies draw is what they promise: the oracle reads it back, and each feature they name does
turn up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.vendor.pretty import pretty

from tests.support import oracle
from tests.support.oracle import Message, OracleError
from tests.support.strategies import StoredLog, commit_logs, inner_batches, messages, torn

# The first example that fits will do: looking for the smallest takes minutes.
QUICKLY = settings(
    max_examples=500,
    phases=[Phase.generate],
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@given(messages(), st.binary(max_size=9))
def test_messages_go_both_ways(message: Message, before: bytes) -> None:
    unit = oracle.encode_message(message)
    decoded = oracle.decode_message(before + unit, len(before), message.physical_offset - len(before))
    assert decoded == message
    assert oracle.encode_message(decoded) == unit
    assert len(unit) == message.total_size
    assert len(decoded.decompressed) <= max(len(message.body), 800)


@given(messages(crc_property=True))
def test_the_crc_property_is_right_when_asked_for(message: Message) -> None:
    assert oracle.verify_crc_property(oracle.encode_message(message))
    assert oracle.with_crc_property(message) == message


@given(inner_batches())
def test_inner_batches_split(message: Message) -> None:
    parts = oracle.split_inner_batch(
        oracle.decode_message(oracle.encode_message(message), 0, message.physical_offset).body
    )
    assert len(parts) == int(message.properties["INNER_NUM"])
    assert oracle.encode_inner_batch(parts) == message.body


FEATURES: dict[str, Callable[[Message], bool]] = {
    "v4-v4": lambda m: m.sys_flag & 0x30 == 0,
    "v6-v4": lambda m: m.sys_flag & 0x30 == 0x10,
    "v4-v6": lambda m: m.sys_flag & 0x30 == 0x20,
    "v6-v6": lambda m: m.sys_flag & 0x30 == 0x30,
    "V1 at its longest": lambda m: len(m.topic_bytes) == 127,
    "V2 at its shortest": lambda m: len(m.topic_bytes) == 128 and m.magic == 0xDAA320AB,
    "empty body": lambda m: not m.body,
    "old zlib": lambda m: m.sys_flag & 0x701 == 0x001 and m.decompressed != m.body,
    "lz4": lambda m: m.sys_flag & 0x701 == 0x101 and m.decompressed != m.body,
    "zstd": lambda m: m.sys_flag & 0x701 == 0x201 and m.decompressed != m.body,
    "zlib": lambda m: m.sys_flag & 0x701 == 0x301 and m.decompressed != m.body,
    "no properties": lambda m: not m.properties_bytes,
    "a name twice": lambda m: (
        max(Counter(s.split(b"\x01")[0] for s in m.properties_bytes.split(b"\x02")).values()) > 1
    ),
    "0x01 in a value": lambda m: any("\x01" in value for value in m.properties.values()),
    "open at the end": lambda m: bool(m.properties) and not m.properties_bytes.endswith(b"\x02"),
    "no UTF-8": lambda m: any("\ufffd" in value for value in m.properties.values()),
    "not ASCII": lambda m: any(value > "\uffff" for value in m.properties.values()),
    "a segment Java drops": lambda m: m.properties_bytes.count(b"\x02") > len(m.properties),
    "CRC property": lambda m: (
        m.properties_bytes.endswith(b"\x02") and b"__CRC32#\x01" in m.properties_bytes[-20:]
    ),
    "half message": lambda m: m.sys_flag & 0xC == 0x4,
    "negative born time": lambda m: m.born_timestamp < 0,
}


@pytest.mark.process
@pytest.mark.parametrize("feature", FEATURES)
def test_messages_draw(feature: str) -> None:
    message = find(messages(), FEATURES[feature], settings=QUICKLY, random=Random(0))
    assert FEATURES[feature](message)


@given(commit_logs())
def test_commit_logs_walk(log: StoredLog) -> None:
    walk = oracle.walk_files(log.files, log.file_size)
    assert (tuple(walk.messages), walk.stop) == (log.messages, log.stop)
    assert {len(data) for data in log.files.values()} == {log.file_size}
    starts = sorted(log.files)
    assert starts == list(range(starts[0], starts[0] + len(starts) * log.file_size, log.file_size))
    # Everything before the stop is a unit, or the rest of a file behind a blank record.
    used = sum(message.total_size for message in log.messages)
    padding = 0
    for start in starts[:-1]:
        units = [
            message.total_size
            for message in log.messages
            if start <= message.physical_offset < start + log.file_size
        ]
        padding += log.file_size - sum(units)
    assert starts[0] + used + padding == log.stop


@given(commit_logs())
def test_commit_logs_have_their_queues(log: StoredLog) -> None:
    queued = [message for message in log.messages if message.sys_flag & 0xC in (0, 8)]
    assert sorted(message.physical_offset for message in queued) == sorted(
        message.physical_offset for entries in log.queues.values() for message in entries
    )
    for (topic, queue_id), entries in log.queues.items():
        files = log.consume_queue(topic, queue_id)
        for message in entries:
            start = message.queue_offset * 20 // log.cq_file_size * log.cq_file_size
            unit = files[start][message.queue_offset * 20 - start :][:20]
            assert unit == oracle.cq_unit(
                message.physical_offset, message.total_size, oracle.tags_code(message)
            )
            file_start = message.physical_offset // log.file_size * log.file_size
            assert (
                oracle.decode_message(log.files[file_start], message.physical_offset - file_start, file_start)
                == message
            )


@pytest.mark.process
def test_a_log_with_several_files_and_a_late_queue_turns_up() -> None:
    wanted = find(
        commit_logs(),
        lambda log: len(log.files) > 1 and any(entries[0].queue_offset for entries in log.queues.values()),
        settings=QUICKLY,
        random=Random(0),
    )
    assert len(wanted.files) > 1
    assert len(pretty(wanted)) < 3000  # hypothesis warns, that is fails, from 30,000 on


def test_write_leaves_what_was_drawn(tmp_path: Path) -> None:
    log = find(commit_logs(), lambda log: bool(log.queues), settings=QUICKLY, random=Random(0))
    log.write(tmp_path)
    read = {int(path.name): path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    assert read == log.files
    for topic, queue_id in log.queues:
        directory = tmp_path / "consumequeue" / topic / str(queue_id)
        assert {int(path.name): path.read_bytes() for path in directory.iterdir()} == log.consume_queue(
            topic, queue_id
        )
    assert (tmp_path / "checkpoint").stat().st_size == 4096


@given(st.data())
def test_damage_is_noticed_or_lies_where_nothing_protects(data: st.DataObject) -> None:
    message = data.draw(messages())
    unit = oracle.encode_message(message)
    damage = data.draw(torn(unit))
    try:
        decoded = oracle.decode_message(damage.data, 0, message.physical_offset)
    except OracleError:
        assert damage.data != unit
        return
    assert (decoded.total_size, decoded.physical_offset) == (message.total_size, message.physical_offset)
    assert oracle.stored_crc(decoded.body) == decoded.body_crc or not decoded.body

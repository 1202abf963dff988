"""A place of a queue that a broker counted although no message has it, and the blank file it comes from.

A power loss leaves the newest consume queue file blank. Real 5.5.0 and 4.9.7 that start on it count its first
unit (ConsumeQueue.truncateDirtyLogicFiles): the next message gets the queue offset behind it. No message is
lost.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.diagnose.problems import Diagnosis
from tests.support import oracle
from tests.support.oracle import Message

_LOG_FILE, _FILE_UNITS = 4096, 4


def _store(root: Path, offsets: list[int], *, blank: bool = False, torn: int = -1) -> Path:
    """A clean store with one queue; the message `torn` is damaged, and has no entry."""
    log, units = b"", dict[int, bytes]()
    for offset in offsets:
        message = Message(b"T", b"body %d" % offset, b"", 0, offset, len(log), store_timestamp=offset + 1)
        units[offset] = oracle.cq_unit(len(log), message.total_size, 0)
        data = oracle.encode_message(message)
        log += b"\xff" * len(data) if offset == torn else data
    units.pop(torn, None)
    for name in ("commitlog", "consumequeue/T/0", "config"):
        (root / name).mkdir(parents=True)
    (root / "commitlog" / oracle.file_name(0)).write_bytes(log.ljust(_LOG_FILE, b"\0"))
    size = _FILE_UNITS * 20
    entries = b"".join(units.get(offset, bytes(20)) for offset in range(max(offsets) + 1))
    for start in range(0, len(entries) + size * blank, size):
        path = root / "consumequeue/T/0" / oracle.file_name(start)
        path.write_bytes(entries[start : start + size].ljust(size, b"\0"))
    (root / "config/topics.json").write_text('{"topicConfigTable":{"T":{"readQueueNums":1}}}')
    (root / "checkpoint").write_bytes(oracle.checkpoint(0, 0))
    return root


def _found(root: Path) -> tuple[Diagnosis, list[tuple[str, str]]]:
    diagnosis = diagnose(str(root))
    return diagnosis, [(each.severity, each.advice[:21]) for each in diagnosis if "consumequeue" in each.file]


@pytest.mark.parametrize("behind", [1, 2, 3])
def test_a_hole_that_a_broker_counted_is_passed(
    tmp_path: Path, behind: int, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = [*range(8), *range(9, 9 + behind)]
    root = _store(tmp_path / "store", offsets)
    caplog.set_level(logging.WARNING)
    table = MessageStore.open(str(root)).queue("T", 0).to_table(columns=["queueOffset", "body"])
    assert table["queueOffset"].to_pylist() == offsets
    assert "T-0: 1 queue offsets, the first 8, have no entry and no message" in caplog.text
    diagnosis, problems = _found(root)
    assert problems == [("info", "No message is lost: a")]
    assert diagnosis.summary.readable == len(offsets)
    before = {path: path.read_bytes() for path in (root / "consumequeue").rglob("0*") if path.is_file()}
    recover(str(root), rebuild_index=False).apply()
    assert {path: path.read_bytes() for path in before} == before


def test_zeros_beside_damage_of_the_log_are_damage(tmp_path: Path) -> None:
    root = _store(tmp_path / "store", [*range(11)], torn=8)
    _, problems = _found(root)
    assert "damage" in {severity for severity, _ in problems}


def test_a_blank_last_file_is_named_before_a_broker_counts_it(tmp_path: Path) -> None:
    root = _store(tmp_path / "store", [*range(8)], blank=True)
    assert len(list((root / "consumequeue/T/0").iterdir())) == 3
    assert _found(root)[1] == [("warning", "Delete the blank file")]
    (root / "consumequeue/T/0" / oracle.file_name(160)).unlink()
    assert _found(root)[1] == []

"""The topics that a read knows: an unchanged topics.json is read once, and every change is seen at once."""

from __future__ import annotations

import json
import operator
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from store_format import MessageStore
from store_format.errors import CorruptStoreError, StorePermissionError
from store_format.files.paths import YOUNG_NS, is_settled
from store_format.files.read import files_at
from store_format.metadata.read import KnownTopic, known_topics
from store_format.opened.store import Opened
from store_format.read.store_root import OtherFiles
from tests.support.permissions import as_nobody, open_directory

_HOUR_NS = 3_600_000_000_000


def _text(**topics: Mapping[str, Any]) -> str:
    return json.dumps({"topicConfigTable": topics})


def _number(queues: int) -> str:
    return _text(T={"readQueueNums": queues, "writeQueueNums": queues})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "topics.json"


def _make_old(path: Path, *, by_ns: int = _HOUR_NS) -> None:
    time_ns = time.time_ns() - by_ns
    os.utime(path, ns=(time_ns, time_ns))


def _queues_of(path: Path) -> int | None:
    known = known_topics(Opened(str(path.parents[1])))
    return None if known is None else len(known["T"].queue_ids)


def test_what_is_known_of_a_topic(path: Path) -> None:
    path.write_text(
        _text(
            A={"readQueueNums": 2, "writeQueueNums": 5},
            B={"readQueueNums": 4, "writeQueueNums": 1, "perm": 2},
            C={"attributes": {"cleanup.policy": "COMPACTION"}},
        )
    )
    root = str(path.parents[1])
    assert known_topics(Opened(root)) == {
        "A": KnownTopic(range(5), range(2), False),
        "B": KnownTopic(range(4), range(0), False),
        "C": KnownTopic(range(16), range(16), True),
    }
    assert OtherFiles(Opened(root)).compacted == ["C"]


def test_an_unchanged_file_gives_the_same_topics_and_nobody_can_change_them(path: Path) -> None:
    path.write_text(_number(4))
    _make_old(path)
    root = str(path.parents[1])
    known = known_topics(Opened(root))
    assert known is not None
    assert known_topics(Opened(root)) is known
    with pytest.raises(TypeError):
        operator.setitem(known, "U", known["T"])
    with pytest.raises(AttributeError):
        setattr(known["T"], "is_compacted", True)  # noqa: B010  # else mypy refuses it
    assert _queues_of(path) == 4


def test_each_change_is_seen_at_once(path: Path) -> None:
    """Files of one size, overwritten in place as a broker does, and replaced as a commit does."""
    for number in range(1, 10):
        path.write_text(_number(number))
        assert _queues_of(path) == number
    for number in range(1, 10):
        new = path.with_name("new")
        new.write_text(_number(number))
        new.replace(path)
        assert _queues_of(path) == number
    _make_old(path)
    assert _queues_of(path) == 9
    path.write_text(_number(3))
    assert _queues_of(path) == 3


def test_a_change_within_a_tick_of_the_clock_is_seen(path: Path) -> None:
    path.write_text(_number(1))
    _make_old(path, by_ns=-_HOUR_NS)  # as young as the clock can make it
    before = files_at(str(path)).stat_identity(str(path))
    assert _queues_of(path) == 1
    time_ns = path.stat().st_mtime_ns
    path.write_text(_number(2))
    os.utime(path, ns=(time_ns, time_ns))
    assert files_at(str(path)).stat_identity(str(path)) == before
    assert _queues_of(path) == 2


def test_a_file_settles_after_50_ms() -> None:
    time_ns = 1_700_000_000_000_000_000
    identity = (1, 2, time_ns)
    assert [is_settled(identity, time_ns + age) for age in (0, YOUNG_NS - 1, YOUNG_NS)] == [
        False,
        False,
        True,
    ]
    assert is_settled(None, time_ns)


def test_the_bak_counts_while_the_file_is_missing_or_damaged(path: Path) -> None:
    backup = path.with_name("topics.json.bak")
    root = str(path.parents[1])
    assert known_topics(Opened(root)) is None
    backup.write_text(_number(1))
    _make_old(backup)
    assert _queues_of(path) == 1
    path.write_text("{")
    _make_old(path)
    assert _queues_of(path) == 1
    backup.write_text(_number(2))
    assert _queues_of(path) == 2
    path.write_text(_number(3))
    _make_old(path)
    assert _queues_of(path) == 3
    path.unlink()
    assert _queues_of(path) == 2
    backup.unlink()
    assert known_topics(Opened(root)) is None


def test_what_may_not_be_read_any_more_is_an_error(path: Path) -> None:
    path.write_text(_number(1))
    _make_old(path)
    assert _queues_of(path) == 1
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))
    with pytest.raises(CorruptStoreError):
        _queues_of(path)
    with open_directory() as directory:
        (directory / "config").mkdir()
        other = directory / "config" / "topics.json"
        other.write_text(_number(2))
        _make_old(other)
        assert _queues_of(other) == 2
        other.chmod(0)
        with as_nobody(), pytest.raises(StorePermissionError):
            _queues_of(other)


def test_an_open_store_sees_a_new_topic_at_once(path: Path) -> None:
    (path.parents[1] / "commitlog").mkdir()
    path.write_text(_text(T={}, rmq_sys_SYNC_BROKER_MEMBER_b1={}))
    _make_old(path)
    store = MessageStore.open(str(path.parents[1]))
    assert store.broker_name == "b1"
    assert store.configured_topics() == {"T", "rmq_sys_SYNC_BROKER_MEMBER_b1"}
    path.write_text(_text(U={}, rmq_sys_SYNC_BROKER_MEMBER_b2={}))
    assert store.configured_topics() == {"U", "rmq_sys_SYNC_BROKER_MEMBER_b2"}
    assert MessageStore.open(str(path.parents[1])).broker_name == "b2"

"""The service `timer` goes on after lost messages, messages that cannot be stored, and an older timerlog."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.services import run_once, timer
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.consumequeue.updates import pre_blank_bytes
from store_format.metadata.read import BrokerConf
from store_format.metadata.timer import TimerCheck
from store_format.names import TIMER_TOPIC
from store_format.opened.store import Opened
from tests.support import oracle
from tests.support.file_edits import overwrite
from tests.support.staged import columns_of, make_store, messages_of, numbered, stage
from tests.support.waiting import BEGIN_MS, append, bodies, timed

CONF = BrokerConf(timer_log_file_size=1 << 14)  # of new timerlogs


def _turn(root: Path, now_ms: int) -> dict[str, Any]:
    return run_once(str(root), ["timer"], now_ms, apply=True, broker_conf=CONF).to_pylist()[0]


def _next_offset(root: Path) -> int:
    check = TimerCheck.read(Opened(str(root)))
    assert check is not None
    return check.last_timer_queue_offset


def test_messages_behind_lost_ones_are_delivered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A salvaged timer queue has pre-blank units in its middle, here as many as two turns read."""
    append(root, timed("T", BEGIN_MS, 0, 20))
    queue = next((root / "consumequeue" / TIMER_TOPIC / "0").iterdir())
    overwrite(queue, 4 * 20, pre_blank_bytes(8))
    monkeypatch.setattr(timer, "TURN_MESSAGES_MAX", 4)
    offsets = []
    for i in range(6):
        _turn(root, BEGIN_MS + 5_000 + 1_000 * i)
        offsets.append(_next_offset(root))
    assert offsets == [4, 8, 12, 16, 20, 20]
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in (*range(4), *range(12, 20))}


def test_messages_that_are_cut_off_are_not_due(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log was cut behind the records of the timer: it counts as many as the view `delayed` shows."""
    append(root, timed("T", BEGIN_MS + 60_000, 0, 12))
    _turn(root, BEGIN_MS)
    places = [message.physical_offset for message in messages_of(root)]
    path = root / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[: places[7]].ljust(path.stat().st_size, b"\0"))
    now_ms = BEGIN_MS + 90_000
    plan = run_once(str(root), ["timer"], now_ms, broker_conf=CONF).to_pylist()[0]
    assert plan["due"] == 7
    assert "5 timer messages that are due are not in the commitlog" in caplog.text
    assert _turn(root, now_ms)["done"] == 7
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in range(7)}


@pytest.mark.parametrize(
    "topic",
    ["x" * 256, "\u00e9" * 64, "%LMQ%x", "Batch", "Compacted", "Lite"],
    ids=["long", "bytes", "light", "batch", "compaction", "lite"],
)
def test_a_topic_that_is_not_written_to_does_not_stop_others(
    root: Path, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    (bad,) = timed("T", BEGIN_MS + 5_000, 1, 1, {"REAL_TOPIC": topic})
    good = [*timed("T", BEGIN_MS + 5_000, 0, 1), *timed("T", BEGIN_MS + 5_000, 2, 1)]
    append(root, good)
    options = CommitOptions(clock=lambda: BEGIN_MS, new_topics={TIMER_TOPIC: 1})
    MessageStore.open(str(root)).append(columns_of([bad]), store_timestamps=BEGIN_MS, options=options)
    (root / "batchconsumequeue" / "Batch").mkdir(parents=True)
    _set_attributes(root, {"Compacted": {"cleanup.policy": "COMPACTION"}, "Lite": {"message.type": "LITE"}})
    append(root, timed("T", BEGIN_MS + 9_000, 3, 1))
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 3
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in (0, 2, 3)}
    place = next(m.physical_offset for m in messages_of(root) if m.properties["REAL_TOPIC"] == topic)
    reason = "its properties are too long, or do not name a queue" if len(topic) > 255 else f"topic {topic}"
    assert f"at physical offset {place} is not delivered: {reason}" in caplog.text
    assert topic not in {each.name for each in (root / "consumequeue").iterdir()}
    assert _turn(root, BEGIN_MS + 70_000)["done"] == 0


def _set_attributes(root: Path, topics: dict[str, dict[str, str]]) -> None:
    path = root / "config" / "topics.json"
    config = json.loads(path.read_bytes())
    for name, attributes in topics.items():
        table = config["topicConfigTable"]
        table[name] = {**table["T"], "topicName": name, "attributes": attributes}
    path.write_text(json.dumps(config))


def test_a_wheel_newer_than_the_log_is_made_from_the_log(root: Path, tmp_path: Path) -> None:
    """The copy of a running store, or a power loss: the wheel has slots whose units the log lacks."""
    append(root, timed("T", BEGIN_MS + 50_000, 0, 5))
    _turn(root, BEGIN_MS + 1_000)
    append(root, timed("T", BEGIN_MS + 50_000, 5, 5) + timed("T", BEGIN_MS + 51_000, 10, 5), BEGIN_MS + 2_000)
    copy = shutil.copytree(root, tmp_path / "copy")
    _turn(root, BEGIN_MS + 3_000)
    shutil.copy(root / "timerwheel", copy)
    assert _turn(copy, BEGIN_MS + 4_000)["done"] == 0
    assert (copy / "timerwheel").read_bytes() == (root / "timerwheel").read_bytes()
    assert _turn(copy, BEGIN_MS + 90_000)["done"] == 15
    assert bodies(copy, "T") == {f"message {i} of T".encode(): 1 for i in range(15)}


def test_slots_whose_units_the_log_lacks_do_not_stop_new_messages(root: Path, tmp_path: Path) -> None:
    """All units of the slots are lost: the slots must be empty before other units take their positions."""
    append(root, timed("T", BEGIN_MS + 50_000, 0, 1))
    _turn(root, BEGIN_MS + 1_000)
    append(root, [*timed("T", BEGIN_MS + 60_000, 5, 1), *timed("T", BEGIN_MS + 70_000, 6, 1)])
    copy = shutil.copytree(root, tmp_path / "copy")
    _turn(root, BEGIN_MS + 3_000)
    shutil.copy(root / "timerwheel", copy)
    append(copy, timed("T", BEGIN_MS + 95_000, 7, 1))
    assert _turn(copy, BEGIN_MS + 99_000)["done"] == 4
    assert set(bodies(copy, "T").values()) == {1}
    assert bodies(copy, "T").total() == 4


def test_a_clock_behind_the_time_of_the_timer_is_told(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(root, timed("T", BEGIN_MS + 5_000, 0, 1))
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 1
    append(root, timed("T", BEGIN_MS + 8_000, 1, 1), BEGIN_MS + 61_000)
    _turn(root, BEGIN_MS + 59_000)
    assert "ahead of the clock" not in caplog.text
    append(root, timed("T", BEGIN_MS + 9_000, 2, 1), BEGIN_MS + 62_000)
    assert _turn(root, BEGIN_MS + 10_000)["done"] == 0
    assert f"delivered up to {BEGIN_MS + 60_000} (ms), 50000 ms ahead of the clock" in caplog.text
    assert _turn(root, BEGIN_MS + 62_000)["done"] == 2


def test_a_message_without_room_for_its_crc_does_not_stop_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its properties fit into 32,767 bytes; with the CRC property, which the log now has, they do not."""
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 17, 20 * 20, 50, 200))
    (short,) = timed("T", BEGIN_MS + 5_000, 1, 1, {"padding": "x"})
    added = len("TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS ") + 2 * (len(str(BEGIN_MS)) + 1)
    room = 2**15 - 1 - 10 - added - len(short.properties_bytes)
    append(root, timed("T", BEGIN_MS + 5_000, 1, 1, {"padding": "x" * room}))
    with_crc = [oracle.with_crc_property(each) for each in numbered("T", 100, 1)]
    options = CommitOptions(clock=lambda: BEGIN_MS, new_topics={"T": 4})
    commit(str(root), [stage(root, with_crc, crc_property=True)], options=options)
    append(root, [*timed("T", BEGIN_MS + 5_000, 0, 1), *timed("T", BEGIN_MS + 5_000, 2, 1)])
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 2
    assert "is not delivered: topic T: properties of 32776 bytes" in caplog.text
    assert bodies(root, "T").keys() >= {f"message {i} of T".encode() for i in (0, 2)}
    assert _turn(root, BEGIN_MS + 70_000)["done"] == 0

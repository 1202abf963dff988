"""The service `timer`: what a broker delivered from its wheel, rolls, recalls, crashes, large slots."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.services import run_once, timer
from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.errors import CorruptStoreError, OptionError, UnsupportedFormatError
from store_format.metadata.read import BrokerConf, read_timer_metrics
from store_format.metadata.timer import TimerCheck, TimerLog
from store_format.opened.store import Opened
from tests.support import oracle
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.oracle import Message
from tests.support.staged import make_store, messages_of
from tests.support.waiting import BEGIN_MS, append, bodies, recall_of, timed

GOLDEN = "delay-tx-5.5.0"
ENQUEUED_MS = 1_795_244_063_000  # when the golden's broker put all its timer messages into the wheel
LATER_MS = 1_795_244_099_000

# In a message unit: queue offset, physical offset; store time; the store's host (IPv4).
BLANK = bytes.fromhex("000000240000000000000000cbd43194").ljust(36, b"\0")  # of tests/vectors
_PLACES = ((20, 36), (56, 64), (64, 72))


CONF = BrokerConf(timer_log_file_size=1 << 14)  # of new timerlogs


def _turn(root: Path, now_ms: int, conf: BrokerConf = CONF) -> dict[str, Any]:
    return run_once(str(root), ["timer"], now_ms, apply=True, broker_conf=conf).to_pylist()[0]


def _check(root: Path) -> TimerCheck:
    check = TimerCheck.read(Opened(str(root)))
    assert check is not None
    return check


def _set_check(root: Path, **changed: int) -> None:
    path = root / "config" / "timercheck"
    path.write_bytes(replace(_check(root), **changed).to_bytes())


def _masked(message: Message) -> bytes:
    """The unit without places, store times, and TIMER_DEQUEUE_MS, which is the clock at delivery."""
    properties = dict(message.properties)
    at = message.properties_bytes.replace(
        f"TIMER_DEQUEUE_MS\x01{properties['TIMER_DEQUEUE_MS']}".encode(), b"TIMER_DEQUEUE_MS\x010"
    )
    masked = bytearray(oracle.encode_message(replace(message, properties_bytes=at)))
    for start, stop in _PLACES:
        masked[start:stop] = bytes(stop - start)
    return bytes(masked)


# ---- a broker's store --------------------------------------------------------------------------------------


def test_the_log_and_the_wheel_are_those_of_a_broker(golden: Golden, copy_of: Golden) -> None:
    """All 70 messages are put into the wheel again, at the time when the broker did it."""
    root = copy_of(GOLDEN)
    shutil.rmtree(root / "timerlog")
    (root / "timerwheel").unlink()
    (root / "config" / "timermetrics").unlink()
    (root / "config" / "timermetrics.bak").unlink()
    _set_check(root, last_read_time=0, last_timer_log_flush_pos=0, last_timer_queue_offset=0)
    report = _turn(root, ENQUEUED_MS + 421, BrokerConf())
    assert (report["due"], report["done"]) == (0, 0)
    assert report["nextDue"].timestamp() * 1000 == ENQUEUED_MS + 2000
    for name in ("timerwheel", "timerlog/00000000000000000000"):
        assert (root / name).read_bytes() == (golden(GOLDEN) / name).read_bytes(), name
        assert (root / name).stat().st_blocks * 512 < 200_000, "holes are not written"
    check = _check(root)
    assert (check.last_timer_log_flush_pos, check.last_timer_queue_offset) == (3640, 70)
    # timermetrics: what waits in the end is what the broker counted
    assert _turn(root, LATER_MS)["done"] == 40
    theirs = read_timer_metrics(Opened(str(golden(GOLDEN))))
    ours = read_timer_metrics(Opened(str(root)))
    assert ours is not None
    assert theirs is not None
    assert {topic: each.count for topic, each in ours.items()} == {"Timer": 30}
    assert theirs["Timer"].count == 30


def test_delivers_the_bytes_that_a_broker_delivered(golden: Golden, copy_of: Golden) -> None:
    """timercheck is set back: what the broker delivered is delivered again, from the broker's wheel."""
    root = copy_of(GOLDEN)
    before = messages_of(root)
    _set_check(root, last_read_time=ENQUEUED_MS)
    by_broker = {m.properties["UNIQ_KEY"]: m for m in before if "TIMER_DEQUEUE_MS" in m.properties}

    report = _turn(root, LATER_MS)
    assert (report["due"], report["done"], len(by_broker)) == (40, 40, 40)
    ours = messages_of(root)[len(before) :]
    assert [_masked(m) for m in ours] == [_masked(by_broker[m.properties["UNIQ_KEY"]]) for m in ours]
    assert {m.properties["TIMER_DEQUEUE_MS"] for m in ours} == {str(LATER_MS)}
    assert {m.store_timestamp for m in ours} == {LATER_MS}
    check, theirs = _check(root), _check(golden(GOLDEN))
    assert check == replace(theirs, last_read_time=LATER_MS, timestamp=LATER_MS, counter=theirs.counter + 1)
    assert _turn(root, LATER_MS + 900)["done"] == 0
    assert _check(root) == check


# ---- stores without a broker -------------------------------------------------------------------------------

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


def _delivered(root: Path, topic: str = "T") -> list[Message]:
    return [m for m in messages_of(root) if m.topic == topic]


def test_a_message_is_delivered_when_its_second_has_passed_and_not_before(root: Path) -> None:
    out_ms = BEGIN_MS + 5_000
    append(root, timed("T", out_ms, 0, 2) + timed("T", out_ms + 60_000, 2, 1))
    first = _turn(root, BEGIN_MS)
    assert (first["due"], first["nextDue"].timestamp() * 1000) == (0, out_ms + 1_000)
    assert _turn(root, out_ms + 999)["done"] == 0
    due = _turn(root, out_ms + 1_250)
    assert (due["done"], due["lateMs"]) == (2, 250)
    assert due["nextDue"].timestamp() * 1000 == out_ms + 61_000
    for message in _delivered(root):
        assert message.properties["TIMER_ENQUEUE_MS"] == str(BEGIN_MS)
        assert message.properties["TIMER_DEQUEUE_MS"] == str(out_ms + 1_250)
        assert message.queue_id == int(message.properties["REAL_QID"])
    assert _turn(root, out_ms + 61_000)["done"] == 1
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in range(3)}


def test_a_turn_that_comes_late_delivers_what_it_finds(root: Path) -> None:
    """Messages that are read and delivered in one turn; one of them long before the wheel's first slot."""
    append(root, timed("T", BEGIN_MS + 5_000, 0, 2) + timed("T", BEGIN_MS - 9 * DAY_MS, 2, 1))
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 3
    # A writer that took long: the slot was read already, so the message waits for the next one.
    append(root, timed("T", BEGIN_MS + 58_000, 3, 1), BEGIN_MS + 60_500)
    assert _turn(root, BEGIN_MS + 60_900)["done"] == 0
    assert _turn(root, BEGIN_MS + 61_000)["done"] == 1
    assert bodies(root, "T").total() == 4


@pytest.mark.parametrize(
    ("days", "waits"),
    [(1.99, []), (2.6, [1]), (5, [2, 2])],
)
def test_a_far_message_is_stored_again_until_its_time_is_near(
    root: Path, days: float, waits: list[int]
) -> None:
    """TimerMessageStore.doEnqueue: half a window if less than a third of a window is left after it."""
    out_ms = BEGIN_MS + int(days * DAY_MS)
    append(root, timed("T", out_ms, 0, 1))
    now = BEGIN_MS
    for times, wait in enumerate(waits, 1):
        report = _turn(root, now)
        assert report["nextDue"].timestamp() * 1000 == now + wait * DAY_MS + 1_000
        now += wait * DAY_MS + 1_000
        rolled = _turn(root, now)
        assert (rolled["done"], rolled["nextDue"].timestamp() * 1000) == (1, now)
        assert messages_of(root)[-1].properties["TIMER_ROLL_TIMES"] == str(times)
        assert messages_of(root)[-1].topic == "rmq_sys_wheel_timer"
    assert _turn(root, now)["nextDue"].timestamp() * 1000 == out_ms + 1_000
    assert _turn(root, out_ms + 1_000)["done"] == 1
    (message,) = _delivered(root)
    assert message.properties.get("TIMER_ROLL_TIMES", "0") == str(len(waits))


@pytest.mark.parametrize("turn_before", [True, False])
@pytest.mark.parametrize("has_topic", [False, True])
def test_a_recalled_message_is_not_delivered(root: Path, has_topic: bool, turn_before: bool) -> None:
    """Also if the services run only after the time: a recall that was stored before counts."""
    out_ms = BEGIN_MS + 5_000
    messages = timed("T", out_ms, 0, 3)
    append(root, messages)
    append(root, [recall_of(messages[1], has_topic=has_topic)])
    conf = BrokerConf(timer_delete_key_has_topic=has_topic, timer_log_file_size=1 << 14)
    if turn_before:
        _turn(root, BEGIN_MS, conf)
    report = _turn(root, out_ms + 1_000, conf)
    assert (report["due"], report["done"]) == (3, 2)
    assert bodies(root, "T") == {b"message 0 of T": 1, b"message 2 of T": 1}
    assert _turn(root, out_ms + 9_000, conf)["done"] == 0
    metrics = read_timer_metrics(Opened(str(root)))
    assert turn_before == (metrics is not None), "a turn without a change writes no count"
    assert metrics is None or metrics["T"].count == 0


def test_a_recall_of_another_time_recalls_nothing(root: Path) -> None:
    """The slots of recall and message must be the same one, as with a broker."""
    (message,) = timed("T", BEGIN_MS + 5_000, 0, 1)
    (other,) = timed("T", BEGIN_MS + 4_000, 0, 1)
    append(root, [message, recall_of(other)])
    assert _turn(root, BEGIN_MS + 9_000)["done"] == 1


def test_a_recall_by_hand(root: Path) -> None:
    out_ms = BEGIN_MS + 5_000
    append(root, timed("T", out_ms, 0, 3) + timed("S", out_ms, 5, 1))
    path, now = str(root), BEGIN_MS + 2_000
    plan = timer.recall(path, topic="T", uniq_key="U0000001", now_ms=now)
    assert plan.table()["dueTimestamp"][0].as_py().timestamp() * 1000 == out_ms
    before = len(messages_of(root))
    assert (plan.apply(), len(messages_of(root))) == (1, before + 1)
    mark = messages_of(root)[-1]
    assert mark.properties == {
        "TAGS": "_RECALL_TAG_", "TIMER_DEL_UNIQKEY": "U0000001", "UNIQ_KEY": "U0000001",
        "TIMER_DELIVER_MS": str(out_ms + 1), "BORN_TIMESTAMP": str(now), "PGROUP": "rmqlog",
        "TIMER_OUT_MS": str(out_ms), "REAL_TOPIC": "T", "REAL_QID": "0",
    }  # fmt: skip
    assert (mark.topic, mark.queue_id, mark.body) == ("rmq_sys_wheel_timer", 0, b"0")
    again = timer.recall(path, topic="T", uniq_key="U0000001", now_ms=now)
    assert (again.table().num_rows, again.apply()) == (0, 0)
    assert _turn(root, now)["done"] == 0
    states = {
        (row["topic"], row["msgId"]): row["state"]
        for row in MessageStore.open(path).view("delayed", now_ms=out_ms + 999).to_pylist()
    }
    assert states[("T", "U0000000")] == states[("S", "U0000005")] == "waiting"
    assert _turn(root, out_ms + 1_000)["done"] == 3
    assert bodies(root, "T") == {b"message 0 of T": 1, b"message 2 of T": 1}
    assert bodies(root, "S").total() == 1
    for unique in ("U0000000", "U0000009"):
        with pytest.raises(OptionError, match="none waits in the timer"):
            timer.recall(path, topic="T", uniq_key=unique, now_ms=now)


def test_the_view_shows_what_the_service_will_do(root: Path) -> None:
    """The rows `due` are the messages that the next turn delivers, at every moment."""
    messages = [m for i in range(6) for m in timed("T", BEGIN_MS + 1_000 * i, 3 * i, 3)]
    (elsewhere,) = timed("T", BEGIN_MS + 9_000, 4, 1)
    append(root, [*messages, recall_of(messages[1]), recall_of(messages[7], has_topic=True)])
    append(root, [recall_of(elsewhere)])
    _turn(root, BEGIN_MS - 5_000)
    for now in (BEGIN_MS + 999, BEGIN_MS + 1_000, BEGIN_MS + 3_500, BEGIN_MS + 60_000):
        rows = MessageStore.open(str(root)).view("delayed", now_ms=now).to_pylist()
        assert _turn(root, now)["done"] == sum(row["state"] == "due" for row in rows)
    assert bodies(root, "T").total() == 16


def test_a_slot_larger_than_a_turn_is_delivered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "TURN_MESSAGES_MAX", 10)
    monkeypatch.setattr(timer, "_PART_MESSAGES_MAX", 10)
    root = make_store(tmp_path / "store")
    messages = timed("T", BEGIN_MS, 0, 25) + timed("T", BEGIN_MS + 1_000, 25, 4)
    append(root, [*messages, recall_of(messages[3])])
    now = BEGIN_MS + 5_000
    reports = [_turn(root, now) for _ in range(6)]
    # three turns fill the wheel; the third takes the first slot in three commits, the next the second slot
    assert [each["done"] for each in reports] == [0, 0, 24, 4, 0, 0]
    assert [each["nextDue"] is None for each in reports] == [False, False, False, True, True, True]
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in range(29) if i != 3}
    _set_check(root, last_read_time=BEGIN_MS)  # a person wants all of them again
    assert [_turn(root, now)["done"] for _ in range(3)] == [24, 4, 0]


def test_the_log_goes_on_in_a_new_file(root: Path) -> None:
    """Files of 1024 bytes hold 19 units and a blank."""
    conf = BrokerConf(timer_log_file_size=1024)
    for i in range(0, 60, 12):
        append(root, timed("T", BEGIN_MS + 5_000 + i % 24 * 1_000, i, 12))
        _turn(root, BEGIN_MS + i, conf)
    names = sorted(path.name for path in (root / "timerlog").iterdir())
    assert [int(name) for name in names] == [0, 1024, 2048, 3072]
    for name in names[:3]:
        assert (root / "timerlog" / name).read_bytes()[988:] == BLANK
    log = TimerLog.open(str(root / "timerlog"))
    assert sum(len(units) for _, units in log.scan()) == 60
    assert _check(root).last_timer_log_flush_pos == 3072 + 3 * 52
    assert sum(_turn(root, BEGIN_MS + 60_000, conf)["done"] for _ in range(2)) == 60
    assert set(bodies(root, "T").values()) == {1}


# ---- files of a broker that stopped at any moment ----------------------------------------------------------


def _pending(root: Path, turns: Iterable[int] = range(4)) -> None:
    for i in turns:
        append(root, timed("T", BEGIN_MS + 5_000 + 1_000 * (i % 2), 5 * i, 5))
        _turn(root, BEGIN_MS)


def _all_delivered_once(root: Path) -> None:
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 20
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in range(20)}
    assert _turn(root, BEGIN_MS + 90_000)["done"] == 0


def test_a_wheel_that_lags_is_revised_from_the_log(root: Path) -> None:
    """timercheck and wheel of an earlier moment: a broker that was killed between two flushes."""
    _pending(root, range(1))
    wheel, check = (root / "timerwheel").read_bytes(), (root / "config" / "timercheck").read_bytes()
    _pending(root, range(1, 4))
    log = (root / "timerlog" / f"{0:020}").read_bytes()
    (root / "timerwheel").write_bytes(wheel)
    (root / "config" / "timercheck").write_bytes(check)
    report = run_once(str(root), ["timer"], BEGIN_MS, apply=True).to_pylist()[0]
    assert (report["due"], report["done"]) == (0, 0)
    assert (root / "timerlog" / f"{0:020}").read_bytes() == log, "no message is put into the log twice"
    _all_delivered_once(root)


def test_a_lost_wheel_is_made_from_the_whole_log(root: Path) -> None:
    _pending(root)
    wheel = (root / "timerwheel").read_bytes()
    (root / "timerwheel").unlink()
    _turn(root, BEGIN_MS)
    assert (root / "timerwheel").read_bytes() == wheel
    _all_delivered_once(root)


def test_a_snapshot_of_the_wheel_is_taken_over(root: Path) -> None:
    """timerWheelSnapshotFlush: `timerwheel` stays behind, the snapshot is of an earlier moment too."""
    _pending(root, range(1))
    snapshot = (root / "timerwheel").read_bytes()
    _pending(root, range(1, 4))
    wheel = (root / "timerwheel").read_bytes()
    (root / "timerwheel.260").write_bytes(snapshot)
    (root / "timerwheel").write_bytes(bytes(len(wheel)))
    _turn(root, BEGIN_MS)
    assert (root / "timerwheel").read_bytes() == wheel
    _all_delivered_once(root)


def test_damage_behind_the_last_unit_is_cut(root: Path) -> None:
    _pending(root)
    path = root / "timerlog" / f"{0:020}"
    overwrite(path, 20 * 52, b"\x00\x00\x00\x34" + b"\xff" * 30)
    overwrite(path, 9_000, b"x")
    append(root, timed("T", BEGIN_MS + 5_000, 20, 1))
    _turn(root, BEGIN_MS)
    assert path.stat().st_size == 1 << 14
    assert not any(path.read_bytes()[21 * 52 :])
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 21


@pytest.mark.parametrize("left", [0, 7])
def test_units_that_are_lost_are_made_again(root: Path, left: int) -> None:
    """The log is gone behind some unit, which timercheck says was flushed: a copy, or a bad disk."""
    append(root, timed("T", BEGIN_MS + 1_000, 20, 3))
    assert _turn(root, BEGIN_MS + 2_000)["done"] == 3
    _pending(root)
    overwrite(root / "timerlog" / f"{0:020}", left * 52, bytes((23 - left) * 52))
    if left == 0:
        shutil.rmtree(root / "timerlog")
    append(root, timed("T", BEGIN_MS + 6_000, 23, 1))
    _turn(root, BEGIN_MS + 3_000)
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 21
    assert set(bodies(root, "T").values()) == {1}
    assert bodies(root, "T").total() == 24
    assert _turn(root, BEGIN_MS + 90_000)["done"] == 0


def test_timercheck_counts_unless_the_last_turn_began_there(root: Path) -> None:
    _pending(root)
    path = root / "config" / "timercheck"
    before = path.read_bytes()
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 20
    after = path.read_bytes()
    path.write_bytes(before)  # as if the process had died after the commit
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 0
    assert path.read_bytes()[:16] == after[:16]
    _set_check(root, last_read_time=BEGIN_MS + 6_000)  # a person wants the second slot again
    assert _turn(root, BEGIN_MS + 60_000)["done"] == 10


def test_a_clock_that_was_set_back_loses_nothing(root: Path) -> None:
    append(root, timed("T", BEGIN_MS + 60_000, 0, 1))
    assert _turn(root, BEGIN_MS + 61_000)["done"] == 1
    append(root, timed("T", BEGIN_MS + 30_000, 1, 1))
    assert _turn(root, BEGIN_MS + 20_000)["done"] == 0
    assert _turn(root, BEGIN_MS + 40_000)["done"] == 0
    assert _turn(root, BEGIN_MS + 62_000)["done"] == 1
    _set_check(root, last_read_time=BEGIN_MS + 8 * DAY_MS)
    with pytest.raises(CorruptStoreError, match=r"timercheck at byte 0.*set the clock"):
        _turn(root, BEGIN_MS + 63_000)


def test_slots_older_than_the_wheel_are_not_lost(root: Path) -> None:
    """A broker that starts looks back 7 days; the files hold 14, and new messages must not overwrite them."""
    _pending(root)
    later = BEGIN_MS + 13 * DAY_MS
    append(root, timed("T", BEGIN_MS + 5_000 + 14 * DAY_MS, 20, 1), later)
    assert [_turn(root, later)["done"] for _ in range(3)] == [20, 0, 0]
    assert _turn(root, later + 2 * DAY_MS)["done"] == 1
    assert bodies(root, "T").total() == 21


# ---- hostile and damaged messages --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties",
    [
        {"REAL_TOPIC": "../T"},
        {"REAL_QID": "-1"},
        {"REAL_QID": "one"},
        {"TIMER_OUT_MS": "soon"},
        {"padding": "x" * 32_600},
    ],
    ids=["topic", "queue", "number", "time", "long"],
)
def test_a_message_that_cannot_be_delivered_is_passed_over(
    tmp_path: Path, properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 1 << 17, 20 * 20, 50, 200))
    append(root, timed("T", BEGIN_MS, 1, 1, properties))
    _turn(root, BEGIN_MS - 1_000)
    append(root, timed("T", BEGIN_MS, 0, 1))
    append(root, timed("T", BEGIN_MS, 2, 1))
    assert _turn(root, BEGIN_MS + 5_000)["done"] == 2
    assert bodies(root, "T") == {b"message 0 of T": 1, b"message 2 of T": 1}
    assert "at physical offset" in caplog.text
    assert not root.with_name("T").exists()


def test_a_timer_without_wheel_does_nothing(root: Path) -> None:
    assert _turn(root, BEGIN_MS)["nextDue"] is None
    append(root, timed("T", BEGIN_MS, 0, 1))
    assert _turn(root, BEGIN_MS + 5_000, BrokerConf(timer_wheel_enable=False))["due"] == 0
    assert not (root / "config" / "timercheck").exists()
    stopped = BrokerConf(timer_stop_dequeue=True, timer_log_file_size=1 << 14)
    assert _turn(root, BEGIN_MS + 5_000, stopped)["done"] == 0
    assert _check(root).last_timer_queue_offset == 1
    assert _turn(root, BEGIN_MS + 5_000)["done"] == 1


# From a table that RocksDB wrote for the column family `timer`, with the library of 5.5.0.
TABLE_END = bytes.fromhex(
    "65792e66696c746572696e6731081001636f6c756d6e2e66616d696c792e6964011604056e616d65"
    "74696d65720a081a6d70617261746f726c6576656c64622e4279746577697365436f6d7061726174"
)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("000013.sst", bytes(1_000) + TABLE_END + bytes(300)),
        ("000004.log", b"\x05\x01\x13timeline_checkpoint\x08" + bytes(8)),
    ],
)
def test_a_timeline_in_rocksdb_is_refused(root: Path, file: str, content: bytes) -> None:
    append(root, timed("T", BEGIN_MS, 0, 1))
    (root / "rocksdbstore").mkdir()
    (root / "rocksdbstore" / file).write_bytes(content)
    with pytest.raises(UnsupportedFormatError, match=rf"rocksdbstore/{file}.*timerRocksDBEnable=false"):
        _turn(root, BEGIN_MS + 5_000)
    with pytest.raises(UnsupportedFormatError, match=r"broker\.conf has timerRocksDBEnable=true"):
        _turn(root, BEGIN_MS + 5_000, BrokerConf.of({"timerRocksDBEnable": "true"}, "broker.conf"))
    assert not (root / "timerwheel").exists()
    assert not bodies(root, "T")
    off = BrokerConf.of({"timerRocksDBEnable": "false", "mappedFileSizeTimerLog": "16384"}, "broker.conf")
    assert _turn(root, BEGIN_MS + 5_000, off)["done"] == 1

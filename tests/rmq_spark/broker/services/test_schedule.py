"""The service `schedule`: what a broker delivered from delay levels, levels in turn, damage, retention."""

from __future__ import annotations

import contextlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from rmq_spark.broker.services import schedule
from rmq_spark.broker.services.service import Now
from rmq_spark.services import recover, run_once
from store_format import MessageStore
from store_format.bookkeeping.ledger import Ledger
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.staging import StagingWriter
from store_format.errors import CorruptStoreError, OptionError, UnsupportedFormatError
from store_format.metadata.read import BrokerConf, read_delay_offsets
from store_format.names import HALF_TOPIC, SCHEDULE_TOPIC
from store_format.opened.store import Opened
from tests.rmq_spark.broker.pop.test_revive import without_places
from tests.support import oracle
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.oracle import Message
from tests.support.staged import columns_of, make_store, messages_of, numbered
from tests.support.waiting import BEGIN_MS, append, bodies, delayed

_FUTURE_MS = 2_000_000_000_000
_MINUTE_MS = 60_000


def _identity(message: Message) -> tuple[str, int]:
    return message.properties.get("UNIQ_KEY", ""), message.reconsume_times


@pytest.mark.parametrize(("name", "delivered"), [("delay-tx-5.5.0", 37), ("retry-dlq-5.5.0", 20)])
def test_delivers_the_bytes_that_a_broker_delivered(copy_of: Golden, name: str, delivered: int) -> None:
    """delayOffset.json is set back to 0: what the broker delivered is delivered again."""
    root = copy_of(name)
    before = messages_of(root)
    done = read_delay_offsets(Opened(str(root)))
    assert done is not None
    (root / "config" / "delayOffset.json").write_text(
        json.dumps({"offsetTable": {level: 0 for level, offset in done.items() if offset}})
    )
    waiting = {(m.queue_id + 1, m.queue_offset): m for m in before if m.topic == SCHEDULE_TOPIC}
    wanted = [m for (level, offset), m in sorted(waiting.items()) if offset < done.get(level, 0)]
    by_broker = {_identity(m): m for m in before if "DELAY" in m.properties and m.topic != SCHEDULE_TOPIC}

    now_ms = max(m.store_timestamp for m in before) + 5_000
    report = run_once(str(root), ["schedule"], now_ms, apply=True).to_pylist()[0]

    assert (report["due"], report["done"], len(wanted)) == (delivered,) * 3
    ours = messages_of(root)[len(before) :]
    assert [without_places(oracle.encode_message(m)) for m in ours] == [
        without_places(oracle.encode_message(by_broker[_identity(m)])) for m in wanted
    ]
    assert {m.store_timestamp for m in ours} == {now_ms}
    assert read_delay_offsets(Opened(str(root))) == done | {
        level: 0 for level, offset in done.items() if not offset
    }
    again = run_once(str(root), ["schedule"], now_ms, apply=True).to_pylist()[0]
    assert (again["due"], again["done"], again["lateMs"]) == (0, 0, None)


def test_a_message_is_delivered_when_its_level_has_passed_and_not_before(root: Path) -> None:
    append(root, delayed("T", 3, 0, 2) + delayed("T", 5, 2, 1))
    early = run_once(str(root), ["schedule"], BEGIN_MS + 9_999, apply=True).to_pylist()[0]
    assert (early["due"], early["nextDue"].timestamp() * 1000) == (0, BEGIN_MS + 10_000)
    assert not (root / "config" / "delayOffset.json").exists()

    due = run_once(str(root), ["schedule"], BEGIN_MS + 10_250, apply=True).to_pylist()[0]
    assert (due["done"], due["lateMs"]) == (2, 250)
    assert due["nextDue"].timestamp() * 1000 == BEGIN_MS + _MINUTE_MS
    assert read_delay_offsets(Opened(str(root))) == {3: 2, 5: 0}
    assert run_once(str(root), ["schedule"], BEGIN_MS + _MINUTE_MS, apply=True).to_pylist()[0]["done"] == 1
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in range(3)}


def test_the_state_file_counts_unless_the_last_turn_began_there(root: Path) -> None:
    append(root, delayed("T", 1, 0, 4))
    path = root / "config" / "delayOffset.json"
    run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)
    path.unlink()  # as if the process had died after the commit
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 0
    assert read_delay_offsets(Opened(str(root))) == {1: 4}

    path.write_text('{"offsetTable":{1:2}}')  # a person wants the last two again
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 2
    assert sorted(bodies(root, "T").values()) == [1, 1, 2, 2]


def test_an_offset_that_the_queue_does_not_have_is_corrected(root: Path) -> None:
    append(root, delayed("T", 1, 0, 3))
    path = root / "config" / "delayOffset.json"
    path.write_text('{"offsetTable":{1:50}}')
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 0
    assert read_delay_offsets(Opened(str(root))) == {1: 3}
    append(root, delayed("T", 1, 3, 1))
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 1


def test_messages_that_retention_deleted_are_left_out(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    append(root, delayed("T", 1, 0, 1))
    append(root, numbered("other", 0, 100))
    append(root, delayed("T", 1, 1, 1))
    (root / "commitlog" / f"{0:020}").unlink()
    with caplog.at_level("WARNING"):
        assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 1
    assert bodies(root, "T") == {b"message 1 of T": 1}
    assert read_delay_offsets(Opened(str(root))) == {1: 2}


def test_a_message_for_the_topic_of_half_messages_is_discarded(root: Path) -> None:
    append(root, delayed(HALF_TOPIC, 1, 0, 1) + delayed("T", 1, 1, 1))
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 1
    assert not bodies(root, HALF_TOPIC)
    assert bodies(root, "T") == {b"message 1 of T": 1}
    assert read_delay_offsets(Opened(str(root))) == {1: 2}


def _no_queue(message: Message) -> Message:
    properties = {**message.properties, "REAL_TOPIC": "../T"}
    return Message(message.topic_bytes, message.body, oracle.encode_properties(properties), queue_id=0)


@pytest.mark.parametrize("kind", ["body", "name"])
def test_a_message_that_cannot_be_delivered_stops_its_level_only(
    root: Path, tmp_path: Path, kind: str
) -> None:
    messages = delayed("T", 1, 0, 3)
    if kind == "name":
        messages[1] = _no_queue(messages[1])
    append(root, messages + delayed("T", 2, 3, 1))
    if kind == "body":
        path = root / "commitlog" / f"{0:020}"
        data = path.read_bytes()
        path.write_bytes(data.replace(b"message 1 of T", b"massage 1 of T", 1))
    for _ in range(2):
        with pytest.raises(CorruptStoreError, match=r"commitlog/0+ at byte|SCHEDULE_TOPIC_XXXX-0 offset 1"):
            run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)
    assert bodies(root, "T") == {b"message 0 of T": 1, b"message 3 of T": 1}
    assert read_delay_offsets(Opened(str(root))) == {1: 1, 2: 1}
    assert not root.with_name("T").exists()


def test_levels_share_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "TURN_MESSAGES_MAX", 10)
    root = make_store(tmp_path / "store")
    append(root, delayed("A", 1, 0, 30) + delayed("B", 2, 30, 3))
    dones, nexts = [], []
    for _ in range(7):
        report = run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]
        dones.append(report["done"])
        nexts.append(report["nextDue"] is not None)
    assert dones == [8, 10, 10, 5, 0, 0, 0]
    assert nexts == [True, True, True, False, False, False, False]
    assert (bodies(root, "A").total(), bodies(root, "B").total()) == (30, 3)


def test_a_turn_is_bounded_in_bytes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = delayed("A", 1, 0, 9)
    append(root, messages)
    size = len(oracle.encode_message(messages[0]))
    monkeypatch.setattr(schedule, "TURN_BYTES_MAX", 5 * size - 1)
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 4
    monkeypatch.setattr(schedule, "TURN_BYTES_MAX", 1)
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 1


def test_shorter_levels_count_at_once(root: Path) -> None:
    """ScheduleMessageService.correctDeliverTimestamp: a time later than the level allows is now."""
    append(root, delayed("T", 18, 0, 1))
    conf = BrokerConf(message_delay_levels_ms=(1000,) * 18)
    report = run_once(str(root), ["schedule"], BEGIN_MS, broker_conf=conf, apply=True).to_pylist()[0]
    assert (report["done"], report["lateMs"]) == (1, 0)


def test_lost_queues_are_an_error(root: Path) -> None:
    append(root, delayed("T", 1, 0, 2) + numbered("other", 0, 1))
    run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)
    shutil.rmtree(root / "consumequeue" / SCHEDULE_TOPIC)
    with pytest.raises(CorruptStoreError, match="run rmqlog recover"):
        run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)


def test_levels_of_another_store_are_as_for_a_broker(root: Path) -> None:
    """ScheduleMessageService of 5.5.0 loads {1:7,3:1,5:9} here as {1:0,3:1,5:0}: without messages of a level
    it finds an empty queue (correctDelayOffset). What is stored with the level later is delivered.
    """
    append(root, delayed("T", 3, 0, 3))
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{1:7,3:1,5:9}}')
    assert run_once(str(root), ["schedule"], _FUTURE_MS)["error"].to_pylist() == [None]
    assert read_delay_offsets(Opened(str(root))) == {1: 7, 3: 1, 5: 9}
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)["done"].to_pylist() == [2]
    assert read_delay_offsets(Opened(str(root))) == {1: 0, 3: 3, 5: 0}
    append(root, delayed("T", 5, 9, 2))
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)["done"].to_pylist() == [2]


def test_zeros_behind_the_offsets_deliver_nothing_again(root: Path) -> None:
    """A power loss leaves a block of NUL behind delayOffset.json; the .bak is older."""
    append(root, delayed("T", 3, 0, 6))
    path = root / "config" / "delayOffset.json"
    path.write_bytes(b'{"offsetTable":{3:5}}' + bytes(40))
    path.with_name("delayOffset.json.bak").write_text('{"offsetTable":{3:2}}')
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)["done"].to_pylist() == [1]


def test_the_plan_lists_the_due_messages_and_writes_nothing(golden: Golden, unchanged: Unchanged) -> None:
    root = golden("delay-tx-5.5.0")
    with unchanged(root):
        store = MessageStore.open(str(root))
        plan = schedule.Schedule().plan(store, Ledger.read(Opened(str(root))), Now(_FUTURE_MS))
        table = plan.table()
    assert plan.due == table.num_rows == 43
    assert table.column_names[0] == "delayLevel"
    assert set(table["delayLevel"].to_pylist()) == {14, 16, 17, 18}
    assert table["topic"].null_count == table["msgId"].null_count == 0
    assert isinstance(table, pa.Table)


def test_a_message_for_a_topic_that_is_not_written_to_stops_its_level_there(root: Path) -> None:
    """A commit refuses all messages for one of them; those before it are delivered all the same."""
    messages = delayed("T", 1, 0, 20)
    messages[13] = delayed("%LMQ%T", 1, 13, 1)[0]
    append(root, messages + delayed("T", 2, 20, 1))
    for _ in range(6):
        with contextlib.suppress(UnsupportedFormatError):
            run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)
    with pytest.raises(
        UnsupportedFormatError, match=r"SCHEDULE_TOPIC_XXXX-0 offset 13: .*light queue.*to 14"
    ):
        run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)
    assert bodies(root, "T") == {f"message {i} of T".encode(): 1 for i in (*range(13), 20)}
    assert read_delay_offsets(Opened(str(root))) == {1: 13, 2: 1}

    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{1:14,2:1}}')  # a person skips it
    run_once(str(root), ["schedule"], _FUTURE_MS, apply=True)
    assert bodies(root, "T").total() == 20
    assert max(bodies(root, "T").values()) == 1


def test_a_message_above_the_size_of_today_is_delivered(tmp_path: Path) -> None:
    """A broker with a maxMessageSize of 8 MiB stored it."""
    root = make_store(tmp_path / "store", StoreSettings("broker-a", 16 << 20, 400, 50, 200))
    (message,) = delayed("T", 1, 0, 1)
    writer = StagingWriter(Opened(str(root)), "large")
    columns = columns_of([replace(message, body=bytes(5 << 20))])
    writer.stage(columns, message_size_max=8 << 20)
    commit(str(root), [writer.close()], options=CommitOptions(clock=lambda: BEGIN_MS))
    assert run_once(str(root), ["schedule"], _FUTURE_MS, apply=True).to_pylist()[0]["done"] == 1


def test_levels_of_the_stores_own_settings(root: Path) -> None:
    (root / ".rmqlog").mkdir(exist_ok=True)
    (root / ".rmqlog" / "broker.conf").write_text("messageDelayLevel=2s 7m\n")
    append(root, delayed("T", 2, 0, 1))
    early = run_once(str(root), ["schedule"], BEGIN_MS + 7 * _MINUTE_MS - 1, apply=True).to_pylist()[0]
    assert (early["due"], early["nextDue"].timestamp() * 1000) == (0, BEGIN_MS + 7 * _MINUTE_MS)
    assert run_once(str(root), ["schedule"], BEGIN_MS + 7 * _MINUTE_MS, apply=True)["done"].to_pylist() == [1]


def test_a_broker_with_extended_queue_entries(root: Path) -> None:
    """enableConsumeQueueExt: the entry has an address instead of the time, which the store time shows."""
    append(root, delayed("T", 3, 0, 1))
    (path,) = (root / "consumequeue" / SCHEDULE_TOPIC / "2").iterdir()
    data = bytearray(path.read_bytes())
    data[12:20] = (-(2**31) - 1 - 40).to_bytes(8, "big", signed=True)
    path.write_bytes(data)
    assert run_once(str(root), ["schedule"], BEGIN_MS + 9_999, apply=True)["due"].to_pylist() == [0]
    assert run_once(str(root), ["schedule"], BEGIN_MS + 10_000, apply=True)["done"].to_pylist() == [1]


# ---- delay levels whose queue has gaps, and levels that messageDelayLevel lacks ----------------------------


def test_a_level_goes_on_behind_a_message_that_a_salvage_gave_up(root: Path, tmp_path: Path) -> None:
    """The level stopped at the damaged message, and the copy has a blank entry in its place."""
    append(root, [*delayed("T", 1, 0, 10), *delayed("T", 2, 10, 2)], sync=True)
    log = root / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    at = data.index(b"message 3 of T")
    overwrite(log, at, b"X" * 9)
    with pytest.raises(CorruptStoreError):
        run_once(str(root), ["schedule"], BEGIN_MS + 100_000, apply=True)
    assert read_delay_offsets(Opened(str(root))) == {1: 3, 2: 2}
    copy = tmp_path / "copy"
    recover(str(root), into=str(copy), salvage=True).apply()
    for seconds in (200, 201):
        run_once(str(copy), ["schedule"], BEGIN_MS + seconds * 1000, apply=True)
    expected = [f"message {i} of T".encode() for i in range(12) if i != 3]
    assert sorted(bodies(copy, "T").elements()) == sorted(expected)
    assert read_delay_offsets(Opened(str(copy))) == {1: 10, 2: 2}


def test_messages_of_a_level_that_the_setting_lacks_are_an_error(root: Path) -> None:
    """A broker leaves them in their queue for ever; the other levels are delivered."""
    append(root, [*delayed("T", 1, 0, 2), *delayed("T", 3, 2, 3)], sync=True)
    conf = BrokerConf(message_delay_levels_ms=(1000, 2000))
    with pytest.raises(OptionError, match="has 2 levels, and 3 messages wait at level 3"):
        run_once(str(root), ["schedule"], BEGIN_MS + 100_000, broker_conf=conf, apply=True)
    assert sum(bodies(root, "T").values()) == 2
    run_once(str(root), ["schedule"], BEGIN_MS + 100_000, apply=True)
    assert sum(bodies(root, "T").values()) == 5

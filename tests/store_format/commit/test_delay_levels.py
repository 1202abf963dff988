"""messageDelayLevel of `.rmqlog/broker.conf` counts wherever the delivery time of a message is computed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.append import recover
from store_format.commit.options import CommitOptions
from store_format.commit.recover import recover as plan_recovery
from store_format.diagnose import diagnose
from store_format.errors import OptionError
from store_format.files.write import FileWrites
from store_format.message.single import head_offset
from store_format.metadata.group_offsets import write_delay_offsets
from store_format.metadata.read import BrokerConf, read_delay_offsets
from store_format.names import SCHEDULE_TOPIC
from store_format.opened.store import Opened
from store_format.survey.gone import QueueProofs
from tests.support.staged import columns_of
from tests.support.stored_rows import rows_in
from tests.support.waiting import BEGIN_MS, append, delayed

_LEVELS = "2s 1m 3d"
_SECOND_LEVEL_MS = 60_000


@pytest.fixture
def store(root: Path) -> Path:
    """A store with a message of level 2, and one of level 20: a queue above those of topics.json."""
    (root / ".rmqlog").mkdir(exist_ok=True)
    (root / ".rmqlog" / "broker.conf").write_text(f"messageDelayLevel = {_LEVELS}\n")
    append(root, delayed("T", 2, 0, 1) + delayed("T", 20, 1, 1))
    return root


def _times(root: Path) -> dict[int, list[int]]:
    """Level -> delivery times after the store time."""
    queues = MessageStore.open(str(root)).queues(SCHEDULE_TOPIC.__eq__)
    found: dict[int, list[int]] = {queue.queue_id + 1: [] for queue in queues}
    for row in rows_in(root, "queueId", "tagsCode", topic=SCHEDULE_TOPIC):
        found[row["queueId"] + 1].append(row["tagsCode"] - BEGIN_MS)
    return found


def test_an_append_writes_the_delivery_time(store: Path) -> None:
    assert _times(store) == {2: [_SECOND_LEVEL_MS], 20: [3 * 24 * 3_600_000]}


def test_given_settings_count_more_than_those_of_the_store(store: Path) -> None:
    conf = BrokerConf.of({"messageDelayLevel": "7s 8s"}, "broker.conf")
    options = CommitOptions(clock=lambda: BEGIN_MS, conf=conf)
    MessageStore.open(str(store)).append(columns_of(delayed("T", 2, 5, 1)), options=options)
    assert _times(store)[2] == [_SECOND_LEVEL_MS, 8_000]


@pytest.mark.parametrize("lost", ["consumequeue", f"consumequeue/{SCHEDULE_TOPIC}/1"])
def test_rebuilt_queues_have_the_delivery_time(store: Path, lost: str) -> None:
    wanted = _times(store)
    shutil.rmtree(store / lost)
    options = CommitOptions(unfiled_queues="read", clock=lambda: BEGIN_MS)
    MessageStore.open(str(store)).append(columns_of(delayed("T", 1, 7, 1)), options=options)
    assert _times(store) == wanted | {1: [2_000]}


@pytest.fixture
def foreign(store: Path) -> Path:
    """The store with five more messages of level 2, and without settings: as that of a broker."""
    append(store, delayed("T", 2, 2, 5))
    shutil.rmtree(store / ".rmqlog")
    return store


def test_no_entry_gets_a_time_of_levels_that_nothing_shows(foreign: Path, tmp_path: Path) -> None:
    """A broker that rebuilds the queue takes its own messageDelayLevel (ConsumeQueue has no other)."""
    wanted = _times(foreign)
    shutil.rmtree(foreign / "consumequeue" / SCHEDULE_TOPIC / "1")
    expected = r"neither broker.conf nor an entry shows the delay of level 2\. .* --broker-conf FILE"
    assert diagnose(str(foreign)).lacks_settings
    for act in (plan_recovery(str(foreign)).table, plan_recovery(str(foreign)).apply):
        with pytest.raises(OptionError, match=expected):
            act()
    with pytest.raises(OptionError, match=expected):
        plan_recovery(str(foreign), into=str(tmp_path / "copy")).apply()
    assert not (tmp_path / "copy").exists()
    assert not (foreign / "consumequeue" / SCHEDULE_TOPIC / "1").exists()
    conf = tmp_path / "broker.conf"
    conf.write_text(f"messageDelayLevel={_LEVELS}")
    plan_recovery(str(foreign), broker_conf=str(conf)).apply()
    assert _times(foreign) == wanted


def test_a_write_that_takes_the_default_levels_says_so(
    foreign: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(foreign / "consumequeue" / SCHEDULE_TOPIC / "1")
    options = CommitOptions(unfiled_queues="read", clock=lambda: BEGIN_MS)
    MessageStore.open(str(foreign)).append(columns_of(delayed("T", 2, 7, 1)), options=options)
    assert "shows the delay of level 2: RocketMQ's default counts. Give brokerConf" in caplog.text


@pytest.mark.parametrize("lost", [range(2, 6), range(1, 4)])
@pytest.mark.parametrize("into", [True, False])
def test_entries_show_the_levels(foreign: Path, tmp_path: Path, lost: range, into: bool) -> None:
    wanted = _times(foreign)
    [path] = (foreign / "consumequeue" / SCHEDULE_TOPIC / "1").iterdir()
    units = path.read_bytes()
    path.write_bytes(units[: 20 * lost[0]] + bytes(20 * len(lost)) + units[20 * (lost[-1] + 1) :])
    target = tmp_path / "copy" if into else foreign
    assert (
        QueueProofs(Opened(str(foreign)), MessageStore.open(str(foreign)).log).shown_delays()[2]
        == _SECOND_LEVEL_MS
    )
    plan_recovery(str(foreign), into=str(target) if into else None).apply()
    assert _times(target) == wanted


@pytest.mark.parametrize("bit", [63, 40, 20])
def test_a_flipped_store_time_shows_no_delay(store: Path, bit: int) -> None:
    append(store, delayed("T", 2, 2, 1))
    shutil.rmtree(store / ".rmqlog")
    entries = (store / "consumequeue" / SCHEDULE_TOPIC / "1" / f"{0:020d}").read_bytes()
    log = store / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    place = int.from_bytes(entries[20:28]) + head_offset("store_timestamp")
    data[place + 7 - bit // 8] ^= 1 << bit % 8
    log.write_bytes(data)
    assert (
        QueueProofs(Opened(str(store)), MessageStore.open(str(store)).log).shown_delays()[2]
        == _SECOND_LEVEL_MS
    )
    plan_recovery(str(store)).table()


@pytest.mark.parametrize("has_entry", [True, False])
def test_the_level_is_what_a_message_says_and_not_its_queue(
    foreign: Path, tmp_path: Path, has_entry: bool
) -> None:
    """A flipped bit of the queue id, of a message whose entry a crash kept from being written, or that a
    broker filed in that queue after it: it takes the property DELAY (CommitLog.checkMessageAndReturnSize).
    """
    wanted, claimed = _times(foreign), 1 ^ 1 << 30
    queues = foreign / "consumequeue" / SCHEDULE_TOPIC
    entries = (queues / "1" / f"{0:020d}").read_bytes()
    last = entries[100:120]
    (queues / "1" / f"{0:020d}").write_bytes(entries[:100] + bytes(len(entries) - 100))
    if has_entry:
        (queues / str(claimed)).mkdir()
        (queues / str(claimed) / f"{0:020d}").write_bytes((bytes(100) + last).ljust(len(entries), b"\0"))
    else:
        (foreign / "abort").touch()
    log = foreign / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    place = int.from_bytes(last[:8]) + head_offset("queue_id")
    data[place : place + 4] = claimed.to_bytes(4)
    log.write_bytes(data)
    assert not diagnose(str(foreign)).lacks_settings
    plan_recovery(str(foreign), into=str(tmp_path / "copy")).apply()
    assert _times(tmp_path / "copy") == {
        2: wanted[2][:5], 20: wanted[20], claimed + 1: [_SECOND_LEVEL_MS]
    }  # fmt: skip


def test_a_crashed_store_is_read_and_repaired_with_the_delivery_time(store: Path) -> None:
    wanted = _times(store)
    (store / "abort").write_text("")
    for queue in (store / "consumequeue" / SCHEDULE_TOPIC).iterdir():
        for file in queue.iterdir():
            file.write_bytes(bytes(file.stat().st_size))
    assert _times(store) == wanted
    recover(str(store))
    assert not (store / "abort").exists()
    assert _times(store) == wanted


def test_the_view_delayed_knows_the_levels(store: Path) -> None:
    shutil.rmtree(store / "consumequeue")
    opened = MessageStore.open(str(store))
    due = {row["delayLevel"]: row for row in opened.view("delayed", now_ms=BEGIN_MS).to_pylist()}
    assert due[2]["dueInMs"] == _SECOND_LEVEL_MS


@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize("into", [True, False])
def test_a_recovery_that_cuts_a_level_lowers_its_next_offset(
    store: Path, tmp_path: Path, crashed: bool, into: bool
) -> None:
    """A service that goes on from offset 5 would never deliver the next four messages of the level."""
    append(store, delayed("T", 2, 2, 4))
    write_delay_offsets(Opened(str(store)), {2: 5, 20: 1}, timestamp=BEGIN_MS, files=FileWrites(sync=False))
    (store / ".rmqlog" / "ledger.json").unlink()
    if crashed:
        (store / "abort").touch()
    log = store / "commitlog" / f"{0:020d}"
    data = bytearray(log.read_bytes())
    data[data.index(b"message 2 of T")] ^= 1
    log.write_bytes(data)
    target = tmp_path / "copy" if into else store
    plan = plan_recovery(str(store), cut_after_damage=True, into=str(target) if into else None)
    lowered = [row for row in plan.table().to_pylist() if row["action"] == "lower"]
    assert [(row["queueId"], row["position"], row["entries"]) for row in lowered] == [(1, 1, 4)]
    assert read_delay_offsets(Opened(str(store))) == {2: 5, 20: 1}
    plan.apply()
    assert read_delay_offsets(Opened(str(target))) == {2: 1, 20: 1}
    assert [row for row in plan_recovery(str(target)).table().to_pylist() if row["action"] == "lower"] == []


def test_a_copy_keeps_the_delivery_time_of_a_message_without_its_level(store: Path, tmp_path: Path) -> None:
    """No checksum covers the property DELAY."""
    wanted = _times(store)
    log = store / "commitlog" / f"{0:020d}"
    data = log.read_bytes()
    log.write_bytes(data.replace(b"DELAY\x012\x02", b"DELAX\x012\x02"))
    assert log.read_bytes() != data
    plan_recovery(str(store), into=str(tmp_path / "copy"), salvage=True).apply()
    assert _times(tmp_path / "copy") == wanted


def test_a_recovery_keeps_unreadable_delay_offsets_aside(store: Path) -> None:
    path = store / "config" / "delayOffset.json"
    path.write_text("{")
    plan_recovery(str(store)).apply()
    assert path.with_name(f"{path.name}.broken").read_text() == "{"

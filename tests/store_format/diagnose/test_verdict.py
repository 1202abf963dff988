"""What a diagnosis comes to: the counts of a broker's cut, the sentence, and the next step."""

from __future__ import annotations

import base64
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from store_format import MessageStore
from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.diagnose.problems import CLAIM_ADVICE, NextStep, verdict
from store_format.errors import CorruptStoreError
from tests.support import damages, goldens, oracle
from tests.support.damages import Damaged
from tests.support.fixtures import Golden
from tests.support.reads import flip
from tests.support.referee.made import BrokerStore
from tests.support.writes import held

COMPRESSED_AT = 39  # the byte of a record with the bit of its sysFlag
BORN_PORT_AT, STORE_PORT_AT = 53, 69  # the byte above those of a port
TORN, CRASH, CLEAN = "crash-torn-5.5.0", "crash-5.5.0", "basic-5.5.0"


@pytest.fixture
def copy(golden: Golden, tmp_path: Path) -> Golden:
    """A copy of a golden store, to be damaged."""
    return lambda name: Path(shutil.copytree(golden(name), tmp_path / name))


def _rows(name: str) -> list[dict[str, Any]]:
    """Places and sizes of the messages, in the order of the commitlog."""
    return sorted(goldens.expected_rows(name), key=lambda row: row["physicalOffset"])


def test_a_torn_message_without_an_entry_is_lost(copy: Golden) -> None:
    """The queue whose last entry leads there is lost, too; the head of the message is whole."""
    root = copy(TORN)
    shutil.rmtree(root / "consumequeue" / "Orders" / "2")
    found = diagnose(str(root))
    assert found.summary.lost_in_crash == 1
    assert "353 messages readable, 1 message lost with the crash" in found.verdict
    rows = {row["action"]: row["entries"] for row in recover(str(root)).table().to_pylist()}
    assert (rows["end"], rows["lost"]) == (353, 1)


@pytest.mark.parametrize(("first", "verdict"), [(4, "sound after a crash"), (0, "damaged in 1 place")])
def test_a_broker_writes_the_entries_of_the_files_that_it_scans(
    tmp_path: Path, first: int, verdict: str
) -> None:
    """It scans the last file; without the entry of an earlier message it gives a place to the wrong one."""
    store = BrokerStore(tmp_path / "store", log_file_size=800)
    for _ in range(6):
        store.put("A")
    assert store.messages[4].physical_offset == 800
    queue = store.write(crashed=True) / "consumequeue/A/0" / f"{0:020}"
    queue.write_bytes(queue.read_bytes()[: 20 * first] + bytes(20 * (8 - first)))
    assert diagnose(str(store.root)).verdict.startswith(f"{verdict}: 6 messages readable")


def test_damage_before_the_end_of_a_crashed_store(copy: Golden) -> None:
    root, rows = copy(CRASH), _rows(CRASH)
    flip(root, rows[-5]["physicalOffset"] + 90)
    found = diagnose(str(root))
    summary, cut = found.summary, rows[-5]["physicalOffset"]
    assert (summary.cut_offset, summary.cut_messages) == (cut, 4)
    assert summary.cut_bytes == sum(row["storeSize"] for row in rows[-5:])
    assert summary.readable == len(
        MessageStore.open(str(root)).find(since=0, on_damage="DROPMALFORMED").table
    )
    text, step = verdict(found)
    assert text.endswith(f"will cut {summary.cut_bytes:,} bytes at {cut}, with 4 whole messages")
    assert step is NextStep.SALVAGE


def test_a_store_with_a_file_that_is_too_long_is_refused_by_all_other_commands(
    copy: Golden,
) -> None:
    root = copy(CLEAN)
    first = min((root / "commitlog").iterdir())
    os.truncate(first, first.stat().st_size + 10)
    with pytest.raises(CorruptStoreError):
        MessageStore.open(str(root))
    text, step = verdict(diagnose(str(root)))
    assert "; all other commands refuse the store until " in text
    assert step is NextStep.AGAIN


@pytest.mark.parametrize("name", [f"{1:020d}", "9" * 20, f"{2**63 - 1:020d}", f"{2**64 - 1:020d}"])
def test_a_file_that_never_was_of_the_log_costs_no_message(copy: Golden, name: str) -> None:
    root = copy("cleaned-5.5.0")
    (root / "commitlog" / name).write_bytes(b"junk" * 1000)
    found = diagnose(str(root))
    (damage,) = found.of("damage")
    assert damage.file == f"{root}/commitlog/{name}"
    assert damage.advice.startswith("Move this file out of the store")
    assert (found.log_begin, found.summary.unplaced_bytes, found.summary.stray_bytes) == (196608, 4000, 4000)
    text, step = verdict(found)
    assert text.startswith("damaged in 1 place: 1,003 messages readable, none lost")
    assert step is NextStep.NOTHING  # by hand
    assert len(MessageStore.open(str(root)).find(since=0).table) == 1003
    with pytest.raises(CorruptStoreError, match=name) as caught:
        recover(str(root)).table()
    with pytest.raises(CorruptStoreError) as again:
        recover(str(root)).apply()
    assert again.value.args == caught.value.args


def test_the_blank_one_of_two_files_of_one_name_is_to_be_moved_away(copy: Golden) -> None:
    """A broker with two directories in storePathCommitLog made the file in the other one, too."""
    root = copy("cleaned-5.5.0")
    path = max((root / "commitlog").iterdir())
    (root / "a").mkdir()
    (root / "a" / path.name).write_bytes(bytes(path.stat().st_size))
    found = diagnose(str(root), [f"{root}/a", f"{root}/commitlog"])
    assert [each.file for each in found.of("damage")] == [f"{root}/a/{path.name}"]
    assert verdict(found)[0].startswith("damaged in 1 place: 1,003 messages readable, none lost")


def test_blank_index_files_of_unknown_sizes_hide_no_other_problem(copy: Golden) -> None:
    """A power loss: IndexService flushes a file only when it is full."""
    root = copy(CLEAN)
    for path in (root / "index").iterdir():
        path.write_bytes(bytes(4040))
    shutil.rmtree(root / "consumequeue" / "Orders" / "1")
    found = diagnose(str(root))
    blank = [each.file for each in found.of("warning") if "blank" in each.found]
    assert blank == sorted(str(path) for path in (root / "index").iterdir())
    assert found.of("damage")
    rows = recover(str(root)).table().to_pylist()
    assert {"index": "left", "consumequeue": "create"}.items() <= {
        r["part"]: r["action"] for r in rows
    }.items()
    assert recover(str(root)).apply().to_pylist() == rows
    assert not diagnose(str(root)).of("damage")


def test_bytes_are_counted_where_no_queue_tells_the_messages(copy: Golden) -> None:
    root, rows = copy(CLEAN), _rows(CLEAN)
    shutil.rmtree(root / "consumequeue")
    last = max(rows, key=lambda row: row["physicalOffset"])
    flip(root, last["physicalOffset"] + 90)
    text = verdict(diagnose(str(root)))[0]
    assert f"messages in {last['storeSize']} damaged or missing bytes are lost" in text
    flip(root, rows[10]["physicalOffset"] + 90)  # its queue has later messages
    assert ", 1 message lost" in verdict(diagnose(str(root)))[0]


def test_an_empty_store(tmp_path: Path) -> None:
    (tmp_path / "empty" / "commitlog").mkdir(parents=True)
    assert verdict(diagnose(str(tmp_path / "empty")))[1] is NextStep.NOTHING


def test_a_store_in_use_is_checked_again(copy: Golden) -> None:
    root = copy(CLEAN)
    with held(root):
        sentence, step = verdict(diagnose(str(root)))
    assert sentence.startswith("in use, and sound so far: 2,010 messages readable, none lost")
    assert sentence.endswith("; check again when no process writes to it")
    assert step is NextStep.AGAIN


@pytest.mark.parametrize(
    "name", ["edge-5.5.0", "cleaned-5.5.0", "delay-tx-5.5.0", "pop-5.5.0", "rocksdb-5.5.0"]
)
def test_all_messages_of_a_clean_store_are_readable(golden: Golden, name: str) -> None:
    found = diagnose(str(golden(name)))
    assert found.summary.units == goldens.expected(name)["allCommitLogMessages"]
    rows = {(each["physicalOffset"], each.get("batchNum", 0)) for each in goldens.expected_rows(name)}
    assert (found.summary.readable, found.summary.unread) == (len(rows), 0)
    assert found.summary.state == "clean"
    warnings = ", with 15 warnings" if name == "edge-5.5.0" else ""  # it has no topics.json
    assert verdict(found)[0].startswith(f"sound{warnings}: ")


@pytest.mark.parametrize("name", [CLEAN, "basic-4.9.7"])
def test_a_body_that_no_read_can_open_is_lost_for_all(copy: Golden, tmp_path: Path, name: str) -> None:
    """A flipped sysFlag: the body has its checksum, and a client gets no message of it (MessageDecoder)."""
    root = copy(name)
    victim = next(row for row in _rows(name) if row["topic"] == "Orders" and not row["sysFlag"] & 0x301)
    flip(root, victim["physicalOffset"] + COMPRESSED_AT)
    rows = MessageStore.open(str(root)).find(since=0, on_damage="DROPMALFORMED").table
    [problem] = diagnose(str(root)).of("damage")
    place = f"Orders-{victim['queueId']} offset {victim['queueOffset']}"
    assert problem.file.endswith(f"{0:020d}")
    assert place in problem.found
    with pytest.raises(CorruptStoreError) as raised:
        MessageStore.open(str(root)).find(since=0)
    assert (problem.file, problem.position) == (raised.value.file, raised.value.position)
    body = (root / "commitlog" / f"{0:020d}").read_bytes()[problem.position :]
    assert body.startswith(base64.b64decode(victim["body"]))
    recover(str(root)).apply()
    recover(str(root), into=str(tmp_path / "copy"), salvage=True).apply()
    for each in (root, tmp_path / "copy"):
        found = diagnose(str(each))
        assert found.summary.readable == len(rows)
        text, step = verdict(found)
        assert "readable, 1 message lost, in a record that no client decodes" in text
        assert step is NextStep.NOTHING
        left = [row for row in recover(str(each)).table().to_pylist() if row["action"] == "left"]
        assert [(row["part"], row["entries"]) for row in left] == [("commitlog", 1)]


@pytest.mark.parametrize("at", [BORN_PORT_AT, STORE_PORT_AT])
def test_a_record_with_a_port_that_no_client_decodes_is_lost(tmp_path: Path, at: int) -> None:
    """MessageDecoder makes an InetSocketAddress of each host, which refuses the port."""
    store = BrokerStore(tmp_path)
    store.put("A")
    store.put("A")
    flip(store.write(), at)
    assert (
        "1 message readable, 1 message lost, in a record that no client decodes"
        in diagnose(str(tmp_path)).verdict
    )
    with pytest.raises(CorruptStoreError, match="expected hosts with ports from 0 to 65535, found ports"):
        MessageStore.open(str(tmp_path)).find(since=0)
    rows = MessageStore.open(str(tmp_path)).find(since=0, on_damage="DROPMALFORMED").table
    assert rows["queueOffset"].to_pylist() == [1]


@pytest.mark.parametrize(("at", "text"), [
    (27, "4 messages readable, 2 messages lost, in a record that no client decodes"),
    (15, "4 messages readable, 2 messages lost"),
])  # fmt: skip
def test_a_batch_whose_head_claims_another_place_than_its_entry(tmp_path: Path, at: int, text: str) -> None:
    """A client counts its messages from queueOffset on, and a broker files it at INNER_BASE."""
    store = BrokerStore(tmp_path)
    store.topic("Inner", 1, {"queue.type": "BatchCQ"})
    for count in (2, 4):
        store.put_batch("Inner", count)
    flip(store.write(), at)
    assert text in diagnose(str(tmp_path)).verdict
    with pytest.raises(CorruptStoreError, match=r"expected queue(Offset 0, found 1|Id 0 of Inner, found 1)"):
        MessageStore.open(str(tmp_path)).find(since=0)


def test_a_message_that_claims_a_place_inside_a_batch(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path)
    store.topic("Inner", 1, {"queue.type": "BatchCQ"})
    store.put("Inner")
    store.put("Inner")
    store.put_batch("Inner", 4)
    flip(store.write(), store.messages[1].physical_offset + 27, 4)
    assert diagnose(str(tmp_path)).verdict.startswith("damaged in ")


def test_all_bodies_that_can_be_opened_are_readable(golden: Golden) -> None:
    for name in (CLEAN, "batchcq-5.5.0"):  # both have bodies of each compression
        assert diagnose(str(golden(name))).summary.unopened == 0


def test_a_crash_does_not_hide_a_topic_that_clients_do_not_find(copy: Golden) -> None:
    root = copy(CRASH)
    path = root / "config/topics.json"
    topics = json.loads(path.read_bytes())
    del topics["topicConfigTable"]["Orders"]
    path.write_text(json.dumps(topics))
    sentence = diagnose(str(root)).verdict
    assert sentence.startswith("sound after a crash, with 1 warning: 850 messages readable")
    assert "messages of 1 topic that a broker does not serve" in sentence


def test_messages_without_an_entry_are_not_readable(copy: Golden) -> None:
    root = copy(CLEAN)
    damages.zero_the_last_entries(Damaged(root))
    sentence, step = verdict(diagnose(str(root)))
    assert "2,007 messages readable; 3 whole messages that no read returns from their queues" in sentence
    assert step is NextStep.RECOVER


def test_the_delay_of_a_level_without_entries_is_asked_for(copy: Golden) -> None:
    root = copy("delay-tx-5.5.0")
    shown = diagnose(str(root)).lacks_settings
    for path in (root / "consumequeue/SCHEDULE_TOPIC_XXXX").glob("*/*"):
        path.write_bytes(bytes(path.stat().st_size))
    assert (shown, diagnose(str(root)).lacks_settings) == (False, True)


def test_the_size_of_queue_files_is_asked_for_if_the_only_one_is_cut(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path)
    store.put("A")
    root = store.write()
    os.truncate(root / "consumequeue/A/0" / f"{0:020d}", 52)
    assert diagnose(str(root)).lacks_settings


def test_the_size_of_log_files_is_asked_for_if_the_only_one_is_cut(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path)
    for _ in range(9):
        store.put("A")
    path = store.write(crashed=True) / "commitlog" / f"{0:020d}"
    os.truncate(path, 900)
    assert diagnose(str(tmp_path)).lacks_settings
    conf = tmp_path.with_suffix(".conf")
    conf.write_text("".join(f"{key}={value}\n" for key, value in store.conf.items()))
    recover(str(tmp_path), broker_conf=str(conf)).apply()
    assert path.stat().st_size == 4096
    assert diagnose(str(tmp_path)).verdict.startswith("sound")


def test_the_sizes_of_an_index_are_asked_for_if_no_file_shows_them(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path)
    store.put("A")
    (index,) = (store.write() / "index").iterdir()
    data = index.read_bytes()
    index.write_bytes(data[:18] + b"\1" + data[19:])  # of beginPhyOffset
    assert diagnose(str(tmp_path)).lacks_settings
    conf = tmp_path.with_suffix(".conf")
    conf.write_text("".join(f"{key}={value}\n" for key, value in store.conf.items()))
    recover(str(tmp_path), broker_conf=str(conf)).apply()
    assert diagnose(str(tmp_path)).verdict == "sound: 1 message readable, none lost; nothing has to be done"


def test_no_recovery_is_advised_before_a_directory_is_moved_out_of_a_queue(tmp_path: Path) -> None:
    """It has the name of a file, and a recovery leaves the queue as it is."""
    store = BrokerStore(tmp_path)
    store.put("A")
    (store.write() / "consumequeue/A/0" / f"{3:020d}").mkdir()
    assert verdict(diagnose(str(tmp_path)))[1] is NextStep.NOTHING


def test_offsets_before_the_first_message_have_no_message(tmp_path: Path) -> None:
    """A broker begins the queue at 0, as the first entry points into the log (ConsumeQueue.fillPreBlank)."""
    store = BrokerStore(tmp_path)
    store.put("A", offset=3)
    expected = "sound: 1 message readable; 3 queue offsets between the ends of queues have no message"
    assert expected in diagnose(str(store.write())).verdict


def test_an_offset_before_the_first_message_whose_entry_leads_to_another_one_is_counted(
    tmp_path: Path,
) -> None:
    """A broker begins the queue at 0: the entry leads into the log."""
    store = BrokerStore(tmp_path, begin=1 << 16)
    for _ in range(3):
        store.put("A")
    flip(store.write(crashed=True), (1 << 16) + 15)  # of queueId
    expected = "3 messages readable; 1 queue offset between the ends of queues has no message"
    assert expected in diagnose(str(tmp_path)).verdict


@pytest.mark.parametrize("is_filed", [False, True])
def test_offsets_behind_expired_entries_without_a_message_are_counted(tmp_path: Path, is_filed: bool) -> None:
    """A broker begins the queue there: at the next message, or at an entry that leads behind the log."""
    store = BrokerStore(tmp_path, log_file_size=1024)
    store.put("A")
    store.put("A", files=is_filed)
    store.put("A", body=bytes(800), files=is_filed)  # the first one of the next file
    if is_filed:
        store.entries["A", 0][1] = oracle.cq_unit(1 << 40, 100, 0)
    (store.write(crashed=not is_filed) / "commitlog" / f"{0:020}").unlink()
    expected = "1 message readable; 1 queue offset between the ends of queues has no message"
    assert expected in diagnose(str(tmp_path)).verdict


def test_a_file_shorter_than_those_of_other_queues_is_cut(tmp_path: Path) -> None:
    """A broker does not start (ConsumeQueue.load)."""
    store = BrokerStore(tmp_path)
    for topic in "AABC":
        store.put(topic)
    root = store.write()
    os.truncate(root / "consumequeue/A/0" / f"{0:020d}", 60)
    found = diagnose(str(root))
    assert found.verdict.startswith("damaged in 1 place: 4 messages readable")
    assert found.of("damage")[0].expected == "a file of 160 bytes, as in other queues"


def test_entries_of_expired_messages_are_right(tmp_path: Path) -> None:
    """Two messages claim one offset, and the first of them has expired."""
    store = BrokerStore(tmp_path, log_file_size=1024)
    for _ in range(6):
        store.put("A")
    for offset in (4, 5, 6):
        store.put("A", offset=offset)
    root = store.write()
    (root / "commitlog" / f"{0:020d}").unlink()
    assert diagnose(str(root)).verdict.startswith("sound: 1 message readable; 2 messages are in no queue")


def test_entries_that_a_broker_makes_at_other_offsets_do_not_wait_for_it(tmp_path: Path) -> None:
    """It files one entry behind the other, from the offset of the first message on."""
    store = BrokerStore(tmp_path)
    for offset in (0, 4):
        store.put("A", offset=offset, files=False)
    assert diagnose(str(store.write(crashed=True))).verdict.startswith("damaged in 1 place")


def test_a_message_without_the_offset_of_its_light_queue_is_damage(tmp_path: Path) -> None:
    """Power was lost: the end of its properties is zeros. Its own queue has the message."""
    store = BrokerStore(tmp_path, conf={"enableLmq": "true", "enableMultiDispatch": "true"})
    store.put("P", properties={"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0"})
    path = store.write() / "commitlog" / f"{0:020d}"
    path.write_bytes(path.read_bytes().replace(b"INNER_MULTI_QUEUE_OFFSET\x010", bytes(26)))
    assert "1 message readable; 1 queue offset between the ends" in diagnose(str(tmp_path)).verdict


def test_a_store_without_the_directory_of_the_queues_does_not_show_whether_it_has_light_ones(
    tmp_path: Path,
) -> None:
    """A read returns them from the commitlog; a broker without enableLmq does not make them again."""
    store = BrokerStore(tmp_path)
    for number in range(2):
        named = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": str(number)}
        store.put("P", properties=named)
    shutil.rmtree(store.write(crashed=True) / "consumequeue")
    assert diagnose(str(tmp_path)).verdict.startswith("damaged in 1 place: 2 messages readable")


def test_a_blank_file_behind_a_full_one_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that starts counts an entry in it (ConsumeQueue.truncateDirtyLogicFiles)."""
    store = BrokerStore(tmp_path, queue_entries=2)
    store.put("A")
    store.put("A")
    (store.write() / "consumequeue/A/0" / f"{40:020d}").write_bytes(bytes(40))
    found = diagnose(str(tmp_path)).verdict
    assert found.startswith("sound, with 1 warning: 2 messages readable; 1 queue offset between")
    assert len(MessageStore.open(str(tmp_path)).queue("A", 0).to_table()) == 2
    assert caplog.messages[0].startswith(f"{tmp_path}: 1 consume queues end with a blank file: A-0.")


def test_a_message_of_another_place_than_its_entry_is_damage_that_stays(tmp_path: Path) -> None:
    """A flipped queueId makes it claim the place of another message, which has its entry."""
    store = BrokerStore(tmp_path)
    for queue in (1, 3, 1, 3):
        store.put("A", queue)
    flip(store.write(), store.messages[1].physical_offset + 15, 2)
    found = diagnose(str(tmp_path))
    assert [each.advice for each in found.of("damage")] == [CLAIM_ADVICE]
    assert verdict(found)[1] is NextStep.NOTHING
    assert recover(str(tmp_path)).apply().filter(pc.field("part") == "consumequeue").num_rows == 0


def test_a_second_message_with_an_offset_hides_no_wrong_entry(tmp_path: Path) -> None:
    """After a crash: a flipped queueId makes a message claim a place in a queue that a broker makes."""
    store = BrokerStore(tmp_path)
    for offset in (0, 1, 2, 3, 3, 4):
        store.put("A", offset=offset)
    flip(store.write(crashed=True), store.messages[1].physical_offset + 15, 4)
    assert [each.expected for each in diagnose(str(tmp_path)).of("damage")] == ["the message A-0 offset 1"]


@pytest.mark.parametrize("checkpoint", [True, False])
def test_the_sizes_of_a_blank_index_are_asked_for(tmp_path: Path, checkpoint: bool) -> None:
    """The checkpoint tells that there were entries; without its times the file does."""
    store = BrokerStore(tmp_path)
    store.put("A")
    for path in (store.write() / "index").iterdir():
        path.write_bytes(bytes(path.stat().st_size))
    if not checkpoint:
        (tmp_path / "checkpoint").write_bytes(bytes(4096))
    assert diagnose(str(tmp_path)).lacks_settings


def test_a_blank_file_without_messages_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The messages of its queue are gone; a broker that starts counts one."""
    store = BrokerStore(tmp_path)
    store.put("B")
    store.topic("A")
    store.entries["A", 0], store.first["A", 0] = [bytes(20)], 0
    text = diagnose(str(store.write())).verdict
    assert text.startswith("sound, with 1 warning: 1 message readable; 1 queue offset between")
    assert len(MessageStore.open(str(tmp_path)).queue("A", 0).to_table()) == 0
    assert caplog.messages[0].startswith(f"{tmp_path}: 1 consume queues end with a blank file: A-0.")


def test_lost_last_files_of_a_crashed_log_are_no_end_of_it(tmp_path: Path) -> None:
    """Entries lead into a file that is gone, as a recovery says, which refuses."""
    store = BrokerStore(tmp_path, log_file_size=1024)
    for _ in range(9):
        store.put("A")
    *_, last = sorted((store.write(crashed=True) / "commitlog").iterdir())
    gone = sum(each.physical_offset >= int(last.name) for each in store.messages)
    last.unlink()
    text, step = verdict(diagnose(str(tmp_path)))
    assert f"{9 - gone} messages readable, {gone} messages lost, with the last commitlog files: copy" in text
    assert step is NextStep.SALVAGE
    with pytest.raises(CorruptStoreError, match="found no later file"):
        recover(str(tmp_path)).apply()


def test_a_message_before_that_of_the_last_entry_does_not_wait_for_a_broker(tmp_path: Path) -> None:
    """A broker that starts does not file it (ConsumeQueue.putMessagePositionInfo)."""
    store = BrokerStore(tmp_path)
    store.put("A")
    store.put("A")
    path = store.write(crashed=True) / "consumequeue/A/0" / f"{0:020d}"
    path.write_bytes(path.read_bytes()[20:] + bytes(20))
    lacking = [each for each in diagnose(str(tmp_path)) if each.expected.startswith("entries of A-0")]
    assert [each.severity for each in lacking] == ["damage"]


def test_a_queue_that_a_broker_makes_and_no_client_reads_is_named(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path)
    store.put("A", 4, files=False)
    store.topic("A", queues=1)
    store.write(crashed=True)
    assert diagnose(str(tmp_path)).verdict.startswith("sound after a crash, with 1 warning: ")


def test_a_queue_that_a_broker_makes_of_a_topic_without_configuration_is_named(tmp_path: Path) -> None:
    store = BrokerStore(tmp_path)
    store.put("A", files=False)
    del store.topics["A"]
    store.write(crashed=True)
    text = diagnose(str(tmp_path)).verdict
    assert text.startswith("sound after a crash, with 1 warning: ")
    assert "1 message of 1 topic that a broker does not serve" in text


def test_a_message_at_whose_offset_a_broker_files_a_second_first_one_does_not_wait(tmp_path: Path) -> None:
    """It files each message with offset 0, and then leaves out the message with offset 1."""
    store = BrokerStore(tmp_path)
    for offset in (0, 0, 1):
        store.put("A", offset=offset, files=False)
    (store.write(crashed=True) / "consumequeue/A/0").mkdir(parents=True)
    (tmp_path / "consumequeue/A/0" / f"{0:020d}").write_bytes(bytes(160))
    assert diagnose(str(tmp_path)).verdict.startswith("damaged in 1 place: 2 messages readable; 1 message is")


def test_messages_that_only_their_light_queue_leads_to_are_readable(tmp_path: Path) -> None:
    """The zeros end the queue of the messages, and a broker that starts looks at later messages only."""
    lmq = {"enableLmq": "true", "enableMultiDispatch": "true"}
    store = BrokerStore(tmp_path, log_file_size=1024, conf=lmq)
    for offset in range(6):
        light = {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": str(offset)}
        store.put("A", body=b"short", properties=light)
    for _ in range(5):
        store.put("B", body=b"long" * 200)
    store.entries["A", 0][2:4] = [bytes(20)] * 2
    found = diagnose(str(store.write(crashed=True)))
    assert found.verdict.startswith("damaged in 1 place: 11 messages readable")
    assert "4 whole messages that no read returns from their queues" in found.verdict


def test_an_entry_with_an_impossible_size_is_not_that_of_an_expired_message(tmp_path: Path) -> None:
    """A queue file that is shifted by a byte: its first entry leads before the log."""
    store = BrokerStore(tmp_path, begin=1 << 16)
    for topic in "BBAA":
        store.put(topic)
    path = store.write() / "consumequeue/A/0" / f"{0:020d}"
    path.write_bytes(bytes(1) + path.read_bytes()[:-1])
    found = diagnose(str(tmp_path))
    assert len(MessageStore.open(str(tmp_path)).queue("A", 0).to_table()) == 2
    assert found.summary.readable == 4

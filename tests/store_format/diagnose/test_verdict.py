"""What a diagnosis comes to: the counts of a broker's cut, the sentence, and the next step."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from store_format import MessageStore
from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.diagnose.broker_start import broker_start
from store_format.diagnose.problems import NextStep, verdict
from store_format.errors import CorruptStoreError
from tests.support import goldens
from tests.support.damages import Damaged
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.reads import flip
from tests.support.referee.made import made, made_and_harmed
from tests.support.staged import deleted_topic
from tests.support.writes import held

COMPRESSED_AT = 39  # the byte of a record with the bit of its sysFlag
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
    assert "messages of Orders that a broker does not serve" in sentence


def test_messages_without_an_entry_are_not_readable(copy: Golden) -> None:
    root = copy(CLEAN)
    Damaged(root).do("zero_the_last_entries")
    sentence, step = verdict(diagnose(str(root)))
    assert "2,007 messages readable; 3 whole messages that no read returns from their queues" in sentence
    assert step is NextStep.RECOVER


def test_the_delay_of_a_level_without_entries_is_asked_for(copy: Golden) -> None:
    root = copy("delay-tx-5.5.0")
    shown = diagnose(str(root)).lacks_settings
    for path in (root / "consumequeue/SCHEDULE_TOPIC_XXXX").glob("*/*"):
        path.write_bytes(bytes(path.stat().st_size))
    assert (shown, diagnose(str(root)).lacks_settings) == (False, True)


def test_a_queue_that_a_broker_makes_of_a_topic_without_configuration_is_named(tmp_path: Path) -> None:
    store = made(tmp_path, "A?")
    del store.topics["A"]
    store.write(crashed=True)
    text = diagnose(str(tmp_path)).verdict
    assert text.startswith("sound after a crash, with 1 warning: ")
    assert "1 message of A that a broker does not serve" in text


def test_a_lost_queue_and_a_lost_topic_are_counted_together(copy: Golden) -> None:
    """The same number as in the preview of the recovery."""
    root = copy(CLEAN)
    shutil.rmtree(root / "consumequeue/Orders/1")
    for name in ("topics.json", "topics.json.bak"):
        (root / "config" / name).write_text("{")
    sentence, plan = diagnose(str(root)).verdict, recover(str(root))
    plan.table()
    assert plan.unserved().messages == 2007
    assert str(plan.unserved()) in sentence


def test_queue_offsets_that_a_deleted_topic_never_gave_are_not_lost(tmp_path: Path) -> None:
    root, new = tmp_path / "store", tmp_path / "new"
    made_and_harmed(root, "A A@5 B B", "flip m2+88")
    deleted_topic(root, "A")
    assert "1 message readable, 1 message lost" in diagnose(str(root)).verdict
    recover(str(root), into=str(new), salvage=True).apply()
    assert "an earlier recovery gave up 1 message;" in diagnose(str(new)).verdict


def test_messages_that_a_group_may_replace_are_counted_by_topic(golden: Golden) -> None:
    """Entry i of a ledger is its message i: those behind committedIndex count."""
    name = "dledger-crash-5.5.0"
    root = golden(name)
    (said,) = re.findall(r"committedIndex=(\d+)", (root / "dledger-n0/checkpoint").read_text())
    rows = sorted(goldens.expected_rows(name), key=lambda row: row["physicalOffset"])
    behind = Counter(row["topic"] for row in rows[int(said) + 1 :])
    found = diagnose(str(root))
    start, _, topics = found.uncommitted.partition(": ")
    counts = f"{behind.total()} messages behind the committed index {said} are not known to be committed"
    assert start == counts
    assert {each.split(" of ")[1]: int(each.split()[0]) for each in topics.split(", ")} == behind
    assert found.uncommitted in verdict(found)[0]
    cause = broker_start(found).cause
    assert found.uncommitted in cause
    assert "without a majority there is no leader" in cause
    assert diagnose(str(golden("dledger-5.5.0"))).uncommitted == ""


def test_damage_of_a_store_with_tiered_storage_keeps_a_broker_from_a_start(copy: Golden) -> None:
    root = copy("tiered-5.5.0")
    sound = broker_start(diagnose(str(root)))
    assert (sound.may, "such as tiered storage" in sound.cause) == ("unknown", True)
    overwrite(root / "commitlog" / "00000000000000131072", 20_000, bytes(300))
    damaged = broker_start(diagnose(str(root)))
    assert (damaged.may, damaged.cause.split(" whole")[0]) == ("no", "it cuts 87")


def test_a_damaged_dledger_log_is_not_called_good_to_start(copy: Golden) -> None:
    root = copy("dledger-crash-5.5.0")
    assert "start the broker" in broker_start(diagnose(str(root))).cause
    overwrite(root / "dledger-n0" / "data" / f"{0:020d}", 30_000, bytes(300))
    found = broker_start(diagnose(str(root)))
    assert found.may == "unknown"
    assert "a start cuts 253 whole messages behind the damage" in found.cause
    assert "start the broker" not in found.cause


def test_files_of_a_killed_round_are_moved_before_anything_else(copy: Golden) -> None:
    root = copy("compaction-5.5.0")
    (root / "compaction" / "compactionLog" / "Stock" / "0" / f"{0:020d}.delete").touch()
    found = diagnose(str(root))
    assert verdict(found)[1] is NextStep.AGAIN
    assert "to be moved out of compaction/" in broker_start(found).cause

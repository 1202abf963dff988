"""The report: its numbers are those of the oracle, its page is harmless, and nothing in the store changes."""

from __future__ import annotations

import json
import os
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.report import report
from store_format.commit.recover import recover
from store_format.diagnose.broker_start import MayStart
from store_format.metadata.group_offsets import write_group_offsets
from store_format.metadata.read import BrokerConf
from store_format.opened.store import Opened
from tests.support import goldens, oracle
from tests.support.file_edits import flip, harm, overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.hostile_store import HOSTILE_TOPIC, write_hostile_store
from tests.support.html_check import read_report
from tests.support.staged import append, numbered

NOW_MS = 1_795_500_000_000
DAMAGED_AT, DAMAGED_SIZE = 39_000, 2_000
SECOND_FILE = 262_144


@pytest.fixture
def damaged(copy_of: Golden) -> Path:
    """2,000 bytes of the second commitlog file are gone."""
    root = copy_of("basic-5.5.0")
    overwrite(root / "commitlog" / oracle.file_name(SECOND_FILE), DAMAGED_AT, bytes(DAMAGED_SIZE))
    return root


def _hit() -> list[dict[str, object]]:
    """The golden's messages that have some of the damaged bytes."""
    low, high = SECOND_FILE + DAMAGED_AT, SECOND_FILE + DAMAGED_AT + DAMAGED_SIZE
    return [
        row
        for row in goldens.expected_rows("basic-5.5.0")
        if row["physicalOffset"] < high and row["physicalOffset"] + row["storeSize"] > low
    ]


def test_the_lost_messages_are_those_that_the_bytes_were_of(damaged: Path, unchanged: Unchanged) -> None:
    with unchanged(damaged):
        found = json.loads(report(str(damaged), now_ms=NOW_MS).json())
    hit = _hit()
    assert len(hit) > 2
    rows = found["lost"]["rows"]
    places = ("topic", "queueId", "queueOffset", "physicalOffset")
    assert sorted([row[name] for name in places] for row in rows) == sorted(
        [row[name] for name in places] for row in hit
    )
    assert found["log"]["lostEntries"] == len(hit)
    assert found["log"]["readable"] == len(goldens.expected_rows("basic-5.5.0")) - len(hit)
    times = {row["physicalOffset"]: row["storeTimestamp"] for row in hit}
    for row in rows:  # from the index: within a second, and no millisecond is made up
        true = times[row["physicalOffset"]]
        assert isinstance(true, int)
        told = datetime.fromisoformat(row["storeTimestamp"])
        assert told.microsecond == 0
        assert abs(told - datetime.fromtimestamp(true / 1000, UTC)) <= timedelta(seconds=1)
        assert row["timeAccuracy"] == "about, within 1 s"
        assert row["keyHashes"]
        assert row["evidence"].endswith("; the index has its time and the hashes of its keys")


@pytest.mark.parametrize("name", ["crash-5.5.0", "crash-torn-5.5.0", "cleaned-5.5.0", "retry-dlq-5.5.0"])
def test_the_messages_are_those_that_a_real_broker_had(golden: Golden, name: str) -> None:
    """By topic: what the classes of the broker read from the store."""
    found = json.loads(report(str(golden(name)), now_ms=NOW_MS).json())
    expected = Counter(row["topic"] for row in goldens.expected_rows(name))
    told = {row["topic"]: row["messages"] for row in found["topics"]["rows"] if row["messages"]}
    assert told == expected
    assert found["log"]["readable"] == expected.total()


def test_a_record_whose_body_alone_is_damaged_still_says_its_keys(copy_of: Golden) -> None:
    root, row = copy_of("basic-5.5.0"), goldens.expected_rows("basic-5.5.0")[500]
    start = row["physicalOffset"] // SECOND_FILE * SECOND_FILE
    path = root / "commitlog" / oracle.file_name(start)
    message = oracle.decode_message(path.read_bytes(), row["physicalOffset"] - start, start)
    flip(path, row["physicalOffset"] - start + 4 * 22 + 1)
    (found,) = json.loads(report(str(root), now_ms=NOW_MS).json())["lost"]["rows"]
    assert (found["topic"], found["queueOffset"]) == (row["topic"], row["queueOffset"])
    assert found["keys"] == message.properties["KEYS"].split()
    assert found["msgId"] == message.properties["UNIQ_KEY"]
    assert datetime.fromisoformat(found["storeTimestamp"]).timestamp() * 1000 == row["storeTimestamp"]
    assert found["timeAccuracy"] is None  # the record says it to the millisecond


def test_groups_lose_what_they_have_not_consumed(damaged: Path) -> None:
    committed = goldens.expected("basic-5.5.0")["consumerOffset"]["offsetTable"]
    found = json.loads(report(str(damaged), now_ms=NOW_MS).json())["groups"]["rows"]
    for row in found:
        offsets = {int(id_): at for id_, at in committed[f"{row['topic']}@{row['group']}"].items()}
        mine = [each for each in _hit() if each["topic"] == row["topic"] and each["queueId"] in offsets]
        unread = [each for each in mine if each["queueOffset"] >= offsets[each["queueId"]]]  # type: ignore[index]
        assert (row["lostUnread"], row["lostConsumed"]) == (len(unread), len(mine) - len(unread))
    assert len(found) > 1


@pytest.mark.parametrize(
    ("harms", "may", "cause"),
    [
        ("", MayStart.YES, ""),
        ("create commitlog/notes.txt 1", MayStart.NO, "it refuses to start: expected only files whose names"),
        ("remove consumequeue/Orders/1", MayStart.NO, "it does not serve "),
        ("remove commitlog", MayStart.NO, "the commitlog is missing"),
    ],
)
def test_whether_a_broker_may_start(copy_of: Golden, harms: str, may: MayStart, cause: str) -> None:
    """`tests/support/referee/law.py` compares the answer with the real classes."""
    root = copy_of("basic-5.5.0")
    if harms:
        harm(root, harms)
    found = report(str(root), now_ms=NOW_MS)
    assert found.start.may is may
    assert found.start.cause.startswith(cause)
    assert str(found.start.may) in found.markdown()
    assert f"answer {found.start.may}" in found.html()


@pytest.mark.parametrize("name", ["basic-5.5.0", "crash-torn-5.5.0", "retry-dlq-5.5.0", "pop-5.5.0"])
def test_the_page_is_one_file_and_has_every_topic(golden: Golden, name: str, unchanged: Unchanged) -> None:
    with unchanged(golden(name)):
        page = read_report(report(str(golden(name)), now_ms=NOW_MS, sha256=True).html())
    for topic in {row["topic"] for row in goldens.expected_rows(name)}:
        assert topic in page.text


def test_no_text_of_a_store_becomes_a_part_of_the_page(tmp_path: Path) -> None:
    root = write_hostile_store(tmp_path / "</title><script>alert(1)</script>")
    queue = root / "consumequeue" / HOSTILE_TOPIC / "0"
    overwrite(next(queue.iterdir()), 0, bytes(8))
    (root / "config").mkdir()
    (root / "config/topics.json").write_text('{"<script>"')
    found = report(str(root), now_ms=NOW_MS, next_command=lambda _: "rmqlog recover '<script>' \x1b[2J")
    assert "<svg onload" in read_report(found.html()).text
    assert "<span>rmqlog</span> <span>recover</span>" in found.html()  # a line breaks between words only
    texts = [line for line in found.markdown().splitlines() if not line.startswith("    ")]  # a block of code
    assert not any("<" in line.replace("\\<", "") for line in texts)
    assert "\x1b" not in found.markdown() + found.json()
    json.loads(found.json())


def test_a_store_without_messages_has_a_report(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    found = report(str(tmp_path), now_ms=NOW_MS)
    read_report(found.html())
    assert found.verdict == "empty: the commitlog has no files"


# ---- before a broker starts ------------------------------------------------------------------------------


def _aged(root: Path, hours: int) -> Path:
    """All commitlog files were modified so long before NOW_MS."""
    for file in (root / "commitlog").iterdir():
        os.utime(file, ns=(0, (NOW_MS - hours * 3_600_000) * 1_000_000))
    return root


def test_a_start_that_deletes_unread_messages_within_a_day_is_not_a_plain_yes(copy_of: Golden) -> None:
    root = _aged(copy_of("basic-5.5.0"), 100)
    found = report(str(root), now_ms=NOW_MS)
    unread = sum(
        row["nextLostMessages"] or 0 for row in json.loads(found.json())["lag"]["rows"]
    )  # all rows are of one deletion
    assert (found.start.may, found.start.cause) == (MayStart.YES, "")
    assert found.start_warning.startswith(f"deletes {unread:,} messages (the sum over the groups) that ")
    assert "set fileReservedTime=172 in broker.conf first" in found.start_warning
    for text in (found.html(), found.markdown(), found.json()):
        assert "fileReservedTime=172 in broker.conf" in text.replace("\\", "")
    later = report(str(root), now_ms=NOW_MS, broker_conf=BrokerConf(file_reserved_hours=172))
    assert later.start_warning == ""


@pytest.mark.parametrize(
    ("harms", "since"),
    [
        ("remove config/consumerOffset.json", "groups get the messages"),
        ("cut config/topics.json 9", "topics and queues"),
    ],
)
def test_a_backup_that_counts_is_named_with_its_age(copy_of: Golden, harms: str, since: str) -> None:
    root = copy_of("basic-5.5.0")
    newest = max(row["storeTimestamp"] for row in goldens.expected_rows("basic-5.5.0"))
    assert "backups" not in json.loads(report(str(root), now_ms=NOW_MS).json())
    harm(root, harms)
    name = harms.split()[1].split("/")[1]
    os.utime(root / f"config/{name}.bak", ns=(0, (newest - 754_000) * 1_000_000))
    (found,) = [each for each in report(str(root), now_ms=NOW_MS).sections if each.key == "backups"]
    assert f"{name}.bak counts instead, as for a broker. It was written at " in found.warning
    assert f", about 12m34s before the last message; {since}" in found.warning


@pytest.mark.parametrize(
    ("name", "why"),
    [("crash-5.5.0", "a broker that starts recovers the log itself"), ("basic-5.5.0", "")],
)
def test_a_recovery_that_a_start_does_not_need_is_optional(golden: Golden, name: str, why: str) -> None:
    found = report(
        str(golden(name)), now_ms=NOW_MS, next_command=lambda _: "rmqlog recover STORE" if why else ""
    )
    assert found.optional == (f"rmqlog recover is optional: {why}" if why else "")
    assert found.optional in found.start_cause


# ---- compared with an earlier store ------------------------------------------------------------------------


def _compared(before: Path, now: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    found = report(str(now), before=str(before), now_ms=NOW_MS)
    read_report(found.html())
    document = json.loads(found.json())
    return document["before"], document["settings"]


def test_a_recovered_copy_has_what_could_be_read_and_nothing_else(damaged: Path, tmp_path: Path) -> None:
    recover(str(damaged), into=str(tmp_path / "new"), salvage=True).apply()
    messages, settings = _compared(damaged, tmp_path / "new")
    same, again = messages["about"].split(" Groups that read again from before ")
    assert same == "Each message that could be read before is here as it was, and no other."
    lost = {f"{row['topic']}/{row['queueId']}@{row['queueOffset']}" for row in _hit()}
    start = f"these offsets get {len(lost)} messages again: "
    assert again.startswith(start)
    assert set(again.removeprefix(start).removesuffix(".").split(", ")) == lost
    assert settings["about"] == "Topics, groups and committed offsets are as they were."


def test_what_is_missing_new_and_set_is_named(copy_of: Golden, golden: Golden, damaged: Path) -> None:
    messages, _ = _compared(golden("basic-5.5.0"), damaged)
    hit = _hit()
    assert messages["warning"] == f"{len(hit)} messages of the earlier store are missing or changed here."
    assert {(row["topic"], row["queueOffsetA"]) for row in messages["rows"]} == {
        (row["topic"], row["queueOffset"]) for row in hit
    }


def test_a_group_that_was_set_and_messages_that_came_are_named(copy_of: Golden, golden: Golden) -> None:
    root = copy_of("basic-5.5.0")
    append(root, numbered("Audit", 9_000, 3, queues=1))
    opened = Opened(str(root))
    write_group_offsets(opened, "CG_all", {("Audit", 0): 7}, timestamp=NOW_MS, is_reset=True)
    messages, settings = _compared(golden("basic-5.5.0"), root)
    assert messages["about"] == "Each message that could be read before is here as it was; others came."
    assert [row["difference"] for row in messages["rows"]] == ["onlyInB"] * 3
    (row,) = settings["rows"]
    assert row == {"kind": "offset", "name": "CG_all Audit-0", "before": "351", "now": "7"}

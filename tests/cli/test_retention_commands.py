"""`retention`: the disk, the next deletion, and who loses unread messages by it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from store_format.files.read import files_at
from tests.support import goldens
from tests.support.cli_runs import Run, Runner
from tests.support.fixtures import Golden, Unchanged

CLEANED = "cleaned-5.5.0"
HOUR = 3_600_000
NOW = 1_795_244_400_000  # 2026-11-21T07:00:00Z
ASKED = ("--now", NOW, "--tz", "UTC")


@pytest.fixture(scope="module")
def aged(golden: Golden, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose commitlog files were modified an hour apart, the last one at NOW."""
    root = Path(shutil.copytree(golden(CLEANED), tmp_path_factory.mktemp("aged") / "store"))
    for age, file in enumerate(sorted((root / "commitlog").iterdir(), reverse=True)):
        os.utime(file, ns=(0, (NOW - age * HOUR) * 1_000_000))
    return root


def _document(done: Run) -> dict[str, Any]:
    (document,) = json.loads(done.out)
    return document


def _unread_before(group: str, topic: str, stop: int) -> int:
    """The group's unread messages of the topic that lie before a physical offset."""
    offsets = goldens.expected(CLEANED)["consumerOffset"]["offsetTable"][f"{topic}@{group}"]
    return sum(
        row["topic"] == topic
        and row["physicalOffset"] < stop
        and row["queueOffset"] >= offsets.get(str(row["queueId"]), 1 << 60)
        for row in goldens.expected_rows(CLEANED)
    )


def test_the_next_deletion_and_its_losses(rmqlog: Runner, aged: Path, unchanged: Unchanged) -> None:
    files = sorted((aged / "commitlog").iterdir())
    with unchanged(aged):
        done = rmqlog("retention", aged, *ASKED, "-o", "json")
    assert done.code == 0, done.err
    found = _document(done)
    assert (found["fileReservedTime"], found["deleteWhen"]) == (72, [4])
    assert (found["commitLogFiles"], found["commitLogBytes"]) == (len(files), len(files) * 65_536)
    assert found["diskTotalBytes"] == files_at(str(aged)).disk_space(str(aged)).total_bytes
    # The files expire from 01:00 on the 24th on, one an hour: at 04:00 four of them have expired.
    assert found["nextDeletionTimestamp"] == "2026-11-24T04:00:00.000Z"
    assert (found["nextDeletionFiles"], found["nextDeletionBytes"]) == (4, 4 * 65_536)
    assert {row["deletionTimestamp"] for row in found["losses"]} == {"2026-11-24T04:00:00.000Z"}
    lag = rmqlog.rows("lag", aged, *ASKED, "-g", "CG_*")
    behind = {(row["group"], row["topic"]): row for row in lag if row["expiresTimestamp"]}
    for each in rmqlog.rows(
        "info", aged, "--view", "retention", *ASKED
    ):  # the first file that any queue needs
        if (soonest := behind.get((each["group"], each["topic"]))) and each["expiresInMs"] is not None:
            assert soonest["expiresInMs"] <= each["expiresInMs"]
    for row in found["losses"]:
        other = behind.pop((row["group"], row["topic"]))
        assert row["expiresTimestamp"] == other["expiresTimestamp"]
        assert row["lostMessages"] == other["lostMessages"]
        assert row["nextLostMessages"] >= other["nextLostMessages"] > 0
        assert row["nextLostMessages"] == _unread_before(row["group"], row["topic"], int(files[4].name))
    assert not behind
    verdict = "3 groups lose 904 unread messages to retention (the sum over the groups), the first"
    assert found["verdict"].startswith(verdict)
    assert found["next"].startswith(f"rmqlog lag {aged} -l -g CG_")


def test_settings_change_what_is_deleted_and_when(rmqlog: Runner, aged: Path, tmp_path: Path) -> None:
    def asked(*more: object) -> dict[str, Any]:
        return _document(rmqlog("retention", aged, *ASKED, "-o", "json", *more))

    later = asked("--delete-when", "09;22")
    assert later["deleteWhen"] == [9, 22]
    assert later["nextDeletionTimestamp"] == "2026-11-24T09:00:00.000Z"
    now = asked("--file-reserved-time", 2, "--delete-when", "07")
    assert now["nextDeletionTimestamp"] == "2026-11-21T07:00:00.000Z"
    assert 0 < now["nextDeletionFiles"] < later["nextDeletionFiles"]
    soon, late = (sum(row["nextLostMessages"] or 0 for row in each["losses"]) for each in (now, later))
    assert 0 < soon < late
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=2\ndeleteWhen=07\n")
    assert asked("--broker-conf", conf)["losses"] == now["losses"]
    assert asked("--broker-conf", conf, "--file-reserved-time", 72)["fileReservedTime"] == 72
    shanghai = rmqlog("retention", aged, "--now", NOW, "--tz", "+08:00", "-o", "json")
    document = _document(shanghai)
    assert document["nextDeletionTimestamp"] == "2026-11-25T04:00:00.000+08:00"
    assert {row["deletionTimestamp"][-6:] for row in document["losses"] if row["deletionTimestamp"]} == {
        "+08:00"
    }
    shown = rmqlog("retention", aged, "--now", NOW, "--tz", "+08:00").out
    assert "(deleteWhen 04 UTC+08:00)" in shown  # whose hour it is
    said = rmqlog.fails(2, "retention", aged, "--delete-when", "25")
    assert said == "--delete-when: expected hours from 00 to 23, separated by ;, found '25'"


def test_the_report_has_facts_rows_and_a_verdict(rmqlog: Runner, aged: Path) -> None:
    done = rmqlog("retention", aged, *ASKED)
    lines = done.out.splitlines()
    assert re.fullmatch(r"rmqlog: --now is .* UTC \(\d+\)\n", done.err)
    facts = ["disk", "levels", "commitlog", "expired", "next deletion"]
    assert [line[:15].strip() for line in lines[:5]] == facts
    assert lines[1].endswith("75 % deletes at any hour, 85 % at any age, 90 % refuses writes")
    assert lines[3].endswith("72 h after the last write (default; --broker-conf has yours)")
    assert lines[4].endswith("2026-11-24 04:00 UTC, in 2d21h (deleteWhen 04 UTC): 4 files, 256 KiB")
    assert lines[6].split()[:3] == ["group", "topic", "lagMessages"]
    assert lines[-2].endswith("over the groups), the first at 2026-11-24 04:00 UTC; 383 are lost already")
    assert lines[-1].startswith(f"next:    rmqlog lag {aged} -l -g CG_")
    rows = rmqlog("retention", aged, *ASKED, "-o", "csv", "-g", "CG_some")
    assert [line.split(",")[1] for line in rows.out.splitlines()] == ["group", "CG_some"]
    assert "rmqlog: verdict: CG_some loses" in rows.err


def test_the_queues_are_the_rows_of_the_view(rmqlog: Runner, aged: Path) -> None:
    queues = _document(rmqlog("retention", aged, *ASKED, "-l", "-o", "json"))["losses"]
    rows = rmqlog.rows("info", aged, "--view", "retention", *ASKED)
    assert queues == rows
    limited = rmqlog("retention", aged, *ASKED, "-l", "-n", 2, "-o", "json")
    assert _document(limited)["losses"] == rows[:2]
    assert rmqlog.table("retention", aged, *ASKED, "-l")[6][:3] == ["group", "topic", "queueId"]


def test_a_loss_that_no_queue_tells_is_unknown(rmqlog: Runner, aged: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(aged, tmp_path / "store"))
    shutil.rmtree(store / "consumequeue" / "Orders" / "0")
    found = _document(rmqlog("retention", store, *ASKED, "-g", "CG_some", "-o", "json"))
    (row,) = found["losses"]
    assert (row["topic"], row["nextLostMessages"]) == ("Orders", None)
    assert row["deletionTimestamp"] == "2026-11-24T04:00:00.000Z"
    assert found["verdict"].startswith(
        "CG_some loses an unknown number of unread messages to retention, the first"
    )


def test_a_file_that_is_no_broker_conf_is_an_error(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    path = tmp_path / "some.file"
    for text, quoted in (
        ("# users\nroot:x:0:0:root:/root:/bin/bash\n", "line 2 is 'root:x:0:0:root:/root:/bin/bash'"),
        ('{"fileReservedTime": 48}', "line 1 is '{\"fileReservedTime\": 48}'"),
        ("\x7fELF\x02\n", r"line 1 is '\x7fELF\x02'"),
        ("PATH=/usr/bin\n", "line 1 is 'PATH=/usr/bin'"),
    ):
        path.write_text(text, encoding="latin-1")
        for verb in ("retention", "lag", "delay", "clean"):
            said = rmqlog.fails(2, verb, golden("basic-5.5.0"), "--broker-conf", path)
            assert said.startswith(f"{path}: expected a broker.conf, with lines such as fileReservedTime=48")
            assert f"found no setting; {quoted}. Give the file with which the broker is started" in said
    for text in ("", "# only a comment\n\n", "namesrvAddr = a:9876\n", " fileReservedTime=48\\\n"):
        path.write_text(text, encoding="latin-1")
        assert rmqlog("retention", golden("basic-5.5.0"), "--broker-conf", path).code == 0


def _two_brokers(aged: Path, path: Path) -> Path:
    """A directory of `aged`, and of another broker before it, whose files were written a day later."""
    late = Path(shutil.copytree(aged, path / "a-late"))
    topics = late / "config" / "topics.json"
    topics.write_text(topics.read_text().replace("SYNC_BROKER_MEMBER_broker-a", "SYNC_BROKER_MEMBER_late"))
    for file in (late / "commitlog").iterdir():
        os.utime(file, ns=(0, file.stat().st_mtime_ns + 24 * HOUR * 1_000_000))
    shutil.copytree(aged, path / "z-soon")
    return path


@pytest.mark.parametrize("more", [(), ("-l",)])
def test_the_soonest_loss_of_all_brokers_comes_first(
    rmqlog: Runner, aged: Path, tmp_path: Path, more: tuple[str, ...]
) -> None:
    fleet = _two_brokers(aged, tmp_path / "fleet")
    done = rmqlog("retention", fleet, *ASKED, *more, "-o", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
    losing = [row for row in rows if row["expiresTimestamp"]]
    assert {row["brokerName"] for row in losing} == {"late", "broker-a"}
    # deleteWhen 04: a day lies between the deletions of the two brokers
    assert [row["brokerName"] for row in losing] == sorted(row["brokerName"] for row in losing)
    assert rows[: len(losing)] == losing
    first = rmqlog("retention", fleet, *ASKED, *more, "-n", 1, "-o", "jsonl").out
    assert json.loads(first) == rows[0]


def test_lag_by_the_next_loss_is_in_the_order_of_retention(
    rmqlog: Runner, aged: Path, tmp_path: Path
) -> None:
    """All files have expired, so one deletion takes them: the largest loss first, not the oldest file."""
    fleet = _two_brokers(aged, tmp_path / "fleet")
    done = rmqlog("lag", fleet, "--now", NOW + 9_000 * HOUR, "--sort", "loss", "-o", "jsonl")
    rows = [json.loads(line) for line in done.out.splitlines()]
    lost = [row["nextLostMessages"] for row in rows if row["expiresTimestamp"]]
    assert lost[0] > lost[-1]
    assert lost == sorted(lost, reverse=True)
    assert "" not in rows[0]


def test_a_broker_conf_is_for_the_broker_that_it_names(rmqlog: Runner, aged: Path, tmp_path: Path) -> None:
    fleet, conf = _two_brokers(aged, tmp_path / "fleet"), tmp_path / "late.conf"
    other = tmp_path / "broker-a.conf"
    conf.write_text("brokerName=late\nfileReservedTime=48\n")
    other.write_text("brokerName=broker-a\nfileReservedTime=24\n")

    def hours(*more: object) -> dict[str, int]:
        documents = json.loads(rmqlog("retention", fleet, *ASKED, "-o", "json", *more).out)
        return {each["brokerName"]: each["fileReservedTime"] for each in documents}

    assert hours("--broker-conf", conf) == {"late": 48, "broker-a": 72}
    assert hours("--broker-conf", conf, "--broker-conf", other) == {"late": 48, "broker-a": 24}
    for command in (
        ("retention",),
        ("lag", "--sort", "loss"),
        ("check", "--max-loss-in", "1h"),
        ("metrics",),
    ):
        now = () if command == ("metrics",) else ("--now", NOW)
        done = rmqlog(command[0], fleet, *command[1:], *now, "--broker-conf", conf)
        assert (
            f"rmqlog: --broker-conf: {conf} is of late; default settings, or those in .rmqlog/, for broker-a"
            in done.err.splitlines()
        ), command
    conf.write_text("fileReservedTime=48\n")
    assert hours("--broker-conf", conf) == {"late": 48, "broker-a": 48}
    assert hours("--broker-conf", conf, "--broker-conf", other) == {"late": 48, "broker-a": 24}
    conf.write_text("brokerName=lat\n")
    said = rmqlog.fails(2, "retention", fleet, *ASKED, "--broker-conf", conf)
    assert said == f"{conf} is of the broker lat (brokerName); the stores are those of broker-a, late"
    alone = json.loads(rmqlog("retention", aged, *ASKED, "-o", "json", "--broker-conf", conf).out)
    assert [each["fileReservedTime"] for each in alone] == [72]
    conf.write_text("brokerName=broker-a\n")
    said = rmqlog.fails(2, "lag", fleet, "--broker-conf", conf, "--broker-conf", other)
    assert said == f"{conf} and {other} are both for the broker broker-a; give one of them"

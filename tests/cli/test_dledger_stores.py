"""The commands on DLedger stores: those that read, and the refusals of those that write or recover."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged

STORES = ("dledger-5.5.0", "dledger-crash-5.5.0", "dledger-upgraded-5.5.0")
_READERS = {
    **dict.fromkeys(("info", "ls", "du", "head", "tail", "lag", "groups", "offsets", "retention"), ()),
    "export": ("-", "--format", "csv"),
    "dump": ("0",),
}


@pytest.mark.parametrize("name", STORES)
def test_verify_checks_a_store_and_does_not_know_what_its_group_does(
    rmqlog: Runner, golden: Golden, name: str
) -> None:
    done = rmqlog("verify", golden(name), "-o", "json")
    (found,) = json.loads(done.out)
    assert done.code == 0
    assert f"{goldens.expected(name)['rows']} messages readable, none lost" in found["verdict"]
    assert "cut" not in found["verdict"]
    assert found["mayStart"] == "unknown"
    assert "a DLedger store" in found["startCause"]
    assert found["next"] == ""
    behind = [problem["found"] for problem in found["problems"] if "committedIndex" in problem["expected"]]
    assert behind == (["308"] if "crash" in name else [])


def test_verify_of_a_damaged_head_loses_no_message(rmqlog: Runner, copy_of: Golden) -> None:
    root = copy_of("dledger-5.5.0")
    overwrite(root / f"dledger-n0/data/{0:020d}", 24, b"\xff")
    done = rmqlog("verify", root)
    assert done.code == 3
    assert f"{0:020d} at byte 24: expected pos 0 in the head of a DLedger entry" in done.out
    assert "512 messages readable, none lost" in done.out


@pytest.mark.parametrize("verb", _READERS)
def test_what_reads_a_store_reads_that_of_a_ledger(rmqlog: Runner, golden: Golden, verb: str) -> None:
    done = rmqlog(verb, golden("dledger-upgraded-5.5.0"), *_READERS[verb])
    assert (done.code, "warning" in done.err) == (0, False), done.err


def test_a_message_of_a_ledger_is_found_by_key_by_id_and_in_its_life(rmqlog: Runner, golden: Golden) -> None:
    root = golden("dledger-upgraded-5.5.0")
    row = max(
        (row for row in goldens.expected_rows("dledger-upgraded-5.5.0") if row["topic"] == "Orders"),
        key=lambda row: row["physicalOffset"],
    )
    for verb, word in (
        *(("find", row["properties"]["KEYS"].split(" ")[0]), ("get", row["msgId"])),
        *(("trace", row["properties"]["UNIQ_KEY"]), ("get", row["properties"]["UNIQ_KEY"])),
    ):
        done = rmqlog(verb, root, word, "-o", "json")
        assert done.code == 0
        assert row["physicalOffset"] in [found["physicalOffset"] for found in json.loads(done.out)], verb


def test_what_writes_or_recovers_is_refused(rmqlog: Runner, golden: Golden, unchanged: Unchanged) -> None:
    root = golden("dledger-5.5.0")
    with unchanged(root):
        for words, why in (
            (("recover", root), "Its recovery belongs to its group: start the broker"),
            (("recover", root, "--apply"), "Its recovery belongs to its group: start the broker"),
            (("clean", root, "--file-reserved-time", "1"), "cannot write to a DLedger store"),
            (("clean", root, "--file-reserved-time", "1", "--apply"), "cannot write to a DLedger store"),
            (("topic", root, "New", "--create", "--apply"), "cannot write to a DLedger store"),
        ):
            done = rmqlog(*words)
            assert done.code == 2
            assert why in done.err, words


def test_a_file_of_a_ledger_expires_an_hour_later(rmqlog: Runner, golden: Golden) -> None:
    """DLedgerCommitLog keeps files for fileReservedTime + 1 hours."""
    rows = json.loads(rmqlog("info", golden("dledger-5.5.0"), "--view", "retention", "-o", "json").out)
    name = f"dledger-n0/data/{0:020d}"
    written = datetime.fromtimestamp((golden("dledger-5.5.0") / name).stat().st_mtime, UTC)
    expires = {row["expiresTimestamp"] for row in rows if row["file"] == name}
    assert {datetime.fromisoformat(text) for text in expires} == {written + timedelta(hours=72 + 1)}


def test_a_cluster_may_have_a_member_with_a_ledger(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("timerwheel", "rocksdbstore")
    shutil.copytree(golden("dledger-5.5.0"), tmp_path / "a", ignore=ignored)
    shutil.copytree(golden("basic-4.9.7"), tmp_path / "b", ignore=ignored)
    done = rmqlog("ls", tmp_path, "-o", "json")
    assert done.code == 0, done.err
    assert {row["brokerName"] for row in json.loads(done.out)} == {"broker-a", "b"}, done.out

"""`verify`: healthy stores add up to the byte, damage is named, and its exit code is 3."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support import damages, goldens
from tests.support.cli_runs import Runner
from tests.support.damages import Damaged
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.referee.made import BrokerStore
from tests.support.staged import append, numbered


@pytest.mark.parametrize(
    "name", ["basic-5.5.0", "cluster-5.5.0", "edge-5.5.0", "rocksdb-5.5.0", "crash-torn-5.5.0"]
)
def test_every_byte_is_accounted_for(rmqlog: Runner, golden: Golden, name: str, unchanged: Unchanged) -> None:
    with unchanged(golden(name)):
        done = rmqlog("verify", golden(name), "-o", "json")
    assert done.code == 0, done.out
    brokers = goldens.brokers(name, golden(name))
    document = json.loads(done.out)
    assert [each["store"] for each in document] == [str(root) for root, _ in brokers.values()]
    for each, (root, _) in zip(document, brokers.values(), strict=True):
        parts = ("unitBytes", "blankBytes", "damageBytes", "unwrittenBytes", "unplacedBytes")
        on_disk = sum(file.stat().st_size for file in (root / "commitlog").iterdir())
        assert sum(each[part] for part in parts) == each["totalBytes"] == on_disk
        assert not [problem for problem in each["problems"] if problem["severity"] == "damage"]


def test_the_table_ends_with_the_sums(rmqlog: Runner, golden: Golden) -> None:
    done = rmqlog("verify", golden("basic-5.5.0"))
    lines = done.out.splitlines()
    assert lines[0].endswith("in 4 files up to 989368; no problem")
    numbers = [int(line.split()[0].replace(",", "")) for line in lines[1:-1]]
    assert sum(numbers[:-1]) == numbers[-1] == 1048576
    assert lines[-2].endswith("bytes in all")


def test_damage_is_named_and_counted(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    orders = [row for row in goldens.expected_rows("basic-5.5.0") if row["topic"] == "Orders"]
    row = min(orders, key=lambda row: row["physicalOffset"])
    store = goldens.flipped(golden("basic-5.5.0"), tmp_path / "store", row["physicalOffset"] + 90)
    log = store / "commitlog" / "00000000000000000000"
    done = rmqlog("verify", store)
    assert done.code == 3
    assert done.out.startswith(f"damage: {log} at byte {row['physicalOffset'] + 8}: expected body CRC")
    assert f"{row['storeSize']:,}  bytes damaged" in done.out
    as_rows = rmqlog("verify", store, "-o", "jsonl")
    assert as_rows.code == 3
    first = json.loads(as_rows.out.splitlines()[0])
    assert (first["severity"], first["file"]) == ("damage", str(log))
    assert f"{row['storeSize']:,}  bytes damaged" in as_rows.err


def test_it_ends_in_a_verdict_and_the_next_command(
    rmqlog: Runner, golden: Golden, copy_of: Golden, tmp_path: Path
) -> None:
    store = golden("crash-torn-5.5.0")
    said = (
        "sound after a crash: 353 messages readable, 1 message lost with the crash; a broker start will "
        "cut 159 bytes at 120777"
    )
    next_command = f"rmqlog recover {store}"
    lines = rmqlog("verify", store).out.splitlines()
    assert lines[-2:] == [f"verdict: {said}", f"next:    {next_command}"]
    assert any(line.endswith("up to 120777; 4 warnings") for line in lines)
    (document,) = json.loads(rmqlog("verify", store, "-o", "json").out)
    assert (document["verdict"], document["next"]) == (said, next_command)
    assert (document["cutOffset"], document["cutBytes"], document["readable"]) == (120777, 159, 353)
    rows = rmqlog("verify", store, "-o", "csv")
    assert rows.err.splitlines()[-2:] == [f"rmqlog: verdict: {said}", f"rmqlog: next: {next_command}"]
    assert "verdict" not in rows.out
    cluster = rmqlog("verify", golden("cluster-5.5.0")).out
    assert cluster.count("verdict: sound: ") == 2
    assert "next: " not in cluster
    # What it says to type works, and writes nothing.
    assert rmqlog(*next_command.split()[1:]).code == 0
    damaged = copy_of("basic-5.5.0")
    overwrite(damaged / "commitlog" / "00000000000000262144", 39043, b"X")
    *_, verdict, following = rmqlog("verify", damaged).out.splitlines()
    assert verdict.startswith("verdict: damaged in 1 place: 2,009 messages readable, 1 message lost")
    assert rmqlog(*following.split()[2:]).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["basic-5.5.0"]


def test_the_next_command_has_the_directories_of_the_commitlog(rmqlog: Runner, tmp_path: Path) -> None:
    store = BrokerStore(tmp_path / "store", log_file_size=1024)
    for _ in range(8):
        store.put("A", files=len(store.messages) < 2)
    root, logs = store.write(), (str(tmp_path / "store/commitlog"), str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    (root / "commitlog" / f"{1024:020d}").rename(tmp_path / "other" / f"{1024:020d}")
    damages.zero_the_last_entries(Damaged(root))
    words = [word for log in logs for word in ("--commitlog", log)]
    lines = rmqlog("verify", root, *words).out.splitlines()
    assert lines[-1].split() == ["next:", "rmqlog", "recover", str(root), *words]
    lines = rmqlog("recover", root, *words, "--apply").out.splitlines()
    assert lines[-1].split() == ["next:", "rmqlog", "verify", str(root), *words]


def test_a_part_of_a_store_is_not_called_sound(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    store = golden("basic-5.5.0")
    assert rmqlog.fails(1, "verify", store / "commitlog") == (
        f"{store}/commitlog is part of a store; the store root is {store}"
    )
    (tmp_path / "photos").mkdir()
    assert "is not a store root" in rmqlog.fails(1, "verify", tmp_path)


def test_a_salvaged_copy_is_not_put_into_the_directory_of_a_cluster(rmqlog: Runner, tmp_path: Path) -> None:
    """It would be read as another member; beside a copy of the same store it would not."""
    cluster = goldens.unpack("cluster-5.5.0", tmp_path / "cluster")
    store = cluster / "broker-a"
    log = min((store / "commitlog").iterdir())
    overwrite(log, 0, bytes(300))
    salvage = f"rmqlog recover {store} --into"
    assert f"{salvage} {cluster}-broker-a-recovered --salvage" in rmqlog("verify", cluster).out
    shutil.rmtree(cluster / "broker-b")
    shutil.copytree(store, cluster / "copy")
    assert f"{salvage} {store}-recovered --salvage" in rmqlog("verify", store).out


@pytest.mark.parametrize("name", ["commitlog/00000000000000000099", "consumequeue/T/0/00000000000000000013"])
def test_the_next_command_about_an_empty_file_helps(rmqlog: Runner, root: Path, name: str) -> None:
    """A recovery refuses the file in the commitlog, and replaces the queue with the other one."""
    append(root, numbered("T", 0, 90, queues=1))
    (root / name).touch()
    document = json.loads(rmqlog("verify", root, "-o", "json").out)
    assert [problem["severity"] for problem in document[0]["problems"]] == ["damage"]
    if name.startswith("commitlog"):
        assert document[0]["next"] == ""
        return
    assert document[0]["next"] == f"rmqlog recover {root}"
    rmqlog("recover", root, "--apply")
    assert rmqlog("verify", root).code == 0

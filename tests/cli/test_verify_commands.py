"""`verify`: healthy stores add up to the byte, damage is named, and its exit code is 3."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support import goldens
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
    assert done.code == (3 if name == "edge-5.5.0" else 0), done.out  # its topics are not in topics.json
    brokers = goldens.brokers(name, golden(name))
    document = json.loads(done.out)
    assert [each["store"] for each in document] == [str(root) for root, _ in brokers.values()]
    for each, (root, _) in zip(document, brokers.values(), strict=True):
        parts = ("unitBytes", "blankBytes", "damageBytes", "unwrittenBytes", "unplacedBytes")
        on_disk = sum(file.stat().st_size for file in (root / "commitlog").iterdir())
        assert sum(each[part] for part in parts) == each["totalBytes"] == on_disk
        assert not [problem for problem in each["problems"] if problem["severity"] == "damage"]


def test_a_store_on_which_no_broker_may_start_is_not_fine(rmqlog: Runner, golden: Golden) -> None:
    done = rmqlog("verify", golden("edge-5.5.0"))
    broker, verdict = done.out.split("\nbroker: ")[1].split("\nverdict: ")
    cause = "it does not serve 268 messages of EdgeHosts, EdgeKeys, EdgeTime and 12 more"
    assert " ".join(broker.split()) == f"a broker may not start: {cause}"
    assert (done.code, verdict.split(",")[0].strip()) == (3, "sound")


def test_the_next_command_works_and_writes_nothing(
    rmqlog: Runner, golden: Golden, copy_of: Golden, tmp_path: Path
) -> None:
    store = golden("crash-torn-5.5.0")
    *_, following = rmqlog("verify", store).out.splitlines()
    assert rmqlog(*following.split()[2:]).code == 0
    damaged = copy_of("basic-5.5.0")
    overwrite(damaged / "commitlog" / "00000000000000262144", 39043, b"X")
    *_, verdict, following = rmqlog("verify", damaged).out.splitlines()
    assert verdict.startswith("verdict: damaged in 1 place: 2,009 messages readable, 1 message lost")
    assert rmqlog(*following.split()[2:]).code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["basic-5.5.0"]


def test_nothing_is_said_of_the_stores_beside_the_named_one(
    rmqlog: Runner, copy_of: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    damaged, beside = copy_of("basic-5.5.0"), copy_of("crash-torn-5.5.0")
    overwrite(damaged / "commitlog" / "00000000000000262144", 39043, b"X")
    topics = beside / "config/topics.json"
    shutil.copy(topics, topics.with_name("topics.json.bak"))
    topics.write_bytes(topics.read_bytes()[:100])
    assert rmqlog("verify", damaged).code == 3
    assert str(beside) not in caplog.text


def test_the_next_command_has_the_directories_of_the_commitlog(rmqlog: Runner, tmp_path: Path) -> None:
    store = BrokerStore(tmp_path / "store", log_file_size=1024)
    for _ in range(8):
        store.put("A", files=len(store.messages) < 2)
    root, logs = store.write(), (str(tmp_path / "store/commitlog"), str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    (root / "commitlog" / f"{1024:020d}").rename(tmp_path / "other" / f"{1024:020d}")
    Damaged(root).do("zero_the_last_entries")
    words = [word for log in logs for word in ("--commitlog", log)]
    lines = rmqlog("verify", root, *words).out.splitlines()
    assert lines[-1].split() == ["next:", "rmqlog", "recover", str(root), *words]
    lines = rmqlog("recover", root, *words, "--apply").out.splitlines()
    assert lines[-1].split() == ["next:", "rmqlog", "verify", str(root), *words]


def test_another_directory_is_not_called_sound(rmqlog: Runner, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert "is not a store root" in rmqlog.fails(1, "verify", tmp_path)


def test_the_next_command_after_a_crash_asks_for_the_sizes_of_the_index(
    rmqlog: Runner, copy_of: Golden
) -> None:
    """Else the recovered copy would have no index."""
    store = copy_of("basic-5.5.0")
    Damaged(store).do("flip_body_in_the_last_file")
    shutil.rmtree(store / "index")
    for _ in range(2):
        said = rmqlog("verify", store).out
        assert said.endswith(
            f"next:    rmqlog recover {store} --into {store}-recovered --salvage --broker-conf FILE\n"
        )
        (store / "abort").write_text("1")


@pytest.mark.parametrize("verb", ["verify", "recover"])
def test_an_empty_directory_is_no_store(rmqlog: Runner, tmp_path: Path, verb: str) -> None:
    """The disk of the store may not be mounted."""
    assert rmqlog.fails(1, verb, tmp_path).endswith("expected a directory `commitlog` in it, found nothing")
    (tmp_path / "readme.txt").touch()
    assert rmqlog.fails(1, verb, tmp_path).endswith("found readme.txt")


def test_the_short_last_file_of_a_whole_log_is_extended(rmqlog: Runner, copy_of: Golden) -> None:
    """Only zeros are gone: no message is lost, and `verify` names the command that adds them."""
    store = copy_of("basic-5.5.0")
    os.truncate(store / "commitlog" / f"{786432:020}", 989368 - 786432)
    done = rmqlog("verify", store)
    assert "verdict: damaged in 1 place: 2,010 messages readable, none lost" in done.out
    assert done.out.endswith(f"\nnext:    rmqlog recover {store}\n")
    assert rmqlog("recover", store, "--apply").code == 0
    assert rmqlog("verify", store).code == 0


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

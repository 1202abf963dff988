"""Stores whose broker serves messages from files that are not read: everybody says so, nobody says "lost"."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.stream.stores import StreamStores
from store_format.diagnose import diagnose
from store_format.diagnose.problems import NextStep, verdict
from store_format.store import MessageStore
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

NOW = 1_795_244_400_000
LOSING = "cleaned-5.5.0"  # groups of this store have lost messages
# as DefaultMetadataStore of a broker writes it before the first segment
TIERED = (
    '{"commitLogFileSegmentTable":{},"consumeQueueFileSegmentTable":{},"indexFileSegmentTable":{},'
    '"queueMetadataTable":{},"topicMetadataTable":{},"topicSerialNumber":-1}'
)


@pytest.fixture
def copied(golden: Golden, tmp_path: Path) -> Golden:
    def copy(name: str) -> Path:
        ignored = shutil.ignore_patterns("timerwheel", "compaction", "rocksdbstore")
        return Path(shutil.copytree(golden(name), tmp_path / "store", ignore=ignored))

    return copy


@pytest.fixture
def tiered(copied: Golden) -> Path:
    root = copied(LOSING)
    (root / "config/tieredStoreMetadata.json").write_text(TIERED)
    return root


@pytest.fixture
def compacted(copied: Golden) -> Path:
    """The topic Orders is compacted: brokers store attributes without the + of mqadmin updateTopic."""
    root = copied("basic-5.5.0")
    path = root / "config/topics.json"
    value = json.loads(path.read_bytes())
    value["topicConfigTable"]["Orders"]["attributes"] = {"cleanup.policy": "COMPACTION"}
    path.write_text(json.dumps(value))
    return root


@pytest.fixture
def upgraded(copied: Golden) -> Path:
    """A store with an old commitlog; that of DLedger is elsewhere (storePathDLedgerCommitLog)."""
    root = copied("basic-5.5.0")
    (root / "dledger-n0/index").mkdir(parents=True)
    return root


@pytest.fixture
def dledger(copied: Golden) -> Path:
    """A store of DLedger from the start, whose commitlog is elsewhere."""
    root = copied("dledger-5.5.0")
    (root / "dledger-n0/data").rename(root.parent / "ledger")
    return root


def _view(root: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = MessageStore.open(str(root)).view(name, now_ms=NOW).to_pylist()
    return rows


# ---- tiered storage ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lag", "lagByTopic", "retention"])
def test_what_tiered_storage_may_have_is_unknown_not_lost(
    golden: Golden, tiered: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    places = ("group", "topic", "queueId") if name != "lagByTopic" else ("group", "topic")
    before = {tuple(row[column] for column in places): row for row in _view(golden(LOSING), name)}
    caplog.clear()
    after = {tuple(row[column] for column in places): row for row in _view(tiered, name)}
    assert before.keys() == after.keys()
    assert any(row["lostMessages"] for row in before.values())
    for key, row in before.items():
        assert after[key]["lostMessages"] == (None if row["lostMessages"] else row["lostMessages"]), key
        assert not after[key].get("nextLostMessages"), key
        assert after[key].get("lagMessages") == row.get("lagMessages")
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warning.startswith(f"{tiered}/config/tieredStoreMetadata.json: the broker also keeps messages in")


def test_the_commands_do_not_say_lost_of_tiered_storage(rmqlog: Runner, tiered: Path) -> None:
    done = rmqlog("retention", tiered, "--now", NOW)
    assert "verdict: which groups lose unread messages is not known\n" in done.out
    assert "already" not in done.out
    (document,) = json.loads(rmqlog("retention", tiered, "--now", NOW, "-o", "json").out)
    assert document["verdict"] == "which groups lose unread messages is not known"
    assert {(row["lostMessages"], row["nextLostMessages"]) for row in document["losses"]} <= {
        (None, None),
        (0, None),
    }
    rows = json.loads(rmqlog("lag", tiered, "--now", NOW, "-o", "json").out)
    assert {row["lostMessages"] for row in rows} == {None, 0}


def test_verify_names_tiered_storage(tiered: Path) -> None:
    found = diagnose(str(tiered))
    assert [each.file for each in found] == [f"{tiered}/config/tieredStoreMetadata.json"]
    sentence, step = verdict(found)
    assert "none lost" not in sentence
    assert "a broker may serve others, from files that are not read" in sentence
    assert step is NextStep.NOTHING


def test_tiered_storage_that_is_given_is_known(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    root = golden(goldens.TIERED)
    conf = tmp_path / "broker.conf"
    conf.write_text(f"tieredStoreFilePath={root / 'tiered'}\n")
    for options in (("--tiered", root / "tiered"), ("--broker-conf", conf)):
        done = rmqlog("retention", root, "--now", NOW, *options)
        assert "verdict: no group loses unread messages to the next deletion\n" in done.out
    rows = json.loads(rmqlog("ls", root, "--tiered", root / "tiered", "-o", "json").out)
    assert {row["topic"]: row["messages"] for row in rows}["Orders"] == 329


def _orders(rmqlog: Runner, *given: object) -> tuple[dict[str, int], str]:
    done = rmqlog("ls", *given, "-t", "Orders", "-o", "jsonl")
    rows = map(json.loads, done.out.splitlines())
    return {row["brokerName"]: row["messages"] for row in rows}, done.err


def test_brokers_without_tiered_storage_are_read_without_it(
    rmqlog: Runner, golden: Golden, tmp_path: Path
) -> None:
    fleet, tiered = tmp_path / "fleet", golden(goldens.TIERED) / "tiered"
    shutil.copytree(golden(goldens.TIERED), fleet / "a", ignore=shutil.ignore_patterns("tiered"))
    shutil.copytree(golden("cluster-5.5.0") / "broker-b", fleet / "b")
    shutil.copytree(tiered, tmp_path / "tiered")
    found, said = _orders(rmqlog, fleet, "--tiered", tmp_path / "tiered")
    assert (found["broker-a"], "broker-b" in found) == (329, True)
    assert (
        said
        == f"rmqlog: tiered storage: {tmp_path / 'tiered'} has no directory of broker-b: read without it\n"
    )
    shutil.rmtree(tmp_path / "tiered")
    assert "expected a directory of a cluster" in rmqlog.fails(
        1, "ls", fleet, "--tiered", tmp_path / "tiered"
    )


def test_the_store_s_own_broker_conf_has_the_path(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(golden(goldens.TIERED), store, ignore=shutil.ignore_patterns("tiered"))
    without, _ = _orders(rmqlog, store)
    assert without["broker-a"] < 329
    (store / ".rmqlog").mkdir(exist_ok=True)
    conf = store / ".rmqlog" / "broker.conf"
    conf.write_text(f"tieredStoreFilePath={golden(goldens.TIERED) / 'tiered'}\n")
    assert _orders(rmqlog, store)[0] == {"broker-a": 329}
    for address in ("s3://bucket/tiered", "tiered", "/nowhere\0"):  # a store is not trusted
        conf.write_text(f"tieredStoreFilePath={address}\n")
        assert _orders(rmqlog, store)[0] == without
    conf.write_text(f"tieredStoreFilePath={tmp_path}\n")
    found, said = _orders(rmqlog, store)
    assert found == without
    assert f"tiered storage: {tmp_path} has no directory of broker-a: read without it" in said


# ---- compacted topics --------------------------------------------------------------------------------------


def test_a_compacted_topic_is_named_by_who_reads_it(
    compacted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MessageStore.open(str(compacted))
    store.queue("Metrics", 0)
    assert caplog.records == []
    for _ in range(2):
        store.queue("Orders", 0)
    (record,) = caplog.records
    assert "compacted topics (cleanup.policy=COMPACTION): Orders: a broker serves the" in record.getMessage()


def test_a_read_and_a_stream_of_spark_name_a_compacted_topic_once(
    compacted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"path": str(compacted), "subscribe": "Orders"}
    plan(parse_read_options(given))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    caplog.clear()
    stream = StreamStores(parse_read_options(given, where="stream"))
    for _ in range(2):
        stream.look(anew=True)
    (record,) = caplog.records
    assert "compacted topics (cleanup.policy=COMPACTION): Orders: " in record.getMessage()
    caplog.clear()
    plan(parse_read_options({**given, "subscribe": "Metrics"}))
    assert caplog.records == []


def test_ls_and_verify_name_a_compacted_topic(
    rmqlog: Runner, compacted: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert rmqlog("ls", compacted).code == 0
    assert "compacted topics (cleanup.policy=COMPACTION): Orders: " in caplog.text
    done = rmqlog("verify", compacted)
    assert done.code == 0
    assert "found cleanup.policy=COMPACTION of Orders: a broker serves the newest message" in done.out
    assert "none lost" not in done.out


# ---- DLedger -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_empty", [False, True])
def test_verify_names_a_dledger_store_and_does_not_send_to_recover(
    rmqlog: Runner, dledger: Path, is_empty: bool
) -> None:
    if is_empty:  # as after an upgrade whose old files are gone
        (dledger / "commitlog").mkdir()
    done = rmqlog("verify", dledger)
    assert done.code == 4
    assert "verdict: not checked: a DLedger store (enableDLegerCommitLog=true)" in done.out
    assert "recover" not in done.out
    assert "damage" not in done.out
    done = rmqlog("verify", dledger, "--commitlog", dledger.parent / "ledger")
    assert (done.code, "512 messages readable, none lost" in done.out) == (0, True)


# verb -> the arguments that it needs; `verify` is above
_READERS = {
    **dict.fromkeys(("info", "ls", "du", "head", "tail", "lag", "groups", "offsets", "retention"), ()),
    **dict.fromkeys(("dlq", "delay", "half", "metrics", "services", "recover"), ()),
    **dict.fromkeys(("get", "find", "trace"), ("7F0000010A1B18B4AAC20000000A0001",)),
    "export": ("-", "--format", "csv"),
    "check": ("--max-lag", "1"),
    "clean": ("--file-reserved-time", "72"),
    "dump": ("0",),
}


@pytest.mark.parametrize("command", _READERS)
def test_a_dledger_store_whose_commitlog_is_not_named_is_refused(
    rmqlog: Runner, dledger: Path, command: str
) -> None:
    (dledger / "commitlog").mkdir()
    done = rmqlog(command, dledger, *_READERS[command])
    assert done.code == (3 if command == "check" else 2)  # 3: unknown, to a monitoring system
    assert "a DLedger store (enableDLegerCommitLog=true)" in (done.out if command == "check" else done.err)


def test_a_cluster_with_a_dledger_store_names_it(
    rmqlog: Runner, dledger: Path, copied: Golden, caplog: pytest.LogCaptureFixture
) -> None:
    (dledger / "commitlog").mkdir()
    cluster = dledger.parent / "cluster"
    cluster.mkdir()
    dledger.rename(cluster / "b")
    copied("basic-5.5.0").rename(cluster / "a")
    assert rmqlog("info", cluster).code == 4
    assert f"{cluster}/b is a DLedger store" in caplog.text
    done = rmqlog("metrics", cluster)
    assert done.code == 4
    assert f"{cluster}/b is a DLedger store" in done.err


@pytest.mark.parametrize("command", ["ls", "info", "tail"])
def test_an_old_commitlog_beside_that_of_dledger_is_named(
    rmqlog: Runner, upgraded: Path, caplog: pytest.LogCaptureFixture, command: str
) -> None:
    assert rmqlog(command, upgraded).code == 0
    assert caplog.text.count(f"{upgraded}/dledger-n0 is the commitlog of a DLedger store") == 1


def test_a_dledger_commitlog_that_is_given_is_read_without_a_warning(
    rmqlog: Runner, dledger: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = rmqlog("ls", dledger, "--commitlog", dledger.parent / "ledger", "--topic", "Orders")
    assert (done.code, " 337 " in done.out) == (0, True), done.out
    assert caplog.text == ""


def test_verify_of_an_old_commitlog_beside_that_of_dledger(upgraded: Path) -> None:
    sentence, step = verdict(diagnose(str(upgraded)))
    assert "none lost" not in sentence
    assert step is NextStep.NOTHING
    (upgraded / "abort").touch()
    assert verdict(diagnose(str(upgraded)))[1] is NextStep.NOTHING


def test_queues_and_index_may_lead_into_the_commitlog_of_dledger(rmqlog: Runner, upgraded: Path) -> None:
    """As after an upgrade: the old commitlog ends, and the broker goes on in that of DLedger."""
    (upgraded / "commitlog" / f"{786432:020}").unlink()
    done = rmqlog("verify", upgraded)
    assert (done.code, "damage: " in done.out, "none lost" in done.out) == (0, False, False), done.out
    with (upgraded / "commitlog" / f"{262144:020}").open("r+b") as file:
        file.seek(39043)
        file.write(b"X")
    done = rmqlog("verify", upgraded)
    assert done.code == 3
    assert "1 message lost; a broker may serve others, from files that are not read" in done.out


@pytest.mark.parametrize("is_given", [False, True])
def test_messages_in_the_commitlog_of_dledger_are_not_lost(
    rmqlog: Runner, upgraded: Path, is_given: bool
) -> None:
    """Behind the old commitlog, queues lead into that of DLedger, unless that is read, too."""
    max((upgraded / "commitlog").iterdir()).unlink()
    given: tuple[object, ...] = ()
    if is_given:
        (upgraded / "commitlog").rename(upgraded / "dledger-n0/data")
        given = ("--commitlog", upgraded / "dledger-n0/data")
    for verb, *more in (("info",), ("lag",), ("check", "--max-lost", "0")):
        done = rmqlog(verb, upgraded, *more, *given)
        assert done.code == {"info": 0, "lag": 4 * is_given, "check": 3 * is_given}[verb]
        assert ("lost with missing parts" in done.out + done.err) == is_given, verb

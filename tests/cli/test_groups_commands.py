"""`groups` and `offsets`: the views' rows; and offsets that are moved only with --apply, and only
where no broker is.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import rmq_spark
from rmq_spark.store import LogStore
from store_format import MessageStore
from store_format.metadata.group_offsets import read_committed
from store_format.opened.store import Opened
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden, Unchanged
from tests.support.writes import held

STORE = "basic-5.5.0"
NOW = ("--now", 1_900_000_000_000)


@pytest.fixture
def store(golden: Golden, tmp_path: Path) -> Path:
    """One to change."""
    shutil.copytree(golden(STORE), tmp_path / "store")
    return tmp_path / "store"


def _offsets(store: Path, group: str, topic: str) -> dict[int, int]:
    return read_committed(Opened(str(store))).offsets[group, topic]


def test_groups_are_those_of_the_view(rmqlog: Runner, golden: Golden) -> None:
    view = MessageStore.open(str(golden(STORE))).view("groups", now_ms=1_900_000_000_000).to_pylist()
    assert rmqlog.rows("groups", golden(STORE), *NOW, "--all") == view
    shown = [row["group"] for row in rmqlog.rows("groups", golden(STORE), *NOW)]
    assert shown == ["CG_all", "CG_some", "CG_tags", "CG_tags2"]
    own = {row["group"] for row in view} - set(shown)
    assert {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_ONSAPI_PULL"} < own


def test_offsets_are_shown_and_planned_without_a_change(
    rmqlog: Runner, golden: Golden, unchanged: Unchanged
) -> None:
    asked = ("offsets", golden(STORE), "CG_some", "--topic", "Orders")
    with unchanged(golden(STORE)):
        shown = rmqlog.rows(*asked, "--columns", "topic,queueId,committedOffset")
        plan = rmqlog(*asked, "--to-earliest")
        rows = rmqlog.rows(*asked, "--to-earliest")
    committed = [row["committedOffset"] for row in shown]
    assert [(row["committedOffset"], row["targetOffset"], row["change"]) for row in rows] == [
        (offset, 0, -offset) for offset in committed
    ]
    again = f"reads {sum(committed):,} messages again"
    assert plan.err == f"rmqlog: {again}; nothing was changed; add --apply to write the new offsets\n"
    assert plan.out.splitlines()[0].split()[:2] == ["topic", "brokerName"]


def test_a_reset_by_time_and_a_copy_are_written(rmqlog: Runner, store: Path) -> None:
    rows = goldens.expected_rows(STORE)
    times = [row["storeTimestamp"] for row in rows if (row["topic"], row["queueId"]) == ("Orders", 1)]
    moved = ("--to-time", times[40], "--topic", "Orders", "--apply", "-o", "jsonl")
    plan = rmqlog("offsets", store, "CG_some", *moved)
    instant, written, check = plan.err.splitlines()
    assert instant.startswith("rmqlog: --to-time is 20")
    assert instant.endswith(f" ({times[40]})")
    assert plan.code == 0
    assert written.endswith("; 4 offsets of CG_some written")
    names = "topic,queueId,committedOffset,lastConsumedTimestamp,nextTimestamp"
    assert check == f"rmqlog: to check them: rmqlog lag {store} -l -g CG_some -t Orders --columns {names}"
    assert rmqlog(*check.partition(": rmqlog ")[2].split()).code == 0
    targets = {row["queueId"]: row["targetOffset"] for row in map(json.loads, plan.out.splitlines())}
    assert targets[1] == times.index(times[40])
    assert _offsets(store, "CG_some", "Orders") == targets
    assert rmqlog("offsets", store, "CG_new", "--copy-from", "CG_some", "--apply").code == 0
    assert _offsets(store, "CG_new", "Orders") == targets
    to_seven = ("--to-offset", 7, "--topic", "Orders", "--queue", 2, "--apply")
    assert rmqlog("offsets", store, "CG_new", *to_seven).code == 0
    assert _offsets(store, "CG_new", "Orders") == {**targets, 2: 7}
    assert rmqlog("offsets", store, "CG_new", "--to-latest", "--apply").code == 0
    latest = rmqlog.rows("offsets", store, "CG_new", "--topic", "Orders")
    assert {row["lagMessages"] for row in latest} == {0}


def test_a_move_names_the_messages_that_it_skips(rmqlog: Runner, store: Path) -> None:
    rows = rmqlog.rows("offsets", store, "CG_some", "--topic", "Orders", "--to-latest")
    skipped = sum(row["change"] for row in rows)
    assert skipped > 0
    said = rmqlog("offsets", store, "CG_some", "--topic", "Orders", "--to-latest", "--apply").err
    assert f"rmqlog: skips {skipped:,} messages that the group has not read; 4 offsets of CG_some" in said
    assert "was not shut down" not in said


def test_a_move_on_a_crashed_store_advises_the_recovery_first(rmqlog: Runner, copy_of: Golden) -> None:
    root = copy_of("crash-torn-5.5.0")
    for more in ([], ["--apply"]):
        said = rmqlog("offsets", root, "CG_tags", "--to-earliest", *more).err
        assert f"warning: {root} was not shut down" in said
        assert f"Recover it first: rmqlog recover {root}\n" in said


def test_offsets_are_refused_beside_a_broker(rmqlog: Runner, store: Path) -> None:
    before = (store / "config" / "consumerOffset.json").read_bytes()
    with held(store):
        assert rmqlog("offsets", store, "CG_some", "--to-latest").code == 0
        said = rmqlog.fails(6, "offsets", store, "CG_some", "--to-latest", "--apply")
    assert "a broker overwrites consumerOffset.json while it runs" in said
    assert (store / "config" / "consumerOffset.json").read_bytes() == before


def test_groups_in_rocksdb(rmqlog: Runner, golden: Golden) -> None:
    assert rmqlog.rows("info", golden("rocksdb-5.5.0"))[0]["groups"] == 12


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("rocksdb-5.5.0", "keeps consumer offsets in RocksDB"),
        ("dledger-5.5.0", "is a DLedger store (enableDLegerCommitLog=true), and each node of its group has"),
    ],
)
def test_a_reset_where_only_the_broker_writes_offsets(
    rmqlog: Runner, golden: Golden, unchanged: Unchanged, tmp_path: Path, name: str, why: str
) -> None:
    fleet = tmp_path / "fleet"
    shutil.copytree(golden("cluster-5.5.0") / "broker-b", fleet / "b")
    shutil.copytree(golden(name), fleet / "x")
    given = ("offsets", fleet, "CG_new", "--to-earliest", "--topic", "Orders")
    with unchanged(fleet):
        preview = rmqlog(*given)
        said = rmqlog.fails(2, *given, "--apply")
    assert preview.code == 0
    assert preview.err.splitlines()[-1].startswith(f"rmqlog: --apply writes nothing: {fleet / 'x'} {why}")
    assert said.startswith(f"{fleet / 'x'} {why}")
    assert "mqadmin resetOffsetByTime" in said
    assert said.endswith("; nothing was written to any store")
    assert "offsetStore" not in said


def test_a_time_cannot_divide_messages_that_were_stored_at_once(rmqlog: Runner, tmp_path: Path) -> None:
    """As those of a job that has moved a topic here."""
    root = tmp_path / "store"
    MessageStore.create(str(root), broker_name="new")
    store = rmq_spark.open(root)
    assert isinstance(store, LogStore)
    store.append(pa.table({"topic": ["Orders"] * 5, "body": [b"x"] * 5, "queueId": [0, 0, 0, 1, 1]}))
    given = ("offsets", root, "CG_new", "--topic", "Orders")
    said = rmqlog(*given, "--to-time", "2099-01-01T00:00:00Z").err
    assert "warning: all messages of Orders-0, Orders-1 were stored within a second" in said
    assert "rmqlog: begins behind 5 messages; nothing was changed" in said
    assert "warning" not in rmqlog(*given, "--to-latest").err


def test_a_time_divides_messages_of_a_broker(rmqlog: Runner, store: Path) -> None:
    said = rmqlog("offsets", store, "CG_some", "--topic", "Orders", "--to-time", "2026-11-21T00:00:00Z").err
    assert "within a second" not in said

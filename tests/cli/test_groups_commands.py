"""`groups` and `offsets`: the views' rows; and offsets that are moved only with --apply, and only
where no broker is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.metadata.group_offsets import read_committed
from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.writes import held

Golden = Callable[[str], Path]
Unchanged = Callable[[Path], AbstractContextManager[None]]
STORE = "basic-5.5.0"
NOW = ("--now", 1_900_000_000_000)


@pytest.fixture
def store(golden: Golden, tmp_path: Path) -> Path:
    """One to change."""
    shutil.copytree(golden(STORE), tmp_path / "store")
    return tmp_path / "store"


def _offsets(store: Path, group: str, topic: str) -> dict[int, int]:
    return read_committed(str(store)).offsets[group, topic]


def test_groups_are_those_of_the_view(rmqlog: Runner, golden: Golden) -> None:
    view = MessageStore.open(str(golden(STORE))).view("groups", now_ms=1_900_000_000_000).to_pylist()
    assert rmqlog.rows("groups", golden(STORE), *NOW, "--all") == view
    shown = [row["group"] for row in rmqlog.rows("groups", golden(STORE), *NOW)]
    assert shown == ["CG_all", "CG_some", "CG_tags", "CG_tags2"]
    own = {row["group"] for row in view} - set(shown)
    assert {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_ONSAPI_PULL"} < own
    for pattern, found in (("*", shown), ("CID_RMQ_SYS_*", ["CID_RMQ_SYS_TRANS"])):
        rows = rmqlog.rows("groups", golden(STORE), *NOW, "-g", pattern)
        assert [row["group"] for row in rows] == found
    assert [row["group"] for row in rmqlog.rows("groups", golden(STORE), *NOW, "-g", "CG_[ts]*")] == [
        "CG_some",
        "CG_tags",
        "CG_tags2",
    ]
    assert rmqlog.table("groups", golden(STORE))[0][:3] == ["brokerName", "group", "configured"]
    assert "did you mean CG_some?" in rmqlog.fails(1, "groups", golden(STORE), "--group", "CG_sme")


def test_offsets_are_shown_and_planned_without_a_change(
    rmqlog: Runner, golden: Golden, unchanged: Unchanged
) -> None:
    with unchanged(golden(STORE)):
        shown = rmqlog.rows(
            "offsets", golden(STORE), "CG_some", *("--columns", "topic,queueId,committedOffset")
        )
        plan = rmqlog("offsets", golden(STORE), "CG_some", "--to-earliest", "--topic", "Orders")
        rows = rmqlog.rows("offsets", golden(STORE), "CG_some", "--to-earliest", "--topic", "Orders")
    assert [row["committedOffset"] for row in shown if row["topic"] == "Orders"] == [
        row["committedOffset"] for row in rows
    ]
    assert {row["targetOffset"] for row in rows} == {0}
    assert [row["change"] for row in rows] == [-row["committedOffset"] for row in rows]
    assert plan.err == "rmqlog: nothing was changed; add --apply to write the new offsets\n"
    assert plan.out.splitlines()[0].split()[:2] == ["topic", "brokerName"]


def test_a_reset_by_time_and_a_copy_are_written(rmqlog: Runner, store: Path) -> None:
    times = [
        row["storeTimestamp"]
        for row in goldens.expected_rows(STORE)
        if (row["topic"], row["queueId"]) == ("Orders", 1)
    ]
    plan = rmqlog(
        "offsets", store, "CG_some", "--to-time", times[40], "--topic", "Orders", "--apply", "-o", "jsonl"
    )
    assert plan.code == 0, plan.err
    assert plan.err == "rmqlog: 4 offsets of CG_some written\n"
    targets = {row["queueId"]: row["targetOffset"] for row in map(json.loads, plan.out.splitlines())}
    assert targets[1] == times.index(times[40])
    assert _offsets(store, "CG_some", "Orders") == targets
    assert rmqlog("offsets", store, "CG_new", "--copy-from", "CG_some", "--apply").code == 0
    assert _offsets(store, "CG_new", "Orders") == targets
    assert (
        rmqlog(
            "offsets", store, "CG_new", "--to-offset", 7, "--topic", "Orders", "--queue", 2, "--apply"
        ).code
        == 0
    )
    assert _offsets(store, "CG_new", "Orders") == {**targets, 2: 7}
    assert rmqlog("offsets", store, "CG_new", "--to-latest", "--apply").code == 0
    assert all(
        row["lagMessages"] == 0 for row in rmqlog.rows("offsets", store, "CG_new", "--topic", "Orders")
    )


def test_offsets_are_refused_beside_a_broker(rmqlog: Runner, store: Path) -> None:
    before = (store / "config" / "consumerOffset.json").read_bytes()
    with held(store):
        assert rmqlog("offsets", store, "CG_some", "--to-latest").code == 0
        said = rmqlog.fails(6, "offsets", store, "CG_some", "--to-latest", "--apply")
    assert "a broker overwrites consumerOffset.json while it runs" in said
    assert (store / "config" / "consumerOffset.json").read_bytes() == before


def test_moves_that_mean_nothing(rmqlog: Runner, golden: Golden) -> None:
    store = golden(STORE)
    assert "use only one" in rmqlog.fails(2, "offsets", store, "CG_some", "--to-latest", "--to-earliest")
    assert "--to-latest" in rmqlog.fails(2, "offsets", store, "CG_some", "--apply")
    assert "GROUP" in rmqlog.fails(2, "offsets", store, "--to-latest")
    assert "give it with --topic and --queue" in rmqlog.fails(
        2, "offsets", store, "CG_some", "--to-offset", 3
    )
    assert "found 99999" in rmqlog.fails(
        2, "offsets", store, "CG_some", "--to-offset", 99999, "-t", "Orders", "-q", 0
    )
    assert "did you mean Orders?" in rmqlog.fails(
        1, "offsets", store, "CG_some", "--to-latest", "-t", "Ordes"
    )
    assert "did you mean CG_some?" in rmqlog.fails(1, "offsets", store, "CG_sme")


@pytest.mark.parametrize("verb", ["groups", "lag", "offsets"])
def test_offsets_in_rocksdb_are_said_to_be_unknown(rmqlog: Runner, golden: Golden, verb: str) -> None:
    done = rmqlog(verb, golden("rocksdb-5.5.0"))
    assert (done.code, done.out) == (4, "")
    assert "unknown: " in done.err
    assert "keeps consumer offsets in RocksDB (storeType=defaultRocksDB)" in done.err
    assert rmqlog.rows("info", golden("rocksdb-5.5.0"))[0]["groups"] is None

"""`clean`: a preview of the files and the unread messages, and the deletion."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden, Unchanged
from tests.support.writes import held

NOW_MS = 1_800_000_000_000


@pytest.fixture
def aged(copy_of: Golden) -> Path:
    """A copy whose two oldest commitlog files were written three hours ago."""
    root = copy_of("cleaned-5.5.0")
    for number, file in enumerate(sorted((root / "commitlog").iterdir())):
        os.utime(file, ns=(0, (NOW_MS - (3 if number < 2 else 0) * 3_600_000) * 1_000_000))
    return root


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """The disk of the test may be nearly full, which says nothing here."""
    path = tmp_path / "broker.conf"
    path.write_text("fileReservedTime=2\ncleanFileForciblyEnable=false\n")
    return path


def test_files_are_shown_and_then_deleted(rmqlog: Runner, aged: Path, settings: Path) -> None:
    asked = ("clean", aged, "--broker-conf", settings, "--now", NOW_MS)
    rows = rmqlog.rows(*asked)
    assert [row["reason"] for row in rows][:3] == ["expired", "expired", "log"]
    assert {row["kind"] for row in rows} == {"commitlog", "consumequeue", "index"}
    assert rmqlog.table(*asked)[0] == ["kind", "file", "sizeBytes", "diskBytes", "modified", "reason"]
    done = rmqlog(*asked)
    assert "Nothing was deleted; add --apply" in done.err
    assert f"{len(rows)} files" in done.err
    assert all((aged / row["file"]).exists() for row in rows)
    done = rmqlog(*asked, "--apply")
    assert (done.code, f"{len(rows)} files deleted" in done.err) == (0, True)
    assert not any((aged / row["file"]).exists() for row in rows)
    assert "no file has expired" in rmqlog(*asked).err
    assert rmqlog("verify", aged).code == 0


def test_unread_messages_are_shown(rmqlog: Runner, aged: Path, settings: Path) -> None:
    asked = ("clean", aged, "--broker-conf", settings, "--now", NOW_MS)
    rows = rmqlog.rows(*asked, "--unread")
    assert {row["group"] for row in rows} >= {"CG_some", "CG_tags"}
    assert f"{sum(row['messages'] for row in rows)} messages in them were not read" in rmqlog(*asked).err
    assert rmqlog.table(*asked, "--unread")[0] == ["group", "topic", "queueId", "committedOffset", "messages"]


def test_hours_go_before_the_file_and_none_is_an_error(rmqlog: Runner, aged: Path, settings: Path) -> None:
    asked = ("clean", aged, "--broker-conf", settings, "--now", NOW_MS, "--file-reserved-time")
    assert "no file has expired" in rmqlog(*asked, 4).err
    assert rmqlog.rows(*asked, 3)[0]["file"] == "commitlog/00000000000000196608"
    assert "needs an explicit fileReservedTime" in rmqlog.fails(2, "clean", aged)
    assert "expected the broker.conf" in rmqlog.fails(1, "clean", aged, "--broker-conf", aged / "none")
    assert "is not in the range" in rmqlog.fails(2, *asked, -1)


def test_a_store_in_use_is_refused(rmqlog: Runner, aged: Path, settings: Path) -> None:
    before = sorted(aged.rglob("*"))
    with held(aged):
        done = rmqlog("clean", aged, "--broker-conf", settings, "--now", NOW_MS, "--apply")
    assert done.code == 6, done.err
    assert [path for path in before if not path.exists()] == []


def test_what_is_read_may_be_unknown(rmqlog: Runner, aged: Path, settings: Path) -> None:
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (aged / "config" / name).write_text("{")
    done = rmqlog("clean", aged, "--broker-conf", settings, "--now", NOW_MS, "--apply")
    assert done.code == 4, done.err
    assert "unread messages are not known: " in done.err
    assert "files deleted" in done.err


@pytest.fixture
def pair(aged: Path) -> tuple[Path, Path]:
    """A directory with two stores, `store` of broker-a and `other` of broker-b, with files of one age."""
    other = aged.parent / "other"
    shutil.copytree(aged, other)
    topics = other / "config" / "topics.json"
    topics.write_text(topics.read_text().replace("broker-a", "broker-b"))
    return aged, other


def test_each_store_of_a_directory_is_named_with_its_broker(
    rmqlog: Runner, pair: tuple[Path, Path], settings: Path
) -> None:
    """A directory of unrelated stores looks like a cluster."""
    store, other = pair
    done = rmqlog("clean", store.parent, "--broker-conf", settings, "--now", NOW_MS)
    assert done.code == 0
    for root, broker in ((store, "broker-a"), (other, "broker-b")):
        assert f"rmqlog: {root} (broker {broker}): " in done.err
    assert done.err.count("Nothing was deleted; add --apply") == 2


def test_two_copies_of_a_broker_are_no_cluster(
    rmqlog: Runner, aged: Path, settings: Path, unchanged: Unchanged
) -> None:
    shutil.copytree(aged, aged.parent / "again")
    for more in ([], ["--apply"]):
        with unchanged(aged.parent):
            said = rmqlog.fails(2, "clean", aged.parent, "--broker-conf", settings, "--now", NOW_MS, *more)
        assert said.endswith(
            "both belong to broker broker-a; use only one of them, or each of them on its own"
        )


def test_a_store_that_fails_stops_no_other(rmqlog: Runner, pair: tuple[Path, Path], settings: Path) -> None:
    store, other = pair
    asked = ("clean", store.parent, "--broker-conf", settings, "--now", NOW_MS, "--apply")
    with held(other):  # the first of the two by name
        done = rmqlog(*asked)
        assert done.code == 4
        assert "stop that process first" in done.err
        assert f"{store} (broker broker-a): " in done.err
        assert "files deleted" in done.err
        with held(store):
            assert rmqlog(*asked).code == 6
    assert len(list((other / "commitlog").iterdir())) == len(list((store / "commitlog").iterdir())) + 2


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_store_that_cannot_be_planned_stops_no_other(
    rmqlog: Runner, pair: tuple[Path, Path], settings: Path, is_gone: bool
) -> None:
    store, other = pair
    before = len(list((store / "commitlog").iterdir()))
    if is_gone:
        shutil.rmtree(other / "commitlog")
    else:
        first = min((other / "commitlog").iterdir())
        first.unlink()
        first.mkdir()
    asked = ("clean", store.parent, "--broker-conf", settings, "--now", NOW_MS)
    done = rmqlog(*asked)
    assert done.code == 4
    assert f"a store is left out: {other}" in done.err
    assert "add --apply to delete them" in done.err
    assert rmqlog(*asked, "--apply").code == 4
    assert len(list((store / "commitlog").iterdir())) < before
    assert rmqlog("clean", other, "--broker-conf", settings, "--now", NOW_MS).code in (1, 3)

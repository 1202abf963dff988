"""`rmqlog services`: previews, one turn, parts that fail, the loop with its signals, and stores in use."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.commit.options import CommitOptions
from tests.support.cli_runs import Runner, command, environment
from tests.support.fixtures import Golden, Unchanged
from tests.support.staged import columns_of, make_store
from tests.support.waiting import BEGIN_MS, append, bodies, delayed, poisoned
from tests.support.writes import held


@pytest.fixture
def copied(copy_of: Golden) -> Path:
    """A broker's store with 43 delayed messages that are due."""
    return copy_of("delay-tx-5.5.0")


_SHOWN = ("--only", "schedule", "--columns", "service,due,done")


@pytest.mark.parametrize("more", [[], ["--once"]])
def test_a_store_is_only_looked_at(
    rmqlog: Runner, copied: Path, tmp_path: Path, unchanged: Unchanged, more: list[str]
) -> None:
    """Also a store that rmqlog created."""
    own = make_store(tmp_path / "own")
    append(own, delayed("T", 1, 0, 30))
    for root, due in ((copied, "43"), (own, "30")):
        with unchanged(root):
            run = rmqlog("services", root, *_SHOWN, *more)
        assert run.code == 0
        assert run.out.split() == ["service", "due", "done", "schedule", due, "0"]
        assert run.err == f"rmqlog: nothing was written to {root} (broker broker-a); add --apply to write\n"


def test_apply_delivers_and_the_next_look_is_a_preview_again(
    rmqlog: Runner, copied: Path, unchanged: Unchanged
) -> None:
    """Neither a turn that failed nor one that worked lets later commands write."""

    def rows(*more: str) -> list[tuple[object, ...]]:
        run = rmqlog("services", copied, "--once", "--only", "schedule", "-o", "jsonl", *more)
        assert run.code == 0
        return [tuple(json.loads(line).values())[:4] for line in run.out.splitlines()]

    assert "explicit fileReservedTime" in rmqlog.fails(
        2, "services", copied, "--once", "--only", "clean", "--apply"
    )
    with unchanged(copied):
        assert rows() == [("broker-a", "schedule", 43, 0)]
    assert rows("--apply") == [("broker-a", "schedule", 43, 43)]
    with unchanged(copied):
        assert rows() == [("broker-a", "schedule", 0, 0)]
    views = MessageStore.open(str(copied)).view("services").to_pylist()
    counted = {row["service"]: (row["turns"], row["done"], row["failures"]) for row in views}
    assert counted == {"schedule": (1, 43, 0), "clean": (1, 0, 1)}


# ---- parts that fail ---------------------------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """Three stores; 30 messages of level 1 are due in each. `broker-b` has lost its consume queues."""
    (tmp_path / "cluster").mkdir()
    for name in ("broker-a", "broker-b", "broker-c"):
        root = make_store(tmp_path / "cluster" / name, StoreSettings(name, 1 << 14, 400, 50, 200))
        append(root, delayed("T", 1, 0, 30))
    shutil.rmtree(tmp_path / "cluster" / "broker-b" / "consumequeue")
    return tmp_path / "cluster"


def test_a_bad_store_stops_no_other(rmqlog: Runner, cluster: Path) -> None:
    run = rmqlog("services", cluster, "--once", "--only", "schedule,flush", "--apply", "-o", "jsonl")
    assert run.code == 4
    rows = [json.loads(line) for line in run.out.splitlines()]
    assert [(row["brokerName"], row["service"], row["done"]) for row in rows] == [
        ("broker-a", "schedule", 30), ("broker-a", "flush", 0),
        ("broker-b", "schedule", 0), ("broker-b", "flush", 0),
        ("broker-c", "schedule", 30), ("broker-c", "flush", 0),
    ]  # fmt: skip
    assert [row["error"] is not None for row in rows] == [False, False, True, False, False, False]
    assert run.err == f"rmqlog: broker-b, service schedule: {rows[2]['error']}\n"
    assert "run rmqlog recover" in run.err
    for name in ("broker-a", "broker-c"):
        assert bodies(cluster / name, "T").total() == 30


def test_a_store_that_cannot_be_opened_stops_no_other(rmqlog: Runner, cluster: Path) -> None:
    """Nor does one that another writer has, or one without a commitlog."""
    shutil.rmtree(cluster / "broker-b" / "commitlog")
    (cluster / "broker-b" / "consumequeue").mkdir()
    with held(cluster / "broker-a"):
        run = rmqlog("services", cluster, "--once", "--only", "schedule", "--apply")
    assert run.code == 4
    assert [line.split()[:4] for line in run.out.splitlines()[1:]] == [
        ["broker-a", "-", "0", "0"],
        ["broker-c", "schedule", "30", "30"],
    ]
    without_log, in_use = run.err.splitlines()
    assert "broker-b looks like a store, but has no directory `commitlog`" in without_log
    assert "stop that process first" in in_use


def test_the_preview_of_a_directory_names_its_stores(
    rmqlog: Runner, cluster: Path, unchanged: Unchanged
) -> None:
    """A directory of unrelated stores looks like a cluster."""
    with unchanged(cluster):
        run = rmqlog("services", cluster)
    assert run.code == 4
    stores = ", ".join(f"{cluster / name} (broker {name})" for name in ("broker-a", "broker-b", "broker-c"))
    assert f"rmqlog: nothing was written to {stores}; add --apply to write" in run.err.splitlines()


def test_two_copies_of_a_broker_are_no_cluster(rmqlog: Runner, copied: Path, unchanged: Unchanged) -> None:
    shutil.copytree(copied, copied.parent / "again")
    with unchanged(copied.parent):
        said = rmqlog.fails(2, "services", copied.parent, "--once", "--apply")
    assert said.endswith("both belong to broker broker-a; use only one of them, or each of them on its own")


def test_a_poisoned_message_stops_no_other(rmqlog: Runner, root: Path) -> None:
    append(root, [poisoned("T", 1, 0), *delayed("T", 2, 1, 2)])
    for done in ("2", "0"):
        run = rmqlog("services", root, "--once", "--apply", "--columns", "service,done")
        assert run.code == 4
        assert run.out.split()[2:4] == ["schedule", done]
        assert run.err.startswith("rmqlog: broker-a, service schedule: ")
        assert "set level 1 in" in run.err
    # alone, the error of the service decides
    assert "set level 1 in" in rmqlog.fails(3, "services", root, "--once", "--apply", "--only", "schedule")


def test_a_broker_conf_that_is_none(rmqlog: Runner, copied: Path) -> None:
    assert "broker.conf" in rmqlog.fails(1, "services", copied, "--broker-conf", str(copied / "none"))


def test_a_store_in_use_is_refused(rmqlog: Runner, copied: Path) -> None:
    with held(copied):
        assert "stop that process first" in rmqlog.fails(6, "services", copied, "--once", "--apply")


def _loop(root: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("services", root, "-o", "jsonl", "--only", "schedule", "--apply", "--every", "100ms"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True,
    )  # fmt: skip


def _append_later(root: Path) -> None:
    MessageStore.open(str(root)).append(
        columns_of(delayed("T", 3, 30, 7)), store_timestamps=BEGIN_MS, options=CommitOptions(lock_timeout=60)
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "is_poisoned", "code"),
    [(signal.SIGTERM, False, 0), (signal.SIGTERM, True, 4), (signal.SIGINT, True, 130)],
)
def test_a_signal_ends_the_loop(root: Path, number: signal.Signals, is_poisoned: bool, code: int) -> None:
    """The loop has delivered what was due before it is told to stop, and leaves a clean store.

    It begins beside a message that cannot be delivered, and delivers what is stored later.
    """
    first = [poisoned("T", 2, 0)] if is_poisoned else []
    append(root, first + delayed("T", 1, 1, 29), sync=True)
    process = _loop(root)
    assert process.stdout is not None
    turns = [json.loads(process.stdout.readline())]
    if is_poisoned:
        _append_later(root)
        turns.append(json.loads(process.stdout.readline()))
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (out, err)
    assert [(turn["service"], turn["done"]) for turn in turns] == [
        ("schedule", done) for done in (29, 7)[: len(turns)]
    ]
    assert ("set level 2 in" in err) is is_poisoned
    store = MessageStore.open(str(root))
    assert store.diagnose() == []
    assert not (root / "abort").exists()


@pytest.mark.process
def test_a_loop_whose_reader_is_gone_ends_with_an_error(root: Path) -> None:
    """A supervisor starts it again. With exit code 0 the store would stay without its services."""
    append(root, delayed("T", 1, 1, 29), sync=True)
    process = _loop(root)
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["done"] == 29
    process.stdout.close()
    _append_later(root)
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), err.count("\n")) == (5, 1), err
    assert "rmqlog: stdout: expected a reader, found a closed pipe: the services have ended" in err
    assert MessageStore.open(str(root)).diagnose() == []
    assert len(bodies(root, "T")) == 36, "the turn was completed"


@pytest.mark.process
@pytest.mark.parametrize(("more", "code"), [(["--apply", "--once"], 5), ([], 0)])
def test_only_a_preview_may_lose_its_reader(root: Path, more: list[str], code: int) -> None:
    append(root, delayed("T", 1, 1, 29), sync=True)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("services", root, "-o", "jsonl", "--only", "schedule", *more),
        stdout=writer, stderr=subprocess.PIPE, env=environment(), text=True, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1 if code else 0), done.stderr

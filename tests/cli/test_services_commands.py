"""`rmqlog services`: previews, one turn, the loop with its signals, and stores in use."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from store_format import MessageStore
from tests.support.cli_runs import Runner, command, environment
from tests.support.staged import make_store
from tests.support.waiting import append, delayed
from tests.support.writes import held

_Unchanged = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture
def copied(golden: Callable[[str], Path], tmp_path: Path) -> Path:
    """A broker's store with 43 delayed messages that are due."""
    return Path(shutil.copytree(golden("delay-tx-5.5.0"), tmp_path / "store"))


def test_a_copied_store_is_only_looked_at(rmqlog: Runner, copied: Path, unchanged: _Unchanged) -> None:
    with unchanged(copied):
        run = rmqlog("services", copied, "--once", "--only", "schedule", "--columns", "service,due,done")
    assert run.code == 0
    assert run.out.split() == ["service", "due", "done", "schedule", "43", "0"]
    assert run.err == (
        f"rmqlog: nothing was written to {copied}, which rmqlog did not create; add --apply to write\n"
    )
    assert all(len(line) <= 80 for line in run.out.splitlines())


def test_apply_delivers_and_later_turns_need_none(rmqlog: Runner, copied: Path) -> None:
    def rows(*more: str) -> list[tuple[object, ...]]:
        run = rmqlog("services", copied, "--once", "--only", "schedule", "-o", "jsonl", *more)
        assert (run.code, run.err) == (0, "")
        return [tuple(json.loads(line).values())[:4] for line in run.out.splitlines()]

    assert rows("--apply") == [("broker-a", "schedule", 43, 43)]
    assert rows() == [("broker-a", "schedule", 0, 0)]
    (counted,) = MessageStore.open(str(copied)).view("services").to_pylist()
    assert (counted["service"], counted["turns"], counted["done"]) == ("schedule", 1, 43)


def test_wrong_names_and_times(rmqlog: Runner, copied: Path) -> None:
    assert rmqlog.fails(2, "services", copied, "--only", "shedule") == (
        "unknown service 'shedule'; did you mean schedule?"
    )
    assert "--every: expected a time above 0" in rmqlog.fails(2, "services", copied, "--every", "0s")
    assert "a length of time such as 30s" in rmqlog.fails(2, "services", copied, "--every", "5")
    assert "broker.conf" in rmqlog.fails(1, "services", copied, "--broker-conf", str(copied / "none"))


def test_a_store_in_use_is_refused(rmqlog: Runner, copied: Path) -> None:
    with held(copied):
        assert "stop that process first" in rmqlog.fails(6, "services", copied, "--once", "--apply")


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_the_loop(tmp_path: Path, number: signal.Signals, code: int) -> None:
    """The loop has delivered what was due before it is told to stop, and leaves a clean store."""
    root = make_store(tmp_path / "store")
    append(root, delayed("T", 1, 0, 30), sync=True)
    process = subprocess.Popen(
        command("services", root, "-o", "jsonl", "--only", "schedule"),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True,
    )  # fmt: skip
    assert process.stdout is not None
    turn = json.loads(process.stdout.readline())
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, ""), out
    assert (turn["service"], turn["done"]) == ("schedule", 30)
    store = MessageStore.open(str(root))
    assert store.diagnose() == []
    assert not (root / "abort").exists()

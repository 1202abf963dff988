"""`metrics`: a file that appears whole, a page on stdout, and a server that ends with a signal."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner, command, environment
from tests.support.fixtures import Golden, Unchanged

STORE = "basic-5.5.0"
LAG = re.compile(r'^rocketmq_consumer_lag_messages{.*consumer_group="CG_tags".*topic="Orders"} (.*)$', re.M)


def test_the_page_goes_to_stdout(rmqlog: Runner, golden: Golden, unchanged: Unchanged) -> None:
    with unchanged(golden(STORE)):
        done = rmqlog("metrics", golden(STORE))
    assert (done.code, done.err) == (0, "")
    assert LAG.findall(done.out) == ["1137.0"]
    assert 'node_id="broker-a"' in done.out
    assert "rmqlog_problems" not in done.out


def test_the_problems_have_a_page_of_their_own(rmqlog: Runner, golden: Golden) -> None:
    """The node exporter refuses two files with one series."""
    pages = [rmqlog("metrics", golden(STORE), *more).out for more in ((), ("--verify",))]
    series = [{line.rpartition(" ")[0] for line in page.splitlines() if line[0] != "#"} for page in pages]
    assert any(each.startswith('rmqlog_problems{cluster="GoldenCluster"') for each in series[1])
    assert f'rmqlog_verify_success{{store="{golden(STORE)}"}}' in series[1]
    assert series[0] & series[1] == set()


def test_the_file_is_replaced_in_one_step(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    path, before = tmp_path / "rmqlog.prom", os.umask(0o077)
    try:
        path.write_text("old")
        inode = path.stat().st_ino
        assert rmqlog("metrics", golden(STORE), "--textfile", path).out == ""
    finally:
        os.umask(before)
    assert path.stat().st_ino != inode
    assert path.stat().st_mode & 0o777 == 0o644
    assert LAG.search(path.read_text())
    assert [each.name for each in tmp_path.iterdir()] == ["rmqlog.prom"]
    assert rmqlog("metrics", golden(STORE), "--textfile", tmp_path / "nowhere" / "a.prom").code == 5


def test_a_store_that_fails_is_in_the_file(rmqlog: Runner, golden: Golden, tmp_path: Path) -> None:
    """The alert needs the number, and cron the exit code."""
    path = tmp_path / "rmqlog.prom"
    said = rmqlog.fails(1, "metrics", tmp_path / "nowhere", "--textfile", path)
    assert "does not exist" in said
    assert f'rmqlog_scrape_success{{store="{tmp_path / "nowhere"}"}} 0.0\n' in path.read_text()
    for name in ("a", "b"):
        shutil.copytree(golden(STORE), tmp_path / "cluster" / name)
    done = rmqlog("metrics", tmp_path / "cluster")
    assert done.code == 4
    assert "both belong to broker broker-a" in done.err
    assert LAG.findall(done.out) == ["1137.0"]


def test_unknown_offsets_are_said(rmqlog: Runner, copy_of: Golden) -> None:
    """The page has the numbers of the store; cron sees that those of groups are missing."""
    store = copy_of(STORE)
    for name in ("consumerOffset.json", "consumerOffset.json.bak"):
        (store / "config" / name).write_bytes(bytes(100))
    done = rmqlog("metrics", store)
    assert done.code == 4
    file = store / "config" / "consumerOffset.json"
    assert f"rmqlog: the lag of all groups is unknown: {file} at byte 100: expected JSON" in done.err
    assert f'rmqlog_scrape_success{{store="{store}"}} 1.0\n' in done.out
    assert not LAG.search(done.out)


def test_what_is_refused(rmqlog: Runner, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    store = golden(STORE)
    assert "use only one" in rmqlog.fails(2, "metrics", store, "--textfile", "a", "--listen", ":0")
    assert "reads all of STORE" in rmqlog.fails(2, "metrics", store, "--verify", "--listen", ":0")
    assert "HOST:PORT" in rmqlog.fails(2, "metrics", store, "--listen", "nowhere")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert "the extra metrics" in rmqlog.fails(2, "metrics", store)


@contextmanager
def _listening(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that listens, and the address of its page."""
    line = command("metrics", *arguments)
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment()) as process:
        try:
            assert process.stderr is not None
            yield process, process.stderr.readline().strip().removeprefix("rmqlog: metrics at ")
        finally:
            process.kill()


def _get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_server_answers_until_a_signal(copy_of: Golden, number: signal.Signals, code: int) -> None:
    path = copy_of(STORE)
    with _listening(path, "--listen", ":0") as (process, address):
        assert address.startswith("http://127.0.0.1:")
        assert LAG.findall(_get(address)) == ["1137.0"]
        path.rename(path.parent / "away")
        assert "rmqlog_scrape_success" in _get(address)
        assert LAG.findall(_get(address)) == []
        (path.parent / "away").rename(path)
        assert LAG.findall(_get(address)) == ["1137.0"]
        process.send_signal(number)
        assert process.wait(30) == code
        assert process.stderr is not None
        said = process.stderr.read()
    assert said.count("does not exist") == 1  # once, though two scrapes failed
    assert "all stores are read again" in said
    assert "not loopback" not in said


@pytest.mark.process
def test_another_address_than_loopback_is_said(golden: Golden) -> None:
    with _listening(golden(STORE), "--listen", "0.0.0.0:0") as (process, address):
        port = int(address.rpartition(":")[2].removesuffix("/metrics"))
        assert process.stderr is not None
        assert "0.0.0.0 is not loopback" in process.stderr.readline()
        assert LAG.findall(_get(f"http://127.0.0.1:{port}/metrics")) == ["1137.0"]
        again = subprocess.run(
            command("metrics", golden(STORE), "--listen", f"127.0.0.1:{port}"),
            capture_output=True, text=True, env=environment(), timeout=60, check=False,
        )  # fmt: skip
        assert again.returncode == 5
        assert "Address already in use" in again.stderr


@pytest.mark.parametrize("harmed", ["damaged", "empty", "gone"])
def test_a_check_without_an_offset_is_unknown(rmqlog: Runner, copy_of: Golden, harmed: str) -> None:
    root = copy_of("retry-dlq-5.5.0")
    for path in (root / "config").glob("consumerOffset.json*"):
        if harmed == "gone" or path.suffix == ".bak":
            path.unlink()
        else:
            path.write_text("" if harmed == "empty" else "{nothing")
    for more in ((), ("--group", "CG_fail")):
        done = rmqlog("check", root, "--max-lag", "1", *more)
        assert done.code == 3
        assert done.out.startswith("RMQLOG UNKNOWN - ")

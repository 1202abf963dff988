"""Commands on stores that are not readable throughout: what can be shown is shown, what cannot is named, and
the exit code says which.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli_runs import Runner
from tests.support.permissions import as_nobody, open_directory
from tests.support.small_store import write_small_store


@pytest.fixture
def root(rmqlog: Runner) -> Iterator[Path]:
    with open_directory() as directory:
        root = write_small_store(directory / "store").root
        for command in ("ls", "info", "du"):  # imports
            assert rmqlog(command, root).code == 0
        assert rmqlog("info", root, "--view", "files").code == 0
        yield root


@pytest.mark.parametrize("place", ["", "commitlog", "consumequeue", "config/topics.json"])
def test_a_store_that_may_not_be_read(rmqlog: Runner, root: Path, place: str) -> None:
    (root / place).chmod(0)
    with as_nobody():
        for command in ("ls", "info", "verify"):
            told = rmqlog.fails(5, command, root)
            assert f"{root / place}".rstrip("/") in told
            assert "may not read it" in told
            assert "Errno" not in told
    (root / place).chmod(0o755)


@pytest.mark.parametrize(
    "command", [("ls", "-a"), ("ls", "-l", "-a"), ("info", "--view", "queues"), ("info", "--view", "files")]
)
def test_a_topic_that_may_not_be_read(rmqlog: Runner, root: Path, command: tuple[str, ...]) -> None:
    whole = rmqlog(command[0], root, *command[1:], "-o", "json")
    (root / "consumequeue" / "Parent").chmod(0)
    with as_nobody():
        done = rmqlog(command[0], root, *command[1:], "-o", "json")
    assert done.code == 4
    found, left = (
        [tuple(row.get(name) for name in ("topic", "queueId", "file")) for row in json.loads(run.out)]
        for run in (done, whole)
    )
    assert found == [place for place in left if place[0] != "Parent"]


def test_commitlog_files_that_may_not_be_read_leave_the_times_out(
    rmqlog: Runner, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = root / "commitlog" / f"{0:020d}"
    file.chmod(0)
    with as_nobody():
        done = rmqlog("ls", root, "-o", "json")
        assert rmqlog("info", root).code == 4
    assert done.code == 4
    assert [row["topic"] for row in json.loads(done.out)] == ["Batches", "Orders", "Parent"]
    assert str(file) in caplog.text


def test_offsets_that_may_not_be_read_are_not_known(
    rmqlog: Runner, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    offsets = root / "config" / "consumerOffset.json"
    offsets.write_text('{"offsetTable":{}}')
    offsets.chmod(0)
    with as_nobody():
        done = rmqlog("info", root, "-o", "json")
    assert done.code == 4
    assert json.loads(done.out)[0]["groups"] is None
    assert str(offsets) in caplog.text


def test_an_index_that_may_not_be_read_is_not_used(rmqlog: Runner, root: Path) -> None:
    (root / "batchconsumequeue").rename(root.parent / "moved")  # no index file knows keys inside of batches
    (root / "index").mkdir()
    whole = rmqlog("find", root, "--key", "k1", "-t", "Orders", "-o", "json")
    (root / "index").chmod(0)
    with as_nobody():
        done = rmqlog("find", root, "--key", "k1", "-t", "Orders", "-o", "json")
    assert (done.code, done.out) == (0, whole.out)
    assert f"not used, the first because {root / 'index'}: " in done.err


def test_a_place_that_may_not_be_written_to(rmqlog: Runner, root: Path) -> None:
    out = root.parent / "out.jsonl"
    rmqlog("export", root, out)
    with as_nobody():
        told = rmqlog.fails(5, "export", root, f"{out}.again.jsonl")
    assert told.startswith(f"{out}.again.jsonl")
    assert told.endswith(": Permission denied")


def test_a_member_of_a_cluster_without_its_commitlog(
    rmqlog: Runner, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = write_small_store(root.parent / "other").root
    (other / "commitlog").rename(root.parent / "moved")
    assert rmqlog("ls", root.parent).code == 4
    assert f"{other} looks like a store, but has no directory `commitlog`" in caplog.text
    assert str(other) in rmqlog.fails(1, "verify", root.parent)
    (other / "commitlog").symlink_to(root / "commitlog")
    assert "are one store" in rmqlog.fails(2, "ls", root.parent)

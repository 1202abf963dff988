"""docs/howto-mirror.md: its commands copy a store that a program writes meanwhile, to a directory and to
object storage, and each round leaves a copy whose queues are prefixes of the store's queues.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.errors import CorruptStoreError
from store_format.files.read import places
from tests.support import live_writer
from tests.support.doc_pages import Block, Session, blocks, is_as_shown, read_page
from tests.support.fixtures import Golden
from tests.support.object_server import ObjectServer
from tests.support.staged import append, make_store, numbered

_RSYNC, _RCLONE, _VERIFY = blocks(read_page("howto-mirror.md"))
_MESSAGES = 500
_ROUNDS_MAX = 60
_OLD_S = 3 * 3600  # more than the two hours of the page
_NAME = "?" * 20  # of the files of the log and of the queues


def _needs(program: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(program) is None, reason=f"{program} is not installed")


@pytest.fixture
def session(tmp_path: Path, golden: Golden) -> Session:
    def no_spark() -> None:
        raise AssertionError("the page starts no Spark")

    return Session(tmp_path, golden, no_spark)  # type: ignore[arg-type]  # not called


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Path]:
    """A store that a process writes as a broker does."""
    root = tmp_path / "store"
    command = [sys.executable, "-m", "tests.support.live_writer", str(root), str(_MESSAGES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "ready\n"
        (root / "index").mkdir()
        yield root
        process.stdin.close()


def _are_prefixes(path: str) -> int:
    """Checks each queue of a copy of the writer's store; returns how many messages it has."""
    count = 0
    for queue in MessageStore.open(path).queues():
        table = queue.to_table(columns=["queueOffset", "body"])
        count += table.num_rows
        assert table["queueOffset"].to_pylist() == list(range(table.num_rows))
        right = [live_writer.message_body(*queue.key, offset) for offset in range(table.num_rows)]
        assert table["body"].to_pylist() == right
    return count


def _rounds(one_round: Callable[[], object], path: str) -> list[int]:
    """How many messages the copy had after each round, until it had all."""
    counts = [0]
    while counts[-1] < _MESSAGES:
        assert len(counts) < _ROUNDS_MAX, counts
        one_round()
        counts.append(_are_prefixes(path))
    return counts


@_needs("rsync")
def test_the_page_runs(session: Session) -> None:
    session.run(_RSYNC)
    assert _VERIFY.output is not None
    assert is_as_shown(_VERIFY.output, session.run(_VERIFY))


@_needs("rsync")
@pytest.mark.process
def test_rsync_beside_a_writer(session: Session, writer: Path, tmp_path: Path) -> None:
    counts = _rounds(lambda: session.run(_RSYNC), str(tmp_path / "mirror"))
    assert counts == sorted(counts)
    assert len(counts) > 3, "no round was beside the writer"


@pytest.fixture
def objects(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> tuple[Block, str]:
    """(the commands of rclone, with the server as their object storage; the copy)"""
    server.accepts = True
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)  # which this version of rclone refuses
    monkeypatch.setenv("RCLONE_CONFIG", "/dev/null")
    monkeypatch.setenv("RCLONE_S3_PROVIDER", "Other")
    monkeypatch.setenv("RCLONE_S3_LIST_VERSION", "2")  # the only one of the server
    monkeypatch.setenv("RCLONE_S3_ENDPOINT", server.url)
    text = _RCLONE.text.replace(":backup/", f":{server.bucket.name}/")
    return Block(_RCLONE.line, "sh", text, None), f"s3://{server.bucket.name}/broker-a"


@_needs("rclone")
@pytest.mark.slow
@pytest.mark.process
def test_rclone_beside_a_writer(
    session: Session, writer: Path, server: ObjectServer, objects: tuple[Block, str]
) -> None:
    commands, url = objects

    def one_round() -> None:
        session.run(commands)
        places().objects_at(url).listings.take(url)

    counts = _rounds(one_round, url)
    assert counts == sorted(counts)
    assert not server.refused


# ---- files that fill during a round ------------------------------------------------------------------------


class _Filling:
    """A store whose last files fill up, and are followed by others, at each `step`."""

    def __init__(self, root: Path) -> None:
        self.root, self.writer = root, live_writer.Writer(root, pieces=1)
        (root / "index").mkdir()
        self.step()

    def step(self) -> None:
        """Fills a file of the log and of each queue. The time of a file stays: see the page."""
        times = {path: path.stat().st_mtime_ns for path in self.files()}
        for _ in range(len(live_writer.QUEUES) * live_writer.CQ_FILE_SIZE // 20):
            self.writer.append()
        for path, time_ns in times.items():
            os.utime(path, ns=(time_ns, time_ns))

    def files(self) -> set[Path]:
        """The files that have data."""
        return {path for path in self.root.rglob(_NAME) if any(path.read_bytes())}

    def grow_old(self) -> None:
        """As if nothing had been written for hours."""
        for path in self.files():
            os.utime(path, (time.time() - _OLD_S, time.time() - _OLD_S))


def _check_each_command(session: Session, store: _Filling, commands: Block, copy: Path, url: str) -> None:
    """Files fill between all commands, and between a list and its copy; no round leaves a hole."""

    def run(text: str) -> None:
        session.run(Block(commands.line, "sh", text, None))

    def one_round(step: Callable[[], object]) -> None:
        for line in commands.text.splitlines():
            first, pipe, rest = line.partition(" | ")
            if pipe:
                run(f"{first} > {names}")
                step()
            run(f"cat {names} | {rest}" if pipe else line)
            step()

    def fill() -> None:
        store.step()
        check()

    def check() -> int:
        if url.startswith("s3:"):
            places().objects_at(url).listings.take(url)
        return _are_prefixes(url)

    names = session.directory / "names"
    one_round(lambda: None)
    assert check() == store.writer.number
    store.step()
    one_round(fill)
    store.grow_old()
    shutil.rmtree(store.root / "consumequeue" / "Other")
    one_round(lambda: None)
    assert check() == store.writer.number
    copied = {path.relative_to(copy) for path in copy.rglob(_NAME)}
    assert copied == {path.relative_to(store.root) for path in store.files()}


@_needs("rsync")
def test_files_that_fill_while_rsync_runs(session: Session, tmp_path: Path) -> None:
    copy = tmp_path / "mirror"
    _check_each_command(session, _Filling(tmp_path / "store"), _RSYNC, copy, str(copy))


@_needs("rclone")
@pytest.mark.slow
@pytest.mark.process
def test_files_that_fill_while_rclone_runs(
    session: Session, tmp_path: Path, server: ObjectServer, objects: tuple[Block, str]
) -> None:
    _check_each_command(
        session, _Filling(tmp_path / "store"), objects[0], server.bucket / "broker-a", objects[1]
    )
    assert not server.refused


# ---- what the order is for ---------------------------------------------------------------------------------


@pytest.fixture
def grown(tmp_path: Path) -> tuple[Path, Path, Path]:
    """(a store of 1,000 messages, the same when it had 500, a place for a copy that has `abort`)"""
    root, before, copy = make_store(tmp_path / "store"), tmp_path / "before", tmp_path / "copy"
    append(root, numbered("T", 0, 500, body_size=100))
    shutil.copytree(root, before)
    append(root, numbered("T", 500, 500, body_size=100))
    copy.mkdir()
    (copy / "abort").touch()
    return root, before, copy


def _take(source: Path, copy: Path, *names: str) -> None:
    for name in names:
        if (source / name).is_dir():
            shutil.copytree(source / name, copy / name, dirs_exist_ok=True)
        else:
            shutil.copy2(source / name, copy / name)


def _numbers(copy: Path) -> list[int]:
    return [queue.to_table(columns=["body"]).num_rows for queue in MessageStore.open(str(copy)).queues()]


def test_older_queues_miss_nothing_even_with_a_newer_checkpoint(grown: tuple[Path, Path, Path]) -> None:
    root, before, copy = grown
    _take(before, copy, "consumequeue", "index")
    _take(root, copy, "checkpoint", "config", "commitlog")
    assert sum(_numbers(copy)) == 1000


def test_newer_queues_are_read_up_to_the_end_of_the_commitlog(grown: tuple[Path, Path, Path]) -> None:
    root, before, copy = grown
    _take(before, copy, "checkpoint", "config", "commitlog")
    _take(root, copy, "consumequeue", "index")
    assert sum(_numbers(copy)) == 500


def test_a_newer_commitlog_file_before_an_older_one_is_damage(grown: tuple[Path, Path, Path]) -> None:
    root, before, copy = grown
    _take(before, copy, "checkpoint", "config", "commitlog", "consumequeue")
    older = {path.name for path in (before / "commitlog").iterdir()}
    newer = [path for path in (root / "commitlog").iterdir() if path.name not in older]
    assert newer
    for path in newer:
        shutil.copy2(path, copy / "commitlog" / path.name)
    with pytest.raises(CorruptStoreError, match="expected magic code"):
        _numbers(copy)
    _take(root, copy, "commitlog")
    assert sum(_numbers(copy)) == 1000

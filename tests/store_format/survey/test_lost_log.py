"""A commitlog that is not there, although queues, ledger or checkpoint know of its messages: every reader
says so in the words of the writers, and none takes the store for an empty one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.cli.exit_codes import PARTIAL
from rmq_spark.cli.main import main
from rmq_spark.options.option import BATCH, STREAM
from rmq_spark.options.read_options import parse_read_options
from rmq_spark.plan.batch import plan
from rmq_spark.stream.positions import StreamPositions
from rmq_spark.stream.stores import StreamStores
from store_format import MessageStore
from store_format.commitlog.log import CommitLog
from store_format.diagnose import diagnose
from store_format.diagnose.problems import NextStep, verdict
from store_format.errors import StoreNotFoundError
from store_format.files.read import FileCache
from store_format.opened.store import Opened
from store_format.survey.gone import find_lost_log
from tests.support.fixtures import Golden
from tests.support.staged import append, numbered

_SAID = r"has no message, but .* Mount the commitlog's disk, or give the commitlog's directories"
_FILE_SIZE = 262144


@pytest.fixture(params=["empty directory", "empty file", "only zeros"])
def lost(request: pytest.FixtureRequest, copy_of: Golden) -> Path:
    """A store whose commitlog's disk is not mounted, in three ways."""
    root = copy_of("basic-5.5.0")
    _unmount(root, request.param)
    return root


def _unmount(root: Path, how: str) -> None:
    (root / "commitlog").rename(root.parent / "disk")
    (root / "commitlog").mkdir()
    if how != "empty directory":
        size = _FILE_SIZE if how == "only zeros" else 0
        (root / "commitlog" / f"{0:020d}").write_bytes(bytes(size))


def _plan(root: Path, **options: str) -> object:
    return plan(parse_read_options({"path": str(root), **options}, where=BATCH))


READERS: dict[str, Callable[[Path], object]] = {
    "queues": lambda root: MessageStore.open(str(root)).queues(),
    "scan": lambda root: list(MessageStore.open(str(root)).scan()),
    "find": lambda root: MessageStore.open(str(root)).find(key="k1", topic="Orders"),
    "plan by queue": lambda root: _plan(root, splitBy="queue"),
    "plan by commitlog": lambda root: _plan(root, splitBy="commitlog"),
    "plan without loss": lambda root: _plan(root, failOnDataLoss="false"),
}


@pytest.mark.golden
@pytest.mark.parametrize("reader", READERS)
def test_no_reader_takes_the_store_for_an_empty_one(lost: Path, reader: str) -> None:
    with pytest.raises(StoreNotFoundError, match=_SAID):
        READERS[reader](lost)


@pytest.mark.golden
@pytest.mark.parametrize("verb", ["info", "ls", "lag", "head", "recover"])
def test_no_command_counts_what_nobody_can_read(
    lost: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([verb, str(lost)]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "Mount the commitlog's disk" in said.err


@pytest.mark.golden
def test_a_store_of_a_cluster_is_named(
    copy_of: Golden,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root = copy_of("cluster-5.5.0")
    _unmount(root / "broker-b", "empty directory")
    for split in ("queue", "commitlog", "wholeQueue"):
        with pytest.raises(StoreNotFoundError, match=f"{root}/broker-b: the commitlog .*{_SAID}"):
            _plan(root, splitBy=split)
    _plan(root, failOnDataLoss="false")
    assert f"{root}/broker-b: the commitlog" in caplog.text
    assert main(["ls", str(root)]) == PARTIAL
    assert "broker-a" in capsys.readouterr().out
    assert caplog.text.count(f"{root}/broker-b: the commitlog") == 2


@pytest.mark.golden
@pytest.mark.parametrize("fail_on_data_loss", ["true", "false"])
def test_a_stream_waits_for_the_disk_with_an_error(copy_of: Golden, fail_on_data_loss: str) -> None:
    root = copy_of("basic-5.5.0")
    given = {"path": str(root), "startingOffsets": "earliest", "failOnDataLoss": fail_on_data_loss}
    positions = StreamPositions(StreamStores(parse_read_options(given, where=STREAM)))
    start = positions.initial()
    before = positions.latest(start)
    _unmount(root, "empty directory")
    with pytest.raises(StoreNotFoundError, match=_SAID):
        positions.latest(start)
    (root / "commitlog").rmdir()
    (root.parent / "disk").rename(root / "commitlog")
    assert positions.latest(start) == before


@pytest.mark.golden
def test_verify_says_so_and_checks_nothing_else(lost: Path) -> None:
    found = diagnose(str(lost))
    assert [problem.file for problem in found.of("damage")] == [f"{lost}/commitlog"]
    assert found.of("damage")[0].expected.startswith("messages, because consume queue ")
    text, step = verdict(found)
    assert text.startswith("the commitlog is missing: no message can be read or checked, but consume queue ")
    assert step is NextStep.AGAIN


def test_a_log_that_was_begun_since_it_was_listed(root: Path) -> None:
    listed = CommitLog.open((f"{root}/commitlog",), FileCache())
    assert not listed.files
    append(root, numbered("T", 0, 5))
    assert find_lost_log(Opened(str(root)), listed) is None


def test_a_new_store_and_a_store_of_dledger_are_not_refused(root: Path) -> None:
    assert MessageStore.open(str(root)).queues() == []
    append(root, numbered("T", 0, 5))
    (root / "commitlog").rename(root / "dledger-broker-a")
    (root / "commitlog").mkdir()
    assert find_lost_log(Opened(str(root)), CommitLog.open((f"{root}/commitlog",), FileCache())) is None

"""A batch that the ledger says is committed, in a copy that lacks a part of it: what the commitlog has gets
its topics, queue entries and index entries, and what it lacks is named.
"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from store_format.bookkeeping.journal import Journal
from store_format.bookkeeping.ledger import Ledger
from store_format.commit.append import CommitResult, commit, flush
from store_format.commit.options import CommitOptions, LostBatch
from store_format.commitlog import write
from store_format.commitlog.write import LogFiles
from store_format.errors import OptionError
from store_format.files.write import FileWrites
from store_format.metadata.read import read_topics
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.failing_writer import Failure, install
from tests.support.fork_server import ForkServer
from tests.support.kills import killed_stores
from tests.support.oracle import build_index_files
from tests.support.staged import append, deleted_topic, make_store, messages_of, numbered, stage

_FIRST, _OLD, _NEW = 20, 30, 20
_BATCH = [*numbered("T", _FIRST, _OLD), *numbered("U", _FIRST + _OLD, _NEW)]
_KEY = ("job", 1)


@pytest.fixture
def before(tmp_path: Path) -> Path:
    root = make_store(tmp_path / "before")
    append(root, numbered("T", 0, _FIRST), key=("job", 0))
    return root


@pytest.fixture
def root(before: Path, tmp_path: Path) -> Path:
    root = Path(shutil.copytree(before, tmp_path / "store"))
    append(root, _BATCH, key=_KEY)
    return root


def _of_before(root: Path, before: Path, *names: str) -> None:
    for name in names:
        shutil.rmtree(root / name)
        shutil.copytree(before / name, root / name)


def _cut(root: Path, number: int) -> None:
    """Cuts the commitlog within this message of the batch."""
    place = messages_of(root)[_FIRST + number].physical_offset + 10
    for path in sorted((root / "commitlog").iterdir()):
        start, data = int(path.name), path.read_bytes()
        kept = data[: max(place - start, 0)]
        path.write_bytes(kept.ljust(len(data), b"\0"))
        if start > place:
            path.unlink()


def _run_again(root: Path, lost: LostBatch | None = None) -> CommitResult:
    return append(root, _BATCH, key=_KEY, options=CommitOptions(lost_batch=lost))


def _count(root: Path) -> int:
    store = MessageStore.open(str(root))
    return sum(len(batch) for queue in store.queues() for batch in queue.read(columns=["topic"]))


_OLD_FILES = [("config",), ("consumequeue",), ("index",), ("config", "consumequeue", "index")]


@pytest.mark.parametrize("names", _OLD_FILES, ids="-".join)
def test_what_the_log_has_is_completed(root: Path, before: Path, names: tuple[str, ...]) -> None:
    _of_before(root, before, *names)
    assert [*MessageStore.open(str(root)).diagnose()] != []
    assert not _run_again(root).committed
    assert [str(each) for each in MessageStore.open(str(root)).diagnose()] == []
    assert _count(root) == _FIRST + _OLD + _NEW
    files = [path.read_bytes() for path in sorted((root / "index").iterdir())]
    assert files == build_index_files(tuple(messages_of(root)), 50, 200)


def test_a_topic_of_a_commit_is_lost_with_an_older_topics_json(root: Path, before: Path) -> None:
    _of_before(root, before, "config", "consumequeue")
    problems = {str(each) for each in MessageStore.open(str(root)).diagnose()}
    assert any(
        "expected the 1 topic that commits created: U, found a file from before" in x for x in problems
    )
    assert any("none for 5 messages" in each and "from before this commit" in each for each in problems)
    assert _count(root) == _FIRST + _OLD + _NEW  # read by a scan
    append(root, numbered("T", 900, 1))  # any write completes it
    topics = read_topics(Opened(str(root)))
    assert topics is not None
    assert topics["U"].read_queue_nums == 4
    assert [str(each) for each in MessageStore.open(str(root)).diagnose()] == []
    deleted_topic(root, "U")  # as a broker does, which increments the counter; here it stays
    assert _count(root) == _FIRST + _OLD + 1
    flush(str(root))
    assert _count(root) == _FIRST + _OLD + 1


def _write_v(root: Path, failure: Failure) -> None:
    staged = stage(root, numbered("V", 900, 8), write="v")
    install(failure)
    commit(str(root), [staged], key=("other", 2), options=CommitOptions(new_topics={"V": 4}))


def test_a_commit_that_is_completed_loses_no_topic_of_an_older_topics_json(
    root: Path, before: Path, tmp_path: Path, forks: ForkServer
) -> None:
    """The new topics file counts further than the ledger: what it lacked then would be deleted."""
    (tmp_path / "copies").mkdir()
    completed = 0
    for _, copy in killed_stores(forks, root, tmp_path / "copies", "kill", _write_v, every=4):
        _of_before(copy, before, "config", "consumequeue")
        completed += Journal.read(Opened(str(copy))) is not None
        append(copy, numbered("V", 900, 8), key=("other", 2))
        assert [str(each) for each in MessageStore.open(str(copy)).diagnose()] == []
        assert _count(copy) == _FIRST + _OLD + _NEW + 8
    assert completed > 3


def test_lost_messages_are_named_and_the_batch_is_written_again_on_request(root: Path, before: Path) -> None:
    _of_before(root, before, "consumequeue", "index")
    _cut(root, 37)  # of T 30 messages are there, of U 7
    expected = "13 are lost: U-0 offsets 2 to 4, U-1 offsets 1 to 4, U-2 offsets 2 to 4, U-3 offsets 2 to 4"
    with pytest.raises(OptionError, match=f"{expected}. Write the lost messages under another key, or"):
        _run_again(root)
    assert any(expected in str(each) for each in MessageStore.open(str(root)).diagnose())
    result = _run_again(root, "again")
    told = "because 13 of its 50 messages are lost; the store then has the other 37 messages twice"
    assert told in result.reports[0]
    assert _count(root) == _FIRST + 37 + _OLD + _NEW
    assert not _run_again(root, "again").committed
    assert MessageStore.open(str(root)).diagnose().verdict.startswith("sound")


def test_a_batch_whose_first_messages_are_lost_is_not_whole(root: Path) -> None:
    """The last file of the commitlog is of after the commit, the one before it is not."""
    assert len(messages_of(root)) == _FIRST + _OLD + _NEW
    append(root, numbered("T", 100, 100), key=("job", 2))
    (first, *_) = sorted((root / "commitlog").iterdir())
    data = first.read_bytes()
    begin = messages_of(root)[_FIRST + _OLD + _NEW].physical_offset
    first.write_bytes(data[:begin].ljust(len(data), b"\0"))
    with pytest.raises(OptionError, match="are lost: T-0 offsets"):
        append(root, numbered("T", 100, 100), key=("job", 2))


def test_a_hard_linked_commitlog_is_named(
    root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = sorted((root / "commitlog").iterdir())[-1]
    os.link(newest, tmp_path / "backup")
    with caplog.at_level(logging.WARNING):
        append(root, numbered("T", 900, 1))
    assert f"{newest} has 2 hard links: this write changes the same bytes in the other places" in caplog.text


def fail(root: Path, at: int) -> str:
    """The error of a commit whose disk is full at this change; empty if the commit does its steps again."""
    staged = stage(root, numbered("T", 500, 100), write=f"w{at}")
    originals = install(Failure("ENOSPC:once", at))
    try:
        commit(str(root), [staged], key=("full", at))
    except OSError as error:
        return str(error)
    finally:
        for name, original in originals.items():
            setattr(os, name, original)
    return ""


@pytest.mark.process
def test_the_error_of_a_full_disk_says_whether_messages_were_written(root: Path, forks: ForkServer) -> None:
    told = 0
    for at in range(2, 30, 3):
        before = _count(root)
        error = forks.call(fail, root, at)
        if error:
            assert error.endswith("No space left on device. No message of the batch was written")
        assert _count(root) == before + 100 * (not error)
        told += bool(error)
    assert told > 4


def test_new_files_leave_out_directories_as_a_broker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What MultiPathMappedFileQueue.tryCreateMappedFile of 5.5.0 gives for a, b and c."""
    directories = [str(tmp_path / name) for name in "abc"]
    for directory in directories:
        os.mkdir(directory)
    log = MessageStore.open(str(make_store(tmp_path / "store"))).log

    def turns(*read_only: str) -> str:
        files = LogFiles(log, directories, 4096, FileWrites(sync=False), read_only)
        return "".join(files._new_path(n * 4096).split("/")[-2] for n in range(6))

    assert turns() == "abcabc"
    assert turns(directories[1]) == "acacac"  # readOnlyCommitLogStorePaths
    monkeypatch.setattr(write, "_FULL_PERCENT", -1)  # all are full: as if none were
    assert turns() == "abcabc"
    assert turns(directories[1]) == "acacac"


def test_a_write_to_new_queues_reads_no_log_that_only_commits_have_written(before: Path) -> None:
    topics = [f"Topic-{n}" for n in range(70)]
    append(before, [m for topic in topics for m in numbered(topic, 0, 1)])
    append(before, [m for topic in topics for m in numbered(topic, 1, 1)])  # another queue of each topic
    assert not (before / ".rmqlog/queues.json").exists()  # the note of a scan
    assert Ledger.read(Opened(str(before))).ends_from == 0
    shutil.rmtree(before / "consumequeue/Topic-0/1")
    append(before, [*numbered("Topic-0", 1, 1), *(m for topic in topics for m in numbered(topic, 2, 1))])
    assert (before / ".rmqlog/queues.json").exists()
    assert MessageStore.open(str(before)).queue("Topic-0", 1).max_offset == 2

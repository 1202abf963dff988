"""Appending to a store that was stopped in order and has lost consume queues, or whose commitlog is not where
it was.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from store_format.bookkeeping.journal import Abort
from store_format.commit import queue_changes
from store_format.commit.append import commit, plan, recover
from store_format.commit.options import CommitOptions
from store_format.commit.prepare_store import open_store
from store_format.commit.publication import Publication, save_checkpoint
from store_format.commitlog.log import CommitLog
from store_format.errors import OptionError, StoreNotFoundError
from store_format.files.write import FileWrites
from store_format.metadata.read import read_checkpoint
from store_format.opened.store import Opened
from store_format.store import MessageStore
from store_format.survey.fates import Unfiled
from store_format.survey.scan import LogScan
from store_format.survey.unfiled_queues import UnfiledQueues
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.referee.made import made
from tests.support.staged import (
    Rows,
    append,
    deleted_topic,
    make_store,
    numbered,
    rows_by_queue,
    settings_from,
    stage,
)
from tests.support.writes import held


def _queued(root: Path) -> Rows:
    """The same where no queue is read by a scan of the log instead."""
    snapshot = MessageStore.open(str(root)).snapshot()
    assert snapshot.lost == frozenset()
    assert snapshot.damaged == {}
    return rows_by_queue(root)


def _count(rows: Rows) -> int:
    return sum(map(len, rows.values()))


def _options(name: str = "", *, sync: bool = True) -> CommitOptions:
    settings = settings_from(goldens.config(name)) if name else None
    return CommitOptions(settings=settings, clock=lambda: 1_800_000_000_000, sync=sync)


def _check_appended(root: Path, before: Rows, count: int) -> None:
    """Every old row is there as it was, `count` new ones follow, and no offset is there twice."""
    after = _queued(root)
    assert {key: after.get(key, [])[: len(rows)] for key, rows in before.items()} == before
    assert _count(after) == _count(before) + count
    for rows in after.values():
        offsets = [offset for offset, _ in rows]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


def _say_flushed(root: Path, rows: Rows) -> None:
    """The checkpoint as of a 5.5 broker that had flushed its queues up to the last message."""
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    assert checkpoint is not None
    last = max(offset for each in rows.values() for _, offset in each)
    flushed = replace(
        checkpoint, logics_physical_offset=last, logics_msg_timestamp=checkpoint.physic_msg_timestamp
    )
    save_checkpoint(Opened(str(root)), flushed, FileWrites(sync=False))


@pytest.fixture
def copy(golden: Golden, tmp_path: Path) -> Golden:
    def made(name: str) -> Path:
        large = name.startswith("defaults")  # its files have holes, which a copy fills
        return (
            goldens.unpack(name, tmp_path / name) if large else shutil.copytree(golden(name), tmp_path / name)
        )

    return made


@pytest.mark.process
@pytest.mark.parametrize("sync", [True, False])
@pytest.mark.parametrize("name", ["basic-5.5.0", "cleaned-5.5.0", "defaults-5.5.0", "basic-4.9.7"])
def test_a_clean_store_without_queues_gets_them_before_the_append(
    copy: Golden, name: str, sync: bool
) -> None:
    root = copy(name)
    before = rows_by_queue(root)
    _say_flushed(root, before)
    queues = {
        path.relative_to(root): path.read_bytes()
        for path in sorted((root / "consumequeue").rglob("0*"))
        if path.is_file()
    }
    index = sorted(path.name for path in (root / "index").iterdir())
    shutil.rmtree(root / "consumequeue")
    options = _options(name, sync=sync)
    if sync:  # as if the topics were deleted and created again
        (root / "consumequeue").mkdir()
        options = replace(options, unfiled_queues="read")
    append(root, numbered("Orders", 0, 50), options=options)
    _check_appended(root, before, 50)
    if name == "basic-5.5.0":
        assert MessageStore.open(str(root)).diagnose().of("damage", "warning") == []
    checkpoint = read_checkpoint(f"{root}/checkpoint")
    assert checkpoint is not None
    assert checkpoint.logics_physical_offset >= max(offset for each in before.values() for _, offset in each)
    assert (root / "abort").exists() is not sync
    assert sorted(path.name for path in (root / "index").iterdir())[: len(index)] == index
    for path, data in queues.items():
        # there the first file has entries of messages that are gone
        if "Orders" not in path.parts and name != "cleaned-5.5.0":
            assert (root / path).read_bytes() == data, path


@pytest.mark.parametrize("act", ["append", "recover"])
def test_unknown_queue_file_sizes_are_refused_and_nothing_changed(copy: Golden, act: str) -> None:
    root = copy("basic-5.5.0")
    shutil.rmtree(root / "consumequeue")
    before = _bytes(root)
    with pytest.raises(OptionError, match=r"(?s)has to be rebuilt .* Give mappedFileSizeConsumeQueue"):
        append(root, numbered("Orders", 0, 5)) if act == "append" else recover(str(root))
    assert _bytes(root) == before


def _bytes(root: Path) -> dict[str, bytes]:
    paths = [
        path
        for path in sorted(root.rglob("*"))
        if path.is_file() and ".rmqlog" not in path.parts and path.name != "lock"
    ]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def test_a_crashed_stores_lost_queue_is_completed_from_its_first_message_on(
    copy: Golden,
) -> None:
    root = copy("basic-5.5.0")
    before = rows_by_queue(root)
    shutil.rmtree(root / "consumequeue" / "Orders" / "2")
    _say_flushed(root, before)
    (root / "abort").write_text("4711")
    recover(str(root))
    assert _queued(root) == before


def test_a_crashed_stores_queue_with_entries_that_lead_nowhere_keeps_its_messages(tmp_path: Path) -> None:
    """The entries in front of those that are missing are another store's."""
    store = made(tmp_path / "store", "A*8", log_file_size=1024)
    assert store.messages[6].physical_offset == 1024
    (queue,) = (store.write(crashed=True) / "consumequeue/A/0").iterdir()
    entry = (13).to_bytes(8) + (99).to_bytes(4) + bytes(8)
    queue.write_bytes((6 * entry).ljust(160, b"\0"))
    append(store.root, numbered("A", 100, 1, queues=1))
    read = MessageStore.open(str(store.root)).queue("A", 0).to_table(columns=["physicalOffset"])
    places = [each.physical_offset for each in store.messages]
    assert read["physicalOffset"].to_pylist()[:8] == places


# ---- deleted and created again, or lost? -------------------------------------------------------------------


def _created_again(root: Path, *, is_last: bool = False) -> None:
    """T with 40 messages, deleted and created again as by a broker; the log's last message is one of them, or
    one of U.
    """
    append(root, numbered("U", 0, 4))
    append(root, numbered("T", 0, 40))
    if not is_last:
        append(root, numbered("U", 4, 4))
    else:
        (root / ".rmqlog" / "ledger.json").unlink()  # a broker's message
    shutil.rmtree(root / "consumequeue" / "T")


@pytest.mark.process
@pytest.mark.parametrize("lost", [None, "read", "skip"])
def test_a_write_to_another_topic_brings_no_deleted_message_back(
    root: Path, caplog: pytest.LogCaptureFixture, lost: Unfiled | None
) -> None:
    _created_again(root, is_last=True)
    append(root, numbered("U", 4, 4), options=replace(_options(), unfiled_queues=lost))
    assert "These messages stay in no consume queue" in caplog.text
    assert not (root / "consumequeue" / "T").exists()
    assert {key for key in _queued_or_lost(root) if key[0] == "U"} == {
        ("U", queue_id) for queue_id in range(4)
    }


def _queued_or_lost(root: Path) -> set[tuple[str, int]]:
    return set(MessageStore.open(str(root), unfiled_queues="skip").snapshot().queues)


def test_a_queue_that_began_again_after_a_loss_is_no_new_beginning_of_the_topic(
    root: Path, tmp_path: Path
) -> None:
    """A broker had numbered T-0 anew, whose files were gone; T-1, which went on, is lost later."""
    append(root, numbered("T", 0, 40))
    topics = (root / "config" / "topics.json").read_bytes()
    shutil.move(root / "consumequeue" / "T", tmp_path / "T")
    deleted_topic(root, "T")
    append(root, numbered("T", 40, 1))
    for queue_id in ("1", "2", "3"):
        shutil.move(tmp_path / "T" / queue_id, root / "consumequeue" / "T" / queue_id)
    (root / "config" / "topics.json").write_bytes(topics)
    append(root, numbered("T", 41, 15))
    before = rows_by_queue(root)
    shutil.rmtree(root / "consumequeue" / "T" / "1")
    assert rows_by_queue(root) == before
    append(root, numbered("T", 56, 4))
    _check_appended(root, before, 4)


# ---- while queues are rebuilt ------------------------------------------------------------------------------


class _Died(BaseException):
    """The process ends here."""


def _death(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Dies at the move numbered `at` of a rebuilt queue to its place, or before all moves."""
    original, count = FileWrites.move, 0

    def move(self: FileWrites, source: str, target: str) -> bool:
        nonlocal count
        if count == at:
            raise _Died
        count += 1
        return original(self, source, target)

    monkeypatch.setattr(FileWrites, "move", move)


@pytest.mark.process
@pytest.mark.parametrize("lost", ["consumequeue", "consumequeue/T/1", "1 and 2"])
@pytest.mark.parametrize("sync", [True, False])
def test_a_store_does_not_look_crashed_while_queues_are_rebuilt(
    root: Path, monkeypatch: pytest.MonkeyPatch, lost: str, sync: bool
) -> None:
    """A broker would look through more of the log then, and cut it at damage there. The death of the writer
    changes nothing.
    """
    append(root, numbered("T", 0, 200))
    before, checkpoint = rows_by_queue(root), (root / "checkpoint").read_bytes()
    shutil.rmtree(root / (lost if lost[0] == "c" else "consumequeue/T/1"))
    if lost == "1 and 2":
        shutil.rmtree(root / "consumequeue/T/2")
    deaths = 0
    for at in range(9):
        with monkeypatch.context() as patch:
            _death(patch, at)
            try:
                append(root, numbered("T", 200, 8), options=_options(sync=sync))
                break
            except _Died:
                deaths += 1
        assert not (root / "abort").exists()
        assert (root / "checkpoint").read_bytes() == checkpoint
        assert rows_by_queue(root) == before
        parts = {path.stat().st_size for path in (root / "consumequeue").rglob("0000*")}
        assert parts <= {400}, parts
    assert deaths == (1 if lost == "consumequeue" else 2 * (1 + (lost == "1 and 2")))
    _check_appended(root, before, 8)
    assert not (root / ".rmqlog" / "rebuild").exists()


def test_queues_that_ended_too_early_are_completed_after_a_death(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last message has its entry already: only the mark of the rebuild tells of the others."""
    append(root, numbered("T", 0, 200))
    before = rows_by_queue(root)
    for queue_id in range(4):
        files = sorted((root / "consumequeue" / "T" / str(queue_id)).iterdir())
        files[-1].unlink()
    (root / ".rmqlog" / "ledger.json").unlink()  # as a broker left it
    original, count = queue_changes.QueuesAside.correct, 0

    def correct(*args: object) -> None:
        nonlocal count
        if count == 2:
            raise _Died
        count += 1
        original(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(queue_changes.QueuesAside, "correct", correct)
    with pytest.raises(_Died):
        append(root, numbered("U", 0, 8))
    monkeypatch.undo()
    assert not (root / "abort").exists()
    append(root, numbered("U", 0, 8))
    _check_appended(root, before, 8)


def test_a_commit_without_flush_says_what_a_clean_store_had_flushed(copy: Golden) -> None:
    """Its `abort` makes a broker recover the store: not from the first file on, where damage would end the
    log.
    """
    root = copy("basic-5.5.0")
    last = max(offset for each in rows_by_queue(root).values() for _, offset in each)
    for number in (0, 50):  # the second one adds nothing: what the first wrote is not flushed
        append(root, numbered("Orders", number, 50), options=_options("basic-5.5.0", sync=False))
        checkpoint = read_checkpoint(f"{root}/checkpoint")
        assert checkpoint is not None
        assert last <= checkpoint.logics_physical_offset < 989_368


def test_queues_on_another_filesystem_are_written_in_place(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(root, numbered("T", 0, 200))
    before = rows_by_queue(root)
    original = FileWrites.move
    monkeypatch.setattr(
        FileWrites,
        "move",
        lambda self, source, target: ".rmqlog" in target and original(self, source, target),
    )
    for lost in ("consumequeue", "consumequeue/T/1"):
        shutil.rmtree(root / lost)
        append(root, numbered("T", 200, 4))
        before = rows_by_queue(root) if lost == "consumequeue" else before
    _check_appended(root, before, 4)


@pytest.mark.process
@pytest.mark.parametrize("lost", ["consumequeue/T", "consumequeue/T/1"])
def test_a_reader_that_looks_while_queues_are_moved_in_sees_all_messages(
    root: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """Between its look at the queues and the question which of them have no files."""
    append(root, numbered("U", 0, 4))
    append(root, numbered("T", 0, 60))
    before = {key: rows for key, rows in rows_by_queue(root).items() if key[0] == "T"}
    shutil.rmtree(root / lost)
    other = MessageStore.open(str(root))
    original = UnfiledQueues.among
    done: list[int] = []

    def among(self: UnfiledQueues, *args: Any) -> Any:
        if not done:
            done.append(1)
            options = replace(_options(), unfiled_queues="read")
            append(
                root, [message for message in numbered("T", 60, 4) if message.queue_id == 1], options=options
            )
        return original(self, *args)

    monkeypatch.setattr(UnfiledQueues, "among", among)
    snapshot = other.snapshot()
    assert {key: queue.max_offset for key, queue in snapshot.queues.items() if key[0] == "T"} == {
        key: len(rows) + (key[1] == 1) for key, rows in before.items()
    }


def test_a_reader_beside_a_writer_of_this_project_does_not_wait_for_a_broker(root: Path) -> None:
    append(root, numbered("U", 0, 4))
    append(root, numbered("T", 0, 60))
    before = rows_by_queue(root)
    shutil.rmtree(root / "consumequeue" / "T" / "1")
    with held(root, kind="writer"):
        assert MessageStore.open(str(root)).state == "live"
        assert rows_by_queue(root) == before


# ---- what is looked at, and what is noted ------------------------------------------------------------------


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(start, stop) of each time that the log is gone over."""
    found: list[tuple[int, int]] = []
    original = LogScan._parts

    def counted(scan: LogScan, log: CommitLog, start: int, stop: int, threads: int | None) -> object:
        found.append((start, stop))
        return original(scan, log, start, stop, threads)

    monkeypatch.setattr(LogScan, "_parts", counted)
    return found


def test_commits_to_healthy_stores_do_not_go_over_the_log(root: Path, scans: list[tuple[int, int]]) -> None:
    for number in range(4):
        append(root, numbered("T", 12 * number, 12))
        append(root, numbered(f"New{number}", 0, 4))
    assert scans == []
    assert not (root / ".rmqlog" / "queues.json").exists()


def test_a_queue_that_never_was_is_looked_for_once(root: Path, scans: list[tuple[int, int]]) -> None:
    first = append(root, numbered("T", 0, 12, queues=2))
    second = append(root, numbered("T", 12, 12, queues=3))
    third = append(root, numbered("T", 24, 12, queues=4))
    assert scans == [(0, first.stop), (first.stop, second.stop)]
    append(root, numbered("T", 36, 12, queues=4))
    assert len(scans) == 2
    assert _count(_queued(root)) == 48
    for lost in ("2", "0"):  # after the note, and before it
        before = rows_by_queue(root)
        shutil.rmtree(root / "consumequeue" / "T" / lost)
        append(root, numbered("T", 48, 4))
        _check_appended(root, before, 4)
    assert third.stop > second.stop


@pytest.mark.parametrize(
    "text", ["", "{}", "[1]", '{"stop": 9, "last_offset": 0, "last_crc": 1, "queues": {}}']
)
def test_a_note_that_does_not_speak_of_this_log_counts_for_nothing(root: Path, text: str) -> None:
    append(root, numbered("T", 0, 12, queues=2))
    append(root, numbered("T", 12, 12, queues=4))
    before = rows_by_queue(root)
    note = root / ".rmqlog" / "queues.json"
    assert note.exists()
    note.write_text(text)
    shutil.rmtree(root / "consumequeue" / "T" / "3")
    append(root, numbered("T", 24, 12))
    _check_appended(root, before, 12)


def test_a_log_that_was_written_again_makes_the_note_count_for_nothing(tmp_path: Path) -> None:
    """The note says that T-3 had no message; then the store is one in which it had."""
    one, two = make_store(tmp_path / "one"), make_store(tmp_path / "two")
    append(one, numbered("T", 0, 12, queues=2))
    append(one, numbered("T", 12, 12, queues=3))
    append(two, numbered("T", 0, 60))
    before = rows_by_queue(two)
    shutil.copy(one / ".rmqlog" / "queues.json", two / ".rmqlog" / "queues.json")
    shutil.rmtree(two / "consumequeue" / "T" / "3")
    append(two, numbered("T", 60, 12))
    _check_appended(two, before, 12)


# ---- a commitlog that is not there -------------------------------------------------------------------------


@pytest.mark.parametrize("left", ["ledger", "checkpoint"])
def test_ledger_and_checkpoint_know_of_a_commitlog_too(root: Path, left: str) -> None:
    append(root, numbered("T", 0, 5))
    shutil.rmtree(root / "commitlog")
    shutil.rmtree(root / "consumequeue")
    if left == "checkpoint":
        (root / ".rmqlog" / "ledger.json").unlink()
    with pytest.raises(StoreNotFoundError, match=f"{left}.* has (commits up to|physic_msg_timestamp)"):
        append(root, numbered("T", 0, 5))
    assert not (root / "commitlog").exists()


def test_an_empty_store_takes_its_first_message(root: Path) -> None:
    # a broker was started and got no message
    (root / "commitlog" / "00000000000000000000").write_bytes(bytes(1 << 14))
    (root / "consumequeue" / "T" / "0").mkdir(parents=True)
    append(root, numbered("T", 0, 5))
    assert _count(_queued(root)) == 5


def test_a_first_commit_that_was_broken_off_is_completed(root: Path) -> None:
    """Its queues may be on the disk and its log not: the journal has both."""
    staged = stage(root, numbered("T", 0, 8))
    files = FileWrites(sync=True)
    opened = open_store(str(root), _options(), files)
    journal = plan(opened, (staged,), key=("q", 0), store_timestamps=None)
    publication = Publication(Opened(str(root)), journal, opened.log, files)
    journal.write(Opened(str(root)), files)
    Abort.write_mark(Opened(str(root)), journal.id, files)
    publication.append_log()
    publication.write_queues()
    shutil.rmtree(root / "commitlog")
    recover(str(root), options=_options())
    assert _count(_queued(root)) == 8


def test_a_hostile_topic_in_the_log_leads_nowhere(root: Path, tmp_path: Path) -> None:
    """A message may name any topic; no directory is made for one like this when queues are rebuilt."""
    append(root, numbered("T", 0, 20))
    append(root, numbered("evil0", 0, 1))
    for path in (root / "commitlog").iterdir():
        data = path.read_bytes()
        path.write_bytes(data.replace(b"\x05evil0", b"\x05../..").replace(b"of evil0", b"of ../.."))
    for kind in ("clean", "crashed"):
        shutil.rmtree(root / "consumequeue")
        if kind == "crashed":
            (root / "abort").write_text("4711")
        recover(str(root))
        assert [path.name for path in (root / "consumequeue").iterdir()] == ["T"]
        assert {path.name for path in tmp_path.iterdir()} == {"store"}
        assert not (root / "0").exists()


def test_a_write_files_a_message_before_no_entry_of_another(tmp_path: Path) -> None:
    """The directories of A-0 and A-1 were exchanged, and the first log file has expired since."""
    store = made(tmp_path, "A*3 A1*5", log_file_size=2048)
    while store.end < 2048:
        store.put("B")
    store.put("A", 1)
    store.put("A", 0, files=False)
    a, b, queues, first = ("A", 0), ("A", 1), store.entries, store.first
    queues[a], queues[b], first[a], first[b] = queues[b], queues[a], first[b], first[a]
    root = store.write(crashed=True)
    (root / "commitlog" / f"{0:020d}").unlink()
    before = rows_by_queue(root)
    assert [row[0] for row in before["A", 0]] == [3]
    counts = MessageStore.open(str(root)).view("queues")["messages"].to_pylist()
    assert counts == [len(rows) for rows in before.values()]
    options = replace(_options(sync=False), settings=settings_from(store.conf))
    commit(str(root), [stage(root, numbered("B", 0, 1, queues=1))], options=options)
    assert rows_by_queue(root)["A", 0] == before["A", 0]


def test_a_write_after_a_crash_mends_zeros_at_which_a_broker_ends_a_queue(tmp_path: Path) -> None:
    """Their message is before those that a broker dispatches after the crash (ConsumeQueue.recover)."""
    store = made(tmp_path, "A*20", log_file_size=1024, queue_entries=64)
    entries = store.entries["A", 0]
    before, entries[2] = b"".join(entries), bytes(20)
    root = store.write(crashed=True)
    options = replace(_options(sync=False), settings=settings_from(store.conf))
    commit(str(root), [stage(root, numbered("B", 0, 1, queues=1))], options=options)
    assert (root / "consumequeue/A/0" / f"{0:020d}").read_bytes().startswith(before)


def test_a_write_mends_an_entry_at_which_a_broker_would_cut_its_queue(tmp_path: Path) -> None:
    """It leads behind the log, in a queue that nobody writes to: a broker that starts cuts the queue there
    once the last message of the log has its entry (ConsumeQueue.truncateDirtyLogicFiles).
    """
    store = made(tmp_path, "A1*2 A*2 A@1")  # the last one has no entry: the message before it has its place
    entries = store.entries["A", 1]
    before, entries[0] = b"".join(entries), (1 << 40).to_bytes(8) + entries[0][8:]
    root = store.write()
    options = replace(_options(sync=False), settings=settings_from(store.conf))
    commit(str(root), [stage(root, numbered("B", 0, 1, queues=1))], options=options)
    assert (root / "consumequeue/A/1" / f"{0:020d}").read_bytes().startswith(before)


def test_a_write_keeps_light_queues_if_the_directory_of_the_queues_is_lost(tmp_path: Path) -> None:
    """A read of the commitlog returns them: the directory would show whether the broker makes any."""
    store = made(tmp_path, "A%0")
    shutil.rmtree(store.write() / "consumequeue")
    before = rows_by_queue(tmp_path)["%LMQ%a", 0]
    options = replace(_options(sync=False), settings=settings_from(store.conf))
    commit(str(tmp_path), [stage(tmp_path, numbered("B", 0, 1, queues=1))], options=options)
    assert rows_by_queue(tmp_path)["%LMQ%a", 0] == before

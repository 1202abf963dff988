"""Appending to a store as it is: what a broker would truncate, lose or never deliver is refused, or written
so that it does not.
"""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from store_format.bookkeeping.ledger import JOB_KEYS_MAX, Ledger, LedgerEntry
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.recover import recover
from store_format.commitlog.log import CommitLog
from store_format.errors import (
    IllegalMessageError,
    OptionError,
    StoreNotFoundError,
    StoreWriteError,
)
from store_format.files.paths import StoreFile
from store_format.message.encode import MessageColumns
from store_format.opened.store import Opened
from store_format.store import MessageStore
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden
from tests.support.staged import append, messages_of, numbered, stage

_CRC = b"__CRC32#\x01"


def _columns(topic: str, *bodies: bytes | None, queue_id: int = 0) -> MessageColumns:
    return MessageColumns(
        topic=topic,
        body=pa.array(bodies, pa.binary()),
        properties=pa.array([b""] * len(bodies)),
        queue_id=queue_id,
    )


# ---- the CRC property --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["propcrc-5.5.0", "basic-5.5.0"])
def test_messages_get_the_crc_property_where_the_last_message_has_it(copy_of: Golden, name: str) -> None:
    root, expected = copy_of(name), name.startswith("propcrc")
    before = len(messages_of(root))
    for _ in range(2):  # behind a broker's message, and behind one of the commit before
        MessageStore.open(str(root)).append(_columns("Orders", b"one", b"two"))
    messages = messages_of(root)[before:]
    assert [message.properties_bytes[-20:].startswith(_CRC) for message in messages] == [expected] * 4


def test_messages_without_the_crc_property_are_refused_behind_one_that_has_it(
    copy_of: Golden,
) -> None:
    """The log ended without it when they were encoded; a broker has written since."""
    root = copy_of("propcrc-5.5.0")
    before = messages_of(root)
    staged = stage(root, numbered("Orders", 0, 3))
    with pytest.raises(
        StoreWriteError, match=r"__CRC32#.*forceVerifyPropCRC=true would truncate them.*run it again"
    ):
        commit(str(root), [staged])
    assert messages_of(root) == before


# ---- queues that no consumer reads -------------------------------------------------------------------------


@pytest.mark.process
def test_a_queue_that_the_topic_does_not_have_is_refused(tmp_path: Path) -> None:
    store = MessageStore.create(str(tmp_path / "store"))
    store.append(_columns("Orders", b"one"))
    with pytest.raises(
        IllegalMessageError,
        match=r"topic Orders has readQueueNums=1 .* for queue 7, which consumers would not read",
    ):
        store.append(_columns("Orders", b"two", queue_id=7))
    assert [message.body for message in messages_of(tmp_path / "store")] == [b"one"]


def test_diagnose_names_queues_that_no_consumer_reads(tmp_path: Path) -> None:
    root = tmp_path / "store"
    MessageStore.create(str(root)).append(_columns("Orders", b"one", queue_id=3))
    assert MessageStore.open(str(root)).diagnose() == []
    topics = root / "config" / "topics.json"
    topics.write_text(topics.read_text().replace('"readQueueNums":4', '"readQueueNums":2'))
    (problem,) = MessageStore.open(str(root)).diagnose()
    assert (problem.severity, problem.file) == ("warning", f"{root}/consumequeue/Orders/3")
    assert problem.expected == "queue ids of Orders below 2 (readQueueNums in topics.json)"
    assert problem.found == "a queue with 1 message, which consumers do not read"
    assert problem.advice == (
        "Raise readQueueNums of Orders to 4 (mqadmin updateTopic -r 4, or without a broker rmqlog recover "
        "STORE --topic Orders --apply)"
    )


# ---- a batch that is committed already ---------------------------------------------------------------------

_STREAM = CommitOptions(keeps_key=True, new_topics={"T": 4}, clock=lambda: 1_700_000_100_000)


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return found


@pytest.mark.parametrize("options", [_STREAM, replace(_STREAM, keeps_key=False)])
def test_a_replay_is_a_warning_with_its_count(
    root: Path, caplog: pytest.LogCaptureFixture, options: CommitOptions
) -> None:
    """In another order, other files and with other properties: a replay has new ids, and partitions come as
    they come.
    """
    append(root, numbered("T", 0, 10), key=("q", 0), options=options)
    again = [replace(m, properties_bytes=b"UNIQ_KEY\x01other\x02", queue_id=0) for m in numbered("T", 0, 10)]
    staged = [stage(root, part, write="again") for part in (again[7:], again[:3], again[3:7])]
    result = commit(str(root), staged, key=("q", 0), options=options)
    assert not result.committed
    assert (
        _said(caplog)
        == [f"{root}: batch 0 of q is not written, 10 messages: it is committed already"]
        == list(result.reports)
    )


def test_a_batch_of_other_messages_under_the_same_number_is_an_error(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = replace(_STREAM, keeps_key=False)
    append(root, numbered("T", 0, 10), key=("q", 7), options=jobs)
    before = messages_of(root)
    with pytest.raises(
        OptionError,
        match=r"batch 7 of q has 10 messages and is committed already, with other bodies.*own txnVersion",
    ):
        append(root, numbered("T", 5, 10), key=("q", 7), options=jobs)
    for options, advice in ((jobs, "its own txnVersion"), (_STREAM, "new checkpoint")):
        with pytest.raises(
            OptionError,
            match=f"batch 7 of q has 9 messages and is committed already, with 10 messages. .*{advice}",
        ):
            append(root, numbered("T", 0, 9), key=("q", 7), options=options)
    # A stream repeats a batch whose rows have uuid() or a clock in them after a crash, and has to get over
    # it.
    assert not append(root, numbered("T", 5, 10), key=("q", 7), options=_STREAM).committed
    name = f"{root}: batch 7 of q"
    said = "10 messages: it is committed already, with as many messages and other bodies"
    assert _said(caplog) == [f"{name} is not written, {said}"]
    assert messages_of(root) == before


def _lose_log(root: Path, start: int) -> None:
    """What a power loss leaves of a commit with ASYNC_FLUSH: the commitlog is zeros from `start` on."""
    for path in sorted((root / "commitlog").iterdir()):
        data = path.read_bytes()
        keep = max(min(start - int(path.name), len(data)), 0)
        path.write_bytes(data[:keep].ljust(len(data), b"\0"))


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_batch_of_which_nothing_is_left_is_written_again(root: Path, gives_up: bool) -> None:
    """The ledger outlives the messages, also after a recovery has given them up."""
    append(root, numbered("T", 0, 10))
    lost = append(root, numbered("T", 10, 10), key=("q", 1), options=replace(_STREAM, sync=False))
    _lose_log(root, lost.start)
    if gives_up:
        recover(str(root)).apply()
    again = append(root, numbered("T", 10, 10), key=("q", 1), options=_STREAM)
    assert again.committed
    assert again.start == lost.start
    assert [message.body for message in messages_of(root)] == [m.body for m in numbered("T", 0, 20)]
    assert not append(root, numbered("T", 10, 10), key=("q", 1), options=_STREAM).committed


def test_a_batch_that_is_lost_in_part_is_not_called_committed(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = replace(_STREAM, keeps_key=False)
    result = append(root, numbered("T", 0, 10), key=("q", 1), options=replace(jobs, sync=False))
    _lose_log(root, messages_of(root)[4].physical_offset)
    before = messages_of(root)
    text = (
        f"{root}: batch 1 of q is not written, 10 messages: it is committed already. But messages of batch 1 "
        "are lost: it was cut or overwritten: its last message has other bytes. 6 are lost: T-0 offsets 1 to "
        "2, T-1 offsets 1 to 2, T-2 offsets 1 to 1, T-3 offsets 1 to 1. Write the lost messages under "
        "another key, or the whole batch again with txnLostBatch=again (CommitOptions.lost_batch): the store "
        "then has its other messages twice"
    )
    with pytest.raises(OptionError) as error:
        append(root, numbered("T", 0, 10), key=("q", 1), options=jobs)
    assert str(error.value) == text
    caplog.clear()
    # A stream that fails here could never go on.
    assert not append(root, numbered("T", 0, 10), key=("q", 1), options=_STREAM).committed
    assert text in _said(caplog)
    assert messages_of(root) == before
    assert result.committed


def test_a_number_that_went_back_is_a_warning_with_its_count(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (1, 2):
        append(root, numbered("T", 10 * number, 10), key=("q", number), options=_STREAM)
    assert not append(root, numbered("T", 900, 1), key=("q", 1), options=_STREAM).committed
    (said,) = _said(caplog)
    assert said.startswith(
        f"{root}: batch 1 of q is not written, 1 message: batch 2 of q is committed already. Batch numbers "
        "go back"
    )


# ---- the ledger of many jobs -------------------------------------------------------------------------------


def test_only_the_newest_keys_of_jobs_are_kept_and_all_of_streams_and_services() -> None:
    entry = LedgerEntry(1, "", 0, 0, -1, 0, 0)
    ledger = (
        Ledger()
        .with_key("stream", replace(entry, kept=True))
        .with_key("rmqlog/delivery", entry)
        .with_key("used again", entry)
    )
    for number in range(JOB_KEYS_MAX - 1):
        ledger = ledger.with_key(f"run-{number}", entry)
    ledger = ledger.with_key("used again", entry)
    for number in range(JOB_KEYS_MAX - 1):
        ledger = ledger.with_key(f"later-{number}", entry)
    later = [f"later-{number}" for number in range(JOB_KEYS_MAX - 1)]
    assert list(ledger.keys) == ["stream", "rmqlog/delivery", "used again", *later]


def test_a_commit_looks_at_the_last_batch_and_further_back_only_where_that_was_cut(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        append(root, numbered("T", number, 1), key=(f"run-{number}", 1))
    looked: list[int] = []
    damage = LedgerEntry.damage

    def counted(entry: LedgerEntry, log: CommitLog) -> str | None:
        looked.append(entry.number)
        return damage(entry, log)

    monkeypatch.setattr(LedgerEntry, "damage", counted)
    ledger, log = Ledger.read(Opened(str(root))), MessageStore.open(str(root)).log
    assert (ledger.new_reports(log), len(looked)) == ([], 1)
    cut = ledger.keys["run-4"]
    overwrite(root / "commitlog" / StoreFile.name_at(0), cut.start, bytes(cut.stop + 200 - cut.start))
    assert [report.split(",")[0] for report in ledger.new_reports(log)] == [
        "batch 1 of run-4",
        "batch 1 of run-5",
    ]
    assert len(ledger.reports(log)) == 2


# ---- other refusals and hints ------------------------------------------------------------------------------


def test_a_null_body_is_refused(root: Path) -> None:
    with pytest.raises(IllegalMessageError, match="topic Orders: message 1 has no body"):
        MessageStore.open(str(root)).append(_columns("Orders", b"one", None))
    assert messages_of(root) == []


def test_staging_that_somebody_removed_is_named_so(root: Path) -> None:
    staged = stage(root, numbered("T", 0, 3))
    shutil.rmtree(root / ".rmqlog" / "staging" / "w")
    with pytest.raises(
        StoreNotFoundError, match=r"a staged file is missing.*stagingRetention.*driver and the executors"
    ):
        commit(str(root), [staged])


def test_a_new_topic_behind_commits_without_flush_is_no_interference(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit flushes topics.json.bak, and then replaces it by the old topics.json itself."""
    for topic in ("A", "B"):
        append(root, numbered(topic, 0, 5), options=CommitOptions(sync=False))
    append(root, numbered("C", 0, 5), options=CommitOptions(sync=True))
    assert _said(caplog) == []
    assert len(messages_of(root)) == 15

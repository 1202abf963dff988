"""Entries that are zeros or lead elsewhere: their messages are read from the log, or named as damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.bookkeeping.settings import StoreSettings
from store_format.consumequeue.slices import QueueRanges
from store_format.errors import CorruptStoreError
from store_format.java.text import java_hash
from store_format.message.columns import decode_options_of
from store_format.read.queue_reader import EntryReader
from store_format.read.tolerance import Tolerance
from store_format.survey.entry_proofs import LogEntries
from tests.support.file_edits import overwrite
from tests.support.reads import flip
from tests.support.staged import append, make_store, numbered

ENTRY, BODY_AT = 20, 88
QUEUE_FILE = "consumequeue/T/0/00000000000000000000"
SETTINGS = StoreSettings("broker-a", 1 << 20, 2000 * ENTRY, 50, 2000)
COUNT = 1200


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A queue of 1,200 entries, in six blocks of one file, and messages of another topic between them."""
    root = make_store(tmp_path / "store", SETTINGS)
    for first in range(0, COUNT, 400):
        append(root, numbered("T", first, 400, queues=1) + numbered("Other", first, 40, queues=2))
    return root


def _zero(root: Path, start: int, stop: int) -> None:
    overwrite(root / QUEUE_FILE, start * ENTRY, bytes((stop - start) * ENTRY))


def _offsets(root: Path, tolerance: Tolerance | None = None, tags: set[int] | None = None) -> list[int]:
    store = MessageStore.open(str(root))
    codes = None if tags is None else frozenset(tags)
    reader = store.reader(decode_options_of(["queueOffset"], True), tolerance or Tolerance(), codes)
    batches = reader.read([store.queue("T", 0).piece()])
    return [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]


@pytest.mark.parametrize("zeros", [(0, 1), (0, 250), (203, 205), (300, 1000), (900, 1100)], ids=str)
def test_zeros_before_the_last_entry_are_no_end(
    root: Path, zeros: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    """Also a whole number of blocks: the search for the end of the queue may come to them."""
    _zero(root, *zeros)
    assert MessageStore.open(str(root)).queue("T", 0).max_offset == COUNT
    assert _offsets(root) == list(range(COUNT))
    count = zeros[1] - zeros[0]
    assert f"T-0: {count} entries of the consume queue are zeros" in caplog.text


def test_a_filter_by_tag_sees_messages_without_an_entry(root: Path) -> None:
    whole = _offsets(root, tags={java_hash("T1")})
    assert 0 < len(whole) < COUNT
    _zero(root, 300, 1000)
    assert _offsets(root, tags={java_hash("T1")}) == whole


def test_zeros_whose_message_is_not_in_the_log_are_damage_and_not_retention(root: Path) -> None:
    """In front of them are messages that retention has not deleted."""
    store = MessageStore.open(str(root))
    _, entries = next(EntryReader(store.log, Tolerance()).chunks([store.queue("T", 0).piece(500, 503)]))
    overwrite(root / f"commitlog/{0:020d}", int(entries.physical_offset[1]), bytes(int(entries.size[1])))
    _zero(root, 500, 503)
    with pytest.raises(CorruptStoreError, match="found no message at queue offset 501"):
        _offsets(root)
    assert len(_offsets(root, Tolerance("DROPMALFORMED"))) == COUNT - 1


def test_messages_that_retention_deletes_during_a_read_are_not_looked_for(tmp_path: Path) -> None:
    root = make_store(tmp_path / "small", replace(SETTINGS, mapped_file_size_commit_log=1 << 13))
    append(root, numbered("T", 0, 100, queues=1))
    store = MessageStore.open(str(root))
    piece = store.queue("T", 0).piece()
    (root / f"commitlog/{0:020d}").unlink()
    later = MessageStore.open(str(root))
    tolerance = Tolerance(fail_on_data_loss=False)
    batches = later.reader(decode_options_of(["queueOffset"], True), tolerance).read([piece])
    offsets = [offset for batch in batches for offset in batch["queueOffset"].to_pylist()]
    assert offsets == list(range(100 - len(offsets), 100)) != []
    assert tolerance.lost == 100 - len(offsets)


@pytest.mark.parametrize("file_size", [1 << 20, 1 << 15])
def test_many_newest_entries_lead_to_their_messages_as_each_does_alone(
    tmp_path: Path, file_size: int
) -> None:
    """One field of the head of each message is changed, of some none; one message is long. In a file with few
    of the messages, each has to be looked at alone.
    """
    root = make_store(tmp_path / "store", replace(SETTINGS, mapped_file_size_commit_log=file_size))
    long = replace(numbered("Long", 0, 1)[0], body=b"x" * 3000)
    append(root, [*numbered("T", 0, 300, queues=100), *numbered("Ünï", 0, 100, queues=50), long])
    store = MessageStore.open(str(root))
    queues = [each.range for each in store.queues()]
    places = [queue.bounds.last_physical_offset for queue in queues if queue.bounds is not None]
    changes = [4, 7, 15, 27, 31, 39, 87, 87 + 1, 120, None, None]
    for number, place in enumerate(sorted(places)):
        if (at := changes[number % len(changes)]) is not None:
            flip(root, place + at)
    store = MessageStore.open(str(root))
    alone = {
        (queue.topic, queue.queue_id)
        for queue in queues
        if queue.bounds is not None
        and LogEntries(store.log).is_own(
            (queue.topic, queue.queue_id),
            queue.max_offset - 1,
            (queue.bounds.last_physical_offset, queue.bounds.last_size),
        )
    }
    table = QueueRanges.of({(queue.topic, queue.queue_id): queue for queue in queues})
    own = LogEntries(store.log).own_newest(table)
    found = {key for key, is_own in zip(table, own, strict=True) if is_own}
    assert found == alone - {("Long", 0)} if len(store.log.files) == 1 else found <= alone
    assert len(found) > 10
    assert 30 < len(alone) < len(queues) - 30

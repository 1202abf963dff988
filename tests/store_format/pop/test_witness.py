"""An entry that a queue had shows whether its topic was deleted and created again."""

from __future__ import annotations

from pathlib import Path

import pytest

from store_format.consumequeue.slices import QueueRange
from store_format.pop.log import is_of_new_topic, witness_before
from store_format.pop.records import WitnessEntry
from store_format.read.store import Store
from tests.support.popped import TOPIC, append_numbered, popped_store
from tests.support.staged import deleted_topic


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return popped_store(tmp_path / "s", 60)


def _queue(root: Path) -> QueueRange:
    (queue,) = Store.open(str(root)).queues(TOPIC.__eq__)
    return queue.range


def _witness(root: Path, next_offset: int = 32) -> WitnessEntry:
    witness = witness_before(_queue(root), next_offset)
    assert witness is not None
    assert witness.offset == next_offset - 1
    return witness


@pytest.mark.parametrize("count", [100, 32, 31, 1])
def test_the_queue_of_a_topic_that_was_created_again_is_new(root: Path, count: int) -> None:
    """With 31 messages and fewer, the new queue has no entry at the offset of the witness."""
    witness = _witness(root)
    append_numbered(root, 1, topic="Other")  # the end of the consume queues, so that nobody dispatches again
    deleted_topic(root, TOPIC)
    append_numbered(root, count)
    assert _queue(root).max_offset == count
    assert is_of_new_topic(_queue(root), witness)


def test_a_queue_that_goes_on_is_not_new(root: Path) -> None:
    witness = _witness(root)
    append_numbered(root, 40, first=60)
    assert _queue(root).max_offset == 100
    assert not is_of_new_topic(_queue(root), witness)


def test_an_older_copy_of_the_store_is_not_new(root: Path) -> None:
    """Its queue ends before the witness, but its messages are before the witness in the log, too."""
    older = _queue(root)
    append_numbered(root, 40, first=60)
    assert not is_of_new_topic(older, _witness(root, 100))


def test_where_retention_has_deleted_the_entry_nothing_tells(root: Path) -> None:
    witness = _witness(root)
    queue = _queue(root)._replace(min_offset=witness.offset + 1)
    assert not is_of_new_topic(queue, witness)

"""A producer's own INNER_MULTI_DISPATCH on a store of a broker with the default enableMultiDispatch=false."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.commit.recover import recover
from store_format.views.queues import sized_queues
from tests.support.staged import append, make_store, numbered


def _marked(root: Path) -> Path:
    properties = b"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x017,7\x02"
    make_store(root)
    append(root, numbered("Other", 0, 4))
    append(root, [replace(each, properties_bytes=properties) for each in numbered("T", 0, 1)])
    for path in (root / "consumequeue").glob("%LMQ%*"):
        shutil.rmtree(path)
    return root


def test_a_write_makes_no_light_queues_unasked(tmp_path: Path) -> None:
    """Real 5.5.0 with the defaults files such a message in its own queue alone (isMultiDispatchQueue)."""
    root = _marked(tmp_path / "store")
    shutil.rmtree(root / "consumequeue/T")  # so that the write compares the log with all queues
    append(root, numbered("T", 1, 4), options=CommitOptions(unfiled_queues="read"))
    assert sorted(path.name for path in (root / "consumequeue").iterdir()) == ["Other", "T"]


def test_entries_before_a_light_queue_s_first_message_are_no_messages(tmp_path: Path) -> None:
    root = _marked(tmp_path / "store")
    recover(str(root)).apply()
    store = MessageStore.open(str(root))
    found = {each.queue.topic: each.messages for each in sized_queues(store) if each.queue.topic[0] == "%"}
    assert found == {"%LMQ%a": 1, "%LMQ%b": 1}


@pytest.mark.parametrize("lost", [None, "config"])
def test_a_read_after_a_crash_makes_no_light_queues(tmp_path: Path, lost: str | None) -> None:
    """Real 5.5.0 serves T-0 alone."""
    root = _marked(tmp_path / "store")
    (root / "abort").touch()
    if lost:
        shutil.rmtree(root / lost)
    assert MessageStore.open(str(root)).topics() == ["Other", "T"]

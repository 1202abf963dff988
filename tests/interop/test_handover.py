"""A store that is handed to a broker behind commits without flush: the index is whole after one flush, and is not without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from store_format.append import CommitOptions
from store_format.store import MessageStore
from tests.interop.harness import RocketMQ
from tests.staged import append, make_store, numbered

_COMMITS, _ROWS = 20, 200  # 40 commitlog files of 16 KiB: a broker's recovery goes over the last ten


@pytest.mark.parametrize(("version", "is_flushed"), [("5.5.0", True), ("5.5.0", False), ("4.9.7", True)])
def test_keys_lead_to_messages_of_async_commits(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, version: str, is_flushed: bool
) -> None:
    store = make_store(tmp_path / "store")
    for number in range(_COMMITS):
        append(store, numbered("T", number * _ROWS, _ROWS), key=("app", number), options=CommitOptions(sync=False, new_topics={"T": 4}))
    assert len(list((store / "commitlog").iterdir())) > 20
    if is_flushed:
        MessageStore.open(str(store)).flush()
    asked = range(0, _COMMITS * _ROWS, _COMMITS * _ROWS // 16)
    with rocketmq(version).broker(store) as broker:
        client = broker.client()
        assert client.ends(["T"]) == {("T", queue_id): (0, _COMMITS * _ROWS // 4) for queue_id in range(4)}
        found = [i for i in asked if client.by_key("T", f"k{i}")]
    if is_flushed:
        assert found == list(asked)
    else:  # what write.md says: every message is there, and older ones are not in the index
        assert len(found) < len(asked) // 2, found

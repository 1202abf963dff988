"""A store that is handed to a broker: behind commits without flush, and to a broker that runs as another
user.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store_format.commit.options import CommitOptions
from store_format.store import MessageStore
from tests.interop.harness import RocketMQ
from tests.interop.jvm import java
from tests.interop.programs import ProgramError
from tests.support.staged import append, make_store, numbered

_COMMITS, _ROWS = 20, 200  # 40 commitlog files of 16 KiB: a broker's recovery goes over the last ten


@pytest.mark.parametrize(
    ("version", "is_flushed"),
    [pytest.param("5.5.0", True, marks=pytest.mark.whole), ("5.5.0", False), ("4.9.7", True)],
)
def test_keys_lead_to_messages_of_async_commits(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, version: str, is_flushed: bool
) -> None:
    store = make_store(tmp_path / "store")
    for number in range(_COMMITS):
        append(
            store,
            numbered("T", number * _ROWS, _ROWS),
            key=("app", number),
            options=CommitOptions(sync=False, new_topics={"T": 4}),
        )
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


_WRITER, _GROUP = 12345, 12346


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="only root changes users")
def test_a_broker_of_another_user_loads_what_a_common_group_may_write(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is root without its capabilities, who is nobody special, and in the group; the files are the
    writer's.
    """
    other = tmp_path / "java"
    other.write_text(
        f'#!/bin/sh\nexec setpriv --bounding-set=-all --inh-caps=-all --groups {_GROUP} {java()} "$@"\n'
    )
    other.chmod(0o755)
    store = tmp_path / "store"
    store.mkdir()
    os.chown(store, _WRITER, _GROUP)
    store.chmod(0o2775)
    for mask in (0o002, 0o022):
        before = os.umask(mask)
        try:
            make_store(store) if mask == 0o002 else None
            append(store, numbered(f"T{mask}", 0, 100))
        finally:
            os.umask(before)
        monkeypatch.setattr("tests.interop.jvm.java", lambda: str(other))
        if mask == 0o002:
            assert len(rocketmq("5.5.0").open_store(store).messages) == 100
        else:  # the control: files that the group may not write
            with pytest.raises(ProgramError, match="load"):
                rocketmq("5.5.0").open_store(store)
        monkeypatch.undo()

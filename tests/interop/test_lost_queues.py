"""The real store classes on stores that had lost consume queues when we appended: every old message is
served, and every new one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from store_format import MessageStore
from store_format.commit.append import commit
from store_format.commit.options import CommitOptions
from store_format.commit.publication import save_checkpoint
from store_format.commit.recover import recover
from store_format.diagnose import diagnose
from store_format.files.write import FileWrites
from store_format.metadata.read import read_checkpoint
from store_format.opened.store import Opened
from tests.interop.harness import RocketMQ
from tests.interop.rows import by_place, data_files, ours
from tests.interop.versions import OLD
from tests.support import goldens
from tests.support.file_edits import edited_json, harm
from tests.support.fixtures import Golden
from tests.support.staged import append, numbered, settings_from, stage

NEW = 50


def _options(name: str) -> CommitOptions:
    return CommitOptions(settings=settings_from(goldens.config(name)), tag_keys=not name.endswith("4.9.7"))


@pytest.mark.parametrize(
    ("name", "lost", "count"),
    [
        pytest.param("defaults-5.5.0", "consumequeue", 208, marks=pytest.mark.whole),
        pytest.param("basic-5.5.0", "consumequeue", 2010, marks=pytest.mark.whole),
        ("cleaned-5.5.0", "consumequeue", 1003),
        ("basic-5.5.0", "consumequeue/Orders/1", 2010),
        ("basic-5.5.0", "after a crash", 2010),
        ("basic-4.9.7", "consumequeue", None),
    ],
)
def test_all_messages_are_served_after_an_append(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, name: str, lost: str, count: int | None
) -> None:
    store, before = goldens.unpack(name, tmp_path / name), goldens.expected_rows(name)
    assert count in (None, len(before))
    shutil.rmtree(store / ("consumequeue" if lost == "after a crash" else lost))
    if lost == "after a crash":
        checkpoint = read_checkpoint(f"{store}/checkpoint")
        assert checkpoint is not None
        flushed = replace(checkpoint, logics_physical_offset=max(row["physicalOffset"] for row in before))
        save_checkpoint(Opened(str(store)), flushed, FileWrites(sync=False))
        (store / "abort").write_text("4711")
    append(store, numbered("Orders", 0, NEW), options=_options(name))
    files = {} if name.startswith("defaults") else data_files(store)  # of a gigabyte and more
    opened = rocketmq(name.rpartition("-")[2]).open_store(store, goldens.config(name))
    assert not files or data_files(store) == files
    served = by_place(opened.messages)
    end = goldens.expected(name)["commitLog"]["maxOffset"]
    assert [line for line in served if line["physicalOffset"] < end] == by_place(before)
    assert len(served) == len(before) + NEW
    assert served == ours(store)


@pytest.mark.parametrize("version", OLD)
def test_a_broker_that_never_got_a_message_is_no_lost_commitlog(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, version: str
) -> None:
    store, config = tmp_path / "store", goldens.config("basic-5.5.0")
    store.mkdir()
    java = rocketmq(version)
    java.open_store(store, config, start=True)
    commit(
        str(store),
        [stage(store, numbered("T", 0, NEW))],
        options=CommitOptions(settings=settings_from(config)),
    )
    assert len(java.open_store(store, config).messages) == NEW


def test_a_queue_that_only_a_group_knows_goes_on_at_its_offset(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden
) -> None:
    """Its messages were cut off with the log's end, and its files are lost. The group gets all new messages,
    and the broker goes on behind them.
    """
    name, group = "basic-5.5.0", "CG_cut"
    store, config = copy_of(name), goldens.config(name)
    topics = store / "config/topics.json"
    with edited_json(topics) as value:
        value["topicConfigTable"]["Cut"] = value["topicConfigTable"]["Orders"] | {"topicName": "Cut"}
    offsets, key = store / "config/consumerOffset.json", '"offsetTable":{'
    assert key in offsets.read_text()
    offsets.write_text(offsets.read_text().replace(key, f'{key}"Cut@{group}":{{0:60}},'))
    result = append(store, numbered("Cut", 0, NEW, queues=1), options=_options(name))
    assert result.queues == {("Cut", 0): (60, 60 + NEW)}
    assert MessageStore.open(str(store)).diagnose().of("damage", "warning") == []
    with rocketmq("5.5.0").broker(store, config) as broker:
        client = broker.client()
        assert client.ends(["Cut"])["Cut", 0] == (0, 60 + NEW)  # an unused place is no message
        served = [line["queueOffset"] for line in client.messages(["Cut"])]
        assert served == list(range(60, 60 + NEW))
        got = client.push_consume(group, "Cut", [(0, offset) for offset in served])
        assert sorted(line["queueOffset"] for line in got) == served
        sent = client.send("Cut", 8, seed=1)
        assert min(line["queueOffset"] for line in sent if line["queueId"] == 0) == 60 + NEW
        broker.stop()
    assert [row["queueOffset"] for row in ours(store, {"Cut"})][:NEW] == served


@pytest.mark.parametrize("how", ["async", "sync", "killed"])
def test_a_rebuild_beside_old_damage_costs_no_message(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A damaged message in the first of four files, where the recovery of a clean store does not look."""
    name = "basic-5.5.0"
    store, before = (
        goldens.unpack(name, tmp_path / name),
        sorted(goldens.expected_rows(name), key=lambda row: row["physicalOffset"]),
    )
    checkpoint = read_checkpoint(f"{store}/checkpoint")
    assert checkpoint is not None
    last = before[-1]["physicalOffset"]
    flushed = replace(
        checkpoint, logics_physical_offset=last, logics_msg_timestamp=checkpoint.physic_msg_timestamp
    )
    save_checkpoint(Opened(str(store)), flushed, FileWrites(sync=False))
    damaged = store / "commitlog" / f"{0:020d}"
    data = bytearray(damaged.read_bytes())
    data[before[100]["physicalOffset"] + 100] ^= 0xFF
    damaged.write_bytes(data)
    shutil.rmtree(store / "consumequeue" / "Orders" / "1")
    if how == "killed":
        monkeypatch.setattr(FileWrites, "move", _die)
        with pytest.raises(KeyboardInterrupt):
            append(store, numbered("Orders", 0, NEW), options=_options(name))
    else:
        append(store, numbered("Orders", 0, NEW), options=replace(_options(name), sync=how == "sync"))
    opened = rocketmq("5.5.0").open_store(store, goldens.config(name))
    assert opened.commit_log[0] == 0
    lost = sum(row["topic"] == "Orders" and row["queueId"] == 1 for row in before) if how == "killed" else 0
    assert len(opened.messages) >= len(before) - lost - 1 + (0 if how == "killed" else NEW)


def test_a_commit_without_flush_beside_old_damage_costs_no_message(
    rocketmq: Callable[[str], RocketMQ], tmp_path: Path
) -> None:
    """It leaves `abort`; the checkpoint of this store has no logicsPhysicalOffset, and a broker would begin
    with its first file.
    """
    name = "basic-5.5.0"
    store, before = (
        goldens.unpack(name, tmp_path / name),
        sorted(goldens.expected_rows(name), key=lambda row: row["physicalOffset"]),
    )
    damaged = store / "commitlog" / f"{0:020d}"
    data = bytearray(damaged.read_bytes())
    data[before[100]["physicalOffset"] + 100] ^= 0xFF
    damaged.write_bytes(data)
    append(store, numbered("Orders", 0, NEW), options=replace(_options(name), sync=False))
    assert (store / "abort").exists()
    assert len(rocketmq("5.5.0").open_store(store, goldens.config(name)).messages) >= len(before) - 1 + NEW


def _die(*_: object) -> bool:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("what", "queue", "is_crashed"),
    [
        ("remove consumequeue/Orders/1", "Orders-1", True),
        ("remove consumequeue/Orders/1", "Orders-1", False),
        ("zero consumequeue/Orders/1/00000000000000000000 200 1000", "Orders-1", False),
        ("zero consumequeue/Orders/1/00000000000000004000 200 100", "Orders-1", False),
        ("zero consumequeue/Metrics/4/00000000000000000000 740 20", "Metrics-4", False),
    ],
)
def test_what_a_broker_does_not_serve_is_the_number_of_the_verdict(
    rocketmq: Callable[[str], RocketMQ], copy_of: Golden, what: str, queue: str, is_crashed: bool
) -> None:
    """A broker writes the entries of the files that its recovery reads, and ends a queue at the first entry
    that is not valid in its last three files (ConsumeQueue.recover).
    """
    name = "basic-5.5.0"
    store, messages = copy_of(name), goldens.expected_rows(name)
    harm(store, what)
    if is_crashed:
        checkpoint = read_checkpoint(f"{store}/checkpoint")
        assert checkpoint is not None
        newest = max(row["storeTimestamp"] for row in messages)
        flushed = replace(checkpoint, physic_msg_timestamp=newest, logics_msg_timestamp=newest)
        save_checkpoint(Opened(str(store)), flushed, FileWrites(sync=False))
        (store / "abort").write_text("4711")
    plan = recover(str(store))
    plan.table()
    unserved, verdict = plan.unserved(), diagnose(str(store)).verdict
    opened = rocketmq("5.5.0").open_store(store, goldens.config(name), start=True)
    assert (unserved.messages, unserved.names) == (len(messages) - len(opened.messages), (queue,))
    assert unserved.messages
    assert f"; {unserved}" in verdict
